"""cuda.core on tenure's memory.

    Device(0).memory_resource = tenure.allocators.cuda_core.memory_resource(0, mr)

or ``tenure.enable("cuda.core")``, for all devices: `Device.allocate` then gives buffers of tenure's. A buffer is freed in the
order of the stream that cuda.core says at its end, by the resource that made it. What runs at each allocation is native
(``crates/tenure-python/src/cuda_core.rs``).
"""

from __future__ import annotations

from typing import Any

from .._tenure import CudaCoreGetter as _Getter
from .._tenure import _cuda_core_resource
from ._libraries import need


def memory_resource(device: int = 0, mr: Any = None) -> Any:
    """A ``cuda.core.MemoryResource`` of a device: with ``mr``, always of that resource; else of what is current there."""
    return _cuda_core_resource(int(device), mr)


class _Plug:
    """`Device.memory_resource` of all threads: each thread of cuda.core's has `Device` objects of its own, which make their
    memory resource when it is first asked for. So the property makes tenure's there, and who has one already in this thread
    is given tenure's."""

    def __init__(self) -> None:
        self.mr: Any = None
        self.mine: dict[int, Any] = {}
        self.before: dict[int, Any] = {}
        self.original: Any = None

    def of(self, device: Any) -> Any:
        """Tenure's resource for a device, made once for each."""
        number = int(device)
        mine = self.mine.get(number)
        if mine is None or mine.mr is not self.mr:
            mine = self.mine[number] = memory_resource(number, self.mr)
        return mine

    def turn_on(self, mr: Any, route: str) -> tuple[str, Any, tuple[str, ...]]:
        core: Any = need("cuda.core")
        kind = core.Device
        self.mr = mr
        lacks = ["handles for other processes (Buffer.ipc_descriptor): cuda.core has them for its own resources only"]
        if self.original is None:
            original = kind.__dict__["memory_resource"]

            def fill(device: Any) -> Any:
                """The memory resource of a device that has none yet."""
                device._memory_resource = self.of(device)
                return original.fget(device)

            try:
                kind.memory_resource = property(_Getter(fill).get, original.fset, None, original.__doc__)
                self.original = original
            except TypeError:
                lacks.append("other threads: this cuda.core has a memory resource for each, so call tenure.enable there too")
        for device in kind.get_all_devices():
            number, ours = int(device), self.of(device)
            now = device._memory_resource
            if now is not None and type(now) is not type(ours):
                self.before[number] = now
            device.memory_resource = ours
        return "Device.memory_resource", mr, tuple(lacks)

    def turn_off(self) -> str:
        kind = need("cuda.core").Device
        if self.original is not None:
            kind.memory_resource, self.original = self.original, None
        left = ""
        for device in kind.get_all_devices():
            number = int(device)
            mine, before = self.mine.pop(number, None), self.before.pop(number, None)
            if device._memory_resource is not mine:
                left = f"the memory resource of device {number} is somebody else's by now, and was left as it is"
            else:
                # None: cuda.core makes its own when it is asked for.
                device._memory_resource = before
        return left


_PLUGS = {"cuda.core": _Plug()}
