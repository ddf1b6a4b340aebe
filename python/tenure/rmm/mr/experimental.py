"""``rmm.mr.experimental``."""

from __future__ import annotations

from ..pylibrmm.memory_resource.experimental import CudaAsyncManagedMemoryResource

__all__ = ["CudaAsyncManagedMemoryResource"]
