"""``rmm.allocators.cupy``."""

from __future__ import annotations

from tenure.allocators.cupy import tenure_cupy_allocator as rmm_cupy_allocator

__all__ = ["rmm_cupy_allocator"]
