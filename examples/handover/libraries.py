"""The two native libraries of the example, through ctypes.

What crosses is a handle. It carries the resource, the stream and the device with it, so that the taker is told nothing else
and can guess nothing wrong.
"""

import ctypes
import os
from pathlib import Path

from tenure import bindings

ROOM = 512


class StreamValue(ctypes.Structure):
    """`tenure_stream` of tenure.h."""

    _fields_ = [("raw", ctypes.c_void_p), ("object", ctypes.c_uint64)]


class Summary(ctypes.Structure):
    """What the Rust library knows of a column."""

    _fields_ = [("rows", ctypes.c_uint64), ("sum", ctypes.c_int64), ("largest", ctypes.c_int64)]


def folder():
    """Where the libraries were built."""
    default = Path(__file__).resolve().parents[2] / "build" / "handover"
    return Path(os.environ.get("HANDOVER_LIBRARIES", default))


def call(function, *arguments):
    """Calls a function that writes why it failed."""
    why = ctypes.create_string_buffer(ROOM)
    if function(*arguments, why, ctypes.c_size_t(ROOM)) != 0:
        raise RuntimeError(f"{function.__name__}: {why.value.decode()}")


def stream_value(stream):
    """A stream as C has it. The caller keeps `stream`."""
    return StreamValue(*bindings.borrow_stream(stream))


class Columns:
    """The C++ library: reads columns of CSV files into device memory."""

    name = "C++"

    def __init__(self):
        self._library = ctypes.CDLL(str(folder() / "libcolumns.so"))

    def read(self, path, column, stream, mr=None):
        """A column as a `tenure.DeviceBuffer`, allocated by C++ under `mr` (None: the current resource)."""
        resource = bindings.CURRENT if mr is None else bindings.borrow_resource(mr)
        out = ctypes.c_uint64()
        call(
            self._library.columns_read,
            str(path).encode(),
            column.encode(),
            stream_value(stream),
            ctypes.c_uint64(resource),
            ctypes.byref(out),
        )
        return bindings.wrap_buffer(out.value)

    def set_current(self, mr):
        """Replaces the current resource, from C++."""
        call(self._library.columns_set_current, ctypes.c_uint64(bindings.borrow_resource(mr)))

    def current_id(self):
        """The id of the current resource as C++ sees it."""
        out = ctypes.c_uint64()
        call(self._library.columns_current_id, ctypes.byref(out))
        return out.value

    def free(self, buffer):
        """Frees a buffer in C++."""
        call(self._library.columns_free, ctypes.c_uint64(bindings.take_buffer(buffer)))


class Statistics:
    """The Rust library: computes on columns that others made."""

    name = "Rust"

    def __init__(self):
        self._library = ctypes.CDLL(str(folder() / "libhandover_summary.so"))

    def summary(self, buffer):
        """Rows, sum and largest value, computed on a stream of the library's own."""
        out = Summary()
        handle = ctypes.c_uint64(bindings.borrow_buffer(buffer))
        call(self._library.summary_of, handle, ctypes.byref(out))
        return out.rows, out.sum, out.largest

    def running_sum(self, buffer, mr):
        """A new column, allocated by Rust under `mr`."""
        out = ctypes.c_uint64()
        call(
            self._library.summary_running_sum,
            ctypes.c_uint64(bindings.borrow_buffer(buffer)),
            ctypes.c_uint64(bindings.borrow_resource(mr)),
            ctypes.byref(out),
        )
        return bindings.wrap_buffer(out.value)

    def set_current(self, mr):
        """Replaces the current resource, from Rust."""
        call(self._library.summary_set_current, ctypes.c_uint64(bindings.borrow_resource(mr)))

    def current_id(self):
        """The id of the current resource as Rust sees it."""
        out = ctypes.c_uint64()
        call(self._library.summary_current_id, ctypes.byref(out))
        return out.value

    def free(self, buffer):
        """Frees a buffer in Rust."""
        call(self._library.summary_free, ctypes.c_uint64(bindings.take_buffer(buffer)))
