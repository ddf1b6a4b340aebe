"""``rmm.pylibrmm.device_buffer``."""

from __future__ import annotations

from typing import Any, Protocol

from tenure import DeviceBuffer, copy_device_to_ptr, copy_host_to_ptr, copy_ptr_to_host, to_device

__all__ = [
    "DeviceBuffer",
    "SupportsCUDAArrayInterface",
    "copy_device_to_ptr",
    "copy_host_to_ptr",
    "copy_ptr_to_host",
    "to_device",
]


class SupportsCUDAArrayInterface(Protocol):
    """Anything with ``__cuda_array_interface__``. In RMM this name is known to type checkers only."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
