"""``rmm.allocators.numba``. ``NUMBA_CUDA_MEMORY_MANAGER=tenure.rmm.allocators.numba`` chooses it by the environment."""

from __future__ import annotations

from tenure.allocators.numba import TenureNumbaManager as RMMNumbaManager

__all__ = ["RMMNumbaManager"]

_numba_memory_manager = RMMNumbaManager
