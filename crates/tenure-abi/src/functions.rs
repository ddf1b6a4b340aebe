//! The one list of functions. From it come the table ([`tenure_api`]), and `include/tenure/tenure.h` with these comments as its manual.
//!
//! Append only: new functions go to the end.

use core::ffi::{c_char, c_void};

use crate::types::*;

macro_rules! functions {
    ($( $(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty; )*) => {
        /// The table of functions. `tenure_get_api` returns it; it lives as long as the process.
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct tenure_api {
            /// The ABI version of the library, `TENURE_ABI_VERSION` of its build.
            pub abi: u32,
            /// Bytes of this table: a function that lies beyond is not there.
            pub size: u32,
            $( $(#[$doc])* pub $name: unsafe extern "C" fn($($arg: $type),*) -> $ret, )*
        }
    };
}

functions! {
    // ------------------------------------------------------------------ the library

    /// The version of the library, such as `"0.1.0"`. Never null.
    fn version() -> *const c_char;

    /// Fills `out` with the detail of the last failing call on this thread.
    fn error_get(out: *mut tenure_error) -> tenure_status;

    /// For callbacks: says why the callback is about to return `status`. `payload` may carry an object of the callback's own language; `kind` tells
    /// who can read it and `release(payload)` is called once when nobody wants it any more, on any thread.
    fn error_set(
        status: tenure_status, message: *const c_char, payload_kind: u32, payload: *mut c_void,
        release: Option<unsafe extern "C" fn(*mut c_void)>,
    ) -> tenure_status;

    /// Takes the payload of the last error out, if it is of this kind: the caller owns it then, and its release function is not called. Writes null
    /// where there is none.
    fn error_take_payload(payload_kind: u32, out: *mut *mut c_void) -> tenure_status;

    /// How often a free that could not return an error was wrong (see `misuse_set_handler`). A test suite asserts that it is 0.
    fn misuse_count(out: *mut u64) -> tenure_status;

    /// Installs a handler for such frees instead of the line on stderr. A null handler restores the default. `owner` keeps the context alive.
    fn misuse_set_handler(handler: tenure_misuse_fn, owner: tenure_owner) -> tenure_status;

    /// Reports a wrong free from a place that cannot return an error: counts it and calls the handler with the last error of this thread.
    fn misuse_report() -> tenure_status;

    /// Closes what `_try_` functions left to close (`TENURE_OK_COLLECT`). May wait, and may call the driver and user code.
    fn collect() -> tenure_status;

    /// Tells the engine that the interpreter is going: resources whose properties have `TENURE_INTERPRETED` answer `TENURE_ERROR_EXITING` from now on,
    /// and neither their functions nor their `drop` are called again.
    fn interpreter_exit() -> tenure_status;

    /// What is here, as JSON: version, ABI, device layer, driver version, devices and capabilities, or why there is none.
    fn describe(out: *mut tenure_text) -> tenure_status;

    /// Gives text back. A zeroed one is left alone.
    fn text_free(text: *mut tenure_text) -> tenure_status;

    // ------------------------------------------------------------------ devices

    /// The number of devices. Loads the driver at first use.
    fn device_count(out: *mut i32) -> tenure_status;
    /// The device that is current on this thread, 0 when none was made current.
    fn device_get_current(out: *mut i32) -> tenure_status;
    /// Makes a device current on this thread.
    fn device_set_current(device: i32) -> tenure_status;
    /// What a device is; -1 is the current one.
    fn device_info(device: i32, out: *mut tenure_device_info) -> tenure_status;
    /// Waits for all work of a device; -1 is the current one. A stream capture that is under way goes on: what it has recorded is not work yet.
    fn device_synchronize(device: i32) -> tenure_status;

    // ------------------------------------------------------------------ streams

    /// Makes a stream on `device` (-1: the current one). `non_blocking` 1: it does not synchronise with the legacy default stream. The reference in
    /// `out->object` is released with `stream_release`.
    fn stream_create(device: i32, non_blocking: u32, out: *mut tenure_stream) -> tenure_status;
    /// Takes note of somebody else's stream that `owner` keeps alive. `device` -1: the driver is asked.
    fn stream_wrap(raw: *mut c_void, device: i32, owner: tenure_owner, out: *mut tenure_stream) -> tenure_status;
    /// Takes note of somebody else's stream that is never destroyed while the process lives.
    fn stream_immortal(raw: *mut c_void, device: i32, out: *mut tenure_stream) -> tenure_status;
    /// One more reference to a stream object.
    fn stream_retain(stream: tenure_stream_object) -> tenure_status;
    /// Gives a reference to a stream object back. The last one ends the stream: tenure's own is destroyed, a foreign owner is released.
    fn stream_release(stream: tenure_stream_object) -> tenure_status;
    /// The device of a stream; of a default stream, the current one.
    fn stream_device(stream: tenure_stream, out: *mut i32) -> tenure_status;
    /// Waits until the work enqueued so far is done.
    fn stream_synchronize(stream: tenure_stream) -> tenure_status;
    /// Writes 1 when all work enqueued so far is done, else 0.
    fn stream_query(stream: tenure_stream, out: *mut u32) -> tenure_status;
    /// Makes later work of `stream` wait for the work enqueued on `other` so far. The host does not wait.
    fn stream_wait_stream(stream: tenure_stream, other: tenure_stream) -> tenure_status;

    // ------------------------------------------------------------------ memory operations

    /// Copies `bytes` bytes in the order of `stream`, between any two kinds of memory. Host memory must stay alive until the copy is done.
    fn copy_async(to: *mut c_void, from: *const c_void, bytes: usize, stream: tenure_stream) -> tenure_status;
    /// Sets `bytes` bytes to `value` in the order of `stream`.
    fn fill_async(to: *mut c_void, value: u8, bytes: usize, stream: tenure_stream) -> tenure_status;

    // ------------------------------------------------------------------ making resources

    /// The plain device resource: one per process, on the device of the stream of each call.
    fn cuda_resource(out: *mut tenure_resource) -> tenure_status;
    /// Managed memory: one per process.
    fn managed_resource(out: *mut tenure_resource) -> tenure_status;
    /// Pinned host memory: one per process.
    fn pinned_resource(out: *mut tenure_resource) -> tenure_status;
    /// Memory of the system's allocator: one per process.
    fn system_resource(out: *mut tenure_resource) -> tenure_status;
    /// A stream-ordered resource over a driver pool of its own.
    fn async_resource_create(options: *const tenure_async_options, out: *mut tenure_resource) -> tenure_status;
    /// A stream-ordered resource over somebody else's driver pool (`CUmemoryPool`), which must outlive it. `device` -1: the current one.
    fn async_view_create(pool_handle: *mut c_void, device: i32, out: *mut tenure_resource) -> tenure_status;
    /// A pool over `upstream` (`TENURE_RESOURCE_CURRENT`: the current one). `options` may be null.
    fn pool_create(upstream: tenure_resource, options: *const tenure_pool_options, out: *mut tenure_resource) -> tenure_status;
    /// Refuses what would take more than `limit` bytes from `upstream` at once. A limit of 0 is an error.
    fn limiting_create(upstream: tenure_resource, limit: u64, out: *mut tenure_resource) -> tenure_status;
    /// Counts what goes through.
    fn statistics_create(upstream: tenure_resource, out: *mut tenure_resource) -> tenure_status;
    /// A resource of user functions; `context` belongs to it from the successful call on.
    fn callback_create(vtable: *const tenure_resource_vtable, context: *mut c_void, out: *mut tenure_resource) -> tenure_status;

    // ------------------------------------------------------------------ holding resources

    /// One more reference, for long use. Written to `out`.
    fn resource_retain(resource: tenure_resource, out: *mut tenure_resource) -> tenure_status;
    /// One more reference that is cheap to make in bulk, for short use. Written to `out`.
    fn resource_retain_light(resource: tenure_resource, out: *mut tenure_resource) -> tenure_status;
    /// Gives a reference back. The last reference or allocation, whichever goes last, closes the resource.
    fn resource_release(resource: tenure_resource) -> tenure_status;
    /// `resource_release` that never waits: the closing is left to `collect`.
    fn resource_try_release(resource: tenure_resource) -> tenure_status;
    /// A number that no other resource of the process ever has.
    fn resource_id(resource: tenure_resource, out: *mut u64) -> tenure_status;
    /// A reference to the resource of this id, if it is alive; else `TENURE_RESOURCE_NULL` and `TENURE_OK`.
    fn resource_from_id(id: u64, out: *mut tenure_resource) -> tenure_status;
    /// Writes 1 when both are references to one resource.
    fn resource_same(a: tenure_resource, b: tenure_resource, out: *mut u32) -> tenure_status;

    // ------------------------------------------------------------------ asking resources

    /// The kind, such as `"pool"`. Valid while the resource lives.
    fn resource_kind(resource: tenure_resource, out: *mut *const c_char) -> tenure_status;
    /// The device, or -1 when it follows from the stream of each call.
    fn resource_device(resource: tenure_resource, out: *mut i32) -> tenure_status;
    /// `TENURE_DEVICE_ACCESSIBLE` and so on.
    fn resource_properties(resource: tenure_resource, out: *mut u32) -> tenure_status;
    /// The figures. Set `out->size`.
    fn resource_info(resource: tenure_resource, out: *mut tenure_info) -> tenure_status;
    /// A reference to the upstream, or `TENURE_RESOURCE_NULL` where there is none.
    fn resource_upstream(resource: tenure_resource, out: *mut tenure_resource) -> tenure_status;
    /// A named figure or setting of the concrete kind, such as `"allocation_limit"`, `"pool_handle"`, `"pool_size"`; of every kind `"anchors"` and
    /// `"lights"`, the references held for long and for short (exact only while nobody else changes them).
    fn resource_property(resource: tenure_resource, name: *const c_char, out: *mut u64) -> tenure_status;
    /// Writes 1 when a live allocation that was asked of this very resource contains `ptr`.
    fn resource_owns(resource: tenure_resource, ptr: *const c_void, out: *mut u32) -> tenure_status;
    /// Gives back what is cached, down to `keep_bytes`; writes how many bytes went.
    fn resource_trim(resource: tenure_resource, keep_bytes: usize, released: *mut usize) -> tenure_status;
    /// Counters of a statistics adaptor. Set `out->size`.
    fn statistics_get(resource: tenure_resource, out: *mut tenure_statistics) -> tenure_status;
    /// Starts a nested set of counters on a statistics adaptor; `out` (may be null) receives the enclosing ones.
    fn statistics_push(resource: tenure_resource, out: *mut tenure_statistics) -> tenure_status;
    /// Ends the nested set; `out` (may be null) receives it, and the enclosing ones take it in.
    fn statistics_pop(resource: tenure_resource, out: *mut tenure_statistics) -> tenure_status;
    /// The context of a resource that was made by `callback_create` with this `drop` function, or by `failure_callback_create` with an owner that is
    /// released by it; null where it was not. Valid while the resource lives.
    fn callback_context(
        resource: tenure_resource, drop: Option<unsafe extern "C" fn(*mut c_void)>, out: *mut *mut c_void,
    ) -> tenure_status;

    // ------------------------------------------------------------------ allocating

    /// Allocates `bytes` bytes (0 gives null and calls nobody), usable in the order of `stream`. `alignment` 0 is 256.
    fn allocate(
        resource: tenure_resource, bytes: usize, alignment: usize, stream: tenure_stream, out: *mut *mut c_void,
    ) -> tenure_status;
    /// Frees in the order of `stream`. Pointer, size, alignment and resource are checked: a wrong one is `TENURE_ERROR_OWNERSHIP` and nothing happens.
    fn deallocate(
        resource: tenure_resource, ptr: *mut c_void, bytes: usize, alignment: usize, stream: tenure_stream,
    ) -> tenure_status;
    /// `allocate` that neither waits nor calls the driver or user code.
    fn try_allocate(
        resource: tenure_resource, bytes: usize, alignment: usize, stream: tenure_stream, out: *mut *mut c_void,
    ) -> tenure_status;
    /// `deallocate` that neither waits nor calls the driver or user code.
    fn try_deallocate(
        resource: tenure_resource, ptr: *mut c_void, bytes: usize, alignment: usize, stream: tenure_stream,
    ) -> tenure_status;
    /// Allocates memory that is usable on any stream at return.
    fn allocate_sync(resource: tenure_resource, bytes: usize, alignment: usize, out: *mut *mut c_void) -> tenure_status;
    /// Frees memory that nothing uses any more.
    fn deallocate_sync(resource: tenure_resource, ptr: *mut c_void, bytes: usize, alignment: usize) -> tenure_status;
    /// Who was asked for the smallest live allocation around `ptr`: a reference in `resource` (`TENURE_RESOURCE_NULL` when unknown), its start and
    /// size in `base` and `bytes` (each may be null).
    fn owner_of(ptr: *const c_void, resource: *mut tenure_resource, base: *mut *mut c_void, bytes: *mut usize) -> tenure_status;

    // ------------------------------------------------------------------ the table of current resources

    /// A reference to the current resource of a device (-1: the current device), scopes of this thread included.
    fn current_get(device: i32, out: *mut tenure_resource) -> tenure_status;
    /// Replaces the current resource of a device; the previous one is written to `previous` (may be null) as a reference. Inside a scope of this thread
    /// the scope's binding is replaced.
    fn current_set(device: i32, resource: tenure_resource, previous: *mut tenure_resource) -> tenure_status;
    /// Puts the plain device resource back; the previous one is written to `previous` (may be null) as a reference.
    fn current_reset(device: i32, previous: *mut tenure_resource) -> tenure_status;
    /// Binds the current resource of a device (-1: the current device) for this thread until `scope_exit`.
    fn scope_enter(device: i32, resource: tenure_resource, out: *mut tenure_scope) -> tenure_status;
    /// Ends a scope, in any order and from any thread.
    fn scope_exit(scope: tenure_scope) -> tenure_status;
    /// Calls `listener` whenever an entry changes.
    fn listener_add(listener: tenure_listener_fn, owner: tenure_owner, out: *mut tenure_listener) -> tenure_status;
    /// Removes a listener; a call in flight on another thread may still end after this.
    fn listener_remove(listener: tenure_listener) -> tenure_status;

    // ------------------------------------------------------------------ buffers

    /// Makes a buffer of `bytes` bytes. A buffer of no bytes calls no resource, has a null pointer, and still holds resource and stream. `alignment` 0
    /// is 256.
    fn buffer_create(
        bytes: usize, alignment: usize, stream: tenure_stream, resource: tenure_resource, out: *mut tenure_buffer,
    ) -> tenure_status;
    /// `buffer_create` that neither waits nor calls the driver or user code.
    fn buffer_try_create(
        bytes: usize, alignment: usize, stream: tenure_stream, resource: tenure_resource, out: *mut tenure_buffer,
    ) -> tenure_status;
    /// Makes a buffer of a block that `resource` made (checked) and that nobody else will free.
    fn buffer_adopt(
        ptr: *mut c_void, bytes: usize, alignment: usize, stream: tenure_stream, resource: tenure_resource,
        out: *mut tenure_buffer,
    ) -> tenure_status;
    /// Makes a buffer of memory that no resource of tenure's made. When the buffer goes, `free_fn(owner.context, ptr, bytes, stream)` is called if given,
    /// then `owner.release(owner.context)`. At least one of the two is needed. `device` -1: memory of the host; `TENURE_DEVICE_OF_MEMORY`: the driver is
    /// asked, and where it names none it is that of the stream.
    fn buffer_adopt_foreign(
        ptr: *mut c_void, bytes: usize, device: i32, stream: tenure_stream, free_fn: tenure_free_fn, owner: tenure_owner,
        out: *mut tenure_buffer,
    ) -> tenure_status;
    /// Frees the memory in the order of the buffer's stream and ends the buffer. On an ownership error the block stays as it is and the buffer ends.
    fn buffer_destroy(buffer: tenure_buffer) -> tenure_status;
    /// `buffer_destroy` that neither waits nor calls the driver or user code.
    fn buffer_try_destroy(buffer: tenure_buffer) -> tenure_status;
    /// Frees the memory now, in the order of the home stream, or of `stream` if it is not null (which becomes the home). The buffer is empty afterwards.
    fn buffer_close(buffer: tenure_buffer, stream: *const tenure_stream) -> tenure_status;
    /// Takes the allocation out: it stays counted on its resource, and the buffer is empty afterwards. Refused for a buffer that was adopted with an owner.
    fn buffer_detach(buffer: tenure_buffer, out: *mut tenure_detached) -> tenure_status;
    /// What the buffer is now. Set `out->size`.
    fn buffer_view(buffer: tenure_buffer, out: *mut tenure_buffer_view) -> tenure_status;
    /// A reference to the resource; `TENURE_RESOURCE_NULL` when the buffer was adopted with an owner.
    fn buffer_resource(buffer: tenure_buffer, out: *mut tenure_resource) -> tenure_status;
    /// Makes the buffer `bytes` bytes long. Within the capacity nothing moves; beyond it a new block of the same resource is made and the bytes are
    /// copied, on `stream`, which becomes the home. On failure the buffer is as it was.
    fn buffer_resize(buffer: tenure_buffer, bytes: usize, stream: tenure_stream) -> tenure_status;
    /// Makes sure of a capacity of `bytes` bytes.
    fn buffer_reserve(buffer: tenure_buffer, bytes: usize, stream: tenure_stream) -> tenure_status;
    /// Reduces the capacity to the size.
    fn buffer_shrink_to_fit(buffer: tenure_buffer, stream: tenure_stream) -> tenure_status;
    /// A copy, made on `stream` under `resource` (`TENURE_RESOURCE_CURRENT`: the current one of the stream's device).
    fn buffer_copy(
        buffer: tenure_buffer, stream: tenure_stream, resource: tenure_resource, out: *mut tenure_buffer,
    ) -> tenure_status;
    /// Makes `stream` the home. The old home stays among the used streams: nothing is waited for, nothing is lost.
    fn buffer_set_stream(buffer: tenure_buffer, stream: tenure_stream) -> tenure_status;
    /// Says that work on `stream` uses the buffer: its memory is not reused before all work enqueued on `stream` until the free is done. This and
    /// `buffer_copy` may be called by several threads at once; what changes the buffer is for one call at a time.
    fn buffer_record_stream(buffer: tenure_buffer, stream: tenure_stream) -> tenure_status;

    // ------------------------------------------------------------------ logs

    /// Replays a log. `options` is JSON: `{"log": PATH, "resource": "cuda"|"async"|"pool"|"pool:SIZE", "repeat": N, "html": PATH or absent}`,
    /// and `"threads": true` for a thread for each thread of the log, `"smallest": true` for the smallest fixed pool that it fits. The answer is
    /// JSON with the fields that `tenure replay --json` prints.
    fn replay(options: *const c_char, progress: tenure_progress_fn, context: *mut c_void, out: *mut tenure_text) -> tenure_status;

    // ------------------------------------------------------------------ the simulated device

    /// Sets the simulated device up before its first use: the number of devices and the bytes of each; 0 leaves a setting alone.
    fn sim_configure(devices: i32, memory_bytes: u64) -> tenure_status;
    /// Keeps a stream busy for some milliseconds. On CUDA too, by a host function.
    fn sim_busy(stream: tenure_stream, milliseconds: u32) -> tenure_status;
    /// Makes a later driver call of this name (such as `"cuMemCreate"`) fail with `code`: the next one after `after` that succeed.
    fn sim_fail_next(call: *const c_char, code: i32, after: u64) -> tenure_status;
    /// Takes back every failure that has not happened yet.
    fn sim_fail_clear() -> tenure_status;
    /// How many calls broke the rules of the driver (a destroyed handle was named, say).
    fn sim_violations(out: *mut u64) -> tenure_status;
    /// How many driver calls of this name were made; null: of all names. On CUDA, since counting was first asked for.
    fn driver_calls(call: *const c_char, out: *mut u64) -> tenure_status;
    /// 1 when the device layer is the simulated one. Loads the driver at first use.
    fn sim_active(out: *mut u32) -> tenure_status;
    /// The capacity of a device of the simulated machine can be changed while it runs: bytes free plus bytes used.
    fn sim_set_memory(device: i32, memory_bytes: u64) -> tenure_status;
    /// Bytes live on the device: what is handed out by the driver.
    fn device_used(device: i32, out: *mut u64) -> tenure_status;

    // ------------------------------------------------------------------ resources that sort requests by size, and the arena

    /// Blocks of one size over `upstream` (`TENURE_RESOURCE_CURRENT`: the current one). What is larger than a block is `TENURE_ERROR_INVALID_ARGUMENT`.
    /// `options` may be null: 128 blocks of 1 MiB.
    fn fixed_size_create(upstream: tenure_resource, options: *const tenure_fixed_size_options, out: *mut tenure_resource) -> tenure_status;
    /// Sends each request to the smallest bin that is large enough, and what no bin takes to `upstream` (`TENURE_RESOURCE_CURRENT`: the current one).
    /// `options` may be null: no bins at first.
    fn binning_create(upstream: tenure_resource, options: *const tenure_binning_options, out: *mut tenure_resource) -> tenure_status;
    /// Adds a bin for requests of up to `allocation_size` bytes (rounded up to a multiple of 256), at any time. `bin_resource` serves it and is held;
    /// `TENURE_RESOURCE_NULL` makes a fixed-size resource with blocks of that size over the upstream, which takes nothing before its first use. A size
    /// that has a bin keeps it: without a resource nothing is done then, with one the new bin serves the size from now on, and blocks of
    /// the old one go home to the old one.
    fn binning_add_bin(binning: tenure_resource, allocation_size: u64, bin_resource: tenure_resource) -> tenure_status;
    /// A bin, by its place in the order of sizes: the size up to which it serves in `allocation_size` (may be null) and a reference to its resource in
    /// `out`. Beyond the last one: `TENURE_RESOURCE_NULL`, 0 and `TENURE_OK`.
    fn binning_bin(binning: tenure_resource, index: u32, allocation_size: *mut u64, out: *mut tenure_resource) -> tenure_status;
    /// An arena over `upstream` (`TENURE_RESOURCE_CURRENT`: the current one): memory of one size, taken at once, that many threads and streams share.
    /// `options` may be null: half of what is free on the current device.
    fn arena_create(upstream: tenure_resource, options: *const tenure_arena_options, out: *mut tenure_resource) -> tenure_status;
    // ------------------------------------------------------------------ memory of the whole process

    /// Calls `hook` whenever a pool is about to fail, after everything that the library can do by itself.
    fn low_memory_add(hook: tenure_low_memory_fn, owner: tenure_owner, out: *mut tenure_low_memory_hook) -> tenure_status;
    /// Removes a hook; a call in flight on another thread may still end after this.
    fn low_memory_remove(hook: tenure_low_memory_hook) -> tenure_status;
    /// For other libraries that need memory: makes the pools on `device` (-1: the current one) give back idle memory until `bytes` bytes went, or all
    /// that is idle with 0; writes how many did. May wait for the device. Release thresholds do not count.
    fn low_memory(device: i32, bytes: u64, released: *mut u64) -> tenure_status;
    // ------------------------------------------------------------------ captures

    /// Makes a name for memory that several graphs share which never run at the same time: each pool keeps one arena for it, and what one graph freed
    /// while it was captured serves the next. The arena goes when name, graphs and allocations are gone.
    fn shared_arena_create(out: *mut tenure_shared_arena) -> tenure_status;
    /// Gives a name back. Open scopes keep it.
    fn shared_arena_release(arena: tenure_shared_arena) -> tenure_status;
    /// Opens a scope for captures of `stream`, whichever thread allocates in them; a raw value must be alive until the scope ends. The per-thread
    /// default stream (2) stands for this thread: only inside such a scope is it asked for capture in every allocation. `arena` 0: each capture has
    /// memory of its own, as without a scope. Captures that share an arena follow each other.
    fn capture_scope_enter(stream: tenure_stream, arena: tenure_shared_arena, out: *mut tenure_capture_scope) -> tenure_status;
    /// Ends a scope, in any order and from any thread.
    fn capture_scope_exit(scope: tenure_capture_scope) -> tenure_status;

    /// For tests, on CUDA too: begins the capture of a stream (`mode` 0 global, 1 thread-local, 2 relaxed).
    fn sim_capture_begin(stream: tenure_stream, mode: u32) -> tenure_status;
    /// For tests: ends the capture of a stream and makes its graph ready to run.
    fn sim_capture_end(stream: tenure_stream, out: *mut tenure_graph) -> tenure_status;
    /// For tests: runs a graph in the order of a stream.
    fn sim_graph_launch(graph: tenure_graph, stream: tenure_stream) -> tenure_status;
    /// For tests: ends a graph. A run that is under way ends first.
    fn sim_graph_destroy(graph: tenure_graph) -> tenure_status;
    // ------------------------------------------------------------------ many blocks in one call

    /// Allocates `count` blocks, of `bytes[i]` bytes each, usable in the order of `stream`: all of them, or an error and none. `out` has room for
    /// `count` pointers; 0 bytes give null. Each block is freed by itself with `deallocate`, or with others. `alignment` 0 is 256.
    fn allocate_many(
        resource: tenure_resource, count: usize, bytes: *const usize, alignment: usize, stream: tenure_stream, out: *mut *mut c_void,
    ) -> tenure_status;
    /// Frees `count` blocks in the order of `stream`; null with 0 bytes is passed over. Each is checked as `deallocate` checks: a wrong one stays as it
    /// is and every other is freed. The error is that of the first wrong one, whose place is in the message and is written to `wrong` (may be null);
    /// `count` is written there when all were freed, and when the call did nothing at all.
    fn deallocate_many(
        resource: tenure_resource, count: usize, ptrs: *const *mut c_void, bytes: *const usize, alignment: usize, stream: tenure_stream,
        wrong: *mut usize,
    ) -> tenure_status;
    /// `buffer_create` for `count` sizes in one call: all of them, or an error and none. `out` has room for `count` buffers, each of which is destroyed
    /// by itself.
    fn buffer_create_many(
        count: usize, bytes: *const usize, alignment: usize, stream: tenure_stream, resource: tenure_resource, out: *mut tenure_buffer,
    ) -> tenure_status;
    /// Says that the host has waited for `stream`, with means that are not tenure's: what was freed on it before this call may then serve every stream
    /// without a wait. Nothing is believed: pools ask the driver whether the stream is idle, and where it is not, all stays as it was. `stream_synchronize`
    /// does this by itself. On a stream that is capturing nothing is asked.
    fn note_sync(stream: tenure_stream) -> tenure_status;
    /// Says that `stream` has been made to wait for `other`, with means that are not tenure's: what was freed on `other` before this call may then be
    /// used in the order of `stream`, without a wait for each block. Nothing is believed: a pool that holds such memory inserts a wait of its own,
    /// once. `stream_wait_stream` does this by itself. Where one of the two is capturing, nothing changes.
    fn note_wait(stream: tenure_stream, other: tenure_stream) -> tenure_status;
    // ------------------------------------------------------------------ stream pools

    /// Makes `streams` streams on `device` (-1: the current one), which are given out in turn; `non_blocking` ones do not synchronise with the legacy
    /// default stream. A pool of no streams is an error.
    fn stream_pool_create(device: i32, streams: usize, non_blocking: u32, out: *mut tenure_stream_pool) -> tenure_status;
    /// How many streams a pool has.
    fn stream_pool_size(pool: tenure_stream_pool, out: *mut usize) -> tenure_status;
    /// The stream whose turn it is, with a reference of its own: `out->object` is released with `stream_release`, and the stream outlives the pool where
    /// something names it.
    fn stream_pool_next(pool: tenure_stream_pool, out: *mut tenure_stream) -> tenure_status;
    /// The stream with this number, as `stream_pool_next`; numbers beyond the last one go round.
    fn stream_pool_at(pool: tenure_stream_pool, number: usize, out: *mut tenure_stream) -> tenure_status;
    /// Gives a pool back.
    fn stream_pool_release(pool: tenure_stream_pool) -> tenure_status;
    // ------------------------------------------------------------------ adaptors

    /// Keeps a list of what is out. `capture_stacks` 1: each block keeps the stack of its allocation, which costs microseconds.
    fn tracking_create(upstream: tenure_resource, capture_stacks: u32, out: *mut tenure_resource) -> tenure_status;
    /// Calls `visit` for each block that is out at this moment, by address, without a lock. Names of native frames are looked up now, which takes up to
    /// seconds the first time.
    fn tracking_list(resource: tenure_resource, visit: tenure_tracked_fn, context: *mut c_void) -> tenure_status;
    /// The same as text: `"0x7f0000000000: 1024 B"` and a line end for each block, its stack behind it where there is one.
    fn tracking_text(resource: tenure_resource, out: *mut tenure_text) -> tenure_status;
    /// Asks `callback` whenever `upstream` is out of memory, and for no other error. It may say "again" for as long as something is freed meanwhile: 100
    /// tries in a row that find no fewer live bytes, no larger free block and no more free memory of the device than before end the request with its
    /// error. A request that the callback itself makes through this resource does not ask it again. `owner` keeps the context alive.
    fn failure_callback_create(
        upstream: tenure_resource, callback: tenure_failure_fn, owner: tenure_owner, out: *mut tenure_resource,
    ) -> tenure_status;
    /// Moves memory that migrates (managed, or of the host where devices can use that) to the device of each request's stream. A hint: over other memory,
    /// and where the device or the driver lacks it, nothing is done; the properties `"hints"` and `"told"` say so.
    fn prefetch_create(upstream: tenure_resource, out: *mut tenure_resource) -> tenure_status;
    /// Aligns blocks of `threshold` bytes and more to `alignment`, a power of two up to 2 MiB; what is below 256 is 256.
    fn aligned_create(
        upstream: tenure_resource, alignment: usize, threshold: usize, out: *mut tenure_resource,
    ) -> tenure_status;
    /// One call at a time for an upstream of user functions that cannot take more; every resource of the library's own can. The functions may come back
    /// to this resource on the same thread.
    fn thread_safe_create(upstream: tenure_resource, out: *mut tenure_resource) -> tenure_status;
    /// Memory of the system's allocator that is at home on the device of each request as far as that has more than `headroom` bytes free, and on the
    /// host beyond. A hint: where devices cannot use memory of the host, it is that of `system_resource` (property `"hints"`).
    fn sam_headroom_create(headroom: u64, out: *mut tenure_resource) -> tenure_status;
    /// Stream-ordered managed memory from the default pool of managed memory of a device (-1: the current one), which keeps what is free from now on.
    /// `TENURE_ERROR_UNSUPPORTED` before CUDA 13 and on devices that do not use managed memory together with the host.
    fn async_managed_create(device: i32, out: *mut tenure_resource) -> tenure_status;
    /// Asks the driver to move memory to a device (-1: the current one; `TENURE_HOST`: to the host), in the order of `stream`. Writes to `told` (may be
    /// null) whether it was asked: a hint is no error where memory does not migrate, the device or the driver lacks it, or the stream is capturing.
    fn prefetch(ptr: *const c_void, bytes: usize, device: i32, stream: tenure_stream, told: *mut u32) -> tenure_status;
    /// `prefetch` of a buffer, in the order of `stream`, or of its home where that is null. Another stream than the home is recorded as one that uses it.
    fn buffer_prefetch(buffer: tenure_buffer, device: i32, stream: *const tenure_stream, told: *mut u32) -> tenure_status;
    /// For the face of an interpreter: who tells its frames where a stack is kept. Null: nobody. `owner` keeps the context alive.
    fn stack_set_source(source: tenure_stack_fn, owner: tenure_owner) -> tenure_status;
    // ------------------------------------------------------------------ logs

    /// Logs what goes through to a file that is emptied: a row of CSV for each allocation and free, RMM's columns first. `name` null: what the
    /// environment variable `RMM_LOG_FILE` says. `per_device` 1: `.devN` is put before the extension, as RMM's Python package does. Adaptors of one
    /// process that name one file share it as it is. An error where the file cannot be written, or another process writes it; nothing was created.
    fn logging_create(upstream: tenure_resource, name: *const c_char, per_device: u32, out: *mut tenure_resource) -> tenure_status;
    /// Ends the file behind its last row. Every row is in the file at once, also when the process is killed; until a flush spaces may follow the last.
    /// An error where rows could not be written.
    fn logging_flush(resource: tenure_resource) -> tenure_status;
    /// The absolute name of the file, which is given back with `text_free`.
    fn logging_file_name(resource: tenure_resource, out: *mut tenure_text) -> tenure_status;

    // ------------------------------------------------------------------ looking inside

    /// Opens a tag on this thread: what it allocates counts under `name` (1 to 256 bytes) until `tag_pop`. Tags nest; the innermost counts. From the
    /// first one of the process on it is booked who allocates what.
    fn tag_push(name: *const c_char, out: *mut tenure_tag) -> tenure_status;
    /// Ends a tag of this thread, in any order. 0 is nothing to do.
    fn tag_pop(tag: tenure_tag) -> tenure_status;
    /// 1: books who allocates what from now on. 0: no more, unless events are recorded.
    fn observe(on: u32) -> tenure_status;
    /// Calls `visitor` with each account that ever counted anything, those with most live bytes first. `by` is `TENURE_BY_TAG`, `TENURE_BY_THREAD` or
    /// `TENURE_BY_RESOURCE`. Counted is what was allocated since the book was begun: by the first tag, `observe` or `history_record`.
    fn usage(by: u32, visitor: tenure_account_fn, context: *mut c_void) -> tenure_status;
    /// All memory as JSON: resources with their free and reserved ranges, live blocks, threads, and the recorded events. `docs/looking-inside.md` has the
    /// fields. Nobody is stopped meanwhile: what lives throughout is in it.
    fn memory_snapshot(out: *mut tenure_text) -> tenure_status;
    /// 1: records events (allocations, frees, failures, resources, trims, the current resource), the last `max_entries` of them (0: 100000), with stacks
    /// if `stacks` is 1 and somebody can tell them. What was recorded before is forgotten. 0: ends it; what was recorded stays for snapshots.
    fn history_record(on: u32, stacks: u32, max_entries: usize) -> tenure_status;
    /// Works out the `notes` of the last error of this thread, if that is an out-of-memory error of a `_try_` function: other functions have done so.
    /// May wait and may call the driver; the error stays the last one.
    fn error_explain() -> tenure_status;
    // ------------------------------------------------------------------ measurements of a thread or a task

    /// Opens a scope that counts what the calling thread does through a statistics adaptor, until it is closed: its allocations, and its frees,
    /// whoever had allocated. What a scope counts that was opened inside another one of that adaptor counts there too. The adaptor's own counters go
    /// on beside it.
    fn statistics_scope_open(resource: tenure_resource, out: *mut tenure_statistics_scope) -> tenure_status;
    /// What an open scope has counted. Set `out->size`.
    fn statistics_scope_get(scope: tenure_statistics_scope, out: *mut tenure_statistics) -> tenure_status;
    /// Closes a scope, on any thread and in any order; `out` (may be null) receives what it has counted. Scopes inside it go on.
    fn statistics_scope_close(scope: tenure_statistics_scope, out: *mut tenure_statistics) -> tenure_status;
    /// Puts the calling thread into an open scope (0: into none), for work that goes on on another thread, and for tasks that take turns on one.
    /// `previous` (may be null) receives what the thread was in. A thread that starts is in none.
    fn statistics_scope_enter(scope: tenure_statistics_scope, previous: *mut tenure_statistics_scope) -> tenure_status;
    // ------------------------------------------------------------------ memory of several processes

    /// By which kinds of handles other processes can be given memory of a resource: a sum of `TENURE_HANDLE_FD` and so on; 0 where they cannot.
    fn resource_exports(resource: tenure_resource, out: *mut u32) -> tenure_status;
    /// Describes the memory of a buffer for another process, by one of `kinds` (a sum of `TENURE_HANDLE_FD` and so on; 0: any). Waits for the work that
    /// the buffer knows of, on its home stream and on those that were recorded. The buffer keeps its block: it must live until the importers need its
    /// contents no more, and of a driver's pool and of legacy handles until they have freed theirs. `TENURE_ERROR_UNSUPPORTED` says which option of the
    /// resource makes its memory exportable.
    fn buffer_share(buffer: tenure_buffer, kinds: u32, out: *mut tenure_shared) -> tenure_status;
    /// Gives a description back and closes its descriptors, but for those that the caller keeps and has set to -1. A zeroed one is left alone. What was
    /// imported stays.
    fn shared_free(shared: *mut tenure_shared) -> tenure_status;
    /// What a description says. Set `out->size`.
    fn shared_info(data: *const c_void, data_bytes: usize, out: *mut tenure_shared_view) -> tenure_status;
    /// A buffer of memory that another process shares, with `stream` as its home. The descriptors stay the caller's, who closes them. `device` -1: the
    /// one that the memory lies on. However often one piece of memory is imported, it is mapped once; the mapping goes with the last buffer.
    fn buffer_import(
        data: *const c_void, data_bytes: usize, fds: *const i32, fd_count: usize, device: i32, stream: tenure_stream, out: *mut tenure_buffer,
    ) -> tenure_status;
    // ------------------------------------------------------------------ a report of a run

    /// 1: counts for a report from now on, with what was counted before forgotten; with lines of who allocates if `stacks` is 1 and somebody can tell
    /// them. 0: no more; what was counted stays to be read.
    fn report_begin(on: u32, stacks: u32) -> tenure_status;
    /// What was counted, as JSON: the peak and who held what at it, what was reserved, what the device had in use, the time spent in allocation, and
    /// the blocks that are out. `docs/tools.md` has the fields.
    fn report(out: *mut tenure_text) -> tenure_status;
    /// The number of a library that allocates from tenure, the same for the same name (1 to 256 bytes; 63 names at most).
    fn library_number(name: *const c_char, out: *mut u32) -> tenure_status;
    /// What the calling thread allocates from now on is that library's in reports; 0 is the program itself. `previous` (may be null) receives what was
    /// so before, to be set again at the end.
    fn library_set(library: u32, previous: *mut u32) -> tenure_status;
}
