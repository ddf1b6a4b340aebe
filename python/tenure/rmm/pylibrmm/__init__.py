"""``rmm.pylibrmm``: where RMM keeps its compiled classes."""

from __future__ import annotations

from . import logger as logger
from . import memory_resource
from . import utils as utils
from .cuda_stream_pool import CudaStreamPool
from .device_buffer import DeviceBuffer
from .stream import CudaStreamFlags

__all__ = ["CudaStreamFlags", "CudaStreamPool", "DeviceBuffer", "memory_resource"]
