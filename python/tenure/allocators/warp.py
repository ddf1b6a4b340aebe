"""Warp on tenure's memory.

    warp.set_cuda_allocator(tenure.allocators.warp.allocator(mr))

or ``tenure.enable("warp")``. Memory is allocated in the order of the device's current Warp stream, and freed in that order by
the resource that made it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from .. import mr as _mr
from .._tenure import DEFAULT_STREAM, DeviceBuffer, Stream, _library_buffer
from ._libraries import need


class WarpAllocator:
    """An allocator for ``warp.set_cuda_allocator``: with ``mr``, always of that resource; else of what is current."""

    # A free is tenure's, which knows the block's device: Warp need not make it current.
    deallocate_requires_context_guard = False

    def __init__(self, mr: Any = None) -> None:
        if mr is not None and not isinstance(mr, _mr.DeviceMemoryResource):
            raise TypeError(f"mr must be a resource of tenure.mr, not {type(mr).__name__}")
        self.mr = mr
        self._live: dict[int, DeviceBuffer] = {}
        self._lock = threading.Lock()
        # The last stream that was allocated on, and ours for it.
        self._last: tuple[Any, Stream] = (None, DEFAULT_STREAM)

    def allocate(self, size_in_bytes: int) -> int:
        """Allocates on the current Warp stream of the current device."""
        warp: Any = need("warp")
        stream = warp.get_stream(warp.get_cuda_device())
        given, order = self._last
        if given is not stream:
            # It keeps Warp's stream alive as long as a block names it, and until another one comes.
            order = Stream(stream)
            self._last = (stream, order)
        buffer = _library_buffer("warp", size_in_bytes, order, self.mr)
        ptr = buffer.ptr
        with self._lock:
            self._live[ptr] = buffer
        return ptr

    def deallocate(self, ptr: int, size_in_bytes: int) -> None:
        """Frees a block, into the resource that made it."""
        with self._lock:
            buffer = self._live.pop(ptr, None)
        if buffer is None and size_in_bytes:
            raise ValueError(f"no block of this allocator begins at {ptr:#x}: it was freed already, or another one made it")


def allocator(mr: Any = None) -> WarpAllocator:
    """An allocator for ``warp.set_cuda_allocator`` or ``warp.set_device_allocator``."""
    return WarpAllocator(mr)


class _Plug:
    """Turning Warp's hook initialises Warp, which prints, and after which its settings hold no more. So where the program has not
    done so yet, the hook is turned right after it has: when Warp makes its runtime, once."""

    def __init__(self) -> None:
        self.mine: WarpAllocator | None = None
        # Warp's own class, while ours stands in its place.
        self.runtime: Callable[[], Any] | None = None

    def turn_on(self, mr: Any, route: str) -> tuple[str, Any, tuple[str, ...]]:
        warp: Any = need("warp")
        if not hasattr(warp, "set_cuda_allocator"):
            raise RuntimeError("this Warp has no set_cuda_allocator: upgrade it, pip install -U warp-lang")
        if self.mine is None or self.mine.mr is not mr:
            self.mine = WarpAllocator(mr)
        inside = _inside()
        if inside is None or inside.runtime is not None:
            warp.set_cuda_allocator(self.mine)
        elif self.runtime is None:
            self.runtime, inside.Runtime = inside.Runtime, self.begin
        return (
            "set_cuda_allocator",
            mr,
            ("memory that Warp allocates while it captures a graph: it asks for its own pool there",),
        )

    def begin(self) -> Any:
        """Makes Warp's runtime, and turns the hook."""
        inside = _inside()
        assert self.runtime is not None
        made = inside.runtime = self.runtime()
        self.leave()
        if inside.get_cuda_devices():
            inside.set_cuda_allocator(self.mine)
        return made

    def leave(self) -> None:
        """Gives Warp its own class back."""
        _inside().Runtime, self.runtime = self.runtime, None

    def turn_off(self) -> str:
        warp: Any = need("warp")
        mine, self.mine = self.mine, None
        if self.runtime is not None:
            self.leave()
            return ""
        if any(warp.get_device_allocator(device) is not mine for device in warp.get_cuda_devices()):
            return "the allocator of a device is somebody else's by now, and all were left as they are"
        if warp.get_cuda_devices():
            warp.set_cuda_allocator(None)
        return ""


def _inside() -> Any:
    """Where Warp keeps its runtime; ``None`` for a Warp that is built otherwise."""
    inside = sys.modules.get("warp._src.context")
    return inside if hasattr(inside, "runtime") and hasattr(inside, "Runtime") else None


_PLUGS = {"warp": _Plug()}
