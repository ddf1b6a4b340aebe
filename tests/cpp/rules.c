/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules of ownership in C: who frees, when, and what a wrong word gets.
 */

#define _POSIX_C_SOURCE 200809L

#include <stddef.h>

#include "counting.h"

/* Rule 1: a resource lives while a reference or an allocation of it lives. */
static void a_buffer_outlives_the_references_to_its_resource(void)
{
  ledger book;
  tenure_resource upstream = counting(&book), pool = 0;
  tenure_buffer buffer = 0;
  REQUIRE_OK(tenure_pool_create(upstream, NULL, &pool));
  REQUIRE_OK(tenure_buffer_create(1000, 0, TENURE_STREAM_LEGACY, pool, &buffer));
  CHECK_OK(tenure_resource_release(upstream));
  CHECK_OK(tenure_resource_release(pool));
  CHECK_EQ(book.drops, 0);
  CHECK(view_of(buffer).ptr != NULL);
  CHECK_EQ(view_of(buffer).bytes, 1000);
  CHECK_OK(tenure_copy_async(view_of(buffer).ptr, &book, sizeof book, TENURE_STREAM_LEGACY));
  CHECK_OK(tenure_stream_synchronize(TENURE_STREAM_LEGACY));
  CHECK_OK(tenure_buffer_destroy(buffer));
  CHECK_OK(tenure_collect());
  CHECK_EQ(book.drops, 1);
  CHECK_EQ(book.live_bytes, 0);
  CHECK_EQ(book.allocations, book.frees);
}

static void a_raw_allocation_keeps_its_resource(void)
{
  ledger book;
  tenure_resource resource = counting(&book), again = 0;
  uint64_t const id = id_of(resource);
  void* ptr         = NULL;
  REQUIRE_OK(tenure_allocate(resource, 300, 0, TENURE_STREAM_LEGACY, &ptr));
  CHECK(((uintptr_t)ptr & 255) == 0);
  CHECK_OK(tenure_resource_release(resource));
  CHECK_EQ(book.drops, 0);
  REQUIRE_OK(tenure_resource_from_id(id, &again));
  REQUIRE(again != TENURE_RESOURCE_NULL);
  CHECK_OK(tenure_deallocate(again, ptr, 300, 0, TENURE_STREAM_LEGACY));
  CHECK_EQ(book.frees, 1);
  CHECK_OK(tenure_resource_release(again));
  CHECK_EQ(book.drops, 1);
  CHECK_OK(tenure_resource_from_id(id, &again));
  CHECK(again == TENURE_RESOURCE_NULL);
}

static void an_adaptor_keeps_its_upstream(void)
{
  ledger book;
  tenure_resource upstream = counting(&book), limit = 0, statistics = 0, found = 0;
  uint32_t same = 0;
  REQUIRE_OK(tenure_limiting_create(upstream, 1 << 20, &limit));
  REQUIRE_OK(tenure_statistics_create(limit, &statistics));
  CHECK_OK(tenure_resource_release(limit));
  CHECK_EQ(book.drops, 0);
  REQUIRE_OK(tenure_resource_upstream(statistics, &limit));
  REQUIRE_OK(tenure_resource_upstream(limit, &found));
  CHECK_OK(tenure_resource_same(found, upstream, &same));
  CHECK_EQ(same, 1);
  CHECK_OK(tenure_resource_release(found));
  CHECK_OK(tenure_resource_release(limit));
  CHECK_OK(tenure_resource_release(upstream));
  CHECK_EQ(book.drops, 0);
  CHECK_OK(tenure_resource_release(statistics));
  CHECK_EQ(book.drops, 1);
}

/* Rule 2: a wrong free is an error, and nothing happens. */
static void a_wrong_free_changes_nothing(void)
{
  ledger mine, theirs;
  tenure_resource owner = counting(&mine), other = counting(&theirs);
  char local = 0;
  void* ptr  = NULL;
  tenure_error error;
  REQUIRE_OK(tenure_allocate(owner, 1000, 0, TENURE_STREAM_LEGACY, &ptr));

  CHECK_ERROR(tenure_deallocate(other, ptr, 1000, 0, TENURE_STREAM_LEGACY), TENURE_ERROR_OWNERSHIP);
  error = check_last_error();
  CHECK_EQ(error.ptr, (uintptr_t)ptr);
  CHECK_EQ(error.bytes, 1000);
  CHECK_EQ(error.asked, id_of(other));
  CHECK_ERROR(tenure_deallocate(owner, ptr, 5000, 0, TENURE_STREAM_LEGACY), TENURE_ERROR_OWNERSHIP);
  CHECK_EQ(check_last_error().misuse_kind, 4);
  CHECK_ERROR(tenure_deallocate(owner, (char*)ptr + 256, 1000, 0, TENURE_STREAM_LEGACY), TENURE_ERROR_OWNERSHIP);
  CHECK_ERROR(tenure_deallocate(owner, &local, 1000, 0, TENURE_STREAM_LEGACY), TENURE_ERROR_OWNERSHIP);
  CHECK_EQ(mine.frees, 0);
  CHECK_EQ(theirs.frees, 0);
  CHECK_EQ(live_of(owner), 1000);

  CHECK_OK(tenure_deallocate(owner, ptr, 1000, 0, TENURE_STREAM_LEGACY));
  CHECK_EQ(mine.frees, 1);
  CHECK_ERROR(tenure_deallocate(owner, ptr, 1000, 0, TENURE_STREAM_LEGACY), TENURE_ERROR_OWNERSHIP);
  CHECK_EQ(mine.frees, 1);
  CHECK_OK(tenure_resource_release(owner));
  CHECK_OK(tenure_resource_release(other));
  CHECK_EQ(mine.drops + theirs.drops, 2);
}

static void a_wrong_free_to_a_pool_changes_nothing(void)
{
  tenure_resource cuda = 0, first = 0, second = 0;
  void* ptr = NULL;
  uint64_t live;
  REQUIRE_OK(tenure_cuda_resource(&cuda));
  REQUIRE_OK(tenure_pool_create(cuda, NULL, &first));
  REQUIRE_OK(tenure_pool_create(cuda, NULL, &second));
  REQUIRE_OK(tenure_allocate(first, 4096, 0, TENURE_STREAM_LEGACY, &ptr));
  live = live_of(first);
  CHECK_ERROR(tenure_deallocate(second, ptr, 4096, 0, TENURE_STREAM_LEGACY), TENURE_ERROR_OWNERSHIP);
  CHECK_ERROR(tenure_deallocate(cuda, ptr, 4096, 0, TENURE_STREAM_LEGACY), TENURE_ERROR_OWNERSHIP);
  CHECK_ERROR(tenure_deallocate(first, ptr, 1 << 20, 0, TENURE_STREAM_LEGACY), TENURE_ERROR_OWNERSHIP);
  CHECK_ERROR(tenure_deallocate(first, (char*)ptr + 512, 4096, 0, TENURE_STREAM_LEGACY), TENURE_ERROR_OWNERSHIP);
  CHECK_EQ(live_of(first), live);
  CHECK_OK(tenure_deallocate(first, ptr, 4096, 0, TENURE_STREAM_LEGACY));
  CHECK_ERROR(tenure_deallocate(first, ptr, 4096, 0, TENURE_STREAM_LEGACY), TENURE_ERROR_OWNERSHIP);
  CHECK_EQ(live_of(first), 0);
  CHECK_OK(tenure_resource_release(first));
  CHECK_OK(tenure_resource_release(second));
  CHECK_OK(tenure_resource_release(cuda));
}

/* Rule 3: taking ownership carries provenance. */
static void adoption_is_refused_for_pointers_of_others(void)
{
  ledger mine, theirs;
  tenure_resource owner = counting(&mine), other = counting(&theirs);
  tenure_buffer buffer  = 0;
  void* ptr             = NULL;
  void* foreign         = malloc(1000);
  REQUIRE(foreign != NULL);
  REQUIRE_OK(tenure_allocate(owner, 1000, 0, TENURE_STREAM_LEGACY, &ptr));
  CHECK_ERROR(tenure_buffer_adopt(foreign, 1000, 0, TENURE_STREAM_LEGACY, owner, &buffer), TENURE_ERROR_OWNERSHIP);
  CHECK_ERROR(tenure_buffer_adopt(ptr, 1000, 0, TENURE_STREAM_LEGACY, other, &buffer), TENURE_ERROR_OWNERSHIP);
  CHECK_ERROR(tenure_buffer_adopt(ptr, 9000, 0, TENURE_STREAM_LEGACY, owner, &buffer), TENURE_ERROR_OWNERSHIP);
  CHECK(buffer == 0);
  REQUIRE_OK(tenure_buffer_adopt(ptr, 1000, 0, TENURE_STREAM_LEGACY, owner, &buffer));
  CHECK(view_of(buffer).ptr == ptr);
  CHECK_EQ(view_of(buffer).resource_id, id_of(owner));
  CHECK_OK(tenure_resource_release(owner));
  CHECK_EQ(mine.frees, 0);
  CHECK_OK(tenure_buffer_destroy(buffer));
  CHECK_EQ(mine.frees, 1);
  CHECK_EQ(mine.drops, 1);
  CHECK_OK(tenure_resource_release(other));
  free(foreign);
}

static void detaching_and_adopting_are_inverse(void)
{
  ledger book;
  tenure_resource resource = counting(&book);
  tenure_buffer buffer     = 0;
  tenure_detached detached;
  void* ptr;
  REQUIRE_OK(tenure_buffer_create(500, 512, TENURE_STREAM_PER_THREAD, resource, &buffer));
  ptr = view_of(buffer).ptr;
  CHECK_OK(tenure_resource_release(resource));
  memset(&detached, 0, sizeof detached);
  detached.size = sizeof detached;
  REQUIRE_OK(tenure_buffer_detach(buffer, &detached));
  CHECK(detached.ptr == ptr);
  CHECK_EQ(detached.bytes, 500);
  CHECK_EQ(detached.alignment, 512);
  CHECK(detached.stream.raw == TENURE_STREAM_PER_THREAD.raw);
  CHECK(view_of(buffer).ptr == NULL);
  CHECK_OK(tenure_buffer_destroy(buffer));
  CHECK_EQ(book.frees, 0);
  CHECK_EQ(book.drops, 0);
  REQUIRE_OK(tenure_buffer_adopt(
    detached.ptr, detached.capacity, detached.alignment, detached.stream, detached.resource, &buffer));
  CHECK_OK(tenure_resource_release(detached.resource));
  CHECK_OK(tenure_buffer_destroy(buffer));
  CHECK_EQ(book.frees, 1);
  CHECK_EQ(book.drops, 1);
}

typedef struct foreign_block {
  void* ptr;
  size_t bytes;
  int freed, released;
} foreign_block;

static void free_foreign(void* context, void* ptr, size_t bytes, tenure_stream stream)
{
  foreign_block* const block = context;
  (void)stream;
  CHECK(ptr == block->ptr && bytes == block->bytes);
  CHECK_EQ(block->released, 0);
  block->freed++;
}

static void release_foreign(void* context) { ((foreign_block*)context)->released++; }

static void foreign_memory_is_adopted_with_an_owner(void)
{
  static char memory[64];
  foreign_block block = {memory, sizeof memory, 0, 0};
  tenure_owner owner, nobody = {NULL, NULL};
  tenure_buffer buffer = 0;
  tenure_detached detached;
  owner.context = &block;
  owner.release = release_foreign;
  CHECK_ERROR(tenure_buffer_adopt_foreign(memory, sizeof memory, -1, TENURE_STREAM_LEGACY, NULL, nobody, &buffer),
              TENURE_ERROR_INVALID_ARGUMENT);
  REQUIRE_OK(tenure_buffer_adopt_foreign(memory, sizeof memory, -1, TENURE_STREAM_LEGACY, free_foreign, owner, &buffer));
  memset(&detached, 0, sizeof detached);
  detached.size = sizeof detached;
  CHECK_ERROR(tenure_buffer_detach(buffer, &detached), TENURE_ERROR_UNSUPPORTED);
  CHECK_EQ(block.freed + block.released, 0);
  destroy_on_another_thread(buffer);
  CHECK_EQ(block.freed, 1);
  CHECK_EQ(block.released, 1);
}

static void owner_of_names_the_resource_that_was_asked(void)
{
  ledger book;
  tenure_resource upstream = counting(&book), adaptor = 0, found = 0;
  void *ptr = NULL, *base = NULL;
  size_t bytes  = 0;
  uint32_t same = 0, owns = 0;
  char local = 0;
  REQUIRE_OK(tenure_statistics_create(upstream, &adaptor));
  REQUIRE_OK(tenure_allocate(adaptor, 700, 0, TENURE_STREAM_LEGACY, &ptr));
  REQUIRE_OK(tenure_owner_of((char*)ptr + 100, &found, &base, &bytes));
  REQUIRE(found != TENURE_RESOURCE_NULL);
  CHECK_OK(tenure_resource_same(found, adaptor, &same));
  CHECK_EQ(same, 1);
  CHECK(base == ptr);
  CHECK(bytes >= 700);
  CHECK_OK(tenure_resource_owns(adaptor, ptr, &owns));
  CHECK_EQ(owns, 1);
  CHECK_OK(tenure_resource_owns(upstream, ptr, &owns));
  CHECK_EQ(owns, 0);
  CHECK_OK(tenure_resource_release(found));
  CHECK_OK(tenure_deallocate(adaptor, ptr, 700, 0, TENURE_STREAM_LEGACY));
  CHECK_OK(tenure_owner_of(&local, &found, NULL, NULL));
  CHECK(found == TENURE_RESOURCE_NULL);
  CHECK_OK(tenure_resource_release(adaptor));
  CHECK_OK(tenure_resource_release(upstream));
  CHECK_EQ(book.drops, 1);
}

/* Rules 4 and 5: one table, read once; what was handed out is not harmed. */
static void replacing_the_current_resource_harms_nothing(void)
{
  ledger book;
  tenure_resource mine = counting(&book), previous = 0, replaced = 0, plain = 0;
  tenure_buffer buffer = 0;
  uint32_t same        = 0;
  REQUIRE_OK(tenure_current_set(-1, mine, &previous));
  CHECK_OK(tenure_resource_same(previous, mine, &same));
  CHECK_EQ(same, 0);
  REQUIRE_OK(tenure_buffer_create(100, 0, TENURE_STREAM_LEGACY, TENURE_RESOURCE_CURRENT, &buffer));
  CHECK_EQ(view_of(buffer).resource_id, id_of(mine));
  CHECK_OK(tenure_resource_release(mine));
  REQUIRE_OK(tenure_current_set(-1, previous, &replaced));
  CHECK_OK(tenure_resource_release(replaced));
  CHECK_EQ(book.drops, 0);
  destroy_on_another_thread(buffer);
  CHECK_EQ(book.frees, 1);
  CHECK_EQ(book.drops, 1);
  CHECK_OK(tenure_current_reset(-1, NULL));
  REQUIRE_OK(tenure_current_get(-1, &replaced));
  REQUIRE_OK(tenure_cuda_resource(&plain));
  CHECK_OK(tenure_resource_same(replaced, plain, &same));
  CHECK_EQ(same, 1);
  CHECK_OK(tenure_resource_release(replaced));
  CHECK_OK(tenure_resource_release(plain));
  CHECK_OK(tenure_resource_release(previous));
}

static uint64_t current_id(void)
{
  tenure_resource current = 0;
  uint64_t id;
  CHECK_OK(tenure_current_get(-1, &current));
  id = id_of(current);
  CHECK_OK(tenure_resource_release(current));
  return id;
}

static void scopes_end_in_any_order(void)
{
  ledger one, two;
  tenure_resource first = counting(&one), second = counting(&two);
  tenure_scope outer = 0, inner = 0;
  uint64_t const before = current_id();
  REQUIRE_OK(tenure_scope_enter(-1, first, &outer));
  CHECK_EQ(current_id(), id_of(first));
  REQUIRE_OK(tenure_scope_enter(-1, second, &inner));
  CHECK_EQ(current_id(), id_of(second));
  CHECK_OK(tenure_scope_exit(outer));
  CHECK_EQ(current_id(), id_of(second));
  CHECK_OK(tenure_scope_exit(inner));
  CHECK_EQ(current_id(), before);
  CHECK_ERROR(tenure_scope_exit(inner), TENURE_ERROR_BAD_HANDLE);
  CHECK_OK(tenure_resource_release(first));
  CHECK_OK(tenure_resource_release(second));
  CHECK_EQ(one.drops + two.drops, 2);
}

typedef struct seen {
  int calls, released, device;
  uint64_t id, version;
} seen;

static void on_change(void* context, int32_t device, tenure_resource resource, uint64_t version)
{
  seen* const what = context;
  what->calls++;
  what->device = device;
  CHECK(version > what->version);
  what->version = version;
  what->id      = id_of(resource);
}

static void on_release(void* context) { ((seen*)context)->released++; }

static void listeners_hear_the_newest_state(void)
{
  ledger book;
  seen what = {0, 0, -1, 0, 0};
  tenure_owner owner;
  tenure_resource mine     = counting(&book);
  tenure_listener listener = 0;
  owner.context            = &what;
  owner.release            = on_release;
  REQUIRE_OK(tenure_listener_add(on_change, owner, &listener));
  CHECK_OK(tenure_current_set(0, mine, NULL));
  CHECK_EQ(what.calls, 1);
  CHECK_EQ(what.device, 0);
  CHECK_EQ(what.id, id_of(mine));
  CHECK_OK(tenure_current_reset(0, NULL));
  CHECK_EQ(what.calls, 2);
  CHECK_OK(tenure_listener_remove(listener));
  CHECK_EQ(what.released, 1);
  CHECK_OK(tenure_current_set(0, mine, NULL));
  CHECK_OK(tenure_current_reset(0, NULL));
  CHECK_EQ(what.calls, 2);
  CHECK_OK(tenure_resource_release(mine));
  CHECK_EQ(book.drops, 1);
}

typedef struct {
  tenure_resource pool;
  void* held;
  int calls;
  int released;
} cache;

static tenure_status give_way(void* context, int32_t device, uint64_t bytes, uint64_t* released)
{
  cache* const mine = context;
  mine->calls++;
  CHECK_EQ(device, 0);
  CHECK(bytes >= 8u << 20);
  if (mine->held == NULL) {
    tenure_error_set(TENURE_ERROR_CALLBACK, "there is nothing left", 0, NULL, NULL);
    return TENURE_ERROR_CALLBACK;
  }
  CHECK_OK(tenure_deallocate(mine->pool, mine->held, 12u << 20, 0, TENURE_STREAM_LEGACY));
  mine->held = NULL;
  *released  = 12u << 20;
  return TENURE_OK;
}

static void on_cache_release(void* context) { ((cache*)context)->released++; }

/* A pool that is about to fail asks the rest of the process, and says in the end what it has tried. */
static void low_memory_hooks_are_asked(void)
{
  cache mine = {TENURE_RESOURCE_NULL, NULL, 0, 0};
  tenure_pool_options options;
  tenure_resource cuda = TENURE_RESOURCE_NULL;
  tenure_low_memory_hook hook;
  tenure_owner owner;
  tenure_error error;
  void* ptr         = NULL;
  void* none        = NULL;
  uint64_t released = 1, value = 0;
  memset(&options, 0, sizeof options);
  memset(&error, 0, sizeof error);
  options.size          = sizeof options;
  options.maximum_bytes = 16u << 20;
  options.no_remap      = 1;
  options.chunk_bytes   = 4u << 20;
  options.decay_ms      = 60000;
  REQUIRE_OK(tenure_cuda_resource(&cuda));
  REQUIRE_OK(tenure_pool_create(cuda, &options, &mine.pool));
  CHECK_OK(tenure_resource_property(mine.pool, "remap", &value));
  CHECK_EQ(value, 0);
  CHECK_OK(tenure_resource_property(mine.pool, "chunk_bytes", &value));
  CHECK_EQ(value, 4u << 20);
  REQUIRE_OK(tenure_allocate(mine.pool, 12u << 20, 0, TENURE_STREAM_LEGACY, &mine.held));
  owner.context = &mine;
  owner.release = on_cache_release;
  REQUIRE_OK(tenure_low_memory_add(give_way, owner, &hook));
  CHECK_OK(tenure_allocate(mine.pool, 8u << 20, 0, TENURE_STREAM_LEGACY, &ptr));
  CHECK_EQ(mine.calls, 1);
  CHECK(tenure_allocate(mine.pool, 12u << 20, 0, TENURE_STREAM_LEGACY, &none) == TENURE_ERROR_OUT_OF_MEMORY);
  CHECK_EQ(mine.calls, 2);
  error.size = sizeof error;
  CHECK_OK(tenure_error_get(&error));
  CHECK_EQ(error.live, 8u << 20);
  CHECK_EQ(error.cached, error.reserved - error.live);
  CHECK(strstr(error.tried, "remapping idle pages (turned off)") != NULL);
  CHECK(strstr(error.tried, "other libraries (nothing came of it)") != NULL);
  /* A client that was built with the older, shorter structure. */
  error.size  = offsetof(tenure_error, cached);
  error.tried = NULL;
  CHECK_OK(tenure_error_get(&error));
  CHECK(error.tried == NULL);
  CHECK_OK(tenure_low_memory_remove(hook));
  CHECK_EQ(mine.released, 1);
  CHECK(tenure_low_memory_remove(hook) == TENURE_ERROR_BAD_HANDLE);
  CHECK(tenure_low_memory_add(NULL, owner, &hook) == TENURE_ERROR_INVALID_ARGUMENT);
  CHECK_OK(tenure_deallocate(mine.pool, ptr, 8u << 20, 0, TENURE_STREAM_LEGACY));
  CHECK_OK(tenure_low_memory(0, 0, &released));
  CHECK(released >= 12u << 20);
  CHECK_OK(tenure_low_memory(-1, 1, NULL));
  CHECK(tenure_low_memory(99, 0, &released) == TENURE_ERROR_INVALID_ARGUMENT);
  options.size        = offsetof(tenure_pool_options, no_remap);
  options.chunk_bytes = 1;
  CHECK_OK(tenure_resource_release(mine.pool));
  REQUIRE_OK(tenure_pool_create(cuda, &options, &mine.pool));
  CHECK_OK(tenure_resource_property(mine.pool, "remap", &value));
  CHECK_EQ(value, 1);
  CHECK_OK(tenure_resource_release(mine.pool));
  CHECK_OK(tenure_resource_release(cuda));
}

/* Rule 6: a buffer keeps its stream. */
static void a_buffer_keeps_its_stream(void)
{
  ledger book;
  seen what = {0, 0, 0, 0, 0};
  tenure_owner owner;
  tenure_stream own, wrapped;
  tenure_resource resource = counting(&book);
  tenure_buffer buffer     = 0;
  owner.context            = &what;
  owner.release            = on_release;
  REQUIRE_OK(tenure_stream_create(-1, 1, &own));
  REQUIRE_OK(tenure_stream_wrap(own.raw, -1, owner, &wrapped));
  REQUIRE_OK(tenure_buffer_create(64, 0, wrapped, resource, &buffer));
  CHECK_OK(tenure_stream_release(wrapped.object));
  CHECK_EQ(what.released, 0);
  CHECK(view_of(buffer).stream.raw == own.raw);
  CHECK_OK(tenure_buffer_set_stream(buffer, TENURE_STREAM_LEGACY));
  CHECK_OK(tenure_buffer_record_stream(buffer, own));
  CHECK_OK(tenure_stream_release(own.object));
  CHECK_OK(tenure_buffer_destroy(buffer));
  CHECK_OK(tenure_collect());
  CHECK_EQ(what.released, 1);
  CHECK_EQ(book.frees, 1);
  CHECK_OK(tenure_resource_release(resource));
  CHECK_EQ(book.drops, 1);
}

/* All of a batch or nothing; of its frees a wrong one is named, and every other is done. */
static void many_blocks_are_taken_and_freed_in_one_call(void)
{
  size_t const sizes[4] = {1000, 0, 300, 70};
  size_t const larger[2] = {500, 4096};
  size_t wrong          = 0;
  void* ptrs[4];
  void* out[2];
  tenure_buffer buffers[4];
  ledger book;
  tenure_resource upstream = counting(&book), limit = 0;
  REQUIRE_OK(tenure_limiting_create(upstream, 2048, &limit));
  REQUIRE_OK(tenure_allocate_many(limit, 4, sizes, 0, TENURE_STREAM_LEGACY, ptrs));
  CHECK_EQ(book.allocations, 3);
  CHECK(ptrs[0] != NULL && ptrs[1] == NULL && ptrs[2] != NULL && ptrs[3] != NULL);
  CHECK_ERROR(tenure_allocate_many(limit, 2, larger, 0, TENURE_STREAM_LEGACY, out), TENURE_ERROR_OUT_OF_MEMORY);
  CHECK(out[0] == NULL && out[1] == NULL);
  CHECK_EQ(book.allocations - book.frees, 3);
  ptrs[2] = (char*)ptrs[2] + 256;
  CHECK_ERROR(tenure_deallocate_many(limit, 4, ptrs, sizes, 0, TENURE_STREAM_LEGACY, &wrong), TENURE_ERROR_OWNERSHIP);
  CHECK_EQ(wrong, 2);
  CHECK(strstr(check_last_error().message, "block 2 of 4") != NULL);
  CHECK_EQ(check_last_error().ptr, (uint64_t)(uintptr_t)ptrs[2]);
  CHECK_EQ(book.allocations - book.frees, 1);
  CHECK_OK(tenure_deallocate(limit, (char*)ptrs[2] - 256, 300, 0, TENURE_STREAM_LEGACY));
  /* Buffers keep the resource, also the one without bytes. */
  REQUIRE_OK(tenure_buffer_create_many(4, sizes, 0, TENURE_STREAM_LEGACY, limit, buffers));
  CHECK_OK(tenure_resource_release(limit));
  CHECK_OK(tenure_resource_release(upstream));
  CHECK_EQ(view_of(buffers[2]).bytes, 300);
  CHECK_OK(tenure_buffer_destroy(buffers[0]));
  CHECK_OK(tenure_buffer_destroy(buffers[2]));
  CHECK_OK(tenure_buffer_destroy(buffers[3]));
  CHECK_EQ(book.drops, 0);
  CHECK_OK(tenure_buffer_destroy(buffers[1]));
  CHECK_OK(tenure_collect());
  CHECK_EQ(book.drops, 1);
  CHECK_EQ(book.live_bytes, 0);
}

/* What was freed on a stream that the host has waited for serves another one without a wait. */
static void a_wait_is_noted(void)
{
  tenure_resource cuda = 0, pool = 0;
  tenure_stream a, b;
  tenure_pool_options options;
  size_t const big = 8 << 20;
  void* ptr        = NULL;
  void* other      = NULL;
  int by_note;
  memset(&options, 0, sizeof options);
  options.size          = sizeof options;
  options.device        = -1;
  options.maximum_bytes = 12 << 20;
  for (by_note = 0; by_note < 2; ++by_note) {
    uint64_t proven = 0;
    REQUIRE_OK(tenure_cuda_resource(&cuda));
    REQUIRE_OK(tenure_pool_create(cuda, &options, &pool));
    REQUIRE_OK(tenure_stream_create(-1, 1, &a));
    REQUIRE_OK(tenure_stream_create(-1, 1, &b));
    /* Both are known. */
    REQUIRE_OK(tenure_allocate(pool, 100, 0, b, &ptr));
    CHECK_OK(tenure_deallocate(pool, ptr, 100, 0, b));
    REQUIRE_OK(tenure_allocate(pool, big, 0, a, &ptr));
    CHECK_OK(tenure_fill_async(ptr, 1, big, a));
    CHECK_OK(tenure_sim_busy(a, 20));
    CHECK_OK(tenure_deallocate(pool, ptr, big, 0, a));
    /* Nobody has waited: the note is not believed. */
    CHECK_OK(tenure_note_sync(a));
    CHECK_OK(tenure_resource_property(pool, "proven_bytes", &proven));
    CHECK(proven < big);
    CHECK_OK(by_note ? tenure_device_synchronize(-1) : tenure_stream_synchronize(a));
    CHECK_OK(by_note ? tenure_note_sync(a) : TENURE_OK);
    CHECK_OK(tenure_resource_property(pool, "proven_bytes", &proven));
    CHECK(proven >= big);
    REQUIRE_OK(tenure_allocate(pool, big, 0, b, &other));
    CHECK(other == ptr);
    CHECK_OK(tenure_deallocate(pool, other, big, 0, b));
    CHECK_OK(tenure_stream_release(a.object));
    CHECK_OK(tenure_stream_release(b.object));
    CHECK_OK(tenure_resource_release(pool));
    CHECK_OK(tenure_resource_release(cuda));
  }
}

/* What was freed on a stream is at hand for one that waits for it: no growth, and no further wait. */
static void a_wait_between_streams_is_noted(void)
{
  size_t const big = 8 << 20;
  int by_note;
  for (by_note = 0; by_note < 2; ++by_note) {
    tenure_resource cuda = 0, pool = 0;
    tenure_stream a, b;
    void* ptr   = NULL;
    void* other = NULL;
    REQUIRE_OK(tenure_cuda_resource(&cuda));
    REQUIRE_OK(tenure_pool_create(cuda, NULL, &pool));
    REQUIRE_OK(tenure_stream_create(-1, 1, &a));
    REQUIRE_OK(tenure_stream_create(-1, 1, &b));
    REQUIRE_OK(tenure_allocate(pool, 100, 0, b, &ptr));
    CHECK_OK(tenure_deallocate(pool, ptr, 100, 0, b));
    REQUIRE_OK(tenure_allocate(pool, big, 0, a, &ptr));
    CHECK_OK(tenure_sim_busy(a, 20));
    CHECK_OK(tenure_deallocate(pool, ptr, big, 0, a));
    CHECK_OK(by_note ? tenure_note_wait(b, a) : tenure_stream_wait_stream(b, a));
    REQUIRE_OK(tenure_allocate(pool, big, 0, b, &other));
    CHECK(other == ptr);
    CHECK_OK(tenure_deallocate(pool, other, big, 0, b));
    CHECK_OK(tenure_stream_release(a.object));
    CHECK_OK(tenure_stream_release(b.object));
    CHECK_OK(tenure_resource_release(pool));
    CHECK_OK(tenure_resource_release(cuda));
  }
}

int main(void)
{
  RUN(a_buffer_outlives_the_references_to_its_resource);
  RUN(a_raw_allocation_keeps_its_resource);
  RUN(an_adaptor_keeps_its_upstream);
  RUN(a_wrong_free_changes_nothing);
  RUN(a_wrong_free_to_a_pool_changes_nothing);
  RUN(adoption_is_refused_for_pointers_of_others);
  RUN(detaching_and_adopting_are_inverse);
  RUN(foreign_memory_is_adopted_with_an_owner);
  RUN(owner_of_names_the_resource_that_was_asked);
  RUN(replacing_the_current_resource_harms_nothing);
  RUN(scopes_end_in_any_order);
  RUN(listeners_hear_the_newest_state);
  RUN(low_memory_hooks_are_asked);
  RUN(a_buffer_keeps_its_stream);
  RUN(many_blocks_are_taken_and_freed_in_one_call);
  RUN(a_wait_is_noted);
  RUN(a_wait_between_streams_is_noted);
  return check_finish("rules.c", 0);
}
