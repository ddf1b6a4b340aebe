"""For people who write bindings: handles of the C interface in and out of Python objects.

A buffer crosses as its handle (``tenure_buffer``) and carries its resource, its stream and its device with it, so that the
taker is told nothing else. From C and C++ use ``tenure/python.h``, from Cython ``tenure.pxd``; these functions are what
both call, and what ``ctypes`` code calls directly.
"""

from typing import Final

from . import DeviceBuffer, Stream
from .mr import DeviceMemoryResource

CURRENT: Final[int]
"""``TENURE_RESOURCE_CURRENT``: stands for the current resource where a call of the C interface takes one."""

def wrap_buffer(handle: int) -> DeviceBuffer:
    """A buffer object that takes a native buffer over: with its resource, its stream and its device.

    The handle belongs to the object from then on; the caller must not destroy it.
    """

def borrow_buffer(buffer: DeviceBuffer) -> int:
    """The native buffer of an object. Valid while the object lives and is neither closed nor taken; stays the object's."""

def take_buffer(buffer: DeviceBuffer) -> int:
    """The native buffer of an object, which the caller owns from then on. The object is empty afterwards."""

def wrap_resource(handle: int) -> DeviceMemoryResource:
    """The object of a native resource, which takes the reference over.

    A resource that has an object already gives that object.
    """

def borrow_resource(mr: DeviceMemoryResource) -> int:
    """The native reference of a resource. Valid while the object lives; stays the object's."""

def retain_resource(mr: DeviceMemoryResource) -> int:
    """A native reference of the caller's own, to be given back with ``tenure_resource_release``."""

def wrap_stream(raw: int, object: int) -> Stream:
    """The object of a native stream (both fields of ``tenure_stream``), which takes the reference in ``object`` over."""

def borrow_stream(stream: Stream) -> tuple[int, int]:
    """The fields ``raw`` and ``object`` of the ``tenure_stream`` of a stream. Valid while the object lives."""
