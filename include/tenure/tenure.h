/* tenure.h: the C interface of tenure, a GPU memory manager in which each allocation knows its owner.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Made by `cargo run -p tenure-header` from crates/tenure-abi. Do not edit it: edit the comments there.
 */

/**
 * \file tenure.h
 *
 * # The four lines
 *
 *     tenure_resource pool;
 *     tenure_buffer buffer;
 *     tenure_pool_create(TENURE_RESOURCE_CURRENT, NULL, &pool);
 *     tenure_buffer_create(1 << 20, 0, TENURE_STREAM_LEGACY, pool, &buffer);
 *     tenure_resource_release(pool);    // the buffer still needs the pool, so the pool lives on
 *     tenure_buffer_destroy(buffer);    // the memory goes home, and then the pool goes
 *
 * Link with `-l:libtenure.so.0`. C++ has the same things as types in <tenure/tenure.hpp>.
 *
 * # Who frees what
 *
 * - A *resource* allocates and frees memory. `tenure_resource` is a reference to one. Whoever receives a reference from
 *   a function (its `out`, `previous`, ...) owns it and gives it back with `tenure_resource_release`. A reference that is
 *   passed to a function stays with its owner: the function takes what it needs for itself.
 * - A resource lives while a reference or an allocation of it lives. Nobody keeps one alive by hand: buffers, adaptors
 *   and the table of current resources count. The last one out closes it.
 * - A *buffer* is an allocation with an owner. Whoever made it ends it with `tenure_buffer_destroy`, on any thread, with
 *   any device current. Its memory goes to the resource that made it, in the order of the buffer's home stream.
 * - Memory from `tenure_allocate` is freed with `tenure_deallocate` on the same resource with the same size and alignment.
 *   Anything else is `TENURE_ERROR_OWNERSHIP`, and nothing happens: no corruption, no abort, and the block stays live.
 * - Where a structure with a function pointer and a `context` is passed (`tenure_owner`, `tenure_resource_vtable`), the
 *   context belongs to the library from the successful call on; its release function is called once, on any thread. After
 *   a call that failed it still belongs to the caller, and its release function has not been called.
 * - `tenure_text` is given back with `tenure_text_free`. Strings returned as `const char *` belong to the library.
 *
 * # Streams
 *
 * Every use of memory is ordered by a stream. A `tenure_stream` names one: `tenure_stream_of(s)` for a `cudaStream_t` or
 * `CUstream` that is alive during the call, `TENURE_STREAM_LEGACY` and `TENURE_STREAM_PER_THREAD` for the default streams, or
 * what `tenure_stream_create` and `tenure_stream_wrap` give, which stays alive as long as a buffer names it. A free waits for
 * nobody: the memory is ready for the same stream at once, and for another one when the work enqueued so far is proven done.
 * Work on a second stream is declared with `tenure_buffer_record_stream`.
 *
 * # Null and 0
 *
 * - 0 bytes: no resource is called, the pointer is null, and freeing it is right. A buffer of no bytes is a buffer.
 * - Alignment 0 is 256; otherwise a power of two.
 * - `TENURE_RESOURCE_NULL` (0) is no resource and an error where one is needed. The current resource is asked for in words:
 *   `TENURE_RESOURCE_CURRENT`. It is read from the table once, at the start of the call.
 * - Device -1 is the device that is current on this thread.
 * - A null `out` is `TENURE_ERROR_INVALID_ARGUMENT` unless the function says that it may be null.
 * - A handle that was released, or never was one, is `TENURE_ERROR_BAD_HANDLE`.
 *
 * # Errors
 *
 * A function returns a `tenure_status`. After `TENURE_OK` the outputs are set; after an error nothing has changed and the
 * outputs are as they were. The detail is kept for the thread until its next failing call:
 *
 *     tenure_error error = {0};
 *     error.size = sizeof error;
 *     if (tenure_error_get(&error) == TENURE_OK) fprintf(stderr, "%s\n", error.message);
 *
 * Only after `TENURE_ERROR_OUT_OF_MEMORY` can it help to try again. A free that cannot return its error (in a destructor, in
 * a callback of somebody else's) reports it with `tenure_misuse_report`; `tenure_misuse_count` counts those.
 *
 * Structures that may grow begin with `size`: set it to `sizeof` of the structure before passing it, in either direction.
 * The library reads and writes no further than that, so a program keeps working with a newer library. Two structures have
 * the name of the function that fills them, and no `typedef` for that reason: `struct tenure_device_info` and
 * `struct tenure_buffer_view`.
 *
 * # Threads, forks, the end
 *
 * Every function may be called on every thread at any time. No lock of the library is held while it calls a function of
 * yours. Functions named `_try_` neither wait nor call the driver or user code; every other may. No function unwinds.
 * In a forked child every function that needs the device answers `TENURE_ERROR_FORKED`, and at the end of the process
 * `TENURE_ERROR_EXITING`; freeing is right in both, and does nothing.
 */

#ifndef TENURE_TENURE_H
#define TENURE_TENURE_H

#include <stddef.h>
#include <stdint.h>

/* A static assertion that C99 has too. The message is an identifier. */
#if defined(__cplusplus)
#define TENURE_STATIC_ASSERT(condition, message) static_assert(condition, #message)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define TENURE_STATIC_ASSERT(condition, message) _Static_assert(condition, #message)
#else
#define TENURE_STATIC_ASSERT(condition, message) typedef char tenure_assert_##message[(condition) ? 1 : -1]
#endif


/* Two functions have the name of the structure that they fill; only in C++ does a compiler care to say so. */
#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#endif

/**
 * The version of the ABI. A library serves every client whose number is not above its own.
 */
#define TENURE_ABI_VERSION 1

/**
 * Done.
 */
#define TENURE_OK 0

/**
 * Done, and a resource waits to be closed: call `tenure_collect()` when you hold no lock (an
 * interpreter's, say). Only functions named `_try_` answer so.
 */
#define TENURE_OK_COLLECT (-1)

/**
 * No memory. The only error after which trying again can help.
 */
#define TENURE_ERROR_OUT_OF_MEMORY 1

/**
 * A pointer was named that does not belong where it was named. Nothing happened.
 */
#define TENURE_ERROR_OWNERSHIP 2

/**
 * The CUDA driver failed; the error has its code, its name and the call.
 */
#define TENURE_ERROR_CUDA 3

/**
 * An argument is out of range; the text says which and what to do.
 */
#define TENURE_ERROR_INVALID_ARGUMENT 4

/**
 * This resource, device or build cannot do it; the text says what can.
 */
#define TENURE_ERROR_UNSUPPORTED 5

/**
 * A `_try_` function would have had to wait or to call the driver or user code. Nothing changed:
 * use the plain one.
 */
#define TENURE_ERROR_WOULD_BLOCK 6

/**
 * A handle is null, was released, or is not one of this library.
 */
#define TENURE_ERROR_BAD_HANDLE 7

/**
 * The process is a forked child, where device memory cannot be used.
 */
#define TENURE_ERROR_FORKED 8

/**
 * The process is ending.
 */
#define TENURE_ERROR_EXITING 9

/**
 * A user's callback failed; the error may carry its own error as a payload.
 */
#define TENURE_ERROR_CALLBACK 10

/**
 * No device layer: no CUDA driver where one was asked for, or one that is broken.
 */
#define TENURE_ERROR_NO_DEVICE 11

/**
 * tenure itself is at fault. Please report it.
 */
#define TENURE_ERROR_INTERNAL 12

/**
 * No resource. An error wherever a resource is needed.
 */
#define TENURE_RESOURCE_NULL UINT64_C(0)

/**
 * Stands for "the current resource of the device": the table is read once, at the start of the
 * call.
 */
#define TENURE_RESOURCE_CURRENT UINT64_MAX

/**
 * For `tenure_prefetch`: the host, where a device is asked for.
 */
#define TENURE_HOST (-2)

/**
 * In place of a device, where a call takes it: the one whose memory an address is, as the driver
 * knows it.
 */
#define TENURE_DEVICE_OF_MEMORY (-3)

/**
 * What memory of a resource can do: the kernels can use it.
 */
#define TENURE_DEVICE_ACCESSIBLE 1

/**
 * The host can dereference it.
 */
#define TENURE_HOST_ACCESSIBLE 2

/**
 * It migrates on demand.
 */
#define TENURE_MANAGED 4

/**
 * Allocation and free are ordered with the stream.
 */
#define TENURE_STREAM_ORDERED 8

/**
 * It can be given to another process.
 */
#define TENURE_EXPORTABLE 16

/**
 * For `tenure_resource_vtable` only: the functions enter an interpreter; see
 * `tenure_interpreter_exit`.
 */
#define TENURE_INTERPRETED (1 << 16)

/**
 * Memory can be handed to another process by file descriptor.
 */
#define TENURE_HANDLE_FD 1

/**
 * By fabric handle, also between nodes of one NVLink domain.
 */
#define TENURE_HANDLE_FABRIC 8

/**
 * By legacy handle (`cuIpcGetMemHandle`).
 */
#define TENURE_HANDLE_LEGACY 256

/**
 * `usage`: by the tag that was open.
 */
#define TENURE_BY_TAG 0

/**
 * `usage`: by the thread that allocated.
 */
#define TENURE_BY_THREAD 1

/**
 * `usage`: by the resource that was asked.
 */
#define TENURE_BY_RESOURCE 2

/**
 * What a function answers.
 */
typedef int32_t tenure_status;

/**
 * The detail of the last failing call on this thread. Set `size` to `sizeof(tenure_error)` before
 * asking for it. The strings are valid until the next failing call on the thread.
 */
typedef struct tenure_error {
  /**
   * Bytes of this structure as the caller knows it.
   */
  size_t size;
  /**
   * The status that the call returned.
   */
  tenure_status status;
  /**
   * For `TENURE_ERROR_CUDA`: the driver's code.
   */
  int32_t cuda_code;
  /**
   * One line that says what happened and what to do.
   */
  const char *message;
  /**
   * For `TENURE_ERROR_CUDA`: the name of the code, such as `CUDA_ERROR_INVALID_VALUE`.
   */
  const char *cuda_name;
  /**
   * For `TENURE_ERROR_CUDA`: the driver call, such as `cuMemAlloc`.
   */
  const char *cuda_call;
  /**
   * Out of memory: bytes asked for.
   */
  uint64_t requested;
  /**
   * Out of memory: bytes handed out by the resource.
   */
  uint64_t live;
  /**
   * Out of memory: bytes the resource holds from its upstream or the device.
   */
  uint64_t reserved;
  /**
   * Out of memory: the limit that was met, or 0.
   */
  uint64_t limit;
  /**
   * Out of memory: the largest block that could still be handed out.
   */
  uint64_t largest_free;
  /**
   * Out of memory: free bytes of the device, 0 when it was not asked.
   */
  uint64_t driver_free;
  /**
   * Out of memory: total bytes of the device, 0 when it was not asked.
   */
  uint64_t driver_total;
  /**
   * Out of memory: the stack of resources, outermost first.
   */
  const char *resource;
  /**
   * Ownership: the pointer that was named.
   */
  uint64_t ptr;
  /**
   * Ownership: the size that was named.
   */
  uint64_t bytes;
  /**
   * Ownership: the id of the resource that was asked.
   */
  uint64_t asked;
  /**
   * Ownership: the id of the owner, 0 when unknown.
   */
  uint64_t owner;
  /**
   * Ownership: the size of the block, 0 when unknown.
   */
  uint64_t owner_bytes;
  /**
   * Who can read the payload; 0 when there is none.
   */
  uint32_t payload_kind;
  /**
   * Ownership: 1 unknown pointer, 2 interior pointer, 3 wrong resource, 4 wrong size, 5 wrong
   * alignment, 6 double free.
   */
  uint32_t misuse_kind;
  /**
   * Out of memory: bytes the resource holds and has not handed out.
   */
  uint64_t cached;
  /**
   * Out of memory: bytes of them that other streams may not have before the device is waited for.
   */
  uint64_t unproven;
  /**
   * Out of memory: the streams that hold most of what is cached, and how much; empty when none does.
   */
  const char *pending;
  /**
   * Out of memory: what was tried, in order, and what came of it; empty when nothing could help.
   */
  const char *tried;
  /**
   * Out of memory: what else there is to say, a line each (at most eight, ended by `\n` but for the
   * last): who holds most, what is cached, what other streams hold back, the largest free block,
   * what was tried, and the setting that would have helped. Empty for what a `_try_` function failed
   * with until `error_explain`.
   */
  const char *notes;
} tenure_error;

/**
 * Called for a free that cannot return an error and was wrong. `message` is one line.
 */
typedef void (*tenure_misuse_fn)(void *context, const char *message);

/**
 * Keeps a foreign object alive: `release(context)` is called once, on any thread, when nothing
 * needs it any more. Both may be null. A call that fails has not taken it: the caller keeps it.
 */
typedef struct tenure_owner {
  /**
   * The object.
   */
  void *context;
  /**
   * Called once.
   */
  void (*release)(void *context);
} tenure_owner;

/**
 * Text made by the library. Given back with `tenure_text_free`.
 */
typedef struct tenure_text {
  /**
   * UTF-8, ended by a zero byte.
   */
  const char *data;
  /**
   * Bytes without the zero byte.
   */
  size_t size;
} tenure_text;

/**
 * What a device is. Set `size` before asking.
 */
struct tenure_device_info {
  /**
   * Bytes of this structure as the caller knows it.
   */
  size_t size;
  /**
   * Its name, ended by a zero byte.
   */
  char name[128];
  /**
   * Free bytes as the driver says.
   */
  uint64_t free_bytes;
  /**
   * Total bytes.
   */
  uint64_t total_bytes;
  /**
   * 1 when it is the simulated device.
   */
  uint32_t simulated;
  /**
   * 1 when it has virtual memory management.
   */
  uint32_t virtual_memory;
  /**
   * 1 when it has stream-ordered memory pools.
   */
  uint32_t memory_pools;
  /**
   * 1 when it has managed memory.
   */
  uint32_t managed_memory;
  /**
   * 1 when kernels can use any memory of the host.
   */
  uint32_t pageable_access;
  /**
   * Compute capability, major.
   */
  int32_t compute_major;
  /**
   * Compute capability, minor.
   */
  int32_t compute_minor;
  /**
   * Universally unique id.
   */
  uint8_t uuid[16];
};

/**
 * A stream that lives while something names it. Given back with `tenure_stream_release`.
 */
typedef uint64_t tenure_stream_object;

/**
 * A stream, as a call carries it.
 *
 * `raw` is the driver's value (`cudaStream_t`, `CUstream`): 0 and 1 are the legacy default stream,
 * 2 the per-thread default stream of the thread that names it. A default stream given for a buffer
 * or a resource is that of its device. `object` is 0, or the stream object that keeps `raw` alive.
 * A raw value without an object (and not a default stream) must be alive during the call and is
 * not touched afterwards.
 */
typedef struct tenure_stream {
  /**
   * The driver's value.
   */
  void *raw;
  /**
   * The stream object that keeps it alive, or 0.
   */
  tenure_stream_object object;
} tenure_stream;

/**
 * A reference to a resource, owned by whoever received it and given back with
 * `tenure_resource_release`.
 *
 * Two references to one resource may have different values: compare with `tenure_resource_same` or
 * by `tenure_resource_id`.
 */
typedef uint64_t tenure_resource;

/**
 * How a stream-ordered resource over a driver pool of its own is made.
 */
typedef struct tenure_async_options {
  /**
   * Bytes of this structure as the caller knows it.
   */
  size_t size;
  /**
   * Bytes taken at construction. 0: nothing.
   */
  uint64_t initial_bytes;
  /**
   * Bytes that the driver keeps at a synchronisation. 0 with `has_release_threshold` 0: everything.
   */
  uint64_t release_threshold;
  /**
   * 1 when `release_threshold` was set on purpose.
   */
  uint32_t has_release_threshold;
  /**
   * The device, or -1 for the current one.
   */
  int32_t device;
  /**
   * 0: not exportable; 1: file descriptor; 8: fabric; 9: either.
   */
  uint32_t handle_type;
  /**
   * 1: streams that are given as raw values outlive every buffer that names them.
   */
  uint32_t stream_outlives_buffer;
} tenure_async_options;

/**
 * How a pool is made. Zero the structure, set `size` and what you care about.
 */
typedef struct tenure_pool_options {
  /**
   * Bytes of this structure as the caller knows it.
   */
  size_t size;
  /**
   * Bytes taken at construction, at once or an error. 0: nothing; the pool grows by need.
   */
  uint64_t initial_bytes;
  /**
   * A hard limit that can be reached. 0: what the device has.
   */
  uint64_t maximum_bytes;
  /**
   * `tenure_resource_trim` keeps at least this many idle bytes.
   */
  uint64_t release_threshold;
  /**
   * The device, or -1 for the current one.
   */
  int32_t device;
  /**
   * 0: rather grow than make one stream wait for another. 1: the other way round.
   */
  uint32_t prefer_footprint;
  /**
   * 1: the caller promises that no stream it passes is ever capturing; one driver call less per
   * allocation.
   */
  uint32_t assume_no_capture;
  /**
   * 1: take plain chunks from the upstream even where the pool could map address ranges of its own.
   */
  uint32_t plain_chunks;
  /**
   * 1: idle pages are never mapped a second time where a larger range is needed. For users whose
   * network cards keep what they know of an address.
   */
  uint32_t no_remap;
  /**
   * 1: a thread of the library grows the pool after it had to grow, so that nobody waits for the
   * next growth.
   */
  uint32_t grow_ahead;
  /**
   * Pages that have been idle for so many milliseconds are given back by themselves. 0: never.
   */
  uint64_t decay_ms;
  /**
   * The unit of growth, and the largest piece that is mapped or given back as a whole: a power of
   * two of 2 MiB to 1 GiB. 0: what suits the size of the pool.
   */
  uint64_t chunk_bytes;
  /**
   * How other processes can be given the memory: a sum of `TENURE_HANDLE_FD` and
   * `TENURE_HANDLE_FABRIC`; 0: they cannot. For pools that map pages of their own; over plain chunks
   * memory goes as that of the upstream does.
   */
  uint32_t export_handle_type;
  /**
   * 1: network cards can be given the memory (GPUDirect RDMA). For pools that map pages of their
   * own.
   */
  uint32_t rdma;
  /**
   * The other devices whose kernels and copies may use the memory, a bit for each ordinal. For pools
   * that map pages of their own, for which `cudaDeviceEnablePeerAccess` says nothing.
   */
  uint64_t peers;
} tenure_pool_options;

/**
 * One request, as a resource of user functions sees it.
 */
typedef struct tenure_request {
  /**
   * Bytes of this structure.
   */
  size_t size;
  /**
   * Bytes wanted, never 0.
   */
  size_t bytes;
  /**
   * Alignment in bytes, a power of two.
   */
  size_t alignment;
  /**
   * Reserved, 0.
   */
  uint64_t owner;
  /**
   * Reserved, 0.
   */
  uint32_t flags;
} tenure_request;

/**
 * A resource made of user functions. It is copied at creation; `context` belongs to the resource
 * from then on.
 *
 * The functions are called without any lock of tenure's held, on any thread, and may allocate
 * through other resources. A function that fails calls `tenure_error_set` and returns the status.
 * An error of `deallocate` is reported and never stops the free.
 */
typedef struct tenure_resource_vtable {
  /**
   * Bytes of this structure as its maker knows it.
   */
  size_t size;
  /**
   * A short name, such as `"my_arena"`. Copied.
   */
  const char *kind;
  /**
   * `TENURE_DEVICE_ACCESSIBLE` and so on.
   */
  uint32_t properties;
  /**
   * The device of the memory, or -1 when it follows from the stream.
   */
  int32_t device;
  /**
   * Allocates; writes the pointer to `out`.
   */
  tenure_status (*allocate)(void *context,
                            const struct tenure_request *request,
                            struct tenure_stream stream,
                            void **out);
  /**
   * Frees in the order of the stream.
   */
  tenure_status (*deallocate)(void *context,
                              void *ptr,
                              const struct tenure_request *request,
                              struct tenure_stream stream);
  /**
   * Optional: gives back what is cached, down to `keep_bytes`.
   */
  tenure_status (*trim)(void *context, size_t keep_bytes, size_t *released);
  /**
   * Optional: called once, when nothing of the resource is alive any more.
   */
  void (*drop)(void *context);
} tenure_resource_vtable;

/**
 * The figures of a resource, in bytes. Set `size` before asking.
 */
typedef struct tenure_info {
  /**
   * Bytes of this structure as the caller knows it.
   */
  size_t size;
  /**
   * Handed out and not given back.
   */
  uint64_t live_bytes;
  /**
   * Held ready for the next request.
   */
  uint64_t cached_bytes;
  /**
   * Taken from the device or the upstream.
   */
  uint64_t reserved_bytes;
  /**
   * The largest single request that could be served from what is cached.
   */
  uint64_t largest_free_bytes;
  /**
   * The highest `live_bytes` so far.
   */
  uint64_t peak_live_bytes;
  /**
   * The highest `reserved_bytes` so far.
   */
  uint64_t peak_reserved_bytes;
  /**
   * Number of blocks handed out and not given back.
   */
  uint64_t live_count;
  /**
   * Free bytes that other streams may not have before the device is waited for.
   */
  uint64_t unproven_bytes;
  /**
   * How often the whole device was waited for.
   */
  uint64_t device_proofs;
  /**
   * 1: the memory lies in address ranges that the resource maps itself. 0: it comes in pieces from
   * the device or an upstream, as a pool's does where the device has no virtual memory management.
   */
  uint64_t own_ranges;
} tenure_info;

/**
 * Counters of the statistics adaptor, in bytes and in blocks. Set `size` before asking.
 */
typedef struct tenure_statistics {
  /**
   * Bytes of this structure as the caller knows it.
   */
  size_t size;
  /**
   * Bytes alive.
   */
  int64_t current_bytes;
  /**
   * Blocks alive.
   */
  int64_t current_count;
  /**
   * The highest `current_bytes`.
   */
  int64_t peak_bytes;
  /**
   * The highest `current_count`.
   */
  int64_t peak_count;
  /**
   * All bytes ever allocated.
   */
  int64_t total_bytes;
  /**
   * All blocks ever allocated.
   */
  int64_t total_count;
} tenure_statistics;

/**
 * A scope of the table of current resources.
 */
typedef uint64_t tenure_scope;

/**
 * Called when an entry of the table changed: without a lock, one call at a time per device, with
 * the newest state. `resource` is borrowed for the call; `version` rises by at least one with each
 * change.
 */
typedef void (*tenure_listener_fn)(void *context,
                                   int32_t device,
                                   tenure_resource resource,
                                   uint64_t version);

/**
 * A listener of the table of current resources.
 */
typedef uint64_t tenure_listener;

/**
 * A buffer: an allocation with an owner. Given back with `tenure_buffer_destroy`.
 */
typedef uint64_t tenure_buffer;

/**
 * Frees memory that no resource of tenure's made, in the order of `stream`.
 */
typedef void (*tenure_free_fn)(void *context, void *ptr, size_t bytes, struct tenure_stream stream);

/**
 * An allocation that was taken out of its buffer: the taker has what it needs to free it.
 */
typedef struct tenure_detached {
  /**
   * Bytes of this structure as the caller knows it.
   */
  size_t size;
  /**
   * The memory; null when there are no bytes.
   */
  void *ptr;
  /**
   * Bytes in use.
   */
  size_t bytes;
  /**
   * Bytes allocated: what `tenure_deallocate` wants to hear.
   */
  size_t capacity;
  /**
   * The alignment: what `tenure_deallocate` wants to hear.
   */
  size_t alignment;
  /**
   * A reference to its resource, to be released by the taker.
   */
  tenure_resource resource;
  /**
   * Its home stream; an object in it is a reference to be released by the taker.
   */
  struct tenure_stream stream;
} tenure_detached;

/**
 * A buffer, as it is now. Set `size` before asking. It says what is; it does not own anything.
 */
struct tenure_buffer_view {
  /**
   * Bytes of this structure as the caller knows it.
   */
  size_t size;
  /**
   * The memory; null when the buffer has no bytes.
   */
  void *ptr;
  /**
   * Bytes in use.
   */
  size_t bytes;
  /**
   * Bytes allocated.
   */
  size_t capacity;
  /**
   * The alignment that was asked for.
   */
  size_t alignment;
  /**
   * The id of its resource; 0 when it was adopted with an owner.
   */
  uint64_t resource_id;
  /**
   * Its home stream.
   */
  struct tenure_stream stream;
  /**
   * The device of the memory; -1 for memory of the host.
   */
  int32_t device;
  /**
   * `TENURE_DEVICE_ACCESSIBLE` and so on.
   */
  uint32_t properties;
};

/**
 * Called now and then while a log is replayed: events done, events in all. A value other than 0
 * stops it.
 */
typedef int32_t (*tenure_progress_fn)(void *context, uint64_t done, uint64_t total);

/**
 * How a resource of blocks of one size is made. Zero the structure, set `size` and what you care
 * about.
 */
typedef struct tenure_fixed_size_options {
  /**
   * Bytes of this structure as the caller knows it.
   */
  size_t size;
  /**
   * Bytes of a block, rounded up to a multiple of 256. 0: 1 MiB.
   */
  uint64_t block_size;
  /**
   * Blocks taken at construction, at once or an error, and as many at a time later. 0: none at
   * first, and one after the other.
   */
  uint64_t blocks_to_preallocate;
  /**
   * The device, or -1 for the current one.
   */
  int32_t device;
  /**
   * For later: leave it 0.
   */
  uint32_t unused;
} tenure_fixed_size_options;

/**
 * How a resource of bins is made. Zero the structure, set `size` and what you care about.
 */
typedef struct tenure_binning_options {
  /**
   * Bytes of this structure as the caller knows it.
   */
  size_t size;
  /**
   * 1: a bin of 2^n bytes for each n from `min_size_exponent` to `max_size_exponent`, unless both
   * are -1. 0: no bins at first.
   */
  uint32_t has_exponents;
  /**
   * The exponent of the smallest bin.
   */
  int32_t min_size_exponent;
  /**
   * The exponent of the largest bin.
   */
  int32_t max_size_exponent;
  /**
   * The device of the bins that are made here, or -1 for the current one.
   */
  int32_t device;
} tenure_binning_options;

/**
 * How an arena is made. Zero the structure, set `size` and what you care about.
 */
typedef struct tenure_arena_options {
  /**
   * Bytes of this structure as the caller knows it.
   */
  size_t size;
  /**
   * Bytes of the arena, taken at construction, at once or an error. 0: half of what is free on the
   * device.
   */
  uint64_t arena_size;
  /**
   * The device, or -1 for the current one.
   */
  int32_t device;
  /**
   * 1: each request that cannot be served leaves the state of the arena in
   * `tenure_arena_memory_dump.log` in the working directory.
   */
  uint32_t dump_log_on_failure;
} tenure_arena_options;

/**
 * Called when a pool is about to fail for want of `bytes` bytes on `device`: without a lock, on
 * any thread, perhaps on several at once. It frees what it can, writes how many bytes to
 * `released`, and may call any function of the library; what fails in here calls nobody. A
 * function that fails calls `tenure_error_set` and returns the status, which is noted and stops
 * nothing.
 */
typedef tenure_status (*tenure_low_memory_fn)(void *context,
                                              int32_t device,
                                              uint64_t bytes,
                                              uint64_t *released);

/**
 * A function that is asked for memory when a pool is about to fail.
 */
typedef uint64_t tenure_low_memory_hook;

/**
 * A name for memory that graphs share which never run at once. Given back with
 * `tenure_shared_arena_release`.
 */
typedef uint64_t tenure_shared_arena;

/**
 * A scope around captures of a stream.
 */
typedef uint64_t tenure_capture_scope;

/**
 * A graph of `tenure_sim_capture_end`. Given back with `tenure_sim_graph_destroy`.
 */
typedef uint64_t tenure_graph;

/**
 * A set of streams that are given out in turn. Given back with `tenure_stream_pool_release`.
 */
typedef uint64_t tenure_stream_pool;

/**
 * One block that is out, as a tracking adaptor lists it. It is valid during the call that gets it.
 */
typedef struct tenure_tracked {
  /**
   * Bytes of this structure.
   */
  size_t size;
  /**
   * Where it starts.
   */
  void *ptr;
  /**
   * Its size in bytes, as it was asked for.
   */
  size_t bytes;
  /**
   * Where it came from: one frame a line, those of an interpreter first; empty where stacks are not
   * kept.
   */
  const char *stack;
} tenure_tracked;

/**
 * Gets one block of a list. A value other than 0 ends the list.
 */
typedef int32_t (*tenure_tracked_fn)(void *context, const struct tenure_tracked *block);

/**
 * Asked when `bytes` bytes are not to be had: writes 1 to `again` for another try, 0 to give up.
 * Called without a lock, on any thread, perhaps on several at once; it may allocate and free. A
 * function that fails calls `tenure_error_set` and returns the status, which whoever asked for
 * memory gets then.
 */
typedef tenure_status (*tenure_failure_fn)(void *context, size_t bytes, uint32_t *again);

/**
 * Tells the frames of an interpreter that are on this thread now: writes them to `text`, which has
 * room for `room` bytes, and returns how many bytes it wrote. A frame a line, the innermost first,
 * as `file:line function`. 0: there is none to tell. Called without a lock wherever a stack is
 * kept.
 */
typedef size_t (*tenure_stack_fn)(void *context, char *text, size_t room);

/**
 * A tag that is open. 0 is none.
 */
typedef uint64_t tenure_tag;

/**
 * What one tag, thread or resource has and had. All figures but the counts are bytes, as they were
 * asked for.
 */
typedef struct tenure_account {
  /**
   * Bytes of this structure as the library knows it.
   */
  size_t size;
  /**
   * The tag (empty: none was open), the thread's name, the resource and what it stands on.
   */
  const char *name;
  /**
   * The operating system's number of the thread, the id of the resource; 0 for tags.
   */
  uint64_t id;
  /**
   * Live bytes.
   */
  uint64_t live_bytes;
  /**
   * Live blocks.
   */
  uint64_t live_count;
  /**
   * The most bytes that were live at once; too low by at most 1 MiB for each other thread that
   * allocates.
   */
  uint64_t peak_bytes;
  /**
   * The most blocks that were live at once.
   */
  uint64_t peak_count;
  /**
   * Bytes of all allocations.
   */
  uint64_t total_bytes;
  /**
   * Number of all allocations.
   */
  uint64_t total_count;
} tenure_account;

/**
 * Called with each account; `account` is valid during the call. A value other than 0 ends the
 * list.
 */
typedef int32_t (*tenure_account_fn)(void *context, const struct tenure_account *account);

/**
 * A measurement of what one thread or task does. 0 is none.
 */
typedef uint64_t tenure_statistics_scope;

/**
 * Memory of this process, described for another: `data` travels on any channel, and the
 * descriptors beside it (`SCM_RIGHTS`), in their order. Given back with `tenure_shared_free`,
 * which closes the descriptors here.
 */
typedef struct tenure_shared {
  /**
   * What the memory is and where.
   */
  void *data;
  /**
   * Bytes of `data`.
   */
  size_t data_bytes;
  /**
   * The descriptors that lead there; null where there are none.
   */
  int32_t *fds;
  /**
   * Their number.
   */
  size_t fd_count;
} tenure_shared;

/**
 * What a description of shared memory says. Set `size` before asking.
 */
typedef struct tenure_shared_view {
  /**
   * Bytes of this structure as the caller knows it.
   */
  size_t size;
  /**
   * Bytes of the shared memory.
   */
  uint64_t bytes;
  /**
   * How many descriptors belong to it.
   */
  uint64_t fd_count;
  /**
   * By which kind of handle it goes: `TENURE_HANDLE_FD` and so on.
   */
  uint32_t kind;
  /**
   * The process that shares it.
   */
  uint32_t pid;
  /**
   * The device that it lies on.
   */
  uint8_t uuid[16];
} tenure_shared_view;

/**
 * The table of functions, for those who find the library at run time. `tenure_get_api` returns it; it lives as long as
 * the process. Each member does what the function of its name does. It only ever grows at its end: a member that lies
 * beyond `size` is not there.
 */
typedef struct tenure_api {
  /**
   * The ABI version of the library.
   */
  uint32_t abi;
  /**
   * Bytes of this table.
   */
  uint32_t size;
  const char *(*version)(void);
  tenure_status (*error_get)(struct tenure_error *out);
  tenure_status (*error_set)(tenure_status status,
                             const char *message,
                             uint32_t payload_kind,
                             void *payload,
                             void (*release)(void*));
  tenure_status (*error_take_payload)(uint32_t payload_kind, void **out);
  tenure_status (*misuse_count)(uint64_t *out);
  tenure_status (*misuse_set_handler)(tenure_misuse_fn handler, struct tenure_owner owner);
  tenure_status (*misuse_report)(void);
  tenure_status (*collect)(void);
  tenure_status (*interpreter_exit)(void);
  tenure_status (*describe)(struct tenure_text *out);
  tenure_status (*text_free)(struct tenure_text *text);
  tenure_status (*device_count)(int32_t *out);
  tenure_status (*device_get_current)(int32_t *out);
  tenure_status (*device_set_current)(int32_t device);
  tenure_status (*device_info)(int32_t device, struct tenure_device_info *out);
  tenure_status (*device_synchronize)(int32_t device);
  tenure_status (*stream_create)(int32_t device, uint32_t non_blocking, struct tenure_stream *out);
  tenure_status (*stream_wrap)(void *raw,
                               int32_t device,
                               struct tenure_owner owner,
                               struct tenure_stream *out);
  tenure_status (*stream_immortal)(void *raw, int32_t device, struct tenure_stream *out);
  tenure_status (*stream_retain)(tenure_stream_object stream);
  tenure_status (*stream_release)(tenure_stream_object stream);
  tenure_status (*stream_device)(struct tenure_stream stream, int32_t *out);
  tenure_status (*stream_synchronize)(struct tenure_stream stream);
  tenure_status (*stream_query)(struct tenure_stream stream, uint32_t *out);
  tenure_status (*stream_wait_stream)(struct tenure_stream stream, struct tenure_stream other);
  tenure_status (*copy_async)(void *to, const void *from, size_t bytes, struct tenure_stream stream);
  tenure_status (*fill_async)(void *to, uint8_t value, size_t bytes, struct tenure_stream stream);
  tenure_status (*cuda_resource)(tenure_resource *out);
  tenure_status (*managed_resource)(tenure_resource *out);
  tenure_status (*pinned_resource)(tenure_resource *out);
  tenure_status (*system_resource)(tenure_resource *out);
  tenure_status (*async_resource_create)(const struct tenure_async_options *options,
                                         tenure_resource *out);
  tenure_status (*async_view_create)(void *pool_handle, int32_t device, tenure_resource *out);
  tenure_status (*pool_create)(tenure_resource upstream,
                               const struct tenure_pool_options *options,
                               tenure_resource *out);
  tenure_status (*limiting_create)(tenure_resource upstream, uint64_t limit, tenure_resource *out);
  tenure_status (*statistics_create)(tenure_resource upstream, tenure_resource *out);
  tenure_status (*callback_create)(const struct tenure_resource_vtable *vtable,
                                   void *context,
                                   tenure_resource *out);
  tenure_status (*resource_retain)(tenure_resource resource, tenure_resource *out);
  tenure_status (*resource_retain_light)(tenure_resource resource, tenure_resource *out);
  tenure_status (*resource_release)(tenure_resource resource);
  tenure_status (*resource_try_release)(tenure_resource resource);
  tenure_status (*resource_id)(tenure_resource resource, uint64_t *out);
  tenure_status (*resource_from_id)(uint64_t id, tenure_resource *out);
  tenure_status (*resource_same)(tenure_resource a, tenure_resource b, uint32_t *out);
  tenure_status (*resource_kind)(tenure_resource resource, const char **out);
  tenure_status (*resource_device)(tenure_resource resource, int32_t *out);
  tenure_status (*resource_properties)(tenure_resource resource, uint32_t *out);
  tenure_status (*resource_info)(tenure_resource resource, struct tenure_info *out);
  tenure_status (*resource_upstream)(tenure_resource resource, tenure_resource *out);
  tenure_status (*resource_property)(tenure_resource resource, const char *name, uint64_t *out);
  tenure_status (*resource_owns)(tenure_resource resource, const void *ptr, uint32_t *out);
  tenure_status (*resource_trim)(tenure_resource resource, size_t keep_bytes, size_t *released);
  tenure_status (*statistics_get)(tenure_resource resource, struct tenure_statistics *out);
  tenure_status (*statistics_push)(tenure_resource resource, struct tenure_statistics *out);
  tenure_status (*statistics_pop)(tenure_resource resource, struct tenure_statistics *out);
  tenure_status (*callback_context)(tenure_resource resource, void (*drop)(void*), void **out);
  tenure_status (*allocate)(tenure_resource resource,
                            size_t bytes,
                            size_t alignment,
                            struct tenure_stream stream,
                            void **out);
  tenure_status (*deallocate)(tenure_resource resource,
                              void *ptr,
                              size_t bytes,
                              size_t alignment,
                              struct tenure_stream stream);
  tenure_status (*try_allocate)(tenure_resource resource,
                                size_t bytes,
                                size_t alignment,
                                struct tenure_stream stream,
                                void **out);
  tenure_status (*try_deallocate)(tenure_resource resource,
                                  void *ptr,
                                  size_t bytes,
                                  size_t alignment,
                                  struct tenure_stream stream);
  tenure_status (*allocate_sync)(tenure_resource resource,
                                 size_t bytes,
                                 size_t alignment,
                                 void **out);
  tenure_status (*deallocate_sync)(tenure_resource resource,
                                   void *ptr,
                                   size_t bytes,
                                   size_t alignment);
  tenure_status (*owner_of)(const void *ptr, tenure_resource *resource, void **base, size_t *bytes);
  tenure_status (*current_get)(int32_t device, tenure_resource *out);
  tenure_status (*current_set)(int32_t device, tenure_resource resource, tenure_resource *previous);
  tenure_status (*current_reset)(int32_t device, tenure_resource *previous);
  tenure_status (*scope_enter)(int32_t device, tenure_resource resource, tenure_scope *out);
  tenure_status (*scope_exit)(tenure_scope scope);
  tenure_status (*listener_add)(tenure_listener_fn listener,
                                struct tenure_owner owner,
                                tenure_listener *out);
  tenure_status (*listener_remove)(tenure_listener listener);
  tenure_status (*buffer_create)(size_t bytes,
                                 size_t alignment,
                                 struct tenure_stream stream,
                                 tenure_resource resource,
                                 tenure_buffer *out);
  tenure_status (*buffer_try_create)(size_t bytes,
                                     size_t alignment,
                                     struct tenure_stream stream,
                                     tenure_resource resource,
                                     tenure_buffer *out);
  tenure_status (*buffer_adopt)(void *ptr,
                                size_t bytes,
                                size_t alignment,
                                struct tenure_stream stream,
                                tenure_resource resource,
                                tenure_buffer *out);
  tenure_status (*buffer_adopt_foreign)(void *ptr,
                                        size_t bytes,
                                        int32_t device,
                                        struct tenure_stream stream,
                                        tenure_free_fn free_fn,
                                        struct tenure_owner owner,
                                        tenure_buffer *out);
  tenure_status (*buffer_destroy)(tenure_buffer buffer);
  tenure_status (*buffer_try_destroy)(tenure_buffer buffer);
  tenure_status (*buffer_close)(tenure_buffer buffer, const struct tenure_stream *stream);
  tenure_status (*buffer_detach)(tenure_buffer buffer, struct tenure_detached *out);
  tenure_status (*buffer_view)(tenure_buffer buffer, struct tenure_buffer_view *out);
  tenure_status (*buffer_resource)(tenure_buffer buffer, tenure_resource *out);
  tenure_status (*buffer_resize)(tenure_buffer buffer, size_t bytes, struct tenure_stream stream);
  tenure_status (*buffer_reserve)(tenure_buffer buffer, size_t bytes, struct tenure_stream stream);
  tenure_status (*buffer_shrink_to_fit)(tenure_buffer buffer, struct tenure_stream stream);
  tenure_status (*buffer_copy)(tenure_buffer buffer,
                               struct tenure_stream stream,
                               tenure_resource resource,
                               tenure_buffer *out);
  tenure_status (*buffer_set_stream)(tenure_buffer buffer, struct tenure_stream stream);
  tenure_status (*buffer_record_stream)(tenure_buffer buffer, struct tenure_stream stream);
  tenure_status (*replay)(const char *options,
                          tenure_progress_fn progress,
                          void *context,
                          struct tenure_text *out);
  tenure_status (*sim_configure)(int32_t devices, uint64_t memory_bytes);
  tenure_status (*sim_busy)(struct tenure_stream stream, uint32_t milliseconds);
  tenure_status (*sim_fail_next)(const char *call, int32_t code, uint64_t after);
  tenure_status (*sim_fail_clear)(void);
  tenure_status (*sim_violations)(uint64_t *out);
  tenure_status (*driver_calls)(const char *call, uint64_t *out);
  tenure_status (*sim_active)(uint32_t *out);
  tenure_status (*sim_set_memory)(int32_t device, uint64_t memory_bytes);
  tenure_status (*device_used)(int32_t device, uint64_t *out);
  tenure_status (*fixed_size_create)(tenure_resource upstream,
                                     const struct tenure_fixed_size_options *options,
                                     tenure_resource *out);
  tenure_status (*binning_create)(tenure_resource upstream,
                                  const struct tenure_binning_options *options,
                                  tenure_resource *out);
  tenure_status (*binning_add_bin)(tenure_resource binning,
                                   uint64_t allocation_size,
                                   tenure_resource bin_resource);
  tenure_status (*binning_bin)(tenure_resource binning,
                               uint32_t index,
                               uint64_t *allocation_size,
                               tenure_resource *out);
  tenure_status (*arena_create)(tenure_resource upstream,
                                const struct tenure_arena_options *options,
                                tenure_resource *out);
  tenure_status (*low_memory_add)(tenure_low_memory_fn hook,
                                  struct tenure_owner owner,
                                  tenure_low_memory_hook *out);
  tenure_status (*low_memory_remove)(tenure_low_memory_hook hook);
  tenure_status (*low_memory)(int32_t device, uint64_t bytes, uint64_t *released);
  tenure_status (*shared_arena_create)(tenure_shared_arena *out);
  tenure_status (*shared_arena_release)(tenure_shared_arena arena);
  tenure_status (*capture_scope_enter)(struct tenure_stream stream,
                                       tenure_shared_arena arena,
                                       tenure_capture_scope *out);
  tenure_status (*capture_scope_exit)(tenure_capture_scope scope);
  tenure_status (*sim_capture_begin)(struct tenure_stream stream, uint32_t mode);
  tenure_status (*sim_capture_end)(struct tenure_stream stream, tenure_graph *out);
  tenure_status (*sim_graph_launch)(tenure_graph graph, struct tenure_stream stream);
  tenure_status (*sim_graph_destroy)(tenure_graph graph);
  tenure_status (*allocate_many)(tenure_resource resource,
                                 size_t count,
                                 const size_t *bytes,
                                 size_t alignment,
                                 struct tenure_stream stream,
                                 void **out);
  tenure_status (*deallocate_many)(tenure_resource resource,
                                   size_t count,
                                   void *const *ptrs,
                                   const size_t *bytes,
                                   size_t alignment,
                                   struct tenure_stream stream,
                                   size_t *wrong);
  tenure_status (*buffer_create_many)(size_t count,
                                      const size_t *bytes,
                                      size_t alignment,
                                      struct tenure_stream stream,
                                      tenure_resource resource,
                                      tenure_buffer *out);
  tenure_status (*note_sync)(struct tenure_stream stream);
  tenure_status (*note_wait)(struct tenure_stream stream, struct tenure_stream other);
  tenure_status (*stream_pool_create)(int32_t device,
                                      size_t streams,
                                      uint32_t non_blocking,
                                      tenure_stream_pool *out);
  tenure_status (*stream_pool_size)(tenure_stream_pool pool, size_t *out);
  tenure_status (*stream_pool_next)(tenure_stream_pool pool, struct tenure_stream *out);
  tenure_status (*stream_pool_at)(tenure_stream_pool pool, size_t number, struct tenure_stream *out);
  tenure_status (*stream_pool_release)(tenure_stream_pool pool);
  tenure_status (*tracking_create)(tenure_resource upstream,
                                   uint32_t capture_stacks,
                                   tenure_resource *out);
  tenure_status (*tracking_list)(tenure_resource resource, tenure_tracked_fn visit, void *context);
  tenure_status (*tracking_text)(tenure_resource resource, struct tenure_text *out);
  tenure_status (*failure_callback_create)(tenure_resource upstream,
                                           tenure_failure_fn callback,
                                           struct tenure_owner owner,
                                           tenure_resource *out);
  tenure_status (*prefetch_create)(tenure_resource upstream, tenure_resource *out);
  tenure_status (*aligned_create)(tenure_resource upstream,
                                  size_t alignment,
                                  size_t threshold,
                                  tenure_resource *out);
  tenure_status (*thread_safe_create)(tenure_resource upstream, tenure_resource *out);
  tenure_status (*sam_headroom_create)(uint64_t headroom, tenure_resource *out);
  tenure_status (*async_managed_create)(int32_t device, tenure_resource *out);
  tenure_status (*prefetch)(const void *ptr,
                            size_t bytes,
                            int32_t device,
                            struct tenure_stream stream,
                            uint32_t *told);
  tenure_status (*buffer_prefetch)(tenure_buffer buffer,
                                   int32_t device,
                                   const struct tenure_stream *stream,
                                   uint32_t *told);
  tenure_status (*stack_set_source)(tenure_stack_fn source, struct tenure_owner owner);
  tenure_status (*logging_create)(tenure_resource upstream,
                                  const char *name,
                                  uint32_t per_device,
                                  tenure_resource *out);
  tenure_status (*logging_flush)(tenure_resource resource);
  tenure_status (*logging_file_name)(tenure_resource resource, struct tenure_text *out);
  tenure_status (*tag_push)(const char *name, tenure_tag *out);
  tenure_status (*tag_pop)(tenure_tag tag);
  tenure_status (*observe)(uint32_t on);
  tenure_status (*usage)(uint32_t by, tenure_account_fn visitor, void *context);
  tenure_status (*memory_snapshot)(struct tenure_text *out);
  tenure_status (*history_record)(uint32_t on, uint32_t stacks, size_t max_entries);
  tenure_status (*error_explain)(void);
  tenure_status (*statistics_scope_open)(tenure_resource resource, tenure_statistics_scope *out);
  tenure_status (*statistics_scope_get)(tenure_statistics_scope scope, struct tenure_statistics *out);
  tenure_status (*statistics_scope_close)(tenure_statistics_scope scope,
                                          struct tenure_statistics *out);
  tenure_status (*statistics_scope_enter)(tenure_statistics_scope scope,
                                          tenure_statistics_scope *previous);
  tenure_status (*resource_exports)(tenure_resource resource, uint32_t *out);
  tenure_status (*buffer_share)(tenure_buffer buffer, uint32_t kinds, struct tenure_shared *out);
  tenure_status (*shared_free)(struct tenure_shared *shared);
  tenure_status (*shared_info)(const void *data, size_t data_bytes, struct tenure_shared_view *out);
  tenure_status (*buffer_import)(const void *data,
                                 size_t data_bytes,
                                 const int32_t *fds,
                                 size_t fd_count,
                                 int32_t device,
                                 struct tenure_stream stream,
                                 tenure_buffer *out);
  tenure_status (*report_begin)(uint32_t on, uint32_t stacks);
  tenure_status (*report)(struct tenure_text *out);
  tenure_status (*library_number)(const char *name, uint32_t *out);
  tenure_status (*library_set)(uint32_t library, uint32_t *previous);
} tenure_api;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/* ---- the library ----------------------------------------------------------------------------- */

/**
 * The version of the library, such as `"0.1.0"`. Never null.
 */
const char *tenure_version(void);

/**
 * Fills `out` with the detail of the last failing call on this thread.
 */
tenure_status tenure_error_get(struct tenure_error *out);

/**
 * For callbacks: says why the callback is about to return `status`. `payload` may carry an object
 * of the callback's own language; `kind` tells who can read it and `release(payload)` is called
 * once when nobody wants it any more, on any thread.
 */
tenure_status tenure_error_set(tenure_status status,
                               const char *message,
                               uint32_t payload_kind,
                               void *payload,
                               void (*release)(void*));

/**
 * Takes the payload of the last error out, if it is of this kind: the caller owns it then, and its
 * release function is not called. Writes null where there is none.
 */
tenure_status tenure_error_take_payload(uint32_t payload_kind, void **out);

/**
 * How often a free that could not return an error was wrong (see `tenure_misuse_set_handler`). A test
 * suite asserts that it is 0.
 */
tenure_status tenure_misuse_count(uint64_t *out);

/**
 * Installs a handler for such frees instead of the line on stderr. A null handler restores the
 * default. `owner` keeps the context alive.
 */
tenure_status tenure_misuse_set_handler(tenure_misuse_fn handler, struct tenure_owner owner);

/**
 * Reports a wrong free from a place that cannot return an error: counts it and calls the handler
 * with the last error of this thread.
 */
tenure_status tenure_misuse_report(void);

/**
 * Closes what `_try_` functions left to close (`TENURE_OK_COLLECT`). May wait, and may call the
 * driver and user code.
 */
tenure_status tenure_collect(void);

/**
 * Tells the engine that the interpreter is going: resources whose properties have
 * `TENURE_INTERPRETED` answer `TENURE_ERROR_EXITING` from now on, and neither their functions nor
 * their `drop` are called again.
 */
tenure_status tenure_interpreter_exit(void);

/**
 * What is here, as JSON: version, ABI, device layer, driver version, devices and capabilities, or
 * why there is none.
 */
tenure_status tenure_describe(struct tenure_text *out);

/**
 * Gives text back. A zeroed one is left alone.
 */
tenure_status tenure_text_free(struct tenure_text *text);

/* ---- devices --------------------------------------------------------------------------------- */

/**
 * The number of devices. Loads the driver at first use.
 */
tenure_status tenure_device_count(int32_t *out);

/**
 * The device that is current on this thread, 0 when none was made current.
 */
tenure_status tenure_device_get_current(int32_t *out);

/**
 * Makes a device current on this thread.
 */
tenure_status tenure_device_set_current(int32_t device);

/**
 * What a device is; -1 is the current one.
 */
tenure_status tenure_device_info(int32_t device, struct tenure_device_info *out);

/**
 * Waits for all work of a device; -1 is the current one. A stream capture that is under way goes
 * on: what it has recorded is not work yet.
 */
tenure_status tenure_device_synchronize(int32_t device);

/* ---- streams --------------------------------------------------------------------------------- */

/**
 * Makes a stream on `device` (-1: the current one). `non_blocking` 1: it does not synchronise with
 * the legacy default stream. The reference in `out->object` is released with `tenure_stream_release`.
 */
tenure_status tenure_stream_create(int32_t device,
                                   uint32_t non_blocking,
                                   struct tenure_stream *out);

/**
 * Takes note of somebody else's stream that `owner` keeps alive. `device` -1: the driver is asked.
 */
tenure_status tenure_stream_wrap(void *raw,
                                 int32_t device,
                                 struct tenure_owner owner,
                                 struct tenure_stream *out);

/**
 * Takes note of somebody else's stream that is never destroyed while the process lives.
 */
tenure_status tenure_stream_immortal(void *raw, int32_t device, struct tenure_stream *out);

/**
 * One more reference to a stream object.
 */
tenure_status tenure_stream_retain(tenure_stream_object stream);

/**
 * Gives a reference to a stream object back. The last one ends the stream: tenure's own is
 * destroyed, a foreign owner is released.
 */
tenure_status tenure_stream_release(tenure_stream_object stream);

/**
 * The device of a stream; of a default stream, the current one.
 */
tenure_status tenure_stream_device(struct tenure_stream stream, int32_t *out);

/**
 * Waits until the work enqueued so far is done.
 */
tenure_status tenure_stream_synchronize(struct tenure_stream stream);

/**
 * Writes 1 when all work enqueued so far is done, else 0.
 */
tenure_status tenure_stream_query(struct tenure_stream stream, uint32_t *out);

/**
 * Makes later work of `stream` wait for the work enqueued on `other` so far. The host does not
 * wait.
 */
tenure_status tenure_stream_wait_stream(struct tenure_stream stream, struct tenure_stream other);

/* ---- memory operations ----------------------------------------------------------------------- */

/**
 * Copies `bytes` bytes in the order of `stream`, between any two kinds of memory. Host memory must
 * stay alive until the copy is done.
 */
tenure_status tenure_copy_async(void *to,
                                const void *from,
                                size_t bytes,
                                struct tenure_stream stream);

/**
 * Sets `bytes` bytes to `value` in the order of `stream`.
 */
tenure_status tenure_fill_async(void *to, uint8_t value, size_t bytes, struct tenure_stream stream);

/* ---- making resources ------------------------------------------------------------------------ */

/**
 * The plain device resource: one per process, on the device of the stream of each call.
 */
tenure_status tenure_cuda_resource(tenure_resource *out);

/**
 * Managed memory: one per process.
 */
tenure_status tenure_managed_resource(tenure_resource *out);

/**
 * Pinned host memory: one per process.
 */
tenure_status tenure_pinned_resource(tenure_resource *out);

/**
 * Memory of the system's allocator: one per process.
 */
tenure_status tenure_system_resource(tenure_resource *out);

/**
 * A stream-ordered resource over a driver pool of its own.
 */
tenure_status tenure_async_resource_create(const struct tenure_async_options *options,
                                           tenure_resource *out);

/**
 * A stream-ordered resource over somebody else's driver pool (`CUmemoryPool`), which must outlive
 * it. `device` -1: the current one.
 */
tenure_status tenure_async_view_create(void *pool_handle, int32_t device, tenure_resource *out);

/**
 * A pool over `upstream` (`TENURE_RESOURCE_CURRENT`: the current one). `options` may be null.
 */
tenure_status tenure_pool_create(tenure_resource upstream,
                                 const struct tenure_pool_options *options,
                                 tenure_resource *out);

/**
 * Refuses what would take more than `limit` bytes from `upstream` at once. A limit of 0 is an
 * error.
 */
tenure_status tenure_limiting_create(tenure_resource upstream,
                                     uint64_t limit,
                                     tenure_resource *out);

/**
 * Counts what goes through.
 */
tenure_status tenure_statistics_create(tenure_resource upstream, tenure_resource *out);

/**
 * A resource of user functions; `context` belongs to it from the successful call on.
 */
tenure_status tenure_callback_create(const struct tenure_resource_vtable *vtable,
                                     void *context,
                                     tenure_resource *out);

/* ---- holding resources ----------------------------------------------------------------------- */

/**
 * One more reference, for long use. Written to `out`.
 */
tenure_status tenure_resource_retain(tenure_resource resource, tenure_resource *out);

/**
 * One more reference that is cheap to make in bulk, for short use. Written to `out`.
 */
tenure_status tenure_resource_retain_light(tenure_resource resource, tenure_resource *out);

/**
 * Gives a reference back. The last reference or allocation, whichever goes last, closes the
 * resource.
 */
tenure_status tenure_resource_release(tenure_resource resource);

/**
 * `tenure_resource_release` that never waits: the closing is left to `tenure_collect`.
 */
tenure_status tenure_resource_try_release(tenure_resource resource);

/**
 * A number that no other resource of the process ever has.
 */
tenure_status tenure_resource_id(tenure_resource resource, uint64_t *out);

/**
 * A reference to the resource of this id, if it is alive; else `TENURE_RESOURCE_NULL` and
 * `TENURE_OK`.
 */
tenure_status tenure_resource_from_id(uint64_t id, tenure_resource *out);

/**
 * Writes 1 when both are references to one resource.
 */
tenure_status tenure_resource_same(tenure_resource a, tenure_resource b, uint32_t *out);

/* ---- asking resources ------------------------------------------------------------------------ */

/**
 * The kind, such as `"pool"`. Valid while the resource lives.
 */
tenure_status tenure_resource_kind(tenure_resource resource, const char **out);

/**
 * The device, or -1 when it follows from the stream of each call.
 */
tenure_status tenure_resource_device(tenure_resource resource, int32_t *out);

/**
 * `TENURE_DEVICE_ACCESSIBLE` and so on.
 */
tenure_status tenure_resource_properties(tenure_resource resource, uint32_t *out);

/**
 * The figures. Set `out->size`.
 */
tenure_status tenure_resource_info(tenure_resource resource, struct tenure_info *out);

/**
 * A reference to the upstream, or `TENURE_RESOURCE_NULL` where there is none.
 */
tenure_status tenure_resource_upstream(tenure_resource resource, tenure_resource *out);

/**
 * A named figure or setting of the concrete kind, such as `"allocation_limit"`, `"pool_handle"`,
 * `"pool_size"`; of every kind `"anchors"` and `"lights"`, the references held for long and for
 * short (exact only while nobody else changes them).
 */
tenure_status tenure_resource_property(tenure_resource resource, const char *name, uint64_t *out);

/**
 * Writes 1 when a live allocation that was asked of this very resource contains `ptr`.
 */
tenure_status tenure_resource_owns(tenure_resource resource, const void *ptr, uint32_t *out);

/**
 * Gives back what is cached, down to `keep_bytes`; writes how many bytes went.
 */
tenure_status tenure_resource_trim(tenure_resource resource, size_t keep_bytes, size_t *released);

/**
 * Counters of a statistics adaptor. Set `out->size`.
 */
tenure_status tenure_statistics_get(tenure_resource resource, struct tenure_statistics *out);

/**
 * Starts a nested set of counters on a statistics adaptor; `out` (may be null) receives the
 * enclosing ones.
 */
tenure_status tenure_statistics_push(tenure_resource resource, struct tenure_statistics *out);

/**
 * Ends the nested set; `out` (may be null) receives it, and the enclosing ones take it in.
 */
tenure_status tenure_statistics_pop(tenure_resource resource, struct tenure_statistics *out);

/**
 * The context of a resource that was made by `tenure_callback_create` with this `drop` function, or by
 * `tenure_failure_callback_create` with an owner that is released by it; null where it was not. Valid
 * while the resource lives.
 */
tenure_status tenure_callback_context(tenure_resource resource,
                                      void (*drop)(void*),
                                      void **out);

/* ---- allocating ------------------------------------------------------------------------------ */

/**
 * Allocates `bytes` bytes (0 gives null and calls nobody), usable in the order of `stream`.
 * `alignment` 0 is 256.
 */
tenure_status tenure_allocate(tenure_resource resource,
                              size_t bytes,
                              size_t alignment,
                              struct tenure_stream stream,
                              void **out);

/**
 * Frees in the order of `stream`. Pointer, size, alignment and resource are checked: a wrong one
 * is `TENURE_ERROR_OWNERSHIP` and nothing happens.
 */
tenure_status tenure_deallocate(tenure_resource resource,
                                void *ptr,
                                size_t bytes,
                                size_t alignment,
                                struct tenure_stream stream);

/**
 * `tenure_allocate` that neither waits nor calls the driver or user code.
 */
tenure_status tenure_try_allocate(tenure_resource resource,
                                  size_t bytes,
                                  size_t alignment,
                                  struct tenure_stream stream,
                                  void **out);

/**
 * `tenure_deallocate` that neither waits nor calls the driver or user code.
 */
tenure_status tenure_try_deallocate(tenure_resource resource,
                                    void *ptr,
                                    size_t bytes,
                                    size_t alignment,
                                    struct tenure_stream stream);

/**
 * Allocates memory that is usable on any stream at return.
 */
tenure_status tenure_allocate_sync(tenure_resource resource,
                                   size_t bytes,
                                   size_t alignment,
                                   void **out);

/**
 * Frees memory that nothing uses any more.
 */
tenure_status tenure_deallocate_sync(tenure_resource resource,
                                     void *ptr,
                                     size_t bytes,
                                     size_t alignment);

/**
 * Who was asked for the smallest live allocation around `ptr`: a reference in `resource`
 * (`TENURE_RESOURCE_NULL` when unknown), its start and size in `base` and `bytes` (each may be
 * null).
 */
tenure_status tenure_owner_of(const void *ptr,
                              tenure_resource *resource,
                              void **base,
                              size_t *bytes);

/* ---- the table of current resources ---------------------------------------------------------- */

/**
 * A reference to the current resource of a device (-1: the current device), scopes of this thread
 * included.
 */
tenure_status tenure_current_get(int32_t device, tenure_resource *out);

/**
 * Replaces the current resource of a device; the previous one is written to `previous` (may be
 * null) as a reference. Inside a scope of this thread the scope's binding is replaced.
 */
tenure_status tenure_current_set(int32_t device,
                                 tenure_resource resource,
                                 tenure_resource *previous);

/**
 * Puts the plain device resource back; the previous one is written to `previous` (may be null) as
 * a reference.
 */
tenure_status tenure_current_reset(int32_t device, tenure_resource *previous);

/**
 * Binds the current resource of a device (-1: the current device) for this thread until
 * `tenure_scope_exit`.
 */
tenure_status tenure_scope_enter(int32_t device, tenure_resource resource, tenure_scope *out);

/**
 * Ends a scope, in any order and from any thread.
 */
tenure_status tenure_scope_exit(tenure_scope scope);

/**
 * Calls `listener` whenever an entry changes.
 */
tenure_status tenure_listener_add(tenure_listener_fn listener,
                                  struct tenure_owner owner,
                                  tenure_listener *out);

/**
 * Removes a listener; a call in flight on another thread may still end after this.
 */
tenure_status tenure_listener_remove(tenure_listener listener);

/* ---- buffers --------------------------------------------------------------------------------- */

/**
 * Makes a buffer of `bytes` bytes. A buffer of no bytes calls no resource, has a null pointer, and
 * still holds resource and stream. `alignment` 0 is 256.
 */
tenure_status tenure_buffer_create(size_t bytes,
                                   size_t alignment,
                                   struct tenure_stream stream,
                                   tenure_resource resource,
                                   tenure_buffer *out);

/**
 * `tenure_buffer_create` that neither waits nor calls the driver or user code.
 */
tenure_status tenure_buffer_try_create(size_t bytes,
                                       size_t alignment,
                                       struct tenure_stream stream,
                                       tenure_resource resource,
                                       tenure_buffer *out);

/**
 * Makes a buffer of a block that `resource` made (checked) and that nobody else will free.
 */
tenure_status tenure_buffer_adopt(void *ptr,
                                  size_t bytes,
                                  size_t alignment,
                                  struct tenure_stream stream,
                                  tenure_resource resource,
                                  tenure_buffer *out);

/**
 * Makes a buffer of memory that no resource of tenure's made. When the buffer goes,
 * `free_fn(owner.context, ptr, bytes, stream)` is called if given, then
 * `owner.release(owner.context)`. At least one of the two is needed. `device` -1: memory of the
 * host; `TENURE_DEVICE_OF_MEMORY`: the driver is asked, and where it names none it is that of the
 * stream.
 */
tenure_status tenure_buffer_adopt_foreign(void *ptr,
                                          size_t bytes,
                                          int32_t device,
                                          struct tenure_stream stream,
                                          tenure_free_fn free_fn,
                                          struct tenure_owner owner,
                                          tenure_buffer *out);

/**
 * Frees the memory in the order of the buffer's stream and ends the buffer. On an ownership error
 * the block stays as it is and the buffer ends.
 */
tenure_status tenure_buffer_destroy(tenure_buffer buffer);

/**
 * `tenure_buffer_destroy` that neither waits nor calls the driver or user code.
 */
tenure_status tenure_buffer_try_destroy(tenure_buffer buffer);

/**
 * Frees the memory now, in the order of the home stream, or of `stream` if it is not null (which
 * becomes the home). The buffer is empty afterwards.
 */
tenure_status tenure_buffer_close(tenure_buffer buffer, const struct tenure_stream *stream);

/**
 * Takes the allocation out: it stays counted on its resource, and the buffer is empty afterwards.
 * Refused for a buffer that was adopted with an owner.
 */
tenure_status tenure_buffer_detach(tenure_buffer buffer, struct tenure_detached *out);

/**
 * What the buffer is now. Set `out->size`.
 */
tenure_status tenure_buffer_view(tenure_buffer buffer, struct tenure_buffer_view *out);

/**
 * A reference to the resource; `TENURE_RESOURCE_NULL` when the buffer was adopted with an owner.
 */
tenure_status tenure_buffer_resource(tenure_buffer buffer, tenure_resource *out);

/**
 * Makes the buffer `bytes` bytes long. Within the capacity nothing moves; beyond it a new block of
 * the same resource is made and the bytes are copied, on `stream`, which becomes the home. On
 * failure the buffer is as it was.
 */
tenure_status tenure_buffer_resize(tenure_buffer buffer, size_t bytes, struct tenure_stream stream);

/**
 * Makes sure of a capacity of `bytes` bytes.
 */
tenure_status tenure_buffer_reserve(tenure_buffer buffer,
                                    size_t bytes,
                                    struct tenure_stream stream);

/**
 * Reduces the capacity to the size.
 */
tenure_status tenure_buffer_shrink_to_fit(tenure_buffer buffer, struct tenure_stream stream);

/**
 * A copy, made on `stream` under `resource` (`TENURE_RESOURCE_CURRENT`: the current one of the
 * stream's device).
 */
tenure_status tenure_buffer_copy(tenure_buffer buffer,
                                 struct tenure_stream stream,
                                 tenure_resource resource,
                                 tenure_buffer *out);

/**
 * Makes `stream` the home. The old home stays among the used streams: nothing is waited for,
 * nothing is lost.
 */
tenure_status tenure_buffer_set_stream(tenure_buffer buffer, struct tenure_stream stream);

/**
 * Says that work on `stream` uses the buffer: its memory is not reused before all work enqueued on
 * `stream` until the free is done. This and `tenure_buffer_copy` may be called by several threads at
 * once; what changes the buffer is for one call at a time.
 */
tenure_status tenure_buffer_record_stream(tenure_buffer buffer,
                                          struct tenure_stream stream);

/* ---- logs ------------------------------------------------------------------------------------ */

/**
 * Replays a log. `options` is JSON: `{"log": PATH, "resource": "cuda"|"async"|"pool"|"pool:SIZE",
 * "repeat": N, "html": PATH or absent}`, and `"threads": true` for a thread for each thread of the
 * log, `"smallest": true` for the smallest fixed pool that it fits. The answer is JSON with the
 * fields that `tenure replay --json` prints.
 */
tenure_status tenure_replay(const char *options,
                            tenure_progress_fn progress,
                            void *context,
                            struct tenure_text *out);

/* ---- the simulated device -------------------------------------------------------------------- */

/**
 * Sets the simulated device up before its first use: the number of devices and the bytes of each;
 * 0 leaves a setting alone.
 */
tenure_status tenure_sim_configure(int32_t devices, uint64_t memory_bytes);

/**
 * Keeps a stream busy for some milliseconds. On CUDA too, by a host function.
 */
tenure_status tenure_sim_busy(struct tenure_stream stream, uint32_t milliseconds);

/**
 * Makes a later driver call of this name (such as `"cuMemCreate"`) fail with `code`: the next one
 * after `after` that succeed.
 */
tenure_status tenure_sim_fail_next(const char *call, int32_t code, uint64_t after);

/**
 * Takes back every failure that has not happened yet.
 */
tenure_status tenure_sim_fail_clear(void);

/**
 * How many calls broke the rules of the driver (a destroyed handle was named, say).
 */
tenure_status tenure_sim_violations(uint64_t *out);

/**
 * How many driver calls of this name were made; null: of all names. On CUDA, since counting was
 * first asked for.
 */
tenure_status tenure_driver_calls(const char *call, uint64_t *out);

/**
 * 1 when the device layer is the simulated one. Loads the driver at first use.
 */
tenure_status tenure_sim_active(uint32_t *out);

/**
 * The capacity of a device of the simulated machine can be changed while it runs: bytes free plus
 * bytes used.
 */
tenure_status tenure_sim_set_memory(int32_t device, uint64_t memory_bytes);

/**
 * Bytes live on the device: what is handed out by the driver.
 */
tenure_status tenure_device_used(int32_t device, uint64_t *out);

/* ---- resources that sort requests by size, and the arena ------------------------------------- */

/**
 * Blocks of one size over `upstream` (`TENURE_RESOURCE_CURRENT`: the current one). What is larger
 * than a block is `TENURE_ERROR_INVALID_ARGUMENT`. `options` may be null: 128 blocks of 1 MiB.
 */
tenure_status tenure_fixed_size_create(tenure_resource upstream,
                                       const struct tenure_fixed_size_options *options,
                                       tenure_resource *out);

/**
 * Sends each request to the smallest bin that is large enough, and what no bin takes to `upstream`
 * (`TENURE_RESOURCE_CURRENT`: the current one). `options` may be null: no bins at first.
 */
tenure_status tenure_binning_create(tenure_resource upstream,
                                    const struct tenure_binning_options *options,
                                    tenure_resource *out);

/**
 * Adds a bin for requests of up to `allocation_size` bytes (rounded up to a multiple of 256), at
 * any time. `bin_resource` serves it and is held; `TENURE_RESOURCE_NULL` makes a fixed-size
 * resource with blocks of that size over the upstream, which takes nothing before its first use. A
 * size that has a bin keeps it: without a resource nothing is done then, with one the new bin
 * serves the size from now on, and blocks of the old one go home to the old one.
 */
tenure_status tenure_binning_add_bin(tenure_resource binning,
                                     uint64_t allocation_size,
                                     tenure_resource bin_resource);

/**
 * A bin, by its place in the order of sizes: the size up to which it serves in `allocation_size`
 * (may be null) and a reference to its resource in `out`. Beyond the last one:
 * `TENURE_RESOURCE_NULL`, 0 and `TENURE_OK`.
 */
tenure_status tenure_binning_bin(tenure_resource binning,
                                 uint32_t index,
                                 uint64_t *allocation_size,
                                 tenure_resource *out);

/**
 * An arena over `upstream` (`TENURE_RESOURCE_CURRENT`: the current one): memory of one size, taken
 * at once, that many threads and streams share. `options` may be null: half of what is free on the
 * current device.
 */
tenure_status tenure_arena_create(tenure_resource upstream,
                                  const struct tenure_arena_options *options,
                                  tenure_resource *out);

/* ---- memory of the whole process ------------------------------------------------------------- */

/**
 * Calls `hook` whenever a pool is about to fail, after everything that the library can do by
 * itself.
 */
tenure_status tenure_low_memory_add(tenure_low_memory_fn hook,
                                    struct tenure_owner owner,
                                    tenure_low_memory_hook *out);

/**
 * Removes a hook; a call in flight on another thread may still end after this.
 */
tenure_status tenure_low_memory_remove(tenure_low_memory_hook hook);

/**
 * For other libraries that need memory: makes the pools on `device` (-1: the current one) give
 * back idle memory until `bytes` bytes went, or all that is idle with 0; writes how many did. May
 * wait for the device. Release thresholds do not count.
 */
tenure_status tenure_low_memory(int32_t device, uint64_t bytes, uint64_t *released);

/* ---- captures -------------------------------------------------------------------------------- */

/**
 * Makes a name for memory that several graphs share which never run at the same time: each pool
 * keeps one arena for it, and what one graph freed while it was captured serves the next. The
 * arena goes when name, graphs and allocations are gone.
 */
tenure_status tenure_shared_arena_create(tenure_shared_arena *out);

/**
 * Gives a name back. Open scopes keep it.
 */
tenure_status tenure_shared_arena_release(tenure_shared_arena arena);

/**
 * Opens a scope for captures of `stream`, whichever thread allocates in them; a raw value must be
 * alive until the scope ends. The per-thread default stream (2) stands for this thread: only
 * inside such a scope is it asked for capture in every allocation. `arena` 0: each capture has
 * memory of its own, as without a scope. Captures that share an arena follow each other.
 */
tenure_status tenure_capture_scope_enter(struct tenure_stream stream,
                                         tenure_shared_arena arena,
                                         tenure_capture_scope *out);

/**
 * Ends a scope, in any order and from any thread.
 */
tenure_status tenure_capture_scope_exit(tenure_capture_scope scope);

/**
 * For tests, on CUDA too: begins the capture of a stream (`mode` 0 global, 1 thread-local, 2
 * relaxed).
 */
tenure_status tenure_sim_capture_begin(struct tenure_stream stream, uint32_t mode);

/**
 * For tests: ends the capture of a stream and makes its graph ready to run.
 */
tenure_status tenure_sim_capture_end(struct tenure_stream stream, tenure_graph *out);

/**
 * For tests: runs a graph in the order of a stream.
 */
tenure_status tenure_sim_graph_launch(tenure_graph graph, struct tenure_stream stream);

/**
 * For tests: ends a graph. A run that is under way ends first.
 */
tenure_status tenure_sim_graph_destroy(tenure_graph graph);

/* ---- many blocks in one call ----------------------------------------------------------------- */

/**
 * Allocates `count` blocks, of `bytes[i]` bytes each, usable in the order of `stream`: all of
 * them, or an error and none. `out` has room for `count` pointers; 0 bytes give null. Each block
 * is freed by itself with `tenure_deallocate`, or with others. `alignment` 0 is 256.
 */
tenure_status tenure_allocate_many(tenure_resource resource,
                                   size_t count,
                                   const size_t *bytes,
                                   size_t alignment,
                                   struct tenure_stream stream,
                                   void **out);

/**
 * Frees `count` blocks in the order of `stream`; null with 0 bytes is passed over. Each is checked
 * as `tenure_deallocate` checks: a wrong one stays as it is and every other is freed. The error is that
 * of the first wrong one, whose place is in the message and is written to `wrong` (may be null);
 * `count` is written there when all were freed, and when the call did nothing at all.
 */
tenure_status tenure_deallocate_many(tenure_resource resource,
                                     size_t count,
                                     void *const *ptrs,
                                     const size_t *bytes,
                                     size_t alignment,
                                     struct tenure_stream stream,
                                     size_t *wrong);

/**
 * `tenure_buffer_create` for `count` sizes in one call: all of them, or an error and none. `out` has room
 * for `count` buffers, each of which is destroyed by itself.
 */
tenure_status tenure_buffer_create_many(size_t count,
                                        const size_t *bytes,
                                        size_t alignment,
                                        struct tenure_stream stream,
                                        tenure_resource resource,
                                        tenure_buffer *out);

/**
 * Says that the host has waited for `stream`, with means that are not tenure's: what was freed on
 * it before this call may then serve every stream without a wait. Nothing is believed: pools ask
 * the driver whether the stream is idle, and where it is not, all stays as it was.
 * `tenure_stream_synchronize` does this by itself. On a stream that is capturing nothing is asked.
 */
tenure_status tenure_note_sync(struct tenure_stream stream);

/**
 * Says that `stream` has been made to wait for `other`, with means that are not tenure's: what was
 * freed on `other` before this call may then be used in the order of `stream`, without a wait for
 * each block. Nothing is believed: a pool that holds such memory inserts a wait of its own, once.
 * `tenure_stream_wait_stream` does this by itself. Where one of the two is capturing, nothing changes.
 */
tenure_status tenure_note_wait(struct tenure_stream stream,
                               struct tenure_stream other);

/* ---- stream pools ---------------------------------------------------------------------------- */

/**
 * Makes `streams` streams on `device` (-1: the current one), which are given out in turn;
 * `non_blocking` ones do not synchronise with the legacy default stream. A pool of no streams is
 * an error.
 */
tenure_status tenure_stream_pool_create(int32_t device,
                                        size_t streams,
                                        uint32_t non_blocking,
                                        tenure_stream_pool *out);

/**
 * How many streams a pool has.
 */
tenure_status tenure_stream_pool_size(tenure_stream_pool pool, size_t *out);

/**
 * The stream whose turn it is, with a reference of its own: `out->object` is released with
 * `tenure_stream_release`, and the stream outlives the pool where something names it.
 */
tenure_status tenure_stream_pool_next(tenure_stream_pool pool, struct tenure_stream *out);

/**
 * The stream with this number, as `tenure_stream_pool_next`; numbers beyond the last one go round.
 */
tenure_status tenure_stream_pool_at(tenure_stream_pool pool,
                                    size_t number,
                                    struct tenure_stream *out);

/**
 * Gives a pool back.
 */
tenure_status tenure_stream_pool_release(tenure_stream_pool pool);

/* ---- adaptors -------------------------------------------------------------------------------- */

/**
 * Keeps a list of what is out. `capture_stacks` 1: each block keeps the stack of its allocation,
 * which costs microseconds.
 */
tenure_status tenure_tracking_create(tenure_resource upstream,
                                     uint32_t capture_stacks,
                                     tenure_resource *out);

/**
 * Calls `visit` for each block that is out at this moment, by address, without a lock. Names of
 * native frames are looked up now, which takes up to seconds the first time.
 */
tenure_status tenure_tracking_list(tenure_resource resource,
                                   tenure_tracked_fn visit,
                                   void *context);

/**
 * The same as text: `"0x7f0000000000: 1024 B"` and a line end for each block, its stack behind it
 * where there is one.
 */
tenure_status tenure_tracking_text(tenure_resource resource, struct tenure_text *out);

/**
 * Asks `callback` whenever `upstream` is out of memory, and for no other error. It may say "again"
 * for as long as something is freed meanwhile: 100 tries in a row that find no fewer live bytes,
 * no larger free block and no more free memory of the device than before end the request with its
 * error. A request that the callback itself makes through this resource does not ask it again.
 * `owner` keeps the context alive.
 */
tenure_status tenure_failure_callback_create(tenure_resource upstream,
                                             tenure_failure_fn callback,
                                             struct tenure_owner owner,
                                             tenure_resource *out);

/**
 * Moves memory that migrates (managed, or of the host where devices can use that) to the device of
 * each request's stream. A hint: over other memory, and where the device or the driver lacks it,
 * nothing is done; the properties `"hints"` and `"told"` say so.
 */
tenure_status tenure_prefetch_create(tenure_resource upstream, tenure_resource *out);

/**
 * Aligns blocks of `threshold` bytes and more to `alignment`, a power of two up to 2 MiB; what is
 * below 256 is 256.
 */
tenure_status tenure_aligned_create(tenure_resource upstream,
                                    size_t alignment,
                                    size_t threshold,
                                    tenure_resource *out);

/**
 * One call at a time for an upstream of user functions that cannot take more; every resource of
 * the library's own can. The functions may come back to this resource on the same thread.
 */
tenure_status tenure_thread_safe_create(tenure_resource upstream, tenure_resource *out);

/**
 * Memory of the system's allocator that is at home on the device of each request as far as that
 * has more than `headroom` bytes free, and on the host beyond. A hint: where devices cannot use
 * memory of the host, it is that of `tenure_system_resource` (property `"hints"`).
 */
tenure_status tenure_sam_headroom_create(uint64_t headroom, tenure_resource *out);

/**
 * Stream-ordered managed memory from the default pool of managed memory of a device (-1: the
 * current one), which keeps what is free from now on. `TENURE_ERROR_UNSUPPORTED` before CUDA 13
 * and on devices that do not use managed memory together with the host.
 */
tenure_status tenure_async_managed_create(int32_t device, tenure_resource *out);

/**
 * Asks the driver to move memory to a device (-1: the current one; `TENURE_HOST`: to the host), in
 * the order of `stream`. Writes to `told` (may be null) whether it was asked: a hint is no error
 * where memory does not migrate, the device or the driver lacks it, or the stream is capturing.
 */
tenure_status tenure_prefetch(const void *ptr,
                              size_t bytes,
                              int32_t device,
                              struct tenure_stream stream,
                              uint32_t *told);

/**
 * `tenure_prefetch` of a buffer, in the order of `stream`, or of its home where that is null. Another
 * stream than the home is recorded as one that uses it.
 */
tenure_status tenure_buffer_prefetch(tenure_buffer buffer,
                                     int32_t device,
                                     const struct tenure_stream *stream,
                                     uint32_t *told);

/**
 * For the face of an interpreter: who tells its frames where a stack is kept. Null: nobody.
 * `owner` keeps the context alive.
 */
tenure_status tenure_stack_set_source(tenure_stack_fn source, struct tenure_owner owner);

/* ---- logs ------------------------------------------------------------------------------------ */

/**
 * Logs what goes through to a file that is emptied: a row of CSV for each allocation and free,
 * RMM's columns first. `name` null: what the environment variable `RMM_LOG_FILE` says.
 * `per_device` 1: `.devN` is put before the extension, as RMM's Python package does. Adaptors of
 * one process that name one file share it as it is. An error where the file cannot be written, or
 * another process writes it; nothing was created.
 */
tenure_status tenure_logging_create(tenure_resource upstream,
                                    const char *name,
                                    uint32_t per_device,
                                    tenure_resource *out);

/**
 * Ends the file behind its last row. Every row is in the file at once, also when the process is
 * killed; until a flush spaces may follow the last. An error where rows could not be written.
 */
tenure_status tenure_logging_flush(tenure_resource resource);

/**
 * The absolute name of the file, which is given back with `tenure_text_free`.
 */
tenure_status tenure_logging_file_name(tenure_resource resource, struct tenure_text *out);

/* ---- looking inside -------------------------------------------------------------------------- */

/**
 * Opens a tag on this thread: what it allocates counts under `name` (1 to 256 bytes) until
 * `tenure_tag_pop`. Tags nest; the innermost counts. From the first one of the process on it is booked
 * who allocates what.
 */
tenure_status tenure_tag_push(const char *name,
                              tenure_tag *out);

/**
 * Ends a tag of this thread, in any order. 0 is nothing to do.
 */
tenure_status tenure_tag_pop(tenure_tag tag);

/**
 * 1: books who allocates what from now on. 0: no more, unless events are recorded.
 */
tenure_status tenure_observe(uint32_t on);

/**
 * Calls `visitor` with each account that ever counted anything, those with most live bytes first.
 * `by` is `TENURE_BY_TAG`, `TENURE_BY_THREAD` or `TENURE_BY_RESOURCE`. Counted is what was
 * allocated since the book was begun: by the first tag, `tenure_observe` or `tenure_history_record`.
 */
tenure_status tenure_usage(uint32_t by,
                           tenure_account_fn visitor,
                           void *context);

/**
 * All memory as JSON: resources with their free and reserved ranges, live blocks, threads, and the
 * recorded events. `docs/looking-inside.md` has the fields. Nobody is stopped meanwhile: what
 * lives throughout is in it.
 */
tenure_status tenure_memory_snapshot(struct tenure_text *out);

/**
 * 1: records events (allocations, frees, failures, resources, trims, the current resource), the
 * last `max_entries` of them (0: 100000), with stacks if `stacks` is 1 and somebody can tell them.
 * What was recorded before is forgotten. 0: ends it; what was recorded stays for snapshots.
 */
tenure_status tenure_history_record(uint32_t on, uint32_t stacks, size_t max_entries);

/**
 * Works out the `notes` of the last error of this thread, if that is an out-of-memory error of a
 * `_try_` function: other functions have done so. May wait and may call the driver; the error
 * stays the last one.
 */
tenure_status tenure_error_explain(void);

/* ---- measurements of a thread or a task ------------------------------------------------------ */

/**
 * Opens a scope that counts what the calling thread does through a statistics adaptor, until it is
 * closed: its allocations, and its frees, whoever had allocated. What a scope counts that was
 * opened inside another one of that adaptor counts there too. The adaptor's own counters go on
 * beside it.
 */
tenure_status tenure_statistics_scope_open(tenure_resource resource, tenure_statistics_scope *out);

/**
 * What an open scope has counted. Set `out->size`.
 */
tenure_status tenure_statistics_scope_get(tenure_statistics_scope scope,
                                          struct tenure_statistics *out);

/**
 * Closes a scope, on any thread and in any order; `out` (may be null) receives what it has
 * counted. Scopes inside it go on.
 */
tenure_status tenure_statistics_scope_close(tenure_statistics_scope scope,
                                            struct tenure_statistics *out);

/**
 * Puts the calling thread into an open scope (0: into none), for work that goes on on another
 * thread, and for tasks that take turns on one. `previous` (may be null) receives what the thread
 * was in. A thread that starts is in none.
 */
tenure_status tenure_statistics_scope_enter(tenure_statistics_scope scope,
                                            tenure_statistics_scope *previous);

/* ---- memory of several processes ------------------------------------------------------------- */

/**
 * By which kinds of handles other processes can be given memory of a resource: a sum of
 * `TENURE_HANDLE_FD` and so on; 0 where they cannot.
 */
tenure_status tenure_resource_exports(tenure_resource resource, uint32_t *out);

/**
 * Describes the memory of a buffer for another process, by one of `kinds` (a sum of
 * `TENURE_HANDLE_FD` and so on; 0: any). Waits for the work that the buffer knows of, on its home
 * stream and on those that were recorded. The buffer keeps its block: it must live until the
 * importers need its contents no more, and of a driver's pool and of legacy handles until they
 * have freed theirs. `TENURE_ERROR_UNSUPPORTED` says which option of the resource makes its memory
 * exportable.
 */
tenure_status tenure_buffer_share(tenure_buffer buffer, uint32_t kinds, struct tenure_shared *out);

/**
 * Gives a description back and closes its descriptors, but for those that the caller keeps and has
 * set to -1. A zeroed one is left alone. What was imported stays.
 */
tenure_status tenure_shared_free(struct tenure_shared *shared);

/**
 * What a description says. Set `out->size`.
 */
tenure_status tenure_shared_info(const void *data,
                                 size_t data_bytes,
                                 struct tenure_shared_view *out);

/**
 * A buffer of memory that another process shares, with `stream` as its home. The descriptors stay
 * the caller's, who closes them. `device` -1: the one that the memory lies on. However often one
 * piece of memory is imported, it is mapped once; the mapping goes with the last buffer.
 */
tenure_status tenure_buffer_import(const void *data,
                                   size_t data_bytes,
                                   const int32_t *fds,
                                   size_t fd_count,
                                   int32_t device,
                                   struct tenure_stream stream,
                                   tenure_buffer *out);

/* ---- a report of a run ----------------------------------------------------------------------- */

/**
 * 1: counts for a report from now on, with what was counted before forgotten; with lines of who
 * allocates if `stacks` is 1 and somebody can tell them. 0: no more; what was counted stays to be
 * read.
 */
tenure_status tenure_report_begin(uint32_t on, uint32_t stacks);

/**
 * What was counted, as JSON: the peak and who held what at it, what was reserved, what the device
 * had in use, the time spent in allocation, and the blocks that are out. `docs/tools.md` has the
 * fields.
 */
tenure_status tenure_report(struct tenure_text *out);

/**
 * The number of a library that allocates from tenure, the same for the same name (1 to 256 bytes;
 * 63 names at most).
 */
tenure_status tenure_library_number(const char *name, uint32_t *out);

/**
 * What the calling thread allocates from now on is that library's in reports; 0 is the program
 * itself. `previous` (may be null) receives what was so before, to be set again at the end.
 */
tenure_status tenure_library_set(uint32_t library, uint32_t *previous);

/* ---- finding the library at run time --------------------------------------------------------- */

/**
 * The table of functions, or null when this library cannot serve a client of ABI version `abi`
 * (`TENURE_ABI_VERSION` of the header that the client was compiled with) or refuses to be the
 * second instance in the process; `tenure_get_api_error` says why.
 */
const struct tenure_api *tenure_get_api(uint32_t abi);

/**
 * Why `tenure_get_api` returned null on this thread, as one sentence. Never null; valid until the next
 * call of `tenure_get_api` on the thread.
 */
const char *tenure_get_api_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

/* ---- what this header promises about layouts ----------------------------------------------------- */

#if UINTPTR_MAX == UINT64_MAX
TENURE_STATIC_ASSERT(sizeof(tenure_stream) == 16, tenure_stream_has_the_size_of_the_library);
TENURE_STATIC_ASSERT(sizeof(tenure_text) == 16, tenure_text_has_the_size_of_the_library);
TENURE_STATIC_ASSERT(sizeof(tenure_error) == 192, tenure_error_has_the_size_of_the_library);
TENURE_STATIC_ASSERT(sizeof(tenure_request) == 40, tenure_request_has_the_size_of_the_library);
TENURE_STATIC_ASSERT(sizeof(tenure_resource_vtable) == 56, tenure_resource_vtable_has_the_size_of_the_library);
TENURE_STATIC_ASSERT(sizeof(tenure_owner) == 16, tenure_owner_has_the_size_of_the_library);
TENURE_STATIC_ASSERT(sizeof(tenure_info) == 88, tenure_info_has_the_size_of_the_library);
TENURE_STATIC_ASSERT(sizeof(tenure_statistics) == 56, tenure_statistics_has_the_size_of_the_library);
TENURE_STATIC_ASSERT(sizeof(tenure_pool_options) == 88, tenure_pool_options_has_the_size_of_the_library);
TENURE_STATIC_ASSERT(sizeof(tenure_fixed_size_options) == 32, tenure_fixed_size_options_has_the_size_of_the_library);
TENURE_STATIC_ASSERT(sizeof(tenure_binning_options) == 24, tenure_binning_options_has_the_size_of_the_library);
TENURE_STATIC_ASSERT(sizeof(tenure_arena_options) == 24, tenure_arena_options_has_the_size_of_the_library);
TENURE_STATIC_ASSERT(sizeof(tenure_async_options) == 40, tenure_async_options_has_the_size_of_the_library);
TENURE_STATIC_ASSERT(sizeof(struct tenure_buffer_view) == 72, tenure_buffer_view_has_the_size_of_the_library);
TENURE_STATIC_ASSERT(sizeof(tenure_detached) == 64, tenure_detached_has_the_size_of_the_library);
TENURE_STATIC_ASSERT(sizeof(struct tenure_device_info) == 200, tenure_device_info_has_the_size_of_the_library);
TENURE_STATIC_ASSERT(sizeof(tenure_tracked) == 32, tenure_tracked_has_the_size_of_the_library);
TENURE_STATIC_ASSERT(sizeof(tenure_account) == 72, tenure_account_has_the_size_of_the_library);
TENURE_STATIC_ASSERT(sizeof(tenure_shared) == 32, tenure_shared_has_the_size_of_the_library);
TENURE_STATIC_ASSERT(sizeof(tenure_shared_view) == 48, tenure_shared_view_has_the_size_of_the_library);
#endif

#if defined(__cplusplus) && defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

/* ---- streams in one word ------------------------------------------------------------------------ */

/**
 * A stream of somebody else's, by its value (`cudaStream_t`, `CUstream`). It must be alive during the
 * call that it is passed to; null is the legacy default stream.
 */
static inline tenure_stream tenure_stream_of(void *raw)
{
  tenure_stream stream;
  stream.raw = raw;
  stream.object = 0;
  return stream;
}

/** The legacy default stream, which waits for the other blocking streams of its device. */
#define TENURE_STREAM_LEGACY (tenure_stream_of((void *)(uintptr_t)1))

/** The default stream of the calling thread. */
#define TENURE_STREAM_PER_THREAD (tenure_stream_of((void *)(uintptr_t)2))

#endif /* TENURE_TENURE_H */
