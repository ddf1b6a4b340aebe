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
