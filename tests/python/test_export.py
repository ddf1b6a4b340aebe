"""How a buffer is seen by others, and how theirs are taken: CUDA array interface, DLPack, buffer protocol, pickle."""

from __future__ import annotations

import ctypes
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest
import tenure
from tenure import DeviceBuffer, Stream

mr = tenure.mr


@pytest.fixture
def pinned():
    return mr.PinnedHostMemoryResource()


# ---------------------------------------------------------------- the CUDA array interface


def test_interface(pool, stream):
    buffer = DeviceBuffer(size=100, stream=stream, mr=pool)
    assert buffer.__cuda_array_interface__ == {
        "data": (buffer.ptr, False),
        "shape": (100,),
        "strides": None,
        "typestr": "|u1",
        "version": 3,
        "stream": stream.handle,
    }
    # 0 is forbidden by the protocol.
    assert DeviceBuffer(size=1, mr=pool).__cuda_array_interface__["stream"] == 1
    empty = DeviceBuffer(size=0, mr=pool).__cuda_array_interface__
    assert empty["data"] == (0, False) and empty["shape"] == (0,)


def test_memory_that_no_device_can_use_has_none():
    buffer = DeviceBuffer(size=10, mr=mr.SystemMemoryResource())
    if not mr.SystemMemoryResource().is_device_accessible:
        assert not hasattr(buffer, "__cuda_array_interface__")


class Array:
    def __init__(self, **interface):
        self.__cuda_array_interface__ = {
            "shape": (4,),
            "typestr": "<f4",
            "data": (4096, False),
            "version": 3,
            **interface,
        }


def test_taking_an_array(pool, stream):
    source = DeviceBuffer.to_device(bytes(range(16)), stream, pool)
    array = Array(data=(source.ptr, False), stream=stream.handle)
    taken = tenure.from_cuda_array_interface(array)
    assert taken.size == 16 and taken.ptr == source.ptr and taken.mr is None
    assert taken.tobytes() == bytes(range(16))
    gone = weakref.ref(array)
    del array
    assert gone() is not None
    del taken
    gc.collect()
    assert gone() is None


def test_a_read_only_array_stays_so(pool):
    source = DeviceBuffer.to_device(bytes(16), mr=pool)
    taken = tenure.from_cuda_array_interface(Array(data=(source.ptr, True)))
    assert taken.__cuda_array_interface__["data"][1] is True
    for write in (lambda: taken.copy_from_host(b"x"), lambda: taken.resize(2), lambda: taken.copy_from_device(source)):
        with pytest.raises(BufferError, match="read-only"):
            write()


@pytest.mark.parametrize(
    "wrong",
    [
        {"shape": (4, -1)},
        {"shape": None},
        {"shape": 4},
        {"typestr": "x"},
        {"typestr": "|O8"},
        {"typestr": "<f"},
        {"typestr": None},
        {"data": None},
        {"data": 4096},
        {"data": (0, False)},
        {"data": (-1, False)},
        {"mask": object()},
        {"strides": (8,)},
        {"strides": (4, 4)},
        {"stream": 0},
        {"stream": "x"},
        {"shape": (2**62, 2**62)},
    ],
)
def test_wrong_interfaces(wrong):
    with pytest.raises((ValueError, TypeError)):
        tenure.from_cuda_array_interface(Array(**wrong))


def test_what_has_no_interface():
    for wrong in (None, 1, b"", np.zeros(3)):
        with pytest.raises(TypeError, match="__cuda_array_interface__"):
            tenure.from_cuda_array_interface(wrong)


def test_empty_and_contiguous_arrays():
    assert tenure.from_cuda_array_interface(Array(shape=(0,), data=(0, False))).size == 0
    assert tenure.from_cuda_array_interface(Array(shape=(2, 3), strides=(12, 4))).size == 24
    assert tenure.from_cuda_array_interface(Array(shape=(1, 3), strides=(999, 4))).size == 12
    assert tenure.from_cuda_array_interface(Array(shape=(), data=(4096, False))).size == 4


# ---------------------------------------------------------------- DLPack, out


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    pass


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Managed._fields_ = [("tensor", DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


api = ctypes.pythonapi
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_GetName.restype = ctypes.c_char_p
api.PyCapsule_GetName.argtypes = [ctypes.py_object]
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

USED = {b"dltensor": b"used_dltensor", b"dltensor_versioned": b"used_dltensor_versioned"}


def consume(capsule):
    """Takes a capsule over as a consumer does. Returns the structure and what frees it, which needs no Python lock."""
    name = api.PyCapsule_GetName(capsule)
    pointer = api.PyCapsule_GetPointer(capsule, name)
    api.PyCapsule_SetName(capsule, USED[name])
    struct = (ManagedVersioned if b"versioned" in name else Managed).from_address(pointer)
    # A CFUNCTYPE prototype lets go of the interpreter lock for the call, as a foreign thread would.
    delete = Deleter(struct.deleter)
    return struct, lambda: delete(pointer)


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 3), (2, 0)])
def test_both_kinds_of_capsule(version, pool):
    buffer = DeviceBuffer.to_device(b"capsule", mr=pool)
    capsule = buffer.__dlpack__(max_version=version)
    struct, delete = consume(capsule)
    versioned = version is not None and version[0] >= 1
    assert isinstance(struct, ManagedVersioned) == versioned
    tensor = struct.tensor
    assert (tensor.data, tensor.ndim, tensor.shape[0], tensor.strides[0]) == (buffer.ptr, 1, 7, 1)
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset) == (1, 8, 1, 0)
    assert (tensor.device_type, tensor.device_id) == buffer.__dlpack_device__()
    if versioned:
        assert struct.major == 1 and struct.flags == 0
        assert struct.minor <= (version[1] if version[0] == 1 else 99)
    del buffer
    gc.collect()
    assert pool.info().live_count == 1, "the consumer keeps the memory"
    delete()
    assert pool.info().live_count == 0


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_capsule_that_nobody_takes(version, pool):
    buffer = DeviceBuffer(size=10, mr=pool)
    capsule = buffer.__dlpack__(max_version=version)
    del buffer
    assert pool.info().live_count == 1
    del capsule
    assert pool.info().live_count == 0


def test_deleters_run_on_any_thread_in_any_order(pool):
    buffer = DeviceBuffer(size=10, mr=pool)
    deletes = [consume(buffer.__dlpack__(max_version=(1, 0)))[1] for _ in range(8)]
    del buffer
    threads = [threading.Thread(target=delete) for delete in deletes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.info().live_count == 0


def test_a_deleter_of_a_buffer_of_callbacks(recorder):
    """The deleter is called without the lock, and what it frees needs the lock."""
    buffer = DeviceBuffer(size=10, mr=recorder.mr)
    delete = consume(buffer.__dlpack__())[1]
    del buffer
    delete()
    assert len(recorder.freed) == 1


def test_what_would_move_exported_memory_is_refused(pool):
    buffer = DeviceBuffer.to_device(b"fixed", mr=pool)
    delete = consume(buffer.__dlpack__())[1]
    for use in (lambda: buffer.resize(1000), buffer.close, buffer.detach, lambda: buffer.reserve(1000), buffer.shrink_to_fit):
        with pytest.raises(BufferError, match="DLPack"):
            use()
    assert buffer.copy(mr=pool).tobytes() == b"fixed"
    delete()
    buffer.resize(1000)


def test_copies(pool):
    buffer = DeviceBuffer.to_device(b"source", mr=pool)
    struct, delete = consume(buffer.__dlpack__(copy=True, max_version=(1, 0)))
    assert struct.flags == 2
    assert struct.tensor.data != buffer.ptr
    assert pool.info().live_count == 2
    delete()
    assert consume(buffer.__dlpack__(copy=False))[0].tensor.data == buffer.ptr
    assert pool.info().live_count == 1


def test_an_empty_buffer(pool):
    struct, delete = consume(DeviceBuffer(size=0, mr=pool).__dlpack__())
    assert struct.tensor.data is None and struct.tensor.shape[0] == 0
    delete()


@pytest.mark.parametrize("stream", [0, -2, "x", 1.5])
def test_streams_that_dlpack_forbids(stream, pool):
    with pytest.raises((ValueError, TypeError)):
        DeviceBuffer(size=1, mr=pool).__dlpack__(stream=stream)


@pytest.mark.parametrize("stream", [None, -1, 1, 2])
def test_streams_that_dlpack_allows(stream, pool):
    DeviceBuffer(size=1, mr=pool).__dlpack__(stream=stream)
    theirs = Stream()
    DeviceBuffer(size=1, mr=pool).__dlpack__(stream=theirs.handle)


@pytest.mark.parametrize("device", [(4, 0), (2, 77), (99, 0), (1, 5)])
def test_a_device_that_it_is_not_on(device, pool):
    with pytest.raises(BufferError, match="DLPack device"):
        DeviceBuffer(size=1, mr=pool).__dlpack__(dl_device=device)


def test_wrong_arguments(pool):
    buffer = DeviceBuffer(size=1, mr=pool)
    for wrong in ({"max_version": 1}, {"max_version": (1,)}, {"dl_device": 1}, {"copy": "x"}, {"other": 1}):
        with pytest.raises((TypeError, ValueError)):
            buffer.__dlpack__(**wrong)


@pytest.mark.needs_sim
def test_numpy_reads_simulated_memory_in_place(pool, stream):
    buffer = DeviceBuffer(size=8, stream=stream, mr=pool)
    assert buffer.__dlpack_device__() == (1, 0)
    tenure.sim.busy(stream, 30)
    array = np.from_dlpack(buffer)
    # The host waited for the home stream.
    assert stream.query()
    array[:] = range(8)
    assert buffer.tobytes() == bytes(range(8))
    del buffer
    gc.collect()
    assert array.tolist() == list(range(8))


def test_numpy_reads_pinned_memory_in_place(pinned):
    buffer = DeviceBuffer.to_device(b"pinned", mr=pinned)
    assert buffer.__dlpack_device__() == (1, 0)
    assert np.from_dlpack(buffer).tobytes() == b"pinned"


# ---------------------------------------------------------------- DLPack, in


def test_taking_from_numpy():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    gone = weakref.ref(array)
    buffer = tenure.from_dlpack(array)
    assert buffer.size == 24 and buffer.ptr == array.ctypes.data and buffer.mr is None and buffer.device is None
    assert buffer.tobytes() == array.tobytes()
    buffer.copy_from_host(bytes(24))
    assert array.sum() == 0
    del array
    gc.collect()
    assert gone() is not None
    buffer.close()
    gc.collect()
    assert gone() is None


def test_a_round_trip(pool):
    buffer = DeviceBuffer.to_device(b"round", mr=pool)
    again = tenure.from_dlpack(buffer)
    del buffer
    assert again.tobytes() == b"round"
    del again
    assert pool.info().live_count == 0


def test_a_read_only_producer():
    array = np.arange(4)
    array.flags.writeable = False
    buffer = tenure.from_dlpack(array)
    with pytest.raises(BufferError, match="read-only"):
        buffer.copy_from_host(b"x")
    with pytest.raises(BufferError, match="read-only"):
        buffer.__dlpack__()
    struct, delete = consume(buffer.__dlpack__(max_version=(1, 0)))
    assert struct.flags & 1
    delete()


def test_a_producer_of_the_old_kind(pool):
    class Old:
        def __dlpack__(self, stream=None):
            return pool_buffer.__dlpack__(stream=stream)

        def __dlpack_device__(self):
            return pool_buffer.__dlpack_device__()

    pool_buffer = DeviceBuffer.to_device(b"old", mr=pool)
    taken = tenure.from_dlpack(Old())
    assert taken.tobytes() == b"old"


def test_producers_that_are_wrong(pool):
    def producer(**methods):
        return type("Producer", (), methods)()

    device = lambda self: (1, 0)  # noqa: E731
    for wrong in (
        object(),
        producer(__dlpack__=lambda self, **k: None, __dlpack_device__=device),
        producer(__dlpack__=lambda self, **k: b"x", __dlpack_device__=device),
        producer(__dlpack__=lambda self, **k: 1, __dlpack_device__=lambda self: "cpu"),
    ):
        with pytest.raises((TypeError, ValueError)):
            tenure.from_dlpack(wrong)
    failing = producer(__dlpack__=lambda self, **k: 1 / 0, __dlpack_device__=device)
    with pytest.raises(ZeroDivisionError):
        tenure.from_dlpack(failing)
    with pytest.raises(BufferError, match="contiguous"):
        tenure.from_dlpack(np.zeros((4, 4))[:, ::2])
    capsule = DeviceBuffer(size=3, mr=pool).__dlpack__()
    tenure.from_dlpack(capsule)
    with pytest.raises(ValueError, match="used already"):
        tenure.from_dlpack(capsule)


def test_a_producer_of_another_major_version_only_has_its_deleter_called():
    deleted = []
    deleter = Deleter(lambda pointer: deleted.append(pointer))
    struct = ManagedVersioned(major=9, minor=0, deleter=ctypes.cast(deleter, ctypes.c_void_p).value)
    capsule = api.PyCapsule_New(ctypes.addressof(struct), b"dltensor_versioned", None)
    with pytest.raises(BufferError, match=r"9\.0"):
        tenure.from_dlpack(capsule)
    assert deleted == [ctypes.addressof(struct)]


@pytest.mark.parametrize("device_type", [0, 4, 10, 99])
def test_memory_of_another_kind_of_device(device_type):
    deleted = []
    deleter = Deleter(lambda pointer: deleted.append(pointer))
    shape = (ctypes.c_int64 * 1)(8)
    tensor = DLTensor(data=4096, device_type=device_type, ndim=1, code=1, bits=8, lanes=1, shape=shape)
    struct = ManagedVersioned(major=1, deleter=ctypes.cast(deleter, ctypes.c_void_p).value, tensor=tensor)
    capsule = api.PyCapsule_New(ctypes.addressof(struct), b"dltensor_versioned", None)
    with pytest.raises(BufferError, match=f"device type {device_type}"):
        tenure.from_dlpack(capsule)
    assert len(deleted) == 1


# ---------------------------------------------------------------- the buffer protocol


@pytest.mark.parametrize("cls", [mr.PinnedHostMemoryResource, mr.ManagedMemoryResource, mr.SystemMemoryResource])
def test_memoryview_of_host_accessible_memory(cls):
    resource = cls()
    if not resource.is_host_accessible:
        pytest.skip("not accessible from the host here")
    buffer = DeviceBuffer.to_device(b"hello", mr=resource)
    view = memoryview(buffer)
    assert (view.format, view.itemsize, view.ndim, view.shape, view.strides) == ("B", 1, 1, (5,), (1,))
    assert not view.readonly and view.obj is buffer
    assert bytes(view) == b"hello"
    view[0] = ord("J")
    assert buffer.tobytes() == b"Jello"
    for use in (lambda: buffer.resize(100), buffer.close, buffer.detach, buffer.shrink_to_fit):
        with pytest.raises(BufferError, match="memoryview"):
            use()
    view.release()
    buffer.resize(100)
    assert np.frombuffer(buffer, np.uint8).shape == (100,)


def test_memoryview_keeps_the_buffer(pinned):
    before = pinned.info().live_count
    view = memoryview(DeviceBuffer.to_device(b"kept", mr=pinned))
    gc.collect()
    assert bytes(view) == b"kept"
    view.release()
    assert pinned.info().live_count == before


@pytest.mark.needs_sim
def test_memoryview_waits_for_the_home_stream(pinned, stream):
    buffer = DeviceBuffer(size=4, stream=stream, mr=pinned)
    tenure.sim.busy(stream, 30)
    memoryview(buffer)
    assert stream.query()


def test_device_memory_has_no_memoryview(pool):
    if pool.is_host_accessible:
        pytest.skip("accessible from the host here")
    with pytest.raises(BufferError, match="copy_to_host"):
        memoryview(DeviceBuffer(size=4, mr=pool))
    assert bytes(memoryview(DeviceBuffer(size=0, mr=pool))) == b""


def test_a_read_only_buffer_gives_read_only_views():
    array = np.arange(4, dtype=np.uint8)
    array.flags.writeable = False
    view = memoryview(tenure.from_dlpack(array))
    assert view.readonly and bytes(view) == bytes(range(4))


def test_a_failed_init_in_place(pinned):
    buffer = DeviceBuffer.to_device(b"abcd", mr=pinned)
    with open("/dev/zero", "rb") as zeros:
        assert zeros.readinto(buffer) == 4
    assert buffer.tobytes() == bytes(4)


# ---------------------------------------------------------------- pickle


class Sub(DeviceBuffer):
    pass


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(protocol, pool, cuda):
    for cls in (DeviceBuffer, Sub):
        buffer = cls(size=5, mr=pool)
        buffer.copy_from_host(b"brine")
        data = pickle.dumps(buffer, protocol)
        again = pickle.loads(data)
        assert type(again) is cls and again.tobytes() == b"brine"
        assert again.mr is cuda
        with mr.using(pool):
            assert pickle.loads(data).mr is pool
    assert pickle.loads(pickle.dumps(DeviceBuffer(size=0, mr=pool))).size == 0


def test_exceptions_pickle(cuda):
    with pytest.raises(tenure.OutOfMemoryError) as caught:
        mr.LimitingResourceAdaptor(cuda, 10).allocate(100)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is tenure.OutOfMemoryError
    assert again.requested == 100 and str(again) == str(caught.value)
