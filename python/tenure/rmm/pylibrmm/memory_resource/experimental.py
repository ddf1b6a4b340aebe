"""``rmm.pylibrmm.memory_resource.experimental``."""

from __future__ import annotations

from tenure.mr import CudaAsyncManagedMemoryResource

__all__ = ["CudaAsyncManagedMemoryResource"]
