"""Other GPU libraries, where they are installed and there is a GPU: streams and memory in both directions."""

from __future__ import annotations

import pytest
import tenure
from conftest import DEVICE
from tenure import DeviceBuffer, Stream

pytestmark = pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")

DATA = bytes(range(256)) * 16


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


def test_torch_takes_and_gives_memory(torch, pool):
    buffer = DeviceBuffer.to_device(DATA, Stream(), pool)
    tensor = torch.from_dlpack(buffer)
    assert tensor.is_cuda and tensor.data_ptr() == buffer.ptr
    assert bytes(tensor.cpu().numpy()) == DATA
    tensor += 1
    torch.cuda.synchronize()
    assert buffer.tobytes()[0] == 1
    del buffer
    assert pool.info().live_count == 1
    del tensor
    assert pool.info().live_count == 0

    theirs = torch.arange(100, dtype=torch.int32, device="cuda")
    ours = tenure.from_dlpack(theirs)
    assert ours.size == 400 and ours.device == 0
    assert ours.tobytes() == bytes(theirs.cpu().numpy())
    assert tenure.from_cuda_array_interface(theirs).ptr == theirs.data_ptr()


def test_torch_streams(torch, pool):
    stream = torch.cuda.Stream()
    buffer = DeviceBuffer.to_device(DATA, stream, pool)
    assert buffer.stream.handle == stream.cuda_stream
    with torch.cuda.stream(stream):
        tensor = torch.from_dlpack(buffer)
        total = tensor.sum(dtype=torch.int64)
    buffer.record_stream(torch.cuda.current_stream())
    assert int(total) == sum(DATA)
    del tensor, buffer, stream
    assert pool.info().live_count == 0


def test_cupy_takes_and_gives_memory(cupy, pool):
    stream = cupy.cuda.Stream(non_blocking=True)
    buffer = DeviceBuffer.to_device(DATA, stream, pool)
    with stream:
        array = cupy.from_dlpack(buffer)
        assert array.data.ptr == buffer.ptr
        assert bytes(array.get()) == DATA
        interface = cupy.asarray(buffer)
        assert interface.data.ptr == buffer.ptr and int(interface.sum()) == sum(DATA)
    ours = tenure.from_dlpack(cupy.arange(10, dtype=cupy.uint8))
    assert ours.tobytes() == bytes(range(10))
    del array, interface, buffer
    assert pool.info().live_count == 0


def test_a_dead_raw_stream_is_never_named(torch, pool):
    """A foreign stream's owner goes with the last buffer, in whatever order."""
    for _ in range(50):
        stream = torch.cuda.Stream()
        buffer = DeviceBuffer(size=1 << 16, stream=stream, mr=pool)
        del stream
        buffer.close()
        del buffer
    pool.trim()
    tenure.synchronize()
