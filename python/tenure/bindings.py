"""For people who write bindings: handles of the C interface in and out of Python objects.

A buffer crosses as its handle (``tenure_buffer``) and carries its resource, its stream and its device with it, so that the
taker is told nothing else. From C and C++ use ``tenure/python.h``, from Cython ``tenure.pxd``; these functions are what
both call, and what ``ctypes`` code calls directly. The documentation is in ``bindings.pyi``.
"""

from __future__ import annotations

from ._tenure import _borrow_buffer as borrow_buffer
from ._tenure import _borrow_resource as borrow_resource
from ._tenure import _borrow_stream as borrow_stream
from ._tenure import _retain_resource as retain_resource
from ._tenure import _take_buffer as take_buffer
from ._tenure import _wrap_buffer as wrap_buffer
from ._tenure import _wrap_resource as wrap_resource
from ._tenure import _wrap_stream as wrap_stream

CURRENT = (1 << 64) - 1

__all__ = [
    "CURRENT",
    "borrow_buffer",
    "borrow_resource",
    "borrow_stream",
    "retain_resource",
    "take_buffer",
    "wrap_buffer",
    "wrap_resource",
    "wrap_stream",
]
