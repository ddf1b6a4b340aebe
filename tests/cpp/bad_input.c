/* SPDX-License-Identifier: Apache-2.0
 *
 * Bad input from C: each wrong word gets the right status and a sentence, and nothing changes. The process is still the same
 * afterwards: that is checked at the end by doing the ordinary thing once more.
 */

#define _POSIX_C_SOURCE 200809L

#include "check.h"

#include <stdlib.h>

#define S TENURE_STREAM_LEGACY
#define INVALID TENURE_ERROR_INVALID_ARGUMENT
#define BAD TENURE_ERROR_BAD_HANDLE

static tenure_resource cuda, pool;
static tenure_buffer buffer;

static void set_up(void)
{
  REQUIRE_OK(tenure_cuda_resource(&cuda));
  REQUIRE_OK(tenure_pool_create(cuda, NULL, &pool));
  REQUIRE_OK(tenure_buffer_create(1000, 0, S, pool, &buffer));
}

static tenure_info figures(void)
{
  tenure_info info;
  memset(&info, 0, sizeof info);
  info.size = sizeof info;
  CHECK_OK(tenure_resource_info(pool, &info));
  return info;
}

static void null_outputs(void)
{
  tenure_owner const owner = {&pool, NULL};
  CHECK_STATUS(tenure_error_get(NULL), INVALID); /* the last error stays what it was */
  CHECK_ERROR(tenure_error_take_payload(1, NULL), INVALID);
  CHECK_ERROR(tenure_misuse_count(NULL), INVALID);
  CHECK_ERROR(tenure_describe(NULL), INVALID);
  CHECK_ERROR(tenure_device_count(NULL), INVALID);
  CHECK_ERROR(tenure_device_get_current(NULL), INVALID);
  CHECK_ERROR(tenure_device_info(0, NULL), INVALID);
  CHECK_ERROR(tenure_stream_create(-1, 0, NULL), INVALID);
  CHECK_ERROR(tenure_stream_wrap(S.raw, -1, owner, NULL), INVALID);
  CHECK_ERROR(tenure_stream_immortal(S.raw, -1, NULL), INVALID);
  CHECK_ERROR(tenure_stream_device(S, NULL), INVALID);
  CHECK_ERROR(tenure_stream_query(S, NULL), INVALID);
  CHECK_ERROR(tenure_cuda_resource(NULL), INVALID);
  CHECK_ERROR(tenure_managed_resource(NULL), INVALID);
  CHECK_ERROR(tenure_pinned_resource(NULL), INVALID);
  CHECK_ERROR(tenure_system_resource(NULL), INVALID);
  CHECK_ERROR(tenure_async_resource_create(NULL, NULL), INVALID);
  CHECK_ERROR(tenure_pool_create(cuda, NULL, NULL), INVALID);
  CHECK_ERROR(tenure_limiting_create(cuda, 10, NULL), INVALID);
  CHECK_ERROR(tenure_statistics_create(cuda, NULL), INVALID);
  CHECK_ERROR(tenure_resource_retain(cuda, NULL), INVALID);
  CHECK_ERROR(tenure_resource_retain_light(cuda, NULL), INVALID);
  CHECK_ERROR(tenure_resource_id(cuda, NULL), INVALID);
  CHECK_ERROR(tenure_resource_from_id(1, NULL), INVALID);
  CHECK_ERROR(tenure_resource_same(cuda, cuda, NULL), INVALID);
  CHECK_ERROR(tenure_resource_kind(cuda, NULL), INVALID);
  CHECK_ERROR(tenure_resource_device(cuda, NULL), INVALID);
  CHECK_ERROR(tenure_resource_properties(cuda, NULL), INVALID);
  CHECK_ERROR(tenure_resource_info(cuda, NULL), INVALID);
  CHECK_ERROR(tenure_resource_upstream(cuda, NULL), INVALID);
  CHECK_ERROR(tenure_resource_property(pool, "pool_size", NULL), INVALID);
  CHECK_ERROR(tenure_resource_owns(cuda, &pool, NULL), INVALID);
  CHECK_ERROR(tenure_callback_context(cuda, NULL, NULL), INVALID);
  CHECK_ERROR(tenure_allocate(pool, 10, 0, S, NULL), INVALID);
  CHECK_ERROR(tenure_try_allocate(pool, 10, 0, S, NULL), INVALID);
  CHECK_ERROR(tenure_allocate_sync(pool, 10, 0, NULL), INVALID);
  CHECK_ERROR(tenure_owner_of(&pool, NULL, NULL, NULL), INVALID);
  CHECK_ERROR(tenure_current_get(-1, NULL), INVALID);
  CHECK_ERROR(tenure_scope_enter(-1, cuda, NULL), INVALID);
  CHECK_ERROR(tenure_buffer_create(10, 0, S, pool, NULL), INVALID);
  CHECK_ERROR(tenure_buffer_try_create(10, 0, S, pool, NULL), INVALID);
  CHECK_ERROR(tenure_buffer_detach(buffer, NULL), INVALID);
  CHECK_ERROR(tenure_buffer_view(buffer, NULL), INVALID);
  CHECK_ERROR(tenure_buffer_resource(buffer, NULL), INVALID);
  CHECK_ERROR(tenure_buffer_copy(buffer, S, pool, NULL), INVALID);
  CHECK_ERROR(tenure_sim_violations(NULL), INVALID);
  CHECK_ERROR(tenure_driver_calls(NULL, NULL), INVALID);
  CHECK_ERROR(tenure_sim_active(NULL), INVALID);
  CHECK_ERROR(tenure_device_used(0, NULL), INVALID);
  CHECK_ERROR(tenure_low_memory_add(NULL, owner, NULL), INVALID);
  CHECK_ERROR(tenure_low_memory_remove(0), BAD);
  CHECK_ERROR(tenure_low_memory_remove(12345), BAD);
  CHECK_ERROR(tenure_low_memory(-2, 0, NULL), INVALID);
  CHECK_ERROR(tenure_shared_arena_create(NULL), INVALID);
  CHECK_ERROR(tenure_capture_scope_enter(S, 0, NULL), INVALID);
  CHECK_ERROR(tenure_sim_capture_end(S, NULL), INVALID);
  CHECK_OK(tenure_text_free(NULL)); /* as free(NULL) */
}

static void resources_that_are_none(void)
{
  tenure_resource gone = 0, out = 0;
  tenure_resource candidates[6];
  size_t i;
  REQUIRE_OK(tenure_statistics_create(cuda, &gone));
  REQUIRE_OK(tenure_resource_release(gone));
  candidates[0] = TENURE_RESOURCE_NULL;
  candidates[1] = gone;
  candidates[2] = 42;
  candidates[3] = UINT64_C(1) << 40;
  candidates[4] = TENURE_RESOURCE_CURRENT - 1;
  candidates[5] = (tenure_resource)(uintptr_t)&gone;
  for (i = 0; i < sizeof candidates / sizeof *candidates; ++i) {
    tenure_resource const none = candidates[i];
    void* ptr                  = &gone;
    tenure_buffer made         = 0;
    tenure_scope scope         = 0;
    uint64_t id                = 0;
    size_t released            = 0;
    CHECK_ERROR(tenure_allocate(none, 10, 0, S, &ptr), BAD);
    CHECK_ERROR(tenure_allocate_sync(none, 10, 0, &ptr), BAD);
    CHECK(ptr == &gone);
    CHECK_ERROR(tenure_deallocate(none, &gone, 10, 0, S), BAD);
    CHECK_ERROR(tenure_resource_release(none), BAD);
    CHECK_ERROR(tenure_resource_retain(none, &out), BAD);
    CHECK_ERROR(tenure_resource_retain_light(none, &out), BAD);
    CHECK_ERROR(tenure_resource_id(none, &id), BAD);
    CHECK_ERROR(tenure_resource_trim(none, 0, &released), BAD);
    CHECK_ERROR(tenure_pool_create(none, NULL, &out), BAD);
    CHECK_ERROR(tenure_limiting_create(none, 10, &out), BAD);
    CHECK_ERROR(tenure_statistics_create(none, &out), BAD);
    CHECK_ERROR(tenure_buffer_create(10, 0, S, none, &made), BAD);
    CHECK_ERROR(tenure_buffer_create(0, 0, S, none, &made), BAD);
    CHECK_ERROR(tenure_buffer_adopt(&gone, 10, 0, S, none, &made), BAD);
    CHECK_ERROR(tenure_buffer_copy(buffer, S, none, &made), BAD);
    CHECK_ERROR(tenure_current_set(-1, none, &out), BAD);
    CHECK_ERROR(tenure_scope_enter(-1, none, &scope), BAD);
    CHECK(out == 0 && made == 0 && scope == 0);
  }
}

static void buffers_that_are_none(void)
{
  tenure_buffer gone = 0, out = 0;
  tenure_buffer candidates[5];
  size_t i;
  REQUIRE_OK(tenure_buffer_create(10, 0, S, cuda, &gone));
  REQUIRE_OK(tenure_buffer_destroy(gone));
  candidates[0] = 0;
  candidates[1] = gone;
  candidates[2] = 42;
  candidates[3] = UINT64_MAX;
  candidates[4] = cuda ^ UINT64_C(0x5555555500000000);
  for (i = 0; i < sizeof candidates / sizeof *candidates; ++i) {
    tenure_buffer const none = candidates[i];
    struct tenure_buffer_view view;
    tenure_detached detached;
    tenure_resource resource = 0;
    memset(&view, 0, sizeof view);
    view.size = sizeof view;
    memset(&detached, 0, sizeof detached);
    detached.size = sizeof detached;
    CHECK_ERROR(tenure_buffer_destroy(none), BAD);
    CHECK_ERROR(tenure_buffer_view(none, &view), BAD);
    CHECK_ERROR(tenure_buffer_close(none, NULL), BAD);
    CHECK_ERROR(tenure_buffer_detach(none, &detached), BAD);
    CHECK_ERROR(tenure_buffer_resource(none, &resource), BAD);
    CHECK_ERROR(tenure_buffer_resize(none, 10, S), BAD);
    CHECK_ERROR(tenure_buffer_reserve(none, 10, S), BAD);
    CHECK_ERROR(tenure_buffer_shrink_to_fit(none, S), BAD);
    CHECK_ERROR(tenure_buffer_copy(none, S, cuda, &out), BAD);
    CHECK_ERROR(tenure_buffer_set_stream(none, S), BAD);
    CHECK_ERROR(tenure_buffer_record_stream(none, S), BAD);
    CHECK(out == 0 && resource == 0 && detached.ptr == NULL);
  }
}

static void other_handles_that_are_none(void)
{
  tenure_stream stream = {NULL, 12345};
  tenure_stream own;
  tenure_buffer made = 0;
  uint32_t done      = 0;
  void* ptr          = NULL;
  CHECK_ERROR(tenure_stream_retain(0), BAD);
  CHECK_ERROR(tenure_stream_release(0), BAD);
  CHECK_ERROR(tenure_stream_release(12345), BAD);
  CHECK_ERROR(tenure_stream_synchronize(stream), BAD);
  CHECK_ERROR(tenure_stream_query(stream, &done), BAD);
  CHECK_ERROR(tenure_allocate(pool, 10, 0, stream, &ptr), BAD);
  CHECK_ERROR(tenure_buffer_create(10, 0, stream, pool, &made), BAD);
  CHECK_ERROR(tenure_buffer_set_stream(buffer, stream), BAD);
  REQUIRE_OK(tenure_stream_create(-1, 1, &own));
  REQUIRE_OK(tenure_stream_release(own.object));
  CHECK_ERROR(tenure_stream_release(own.object), BAD);
  CHECK_ERROR(tenure_buffer_create(10, 0, own, pool, &made), BAD);
  CHECK_ERROR(tenure_scope_exit(0), BAD);
  CHECK_ERROR(tenure_scope_exit(999), BAD);
  CHECK_ERROR(tenure_listener_remove(0), BAD);
  CHECK_ERROR(tenure_listener_remove(999), BAD);
  CHECK(made == 0 && ptr == NULL);
}

static void sizes_that_cannot_be(void)
{
  size_t const sizes[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 255, SIZE_MAX - 4096, SIZE_MAX / 2 + 1, SIZE_MAX / 2};
  tenure_info const before = figures();
  tenure_info after;
  size_t i;
  for (i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
    tenure_resource const resources[] = {cuda, pool};
    size_t k;
    for (k = 0; k < 2; ++k) {
      void* ptr            = NULL;
      tenure_buffer made   = 0;
      tenure_status status = tenure_allocate(resources[k], sizes[i], 0, S, &ptr);
      CHECK(status == INVALID || status == TENURE_ERROR_OUT_OF_MEMORY);
      status = tenure_allocate_sync(resources[k], sizes[i], 4096, &ptr);
      CHECK(status == INVALID || status == TENURE_ERROR_OUT_OF_MEMORY);
      status = tenure_buffer_create(sizes[i], 0, S, resources[k], &made);
      CHECK(status == INVALID || status == TENURE_ERROR_OUT_OF_MEMORY);
      CHECK(check_last_error().message != NULL && strlen(check_last_error().message) > 15);
      CHECK(ptr == NULL && made == 0);
    }
    CHECK(tenure_buffer_resize(buffer, sizes[i], S) > 0);
    CHECK(tenure_buffer_reserve(buffer, sizes[i], S) > 0);
  }
  after = figures();
  CHECK(memcmp(&before, &after, sizeof before) == 0);
}

static void alignments_that_cannot_be(void)
{
  size_t const alignments[] = {3, 5, 255, 257, SIZE_MAX, (size_t)1 << 63, (size_t)1 << 48};
  void* ptr                 = NULL;
  size_t i;
  for (i = 0; i < sizeof alignments / sizeof *alignments; ++i) {
    tenure_buffer made = 0;
    CHECK_ERROR(tenure_allocate(pool, 100, alignments[i], S, &ptr), INVALID);
    CHECK_ERROR(tenure_allocate(cuda, 100, alignments[i], S, &ptr), INVALID);
    CHECK_ERROR(tenure_buffer_create(100, alignments[i], S, pool, &made), INVALID);
    CHECK(ptr == NULL && made == 0);
  }
  for (i = 1; i <= 4096; i *= 2) {
    REQUIRE_OK(tenure_allocate(pool, 100, i, S, &ptr));
    CHECK(((uintptr_t)ptr & (i - 1)) == 0);
    CHECK_OK(tenure_deallocate(pool, ptr, 100, i, S));
  }
  /* 0 is 256. */
  REQUIRE_OK(tenure_allocate(pool, 100, 0, S, &ptr));
  CHECK(((uintptr_t)ptr & 255) == 0);
  CHECK_OK(tenure_deallocate(pool, ptr, 100, 256, S));
}

static void devices_that_are_not_there(void)
{
  int32_t const devices[] = {99, -2, INT32_MIN, INT32_MAX};
  size_t i;
  for (i = 0; i < sizeof devices / sizeof *devices; ++i) {
    int32_t const device = devices[i];
    int32_t current      = -7;
    tenure_resource out  = 0;
    tenure_scope scope   = 0;
    tenure_stream stream = {NULL, 0};
    uint64_t used        = 0;
    struct tenure_device_info info;
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    CHECK_ERROR(tenure_device_set_current(device), INVALID);
    CHECK_ERROR(tenure_device_info(device, &info), INVALID);
    CHECK_ERROR(tenure_device_synchronize(device), INVALID);
    CHECK_ERROR(tenure_stream_create(device, 0, &stream), INVALID);
    CHECK_ERROR(tenure_current_get(device, &out), INVALID);
    CHECK_ERROR(tenure_current_set(device, pool, &out), INVALID);
    CHECK_ERROR(tenure_current_reset(device, &out), INVALID);
    CHECK_ERROR(tenure_scope_enter(device, pool, &scope), INVALID);
    CHECK_ERROR(tenure_device_used(device, &used), INVALID);
    CHECK(out == 0 && scope == 0 && stream.object == 0);
    CHECK_OK(tenure_device_get_current(&current));
    CHECK(current == 0);
  }
}

static void captures_that_are_none(void)
{
  tenure_stream const mine     = {(void*)(uintptr_t)2, 0};
  tenure_shared_arena gone     = 0;
  tenure_capture_scope scope   = 0;
  tenure_capture_scope outside = 0;
  tenure_graph graph           = 0;
  REQUIRE_OK(tenure_shared_arena_create(&gone));
  REQUIRE_OK(tenure_capture_scope_enter(mine, gone, &outside));
  REQUIRE_OK(tenure_shared_arena_release(gone));
  CHECK_ERROR(tenure_shared_arena_release(gone), BAD);
  CHECK_ERROR(tenure_shared_arena_release(0), BAD);
  CHECK_ERROR(tenure_shared_arena_release(buffer), BAD);
  CHECK_ERROR(tenure_capture_scope_enter(mine, gone, &scope), BAD);
  CHECK_ERROR(tenure_capture_scope_enter(S, 0, &scope), INVALID);
  CHECK(scope == 0);
  CHECK_OK(tenure_capture_scope_exit(outside));
  CHECK_ERROR(tenure_capture_scope_exit(outside), BAD);
  CHECK_ERROR(tenure_capture_scope_exit(0), BAD);
  CHECK_ERROR(tenure_sim_capture_begin(mine, 3), INVALID);
  CHECK_ERROR(tenure_sim_capture_end(mine, &graph), TENURE_ERROR_CUDA);
  CHECK_ERROR(tenure_sim_graph_launch(graph, mine), BAD);
  CHECK_ERROR(tenure_sim_graph_destroy(graph), BAD);
}

static void streams_of_another_device(void)
{
  int32_t count      = 0;
  tenure_buffer made = 0;
  tenure_stream there;
  void* ptr = NULL;
  REQUIRE_OK(tenure_device_count(&count));
  if (count < 2) { return; }
  REQUIRE_OK(tenure_stream_create(1, 1, &there));
  CHECK_ERROR(tenure_allocate(pool, 100, 0, there, &ptr), INVALID);
  CHECK_ERROR(tenure_buffer_create(100, 0, there, pool, &made), INVALID);
  CHECK_ERROR(tenure_buffer_set_stream(buffer, there), INVALID);
  CHECK_ERROR(tenure_buffer_resize(buffer, 1 << 20, there), INVALID);
  CHECK(ptr == NULL && made == 0);
  CHECK_OK(tenure_stream_release(there.object));
}

static void structures_of_a_wrong_size(void)
{
  tenure_error error;
  tenure_info info;
  tenure_pool_options options;
  tenure_resource_vtable vtable;
  struct tenure_buffer_view view;
  tenure_resource made = 0;
  /* An old client knows less: nothing is written beyond what it knows. */
  CHECK_ERROR(tenure_resource_release(TENURE_RESOURCE_NULL), BAD);
  memset(&error, 0x55, sizeof error);
  error.size = offsetof(tenure_error, message) + sizeof error.message;
  CHECK_OK(tenure_error_get(&error));
  CHECK(error.message != NULL);
  CHECK_EQ(error.requested, UINT64_C(0x5555555555555555));
  memset(&view, 0x55, sizeof view);
  view.size = offsetof(struct tenure_buffer_view, capacity);
  CHECK_OK(tenure_buffer_view(buffer, &view));
  CHECK_EQ(view.bytes, 1000);
  CHECK_EQ(view.capacity, UINT64_C(0x5555555555555555));
  /* A size of 0 was forgotten. */
  memset(&info, 0, sizeof info);
  CHECK_ERROR(tenure_resource_info(pool, &info), INVALID);
  memset(&options, 0, sizeof options);
  CHECK_ERROR(tenure_pool_create(cuda, &options, &made), INVALID);
  memset(&vtable, 0, sizeof vtable);
  CHECK_ERROR(tenure_callback_create(&vtable, NULL, &made), INVALID);
  vtable.size = sizeof vtable;
  vtable.kind = "without functions";
  CHECK_ERROR(tenure_callback_create(&vtable, NULL, &made), INVALID);
  CHECK_ERROR(tenure_callback_create(NULL, NULL, &made), INVALID);
  /* Options that contradict themselves. */
  options.size          = sizeof options;
  options.initial_bytes = 2 << 20;
  options.maximum_bytes = 1 << 20;
  CHECK_ERROR(tenure_pool_create(cuda, &options, &made), INVALID);
  memset(&options, 0, sizeof options);
  options.size   = sizeof options;
  options.device = 99;
  CHECK_ERROR(tenure_pool_create(cuda, &options, &made), INVALID);
  CHECK(made == 0);
}

static void words_that_are_not_known(void)
{
  uint64_t value = 9;
  tenure_statistics counters;
  tenure_text text = {NULL, 0};
  memset(&counters, 0, sizeof counters);
  counters.size = sizeof counters;
  CHECK(tenure_resource_property(pool, "no such thing", &value) > 0);
  CHECK_ERROR(tenure_resource_property(pool, NULL, &value), INVALID);
  CHECK_EQ(value, 9);
  CHECK_ERROR(tenure_statistics_get(pool, &counters), TENURE_ERROR_UNSUPPORTED);
  CHECK_ERROR(tenure_statistics_pop(pool, &counters), TENURE_ERROR_UNSUPPORTED);
  CHECK(tenure_replay(NULL, NULL, NULL, &text) > 0);
  CHECK(tenure_replay("not json", NULL, NULL, &text) > 0);
  CHECK(tenure_replay("{\"log\": \"/nonexistent/log.csv\", \"resource\": \"pool\"}", NULL, NULL, &text) > 0);
  CHECK(text.data == NULL);
  CHECK_OK(tenure_text_free(&text));
}

static void null_memory_in_copies(void)
{
  char local[8] = {0};
  CHECK_ERROR(tenure_copy_async(NULL, local, 8, S), INVALID);
  CHECK_ERROR(tenure_copy_async(local, NULL, 8, S), INVALID);
  CHECK_ERROR(tenure_fill_async(NULL, 0, 8, S), INVALID);
  CHECK_OK(tenure_copy_async(NULL, NULL, 0, S));
  CHECK_OK(tenure_fill_async(NULL, 0, 0, S));
}

static void counters_that_were_not_pushed(void)
{
  tenure_resource statistics = 0;
  REQUIRE_OK(tenure_statistics_create(cuda, &statistics));
  CHECK(tenure_statistics_pop(statistics, NULL) > 0);
  CHECK_OK(tenure_statistics_push(statistics, NULL));
  CHECK_OK(tenure_statistics_pop(statistics, NULL));
  CHECK_OK(tenure_resource_release(statistics));
}

static void freeing_twice(void)
{
  tenure_resource statistics = 0;
  tenure_buffer made         = 0;
  REQUIRE_OK(tenure_buffer_create(10, 0, S, pool, &made));
  CHECK_OK(tenure_buffer_destroy(made));
  CHECK_ERROR(tenure_buffer_destroy(made), BAD);
  REQUIRE_OK(tenure_statistics_create(cuda, &statistics));
  CHECK_OK(tenure_resource_release(statistics));
  CHECK_ERROR(tenure_resource_release(statistics), BAD);
}

static void batches_that_cannot_be(void)
{
  size_t const sizes[]    = {100, 200};
  size_t const too_much[] = {100, SIZE_MAX};
  size_t const counts[]   = {SIZE_MAX, SIZE_MAX / 8 + 1, (size_t)1 << 60};
  tenure_info const before = figures();
  tenure_info after;
  void* ptrs[2]         = {&after, &after};
  tenure_buffer made[2] = {7, 7};
  size_t wrong          = 99;
  size_t i;
  CHECK_ERROR(tenure_allocate_many(pool, 2, NULL, 0, S, ptrs), INVALID);
  CHECK_ERROR(tenure_allocate_many(pool, 2, sizes, 0, S, NULL), INVALID);
  CHECK_ERROR(tenure_allocate_many(pool, 2, sizes, 3, S, ptrs), INVALID);
  CHECK(ptrs[0] == NULL && ptrs[1] == NULL);
  CHECK_ERROR(tenure_allocate_many(pool, 2, too_much, 0, S, ptrs), TENURE_ERROR_OUT_OF_MEMORY);
  CHECK_ERROR(tenure_allocate_many(0, 2, sizes, 0, S, ptrs), TENURE_ERROR_BAD_HANDLE);
  CHECK(ptrs[0] == NULL && ptrs[1] == NULL);
  CHECK_ERROR(tenure_buffer_create_many(2, NULL, 0, S, pool, made), INVALID);
  CHECK_ERROR(tenure_buffer_create_many(2, sizes, 0, S, pool, NULL), INVALID);
  CHECK_ERROR(tenure_buffer_create_many(2, too_much, 0, S, pool, made), TENURE_ERROR_OUT_OF_MEMORY);
  CHECK(made[0] == 0 && made[1] == 0);
  for (i = 0; i < sizeof counts / sizeof *counts; ++i) {
    CHECK_ERROR(tenure_allocate_many(pool, counts[i], sizes, 0, S, ptrs), INVALID);
    CHECK_ERROR(tenure_deallocate_many(pool, counts[i], ptrs, sizes, 0, S, &wrong), INVALID);
    CHECK(wrong == counts[i]);
    CHECK_ERROR(tenure_buffer_create_many(counts[i], sizes, 0, S, pool, made), INVALID);
  }
  CHECK_OK(tenure_allocate_many(pool, 0, NULL, 0, S, NULL));
  CHECK_OK(tenure_deallocate_many(pool, 0, NULL, NULL, 0, S, NULL));
  CHECK_OK(tenure_buffer_create_many(0, NULL, 0, S, pool, NULL));
  REQUIRE_OK(tenure_allocate_many(pool, 2, sizes, 0, S, ptrs));
  CHECK_ERROR(tenure_deallocate_many(pool, 2, NULL, sizes, 0, S, &wrong), INVALID);
  CHECK(wrong == 2);
  CHECK_ERROR(tenure_deallocate_many(pool, 2, ptrs, NULL, 0, S, NULL), INVALID);
  CHECK_ERROR(tenure_deallocate_many(pool, 2, ptrs, sizes, 5, S, NULL), INVALID);
  CHECK_ERROR(tenure_deallocate_many(0, 2, ptrs, sizes, 0, S, NULL), TENURE_ERROR_BAD_HANDLE);
  CHECK_OK(tenure_deallocate_many(pool, 2, ptrs, sizes, 0, S, &wrong));
  CHECK(wrong == 2);
  after = figures();
  CHECK_EQ(after.live_bytes, before.live_bytes);
  CHECK_EQ(after.live_count, before.live_count);
}

static void the_ordinary_thing_still_works(void)
{
  struct tenure_buffer_view view;
  char back[4] = {0};
  tenure_info info;
  memset(&view, 0, sizeof view);
  view.size = sizeof view;
  CHECK_OK(tenure_buffer_view(buffer, &view));
  CHECK_EQ(view.bytes, 1000);
  CHECK_OK(tenure_fill_async(view.ptr, 9, 1000, S));
  CHECK_OK(tenure_copy_async(back, view.ptr, 4, S));
  CHECK_OK(tenure_stream_synchronize(S));
  CHECK(back[0] == 9 && back[3] == 9);
  info = figures();
  CHECK_EQ(info.live_count, 1);
  CHECK_OK(tenure_buffer_destroy(buffer));
  info = figures();
  CHECK_EQ(info.live_bytes, 0);
  CHECK_OK(tenure_resource_release(pool));
  CHECK_OK(tenure_resource_release(cuda));
}

int main(void)
{
  /* A second device, where the machine is simulated; elsewhere this is refused, and what there is, is used. */
  (void)tenure_sim_configure(2, 0);
  RUN(set_up);
  if (check_failures == 0) {
    RUN(null_outputs);
    RUN(resources_that_are_none);
    RUN(buffers_that_are_none);
    RUN(other_handles_that_are_none);
    RUN(sizes_that_cannot_be);
    RUN(alignments_that_cannot_be);
    RUN(devices_that_are_not_there);
    RUN(captures_that_are_none);
    RUN(streams_of_another_device);
    RUN(structures_of_a_wrong_size);
    RUN(words_that_are_not_known);
    RUN(null_memory_in_copies);
    RUN(counters_that_were_not_pushed);
    RUN(freeing_twice);
    RUN(batches_that_cannot_be);
    RUN(the_ordinary_thing_still_works);
  }
  return check_finish("bad_input.c", 0);
}
