"""Exchange below Python: DLPack's C exchange API, Arrow's C interfaces, and deleters that need neither lock nor interpreter."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading

import numpy as np
import pytest
import tenure
from conftest import DEVICE
from tenure import DeviceBuffer, Stream
from test_export import Deleter, DLTensor, ManagedVersioned, api, consume

mr = tenure.mr
CPU, CUDA = 1, 2


class Exchange(ctypes.Structure):
    """``DLPackExchangeAPI`` of dlpack.h 1.3."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("prev_api", ctypes.c_void_p),
        ("allocator", ctypes.c_void_p),
        ("from_object", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p),
        ("view", ctypes.c_void_p),
        ("work_stream", ctypes.c_void_p),
    ]


# The lock is held in these, as the protocol has it, and what they raise is raised here.
FromObject = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
ToObject = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.py_object))
View = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
WorkStream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
SetError = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
# And this one is called without it.
Allocator = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(DLTensor), ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_void_p
)


@pytest.fixture
def table():
    capsule = DeviceBuffer.__dlpack_c_exchange_api__
    return Exchange.from_address(api.PyCapsule_GetPointer(capsule, b"dlpack_exchange_api"))


def taken(pointer):
    struct = ManagedVersioned.from_address(pointer)
    return struct, lambda: Deleter(struct.deleter)(pointer)


# ---------------------------------------------------------------- the table, out


def test_the_table(table):
    assert (table.major, table.minor, table.prev_api) == (1, 3, None)
    assert all(getattr(table, name) for name in ("allocator", "from_object", "to_object", "view", "work_stream"))

    class Sub(DeviceBuffer):
        pass

    assert Sub.__dlpack_c_exchange_api__ is DeviceBuffer.__dlpack_c_exchange_api__


def test_an_object_becomes_a_tensor(table, pool, stream):
    buffer = DeviceBuffer.to_device(b"exchange", stream, pool)
    out = ctypes.c_void_p()
    assert FromObject(table.from_object)(buffer, out) == 0
    struct, delete = taken(out.value)
    tensor = struct.tensor
    assert (struct.major, struct.minor, struct.flags) == (1, 3, 0)
    assert (tensor.data, tensor.ndim, tensor.shape[0], tensor.strides[0]) == (buffer.ptr, 1, 8, 1)
    assert (tensor.device_type, tensor.device_id) == buffer.__dlpack_device__()
    with pytest.raises(BufferError, match="DLPack"):
        buffer.resize(1000)
    del buffer
    gc.collect()
    assert pool.info().live_count == 1
    delete()
    assert pool.info().live_count == 0


def test_read_only_memory_says_so(table):
    array = np.arange(4, dtype=np.uint8)
    array.flags.writeable = False
    out = ctypes.c_void_p()
    assert FromObject(table.from_object)(tenure.from_dlpack(array), out) == 0
    struct, delete = taken(out.value)
    assert struct.flags & 1
    delete()


def test_a_view_owns_nothing(table, pool):
    buffer = DeviceBuffer.to_device(b"view", mr=pool)
    tensor = DLTensor()
    assert View(table.view)(buffer, tensor) == 0
    assert (tensor.data, tensor.ndim, tensor.shape[0], tensor.strides[0]) == (buffer.ptr, 1, 4, 1)
    assert (tensor.code, tensor.bits, tensor.lanes) == (1, 8, 1)
    buffer.resize(1000)
    assert View(table.view)(buffer, tensor) == 0 and tensor.shape[0] == 1000


@pytest.mark.needs_sim
@pytest.mark.parametrize("function", ["view", "from_object"])
def test_the_host_waits_for_the_home_stream_of_memory_for_the_cpu(function, table, pool, stream):
    buffer = DeviceBuffer(size=8, stream=stream, mr=pool)
    tenure.sim.busy(stream, 30)
    if function == "view":
        assert View(table.view)(buffer, DLTensor()) == 0
    else:
        out = ctypes.c_void_p()
        assert FromObject(table.from_object)(buffer, out) == 0
        taken(out.value)[1]()
    assert stream.query()


@pytest.mark.parametrize("wrong", [object(), None, b"", type("Array", (), {})()])
def test_what_is_no_buffer(wrong, table):
    with pytest.raises(TypeError, match="take a DeviceBuffer"):
        FromObject(table.from_object)(wrong, ctypes.c_void_p())
    with pytest.raises(TypeError, match="take a DeviceBuffer"):
        View(table.view)(wrong, DLTensor())


def test_a_tensor_becomes_an_object(table, pool):
    buffer = DeviceBuffer.to_device(b"there and back", mr=pool)
    out, made = ctypes.c_void_p(), ctypes.py_object()
    assert FromObject(table.from_object)(buffer, out) == 0
    assert ToObject(table.to_object)(out, made) == 0
    again = made.value
    # ctypes has a reference of its own besides the one that came out.
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(again))
    del made, buffer
    gc.collect()
    assert type(again) is DeviceBuffer and again.tobytes() == b"there and back" and again.mr is None
    del again
    gc.collect()
    assert pool.info().live_count == 0


def test_a_tensor_is_taken_over_also_when_it_is_refused(table):
    deleted = []
    deleter = Deleter(lambda pointer: deleted.append(pointer))
    address = ctypes.cast(deleter, ctypes.c_void_p).value
    shape = (ctypes.c_int64 * 1)(8)
    for struct in (
        ManagedVersioned(major=7, deleter=address),
        ManagedVersioned(
            major=1, deleter=address, tensor=DLTensor(data=4096, device_type=10, ndim=1, code=1, bits=8, lanes=1, shape=shape)
        ),
    ):
        before = len(deleted)
        with pytest.raises(BufferError):
            ToObject(table.to_object)(ctypes.addressof(struct), ctypes.py_object())
        assert len(deleted) == before + 1
    struct = ManagedVersioned(major=1, deleter=address)
    with pytest.raises(TypeError, match="for its result"):
        ToObject(table.to_object)(ctypes.addressof(struct), None)
    assert len(deleted) == 3
    with pytest.raises(TypeError, match="for its tensor"):
        ToObject(table.to_object)(None, ctypes.py_object())


def test_the_work_stream_is_the_default_one(table):
    for kind, number in ((CPU, 0), (CUDA, 0)):
        out = ctypes.c_void_p(77)
        assert WorkStream(table.work_stream)(kind, number, out) == 0
        assert out.value is None
    with pytest.raises(BufferError, match="does not exist"):
        WorkStream(table.work_stream)(CUDA, -1, ctypes.c_void_p())


def prototype(*shape, device=None, bits=32, lanes=1):
    device = device or DeviceBuffer(size=1).__dlpack_device__()
    dims = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    return DLTensor(
        device_type=device[0], device_id=device[1], ndim=len(shape), code=2, bits=bits, lanes=lanes, shape=dims
    ), dims


def allocate(table, tensor, errors=None):
    set_error = SetError(lambda context, kind, message: errors.append((context, kind.decode(), message.decode())))
    out = ctypes.c_void_p()
    status = Allocator(table.allocator)(tensor, out, 42, ctypes.cast(set_error, ctypes.c_void_p))
    return status, out.value


def test_the_allocator_takes_from_the_current_resource(table, pool):
    tensor, _dims = prototype(3, 4)
    with mr.using(pool):
        # Without the lock, and so without the scope of this thread unless the library keeps it by itself.
        mr.get_current_device_resource()
        status, pointer = allocate(table, tensor)
    assert status == 0
    struct, delete = taken(pointer)
    made = struct.tensor
    assert pool.info().live_count == 1 and pool.owns(made.data)
    assert [made.shape[i] for i in range(2)] == [3, 4] and [made.strides[i] for i in range(2)] == [4, 1]
    assert (made.code, made.bits, made.lanes, made.byte_offset) == (2, 32, 1, 0)
    assert (struct.major, struct.minor, struct.flags) == (1, 3, 0)
    delete()
    assert pool.info().live_count == 0


def test_the_allocator_on_other_threads(table, pool):
    mr.set_current_device_resource(pool)
    tensor, _dims = prototype(1000)
    deletes = []

    def work():
        for _ in range(20):
            status, pointer = allocate(table, tensor)
            assert status == 0
            deletes.append(taken(pointer)[1])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.info().live_count == len(deletes) == 80
    for delete in deletes:
        delete()
    assert pool.info().live_count == 0


@pytest.mark.parametrize("shape", [(), (0,), (5, 0, 3)])
def test_the_allocator_and_odd_shapes(shape, table):
    tensor, _dims = prototype(*shape)
    status, pointer = allocate(table, tensor)
    assert status == 0
    struct, delete = taken(pointer)
    assert struct.tensor.ndim == len(shape)
    assert (struct.tensor.data is None) == (0 in shape)
    delete()


def test_what_the_allocator_refuses(table, cuda):
    for arguments, kind, part in (
        ({"device": (10, 0)}, "BufferError", "DLPack device"),
        ({"shape": (-1,)}, "BufferError", "negative"),
        ({"shape": (2**62, 2**62)}, "BufferError", "larger"),
    ):
        errors = []
        tensor, _dims = prototype(*arguments.pop("shape", (4,)), **arguments)
        assert allocate(table, tensor, errors)[0] == -1
        assert [(c, k) for c, k, _ in errors] == [(42, kind)] and part in errors[0][2]
    mr.set_current_device_resource(mr.LimitingResourceAdaptor(cuda, 1000))
    errors = []
    tensor, _dims = prototype(1 << 20)
    assert allocate(table, tensor, errors)[0] == -1
    assert errors[0][1] == "MemoryError" and "1000" in errors[0][2].replace(",", "")


# ---------------------------------------------------------------- the table, in


class Producer:
    """An array of somebody else's whose type has a table; `__dlpack__` is never called."""

    def __init__(self, buffer):
        self.buffer = buffer

    def __dlpack__(self, **_kwargs):
        raise AssertionError("the table was not used")

    def __dlpack_device__(self):
        raise AssertionError("the table was not used")


def give_table(cls, from_object, work_stream, *, major=1, previous=None):
    made = Exchange(major=major, minor=3, prev_api=previous)
    made.functions = [
        ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))(from_object),
        WorkStream(work_stream),
    ]
    made.from_object, made.work_stream = (ctypes.cast(f, ctypes.c_void_p).value for f in made.functions)
    cls.keep = [*getattr(cls, "keep", []), made]
    cls.__dlpack_c_exchange_api__ = api.PyCapsule_New(ctypes.addressof(made), b"dlpack_exchange_api", None)
    return made


def by_our_table(table):
    return lambda array, out: FromObject(table.from_object)(array.buffer, out)


def no_stream(kind, number, out):
    out[0] = None
    return 0


def test_a_producer_with_a_table(table, pool):
    class Array(Producer):
        pass

    give_table(Array, by_our_table(table), no_stream)
    buffer = DeviceBuffer.to_device(b"table", mr=pool)
    ours = tenure.from_dlpack(Array(buffer))
    assert ours.ptr == buffer.ptr and ours.tobytes() == b"table"
    del buffer, ours
    gc.collect()
    assert pool.info().live_count == 0


def test_a_table_of_another_version_and_an_older_one_behind_it(table, pool):
    class Array(Producer):
        def __dlpack__(self, **kwargs):
            return self.buffer.__dlpack__(**kwargs)

        def __dlpack_device__(self):
            return self.buffer.__dlpack_device__()

    def refuse(array, out):
        raise AssertionError("a table of another version was used")

    array = Array(DeviceBuffer.to_device(b"old", mr=pool))
    give_table(Array, refuse, no_stream, major=2)
    assert tenure.from_dlpack(array).tobytes() == b"old"

    class Chained(Producer):
        pass

    old = give_table(Chained, by_our_table(table), no_stream)
    give_table(Chained, refuse, no_stream, major=2, previous=ctypes.addressof(old))
    assert tenure.from_dlpack(Chained(array.buffer)).tobytes() == b"old"
    # What is no capsule of that name is as good as none.
    for wrong in (None, 4096, api.PyCapsule_New(4096, b"another", None)):
        Array.__dlpack_c_exchange_api__ = wrong
        assert tenure.from_dlpack(array).tobytes() == b"old"


@pytest.mark.needs_sim
def test_the_producers_work_stream_comes_first(pool, stream):
    """A tensor that says CUDA is ordered by the producer's stream, which the host does not wait for."""
    buffer = DeviceBuffer(size=8, mr=pool)
    deleted, asked = [], []
    deleter = Deleter(lambda pointer: deleted.append(pointer))
    shape = (ctypes.c_int64 * 1)(8)
    tensor = DLTensor(data=buffer.ptr, device_type=CUDA, ndim=1, code=1, bits=8, lanes=1, shape=shape)
    struct = ManagedVersioned(major=1, deleter=ctypes.cast(deleter, ctypes.c_void_p).value, tensor=tensor)
    theirs = Stream()

    def from_object(array, out):
        out[0] = ctypes.addressof(struct)
        return 0

    def work_stream(kind, number, out):
        asked.append((kind, number))
        out[0] = theirs.handle
        return 0

    class Array(Producer):
        pass

    give_table(Array, from_object, work_stream)
    tenure.sim.busy(theirs, 50)
    ours = tenure.from_dlpack(Array(None), stream=stream)
    assert asked == [(CUDA, 0)] and ours.device == 0
    assert not theirs.query() and not stream.query(), "the host waited, or our stream does not wait"
    stream.synchronize()
    assert theirs.query()
    del ours
    gc.collect()
    assert len(deleted) == 1


def test_what_a_producers_table_raises(pool):
    class Array(Producer):
        pass

    def nothing(array, out):
        out[0] = None
        return 0

    give_table(Array, nothing, no_stream)
    with pytest.raises(BufferError, match="no tensor and no error"):
        tenure.from_dlpack(Array(None))


# ---------------------------------------------------------------- deleters that need neither lock nor interpreter

libc = ctypes.PyDLL(None)
"""Calls through this keep the interpreter lock."""


def in_a_native_thread(function, argument):
    """Calls a function of C's in a thread that Python does not know, while this thread keeps the interpreter lock."""
    thread = ctypes.c_void_p()
    assert libc.pthread_create(ctypes.byref(thread), None, ctypes.c_void_p(function), ctypes.c_void_p(argument)) == 0
    assert libc.pthread_join(thread, None) == 0


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_deleter_never_asks_for_the_lock(version, pool):
    buffer = DeviceBuffer(size=1000, stream=Stream(), mr=pool)
    capsule = buffer.__dlpack__(max_version=version)
    struct, _ = consume(capsule)
    del buffer
    gc.collect()
    in_a_native_thread(struct.deleter, ctypes.addressof(struct))
    assert pool.info().live_count == 0


def test_the_deleter_of_an_allocated_tensor_never_asks_for_the_lock(table, pool):
    mr.set_current_device_resource(pool)
    tensor, _dims = prototype(100)
    _, pointer = allocate(table, tensor)
    in_a_native_thread(ManagedVersioned.from_address(pointer).deleter, pointer)
    assert pool.info().live_count == 0


def test_the_release_of_an_arrow_array_never_asks_for_the_lock(pool):
    buffer = DeviceBuffer(size=1000, stream=Stream(), mr=pool)
    _schema, capsule = buffer.__arrow_c_device_array__()
    array = ArrowDeviceArray.from_address(api.PyCapsule_GetPointer(capsule, b"arrow_device_array"))
    del buffer
    gc.collect()
    in_a_native_thread(array.array.release, ctypes.addressof(array))
    assert pool.info().live_count == 0 and not array.array.release


@pytest.mark.parametrize("kind", ["dltensor", "dltensor_versioned", "arrow"])
def test_deleters_after_the_interpreters_end(kind):
    """C's exit handlers run when the interpreter is gone."""
    program = f"""
import ctypes, sys
sys.path.insert(0, {__file__.rpartition("/")[0]!r})
import tenure
from tenure import DeviceBuffer, Stream
from test_export import api, consume
from test_exchange import ArrowDeviceArray
mr = tenure.mr
pool = mr.PoolMemoryResource(mr.CudaMemoryResource())
late = ctypes.CDLL(None).__cxa_atexit
late.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
for resource in (pool, mr.CallbackMemoryResource(pool.allocate, pool.deallocate)):
    buffer = DeviceBuffer(size=1000, stream=Stream(), mr=resource)
    if {kind!r} == "arrow":
        capsule = buffer.__arrow_c_device_array__()[1]
        array = ArrowDeviceArray.from_address(api.PyCapsule_GetPointer(capsule, b"arrow_device_array"))
        moved = ArrowDeviceArray.from_buffer_copy(array)
        array.array.release = None
        keep = ctypes.CDLL(None).malloc
        keep.restype = ctypes.c_void_p
        place = keep(ctypes.sizeof(moved))
        ctypes.memmove(place, ctypes.addressof(moved), ctypes.sizeof(moved))
        assert late(moved.array.release, place, None) == 0
    else:
        struct, _ = consume(buffer.__dlpack__(max_version=(1, 0) if "versioned" in {kind!r} else None))
        assert late(struct.deleter, ctypes.addressof(struct), None) == 0
    del buffer
print("end")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


# ---------------------------------------------------------------- Arrow


class ArrowSchema(ctypes.Structure):
    _fields_ = [
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_char_p),
        ("flags", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    ]


class ArrowArray(ctypes.Structure):
    _fields_ = [
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    ]


class ArrowDeviceArray(ctypes.Structure):
    _fields_ = [
        ("array", ArrowArray),
        ("device_id", ctypes.c_int64),
        ("device_type", ctypes.c_int32),
        ("sync_event", ctypes.c_void_p),
        ("reserved", ctypes.c_int64 * 3),
    ]


def device_array(pair):
    return ArrowDeviceArray.from_address(api.PyCapsule_GetPointer(pair[1], b"arrow_device_array"))


def test_a_buffer_as_an_arrow_device_array(pool, stream):
    buffer = DeviceBuffer.to_device(b"arrow", stream, pool)
    pair = buffer.__arrow_c_device_array__()
    schema = ArrowSchema.from_address(api.PyCapsule_GetPointer(pair[0], b"arrow_schema"))
    assert (schema.format, schema.n_children, schema.dictionary) == (b"C", 0, None)
    shown = device_array(pair)
    array = shown.array
    assert (array.length, array.null_count, array.offset, array.n_buffers, array.n_children) == (5, 0, 0, 2, 0)
    assert array.buffers[0] is None and array.buffers[1] == buffer.ptr
    kind, number = buffer.__dlpack_device__()
    assert (shown.device_type, shown.device_id) == (kind, -1 if kind == CPU else number)
    assert shown.sync_event is None and list(shown.reserved) == [0, 0, 0]
    with pytest.raises(BufferError):
        buffer.resize(1000)
    del buffer
    gc.collect()
    assert pool.info().live_count == 1
    del pair
    assert pool.info().live_count == 0


@pytest.mark.needs_sim
def test_an_arrow_array_is_handed_out_when_the_home_stream_is_done(pool, stream):
    buffer = DeviceBuffer(size=5, stream=stream, mr=pool)
    tenure.sim.busy(stream, 30)
    buffer.__arrow_c_device_array__()
    assert stream.query()


def test_arguments_of_the_device_interface(pool):
    buffer = DeviceBuffer(size=5, mr=pool)
    buffer.__arrow_c_device_array__(None)
    buffer.__arrow_c_device_array__(requested_schema=None, later=None)
    with pytest.raises(NotImplementedError, match="later"):
        buffer.__arrow_c_device_array__(later=1)
    if DEVICE == "cuda":
        with pytest.raises(BufferError, match="copy_to_host"):
            buffer.__arrow_c_array__()


class ArrowProducer:
    """Any Arrow array, by hand."""

    def __init__(self, ptr=0, length=4, *, fmt=b"i", device=(CPU, -1), **fields):
        self.released = []
        self.release = Deleter(self._release)
        self.buffers = (ctypes.c_void_p * 3)(fields.pop("validity", None), ptr, None)
        values = {"length": length, "null_count": 0, "n_buffers": 2, **fields}
        address = ctypes.cast(self.release, ctypes.c_void_p).value
        self.schema = ArrowSchema(format=fmt, name=b"", release=address)
        self.array = ArrowDeviceArray(
            array=ArrowArray(buffers=ctypes.cast(self.buffers, ctypes.POINTER(ctypes.c_void_p)), release=address, **values),
            device_type=device[0],
            device_id=device[1],
        )

    def _release(self, pointer):
        self.released.append(pointer)

    def __arrow_c_device_array__(self, requested_schema=None, **kwargs):
        return (
            api.PyCapsule_New(ctypes.addressof(self.schema), b"arrow_schema", None),
            api.PyCapsule_New(ctypes.addressof(self.array), b"arrow_device_array", None),
        )


@pytest.mark.parametrize(
    ("fmt", "width"),
    [
        (b"c", 1),
        (b"S", 2),
        (b"e", 2),
        (b"f", 4),
        (b"tdD", 4),
        (b"g", 8),
        (b"tsn:UTC", 8),
        (b"tDu", 8),
        (b"tin", 16),
        (b"w:12", 12),
        (b"d:10,2", 16),
        (b"d:10,2,256", 32),
    ],
)
def test_formats_that_are_taken(fmt, width, pool):
    source = DeviceBuffer.to_device(bytes(range(200)), mr=pool)
    producer = ArrowProducer(source.ptr, 3, fmt=fmt, offset=2, device=(CUDA, 0))
    buffer = tenure.from_arrow(producer)
    assert (buffer.ptr, buffer.size, buffer.device, buffer.mr) == (source.ptr + 2 * width, 3 * width, 0, None)
    assert buffer.tobytes() == bytes(range(200))[2 * width : 5 * width]
    with pytest.raises(BufferError, match="read-only"):
        buffer.copy_from_host(b"x")
    assert producer.released == []
    del buffer
    gc.collect()
    assert len(producer.released) == 1


@pytest.mark.parametrize("wrong", [b"b", b"u", b"z", b"+s", b"+l", b"vu", b"n", b"w:x", b""])
def test_formats_that_are_refused(wrong):
    producer = ArrowProducer(4096, fmt=wrong)
    with pytest.raises(BufferError, match="fixed-width"):
        tenure.from_arrow(producer)
    assert len(producer.released) == 1


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"null_count": 1, "validity": 4096}, "nulls"),
        ({"null_count": -1, "validity": 4096}, "nulls"),
        ({"ptr": 0}, "address 0"),
        ({"length": -1}, "negative"),
        ({"offset": -1}, "negative"),
        ({"length": 2**62}, "larger"),
        ({"n_buffers": 3}, "3 buffers"),
        ({"n_children": 1}, "fixed-width"),
        ({"device": (4, 0)}, "device type 4"),
        ({"device": (CUDA, -5)}, "does not exist"),
    ],
)
def test_arrays_that_are_refused_are_released(fields, part):
    producer = ArrowProducer(**{"ptr": 4096, **fields})
    with pytest.raises(BufferError, match=part):
        tenure.from_arrow(producer)
    assert len(producer.released) == 1


def test_arrays_without_bytes_and_without_a_count_of_nulls():
    assert tenure.from_arrow(ArrowProducer(0, 0)).size == 0
    host = np.arange(4, dtype=np.int32)
    buffer = tenure.from_arrow(ArrowProducer(host.ctypes.data, null_count=-1))
    assert buffer.tobytes() == host.tobytes() and buffer.device is None


def test_an_event_of_the_producers_is_waited_for(pool):
    source = DeviceBuffer(size=16, mr=pool)
    producer = ArrowProducer(source.ptr, device=(CUDA, 0))
    event = ctypes.c_void_p(0x1234)
    producer.array.sync_event = ctypes.addressof(event)
    if tenure.sim.active():
        stream = Stream()
        tenure.sim.busy(stream, 30)
    buffer = tenure.from_arrow(producer)
    if tenure.sim.active():
        assert stream.query()
    del buffer


@pytest.mark.skipif(not tenure.sim.active(), reason="says when work ends")
@pytest.mark.parametrize("number", [1, -1])
def test_an_event_of_host_memory_is_of_some_device(number):
    host = np.arange(4, dtype=np.int32)
    producer = ArrowProducer(host.ctypes.data, device=(3, number))
    event = ctypes.c_void_p(0x1234)
    producer.array.sync_event = ctypes.addressof(event)
    stream = Stream(device=1)
    tenure.sim.busy(stream, 50)
    buffer = tenure.from_arrow(producer)
    assert stream.query()
    assert buffer.device is None and buffer.tobytes() == host.tobytes()


def test_a_capsule_is_taken_once(pool):
    class Held:
        def __init__(self, buffer):
            self.pair = buffer.__arrow_c_device_array__()

        def __arrow_c_device_array__(self):
            return self.pair

    held = Held(DeviceBuffer.to_device(b"once", mr=pool))
    assert tenure.from_arrow(held).tobytes() == b"once"
    with pytest.raises(ValueError, match="released already"):
        tenure.from_arrow(held)
    del held
    assert pool.info().live_count == 0


def test_arrow_objects_that_are_wrong():
    def producer(answer):
        return type("Producer", (), {"__arrow_c_array__": lambda self: answer})()

    schema = DeviceBuffer(size=1).__arrow_c_device_array__()[0]
    for wrong in (object(), None, producer(None), producer((1,)), producer((1, 2)), producer((schema, 2))):
        with pytest.raises(TypeError):
            tenure.from_arrow(wrong)


def test_arrow_round_trip(pool):
    buffer = DeviceBuffer.to_device(b"round", mr=pool)
    again = tenure.from_arrow(buffer)
    assert again.ptr == buffer.ptr
    del buffer
    assert again.tobytes() == b"round"
    del again
    assert pool.info().live_count == 0
