/* SPDX-License-Identifier: Apache-2.0
 *
 * Looking inside from C: tags, accounts, the snapshot, the history, and what an out-of-memory error has to say.
 */
#include "check.h"

#include <stdlib.h>

typedef struct {
  char name[300];
  tenure_account found;
  int calls;
} search;

static int32_t look(void* context, tenure_account const* account)
{
  search* const wanted = (search*)context;
  ++wanted->calls;
  if (strcmp(account->name, wanted->name) != 0) { return 0; }
  wanted->found = *account;
  return 1;
}

static tenure_account account_of(uint32_t by, char const* name)
{
  search wanted;
  memset(&wanted, 0, sizeof wanted);
  strncpy(wanted.name, name, sizeof wanted.name - 1);
  CHECK_OK(tenure_usage(by, look, &wanted));
  return wanted.found;
}

/* Whether the snapshot says this. */
static int snapshot_has(char const* what)
{
  tenure_text text = {NULL, 0};
  int found;
  CHECK_OK(tenure_memory_snapshot(&text));
  found = text.data != NULL && strlen(text.data) == text.size && strstr(text.data, what) != NULL;
  CHECK_OK(tenure_text_free(&text));
  return found;
}

static tenure_resource pool_of(uint64_t maximum)
{
  tenure_resource cuda = TENURE_RESOURCE_NULL;
  tenure_resource pool = TENURE_RESOURCE_NULL;
  tenure_pool_options options;
  memset(&options, 0, sizeof options);
  options.size          = sizeof options;
  options.device        = -1;
  options.maximum_bytes = maximum;
  CHECK_OK(tenure_cuda_resource(&cuda));
  CHECK_OK(tenure_pool_create(cuda, &options, &pool));
  CHECK_OK(tenure_resource_release(cuda));
  return pool;
}

static void a_tag_counts_what_is_allocated_while_it_is_open(void)
{
  tenure_resource const pool = pool_of(0);
  tenure_tag outer           = 0;
  tenure_tag inner           = 0;
  void* a                    = NULL;
  void* b                    = NULL;
  char address[64];
  CHECK_OK(tenure_tag_push("c outer", &outer));
  CHECK_OK(tenure_tag_push("c inner", &inner));
  CHECK_OK(tenure_allocate(pool, 5000, 0, TENURE_STREAM_LEGACY, &a));
  CHECK_OK(tenure_tag_pop(inner));
  CHECK_OK(tenure_allocate(pool, 7000, 0, TENURE_STREAM_LEGACY, &b));
  CHECK_OK(tenure_tag_pop(outer));
  CHECK_ERROR(tenure_tag_pop(outer), TENURE_ERROR_BAD_HANDLE);
  CHECK_OK(tenure_tag_pop(0));
  CHECK_EQ(account_of(TENURE_BY_TAG, "c inner").live_bytes, 5000);
  CHECK_EQ(account_of(TENURE_BY_TAG, "c outer").live_bytes, 7000);
  CHECK_EQ(account_of(TENURE_BY_TAG, "c outer").size, sizeof(tenure_account));
  CHECK(account_of(TENURE_BY_RESOURCE, "pool > cuda").live_count == 2);
  snprintf(address, sizeof address, "\"address\":%" PRIuPTR ",\"device\"", (uintptr_t)a);
  CHECK(snapshot_has(address));
  CHECK(snapshot_has("\"tag\":\"c inner\""));
  CHECK_OK(tenure_deallocate(pool, a, 5000, 0, TENURE_STREAM_LEGACY));
  CHECK_OK(tenure_deallocate(pool, b, 7000, 0, TENURE_STREAM_LEGACY));
  CHECK_EQ(account_of(TENURE_BY_TAG, "c inner").live_bytes, 0);
  CHECK_EQ(account_of(TENURE_BY_TAG, "c inner").peak_bytes, 5000);
  CHECK(!snapshot_has(address));
  CHECK_OK(tenure_resource_release(pool));
}

static void bad_arguments_are_errors(void)
{
  tenure_tag tag = 0;
  char longer[300];
  memset(longer, 'x', sizeof longer - 1);
  longer[sizeof longer - 1] = 0;
  CHECK_ERROR(tenure_tag_push(NULL, &tag), TENURE_ERROR_INVALID_ARGUMENT);
  CHECK_ERROR(tenure_tag_push("", &tag), TENURE_ERROR_INVALID_ARGUMENT);
  CHECK_ERROR(tenure_tag_push(longer, &tag), TENURE_ERROR_INVALID_ARGUMENT);
  CHECK_ERROR(tenure_tag_push("fine", NULL), TENURE_ERROR_INVALID_ARGUMENT);
  CHECK_EQ(tag, 0);
  CHECK_ERROR(tenure_usage(3, look, NULL), TENURE_ERROR_INVALID_ARGUMENT);
  CHECK_ERROR(tenure_usage(TENURE_BY_TAG, NULL, NULL), TENURE_ERROR_INVALID_ARGUMENT);
  CHECK_ERROR(tenure_memory_snapshot(NULL), TENURE_ERROR_INVALID_ARGUMENT);
  CHECK_ERROR(tenure_history_record(1, 0, (size_t)1 << 40), TENURE_ERROR_INVALID_ARGUMENT);
}

static size_t tell(void* context, char* text, size_t room)
{
  char const stack[] = "loader.c:7 load\nmain.c:1 main\n";
  ++*(int*)context;
  if (room < sizeof stack) { return 0; }
  memcpy(text, stack, sizeof stack - 1);
  return sizeof stack - 1;
}

static int released = 0;
static void release(void* context)
{
  (void)context;
  ++released;
}

static void events_are_recorded_with_the_stacks_that_somebody_tells(void)
{
  int asked                  = 0;
  tenure_owner const owner   = {&asked, release};
  tenure_owner const nobody  = {NULL, NULL};
  tenure_resource const pool = pool_of(0);
  void* ptr                  = NULL;
  CHECK_OK(tenure_stack_set_source(tell, owner));
  CHECK_OK(tenure_history_record(1, 1, 0));
  CHECK_ERROR(tenure_try_allocate(pool, 777, 0, TENURE_STREAM_LEGACY, &ptr), TENURE_ERROR_WOULD_BLOCK);
  CHECK_OK(tenure_allocate(pool, 123456, 0, TENURE_STREAM_LEGACY, &ptr));
  CHECK_OK(tenure_history_record(0, 0, 0));
  CHECK_EQ(asked, 1);
  CHECK_OK(tenure_deallocate(pool, ptr, 123456, 0, TENURE_STREAM_LEGACY));
  CHECK(snapshot_has("\"action\":\"allocate\""));
  CHECK(snapshot_has("\"size\":123456"));
  CHECK(snapshot_has("[\"loader.c:7 load\",\"main.c:1 main\"]"));
  CHECK(!snapshot_has("\"action\":\"free\""));
  CHECK_EQ(released, 0);
  CHECK_OK(tenure_stack_set_source(NULL, nobody));
  CHECK_EQ(released, 1);
  CHECK_OK(tenure_resource_release(pool));
}

static void out_of_memory_has_notes(void)
{
  tenure_resource const pool = pool_of(16 << 20);
  tenure_resource limited    = TENURE_RESOURCE_NULL;
  tenure_tag tag             = 0;
  void* ptr                  = NULL;
  void* none                 = NULL;
  char const* line;
  int lines = 1;
  CHECK_OK(tenure_tag_push("c model", &tag));
  CHECK_OK(tenure_allocate(pool, 10 << 20, 0, TENURE_STREAM_LEGACY, &ptr));
  CHECK_OK(tenure_tag_pop(tag));
  CHECK_ERROR(tenure_allocate(pool, 12 << 20, 0, TENURE_STREAM_LEGACY, &none), TENURE_ERROR_OUT_OF_MEMORY);
  CHECK(strchr(check_last_error().message, '\n') == NULL);
  CHECK(strstr(check_last_error().notes, "tag \"c model\" holds 10.00 MiB") != NULL);
  CHECK(strstr(check_last_error().notes, "maximum_pool_size=23068672 bytes") != NULL);
  for (line = check_last_error().notes; (line = strchr(line, '\n')) != NULL; ++line) { ++lines; }
  CHECK(lines <= 8);
  /* What never waits says no more than its line until somebody asks. */
  CHECK_OK(tenure_limiting_create(pool, 1 << 20, &limited));
  CHECK_ERROR(tenure_try_allocate(limited, 2 << 20, 0, TENURE_STREAM_LEGACY, &none), TENURE_ERROR_OUT_OF_MEMORY);
  CHECK_EQ(strlen(check_last_error().notes), 0);
  CHECK_OK(tenure_error_explain());
  CHECK(check_last_error().status == TENURE_ERROR_OUT_OF_MEMORY);
  CHECK(strstr(check_last_error().notes, "allocation_limit=2097152 bytes") != NULL);
  CHECK_OK(tenure_deallocate(pool, ptr, 10 << 20, 0, TENURE_STREAM_LEGACY));
  CHECK_OK(tenure_resource_release(limited));
  CHECK_OK(tenure_resource_release(pool));
}

/* Whether the report says this. */
static int report_has(char const* what)
{
  tenure_text text = {NULL, 0};
  int found;
  CHECK_OK(tenure_report(&text));
  found = text.data != NULL && strlen(text.data) == text.size && strstr(text.data, what) != NULL;
  CHECK_OK(tenure_text_free(&text));
  return found;
}

static void a_report_counts_by_library_until_it_ends(void)
{
  tenure_resource const pool = pool_of(16 << 20);
  uint32_t number            = 0;
  uint32_t again             = 0;
  uint32_t before            = 99;
  uint32_t inside            = 99;
  void* named                = NULL;
  void* own                  = NULL;
  void* late                 = NULL;
  char name[40];
  int other;
  CHECK_OK(tenure_library_number("c library", &number));
  CHECK_OK(tenure_library_number("c library", &again));
  CHECK(number != 0);
  CHECK_EQ(number, again);
  CHECK_OK(tenure_report_begin(1, 0));
  CHECK_OK(tenure_library_set(number, &before));
  CHECK_EQ(before, 0);
  CHECK_OK(tenure_allocate(pool, 5000, 0, TENURE_STREAM_LEGACY, &named));
  CHECK_OK(tenure_library_set(before, &inside));
  CHECK_EQ(inside, number);
  CHECK_OK(tenure_allocate(pool, 300, 0, TENURE_STREAM_LEGACY, &own));
  CHECK(report_has("\"library\":\"c library\",\"live_bytes\":5000,\"live_count\":1"));
  CHECK(report_has("\"library\":null,\"live_bytes\":300,\"live_count\":1"));
  CHECK(report_has("\"peak_live_bytes\":5300"));
  CHECK_OK(tenure_report_begin(0, 0));
  CHECK_OK(tenure_allocate(pool, 70000, 0, TENURE_STREAM_LEGACY, &late));
  CHECK(report_has("\"peak_live_bytes\":5300"));
  CHECK_OK(tenure_deallocate(pool, late, 70000, 0, TENURE_STREAM_LEGACY));
  CHECK_OK(tenure_deallocate(pool, own, 300, 0, TENURE_STREAM_LEGACY));
  CHECK_OK(tenure_deallocate(pool, named, 5000, 0, TENURE_STREAM_LEGACY));
  CHECK_OK(tenure_resource_release(pool));
  /* Bad arguments. */
  CHECK_ERROR(tenure_report(NULL), TENURE_ERROR_INVALID_ARGUMENT);
  CHECK_ERROR(tenure_library_number("c library", NULL), TENURE_ERROR_INVALID_ARGUMENT);
  CHECK_ERROR(tenure_library_number(NULL, &again), TENURE_ERROR_INVALID_ARGUMENT);
  CHECK_ERROR(tenure_library_number("", &again), TENURE_ERROR_INVALID_ARGUMENT);
  /* There are 63 names; those that are known stay. */
  for (other = 0; other < 62; ++other) {
    sprintf(name, "c other %d", other);
    CHECK_OK(tenure_library_number(name, &again));
  }
  CHECK_ERROR(tenure_library_number("c one too many", &again), TENURE_ERROR_INVALID_ARGUMENT);
  CHECK_OK(tenure_library_number("c library", &again));
  CHECK_EQ(number, again);
}

int main(void)
{
  RUN(a_tag_counts_what_is_allocated_while_it_is_open);
  RUN(bad_arguments_are_errors);
  RUN(events_are_recorded_with_the_stacks_that_somebody_tells);
  RUN(out_of_memory_has_notes);
  RUN(a_report_counts_by_library_until_it_ends);
  CHECK_OK(tenure_observe(0));
  return check_finish("observe.c", 0);
}
