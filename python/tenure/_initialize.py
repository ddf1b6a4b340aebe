"""``reinitialize``: other current resources for a set of devices, in one step.

```text
 hooks --> give back what is idle --> make all new ones --> put all of them into the table --> old ones go with their last user
              (nothing has changed until here)
```

Memory that was handed out is not touched: its buffers hold the old resource, which goes when the last of them is gone.
Nothing changes in the table before all new resources are made, so that a call that fails leaves the one that was there.
What the old resource holds idle is given back before a share of the free memory is read, and again where the new pool does
not fit otherwise; so one big pool can follow another.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from . import logger, mr
from ._errors import OutOfMemoryError
from ._tenure import device_count, device_info, get_current_device, low_memory, parse_bytes, set_current_device

__all__ = [
    "flush_logs",
    "initialize",
    "is_initialized",
    "register_reinitialize_hook",
    "reinitialize",
    "unregister_reinitialize_hook",
]

_Size = int | str | None

_hooks: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []


class PoolSizeError(ValueError, RuntimeError):
    """An initial size above the maximum: a ``ValueError``, and a ``RuntimeError`` for programs written for RMM."""


PoolSizeError.__module__ = "tenure"


def register_reinitialize_hook(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
    if not callable(func):
        raise TypeError(f"a hook must be callable, not {type(func).__name__}")
    _hooks.append((func, args, kwargs))
    return func


def unregister_reinitialize_hook(func: Callable[..., Any]) -> None:
    _hooks[:] = [hook for hook in _hooks if hook[0] != func]


def reinitialize(
    pool_allocator: bool = False,
    managed_memory: bool = False,
    initial_pool_size: _Size = None,
    maximum_pool_size: _Size = None,
    devices: int | Iterable[int] | None = 0,
    logging: bool = False,
    log_file_name: Any = None,
) -> None:
    for func, args, kwargs in reversed(list(_hooks)):
        func(*args, **kwargs)
    initialize(
        pool_allocator=pool_allocator,
        managed_memory=managed_memory,
        initial_pool_size=initial_pool_size,
        maximum_pool_size=maximum_pool_size,
        devices=devices,
        logging=logging,
        log_file_name=log_file_name,
    )


def initialize(
    *,
    pool_allocator: bool = False,
    managed_memory: bool = False,
    initial_pool_size: _Size = None,
    maximum_pool_size: _Size = None,
    devices: int | Iterable[int] | None = 0,
    logging: bool = False,
    log_file_name: Any = None,
) -> None:
    """``reinitialize`` without the hooks."""
    ordinals = _ordinals(devices)
    sizes = (initial_pool_size, maximum_pool_size) if pool_allocator else (None, None)
    share = any(isinstance(size, str) and size.rstrip().endswith("%") for size in sizes)
    plain: Any = mr.ManagedMemoryResource() if managed_memory else mr.CudaMemoryResource()
    made: dict[int, mr.DeviceMemoryResource] = {}
    with _device_kept():
        for ordinal in ordinals:
            set_current_device(ordinal)
            resource = plain
            if pool_allocator:
                if share:
                    _give_back(ordinal)
                initial, maximum = _pool_sizes(*sizes, beyond_device=managed_memory)
                try:
                    resource = mr.PoolMemoryResource(plain, initial, maximum)
                except OutOfMemoryError:
                    # What was there may hold idle what the new pool wants.
                    if not _give_back(ordinal):
                        raise
                    resource = mr.PoolMemoryResource(plain, initial, maximum)
            if logging:
                resource = mr.LoggingResourceAdaptor(resource, log_file_name)
            made[ordinal] = resource
    for ordinal in range(device_count()):
        if ordinal in made:
            mr.set_per_device_resource(ordinal, made[ordinal])
            logger.message(logger.level_enum.info, f"device {ordinal}: the current resource is {made[ordinal]!r} now")
        else:
            mr.reset_per_device_resource(ordinal)


def is_initialized() -> bool:
    return True


def flush_logs() -> None:
    """Writes out what the logging adaptors of all current resources hold back."""
    for ordinal in range(device_count()):
        resource: Any = mr.get_per_device_resource(ordinal)
        while resource is not None:
            if hasattr(resource, "flush"):
                resource.flush()
            resource = getattr(resource, "upstream_mr", None)


def _ordinals(devices: int | Iterable[int] | None) -> list[int]:
    """The devices that are meant, each once."""
    if devices is None:
        return [0]
    if isinstance(devices, (str, bytes)):
        raise TypeError("devices must be the number of a device or a list of such numbers, not text")
    try:
        given = [operator.index(devices)]  # type: ignore[arg-type]
    except TypeError:
        try:
            given = [operator.index(device) for device in devices]  # type: ignore[union-attr]
        except TypeError:
            raise TypeError(f"devices must be the number of a device or a list of such numbers, not {devices!r}") from None
    count = device_count()
    for ordinal in given:
        if not 0 <= ordinal < count:
            raise ValueError(f"devices names device {ordinal}, and there are {count}, numbered from 0")
    return list(dict.fromkeys(given))


@contextmanager
def _device_kept() -> Iterator[None]:
    """The caller's device is current again afterwards."""
    original = get_current_device()
    try:
        yield
    finally:
        set_current_device(original)


def _pool_sizes(initial: _Size, maximum: _Size, *, beyond_device: bool) -> tuple[int | None, int | None]:
    """The sizes in bytes. What cannot be is refused here, before anybody gives memory back for it."""
    first, most = (None if size is None else parse_bytes(size) for size in (initial, maximum))
    if first is not None and most is not None and first > most:
        raise PoolSizeError(
            "Initial pool size exceeds the maximum pool size: "
            f"initial_pool_size is {initial!r} ({first} bytes) and maximum_pool_size is {maximum!r} ({most} bytes)"
        )
    if first is not None and not beyond_device:
        info = device_info()
        free, total = info["free_bytes"], info["total_bytes"]
        if first > total:
            raise OutOfMemoryError(
                f"out of memory: initial_pool_size is {initial!r} ({first} bytes), and the device has {total} bytes in all "
                f"({free} free)",
                requested=first,
                driver_free=free,
                driver_total=total,
            )
    return first, most


def _give_back(ordinal: int) -> bool:
    """Makes the current resource of a device, and every pool there, give back what is idle. Whether anything went."""
    try:
        went = mr.get_per_device_resource(ordinal).trim()
    except (RuntimeError, ValueError):
        went = 0  # it cannot
    return went + low_memory(ordinal) > 0
