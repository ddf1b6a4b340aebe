"""ctypes: the C library as it is, and four functions of `tenure.bindings`."""

import ctypes
from pathlib import Path

import tenure
from tenure import bindings


class StreamValue(ctypes.Structure):
    """`tenure_stream` of tenure.h."""

    _fields_ = [("raw", ctypes.c_void_p), ("object", ctypes.c_uint64)]


# tenure was imported first, so its library is in the process, and the loader finds it by its name. ctypes lets go of the
# GIL during each call: a free may wait, and may call a resource of Python functions.
_library = ctypes.CDLL(str(Path(__file__).with_name("libcolumn.so")))
_library.column_make.argtypes = [ctypes.c_size_t, StreamValue, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)]
_library.column_free.argtypes = [ctypes.c_uint64]


def make_column(n, stream=None, mr=None):
    """`n` bytes under `mr` (`None`: the current resource), each 42, ready in the order of `stream`."""
    # A foreign stream is held, with its owner, until the call is done.
    stream = None if stream is None else tenure.Stream(stream)
    made = ctypes.c_uint64()
    resource = bindings.borrow_resource(mr)
    bindings.raise_for_status(
        _library.column_make(n, StreamValue(*bindings.borrow_stream(stream)), resource, ctypes.byref(made))
    )
    return bindings.wrap_buffer(made.value)


def free_column(column):
    """Takes a column over and frees it natively. The Python object is empty afterwards."""
    bindings.raise_for_status(_library.column_free(bindings.take_buffer(column)))
