"""``rmm.allocators.torch``; ``None`` where PyTorch is not installed or has no CUDA, as with RMM."""

from __future__ import annotations

try:
    from tenure.allocators.torch import tenure_torch_allocator as rmm_torch_allocator
except (ImportError, RuntimeError):
    rmm_torch_allocator = None

__all__ = ["rmm_torch_allocator"]
