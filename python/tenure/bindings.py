"""For people who write bindings: handles of the C interface in and out of Python objects.

A buffer crosses as its handle (``tenure_buffer``) and carries its resource, its stream and its device with it, so that the
taker is told nothing else. From C use ``tenure/python.h``, from C++ ``tenure/python.hpp``, ``tenure/nanobind.hpp`` or
``tenure/pybind11.hpp``, from Cython ``cimport tenure``; these functions are what all of them call, and what ``ctypes`` code
calls directly. The documentation is in ``bindings.pyi``.
"""

from __future__ import annotations

from pathlib import Path as _Path

from ._tenure import _borrow_buffer as borrow_buffer
from ._tenure import _borrow_resource as borrow_resource
from ._tenure import _borrow_stream as borrow_stream
from ._tenure import _raise_for_status as raise_for_status
from ._tenure import _retain_resource as retain_resource
from ._tenure import _take_buffer as take_buffer
from ._tenure import _wrap_buffer as wrap_buffer
from ._tenure import _wrap_resource as wrap_resource
from ._tenure import _wrap_stream as wrap_stream

CURRENT = (1 << 64) - 1


def get_include():
    here = _Path(__file__).absolute().parent
    # The second is the source tree before it was built.
    for folder in (here / "include", here.parents[1] / "include"):
        if (folder / "tenure" / "tenure.h").is_file():
            return str(folder)
    raise FileNotFoundError(f"the headers of tenure are not in {here}: install tenure again")


__all__ = [
    "CURRENT",
    "borrow_buffer",
    "borrow_resource",
    "borrow_stream",
    "get_include",
    "raise_for_status",
    "retain_resource",
    "take_buffer",
    "wrap_buffer",
    "wrap_resource",
    "wrap_stream",
]
