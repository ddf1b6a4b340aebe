"""Numba-CUDA and numba-cuda-mlir on tenure's memory. The documentation is in ``numba.py``."""

from typing import Any, Literal

from ..mr import DeviceMemoryResource

__all__ = ["RMMNumbaManager", "TenureNumbaManager", "manager"]

TenureNumbaManager: type[Any]
"""Numba-CUDA's memory manager that reads the table of current resources once for each allocation."""
RMMNumbaManager: type[Any]
"""RMM's name for it."""

def manager(mr: DeviceMemoryResource | None = None, *, library: Literal["numba", "numba-cuda-mlir"] = "numba") -> type[Any]:
    """A class for ``numba.cuda.set_memory_manager`` that always uses ``mr``; without one, `TenureNumbaManager`.

    ``library="numba-cuda-mlir"`` makes it for that library. The class keeps ``mr``, and is made once for each.
    """

def _numba_memory_manager(context: Any = None) -> Any:
    """What ``NUMBA_CUDA_MEMORY_MANAGER=tenure.allocators.numba`` names."""

_PLUGS: dict[str, Any]
