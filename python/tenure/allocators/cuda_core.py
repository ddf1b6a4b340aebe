"""cuda.core on tenure's memory.

    Device(0).memory_resource = tenure.allocators.cuda_core.memory_resource(0, mr)

or ``tenure.enable("cuda.core")``, for all devices: `Device.allocate` then gives buffers of tenure's. A buffer is freed in the
order of the stream that cuda.core says at its end, by the resource that made it.
"""

from __future__ import annotations

from typing import Any

from .. import mr as _mr
from .._tenure import DEFAULT_STREAM, DeviceBuffer, Stream, _library_buffer
from ._libraries import need

_class: type[Any] | None = None


def _memory_resource_class() -> type[Any]:
    """The class over cuda.core's own, which is imported when one is made."""
    global _class
    if _class is not None:
        return _class
    core: Any = need("cuda.core")

    class TenureMemoryResource(core.MemoryResource):  # type: ignore[misc]
        """A memory resource of cuda.core's whose memory comes from tenure."""

        def __init__(self, device: int = 0, mr: Any = None) -> None:
            if mr is not None and not isinstance(mr, _mr.DeviceMemoryResource):
                raise TypeError(f"mr must be a resource of tenure.mr, not {type(mr).__name__}")
            self._device = int(device)
            self.mr = mr
            # cuda.core frees by the address, on any thread.
            self._live: dict[int, tuple[DeviceBuffer, int]] = {}
            # The last stream that was allocated on, and ours for it, which keeps it alive until another one comes.
            self._last: tuple[Any, Stream] = (None, DEFAULT_STREAM)

        def allocate(self, size: int, *, stream: Any) -> Any:
            """A `Buffer` of `size` bytes, in the order of `stream`."""
            given, order = self._last
            if given is not stream:
                order = Stream(stream)
                self._last = (stream, order)
            handle, mr = order.handle, self.mr
            if mr is None and handle <= 2:
                # A default stream is of the current device, which may be another one than this resource's.
                mr = _mr.get_per_device_resource(self._device)
            ours = _library_buffer("cuda.core", size, order, mr)
            ptr = ours.ptr
            if not ptr:
                return core.Buffer.from_handle(0, 0, owner=ours)
            self._live[ptr] = (ours, handle)
            return core.Buffer.from_handle(ptr, size, mr=self, stream=stream)

        def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
            """Frees a block in the order of `stream`."""
            ours, handle = self._live.pop(int(ptr), (None, 0))
            if ours is None:
                raise ValueError(f"no block of this resource begins at {int(ptr):#x}: it was freed already, or another made it")
            given = getattr(stream, "handle", None)
            if given is None or int(given) != handle:
                ours.close(stream)

        @property
        def is_device_accessible(self) -> bool:
            return True

        @property
        def is_host_accessible(self) -> bool:
            return isinstance(self.mr, _mr.PinnedHostMemoryResource | _mr.ManagedMemoryResource | _mr.SystemMemoryResource)

        @property
        def is_managed(self) -> bool:
            return isinstance(self.mr, _mr.ManagedMemoryResource)

        @property
        def device_id(self) -> int:
            return self._device

    TenureMemoryResource.__module__ = __name__
    TenureMemoryResource.__qualname__ = TenureMemoryResource.__name__
    _class = TenureMemoryResource
    return _class


def memory_resource(device: int = 0, mr: Any = None) -> Any:
    """A ``cuda.core.MemoryResource`` of a device: with ``mr``, always of that resource; else of what is current there."""
    return _memory_resource_class()(device, mr)


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

            def get(device: Any) -> Any:
                """The memory resource of the device."""
                if device._memory_resource is None:
                    device._memory_resource = self.of(device)
                return original.fget(device)

            try:
                kind.memory_resource = property(get, original.fset, None, original.__doc__)
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
