/* The actor in C, over the functions of tenure.h alone. */

#include "actor.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Hands a status on, with the library's own text. */
static tenure_status told(tenure_status status, char* why)
{
  if (status > TENURE_OK) {
    tenure_error error;
    memset(&error, 0, sizeof error);
    error.size = sizeof error;
    if (tenure_error_get(&error) == TENURE_OK) { snprintf(why, ACTOR_ROOM, "%s", error.message); }
  }
  return status;
}

tenure_status actor_pool(tenure_resource upstream, tenure_resource* out, char* why)
{
  return told(tenure_pool_create(upstream, NULL, out), why);
}

/* ---------------------------------------------------------------------------------------------- a resource of functions */

typedef struct counting {
  tenure_resource upstream;
  actor_book* book;
} counting;

static int obeyed(actor_book* book, uint64_t order)
{
  if (book->fail != order) { return 0; }
  book->fail = 0;
  return 1;
}

static tenure_status counting_allocate(void* context, const tenure_request* request, tenure_stream stream, void** out)
{
  counting* const self = context;
  if (obeyed(self->book, 1)) {
    (void)tenure_error_set(TENURE_ERROR_CALLBACK, "refused by C", 0, NULL, NULL);
    return TENURE_ERROR_CALLBACK;
  }
  self->book->allocations += 1;
  return tenure_allocate(self->upstream, request->bytes, request->alignment, stream, out);
}

static tenure_status counting_deallocate(void* context, void* ptr, const tenure_request* request, tenure_stream stream)
{
  counting* const self = context;
  tenure_status const freed =
    tenure_deallocate(self->upstream, ptr, request->bytes, request->alignment, stream);
  self->book->frees += 1;
  if (obeyed(self->book, 2)) {
    (void)tenure_error_set(TENURE_ERROR_CALLBACK, "refused by C", 0, NULL, NULL);
    return TENURE_ERROR_CALLBACK;
  }
  return freed;
}

static void counting_drop(void* context)
{
  counting* const self = context;
  self->book->dropped += 1;
  (void)tenure_resource_release(self->upstream);
  free(self);
}

tenure_status actor_callback(tenure_resource upstream, actor_book* book, tenure_resource* out, char* why)
{
  tenure_resource_vtable vtable;
  tenure_status status;
  counting* const self = malloc(sizeof *self);
  if (self == NULL) { return TENURE_ERROR_INTERNAL; }
  memset(&vtable, 0, sizeof vtable);
  vtable.size       = sizeof vtable;
  vtable.kind       = "counting";
  vtable.properties = TENURE_DEVICE_ACCESSIBLE | TENURE_STREAM_ORDERED;
  vtable.device     = -1;
  vtable.allocate   = counting_allocate;
  vtable.deallocate = counting_deallocate;
  vtable.drop       = counting_drop;
  self->book        = book;
  status            = tenure_resource_retain(upstream, &self->upstream);
  if (status == TENURE_OK) {
    status = tenure_callback_create(&vtable, self, out);
    if (status != TENURE_OK) { (void)tenure_resource_release(self->upstream); }
  }
  if (status != TENURE_OK) { free(self); }
  return told(status, why);
}

tenure_status actor_release(tenure_resource resource, char* why) { return told(tenure_resource_release(resource), why); }

/* --------------------------------------------------------------------------------------------------------------- buffers */

static void* data_of(tenure_buffer buffer, tenure_stream* home)
{
  struct tenure_buffer_view view;
  memset(&view, 0, sizeof view);
  view.size = sizeof view;
  (void)tenure_buffer_view(buffer, &view);
  *home = view.stream;
  return view.ptr;
}

tenure_status actor_make(
  size_t bytes, uint8_t value, tenure_stream stream, tenure_resource resource, tenure_buffer* out, char* why)
{
  tenure_stream home;
  tenure_buffer made;
  tenure_status status = tenure_buffer_create(bytes, 0, stream, resource, &made);
  if (status == TENURE_OK) {
    status = tenure_fill_async(data_of(made, &home), value, bytes, stream);
    if (status == TENURE_OK) {
      *out = made;
      return TENURE_OK;
    }
    (void)told(status, why);
    (void)tenure_buffer_destroy(made);
    return status;
  }
  return told(status, why);
}

tenure_status actor_read(tenure_buffer buffer, uint8_t* to, size_t bytes, char* why)
{
  tenure_stream home, mine;
  void const* const from = data_of(buffer, &home);
  tenure_status status   = tenure_stream_create(-1, 1, &mine);
  if (status != TENURE_OK) { return told(status, why); }
  status = tenure_stream_wait_stream(mine, home);
  if (status == TENURE_OK) { status = tenure_buffer_record_stream(buffer, mine); }
  if (status == TENURE_OK) { status = tenure_copy_async(to, from, bytes, mine); }
  if (status == TENURE_OK) { status = tenure_stream_synchronize(mine); }
  (void)told(status, why);
  (void)tenure_stream_release(mine.object);
  return status;
}

typedef struct errand {
  tenure_buffer buffer;
  tenure_status status;
  char* why;
} errand;

static void* run_errand(void* context)
{
  errand* const self = context;
  self->status       = told(tenure_buffer_destroy(self->buffer), self->why);
  return NULL;
}

tenure_status actor_free(tenure_buffer buffer, uint32_t elsewhere, char* why)
{
  errand work;
  pthread_t thread;
  work.buffer = buffer;
  work.status = TENURE_ERROR_INTERNAL;
  work.why    = why;
  if (elsewhere == 0) {
    (void)run_errand(&work);
  } else if (pthread_create(&thread, NULL, run_errand, &work) == 0) {
    (void)pthread_join(thread, NULL);
  }
  return work.status;
}

tenure_status actor_detach(tenure_buffer buffer, tenure_detached* out, char* why)
{
  tenure_status status;
  out->size = sizeof *out;
  status    = told(tenure_buffer_detach(buffer, out), why);
  (void)tenure_buffer_destroy(buffer);
  return status;
}

tenure_status actor_adopt(
  void* ptr, size_t bytes, tenure_stream stream, tenure_resource resource, tenure_buffer* out, char* why)
{
  return told(tenure_buffer_adopt(ptr, bytes, 0, stream, resource, out), why);
}

/* ------------------------------------------------------------------------------------------------- raw memory, the table */

tenure_status actor_allocate(tenure_resource resource, size_t bytes, tenure_stream stream, void** out, char* why)
{
  return told(tenure_allocate(resource, bytes, 0, stream, out), why);
}

tenure_status actor_deallocate(tenure_resource resource, void* ptr, size_t bytes, tenure_stream stream, char* why)
{
  return told(tenure_deallocate(resource, ptr, bytes, 0, stream), why);
}

static tenure_status id_of(tenure_resource taken, uint64_t* id, char* why)
{
  tenure_status const status = told(tenure_resource_id(taken, id), why);
  (void)tenure_resource_release(taken);
  return status;
}

tenure_status actor_owner_of(void* ptr, uint64_t* id, char* why)
{
  tenure_resource owner      = TENURE_RESOURCE_NULL;
  tenure_status const status = tenure_owner_of(ptr, &owner, NULL, NULL);
  *id                        = 0;
  if (status != TENURE_OK || owner == TENURE_RESOURCE_NULL) { return told(status, why); }
  return id_of(owner, id, why);
}

tenure_status actor_set_current(tenure_resource resource, char* why)
{
  return told(tenure_current_set(-1, resource, NULL), why);
}

tenure_status actor_current_id(uint64_t* id, char* why)
{
  tenure_resource current;
  tenure_status const status = tenure_current_get(-1, &current);
  return status == TENURE_OK ? id_of(current, id, why) : told(status, why);
}

tenure_status actor_scope(tenure_resource resource, actor_body body, char* why)
{
  tenure_scope scope;
  tenure_status const status = tenure_scope_enter(-1, resource, &scope);
  if (status != TENURE_OK) { return told(status, why); }
  body();
  return told(tenure_scope_exit(scope), why);
}

/* C has no destructors: what is held at the end is freed by a function that runs then. */
static tenure_buffer kept_buffer;
static tenure_resource kept_resource;

static void let_go(void)
{
  (void)tenure_buffer_destroy(kept_buffer);
  (void)tenure_resource_release(kept_resource);
}

tenure_status actor_keep(tenure_buffer buffer, tenure_resource resource, char* why)
{
  (void)why;
  kept_buffer   = buffer;
  kept_resource = resource;
  return atexit(let_go) == 0 ? TENURE_OK : TENURE_ERROR_INTERNAL;
}
