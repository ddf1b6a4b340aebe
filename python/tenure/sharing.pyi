"""Memory of one process in another.

>>> pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource(), export_handle_type="fd")
>>> buffer = tenure.DeviceBuffer.to_device(b"hello", mr=pool)
>>> handle = buffer.export_handle()
>>> handle.kind, handle.size
('fd', 5)
>>> with handle.open() as opened:  # elsewhere: in the process that got the handle
...     opened.tobytes()
b'hello'

The exporter's buffer owns its block, and a handle keeps that buffer. ``docs/sharing.md`` has the whole contract.
"""

from collections.abc import Iterable
from socket import socket
from types import TracebackType
from typing import Literal, Self, TypeAlias

from . import DeviceBuffer, _AnyStream
from .mr import DeviceMemoryResource

__all__ = ["KINDS", "SharedHandle", "exports", "import_buffer"]

_Kind: TypeAlias = Literal["fd", "fabric", "legacy"]

KINDS: dict[str, int]
"""The kinds of handles and their bits in the C interface."""

def exports(mr: DeviceMemoryResource | None = None) -> tuple[_Kind, ...]:
    """The kinds of handles by which memory of a resource (default: the current one) can be given to other processes."""

def import_buffer(handle: SharedHandle, stream: _AnyStream | None = None, *, device: int | None = None) -> DeviceBuffer:
    """A buffer of the memory behind a handle: ``handle.open(stream)``."""

class SharedHandle:
    """The way to a buffer's memory for another process. Made by ``DeviceBuffer.export_handle``; can be pickled wherever
    multiprocessing carries things."""

    def __init__(self, buffer: DeviceBuffer, kind: _Kind | None = None) -> None: ...
    @property
    def kind(self) -> _Kind:
        """By what the memory is handed out."""
    @property
    def size(self) -> int:
        """Bytes of the shared memory."""
    @property
    def pid(self) -> int:
        """The process that shares it."""
    @property
    def device_uuid(self) -> bytes:
        """The device that the memory lies on: 16 bytes."""
    @property
    def fds(self) -> tuple[int, ...]:
        """The file descriptors that belong to it, open until ``close``."""
    def open(self, stream: _AnyStream | None = None, *, device: int | None = None) -> DeviceBuffer:
        """A buffer of the memory, with ``stream`` as its home, on the device that the memory lies on (``device`` is for fabric
        handles of another node). What the exporter wrote before the export is there."""
    def close(self) -> None:
        """Closes the descriptors and lets go of the exporter's buffer. What was opened stays."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    def __del__(self) -> None: ...
    def to_bytes(self) -> bytes:
        """The handle without its descriptors: all of it, for fabric and legacy handles."""
    @classmethod
    def from_bytes(cls, data: bytes, fds: Iterable[int] = ()) -> Self:
        """The handle of ``to_bytes``, with the descriptors that came beside it, which it takes over."""
    def send(self, sock: socket) -> None:
        """Sends the handle over a Unix socket, for ``receive`` at its other end."""
    @classmethod
    def receive(cls, sock: socket) -> Self:
        """The handle that ``send`` sends."""
    def __reduce__(self) -> tuple[object, tuple[bytes, list[object]]]: ...
