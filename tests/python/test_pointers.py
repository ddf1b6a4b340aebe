"""Copies between addresses and host memory, and what RMM's buffer has beside them."""

from __future__ import annotations

import pickle
import sys

import numpy
import pytest
import tenure
from tenure import DeviceBuffer, copy_device_to_ptr, copy_host_to_ptr, copy_ptr_to_host, mr

STREAMS = [None, tenure.DEFAULT_STREAM, "own"]


@pytest.fixture(params=STREAMS, ids=str)
def stream(request):
    return tenure.Stream() if request.param == "own" else request.param


def test_there_and_back(stream):
    source, target = DeviceBuffer(size=6), DeviceBuffer(size=6)
    copy_host_to_ptr(b"abcdef", source.ptr, stream)
    copy_device_to_ptr(source.ptr, target.ptr, 6, stream)
    host = bytearray(6)
    copy_ptr_to_host(target.ptr, host, stream)
    assert host == b"abcdef"
    array = numpy.zeros(3, "u2")
    copy_ptr_to_host(target.ptr, array, stream)
    assert array.tobytes() == b"abcdef"
    copy_ptr_to_host(0, bytearray(), stream)
    copy_host_to_ptr(b"", 0, stream)
    copy_device_to_ptr(0, 0, 0, stream)


def test_what_makes_no_sense():
    buffer = DeviceBuffer(size=4)
    with pytest.raises(ValueError, match="read-only"):
        copy_ptr_to_host(buffer.ptr, b"1234")
    with pytest.raises(ValueError, match="contiguous"):
        copy_host_to_ptr(numpy.zeros(8, "u1")[::2], buffer.ptr)
    for call in (
        lambda: copy_ptr_to_host(buffer.ptr, None),
        lambda: copy_host_to_ptr("text", buffer.ptr),
        lambda: copy_host_to_ptr(b"1234", None),
        lambda: copy_device_to_ptr(buffer.ptr, buffer.ptr, None),
        lambda: copy_host_to_ptr(b"1234", buffer.ptr, "stream"),
    ):
        with pytest.raises(TypeError):
            call()
    for call in (lambda: copy_device_to_ptr(-1, buffer.ptr, 1), lambda: copy_device_to_ptr(buffer.ptr, buffer.ptr, -1)):
        with pytest.raises(ValueError):
            call()
    with pytest.raises((ValueError, tenure.CudaError)):
        copy_host_to_ptr(b"1234", 0)


def test_to_device(stream):
    pool = mr.PoolMemoryResource(mr.CudaMemoryResource())
    buffer = tenure.to_device(b"bytes", stream, pool)
    assert buffer.tobytes() == b"bytes" and buffer.mr is pool
    with pytest.raises(TypeError):
        tenure.to_device(None)


def test_bytes_and_size():
    buffer = DeviceBuffer.to_device(b"abc")
    assert bytes(buffer) == b"abc" and buffer.__sizeof__() == 3 and sys.getsizeof(buffer) >= 3
    assert bytes(DeviceBuffer()) == b""


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(protocol):
    buffer = DeviceBuffer.to_device(b"abc")
    assert pickle.loads(pickle.dumps(buffer, protocol)).tobytes() == b"abc"


def test_pickle_beside_the_bytes():
    class Named(DeviceBuffer):
        pass

    Named.__qualname__ = "Named"
    globals()["Named"] = Named
    for made in (DeviceBuffer.to_device(b"abc"), Named(size=3)):
        beside = []
        text = pickle.dumps(made, 5, buffer_callback=beside.append)
        assert len(beside) == 1 and bytes(beside[0]) == made.tobytes() and len(text) < 200
        again = pickle.loads(text, buffers=[memoryview(beside[0])])
        assert type(again) is type(made) and again.tobytes() == made.tobytes()


@pytest.mark.parametrize(
    "make", [mr.CudaMemoryResource, mr.ManagedMemoryResource, mr.PinnedHostMemoryResource, mr.SystemMemoryResource]
)
def test_prefetch_is_a_hint(make, stream):
    buffer = DeviceBuffer(size=1000, mr=make())
    buffer.prefetch()
    buffer.prefetch(0)
    buffer.prefetch(-1, stream)
    buffer.prefetch(device=0, stream=stream)
    DeviceBuffer(mr=make()).prefetch()
    buffer.copy_from_host(b"after")
    for wrong in (-2, 99):
        with pytest.raises((ValueError, tenure.CudaError)):
            buffer.prefetch(wrong)


@pytest.mark.needs_sim
def test_prefetch_tells_the_driver():
    plain, managed = DeviceBuffer(size=1000), DeviceBuffer(size=1000, mr=mr.ManagedMemoryResource())
    before = tenure.sim.driver_calls("cuMemPrefetchAsync")
    plain.prefetch()
    assert tenure.sim.driver_calls("cuMemPrefetchAsync") == before
    managed.prefetch()
    told = tenure.sim.driver_calls("cuMemPrefetchAsync") - before
    assert told in (0, 1)  # 0 where the device has no concurrent access


def test_parse_bytes():
    assert [tenure.parse_bytes(s) for s in ("1KiB", "1.5GB", 7, "2k", "0")] == [1024, 1_500_000_000, 7, 2000, 0]
    free = mr.available_device_memory()[0]
    assert tenure.parse_bytes("50%") == free // 2 // 256 * 256
    for wrong, error in (("x", ValueError), (-1, ValueError), (None, TypeError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error):
            tenure.parse_bytes(wrong)
