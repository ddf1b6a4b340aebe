# ruff: noqa: F822
"""``rmm.pylibrmm.memory_resource._memory_resource``: ``tenure.mr`` under RMM's roof."""

from __future__ import annotations

import tenure as _tenure
from tenure import mr as _native

__all__ = [
    "ArenaMemoryResource",
    "BinningMemoryResource",
    "CallbackMemoryResource",
    "CudaAsyncMemoryResource",
    "CudaAsyncViewMemoryResource",
    "CudaMemoryResource",
    "DeviceMemoryResource",
    "FailureCallbackResourceAdaptor",
    "FixedSizeMemoryResource",
    "LimitingResourceAdaptor",
    "LoggingResourceAdaptor",
    "ManagedMemoryResource",
    "PinnedHostMemoryResource",
    "PoolMemoryResource",
    "PrefetchResourceAdaptor",
    "SamHeadroomMemoryResource",
    "StatisticsResourceAdaptor",
    "SystemMemoryResource",
    "TrackingResourceAdaptor",
    "UpstreamResourceAdaptor",
    "available_device_memory",
    "disable_logging",
    "enable_logging",
    "get_current_device_resource",
    "get_log_filenames",
    "get_per_device_resource",
    "is_initialized",
    "set_current_device_resource",
    "set_per_device_resource",
]

# For the time being: what tenure does not have yet is not here.
_all = {**vars(_native), **{name: getattr(_tenure, name) for name in _tenure.__all__}}
__all__ = [name for name in __all__ if name in _all]
globals().update({name: _all[name] for name in __all__})


def _initialize(
    pool_allocator: bool = False,
    managed_memory: bool = False,
    initial_pool_size: int | str | None = None,
    maximum_pool_size: int | str | None = None,
    devices: int | list[int] = 0,
    logging: bool = False,
    log_file_name: str | None = None,
) -> None:
    """``reinitialize`` without the hooks."""
    from tenure._initialize import initialize

    from ..helper import size_text

    initialize(
        pool_allocator=pool_allocator,
        managed_memory=managed_memory,
        initial_pool_size=size_text(initial_pool_size),
        maximum_pool_size=size_text(maximum_pool_size),
        devices=devices,
        logging=logging,
        log_file_name=log_file_name,
    )


def _flush_logs() -> None:
    """Writes out what the logging adaptors of all current resources hold back."""
    from tenure._initialize import flush_logs

    flush_logs()
