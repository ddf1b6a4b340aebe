"""Each library with each protocol that it has, in both directions: whatever is installed, on the simulated device as the CPU's
memory, and on a GPU as the device's.

On the simulated device all memory is the CPU's for others, so that NumPy, pyarrow, JAX and PyTorch without a GPU take part.
"""

from __future__ import annotations

import gc
import importlib
import os

import numpy as np
import pytest
import tenure
from conftest import DEVICE
from tenure import DeviceBuffer, Stream

# JAX would take three quarters of the device for itself.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
if DEVICE == "sim":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

mr = tenure.mr
GPU = DEVICE == "cuda"
DATA = bytes(range(256)) * 16


def have(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.skip(f"{name} is not installed")


@pytest.fixture
def jax():
    jax = have("jax")
    if GPU and jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    return jax


@pytest.fixture
def torch():
    torch = have("torch")
    if GPU and not torch.cuda.is_available():
        pytest.skip("this PyTorch has no GPU")
    return torch


@pytest.fixture
def pyarrow():
    return have("pyarrow")


@pytest.fixture
def cupy():
    if not GPU:
        pytest.skip("CuPy needs a GPU")
    return have("cupy")


@pytest.fixture
def core():
    if not GPU:
        pytest.skip("cuda.core needs a GPU")
    return have("cuda.core")


@pytest.fixture
def source(pool):
    return DeviceBuffer.to_device(DATA, Stream(), pool)


def empty(pool):
    gc.collect()
    tenure.synchronize()
    return pool.info().live_count == 0


# ---------------------------------------------------------------- NumPy


@pytest.mark.parametrize("copy", [None, True, False])
def test_numpy_reads(copy, source, pool):
    if GPU and copy is False:
        with pytest.raises((BufferError, ValueError)):
            np.from_dlpack(source, device="cpu", copy=False)
        return
    array = np.from_dlpack(source, device="cpu", copy=copy)
    assert array.tobytes() == DATA
    assert (array.ctypes.data == source.ptr) == (not GPU and not copy)
    del array


def test_numpy_shares_host_memory_by_each_protocol():
    pinned = mr.PinnedHostMemoryResource()
    before = pinned.info().live_count
    buffer = DeviceBuffer.to_device(DATA, mr=pinned)
    arrays = [np.from_dlpack(buffer), np.frombuffer(buffer, np.uint8), np.asarray(memoryview(buffer))]
    arrays[0][0] = 99
    assert all(array.ctypes.data == buffer.ptr and array[0] == 99 for array in arrays)
    del buffer
    gc.collect()
    assert arrays[0].sum() == arrays[1].sum() == arrays[2].sum()
    del arrays
    gc.collect()
    assert pinned.info().live_count == before


@pytest.mark.parametrize("dtype", ["f4", "i8", "u1", "c16", "f2"])
def test_numpy_gives(dtype):
    array = np.arange(12).astype(dtype).reshape(3, 4)
    buffer = tenure.from_dlpack(array)
    assert (buffer.ptr, buffer.size) == (array.ctypes.data, array.nbytes)
    with pytest.raises(BufferError, match="contiguous"):
        tenure.from_dlpack(array[:, 1:])
    with pytest.raises(BufferError, match="contiguous"):
        tenure.from_dlpack(array.T)
    assert tenure.from_dlpack(array[1:]).size == array[1:].nbytes
    assert tenure.from_dlpack(array[:0]).size == 0


# ---------------------------------------------------------------- pyarrow


def test_pyarrow_reads(pyarrow, source, pool):
    if GPU:
        # What the wheel of pyarrow can see of a device: a schema, and an array whose memory it may not touch.
        pair = source.__arrow_c_device_array__()
        assert pyarrow.DataType._import_from_c_capsule(pair[0]) == pyarrow.uint8()
        del pair
        host = DeviceBuffer.to_device(DATA, mr=mr.PinnedHostMemoryResource())
        assert pyarrow.array(host).to_numpy().tobytes() == DATA
        return
    for array in (pyarrow.array(source), pyarrow.Array._import_from_c_device_capsule(*source.__arrow_c_device_array__())):
        assert array.type == pyarrow.uint8() and array.null_count == 0
        assert array.buffers()[1].address == source.ptr
        assert array.to_numpy().tobytes() == DATA
        array.validate(full=True)
    del source
    gc.collect()
    assert array[1].as_py() == 1
    del array


def test_pyarrow_keeps_and_gives_back(pyarrow, pool):
    if GPU:
        pytest.skip("pyarrow's wheel reads no memory of a device")
    buffer = DeviceBuffer.to_device(b"kept", mr=pool)
    array = pyarrow.array(buffer)
    part = array[1:3]
    del buffer, array
    gc.collect()
    assert pool.info().live_count == 1 and part.to_pylist() == [ord("e"), ord("p")]
    del part
    assert empty(pool)
    assert pyarrow.array(DeviceBuffer(size=0, mr=pool)).to_pylist() == []


def test_pyarrow_gives(pyarrow):
    for values, kind in (([1, 2, 3], "int32"), ([1.5, 2.5], "float64"), ([0, 1], "uint8"), ([5], "timestamp[us]")):
        array = pyarrow.array(values, kind)
        buffer = tenure.from_arrow(array)
        assert buffer.ptr == array.buffers()[1].address and buffer.device is None
        assert buffer.tobytes() == array.to_numpy().tobytes()
        tail = tenure.from_arrow(array[1:])
        assert tail.tobytes() == array[1:].to_numpy().tobytes()
        with pytest.raises(BufferError, match="read-only"):
            buffer.copy_from_host(b"x")
    for refused in (pyarrow.array([1, None]), pyarrow.array(["a"]), pyarrow.array([True]), pyarrow.array([[1]])):
        with pytest.raises(BufferError):
            tenure.from_arrow(refused)


def test_pyarrow_is_told_when_its_memory_is_free(pyarrow):
    gc.collect()
    before = pyarrow.total_allocated_bytes()
    buffer = tenure.from_arrow(pyarrow.array(range(1000), "int64"))
    assert pyarrow.total_allocated_bytes() > before
    del buffer
    assert pyarrow.total_allocated_bytes() == before


def test_pyarrow_and_dlpack(pyarrow):
    array = pyarrow.array([1, 2, 3], "int16")
    buffer = tenure.from_dlpack(array)
    assert buffer.ptr == array.buffers()[1].address and buffer.size == 6


# ---------------------------------------------------------------- JAX


def test_jax_reads(jax, source, pool):
    array = jax.dlpack.from_dlpack(source)
    assert array.unsafe_buffer_pointer() == source.ptr, "the memory was copied"
    assert np.asarray(array).tobytes() == DATA
    assert int(array.sum()) == sum(DATA)
    del source
    gc.collect()
    assert int(array.max()) == 255
    del array
    gc.collect()


def test_jax_gives(jax):
    array = jax.numpy.arange(100, dtype="int32").block_until_ready()
    buffer = tenure.from_dlpack(array)
    assert buffer.ptr == array.unsafe_buffer_pointer() and buffer.size == 400
    assert buffer.device == (0 if GPU else None)
    del array
    gc.collect()
    assert np.frombuffer(buffer.tobytes(), np.int32).tolist() == list(range(100))
    if GPU:
        array = jax.numpy.arange(100, dtype="int32").block_until_ready()
        assert tenure.from_cuda_array_interface(array).ptr == array.unsafe_buffer_pointer()


# ---------------------------------------------------------------- PyTorch


@pytest.mark.parametrize("turns", [1, 20])
def test_torch_both_ways(turns, torch, source):
    for _ in range(turns):
        tensor = torch.from_dlpack(source)
        assert tensor.data_ptr() == source.ptr and tensor.is_cuda == GPU
        assert bytes(tensor.cpu().numpy()) == DATA
        again = tenure.from_dlpack(tensor)
        assert again.ptr == source.ptr and again.tobytes() == DATA


def test_torch_gives(torch):
    theirs = torch.arange(100, dtype=torch.int32, device="cuda" if GPU else "cpu")
    ours = tenure.from_dlpack(theirs)
    assert (ours.ptr, ours.size) == (theirs.data_ptr(), 400)
    with pytest.raises(BufferError, match="contiguous"):
        tenure.from_dlpack(theirs.reshape(10, 10).T)
    with pytest.raises((BufferError, RuntimeError)):
        tenure.from_dlpack(torch.zeros(3, requires_grad=True))
    if GPU:
        assert tenure.from_cuda_array_interface(theirs).ptr == theirs.data_ptr()
        assert torch.as_tensor(ours, device="cuda").data_ptr() == theirs.data_ptr()


def test_torch_streams(torch, pool):
    if not GPU:
        pytest.skip("needs a GPU")
    for _ in range(50):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            theirs = torch.full((1 << 20,), 3, dtype=torch.uint8, device="cuda")
            # The home stream of ours waits for the one that writes theirs; the host does not.
            ours = tenure.from_dlpack(theirs, stream=(home := Stream()))
        copy = ours.copy(stream=home, mr=pool)
        assert set(copy.tobytes()) == {3}
        del ours, theirs, copy


# ---------------------------------------------------------------- CuPy


@pytest.mark.parametrize("copy", [None, True, False])
def test_cupy_reads(copy, cupy, source):
    array = cupy.from_dlpack(source, copy=copy)
    assert (array.data.ptr == source.ptr) == (not copy)
    assert bytes(array.get()) == DATA
    interface = cupy.asarray(source)
    assert interface.data.ptr == source.ptr and int(interface.sum()) == sum(DATA)


def test_cupy_gives(cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        array = cupy.arange(1000, dtype=cupy.float32).reshape(10, 100)
        for take in (tenure.from_dlpack, tenure.from_cuda_array_interface):
            ours = take(array, stream=(home := Stream()))
            assert (ours.ptr, ours.size) == (array.data.ptr, 4000)
            home.synchronize()
            assert ours.tobytes() == bytes(array.get().tobytes())
            with pytest.raises((BufferError, ValueError), match="contiguous"):
                take(array[:, ::2])


# ---------------------------------------------------------------- cuda.core


def test_cuda_core(core, source):
    device = core.Device(0)
    device.set_current()
    view = core.Buffer.from_dlpack(source) if hasattr(core.Buffer, "from_dlpack") else None
    if view is not None:
        assert int(view.handle) == source.ptr
    stream = device.create_stream()
    theirs = device.memory_resource.allocate(4096, stream=stream)
    ours = tenure.from_dlpack(theirs)
    assert (ours.ptr, ours.size) == (int(theirs.handle), 4096)
    assert DeviceBuffer(size=10, stream=stream).stream.handle == int(stream.handle)


# ---------------------------------------------------------------- Numba


def test_numba(source):
    if not GPU:
        pytest.skip("Numba-CUDA needs a GPU")
    have("numba_cuda")
    cuda = importlib.import_module("numba.cuda")
    array = cuda.as_cuda_array(source)
    assert array.__cuda_array_interface__["data"][0] == source.ptr
    assert array.copy_to_host().tobytes() == DATA
    theirs = cuda.to_device(np.arange(10, dtype=np.float64))
    ours = tenure.from_cuda_array_interface(theirs)
    assert ours.tobytes() == np.arange(10, dtype=np.float64).tobytes()


# ---------------------------------------------------------------- TensorFlow


@pytest.fixture
def tf():
    tf = have("tensorflow")
    if GPU and not tf.config.list_physical_devices("GPU"):
        pytest.skip("this TensorFlow has no GPU")
    return tf


def test_tensorflow_reads_and_gives_back(tf, pool):
    source = DeviceBuffer.to_device(DATA, Stream(), pool)
    source.stream.synchronize()
    tensor = tf.experimental.dlpack.from_dlpack(source.__dlpack__())
    assert bytes(tensor.numpy()) == DATA
    assert tenure.from_dlpack(tf.experimental.dlpack.to_dlpack(tensor)).ptr == source.ptr
    again = tenure.from_dlpack(tensor)
    assert (again.ptr, again.size) == (source.ptr, source.size), "the memory was copied"
    with pytest.raises(BufferError, match="exported"):
        source.close()
    del source
    gc.collect()
    assert pool.info().live_count == 1 and int(tf.reduce_sum(tf.cast(tensor, tf.int64))) == sum(DATA)
    del tensor, again
    assert empty(pool)


def test_tensorflow_gives(tf):
    theirs = tf.range(100, dtype=tf.int32)
    if GPU:
        theirs = theirs + tf.constant(0)
    expected = theirs.numpy().tobytes()
    ours = tenure.from_dlpack(tf.experimental.dlpack.to_dlpack(theirs))
    assert ours.size == 400 and ours.device == (0 if "GPU" in theirs.device else None)
    del theirs
    gc.collect()
    assert ours.tobytes() == expected
