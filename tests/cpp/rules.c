/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules of ownership in C: who frees, when, and what a wrong word gets. The upstream of the tests counts what it is asked
 * for, and counts its own end: a resource that is closed too early, too late or twice is seen.
 */

#define _POSIX_C_SOURCE 200809L

#include "check.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct ledger {
  int allocations, frees, drops;
  size_t live_bytes;
} ledger;

static tenure_status counting_allocate(void* context, tenure_request const* request, tenure_stream stream, void** out)
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

static tenure_status counting_deallocate(void* context, void* ptr, tenure_request const* request, tenure_stream stream)
{
  ledger* const book = context;
  (void)tenure_stream_synchronize(stream);
  book->frees++;
  book->live_bytes -= request->bytes;
  free(ptr);
  return TENURE_OK;
}

static void counting_drop(void* context) { ((ledger*)context)->drops++; }

static tenure_resource counting(ledger* book)
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

static struct tenure_buffer_view view_of(tenure_buffer buffer)
{
  struct tenure_buffer_view view;
  memset(&view, 0, sizeof view);
  view.size = sizeof view;
  CHECK_OK(tenure_buffer_view(buffer, &view));
  return view;
}

static uint64_t id_of(tenure_resource resource)
{
  uint64_t id = 0;
  CHECK_OK(tenure_resource_id(resource, &id));
  return id;
}

static uint64_t live_of(tenure_resource resource)
{
  tenure_info info;
  memset(&info, 0, sizeof info);
  info.size = sizeof info;
  CHECK_OK(tenure_resource_info(resource, &info));
  return info.live_bytes;
}

static void* destroy_buffer(void* handle)
{
  CHECK_OK(tenure_buffer_destroy(*(tenure_buffer*)handle));
  return NULL;
}

static void destroy_on_another_thread(tenure_buffer buffer)
{
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, destroy_buffer, &buffer) == 0);
  REQUIRE(pthread_join(thread, NULL) == 0);
}

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
  RUN(a_buffer_keeps_its_stream);
  RUN(a_failed_growth_changes_nothing);
  RUN(no_bytes_call_nobody);
  RUN(bytes_survive_growth_and_copies);
  RUN(the_error_of_a_callback_comes_through);
  RUN(a_failure_of_the_driver_is_told_apart);
  RUN(try_functions_change_nothing_when_they_would_wait);
  return check_finish("rules.c", 0);
}
