# distutils: language = c++
# Cython: `cimport tenure` has the C interface, `from tenure cimport cpp` the C++ types.

cimport tenure
from libcpp.utility cimport move
from tenure cimport cpp
from tenure.cpp cimport set_error


cdef extern from "../column.hpp" namespace "column" nogil:
    cpp.device_buffer native_make "column::make_column" (
        size_t n, cpp.cuda_stream_view stream, cpp.resource_ref mr) except +set_error
    void native_free "column::free_column" (cpp.device_buffer column) except +set_error


def make_column(size_t n, stream=None, mr=None):
    """`n` bytes under `mr` (`None`: the current resource), each 42, ready in the order of `stream`."""
    stream = cpp.as_stream(stream)  # a foreign stream is held, with its owner, until the call is done
    cdef cpp.cuda_stream_view order = cpp.borrow_stream(stream)
    cdef cpp.resource_ref resource = cpp.borrow_resource(mr)
    cdef cpp.device_buffer made
    with nogil:
        made = native_make(n, order, resource)
    return cpp.wrap(move(made))


def free_column(column):
    """Takes a column over and frees it natively. The Python object is empty afterwards."""
    cdef cpp.device_buffer taken = cpp.take_buffer(column)
    with nogil:
        native_free(move(taken))
