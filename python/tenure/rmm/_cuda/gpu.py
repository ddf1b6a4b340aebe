"""``rmm._cuda.gpu``: questions to the CUDA runtime, asked through cuda.bindings where that is installed and there is a GPU.

On tenure's simulated device, and where cuda.bindings is not installed, the answers are tenure's own; then a question that
only the CUDA runtime could answer is a ``NotImplementedError`` that says so.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import tenure

__all__ = [
    "CUDADriverError",
    "CUDARuntimeError",
    "deviceGetName",
    "driverGetVersion",
    "getDevice",
    "getDeviceAttribute",
    "getDeviceCount",
    "getDeviceProperties",
    "runtimeGetVersion",
    "setDevice",
]


def _text(module: str, status: Any, get_name: str, get_text: str) -> str:
    try:
        library = __import__(f"cuda.bindings.{module}", fromlist=["*"])
        _, name = getattr(library, get_name)(status)
        _, text = getattr(library, get_text)(status)
        return f"{name.decode()}: {text.decode()}"
    except Exception:
        return getattr(status, "name", None) or f"CUDA error {status}"


class CUDARuntimeError(RuntimeError):
    """An error of the CUDA runtime, with its ``status``."""

    def __init__(self, status: Any) -> None:
        self.status = status
        super().__init__(_text("runtime", status, "cudaGetErrorName", "cudaGetErrorString"))

    def __reduce__(self) -> tuple[type[CUDARuntimeError], tuple[Any]]:
        return (type(self), (self.status,))


class CUDADriverError(RuntimeError):
    """An error of the CUDA driver, with its ``status``."""

    def __init__(self, status: Any) -> None:
        self.status = status
        super().__init__(_text("driver", status, "cuGetErrorName", "cuGetErrorString"))

    def __reduce__(self) -> tuple[type[CUDADriverError], tuple[Any]]:
        return (type(self), (self.status,))


_simulated: bool | None = None


def _bindings(name: str) -> Any:
    """``cuda.bindings.driver`` or ``.runtime``; ``None`` where tenure answers by itself."""
    global _simulated
    if _simulated is None:
        _simulated = tenure.describe().get("layer") == "sim"
    if _simulated:
        return None
    try:
        return __import__(f"cuda.bindings.{name}", fromlist=["*"])
    except ImportError:
        return None


def _asked(answer: tuple[Any, ...], error: type[Any] = CUDARuntimeError) -> Any:
    """The result of a call of cuda.bindings, whose first element is its status."""
    if int(answer[0]) != 0:
        raise error(answer[0])
    return answer[1] if len(answer) > 1 else None


def _own(call: Any, *args: Any) -> Any:
    """An answer of tenure's, its error as RMM would have it."""
    try:
        return call(*args)
    except tenure.CudaError as error:
        runtime = _bindings("runtime")
        status: Any = error.code
        if runtime is not None:
            try:
                status = runtime.cudaError_t(error.code)
            except ValueError:
                pass
        raise CUDARuntimeError(status) from error


def driverGetVersion() -> int:
    """The version of CUDA that the driver knows, ``1000 * major + 10 * minor``; 0 without a driver."""
    return int(tenure.describe().get("driver_version", 0))


def getDevice() -> int:
    """The current device of this thread."""
    return int(_own(tenure.get_current_device))


def setDevice(device: int) -> None:
    """Makes a device current on this thread."""
    count = getDeviceCount()
    if not 0 <= operator.index(device) < count:
        runtime = _bindings("runtime")
        # cudaErrorInvalidDevice
        raise CUDARuntimeError(runtime.cudaError_t(101) if runtime is not None else 101)
    _own(tenure.set_current_device, device)


def runtimeGetVersion() -> int:
    """The version of the local CUDA runtime, ``1000 * major + 10 * minor``; without cuda.bindings, the driver's."""
    runtime = _bindings("runtime")
    return driverGetVersion() if runtime is None else int(_asked(runtime.getLocalRuntimeVersion()))


def getDeviceCount() -> int:
    """The number of devices."""
    return int(_own(tenure.device_count))


# The attributes that tenure knows, by their number in the driver and in the runtime, which are the same.
_ATTRIBUTES: dict[int, Callable[[dict[str, Any]], int]] = {
    75: lambda info: info["compute_capability"][0],
    76: lambda info: info["compute_capability"][1],
    18: lambda info: 0,  # integrated
    83: lambda info: int(info["managed_memory"]),
    88: lambda info: int(info["pageable_access"]),
    89: lambda info: 0,  # concurrent access to managed memory
    115: lambda info: int(info["memory_pools"]),
    119: lambda info: 0,  # handle types of pools
}


def getDeviceAttribute(attr: Any, device: int) -> int:
    """An attribute of a device. ``attr`` is a ``cuda.bindings.runtime.cudaDeviceAttr``, or its number."""
    runtime = _bindings("runtime")
    if runtime is not None:
        if not isinstance(attr, runtime.cudaDeviceAttr):
            attr = runtime.cudaDeviceAttr(attr)
        return int(_asked(runtime.cudaDeviceGetAttribute(attr, device)))
    known = _ATTRIBUTES.get(int(attr))
    if known is None:
        raise NotImplementedError(
            f"device attribute {attr!r} is known to the CUDA runtime only: install cuda-bindings, on a machine with a GPU"
        )
    return int(known(_own(tenure.device_info, device)))


def getDeviceProperties(device: int) -> Any:
    """The properties of a device (``cudaDeviceProp``); tenure's own answer has the fields that it knows."""
    runtime = _bindings("runtime")
    if runtime is not None:
        return _asked(runtime.cudaGetDeviceProperties(device))
    info = _own(tenure.device_info, device)
    major, minor = info["compute_capability"]
    return SimpleNamespace(
        name=info["name"].encode(),
        totalGlobalMem=info["total_bytes"],
        major=major,
        minor=minor,
        integrated=0,
        managedMemory=int(info["managed_memory"]),
        pageableMemoryAccess=int(info["pageable_access"]),
        memoryPoolsSupported=int(info["memory_pools"]),
    )


def deviceGetName(device: int) -> str:
    """The name of a device."""
    driver = _bindings("driver")
    if driver is not None and not 0 <= operator.index(device) < getDeviceCount():
        raise CUDADriverError(driver.CUresult(101))
    return str(_own(tenure.device_info, device)["name"])
