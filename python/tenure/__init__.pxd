# SPDX-License-Identifier: Apache-2.0
#
# cython: language_level=3
"""`cimport tenure`: the C interface of tenure for Cython, and its objects in and out of Python.

    cimport tenure

    def read_column(stream=None, mr=None):
        cdef tenure.tenure_resource resource = tenure.borrow_resource(mr)     # None: the current one
        cdef tenure.tenure_stream order = tenure.borrow_stream(stream)        # None: the default one
        cdef tenure.tenure_buffer buffer = 0
        cdef tenure.tenure_status status
        with nogil:
            status = my_read(order, resource, &buffer)
        tenure.check(status)
        return tenure.wrap_buffer(buffer)                                     # takes it over

Wrapping takes no resource, no stream and no device: the buffer knows them. C++ has its types in `from tenure cimport cpp`.

Nothing is linked: the functions of `tenure.h` are members of the table that `tenure.api()` gives, which is the table of the
Python package (`tenure.api().buffer_create(...)`). Compile with `-I` and the folder that `tenure.bindings.get_include()`
names. Let go of the GIL around calls that allocate or free. What each function does is said in `tenure.h` and `python.h`.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from "tenure/tenure.h" nogil:
    ctypedef int32_t tenure_status
    ctypedef uint64_t tenure_resource
    ctypedef uint64_t tenure_buffer
    ctypedef uint64_t tenure_stream_object
    ctypedef uint64_t tenure_scope
    ctypedef uint64_t tenure_listener
    ctypedef uint64_t tenure_statistics_scope
    ctypedef uint64_t tenure_low_memory_hook
    ctypedef uint64_t tenure_stream_pool
    ctypedef uint64_t tenure_shared_arena
    ctypedef uint64_t tenure_capture_scope
    ctypedef uint64_t tenure_graph
    ctypedef uint64_t tenure_tag

    int TENURE_ABI_VERSION
    int TENURE_OK
    int TENURE_OK_COLLECT
    int TENURE_ERROR_OUT_OF_MEMORY
    int TENURE_ERROR_OWNERSHIP
    int TENURE_ERROR_CUDA
    int TENURE_ERROR_INVALID_ARGUMENT
    int TENURE_ERROR_UNSUPPORTED
    int TENURE_ERROR_WOULD_BLOCK
    int TENURE_ERROR_BAD_HANDLE
    int TENURE_ERROR_FORKED
    int TENURE_ERROR_EXITING
    int TENURE_ERROR_CALLBACK
    int TENURE_ERROR_NO_DEVICE
    int TENURE_ERROR_INTERNAL
    int TENURE_DEVICE_ACCESSIBLE
    int TENURE_HOST_ACCESSIBLE
    int TENURE_MANAGED
    int TENURE_STREAM_ORDERED
    int TENURE_EXPORTABLE
    int TENURE_HANDLE_FD
    int TENURE_HANDLE_FABRIC
    int TENURE_HANDLE_LEGACY
    int TENURE_HOST
    int TENURE_DEVICE_OF_MEMORY
    int TENURE_INTERPRETED
    int TENURE_BY_TAG
    int TENURE_BY_THREAD
    int TENURE_BY_RESOURCE

    const tenure_resource TENURE_RESOURCE_NULL
    const tenure_resource TENURE_RESOURCE_CURRENT

    ctypedef struct tenure_stream:
        void *raw
        tenure_stream_object object

    const tenure_stream TENURE_STREAM_LEGACY
    const tenure_stream TENURE_STREAM_PER_THREAD
    tenure_stream tenure_stream_of(void *raw)

    ctypedef struct tenure_owner:
        void *context
        void (*release)(void *context) noexcept nogil

    ctypedef struct tenure_text:
        const char *data
        size_t size

    ctypedef struct tenure_error:
        size_t size
        tenure_status status
        int32_t cuda_code
        const char *message
        const char *cuda_name
        const char *cuda_call
        uint64_t requested
        uint64_t live
        uint64_t reserved
        uint64_t limit
        uint64_t largest_free
        uint64_t driver_free
        uint64_t driver_total
        const char *resource
        uint64_t ptr
        uint64_t bytes
        uint64_t asked
        uint64_t owner
        uint64_t owner_bytes
        uint32_t payload_kind
        uint32_t misuse_kind
        uint64_t cached
        uint64_t unproven
        const char *pending
        const char *tried
        const char *notes

    ctypedef struct tenure_async_options:
        size_t size
        uint64_t initial_bytes
        uint64_t release_threshold
        uint32_t has_release_threshold
        int32_t device
        uint32_t handle_type
        uint32_t stream_outlives_buffer

    ctypedef struct tenure_pool_options:
        size_t size
        uint64_t initial_bytes
        uint64_t maximum_bytes
        uint64_t release_threshold
        int32_t device
        uint32_t prefer_footprint
        uint32_t assume_no_capture
        uint32_t plain_chunks
        uint32_t no_remap
        uint32_t grow_ahead
        uint64_t decay_ms
        uint64_t chunk_bytes

    ctypedef struct tenure_fixed_size_options:
        size_t size
        uint64_t block_size
        uint64_t blocks_to_preallocate
        int32_t device
        uint32_t rdma
        uint64_t peers

    ctypedef struct tenure_binning_options:
        size_t size
        uint32_t has_exponents
        int32_t min_size_exponent
        int32_t max_size_exponent
        int32_t device

    ctypedef struct tenure_arena_options:
        size_t size
        uint64_t arena_size
        int32_t device
        uint32_t dump_log_on_failure

    ctypedef struct tenure_request:
        size_t size
        size_t bytes
        size_t alignment
        uint64_t owner
        uint32_t flags

    ctypedef struct tenure_resource_vtable:
        size_t size
        const char *kind
        uint32_t properties
        int32_t device
        tenure_status (*allocate)(void *context, const tenure_request *request, tenure_stream stream, void **out) noexcept nogil
        tenure_status (*deallocate)(void *context, void *ptr, const tenure_request *request, tenure_stream stream) noexcept nogil
        tenure_status (*trim)(void *context, size_t keep_bytes, size_t *released) noexcept nogil
        void (*drop)(void *context) noexcept nogil

    ctypedef struct tenure_info:
        size_t size
        uint64_t live_bytes
        uint64_t cached_bytes
        uint64_t reserved_bytes
        uint64_t largest_free_bytes
        uint64_t peak_live_bytes
        uint64_t peak_reserved_bytes
        uint64_t live_count
        uint64_t unproven_bytes
        uint64_t device_proofs
        uint64_t own_ranges

    ctypedef struct tenure_statistics:
        size_t size
        int64_t current_bytes
        int64_t current_count
        int64_t peak_bytes
        int64_t peak_count
        int64_t total_bytes
        int64_t total_count

    ctypedef struct tenure_detached:
        size_t size
        void *ptr
        size_t bytes
        size_t capacity
        size_t alignment
        tenure_resource resource
        tenure_stream stream

    struct tenure_device_info:
        size_t size
        char name[128]
        uint64_t free_bytes
        uint64_t total_bytes
        uint32_t simulated
        uint32_t virtual_memory
        uint32_t memory_pools
        uint32_t managed_memory
        uint32_t pageable_access
        int32_t compute_major
        int32_t compute_minor
        uint8_t uuid[16]

    struct tenure_account:
        size_t size
        const char *name
        uint64_t id
        uint64_t live_bytes
        uint64_t live_count
        uint64_t peak_bytes
        uint64_t peak_count
        uint64_t total_bytes
        uint64_t total_count

    struct tenure_buffer_view:
        size_t size
        void *ptr
        size_t bytes
        size_t capacity
        size_t alignment
        uint64_t resource_id
        tenure_stream stream
        int32_t device
        uint32_t properties

    ctypedef void (*tenure_misuse_fn)(void *context, const char *message) noexcept nogil
    ctypedef void (*tenure_free_fn)(void *context, void *ptr, size_t bytes, tenure_stream stream) noexcept nogil
    ctypedef void (*tenure_listener_fn)(
        void *context, int32_t device, tenure_resource resource, uint64_t version) noexcept nogil
    ctypedef tenure_status (*tenure_low_memory_fn)(
        void *context, int32_t device, uint64_t bytes, uint64_t *released) noexcept nogil
    ctypedef size_t (*tenure_stack_fn)(void *context, char *text, size_t room) noexcept nogil
    ctypedef int32_t (*tenure_account_fn)(void *context, const tenure_account *account) noexcept nogil
    ctypedef tenure_status (*tenure_failure_fn)(void *context, size_t bytes, uint32_t *again) noexcept nogil
    ctypedef struct tenure_tracked:
        size_t size
        void *ptr
        size_t bytes
        const char *stack
    ctypedef struct tenure_shared:
        void *data
        size_t data_bytes
        int32_t *fds
        size_t fd_count
    ctypedef struct tenure_shared_view:
        size_t size
        uint64_t bytes
        uint64_t fd_count
        uint32_t kind
        uint32_t pid
        uint8_t uuid[16]
    ctypedef int32_t (*tenure_tracked_fn)(void *context, const tenure_tracked *block) noexcept nogil
    ctypedef int32_t (*tenure_progress_fn)(void *context, uint64_t done, uint64_t total) noexcept nogil

    ctypedef struct tenure_api:
        uint32_t abi
        uint32_t size
        const char *(*version)() noexcept nogil
        tenure_status (*error_get)(tenure_error *out) noexcept nogil
        tenure_status (*error_set)(
            tenure_status status, const char *message, uint32_t payload_kind, void *payload, void (*release)(void *) noexcept nogil) noexcept nogil
        tenure_status (*error_take_payload)(uint32_t payload_kind, void **out) noexcept nogil
        tenure_status (*misuse_count)(uint64_t *out) noexcept nogil
        tenure_status (*misuse_set_handler)(tenure_misuse_fn handler, tenure_owner owner) noexcept nogil
        tenure_status (*misuse_report)() noexcept nogil
        tenure_status (*collect)() noexcept nogil
        tenure_status (*interpreter_exit)() noexcept nogil
        tenure_status (*describe)(tenure_text *out) noexcept nogil
        tenure_status (*text_free)(tenure_text *text) noexcept nogil
        tenure_status (*device_count)(int32_t *out) noexcept nogil
        tenure_status (*device_get_current)(int32_t *out) noexcept nogil
        tenure_status (*device_set_current)(int32_t device) noexcept nogil
        tenure_status (*device_info)(int32_t device, tenure_device_info *out) noexcept nogil
        tenure_status (*device_synchronize)(int32_t device) noexcept nogil
        tenure_status (*stream_create)(int32_t device, uint32_t non_blocking, tenure_stream *out) noexcept nogil
        tenure_status (*stream_wrap)(void *raw, int32_t device, tenure_owner owner, tenure_stream *out) noexcept nogil
        tenure_status (*stream_immortal)(void *raw, int32_t device, tenure_stream *out) noexcept nogil
        tenure_status (*stream_retain)(tenure_stream_object stream) noexcept nogil
        tenure_status (*stream_release)(tenure_stream_object stream) noexcept nogil
        tenure_status (*stream_device)(tenure_stream stream, int32_t *out) noexcept nogil
        tenure_status (*stream_synchronize)(tenure_stream stream) noexcept nogil
        tenure_status (*stream_query)(tenure_stream stream, uint32_t *out) noexcept nogil
        tenure_status (*stream_wait_stream)(tenure_stream stream, tenure_stream other) noexcept nogil
        tenure_status (*copy_async)(void *to, const void *source, size_t bytes, tenure_stream stream) noexcept nogil
        tenure_status (*fill_async)(void *to, uint8_t value, size_t bytes, tenure_stream stream) noexcept nogil
        tenure_status (*cuda_resource)(tenure_resource *out) noexcept nogil
        tenure_status (*managed_resource)(tenure_resource *out) noexcept nogil
        tenure_status (*pinned_resource)(tenure_resource *out) noexcept nogil
        tenure_status (*system_resource)(tenure_resource *out) noexcept nogil
        tenure_status (*async_resource_create)(const tenure_async_options *options, tenure_resource *out) noexcept nogil
        tenure_status (*async_view_create)(void *pool_handle, int32_t device, tenure_resource *out) noexcept nogil
        tenure_status (*pool_create)(
            tenure_resource upstream, const tenure_pool_options *options, tenure_resource *out) noexcept nogil
        tenure_status (*limiting_create)(tenure_resource upstream, uint64_t limit, tenure_resource *out) noexcept nogil
        tenure_status (*statistics_create)(tenure_resource upstream, tenure_resource *out) noexcept nogil
        tenure_status (*callback_create)(
            const tenure_resource_vtable *vtable, void *context, tenure_resource *out) noexcept nogil
        tenure_status (*resource_retain)(tenure_resource resource, tenure_resource *out) noexcept nogil
        tenure_status (*resource_retain_light)(tenure_resource resource, tenure_resource *out) noexcept nogil
        tenure_status (*resource_release)(tenure_resource resource) noexcept nogil
        tenure_status (*resource_try_release)(tenure_resource resource) noexcept nogil
        tenure_status (*resource_id)(tenure_resource resource, uint64_t *out) noexcept nogil
        tenure_status (*resource_from_id)(uint64_t id, tenure_resource *out) noexcept nogil
        tenure_status (*resource_same)(tenure_resource a, tenure_resource b, uint32_t *out) noexcept nogil
        tenure_status (*resource_kind)(tenure_resource resource, const char **out) noexcept nogil
        tenure_status (*resource_device)(tenure_resource resource, int32_t *out) noexcept nogil
        tenure_status (*resource_properties)(tenure_resource resource, uint32_t *out) noexcept nogil
        tenure_status (*resource_info)(tenure_resource resource, tenure_info *out) noexcept nogil
        tenure_status (*resource_upstream)(tenure_resource resource, tenure_resource *out) noexcept nogil
        tenure_status (*resource_property)(tenure_resource resource, const char *name, uint64_t *out) noexcept nogil
        tenure_status (*resource_owns)(tenure_resource resource, const void *ptr, uint32_t *out) noexcept nogil
        tenure_status (*resource_trim)(tenure_resource resource, size_t keep_bytes, size_t *released) noexcept nogil
        tenure_status (*statistics_get)(tenure_resource resource, tenure_statistics *out) noexcept nogil
        tenure_status (*statistics_push)(tenure_resource resource, tenure_statistics *out) noexcept nogil
        tenure_status (*statistics_pop)(tenure_resource resource, tenure_statistics *out) noexcept nogil
        tenure_status (*callback_context)(
            tenure_resource resource, void (*drop)(void *) noexcept nogil, void **out) noexcept nogil
        tenure_status (*allocate)(
            tenure_resource resource, size_t bytes, size_t alignment, tenure_stream stream, void **out) noexcept nogil
        tenure_status (*deallocate)(
            tenure_resource resource, void *ptr, size_t bytes, size_t alignment, tenure_stream stream) noexcept nogil
        tenure_status (*try_allocate)(
            tenure_resource resource, size_t bytes, size_t alignment, tenure_stream stream, void **out) noexcept nogil
        tenure_status (*try_deallocate)(
            tenure_resource resource, void *ptr, size_t bytes, size_t alignment, tenure_stream stream) noexcept nogil
        tenure_status (*allocate_sync)(tenure_resource resource, size_t bytes, size_t alignment, void **out) noexcept nogil
        tenure_status (*deallocate_sync)(tenure_resource resource, void *ptr, size_t bytes, size_t alignment) noexcept nogil
        tenure_status (*owner_of)(const void *ptr, tenure_resource *resource, void **base, size_t *bytes) noexcept nogil
        tenure_status (*current_get)(int32_t device, tenure_resource *out) noexcept nogil
        tenure_status (*current_set)(int32_t device, tenure_resource resource, tenure_resource *previous) noexcept nogil
        tenure_status (*current_reset)(int32_t device, tenure_resource *previous) noexcept nogil
        tenure_status (*scope_enter)(int32_t device, tenure_resource resource, tenure_scope *out) noexcept nogil
        tenure_status (*scope_exit)(tenure_scope scope) noexcept nogil
        tenure_status (*listener_add)(tenure_listener_fn listener, tenure_owner owner, tenure_listener *out) noexcept nogil
        tenure_status (*listener_remove)(tenure_listener listener) noexcept nogil
        tenure_status (*buffer_create)(
            size_t bytes, size_t alignment, tenure_stream stream, tenure_resource resource, tenure_buffer *out) noexcept nogil
        tenure_status (*buffer_try_create)(
            size_t bytes, size_t alignment, tenure_stream stream, tenure_resource resource, tenure_buffer *out) noexcept nogil
        tenure_status (*buffer_adopt)(
            void *ptr, size_t bytes, size_t alignment, tenure_stream stream, tenure_resource resource, tenure_buffer *out) noexcept nogil
        tenure_status (*buffer_adopt_foreign)(
            void *ptr, size_t bytes, int32_t device, tenure_stream stream, tenure_free_fn free_fn, tenure_owner owner, tenure_buffer *out) noexcept nogil
        tenure_status (*buffer_destroy)(tenure_buffer buffer) noexcept nogil
        tenure_status (*buffer_try_destroy)(tenure_buffer buffer) noexcept nogil
        tenure_status (*buffer_close)(tenure_buffer buffer, const tenure_stream *stream) noexcept nogil
        tenure_status (*buffer_detach)(tenure_buffer buffer, tenure_detached *out) noexcept nogil
        tenure_status (*buffer_view)(tenure_buffer buffer, tenure_buffer_view *out) noexcept nogil
        tenure_status (*buffer_resource)(tenure_buffer buffer, tenure_resource *out) noexcept nogil
        tenure_status (*buffer_resize)(tenure_buffer buffer, size_t bytes, tenure_stream stream) noexcept nogil
        tenure_status (*buffer_reserve)(tenure_buffer buffer, size_t bytes, tenure_stream stream) noexcept nogil
        tenure_status (*buffer_shrink_to_fit)(tenure_buffer buffer, tenure_stream stream) noexcept nogil
        tenure_status (*buffer_copy)(
            tenure_buffer buffer, tenure_stream stream, tenure_resource resource, tenure_buffer *out) noexcept nogil
        tenure_status (*buffer_set_stream)(tenure_buffer buffer, tenure_stream stream) noexcept nogil
        tenure_status (*buffer_record_stream)(tenure_buffer buffer, tenure_stream stream) noexcept nogil
        tenure_status (*replay)(
            const char *options, tenure_progress_fn progress, void *context, tenure_text *out) noexcept nogil
        tenure_status (*sim_configure)(int32_t devices, uint64_t memory_bytes) noexcept nogil
        tenure_status (*sim_busy)(tenure_stream stream, uint32_t milliseconds) noexcept nogil
        tenure_status (*sim_fail_next)(const char *call, int32_t code, uint64_t after) noexcept nogil
        tenure_status (*sim_fail_clear)() noexcept nogil
        tenure_status (*sim_violations)(uint64_t *out) noexcept nogil
        tenure_status (*driver_calls)(const char *call, uint64_t *out) noexcept nogil
        tenure_status (*sim_active)(uint32_t *out) noexcept nogil
        tenure_status (*sim_set_memory)(int32_t device, uint64_t memory_bytes) noexcept nogil
        tenure_status (*device_used)(int32_t device, uint64_t *out) noexcept nogil
        tenure_status (*fixed_size_create)(
            tenure_resource upstream, const tenure_fixed_size_options *options, tenure_resource *out) noexcept nogil
        tenure_status (*binning_create)(
            tenure_resource upstream, const tenure_binning_options *options, tenure_resource *out) noexcept nogil
        tenure_status (*binning_add_bin)(
            tenure_resource binning, uint64_t allocation_size, tenure_resource bin_resource) noexcept nogil
        tenure_status (*binning_bin)(
            tenure_resource binning, uint32_t index, uint64_t *allocation_size, tenure_resource *out) noexcept nogil
        tenure_status (*arena_create)(
            tenure_resource upstream, const tenure_arena_options *options, tenure_resource *out) noexcept nogil
        tenure_status (*low_memory_add)(tenure_low_memory_fn hook, tenure_owner owner, tenure_low_memory_hook *out) noexcept nogil
        tenure_status (*low_memory_remove)(tenure_low_memory_hook hook) noexcept nogil
        tenure_status (*low_memory)(int32_t device, uint64_t bytes, uint64_t *released) noexcept nogil
        tenure_status (*shared_arena_create)(tenure_shared_arena *out) noexcept nogil
        tenure_status (*shared_arena_release)(tenure_shared_arena arena) noexcept nogil
        tenure_status (*capture_scope_enter)(
            tenure_stream stream, tenure_shared_arena arena, tenure_capture_scope *out) noexcept nogil
        tenure_status (*capture_scope_exit)(tenure_capture_scope scope) noexcept nogil
        tenure_status (*sim_capture_begin)(tenure_stream stream, uint32_t mode) noexcept nogil
        tenure_status (*sim_capture_end)(tenure_stream stream, tenure_graph *out) noexcept nogil
        tenure_status (*sim_graph_launch)(tenure_graph graph, tenure_stream stream) noexcept nogil
        tenure_status (*sim_graph_destroy)(tenure_graph graph) noexcept nogil
        tenure_status (*allocate_many)(
            tenure_resource resource, size_t count, const size_t *bytes, size_t alignment, tenure_stream stream, void **out) noexcept nogil
        tenure_status (*deallocate_many)(
            tenure_resource resource, size_t count, void **ptrs, const size_t *bytes, size_t alignment, tenure_stream stream,
            size_t *wrong) noexcept nogil
        tenure_status (*buffer_create_many)(
            size_t count, const size_t *bytes, size_t alignment, tenure_stream stream, tenure_resource resource, tenure_buffer *out) noexcept nogil
        tenure_status (*note_sync)(tenure_stream stream) noexcept nogil
        tenure_status (*note_wait)(tenure_stream stream, tenure_stream other) noexcept nogil
        tenure_status (*stream_pool_create)(
            int32_t device, size_t streams, uint32_t non_blocking, tenure_stream_pool *out) noexcept nogil
        tenure_status (*stream_pool_size)(tenure_stream_pool pool, size_t *out) noexcept nogil
        tenure_status (*stream_pool_next)(tenure_stream_pool pool, tenure_stream *out) noexcept nogil
        tenure_status (*stream_pool_at)(tenure_stream_pool pool, size_t number, tenure_stream *out) noexcept nogil
        tenure_status (*stream_pool_release)(tenure_stream_pool pool) noexcept nogil
        tenure_status (*logging_create)(
            tenure_resource upstream, const char *name, uint32_t per_device, tenure_resource *out) noexcept nogil
        tenure_status (*logging_flush)(tenure_resource resource) noexcept nogil
        tenure_status (*logging_file_name)(tenure_resource resource, tenure_text *out) noexcept nogil
        tenure_status (*statistics_scope_open)(tenure_resource resource, tenure_statistics_scope *out) noexcept nogil
        tenure_status (*statistics_scope_get)(tenure_statistics_scope scope, tenure_statistics *out) noexcept nogil
        tenure_status (*statistics_scope_close)(tenure_statistics_scope scope, tenure_statistics *out) noexcept nogil
        tenure_status (*statistics_scope_enter)(
            tenure_statistics_scope scope, tenure_statistics_scope *previous) noexcept nogil
        tenure_status (*tag_push)(const char *name, tenure_tag *out) noexcept nogil
        tenure_status (*tag_pop)(tenure_tag tag) noexcept nogil
        tenure_status (*observe)(uint32_t on) noexcept nogil
        tenure_status (*usage)(uint32_t by, tenure_account_fn visitor, void *context) noexcept nogil
        tenure_status (*memory_snapshot)(tenure_text *out) noexcept nogil
        tenure_status (*history_record)(uint32_t on, uint32_t stacks, size_t max_entries) noexcept nogil
        tenure_status (*error_explain)() noexcept nogil
        tenure_status (*tracking_create)(tenure_resource upstream, uint32_t capture_stacks, tenure_resource *out) noexcept nogil
        tenure_status (*tracking_list)(tenure_resource resource, tenure_tracked_fn visit, void *context) noexcept nogil
        tenure_status (*tracking_text)(tenure_resource resource, tenure_text *out) noexcept nogil
        tenure_status (*failure_callback_create)(
            tenure_resource upstream, tenure_failure_fn callback, tenure_owner owner, tenure_resource *out) noexcept nogil
        tenure_status (*prefetch_create)(tenure_resource upstream, tenure_resource *out) noexcept nogil
        tenure_status (*aligned_create)(
            tenure_resource upstream, size_t alignment, size_t threshold, tenure_resource *out) noexcept nogil
        tenure_status (*thread_safe_create)(tenure_resource upstream, tenure_resource *out) noexcept nogil
        tenure_status (*sam_headroom_create)(uint64_t headroom, tenure_resource *out) noexcept nogil
        tenure_status (*async_managed_create)(int32_t device, tenure_resource *out) noexcept nogil
        tenure_status (*prefetch)(
            const void *ptr, size_t bytes, int32_t device, tenure_stream stream, uint32_t *told) noexcept nogil
        tenure_status (*buffer_prefetch)(
            tenure_buffer buffer, int32_t device, const tenure_stream *stream, uint32_t *told) noexcept nogil
        tenure_status (*stack_set_source)(tenure_stack_fn source, tenure_owner owner) noexcept nogil
        tenure_status (*resource_exports)(tenure_resource resource, uint32_t *out) noexcept nogil
        tenure_status (*buffer_share)(tenure_buffer buffer, uint32_t kinds, tenure_shared *out) noexcept nogil
        tenure_status (*shared_free)(tenure_shared *shared) noexcept nogil
        tenure_status (*shared_info)(const void *data, size_t data_bytes, tenure_shared_view *out) noexcept nogil
        tenure_status (*buffer_import)(
            const void *data, size_t data_bytes, const int32_t *fds, size_t fd_count, int32_t device, tenure_stream stream,
            tenure_buffer *out) noexcept nogil
        tenure_status (*report_begin)(uint32_t on, uint32_t stacks) noexcept nogil
        tenure_status (*report)(tenure_text *out) noexcept nogil
        tenure_status (*library_number)(const char *name, uint32_t *out) noexcept nogil
        tenure_status (*library_set)(uint32_t library, uint32_t *previous) noexcept nogil


cdef extern from "tenure/python.h":
    const tenure_api *api "tenure_python_api" () except NULL
    # The exception for a status that is not TENURE_OK: that of tenure's own functions.
    int check "tenure_python_check" (tenure_status status) except -1

    # The object owns it from then on; after a failure it was given back.
    object wrap_buffer "tenure_python_wrap_buffer" (tenure_buffer buffer)
    object wrap_resource "tenure_python_wrap_resource" (tenure_resource resource)
    object wrap_stream "tenure_python_wrap_stream" (tenure_stream stream)

    int tenure_python_borrow_buffer(object source, tenure_buffer *out) except -1
    int tenure_python_take_buffer(object source, tenure_buffer *out) except -1
    int tenure_python_borrow_resource(object source, tenure_resource *out) except -1
    int tenure_python_retain_resource(object source, tenure_resource *out) except -1
    int tenure_python_borrow_stream(object source, tenure_stream *out) except -1
    int tenure_python_retain_stream(object source, tenure_stream *out) except -1


# The object's still: valid while it lives and is not emptied.
cdef inline tenure_buffer borrow_buffer(object source) except? 0:
    cdef tenure_buffer out = 0
    tenure_python_borrow_buffer(source, &out)
    return out


# The caller's, who gives it back with `api().buffer_destroy`. The object is empty afterwards.
cdef inline tenure_buffer take_buffer(object source) except? 0:
    cdef tenure_buffer out = 0
    tenure_python_take_buffer(source, &out)
    return out


# The object's still; `None` gives TENURE_RESOURCE_CURRENT.
cdef inline tenure_resource borrow_resource(object source) except? 0:
    cdef tenure_resource out = 0
    tenure_python_borrow_resource(source, &out)
    return out


# A reference of the caller's own, who gives it back with `api().resource_release`.
cdef inline tenure_resource retain_resource(object source) except? 0:
    cdef tenure_resource out = 0
    tenure_python_retain_resource(source, &out)
    return out


# The object's still; `None` gives the default stream. Make a `tenure.Stream` of a foreign stream first, and keep it.
cdef inline tenure_stream borrow_stream(object source) except *:
    cdef tenure_stream out
    tenure_python_borrow_stream(source, &out)
    return out


# The same with a reference of the caller's own, who gives `object` (if it is not 0) back with `api().stream_release`.
cdef inline tenure_stream retain_stream(object source) except *:
    cdef tenure_stream out
    tenure_python_retain_stream(source, &out)
    return out
