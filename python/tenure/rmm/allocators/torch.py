"""``rmm.allocators.torch``."""

from __future__ import annotations

from tenure.allocators.torch import tenure_torch_allocator as rmm_torch_allocator

__all__ = ["rmm_torch_allocator"]
