# SPDX-License-Identifier: Apache-2.0
#
# cython: language_level=3
"""`from tenure cimport cpp`: the C++ types of tenure for Cython, and their way in and out of Python.

    from libcpp.utility cimport move
    from tenure cimport cpp
    from tenure.cpp cimport set_error

    cdef extern from "columns.hpp" nogil:
        cpp.device_buffer read(cpp.cuda_stream_view stream, cpp.resource_ref mr) except +set_error

    def read_column(stream=None, mr=None):
        cdef cpp.cuda_stream_view order = cpp.borrow_stream(stream)
        cdef cpp.resource_ref resource = cpp.borrow_resource(mr)
        cdef cpp.device_buffer buffer
        with nogil:
            buffer = read(order, resource)
        return cpp.wrap(move(buffer))                       # takes it over

`except +set_error` (Cython wants the bare name there) gives the exceptions of tenure's own functions, a Python callback's own exception included. Compile as
C++17 with `-I` and the folder that `tenure.bindings.get_include()` names, and either link libtenure.so.0 or define
`TENURE_HEADER_ONLY`, which finds it in the process.
"""

from libc.stdint cimport uint8_t, uint64_t
from libcpp cimport bool as cpp_bool

cdef extern from "tenure/python.hpp" namespace "tenure::python":
    # For `except +`: the Python exception for whatever C++ exception is being caught.
    void set_error()


cdef extern from "tenure/python.hpp" namespace "tenure" nogil:
    cdef cppclass cuda_stream_view:
        cuda_stream_view()
        void synchronize() except +set_error
        void note_sync() except +set_error
        cpp_bool operator==(cuda_stream_view) const

    cdef cppclass cuda_stream:
        cuda_stream()
        cuda_stream(const cuda_stream &) except +set_error
        cuda_stream_view view() except +set_error
        cpp_bool is_valid() const

    cdef cppclass resource_ref "tenure::mr::resource_ref":
        resource_ref()
        resource_ref(const resource &) except +set_error

    cdef cppclass resource "tenure::mr::resource":
        resource()
        resource(const resource &) except +set_error
        void *allocate(cuda_stream_view, size_t bytes) except +set_error
        void deallocate(cuda_stream_view, void *, size_t bytes) except +set_error
        void allocate_many(cuda_stream_view, const size_t *bytes, size_t count, void **out) except +set_error
        void deallocate_many(cuda_stream_view, void **ptrs, const size_t *bytes, size_t count) except +set_error
        uint64_t id() except +set_error
        void reset()
        cpp_bool operator==(const resource &) const

    cdef cppclass device_buffer:
        device_buffer()
        device_buffer(size_t bytes, cuda_stream_view stream, resource_ref mr) except +set_error
        device_buffer(const void *source, size_t bytes, cuda_stream_view stream, resource_ref mr) except +set_error
        void *data() const
        size_t size() const
        size_t capacity() const
        cuda_stream_view stream() except +set_error
        resource memory_resource() except +set_error
        void resize(size_t bytes, cuda_stream_view) except +set_error
        void set_stream(cuda_stream_view) except +set_error
        void record_stream(cuda_stream_view) except +set_error
        void close() except +set_error

    void copy_async(void *to, const void *source, size_t bytes, cuda_stream_view) except +set_error
    void fill_async(void *to, uint8_t value, size_t bytes, cuda_stream_view) except +set_error


cdef extern from "tenure/python.hpp" namespace "tenure::python":
    # The object owns it from then on; after a failure it was given back.
    object wrap(device_buffer)
    object wrap_resource "tenure::python::wrap" (resource)
    object wrap_stream "tenure::python::wrap" (cuda_stream)

    # A `tenure.Stream` for whatever a user passes as a stream, `None` included. Keep it while what is borrowed from it is used.
    object as_stream(object)

    # The object's still: valid while it lives and is not emptied. `None` is the current resource, or the default stream.
    resource_ref borrow_resource(object) except +set_error
    cuda_stream_view borrow_stream(object) except +set_error

    # One's own.
    device_buffer take_buffer(object) except +set_error
    resource retain_resource(object) except +set_error
