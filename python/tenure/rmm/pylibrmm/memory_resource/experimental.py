# ruff: noqa: F822
"""``rmm.pylibrmm.memory_resource.experimental``."""

from __future__ import annotations

from tenure import mr as _native

__all__ = ["CudaAsyncManagedMemoryResource"]

# For the time being: what tenure.mr does not have yet is not here.
__all__ = [name for name in __all__ if hasattr(_native, name)]
globals().update({name: getattr(_native, name) for name in __all__})
