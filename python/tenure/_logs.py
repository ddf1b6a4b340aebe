"""``enable_logging``, ``disable_logging`` and ``get_log_filenames``: a log of all that goes through the current resources.

The documentation is in ``__init__.pyi``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import mr
from ._tenure import device_count, get_current_device, set_current_device

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable


def _devices_in_use() -> list[int]:
    """The devices that have been given a resource, and the current one."""
    current = get_current_device()
    return [
        device for device in range(device_count()) if device == current or mr.get_per_device_resource(device).kind != "cuda"
    ]


def enable_logging(log_file_name: str | os.PathLike[str] | None = None, devices: int | Iterable[int] | None = None) -> None:
    if devices is None:
        chosen = _devices_in_use()
    else:
        chosen = [devices] if isinstance(devices, int) else list(devices)
    before: list[tuple[int, mr.DeviceMemoryResource]] = []
    try:
        for device in dict.fromkeys(chosen):
            now = mr.get_per_device_resource(device)
            if isinstance(now, mr.LoggingResourceAdaptor):
                continue
            with _made_on(device):
                logging = mr.LoggingResourceAdaptor(now, log_file_name)
            mr.set_per_device_resource(device, logging)
            before.append((device, now))
    except BaseException:
        # All devices or none.
        for device, resource in before:
            mr.set_per_device_resource(device, resource)
        raise


class _made_on:
    """Makes a device current for a ``with`` block: the number in the file's name is that of the device."""

    def __init__(self, device: int) -> None:
        self._device = device

    def __enter__(self) -> None:
        self._before = get_current_device()
        set_current_device(self._device)

    def __exit__(self, *_: object) -> None:
        set_current_device(self._before)


def disable_logging() -> None:
    for device in range(device_count()):
        now = mr.get_per_device_resource(device)
        if isinstance(now, mr.LoggingResourceAdaptor):
            upstream = now.get_upstream()
            # An adaptor always has one; a method of this name may have none to give.
            if upstream is not None:
                mr.set_per_device_resource(device, upstream)
            now.flush()


def get_log_filenames() -> dict[int, str | None]:
    current = {device: mr.get_per_device_resource(device) for device in _devices_in_use()}
    return {
        device: now.get_file_name() if isinstance(now, mr.LoggingResourceAdaptor) else None for device, now in current.items()
    }
