"""The actors of the hand-over tests: C, C++ and Rust behind `actor.h`, and Python itself, with the same methods.

What crosses between them is a handle: a number for a buffer or a resource, a pair for a stream. The class of the native ones
uses ctypes alone, so that it can be played before tenure is imported.
"""

import contextlib
import ctypes
import gc
import os
import threading
from pathlib import Path

CURRENT = (1 << 64) - 1
OWNERSHIP = 2
BAD_HANDLE = 7
CALLBACK = 10
ROOM = 512

u64 = ctypes.c_uint64


class StreamValue(ctypes.Structure):
    """`tenure_stream`."""

    _fields_ = [("raw", ctypes.c_void_p), ("object", u64)]


class Detached(ctypes.Structure):
    """`tenure_detached`."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("ptr", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("capacity", ctypes.c_size_t),
        ("alignment", ctypes.c_size_t),
        ("resource", u64),
        ("stream", StreamValue),
    ]


class Book(ctypes.Structure):
    """`actor_book`: what a resource of an actor's own functions counts."""

    _fields_ = [("allocations", u64), ("frees", u64), ("dropped", u64), ("fail", u64)]


BOOKS = []
"""Books outlive their resources, whatever holds those."""


def new_book():
    """A book that lives as long as the process."""
    BOOKS.append(Book())
    return BOOKS[-1]


class Failed(Exception):
    """An actor's function answered with an error."""

    def __init__(self, status, text):
        super().__init__(f"status {status}: {text}")
        self.status = status
        self.text = text


def folder():
    """Where the native actors were built."""
    default = Path(__file__).resolve().parents[2] / "build" / "handover-tests"
    return Path(os.environ.get("TENURE_HANDOVER_OUT", default))


def raw_stream(stream):
    """A pair as `tenure_stream`."""
    return StreamValue(*stream)


class Native:
    """One of the libraries behind `actor.h`."""

    def __init__(self, name, said):
        self.name = said
        self._library = ctypes.CDLL(str(folder() / f"libactor_{name}.so"))
        self._why = threading.local()

    def _call(self, function, *arguments):
        why = ctypes.create_string_buffer(ROOM)
        status = getattr(self._library, f"actor_{function}")(*arguments, why)
        if status != 0:
            raise Failed(status, why.value.decode())

    def pool(self, upstream):
        out = u64()
        self._call("pool", u64(upstream), ctypes.byref(out))
        return out.value

    def callback(self, upstream, book):
        out = u64()
        self._call("callback", u64(upstream), ctypes.byref(book), ctypes.byref(out))
        return out.value

    def release(self, resource):
        self._call("release", u64(resource))

    def make(self, size, value, stream, resource=CURRENT):
        out = u64()
        self._call("make", ctypes.c_size_t(size), ctypes.c_uint8(value), raw_stream(stream), u64(resource), ctypes.byref(out))
        return out.value

    def read(self, buffer, size):
        to = (ctypes.c_uint8 * size)()
        self._call("read", u64(buffer), to, ctypes.c_size_t(size))
        return bytes(to)

    def free(self, buffer, elsewhere=True):
        self._call("free", u64(buffer), ctypes.c_uint32(elsewhere))

    def detach(self, buffer):
        out = Detached()
        self._call("detach", u64(buffer), ctypes.byref(out))
        return out.ptr, out.bytes, out.resource, (out.stream.raw or 0, out.stream.object)

    def adopt(self, ptr, size, stream, resource):
        out = u64()
        self._call("adopt", ctypes.c_void_p(ptr), ctypes.c_size_t(size), raw_stream(stream), u64(resource), ctypes.byref(out))
        return out.value

    def allocate(self, resource, size, stream):
        out = ctypes.c_void_p()
        self._call("allocate", u64(resource), ctypes.c_size_t(size), raw_stream(stream), ctypes.byref(out))
        return out.value

    def deallocate(self, resource, ptr, size, stream):
        self._call("deallocate", u64(resource), ctypes.c_void_p(ptr), ctypes.c_size_t(size), raw_stream(stream))

    def owner_of(self, ptr):
        out = u64()
        self._call("owner_of", ctypes.c_void_p(ptr), ctypes.byref(out))
        return out.value

    def set_current(self, resource):
        self._call("set_current", u64(resource))

    def current_id(self):
        out = u64()
        self._call("current_id", ctypes.byref(out))
        return out.value

    def scope(self, resource, body):
        raised = []

        def guarded():
            try:
                body()
            except BaseException as error:
                raised.append(error)

        self._call("scope", u64(resource), ctypes.CFUNCTYPE(None)(guarded))
        if raised:
            raise raised[0]

    def keep(self, buffer, resource):
        self._call("keep", u64(buffer), u64(resource))


class Python:
    """Python, over the package alone; `tenure.bindings` is the border."""

    name = "Python"

    def __init__(self):
        import tenure
        from tenure import bindings

        self.tenure = tenure
        self.bindings = bindings

    @contextlib.contextmanager
    def _saying(self):
        """Turns exceptions of tenure's into what native actors answer with."""
        try:
            yield
        except self.tenure.OwnershipError as error:
            raise Failed(OWNERSHIP, str(error)) from error

    def _resource(self, handle):
        """The object for a resource that is lent."""
        if handle == CURRENT:
            return None
        return self.bindings.wrap_resource(table().retain(handle))

    def _stream(self, stream):
        table().retain_stream(stream)
        return self.bindings.wrap_stream(*stream)

    def _buffer(self, handle):
        return self.bindings.wrap_buffer(handle)

    def pool(self, upstream):
        return self.bindings.retain_resource(self.tenure.mr.PoolMemoryResource(self._resource(upstream)))

    def callback(self, upstream, book):
        upstream = self._resource(upstream)

        class Closing:
            def __del__(self):
                book.dropped += 1

        closing = Closing()

        def allocate(size, stream, closing=closing):
            if book.fail == 1:
                book.fail = 0
                raise RuntimeError("refused by Python")
            book.allocations += 1
            return upstream.allocate(size, stream)

        def deallocate(ptr, size, stream):
            upstream.deallocate(ptr, size, stream)
            book.frees += 1
            if book.fail == 2:
                book.fail = 0
                raise RuntimeError("refused by Python")

        return self.bindings.retain_resource(self.tenure.mr.CallbackMemoryResource(allocate, deallocate))

    def release(self, resource):
        self.bindings.wrap_resource(resource)
        gc.collect()

    def make(self, size, value, stream, resource=CURRENT):
        made = self.tenure.DeviceBuffer.to_device(bytes([value]) * size, self._stream(stream), self._resource(resource))
        return self.bindings.take_buffer(made)

    def read(self, buffer, size):
        lent = self._buffer(buffer)
        try:
            mine = self.tenure.Stream()
            mine.wait_stream(lent.stream)
            lent.record_stream(mine)
            return lent.tobytes(mine)
        finally:
            # Back to the one who lent it, under the same handle: nothing of it was this actor's.
            assert self.bindings.take_buffer(lent) == buffer

    def free(self, buffer, elsewhere=True):
        taken = self._buffer(buffer)
        if not elsewhere:
            return taken.close()
        raised = []

        def body():
            try:
                taken.close()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        if raised:
            raise raised[0]

    def detach(self, buffer):
        ptr, size, resource, stream = self._buffer(buffer).detach()
        pair = self.bindings.borrow_stream(stream)
        table().retain_stream(pair)
        return ptr, size, self.bindings.retain_resource(resource), pair

    def adopt(self, ptr, size, stream, resource):
        with self._saying():
            adopted = self.tenure.DeviceBuffer.adopt(ptr, size, mr=self._resource(resource), stream=self._stream(stream))
        return self.bindings.take_buffer(adopted)

    def allocate(self, resource, size, stream):
        return self._resource(resource).allocate(size, self._stream(stream))

    def deallocate(self, resource, ptr, size, stream):
        with self._saying():
            self._resource(resource).deallocate(ptr, size, self._stream(stream))

    def owner_of(self, ptr):
        owner = self.tenure.mr.owner_of(ptr)
        return 0 if owner is None else owner.id

    def set_current(self, resource):
        self.tenure.mr.set_current_device_resource(self._resource(resource))

    def current_id(self):
        return self.tenure.mr.get_current_device_resource().id

    def scope(self, resource, body):
        with self.tenure.mr.using(self._resource(resource)):
            body()

    def keep(self, buffer, resource):
        globals()["kept"] = (self._buffer(buffer), self.bindings.wrap_resource(resource))


class View(ctypes.Structure):
    """`tenure_buffer_view`."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("ptr", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("capacity", ctypes.c_size_t),
        ("alignment", ctypes.c_size_t),
        ("resource_id", u64),
        ("stream", StreamValue),
        ("device", ctypes.c_int32),
        ("properties", ctypes.c_uint32),
    ]


class Info(ctypes.Structure):
    """`tenure_info`."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("live_bytes", u64),
        ("cached_bytes", u64),
        ("reserved_bytes", u64),
        ("largest_free_bytes", u64),
        ("peak_live_bytes", u64),
        ("peak_reserved_bytes", u64),
        ("live_count", u64),
        ("unproven_bytes", u64),
        ("device_proofs", u64),
    ]


class Table:
    """What the scenes ask the library itself, past all actors. It must be loaded, by whomever."""

    def __init__(self):
        self._library = ctypes.CDLL("libtenure.so.0", mode=os.RTLD_NOW | os.RTLD_NOLOAD)

    def _call(self, name, *arguments):
        status = getattr(self._library, f"tenure_{name}")(*arguments)
        if status > 0:
            raise Failed(status, name)

    def plain(self):
        """A reference to the plain device resource."""
        out = u64()
        self._call("cuda_resource", ctypes.byref(out))
        return out.value

    def retain(self, resource):
        out = u64()
        self._call("resource_retain", u64(resource), ctypes.byref(out))
        return out.value

    def release(self, resource):
        self._call("resource_release", u64(resource))

    def id(self, resource):
        out = u64()
        self._call("resource_id", u64(resource), ctypes.byref(out))
        return out.value

    def alive(self, id):
        out = u64()
        self._call("resource_from_id", u64(id), ctypes.byref(out))
        if out.value:
            self.release(out.value)
        return out.value != 0

    def info(self, resource):
        out = Info(size=ctypes.sizeof(Info))
        self._call("resource_info", u64(resource), ctypes.byref(out))
        return out

    def view(self, buffer):
        out = View(size=ctypes.sizeof(View))
        self._call("buffer_view", u64(buffer), ctypes.byref(out))
        return out

    def stream(self):
        out = StreamValue()
        self._call("stream_create", ctypes.c_int32(-1), ctypes.c_uint32(1), ctypes.byref(out))
        return out.raw, out.object

    def retain_stream(self, stream):
        if stream[1]:
            self._call("stream_retain", u64(stream[1]))

    def release_stream(self, stream):
        if stream[1]:
            self._call("stream_release", u64(stream[1]))

    def reset_current(self):
        self._call("current_reset", ctypes.c_int32(-1), None)

    def violations(self):
        """How often the simulated driver was used wrongly; a real one does not tell."""
        out = u64()
        return out.value if self._library.tenure_sim_violations(ctypes.byref(out)) == 0 else 0


def table():
    """The table of the library that is loaded."""
    if not hasattr(table, "loaded"):
        table.loaded = Table()
    return table.loaded


MAKERS = {
    "Python": Python,
    "C": lambda: Native("c", "C"),
    "C++": lambda: Native("cpp", "C++"),
    "Rust": lambda: Native("rust", "Rust"),
}
