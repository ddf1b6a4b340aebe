/* The library that is bound with ctypes, in C: what crosses is a handle, and nothing else is needed. */

#include <tenure/tenure.h>

/* `n` bytes under `mr`, each 42, ready in the order of `stream`. `TENURE_RESOURCE_CURRENT`: the current resource. */
tenure_status column_make(size_t n, tenure_stream stream, tenure_resource mr, tenure_buffer* out)
{
  struct tenure_buffer_view view = {0};
  tenure_buffer made;
  tenure_status status = tenure_buffer_create(n, 0, stream, mr, &made);
  if (status != TENURE_OK) { return status; }
  view.size = sizeof view;
  status    = tenure_buffer_view(made, &view);
  if (status == TENURE_OK && n != 0) { status = tenure_fill_async(view.ptr, 42, n, stream); }
  if (status != TENURE_OK) {
    (void)tenure_buffer_destroy(made);
    return status;
  }
  *out = made;
  return TENURE_OK;
}

/* Takes a column over and frees it: in the order of its own stream, into the resource that made it. */
tenure_status column_free(tenure_buffer column) { return tenure_buffer_destroy(column); }
