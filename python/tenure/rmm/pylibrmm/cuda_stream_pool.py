"""``rmm.pylibrmm.cuda_stream_pool``."""

from __future__ import annotations

from tenure import CudaStreamPool

__all__ = ["CudaStreamPool"]
