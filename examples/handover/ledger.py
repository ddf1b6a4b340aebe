"""A record of who made each block, under which resource, and who freed it, where and on which stream.

A recorded resource is a callback resource in front of the real one: each allocation and each free of it, from whatever
language and thread, passes through here.
"""

import contextlib
import threading
from dataclasses import dataclass

import tenure


@dataclass
class Entry:
    """One block."""

    ptr: int
    nbytes: int
    resource: str
    maker: str
    made_on: str
    freer: str = ""
    thread: str = ""
    freed_on: str = ""


class Ledger:
    """The record. Thread-safe."""

    def __init__(self):
        self.entries = []
        self.closed = []
        self._live = {}
        self._lock = threading.Lock()
        self._here = threading.local()
        self._streams = {}

    @contextlib.contextmanager
    def acting(self, who):
        """Says in which language this thread acts from here on."""
        before = getattr(self._here, "who", "Python")
        self._here.who = who
        try:
            yield
        finally:
            self._here.who = before

    def name_stream(self, stream, name):
        """Gives a stream a name for the record."""
        self._streams[stream.handle] = name

    def _stream(self, stream):
        handle = stream.handle
        return self._streams.get(handle, "default" if handle <= 2 else "Rust's own")

    def recorded(self, name, upstream):
        """A resource that records what passes through it to `upstream`, and that it was closed."""

        def allocate(nbytes, stream):
            ptr = upstream.allocate(nbytes, stream)
            entry = Entry(ptr, nbytes, name, getattr(self._here, "who", "Python"), self._stream(stream))
            with self._lock:
                self.entries.append(entry)
                self._live[name, ptr] = entry
            return ptr

        def deallocate(ptr, nbytes, stream):
            upstream.deallocate(ptr, nbytes, stream)
            with self._lock:
                entry = self._live.pop((name, ptr))
                entry.freer = getattr(self._here, "who", "Python")
                entry.thread = threading.current_thread().name
                entry.freed_on = self._stream(stream)

        class Closing:
            """Goes when the resource lets its functions go."""

            def __del__(inner):
                self.closed.append(name)

        allocate.closing = Closing()
        return tenure.mr.CallbackMemoryResource(allocate, deallocate)

    def balance(self, resource=None):
        """Bytes made and not freed."""
        with self._lock:
            return sum(e.nbytes for (name, _), e in self._live.items() if resource in (None, name))

    def table(self):
        """The record as text."""
        header = ("block", "bytes", "under", "made by", "on", "freed by", "in thread", "on")
        rows = [
            (hex(e.ptr), f"{e.nbytes:,}", e.resource, e.maker, e.made_on, e.freer or "-", e.thread or "-", e.freed_on or "-")
            for e in self.entries
        ]
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
        lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths)) for row in [header, *rows]]
        lines.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join(lines)
