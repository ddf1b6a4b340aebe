"""``rmm.allocators.torch``. Where PyTorch is not installed, or has no GPU, ``rmm_torch_allocator`` is ``None``, as in RMM."""

from __future__ import annotations

from typing import Any

__all__ = ["rmm_torch_allocator"]

rmm_torch_allocator: Any = None

try:
    from torch.cuda import is_available
except ImportError:
    pass
else:
    if is_available():
        from tenure.allocators.torch import rmm_torch_allocator
    del is_available
