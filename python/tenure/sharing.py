"""Memory of one process in another.

    pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource(), export_handle_type="fd")
    buffer = tenure.DeviceBuffer(size=1 << 20, mr=pool)
    handle = buffer.export_handle()                      # waits for the work on the buffer's streams
    multiprocessing.get_context("spawn").Process(target=child, args=(handle,)).start()

    def child(handle):
        buffer = handle.open()                           # the same memory, mapped in this process

A handle is small and can be pickled wherever multiprocessing carries things (arguments of a process, queues, pipes): its
file descriptors travel with it. For other channels there are `SharedHandle.send` and `SharedHandle.receive` over a Unix
socket, and `SharedHandle.to_bytes` for kinds without descriptors.

The exporter's buffer owns its block. A handle keeps that buffer alive; closing the buffer all the same gives the block back,
and an importer may then see other contents. `docs/sharing.md` has the whole contract.
"""

from __future__ import annotations

import os
import socket
import struct

from . import _tenure

__all__ = ["KINDS", "SharedHandle", "exports", "import_buffer"]

KINDS = {"fd": 1, "fabric": 8, "legacy": 256}
_NAMES = {bits: name for name, bits in KINDS.items()}
# As many descriptors as Linux takes in one message.
_PER_MESSAGE = 250


def exports(mr=None):
    """The kinds of handles by which memory of a resource (None: the current one) can be given to other processes."""
    if mr is None:
        from . import mr as resources

        mr = resources.get_current_device_resource()
    bits = _tenure._exports(mr)
    return tuple(name for name, bit in KINDS.items() if bits & bit)


def import_buffer(handle, stream=None, *, device=None):
    """A `DeviceBuffer` of the memory behind a handle: `handle.open(stream)`."""
    return handle.open(stream, device=device)


class SharedHandle:
    """The way to a buffer's memory for another process. Made by `DeviceBuffer.export_handle`."""

    __slots__ = ("__weakref__", "_buffer", "_data", "_fds", "_said")

    def __init__(self, buffer, kind=None):
        if kind is not None and kind not in KINDS:
            raise ValueError(f"kind is {kind!r}: it must be one of {', '.join(map(repr, KINDS))}, or None for any")
        self._fds = []
        self._data, self._fds = _tenure._share(buffer, KINDS.get(kind, 0))
        self._said = _tenure._shared_info(self._data)
        # What is read elsewhere is not freed here for want of somebody who names it.
        self._buffer = buffer

    @classmethod
    def _of(cls, data, fds):
        """Takes the descriptors over, also when the bytes are no handle."""
        self = cls.__new__(cls)
        self._buffer, self._fds = None, fds
        self._data = bytes(data)
        self._said = _tenure._shared_info(self._data)
        if len(fds) != self._said["fds"]:
            raise ValueError(
                f"the handle comes with {self._said['fds']} file descriptors and {len(fds)} were given: pass all of them, "
                "in their order"
            )
        return self

    @property
    def kind(self):
        """`"fd"`, `"fabric"` or `"legacy"`."""
        return _NAMES[self._said["kind"]]

    @property
    def size(self):
        """Bytes of the shared memory."""
        return self._said["size"]

    @property
    def pid(self):
        """The process that shares it."""
        return self._said["pid"]

    @property
    def device_uuid(self):
        """The device that the memory lies on: 16 bytes."""
        return self._said["uuid"]

    @property
    def fds(self):
        """The file descriptors that belong to it, open until `close`."""
        return tuple(self._fds)

    def open(self, stream=None, *, device=None):
        """A `DeviceBuffer` of the memory, with `stream` as its home. What the exporter wrote before the export is there.

        However often one piece of memory is opened in a process, it is mapped once; the mapping goes with the last buffer.
        """
        from . import DeviceBuffer

        return self._open(DeviceBuffer, stream, device)

    def _open(self, cls, stream, device):
        self._not_closed()
        return _tenure._import_shared(cls, self._data, self._fds, device, stream)

    def _not_closed(self):
        if self._said["fds"] and not self._fds:
            raise ValueError("the handle is closed: open it before, or export the buffer again")

    def close(self):
        """Closes the descriptors and lets go of the buffer. What was opened stays. Done by itself when the handle goes."""
        fds, self._fds, self._buffer = self._fds, [], None
        for fd in fds:
            os.close(fd)

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        self.close()

    def __del__(self):
        try:
            self.close()
        except (AttributeError, OSError, TypeError):
            # Half made, or the interpreter is going.
            pass

    def to_bytes(self):
        """The handle without its descriptors: all of it, for `"fabric"` and `"legacy"`."""
        return self._data

    @classmethod
    def from_bytes(cls, data, fds=()):
        """The handle of `to_bytes`, with the descriptors that came beside it, which it takes over."""
        return cls._of(data, list(fds))

    def send(self, sock):
        """Sends the handle over a Unix socket, for `receive` at its other end."""
        self._not_closed()
        sock.sendall(struct.pack("<QQ", len(self._data), len(self._fds)))
        sock.sendall(self._data)
        for at in range(0, len(self._fds), _PER_MESSAGE):
            socket.send_fds(sock, [b"\0"], self._fds[at : at + _PER_MESSAGE])

    @classmethod
    def receive(cls, sock):
        """The handle that `send` sends."""
        bytes_, count = struct.unpack("<QQ", _exactly(sock, 16))
        if bytes_ > 1 << 32 or count > 1 << 24:
            raise ValueError("what arrived is no handle of shared memory: receive what SharedHandle.send sends")
        data, fds = _exactly(sock, bytes_), []
        try:
            while len(fds) < count:
                some, got, _, _ = socket.recv_fds(sock, 1, min(count - len(fds), _PER_MESSAGE))
                fds += got
                _not_inherited(got)
                if not some or not got:
                    raise EOFError("the socket ended in the middle of a handle: its sender has gone or closed it")
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        return cls._of(data, fds)

    def __reduce__(self):
        self._not_closed()
        if not self._fds:
            return _rebuilt, (self._data, [])
        from multiprocessing import reduction

        return _rebuilt, (self._data, [reduction.DupFd(fd) for fd in self._fds])

    def __repr__(self):
        return f"<SharedHandle of {self.size} bytes of process {self.pid}, by {self.kind}>"


def _rebuilt(data, duplicates):
    fds = []
    try:
        for duplicate in duplicates:
            fds.append(duplicate.detach())
            _not_inherited(fds[-1:])
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise
    return SharedHandle._of(data, fds)


def _not_inherited(fds):
    """As every descriptor that Python opens: not for programs that are started later. (`socket.recv_fds` drops its flags.)"""
    for fd in fds:
        os.set_inheritable(fd, False)


def _exactly(sock, count):
    parts, left = [], count
    while left:
        part = sock.recv(min(left, 1 << 20))
        if not part:
            raise EOFError("the socket ended in the middle of a handle: its sender has gone or closed it")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
