"""CuPy on tenure's memory: ``cupy.cuda.set_allocator(tenure.allocators.cupy.tenure_cupy_allocator)``.

A block is allocated on the calling thread's current device, in the order of its current CuPy stream, and freed in that order by
the resource that made it, whatever is current by then. Out of memory is ``cupy.cuda.memory.OutOfMemoryError``, with tenure's own
exception as its cause. CuPy is imported by the first allocation.
"""

from collections.abc import Callable
from typing import Any

from .. import _AnyStream
from ..mr import DeviceMemoryResource

def tenure_cupy_allocator(nbytes: int) -> Any:
    """For ``cupy.cuda.set_allocator``: reads the table of current resources once for each allocation."""

def rmm_cupy_allocator(nbytes: int) -> Any:
    """RMM's name for it."""

def allocator(mr: DeviceMemoryResource | None = None) -> Callable[[int], Any]:
    """An allocator for ``cupy.cuda.set_allocator`` that always uses ``mr``; without one, `tenure_cupy_allocator`."""

def pinned_allocator(mr: DeviceMemoryResource | None = None) -> Callable[[int], Any]:
    """An allocator for ``cupy.cuda.set_pinned_memory_allocator``.

    ``mr`` is a resource of pinned host memory, such as a pool over ``tenure.mr.PinnedHostMemoryResource()``; without one, a
    pool that all such allocators share. CuPy keeps a block until the copies that use it are over.
    """

def tenure_cupy_pinned_allocator(size: int) -> Any:
    """For ``cupy.cuda.set_pinned_memory_allocator``: over a pool of pinned memory that is made at first use."""

def record_stream(array: Any, stream: _AnyStream) -> None:
    """Says that work on ``stream`` uses the memory of a CuPy array that was allocated on another stream.

    The memory then is given to nobody before that work is over. Raises `TypeError` where tenure did not allocate it.
    """

def resource_of(array: Any) -> DeviceMemoryResource | None:
    """The resource that made the memory of a CuPy array; ``None`` for an array of no bytes."""

_PLUGS: dict[str, Any]
