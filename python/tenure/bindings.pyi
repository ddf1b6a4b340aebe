"""For people who write bindings: handles of the C interface in and out of Python objects.

A buffer crosses as its handle (``tenure_buffer``) and carries its resource, its stream and its device with it, so that the
taker is told nothing else. From C use ``tenure/python.h``, from C++ ``tenure/python.hpp``, ``tenure/nanobind.hpp`` or
``tenure/pybind11.hpp``, from Cython ``cimport tenure``; these functions are what all of them call, and what ``ctypes`` code
calls directly.

What a ``wrap_`` function is given belongs to the object from its return on; after a failure it still belongs to the caller.
"""

from typing import Final

from . import DeviceBuffer, Stream
from .mr import DeviceMemoryResource

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

CURRENT: Final[int]
"""``TENURE_RESOURCE_CURRENT``: stands for the current resource where a call of the C interface takes one."""

def wrap_buffer(handle: int) -> DeviceBuffer:
    """A buffer object that takes a native buffer over: with its resource, its stream and its device.

    The handle belongs to the object from then on; the caller must not destroy it.

    Raises:
        ValueError: it is no handle of a buffer.
    """

def borrow_buffer(buffer: DeviceBuffer) -> int:
    """The native buffer of an object. Valid while the object lives and is neither closed nor taken; stays the object's."""

def take_buffer(buffer: DeviceBuffer) -> int:
    """The native buffer of an object, which the caller owns from then on. The object is empty afterwards.

    Raises:
        BufferError: its memory is exported (a memoryview, a DLPack capsule).
    """

def wrap_resource(handle: int) -> DeviceMemoryResource:
    """The object of a native resource, which takes the reference over.

    A resource that has an object already gives that object.
    """

def borrow_resource(mr: DeviceMemoryResource | None) -> int:
    """The native reference of a resource. Valid while the object lives; stays the object's.

    ``None`` gives ``CURRENT``, and makes sure that native code on this thread sees the scope that Python sees.
    """

def retain_resource(mr: DeviceMemoryResource) -> int:
    """A native reference of the caller's own, to be given back with ``tenure_resource_release``."""

def wrap_stream(raw: int, object: int) -> Stream:
    """The object of a native stream (both fields of ``tenure_stream``), which takes the reference in ``object`` over."""

def borrow_stream(stream: Stream | None) -> tuple[int, int]:
    """The fields ``raw`` and ``object`` of the ``tenure_stream`` of a stream. Valid while the object lives.

    ``None`` gives the default stream. Make a ``tenure.Stream`` of a foreign stream first, and keep it.
    """

def raise_for_status(status: int) -> None:
    """Raises what tenure's own functions raise for the last failing call of the C interface on this thread.

    Args:
        status: What that call returned. ``TENURE_OK`` (0) raises nothing.
    """

def get_include() -> str:
    """The folder to pass to a C or C++ compiler with ``-I``: it has ``tenure/tenure.h`` and the other headers."""
