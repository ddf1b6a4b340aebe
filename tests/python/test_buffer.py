"""`DeviceBuffer`: what it is and what it does, in the order of its documentation."""

from __future__ import annotations

import copy
import threading
from array import array

import numpy as np
import pytest
import tenure
from tenure import DEFAULT_STREAM, DeviceBuffer, Stream

PATTERN = bytes(range(256)) * 5


def test_of_a_size(pool):
    buffer = DeviceBuffer(size=1000, mr=pool)
    assert buffer.size == buffer.nbytes == len(buffer) == 1000
    assert buffer.capacity() >= 1000
    assert buffer.ptr != 0 and buffer.ptr % 256 == 0
    assert buffer.mr is pool
    assert buffer.stream == DEFAULT_STREAM
    assert buffer.device == 0
    assert pool.info().live_bytes >= 1000
    assert pool.info().live_count == 1


def test_arguments_are_keywords():
    with pytest.raises(TypeError):
        DeviceBuffer(0, 100)


def test_copies_from_an_address(pool):
    source = DeviceBuffer.to_device(PATTERN, mr=pool)
    assert DeviceBuffer(ptr=source.ptr, size=len(PATTERN), mr=pool).tobytes() == PATTERN
    host = array("B", PATTERN)
    address, count = host.buffer_info()
    assert DeviceBuffer(ptr=address, size=count, mr=pool).tobytes() == PATTERN


@pytest.mark.parametrize("kind", ["cuda", "pool", "limited"])
def test_no_bytes_ask_nobody(kind, recorder, cuda):
    mr = recorder.mr
    if kind == "limited":
        mr = tenure.mr.LimitingResourceAdaptor(recorder.mr, 100)
    buffer = DeviceBuffer(size=0, mr=mr)
    assert (buffer.ptr, buffer.size, buffer.capacity()) == (0, 0, 0)
    assert buffer.mr is mr
    assert buffer.tobytes() == b""
    assert buffer.copy(mr=mr).ptr == 0
    assert DeviceBuffer.to_device(b"", mr=mr).ptr == 0
    assert mr.allocate(0) == 0
    mr.deallocate(0, 0)
    buffer.close()
    del buffer
    assert recorder.allocated == recorder.freed == []


def test_an_empty_buffer_is_true(pool):
    assert DeviceBuffer(size=0, mr=pool)


def test_resize_within_and_beyond_the_capacity(pool, stream):
    buffer = DeviceBuffer.to_device(PATTERN, mr=pool)
    before = buffer.ptr
    buffer.resize(100)
    assert (buffer.ptr, buffer.size) == (before, 100)
    buffer.resize(1 << 20, stream)
    assert buffer.size == 1 << 20
    assert buffer.mr is pool
    assert buffer.stream == stream
    assert buffer.tobytes()[:100] == PATTERN[:100]
    buffer.resize(0)
    assert buffer.size == 0


def test_reserve_and_shrink(pool):
    buffer = DeviceBuffer.to_device(PATTERN, mr=pool)
    buffer.reserve("1MiB")
    assert buffer.capacity() >= 1 << 20
    assert buffer.size == len(PATTERN)
    buffer.shrink_to_fit()
    assert buffer.capacity() < 1 << 20
    assert buffer.tobytes() == PATTERN


def test_copy(pool, stream):
    buffer = DeviceBuffer.to_device(PATTERN, mr=pool)
    other = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
    duplicate = buffer.copy(stream, other)
    assert duplicate.mr is other and duplicate.stream == stream
    assert duplicate.ptr != buffer.ptr
    assert duplicate.tobytes() == PATTERN
    # Without mr= the buffer's own resource, whatever is current.
    assert buffer.copy().mr is pool
    assert copy.copy(duplicate).mr is other and copy.deepcopy(duplicate).mr is other
    for made in (copy.copy(buffer), copy.deepcopy(buffer)):
        assert made.tobytes() == PATTERN and made.ptr != buffer.ptr


def test_to_host_and_back(pool):
    buffer = DeviceBuffer(size=16, mr=pool)
    buffer.copy_from_host(np.arange(4, dtype=np.int32))
    out = buffer.copy_to_host()
    assert out.dtype == np.uint8 and out.shape == (16,)
    assert out.view(np.int32).tolist() == [0, 1, 2, 3]
    mine = bytearray(20)
    assert buffer.copy_to_host(mine) is mine
    assert bytes(mine[:16]) == buffer.tobytes()
    buffer.copy_from_host(b"ab")
    assert buffer.tobytes()[:2] == b"ab"


def test_host_arrays_that_do_not_fit(pool):
    buffer = DeviceBuffer(size=16, mr=pool)
    with pytest.raises(ValueError, match="17 bytes"):
        buffer.copy_from_host(bytes(17))
    with pytest.raises(ValueError, match="16 bytes"):
        buffer.copy_to_host(bytearray(15))
    with pytest.raises(ValueError, match="read-only"):
        buffer.copy_to_host(bytes(16))
    with pytest.raises(ValueError, match="contiguous"):
        buffer.copy_from_host(np.zeros((4, 4), np.uint8)[:, ::2])
    with pytest.raises(TypeError, match="buffer protocol"):
        buffer.copy_from_host([1, 2, 3])


def test_copy_from_device(pool, stream):
    source = DeviceBuffer.to_device(PATTERN, mr=pool)
    target = DeviceBuffer(size=len(PATTERN), stream=stream, mr=pool)
    target.copy_from_device(source)
    assert target.tobytes() == PATTERN

    class Array:
        __cuda_array_interface__ = source.__cuda_array_interface__

    again = DeviceBuffer(size=len(PATTERN), mr=pool)
    again.copy_from_device(Array(), stream)
    assert again.tobytes() == PATTERN
    with pytest.raises(ValueError, match="1280 bytes"):
        DeviceBuffer(size=5, mr=pool).copy_from_device(source)
    with pytest.raises(TypeError, match="__cuda_array_interface__"):
        target.copy_from_device(b"host")


def test_close_frees_now_and_only_once(recorder):
    buffer = DeviceBuffer(size=100, mr=recorder.mr)
    ptr = buffer.ptr
    buffer.close()
    assert [entry[:2] for entry in recorder.freed] == [(ptr, 100)]
    assert (buffer.ptr, buffer.size) == (0, 0)
    buffer.close()
    assert len(recorder.freed) == 1
    del buffer
    assert len(recorder.freed) == 1


def test_close_on_a_stream(recorder, stream):
    buffer = DeviceBuffer(size=100, mr=recorder.mr)
    buffer.close(stream)
    assert recorder.freed[0][2] == stream


def test_as_a_context_manager(recorder):
    with DeviceBuffer(size=100, mr=recorder.mr) as buffer:
        assert buffer.size == 100
    assert buffer.size == 0
    assert len(recorder.freed) == 1
    with pytest.raises(ZeroDivisionError), DeviceBuffer(size=100, mr=recorder.mr):
        raise ZeroDivisionError
    assert len(recorder.freed) == 2


def test_set_stream_and_record_stream(pool):
    one, two = Stream(), Stream()
    buffer = DeviceBuffer(size=100, stream=one, mr=pool)
    buffer.record_stream(two)
    assert buffer.stream == one
    buffer.set_stream(two)
    assert buffer.stream == two


def test_a_buffer_is_used_by_two_threads(pool):
    """Whatever the order, each call is whole or a BufferError, and the accounts are right at the end."""
    buffer = DeviceBuffer(size=1 << 16, mr=pool)
    failures = []

    def work(number, buffer):
        for step in range(200):
            try:
                match (number + step) % 4:
                    case 0:
                        buffer.resize(1 << (10 + step % 8))
                    case 1:
                        buffer.tobytes()
                    case 2:
                        buffer.copy(mr=pool)
                    case 3:
                        buffer.reserve(1 << 18)
            except BufferError:
                pass
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(n, buffer)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    threads.clear()
    del buffer, thread
    assert pool.info().live_count == 0


def test_a_subclass(pool):
    class Named(DeviceBuffer):
        def __init__(self, name, **kwargs):
            super().__init__(**kwargs)
            self.name = name

    buffer = Named("x", size=10, mr=pool)
    assert buffer.name == "x" and buffer.size == 10
    assert type(buffer.copy()) is Named
    assert type(Named.to_device(b"abc")) in (DeviceBuffer, Named)


def test_representation(pool):
    assert "100 bytes" in repr(DeviceBuffer(size=100, mr=pool))
