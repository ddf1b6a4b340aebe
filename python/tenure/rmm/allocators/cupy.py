"""``rmm.allocators.cupy``."""

from __future__ import annotations

from tenure.allocators.cupy import rmm_cupy_allocator

__all__ = ["rmm_cupy_allocator"]
