//! The types of the C ABI.

use core::ffi::{c_char, c_void};

/// The version of the ABI. A library serves every client whose number is not above its own.
pub const TENURE_ABI_VERSION: u32 = 1;

/// What a function answers.
pub type tenure_status = i32;
/// Done.
pub const TENURE_OK: tenure_status = 0;
/// Done, and a resource waits to be closed: call `tenure_collect()` when you hold no lock (an interpreter's, say). Only
/// functions named `_try_` answer so.
pub const TENURE_OK_COLLECT: tenure_status = -1;
/// No memory. The only error after which trying again can help.
pub const TENURE_ERROR_OUT_OF_MEMORY: tenure_status = 1;
/// A pointer was named that does not belong where it was named. Nothing happened.
pub const TENURE_ERROR_OWNERSHIP: tenure_status = 2;
/// The CUDA driver failed; the error has its code, its name and the call.
pub const TENURE_ERROR_CUDA: tenure_status = 3;
/// An argument is out of range; the text says which and what to do.
pub const TENURE_ERROR_INVALID_ARGUMENT: tenure_status = 4;
/// This resource, device or build cannot do it; the text says what can.
pub const TENURE_ERROR_UNSUPPORTED: tenure_status = 5;
/// A `_try_` function would have had to wait or to call the driver or user code. Nothing changed: use the plain one.
pub const TENURE_ERROR_WOULD_BLOCK: tenure_status = 6;
/// A handle is null, was released, or is not one of this library.
pub const TENURE_ERROR_BAD_HANDLE: tenure_status = 7;
/// The process is a forked child, where device memory cannot be used.
pub const TENURE_ERROR_FORKED: tenure_status = 8;
/// The process is ending.
pub const TENURE_ERROR_EXITING: tenure_status = 9;
/// A user's callback failed; the error may carry its own error as a payload.
pub const TENURE_ERROR_CALLBACK: tenure_status = 10;
/// No device layer: no CUDA driver where one was asked for, or one that is broken.
pub const TENURE_ERROR_NO_DEVICE: tenure_status = 11;
/// tenure itself is at fault. Please report it.
pub const TENURE_ERROR_INTERNAL: tenure_status = 12;

/// A reference to a resource, owned by whoever received it and given back with `tenure_resource_release`.
///
/// Two references to one resource may have different values: compare with `tenure_resource_same` or by
/// `tenure_resource_id`.
pub type tenure_resource = u64;
/// No resource. An error wherever a resource is needed.
pub const TENURE_RESOURCE_NULL: tenure_resource = 0;
/// Stands for "the current resource of the device": the table is read once, at the start of the call.
pub const TENURE_RESOURCE_CURRENT: tenure_resource = u64::MAX;

/// A buffer: an allocation with an owner. Given back with `tenure_buffer_destroy`.
pub type tenure_buffer = u64;
/// A stream that lives while something names it. Given back with `tenure_stream_release`.
pub type tenure_stream_object = u64;
/// A set of streams that are given out in turn. Given back with `tenure_stream_pool_release`.
pub type tenure_stream_pool = u64;
/// A scope of the table of current resources.
pub type tenure_scope = u64;
/// A measurement of what one thread or task does. 0 is none.
pub type tenure_statistics_scope = u64;
/// A listener of the table of current resources.
pub type tenure_listener = u64;
/// A function that is asked for memory when a pool is about to fail.
pub type tenure_low_memory_hook = u64;
/// A name for memory that graphs share which never run at once. Given back with `tenure_shared_arena_release`.
pub type tenure_shared_arena = u64;
/// A scope around captures of a stream.
pub type tenure_capture_scope = u64;
/// A graph of `tenure_sim_capture_end`. Given back with `tenure_sim_graph_destroy`.
pub type tenure_graph = u64;

/// A tag that is open. 0 is none.
pub type tenure_tag = u64;

/// A stream, as a call carries it.
///
/// `raw` is the driver's value (`cudaStream_t`, `CUstream`): 0 and 1 are the legacy default stream, 2 the per-thread default stream of the thread
/// that names it. A default stream given for a buffer or a resource is that of its device. `object` is 0, or the stream object that keeps `raw`
/// alive. A raw value without an object (and not a default stream) must be alive during the call and is
/// not touched afterwards.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct tenure_stream {
    /// The driver's value.
    pub raw: *mut c_void,
    /// The stream object that keeps it alive, or 0.
    pub object: tenure_stream_object,
}

/// Text made by the library. Given back with `tenure_text_free`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tenure_text {
    /// UTF-8, ended by a zero byte.
    pub data: *const c_char,
    /// Bytes without the zero byte.
    pub size: usize,
}

/// The detail of the last failing call on this thread. Set `size` to `sizeof(tenure_error)` before asking for it. The strings are valid until the
/// next failing call on the thread.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tenure_error {
    /// Bytes of this structure as the caller knows it.
    pub size: usize,
    /// The status that the call returned.
    pub status: tenure_status,
    /// For `TENURE_ERROR_CUDA`: the driver's code.
    pub cuda_code: i32,
    /// One line that says what happened and what to do.
    pub message: *const c_char,
    /// For `TENURE_ERROR_CUDA`: the name of the code, such as `CUDA_ERROR_INVALID_VALUE`.
    pub cuda_name: *const c_char,
    /// For `TENURE_ERROR_CUDA`: the driver call, such as `cuMemAlloc`.
    pub cuda_call: *const c_char,
    /// Out of memory: bytes asked for.
    pub requested: u64,
    /// Out of memory: bytes handed out by the resource.
    pub live: u64,
    /// Out of memory: bytes the resource holds from its upstream or the device.
    pub reserved: u64,
    /// Out of memory: the limit that was met, or 0.
    pub limit: u64,
    /// Out of memory: the largest block that could still be handed out.
    pub largest_free: u64,
    /// Out of memory: free bytes of the device, 0 when it was not asked.
    pub driver_free: u64,
    /// Out of memory: total bytes of the device, 0 when it was not asked.
    pub driver_total: u64,
    /// Out of memory: the stack of resources, outermost first.
    pub resource: *const c_char,
    /// Ownership: the pointer that was named.
    pub ptr: u64,
    /// Ownership: the size that was named.
    pub bytes: u64,
    /// Ownership: the id of the resource that was asked.
    pub asked: u64,
    /// Ownership: the id of the owner, 0 when unknown.
    pub owner: u64,
    /// Ownership: the size of the block, 0 when unknown.
    pub owner_bytes: u64,
    /// Who can read the payload; 0 when there is none.
    pub payload_kind: u32,
    /// Ownership: 1 unknown pointer, 2 interior pointer, 3 wrong resource, 4 wrong size, 5 wrong alignment, 6 double free.
    pub misuse_kind: u32,
    /// Out of memory: bytes the resource holds and has not handed out.
    pub cached: u64,
    /// Out of memory: bytes of them that other streams may not have before the device is waited for.
    pub unproven: u64,
    /// Out of memory: the streams that hold most of what is cached, and how much; empty when none does.
    pub pending: *const c_char,
    /// Out of memory: what was tried, in order, and what came of it; empty when nothing could help.
    pub tried: *const c_char,
    /// Out of memory: what else there is to say, a line each (at most eight, ended by `\n` but for the last): who holds most, what is cached, what
    /// other streams hold back, the largest free block, what was tried, and the setting that would have helped. Empty for what a `_try_` function
    /// failed with until `error_explain`.
    pub notes: *const c_char,
}

/// One request, as a resource of user functions sees it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tenure_request {
    /// Bytes of this structure.
    pub size: usize,
    /// Bytes wanted, never 0.
    pub bytes: usize,
    /// Alignment in bytes, a power of two.
    pub alignment: usize,
    /// Reserved, 0.
    pub owner: u64,
    /// Reserved, 0.
    pub flags: u32,
}

/// For `tenure_prefetch`: the host, where a device is asked for.
pub const TENURE_HOST: i32 = -2;
/// In place of a device, where a call takes it: the one whose memory an address is, as the driver knows it.
pub const TENURE_DEVICE_OF_MEMORY: i32 = -3;

/// What memory of a resource can do: the kernels can use it.
pub const TENURE_DEVICE_ACCESSIBLE: u32 = 1;
/// The host can dereference it.
pub const TENURE_HOST_ACCESSIBLE: u32 = 2;
/// It migrates on demand.
pub const TENURE_MANAGED: u32 = 4;
/// Allocation and free are ordered with the stream.
pub const TENURE_STREAM_ORDERED: u32 = 8;
/// It can be given to another process.
pub const TENURE_EXPORTABLE: u32 = 16;

/// For `tenure_resource_vtable` only: the functions enter an interpreter; see `tenure_interpreter_exit`.
pub const TENURE_INTERPRETED: u32 = 1 << 16;

/// A resource made of user functions. It is copied at creation; `context` belongs to the resource from then on.
///
/// The functions are called without any lock of tenure's held, on any thread, and may allocate through other resources. A function that fails calls
/// `tenure_error_set` and returns the status. An error of `deallocate` is reported and never stops the free.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tenure_resource_vtable {
    /// Bytes of this structure as its maker knows it.
    pub size: usize,
    /// A short name, such as `"my_arena"`. Copied.
    pub kind: *const c_char,
    /// `TENURE_DEVICE_ACCESSIBLE` and so on.
    pub properties: u32,
    /// The device of the memory, or -1 when it follows from the stream.
    pub device: i32,
    /// Allocates; writes the pointer to `out`.
    pub allocate: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            request: *const tenure_request,
            stream: tenure_stream,
            out: *mut *mut c_void,
        ) -> tenure_status,
    >,
    /// Frees in the order of the stream.
    pub deallocate: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            ptr: *mut c_void,
            request: *const tenure_request,
            stream: tenure_stream,
        ) -> tenure_status,
    >,
    /// Optional: gives back what is cached, down to `keep_bytes`.
    pub trim:
        Option<unsafe extern "C" fn(context: *mut c_void, keep_bytes: usize, released: *mut usize) -> tenure_status>,
    /// Optional: called once, when nothing of the resource is alive any more.
    pub drop: Option<unsafe extern "C" fn(context: *mut c_void)>,
}

/// Keeps a foreign object alive: `release(context)` is called once, on any thread, when nothing needs it any more. Both may be null. A call that
/// fails has not taken it: the caller keeps it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tenure_owner {
    /// The object.
    pub context: *mut c_void,
    /// Called once.
    pub release: Option<unsafe extern "C" fn(context: *mut c_void)>,
}

/// The figures of a resource, in bytes. Set `size` before asking.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct tenure_info {
    /// Bytes of this structure as the caller knows it.
    pub size: usize,
    /// Handed out and not given back.
    pub live_bytes: u64,
    /// Held ready for the next request.
    pub cached_bytes: u64,
    /// Taken from the device or the upstream.
    pub reserved_bytes: u64,
    /// The largest single request that could be served from what is cached.
    pub largest_free_bytes: u64,
    /// The highest `live_bytes` so far.
    pub peak_live_bytes: u64,
    /// The highest `reserved_bytes` so far.
    pub peak_reserved_bytes: u64,
    /// Number of blocks handed out and not given back.
    pub live_count: u64,
    /// Free bytes that other streams may not have before the device is waited for.
    pub unproven_bytes: u64,
    /// How often the whole device was waited for.
    pub device_proofs: u64,
    /// 1: the memory lies in address ranges that the resource maps itself. 0: it comes in pieces from the device or an upstream, as a pool's does
    /// where the device has no virtual memory management.
    pub own_ranges: u64,
}

/// Counters of the statistics adaptor, in bytes and in blocks. Set `size` before asking.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct tenure_statistics {
    /// Bytes of this structure as the caller knows it.
    pub size: usize,
    /// Bytes alive.
    pub current_bytes: i64,
    /// Blocks alive.
    pub current_count: i64,
    /// The highest `current_bytes`.
    pub peak_bytes: i64,
    /// The highest `current_count`.
    pub peak_count: i64,
    /// All bytes ever allocated.
    pub total_bytes: i64,
    /// All blocks ever allocated.
    pub total_count: i64,
}

/// How a pool is made. Zero the structure, set `size` and what you care about.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct tenure_pool_options {
    /// Bytes of this structure as the caller knows it.
    pub size: usize,
    /// Bytes taken at construction, at once or an error. 0: nothing; the pool grows by need.
    pub initial_bytes: u64,
    /// A hard limit that can be reached. 0: what the device has.
    pub maximum_bytes: u64,
    /// `tenure_resource_trim` keeps at least this many idle bytes.
    pub release_threshold: u64,
    /// The device, or -1 for the current one.
    pub device: i32,
    /// 0: rather grow than make one stream wait for another. 1: the other way round.
    pub prefer_footprint: u32,
    /// 1: the caller promises that no stream it passes is ever capturing; one driver call less per allocation.
    pub assume_no_capture: u32,
    /// 1: take plain chunks from the upstream even where the pool could map address ranges of its own.
    pub plain_chunks: u32,
    /// 1: idle pages are never mapped a second time where a larger range is needed. For users whose network cards keep what
    /// they know of an address.
    pub no_remap: u32,
    /// 1: a thread of the library grows the pool after it had to grow, so that nobody waits for the next growth.
    pub grow_ahead: u32,
    /// Pages that have been idle for so many milliseconds are given back by themselves. 0: never.
    pub decay_ms: u64,
    /// The unit of growth, and the largest piece that is mapped or given back as a whole: a power of two of 2 MiB to 1 GiB. 0:
    /// what suits the size of the pool.
    pub chunk_bytes: u64,
    /// How other processes can be given the memory: a sum of `TENURE_HANDLE_FD` and `TENURE_HANDLE_FABRIC`; 0: they cannot. For pools that map pages of
    /// their own; over plain chunks memory goes as that of the upstream does.
    pub export_handle_type: u32,
    /// 1: network cards can be given the memory (GPUDirect RDMA). For pools that map pages of their own.
    pub rdma: u32,
    /// The other devices whose kernels and copies may use the memory, a bit for each ordinal. For pools that map pages of their own, for which
    /// `cudaDeviceEnablePeerAccess` says nothing.
    pub peers: u64,
}

/// Memory can be handed to another process by file descriptor.
pub const TENURE_HANDLE_FD: u32 = 1;
/// By fabric handle, also between nodes of one NVLink domain.
pub const TENURE_HANDLE_FABRIC: u32 = 8;
/// By legacy handle (`cuIpcGetMemHandle`).
pub const TENURE_HANDLE_LEGACY: u32 = 256;

/// Memory of this process, described for another: `data` travels on any channel, and the descriptors beside it (`SCM_RIGHTS`), in their order. Given
/// back with `tenure_shared_free`, which closes the descriptors here.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tenure_shared {
    /// What the memory is and where.
    pub data: *mut c_void,
    /// Bytes of `data`.
    pub data_bytes: usize,
    /// The descriptors that lead there; null where there are none.
    pub fds: *mut i32,
    /// Their number.
    pub fd_count: usize,
}

/// What a description of shared memory says. Set `size` before asking.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct tenure_shared_view {
    /// Bytes of this structure as the caller knows it.
    pub size: usize,
    /// Bytes of the shared memory.
    pub bytes: u64,
    /// How many descriptors belong to it.
    pub fd_count: u64,
    /// By which kind of handle it goes: `TENURE_HANDLE_FD` and so on.
    pub kind: u32,
    /// The process that shares it.
    pub pid: u32,
    /// The device that it lies on.
    pub uuid: [u8; 16],
}

/// How a resource of blocks of one size is made. Zero the structure, set `size` and what you care about.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct tenure_fixed_size_options {
    /// Bytes of this structure as the caller knows it.
    pub size: usize,
    /// Bytes of a block, rounded up to a multiple of 256. 0: 1 MiB.
    pub block_size: u64,
    /// Blocks taken at construction, at once or an error, and as many at a time later. 0: none at first, and one after the other.
    pub blocks_to_preallocate: u64,
    /// The device, or -1 for the current one.
    pub device: i32,
    /// For later: leave it 0.
    pub unused: u32,
}

/// How a resource of bins is made. Zero the structure, set `size` and what you care about.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct tenure_binning_options {
    /// Bytes of this structure as the caller knows it.
    pub size: usize,
    /// 1: a bin of 2^n bytes for each n from `min_size_exponent` to `max_size_exponent`, unless both are -1. 0: no bins at first.
    pub has_exponents: u32,
    /// The exponent of the smallest bin.
    pub min_size_exponent: i32,
    /// The exponent of the largest bin.
    pub max_size_exponent: i32,
    /// The device of the bins that are made here, or -1 for the current one.
    pub device: i32,
}

/// How an arena is made. Zero the structure, set `size` and what you care about.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct tenure_arena_options {
    /// Bytes of this structure as the caller knows it.
    pub size: usize,
    /// Bytes of the arena, taken at construction, at once or an error. 0: half of what is free on the device.
    pub arena_size: u64,
    /// The device, or -1 for the current one.
    pub device: i32,
    /// 1: each request that cannot be served leaves the state of the arena in `tenure_arena_memory_dump.log` in the working directory.
    pub dump_log_on_failure: u32,
}

/// How a stream-ordered resource over a driver pool of its own is made.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct tenure_async_options {
    /// Bytes of this structure as the caller knows it.
    pub size: usize,
    /// Bytes taken at construction. 0: nothing.
    pub initial_bytes: u64,
    /// Bytes that the driver keeps at a synchronisation. 0 with `has_release_threshold` 0: everything.
    pub release_threshold: u64,
    /// 1 when `release_threshold` was set on purpose.
    pub has_release_threshold: u32,
    /// The device, or -1 for the current one.
    pub device: i32,
    /// 0: not exportable; 1: file descriptor; 8: fabric; 9: either.
    pub handle_type: u32,
    /// 1: streams that are given as raw values outlive every buffer that names them.
    pub stream_outlives_buffer: u32,
}

/// A buffer, as it is now. Set `size` before asking. It says what is; it does not own anything.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tenure_buffer_view {
    /// Bytes of this structure as the caller knows it.
    pub size: usize,
    /// The memory; null when the buffer has no bytes.
    pub ptr: *mut c_void,
    /// Bytes in use.
    pub bytes: usize,
    /// Bytes allocated.
    pub capacity: usize,
    /// The alignment that was asked for.
    pub alignment: usize,
    /// The id of its resource; 0 when it was adopted with an owner.
    pub resource_id: u64,
    /// Its home stream.
    pub stream: tenure_stream,
    /// The device of the memory; -1 for memory of the host.
    pub device: i32,
    /// `TENURE_DEVICE_ACCESSIBLE` and so on.
    pub properties: u32,
}

/// An allocation that was taken out of its buffer: the taker has what it needs to free it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tenure_detached {
    /// Bytes of this structure as the caller knows it.
    pub size: usize,
    /// The memory; null when there are no bytes.
    pub ptr: *mut c_void,
    /// Bytes in use.
    pub bytes: usize,
    /// Bytes allocated: what `tenure_deallocate` wants to hear.
    pub capacity: usize,
    /// The alignment: what `tenure_deallocate` wants to hear.
    pub alignment: usize,
    /// A reference to its resource, to be released by the taker.
    pub resource: tenure_resource,
    /// Its home stream; an object in it is a reference to be released by the taker.
    pub stream: tenure_stream,
}

/// What a device is. Set `size` before asking.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tenure_device_info {
    /// Bytes of this structure as the caller knows it.
    pub size: usize,
    /// Its name, ended by a zero byte.
    pub name: [c_char; 128],
    /// Free bytes as the driver says.
    pub free_bytes: u64,
    /// Total bytes.
    pub total_bytes: u64,
    /// 1 when it is the simulated device.
    pub simulated: u32,
    /// 1 when it has virtual memory management.
    pub virtual_memory: u32,
    /// 1 when it has stream-ordered memory pools.
    pub memory_pools: u32,
    /// 1 when it has managed memory.
    pub managed_memory: u32,
    /// 1 when kernels can use any memory of the host.
    pub pageable_access: u32,
    /// Compute capability, major.
    pub compute_major: i32,
    /// Compute capability, minor.
    pub compute_minor: i32,
    /// Universally unique id.
    pub uuid: [u8; 16],
}

/// Called when an entry of the table changed: without a lock, one call at a time per device, with the newest state. `resource` is borrowed for the
/// call; `version` rises by at least one with each change.
pub type tenure_listener_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, device: i32, resource: tenure_resource, version: u64)>;

/// Called when a pool is about to fail for want of `bytes` bytes on `device`: without a lock, on any thread, perhaps on several at once. It frees what
/// it can, writes how many bytes to `released`, and may call any function of the library; what fails in here calls nobody. A function that fails calls
/// `tenure_error_set` and returns the status, which is noted and stops nothing.
pub type tenure_low_memory_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, device: i32, bytes: u64, released: *mut u64) -> tenure_status>;

/// Tells the frames of an interpreter that are on this thread now: writes them to `text`, which has room for `room` bytes, and returns how many bytes it
/// wrote. A frame a line, the innermost first, as `file:line function`. 0: there is none to tell. Called without a lock wherever a stack is kept.
pub type tenure_stack_fn = Option<unsafe extern "C" fn(context: *mut c_void, text: *mut c_char, room: usize) -> usize>;

/// Called with each account; `account` is valid during the call. A value other than 0 ends the list.
pub type tenure_account_fn = Option<unsafe extern "C" fn(context: *mut c_void, account: *const tenure_account) -> i32>;

/// Called for a free that cannot return an error and was wrong. `message` is one line.
pub type tenure_misuse_fn = Option<unsafe extern "C" fn(context: *mut c_void, message: *const c_char)>;

/// Frees memory that no resource of tenure's made, in the order of `stream`.
pub type tenure_free_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, ptr: *mut c_void, bytes: usize, stream: tenure_stream)>;

/// Called now and then while a log is replayed: events done, events in all. A value other than 0 stops it.
pub type tenure_progress_fn = Option<unsafe extern "C" fn(context: *mut c_void, done: u64, total: u64) -> i32>;

/// Asked when `bytes` bytes are not to be had: writes 1 to `again` for another try, 0 to give up. Called without a lock, on any thread, perhaps on
/// several at once; it may allocate and free. A function that fails calls `tenure_error_set` and returns the status, which whoever asked for memory
/// gets then.
pub type tenure_failure_fn =
    Option<unsafe extern "C" fn(context: *mut c_void, bytes: usize, again: *mut u32) -> tenure_status>;

/// One block that is out, as a tracking adaptor lists it. It is valid during the call that gets it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tenure_tracked {
    /// Bytes of this structure.
    pub size: usize,
    /// Where it starts.
    pub ptr: *mut c_void,
    /// Its size in bytes, as it was asked for.
    pub bytes: usize,
    /// Where it came from: one frame a line, those of an interpreter first; empty where stacks are not kept.
    pub stack: *const c_char,
}

/// Gets one block of a list. A value other than 0 ends the list.
pub type tenure_tracked_fn = Option<unsafe extern "C" fn(context: *mut c_void, block: *const tenure_tracked) -> i32>;
/// `usage`: by the tag that was open.
pub const TENURE_BY_TAG: u32 = 0;
/// `usage`: by the thread that allocated.
pub const TENURE_BY_THREAD: u32 = 1;
/// `usage`: by the resource that was asked.
pub const TENURE_BY_RESOURCE: u32 = 2;

/// What one tag, thread or resource has and had. All figures but the counts are bytes, as they were asked for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tenure_account {
    /// Bytes of this structure as the library knows it.
    pub size: usize,
    /// The tag (empty: none was open), the thread's name, the resource and what it stands on.
    pub name: *const c_char,
    /// The operating system's number of the thread, the id of the resource; 0 for tags.
    pub id: u64,
    /// Live bytes.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_count: u64,
    /// The most bytes that were live at once; too low by at most 1 MiB for each other thread that allocates.
    pub peak_bytes: u64,
    /// The most blocks that were live at once.
    pub peak_count: u64,
    /// Bytes of all allocations.
    pub total_bytes: u64,
    /// Number of all allocations.
    pub total_count: u64,
}
