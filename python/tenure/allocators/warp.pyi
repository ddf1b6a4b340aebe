"""Warp on tenure's memory: ``warp.set_cuda_allocator(tenure.allocators.warp.allocator(mr))``.

Memory is allocated in the order of the device's current Warp stream, and freed in that order by the resource that made it.
"""

from typing import Any

from ..mr import DeviceMemoryResource

class WarpAllocator:
    """An allocator for ``warp.set_cuda_allocator``: with ``mr``, always of that resource; else of what is current."""

    deallocate_requires_context_guard: bool
    mr: DeviceMemoryResource | None
    def __init__(self, mr: DeviceMemoryResource | None = None) -> None: ...
    def allocate(self, size_in_bytes: int) -> int:
        """Allocates on the current Warp stream of the current device."""

    def deallocate(self, ptr: int, size_in_bytes: int) -> None:
        """Frees a block, into the resource that made it."""

def allocator(mr: DeviceMemoryResource | None = None) -> WarpAllocator:
    """An allocator for ``warp.set_cuda_allocator`` or ``warp.set_device_allocator``."""

_PLUGS: dict[str, Any]
