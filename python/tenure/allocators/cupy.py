"""CuPy on tenure's memory.

    cupy.cuda.set_allocator(tenure.allocators.cupy.tenure_cupy_allocator)     # what is current, at each allocation
    cupy.cuda.set_allocator(tenure.allocators.cupy.allocator(mr))             # always mr
    cupy.cuda.set_pinned_memory_allocator(tenure.allocators.cupy.tenure_cupy_pinned_allocator)

or ``tenure.enable("cupy")`` for the first two. A block is allocated on the calling thread's current device, in the order of
its current CuPy stream, and freed in that order by the resource that made it, whatever is current by then. Out of memory is
``cupy.cuda.memory.OutOfMemoryError``, with tenure's own exception as its cause. CuPy is imported by the first allocation.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

from .. import mr as _mr
from .._tenure import CupyAllocator as _CupyAllocator
from .._tenure import DeviceBuffer as _DeviceBuffer
from .._tenure import _cupy_mr, _cupy_record_stream, tenure_cupy_allocator
from ._libraries import need

rmm_cupy_allocator = tenure_cupy_allocator
"""RMM's name for it."""


def allocator(mr: Any = None) -> Callable[[int], Any]:
    """An allocator for ``cupy.cuda.set_allocator`` that always uses ``mr``; without one, `tenure_cupy_allocator`."""
    if mr is None:
        return tenure_cupy_allocator
    return _CupyAllocator(mr).malloc


class _Pinned:
    """What CuPy calls pinned memory: anything with these two."""

    __slots__ = ("_buffer", "ptr", "size")

    def __init__(self, buffer: Any, size: int) -> None:
        self._buffer = buffer
        self.ptr = buffer.ptr
        self.size = size

    def __int__(self) -> int:
        return int(self.ptr)

    @property
    def mr(self) -> Any:
        """The resource that made the block."""
        return self._buffer.mr


_shared_pinned: Any = None
_making = threading.Lock()


def _pinned_pool() -> Any:
    """The pool of pinned memory that all share who name none. Made once, of chunks that it grows by."""
    global _shared_pinned
    with _making:
        if _shared_pinned is None:
            _shared_pinned = _mr.PoolMemoryResource(_mr.PinnedHostMemoryResource(), 0)
        return _shared_pinned


def pinned_allocator(mr: Any = None) -> Callable[[int], Any]:
    """An allocator for ``cupy.cuda.set_pinned_memory_allocator``.

    ``mr`` is a resource of pinned host memory, such as a pool over ``tenure.mr.PinnedHostMemoryResource()``; without one, a
    pool that all such allocators share. CuPy keeps a block until the copies that use it are over.
    """
    if mr is None:
        return tenure_cupy_pinned_allocator
    if not isinstance(mr, _mr.DeviceMemoryResource):
        raise TypeError(f"mr must be a resource of tenure.mr, not {type(mr).__name__}")

    def malloc(size: int) -> Any:
        return _pinned(size, mr)

    return malloc


def tenure_cupy_pinned_allocator(size: int) -> Any:
    """An allocator for ``cupy.cuda.set_pinned_memory_allocator``, over a pool of pinned memory that is made at first use."""
    return _pinned(size, _pinned_pool())


def _pinned(size: int, mr: Any) -> Any:
    need("cupy")
    pointer: Any = importlib.import_module("cupy.cuda.pinned_memory").PinnedMemoryPointer
    return pointer(_Pinned(_DeviceBuffer(size=size, mr=mr), size), 0)


def _memory(array: Any) -> Any:
    """The memory object behind an array, a pointer or itself."""
    array = getattr(array, "data", array)
    return getattr(array, "mem", array)


def record_stream(array: Any, stream: Any) -> None:
    """Says that work on ``stream`` uses the memory of a CuPy array that was allocated on another stream.

    The memory then is given to nobody before that work is over. Raises `TypeError` where tenure did not allocate it.
    """
    _cupy_record_stream(_memory(array), stream)


def resource_of(array: Any) -> Any:
    """The resource that made the memory of a CuPy array; ``None`` for an array of no bytes."""
    return _cupy_mr(_memory(array))


# ------------------------------------------------------------------ for tenure.enable


class _Plug:
    def __init__(self) -> None:
        self.before: Any = None
        self.mine: Any = None
        self.mr: Any = None

    def turn_on(self, mr: Any, route: str) -> tuple[str, Any, tuple[str, ...]]:
        cupy = need("cupy")
        now = cupy.cuda.get_allocator()
        mine = self.mine if self.mine is not None and self.mr is mr else allocator(mr)
        cupy.cuda.set_allocator(mine)
        if self.mine is None or now is not self.mine:
            self.before = now
        self.mine, self.mr = mine, mr
        return "set_allocator", mr, ()

    def turn_off(self) -> str:
        cupy = need("cupy")
        mine, before = self.mine, self.before
        self.mine = self.before = self.mr = None
        if cupy.cuda.get_allocator() is not mine:
            return "CuPy's allocator is somebody else's by now, and was left as it is"
        cupy.cuda.set_allocator(before)
        return ""


_PLUGS = {"cupy": _Plug()}
