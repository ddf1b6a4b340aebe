/* What each actor of the hand-over tests can do. The same functions in C (actor.c), C++ (actor.cpp) and Rust (rust/), each
 * written with what its language offers; the scenes (scenes.py) play every pair of them, and Python with each.
 *
 * Everything crosses as a handle. A function returns a `tenure_status`, and the text of an error in `why` (room for 512 bytes).
 * "Takes" means that the handle is the actor's from then on, "lent" that it stays the caller's. */

#ifndef TENURE_TESTS_ACTOR_H
#define TENURE_TESTS_ACTOR_H

#include <tenure/tenure.h>

#define ACTOR_ROOM 512

/* What a resource of the actor's own functions counts, and how it is told to fail. It outlives the resource. */
typedef struct actor_book {
  uint64_t allocations;
  uint64_t frees;
  uint64_t dropped;
  /* 1: the next allocation fails; 2: the next free says that it failed. Set back by the function that obeys. */
  uint64_t fail;
} actor_book;

typedef void (*actor_body)(void);

#ifdef __cplusplus
extern "C" {
#endif

/* A pool over `upstream` (lent). The reference in `out` is the caller's. */
tenure_status actor_pool(tenure_resource upstream, tenure_resource* out, char* why);
/* A resource of the actor's own functions over `upstream` (lent), which counts in `book`. */
tenure_status actor_callback(tenure_resource upstream, actor_book* book, tenure_resource* out, char* why);
/* Takes a reference and gives it back. */
tenure_status actor_release(tenure_resource resource, char* why);

/* `bytes` bytes under `resource` (lent; `TENURE_RESOURCE_CURRENT`: what the actor finds in the table), each `value`. */
tenure_status actor_make(
  size_t bytes, uint8_t value, tenure_stream stream, tenure_resource resource, tenure_buffer* out, char* why);
/* Copies the bytes of a lent buffer to the host, on a stream of the actor's own. */
tenure_status actor_read(tenure_buffer buffer, uint8_t* to, size_t bytes, char* why);
/* Takes a buffer and frees it, in a thread of the actor's own if `elsewhere` is not 0. */
tenure_status actor_free(tenure_buffer buffer, uint32_t elsewhere, char* why);
/* Takes a buffer and gives its parts: the allocation stays alive. */
tenure_status actor_detach(tenure_buffer buffer, tenure_detached* out, char* why);
/* Makes a buffer of an allocation that `resource` (lent) made. */
tenure_status actor_adopt(
  void* ptr, size_t bytes, tenure_stream stream, tenure_resource resource, tenure_buffer* out, char* why);

/* Raw memory. */
tenure_status actor_allocate(tenure_resource resource, size_t bytes, tenure_stream stream, void** out, char* why);
tenure_status actor_deallocate(tenure_resource resource, void* ptr, size_t bytes, tenure_stream stream, char* why);
/* The id of the owner of `ptr`; 0 when it is unknown. */
tenure_status actor_owner_of(void* ptr, uint64_t* id, char* why);

/* The table. */
tenure_status actor_set_current(tenure_resource resource, char* why);
tenure_status actor_current_id(uint64_t* id, char* why);
/* Calls `body` while the current resource is bound to `resource` (lent) for this thread. */
tenure_status actor_scope(tenure_resource resource, actor_body body, char* why);

/* Takes both and holds them until the process is gone. */
tenure_status actor_keep(tenure_buffer buffer, tenure_resource resource, char* why);

#ifdef __cplusplus
}
#endif

#endif
