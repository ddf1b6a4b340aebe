"""``CudaStreamPool``, and the flags of streams."""

from __future__ import annotations

import gc
import pickle
import threading

import pytest
import tenure
from tenure import CudaStreamFlags, CudaStreamPool, DeviceBuffer, Stream


@pytest.mark.parametrize("flags", list(CudaStreamFlags))
def test_streams_go_round(flags):
    pool = CudaStreamPool(5, flags)
    assert pool.get_pool_size() == 5
    streams = [pool.get_stream() for _ in range(5)]
    assert len({stream.handle for stream in streams}) == 5 and all(stream.handle > 2 for stream in streams)
    assert [pool.get_stream() for _ in range(5)] == streams
    assert [pool.get_stream(number) for number in range(10)] == streams * 2
    assert not any(stream.is_default() for stream in streams)


def test_defaults():
    assert CudaStreamPool().get_pool_size() == 16
    assert CudaStreamPool(pool_size=3, flags=1).get_pool_size() == 3


def test_a_stream_outlives_its_pool():
    pool = CudaStreamPool(2)
    stream, buffer = pool.get_stream(), DeviceBuffer(size=100, stream=pool.get_stream())
    other = buffer.stream
    del pool
    gc.collect()
    stream.synchronize()
    assert stream.query() and other.query()
    again = DeviceBuffer.to_device(b"bytes", stream=stream)
    assert again.tobytes() == b"bytes"


@pytest.mark.needs_sim
def test_streams_end_with_the_pool():
    made, ended = (tenure.sim.driver_calls(call) for call in ("cuStreamCreateWithPriority", "cuStreamDestroy"))
    made += tenure.sim.driver_calls("cuStreamCreate")
    pool = CudaStreamPool(4)
    kept = pool.get_stream()
    assert tenure.sim.driver_calls("cuStreamCreate") + tenure.sim.driver_calls("cuStreamCreateWithPriority") == made + 4
    del pool
    gc.collect()
    assert tenure.sim.driver_calls("cuStreamDestroy") == ended + 3
    del kept
    gc.collect()
    assert tenure.sim.driver_calls("cuStreamDestroy") == ended + 4


def test_many_threads():
    pool = CudaStreamPool(4)
    handles, failures = [], []

    def take():
        try:
            handles.extend(pool.get_stream().handle for _ in range(400))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    # Round and round: each stream as often as the others.
    assert {handles.count(handle) for handle in set(handles)} == {400}


def test_other_devices():
    if tenure.device_count() < 2:
        pytest.skip("needs two devices")
    assert CudaStreamPool(2, device=1).get_stream().device == 1
    with pytest.raises((ValueError, tenure.CudaError)):
        CudaStreamPool(2, device=99)


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ((0,), ValueError, "pool"),
        ((-1,), ValueError, "negative"),
        ((1 << 40,), ValueError, "pool_size is at most"),
        (("4",), TypeError, "pool_size"),
        ((4.0,), TypeError, "pool_size"),
        ((4, 2), ValueError, "flags is 2"),
        ((4, "no"), TypeError, "CudaStreamFlags"),
        ((4, True), TypeError, "CudaStreamFlags"),
    ],
)
def test_pools_that_make_no_sense(arguments, error, text):
    with pytest.raises(error, match=text):
        CudaStreamPool(*arguments)


def test_numbers_that_make_no_sense():
    pool = CudaStreamPool(2)
    for wrong in (-1, 1 << 64):
        with pytest.raises((ValueError, OverflowError)):
            pool.get_stream(wrong)
    with pytest.raises(TypeError):
        pool.get_stream("1")
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(pool)


@pytest.mark.needs_sim
def test_a_driver_that_fails_in_the_middle():
    """There is no half-made pool: what was made is ended, and the error is the driver's."""
    call = next(c for c in ("cuStreamCreate", "cuStreamCreateWithPriority") if _makes(c))
    made, ended = tenure.sim.driver_calls(call), tenure.sim.driver_calls("cuStreamDestroy")
    tenure.sim.fail_next(call, 999, 2)
    with pytest.raises(tenure.CudaError):
        CudaStreamPool(4)
    gc.collect()
    assert tenure.sim.driver_calls(call) == made + 3
    assert tenure.sim.driver_calls("cuStreamDestroy") == ended + 2


def _makes(call):
    before = tenure.sim.driver_calls(call)
    Stream()
    return tenure.sim.driver_calls(call) > before


def test_flags_of_streams():
    assert [flag.value for flag in CudaStreamFlags] == [0, 1] and CudaStreamFlags.__module__ == "tenure"
    stream = Stream(flags=CudaStreamFlags.NON_BLOCKING)
    assert Stream(None, CudaStreamFlags.SYNC_DEFAULT) != stream
    with pytest.raises(ValueError, match="flags may only be specified when obj is None"):
        Stream(stream, CudaStreamFlags.NON_BLOCKING)
    for wrong, error in ((2, ValueError), ("x", TypeError), (True, TypeError)):
        with pytest.raises(error, match="flags"):
            Stream(flags=wrong)


def test_a_newer_stream_protocol():
    class Newer:
        def __cuda_stream__(self):
            return (1, 2)

    with pytest.raises(NotImplementedError, match="version: '1'"):
        Stream(Newer())
