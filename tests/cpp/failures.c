/* SPDX-License-Identifier: Apache-2.0
 *
 * What fails, and what must not be harmed by it, in C: out of memory, callbacks, the driver, functions that never wait.
 */

#define _POSIX_C_SOURCE 200809L

#include "counting.h"

/* Rule 9: failure changes nothing, and only out of memory is out of memory. */
static void a_failed_growth_changes_nothing(void)
{
  ledger book;
  tenure_resource upstream = counting(&book), limit = 0;
  tenure_buffer buffer = 0, none = 0;
  struct tenure_buffer_view before, after;
  tenure_error error;
  REQUIRE_OK(tenure_limiting_create(upstream, 10000, &limit));
  REQUIRE_OK(tenure_buffer_create(4000, 0, TENURE_STREAM_LEGACY, limit, &buffer));
  before = view_of(buffer);
  CHECK_ERROR(tenure_buffer_resize(buffer, 50000, TENURE_STREAM_PER_THREAD), TENURE_ERROR_OUT_OF_MEMORY);
  error = check_last_error();
  CHECK_EQ(error.requested, 50000);
  CHECK_EQ(error.limit, 10000);
  CHECK(error.resource != NULL && strstr(error.resource, "limiting") != NULL);
  CHECK_ERROR(tenure_buffer_create(50000, 0, TENURE_STREAM_LEGACY, limit, &none), TENURE_ERROR_OUT_OF_MEMORY);
  CHECK(none == 0);
  after = view_of(buffer);
  CHECK(memcmp(&before, &after, sizeof before) == 0);
  CHECK_EQ(live_of(limit), 4000);
  CHECK_OK(tenure_buffer_destroy(buffer));
  CHECK_EQ(live_of(limit), 0);
  CHECK_OK(tenure_resource_release(limit));
  CHECK_OK(tenure_resource_release(upstream));
  CHECK_EQ(book.drops, 1);
}

static void no_bytes_call_nobody(void)
{
  ledger book;
  tenure_resource resource = counting(&book);
  tenure_buffer buffer     = 0;
  void* ptr                = &book;
  REQUIRE_OK(tenure_allocate(resource, 0, 0, TENURE_STREAM_LEGACY, &ptr));
  CHECK(ptr == NULL);
  CHECK_OK(tenure_deallocate(resource, NULL, 0, 0, TENURE_STREAM_LEGACY));
  REQUIRE_OK(tenure_buffer_create(0, 0, TENURE_STREAM_PER_THREAD, resource, &buffer));
  CHECK(view_of(buffer).ptr == NULL);
  CHECK_EQ(view_of(buffer).resource_id, id_of(resource));
  CHECK(view_of(buffer).stream.raw == TENURE_STREAM_PER_THREAD.raw);
  CHECK_EQ(book.allocations, 0);
  CHECK_OK(tenure_resource_release(resource));
  CHECK_EQ(book.drops, 0);
  CHECK_OK(tenure_buffer_resize(buffer, 10, TENURE_STREAM_LEGACY));
  CHECK_EQ(book.allocations, 1);
  CHECK_OK(tenure_buffer_close(buffer, NULL));
  CHECK_EQ(book.frees, 1);
  CHECK_OK(tenure_buffer_destroy(buffer));
  CHECK_EQ(book.drops, 1);
}

static void bytes_survive_growth_and_copies(void)
{
  ledger book;
  tenure_resource resource = counting(&book);
  tenure_buffer buffer = 0, copy = 0;
  unsigned char bytes[100], back[100];
  size_t i;
  for (i = 0; i < sizeof bytes; ++i) { bytes[i] = (unsigned char)(i * 7); }
  REQUIRE_OK(tenure_buffer_create(sizeof bytes, 0, TENURE_STREAM_LEGACY, resource, &buffer));
  CHECK_OK(tenure_copy_async(view_of(buffer).ptr, bytes, sizeof bytes, TENURE_STREAM_LEGACY));
  CHECK_OK(tenure_buffer_resize(buffer, 1 << 16, TENURE_STREAM_LEGACY));
  CHECK_OK(tenure_buffer_copy(buffer, TENURE_STREAM_LEGACY, TENURE_RESOURCE_CURRENT, &copy));
  CHECK(view_of(copy).resource_id != id_of(resource));
  memset(back, 0, sizeof back);
  CHECK_OK(tenure_copy_async(back, view_of(copy).ptr, sizeof back, TENURE_STREAM_LEGACY));
  CHECK_OK(tenure_stream_synchronize(TENURE_STREAM_LEGACY));
  CHECK(memcmp(bytes, back, sizeof bytes) == 0);
  CHECK_OK(tenure_buffer_resize(buffer, 10, TENURE_STREAM_LEGACY));
  CHECK(view_of(buffer).capacity >= 1 << 16);
  CHECK_OK(tenure_buffer_shrink_to_fit(buffer, TENURE_STREAM_LEGACY));
  CHECK(view_of(buffer).capacity < 1 << 16);
  CHECK_OK(tenure_buffer_destroy(buffer));
  CHECK_OK(tenure_buffer_destroy(copy));
  CHECK_OK(tenure_resource_release(resource));
  CHECK_EQ(book.allocations, book.frees);
  CHECK_EQ(book.drops, 1);
}

static int payload_released = 0;
static void release_payload(void* payload)
{
  CHECK(payload == &payload_released);
  payload_released++;
}

static tenure_status failing_allocate(void* context, tenure_request const* request, tenure_stream stream, void** out)
{
  (void)context, (void)request, (void)stream, (void)out;
  (void)tenure_error_set(TENURE_ERROR_CALLBACK, "this upstream never allocates", 77, &payload_released, release_payload);
  return TENURE_ERROR_CALLBACK;
}

/* Rule 7: what a callback says reaches the caller, through any stack. */
static void the_error_of_a_callback_comes_through(void)
{
  tenure_resource_vtable vtable;
  tenure_resource failing = 0, adaptor = 0;
  void *ptr = NULL, *payload = NULL;
  memset(&vtable, 0, sizeof vtable);
  vtable.size       = sizeof vtable;
  vtable.kind       = "failing";
  vtable.properties = TENURE_DEVICE_ACCESSIBLE;
  vtable.device     = -1;
  vtable.allocate   = failing_allocate;
  vtable.deallocate = counting_deallocate;
  REQUIRE_OK(tenure_callback_create(&vtable, NULL, &failing));
  REQUIRE_OK(tenure_statistics_create(failing, &adaptor));
  CHECK_ERROR(tenure_allocate(adaptor, 10, 0, TENURE_STREAM_LEGACY, &ptr), TENURE_ERROR_CALLBACK);
  CHECK(strstr(check_last_error().message, "never allocates") != NULL);
  CHECK_EQ(check_last_error().payload_kind, 77);
  CHECK_OK(tenure_error_take_payload(76, &payload));
  CHECK(payload == NULL);
  CHECK_OK(tenure_error_take_payload(77, &payload));
  CHECK(payload == &payload_released);
  CHECK_EQ(payload_released, 0);
  CHECK_ERROR(tenure_allocate(adaptor, 10, 0, TENURE_STREAM_LEGACY, &ptr), TENURE_ERROR_CALLBACK);
  CHECK_ERROR(tenure_allocate(TENURE_RESOURCE_NULL, 10, 0, TENURE_STREAM_LEGACY, &ptr), TENURE_ERROR_BAD_HANDLE);
  CHECK_EQ(payload_released, 1); /* the next error took its place */
  CHECK_OK(tenure_resource_release(adaptor));
  CHECK_OK(tenure_resource_release(failing));
}

/* Out of memory, misuse and a device fault are three different errors. */
static void a_failure_of_the_driver_is_told_apart(void)
{
  tenure_resource cuda = 0;
  tenure_buffer made   = 0;
  tenure_error error;
  uint32_t simulated = 0;
  uint64_t live;
  REQUIRE_OK(tenure_sim_active(&simulated));
  if (!simulated) { return; }
  REQUIRE_OK(tenure_cuda_resource(&cuda));
  live = live_of(cuda);
  CHECK_OK(tenure_sim_fail_next("cuMemAlloc", 2, 0)); /* CUDA_ERROR_OUT_OF_MEMORY */
  CHECK_ERROR(tenure_buffer_create(1000, 0, TENURE_STREAM_LEGACY, cuda, &made), TENURE_ERROR_OUT_OF_MEMORY);
  CHECK_EQ(check_last_error().requested, 1000);
  CHECK_OK(tenure_sim_fail_next("cuMemAlloc", 999, 0)); /* CUDA_ERROR_UNKNOWN */
  CHECK_ERROR(tenure_buffer_create(1000, 0, TENURE_STREAM_LEGACY, cuda, &made), TENURE_ERROR_CUDA);
  error = check_last_error();
  CHECK(error.cuda_code == 999);
  CHECK(error.cuda_name != NULL && strcmp(error.cuda_name, "CUDA_ERROR_UNKNOWN") == 0);
  CHECK(error.cuda_call != NULL && strstr(error.cuda_call, "cuMemAlloc") != NULL);
  CHECK_OK(tenure_sim_fail_clear());
  CHECK(made == 0);
  CHECK_EQ(live_of(cuda), live);
  CHECK_OK(tenure_buffer_create(1000, 0, TENURE_STREAM_LEGACY, cuda, &made));
  CHECK_OK(tenure_buffer_destroy(made));
  CHECK_OK(tenure_resource_release(cuda));
}

/* What never waits changes nothing when it would have to. */
static void try_functions_change_nothing_when_they_would_wait(void)
{
  ledger book;
  tenure_resource resource = counting(&book);
  tenure_buffer made       = 0;
  void* ptr                = NULL;
  tenure_status status;
  CHECK_ERROR(tenure_try_allocate(resource, 100, 0, TENURE_STREAM_LEGACY, &ptr), TENURE_ERROR_WOULD_BLOCK);
  CHECK_ERROR(tenure_buffer_try_create(100, 0, TENURE_STREAM_LEGACY, resource, &made), TENURE_ERROR_WOULD_BLOCK);
  CHECK(ptr == NULL && made == 0);
  CHECK_EQ(book.allocations, 0);
  REQUIRE_OK(tenure_buffer_create(100, 0, TENURE_STREAM_LEGACY, resource, &made));
  CHECK_ERROR(tenure_buffer_try_destroy(made), TENURE_ERROR_WOULD_BLOCK);
  CHECK_EQ(view_of(made).bytes, 100);
  CHECK_OK(tenure_buffer_destroy(made));
  /* The last reference: the closing is left to collect. */
  status = tenure_resource_try_release(resource);
  CHECK(status == TENURE_OK_COLLECT);
  CHECK_EQ(book.drops, 0);
  CHECK_OK(tenure_collect());
  CHECK_EQ(book.drops, 1);
}

int main(void)
{
  RUN(a_failed_growth_changes_nothing);
  RUN(no_bytes_call_nobody);
  RUN(bytes_survive_growth_and_copies);
  RUN(the_error_of_a_callback_comes_through);
  RUN(a_failure_of_the_driver_is_told_apart);
  RUN(try_functions_change_nothing_when_they_would_wait);
  return check_finish("failures.c", 0);
}
