"""``rmm.allocators.torch``. Where PyTorch is not installed, or has no GPU, ``rmm_torch_allocator`` is ``None``, as in RMM."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["rmm_torch_allocator"]


def _allocator() -> Any:
    try:
        cuda = importlib.import_module("torch.cuda")
    except ImportError:
        return None
    if not cuda.is_available():
        return None
    from tenure.allocators import torch

    return torch.tenure_torch_allocator


rmm_torch_allocator: Any = _allocator()
