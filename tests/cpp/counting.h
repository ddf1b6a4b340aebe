/* SPDX-License-Identifier: Apache-2.0
 *
 * An upstream of the host's memory that counts what it is asked for, and its own end: a resource that is closed too early, too
 * late or twice is seen. With the questions that the tests ask of handles.
 */
#ifndef TENURE_TESTS_COUNTING_H
#define TENURE_TESTS_COUNTING_H

#include "check.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct ledger {
  int allocations, frees, drops;
  size_t live_bytes;
} ledger;

static inline tenure_status counting_allocate(void* context, tenure_request const* request, tenure_stream stream, void** out)
{
  ledger* const book = context;
  (void)stream;
  if (posix_memalign(out, request->alignment < 64 ? 64 : request->alignment, request->bytes) != 0) {
    (void)tenure_error_set(TENURE_ERROR_OUT_OF_MEMORY, "the counting upstream has no memory", 0, NULL, NULL);
    return TENURE_ERROR_OUT_OF_MEMORY;
  }
  book->allocations++;
  book->live_bytes += request->bytes;
  return TENURE_OK;
}

static inline tenure_status counting_deallocate(void* context, void* ptr, tenure_request const* request, tenure_stream stream)
{
  ledger* const book = context;
  (void)tenure_stream_synchronize(stream);
  book->frees++;
  book->live_bytes -= request->bytes;
  free(ptr);
  return TENURE_OK;
}

static inline void counting_drop(void* context) { ((ledger*)context)->drops++; }

static inline tenure_resource counting(ledger* book)
{
  tenure_resource_vtable vtable;
  tenure_resource made = TENURE_RESOURCE_NULL;
  memset(&vtable, 0, sizeof vtable);
  memset(book, 0, sizeof *book);
  vtable.size       = sizeof vtable;
  vtable.kind       = "counting";
  vtable.properties = TENURE_DEVICE_ACCESSIBLE | TENURE_HOST_ACCESSIBLE;
  vtable.device     = -1;
  vtable.allocate   = counting_allocate;
  vtable.deallocate = counting_deallocate;
  vtable.drop       = counting_drop;
  CHECK_OK(tenure_callback_create(&vtable, book, &made));
  return made;
}

static inline struct tenure_buffer_view view_of(tenure_buffer buffer)
{
  struct tenure_buffer_view view;
  memset(&view, 0, sizeof view);
  view.size = sizeof view;
  CHECK_OK(tenure_buffer_view(buffer, &view));
  return view;
}

static inline uint64_t id_of(tenure_resource resource)
{
  uint64_t id = 0;
  CHECK_OK(tenure_resource_id(resource, &id));
  return id;
}

static inline uint64_t live_of(tenure_resource resource)
{
  tenure_info info;
  memset(&info, 0, sizeof info);
  info.size = sizeof info;
  CHECK_OK(tenure_resource_info(resource, &info));
  return info.live_bytes;
}

static inline void* destroy_buffer(void* handle)
{
  CHECK_OK(tenure_buffer_destroy(*(tenure_buffer*)handle));
  return NULL;
}

static inline void destroy_on_another_thread(tenure_buffer buffer)
{
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, destroy_buffer, &buffer) == 0);
  REQUIRE(pthread_join(thread, NULL) == 0);
}

#endif
