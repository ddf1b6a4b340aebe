"""Asking the rest of the process for memory, being asked, and the settings of a pool that go with it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import tenure

mr = tenure.mr
MIB = 1 << 20

pytestmark = pytest.mark.needs_sim


@pytest.fixture
def pool(cuda):
    return mr.PoolMemoryResource(cuda, maximum_pool_size="16MiB")


def test_a_hook_is_asked_before_a_pool_fails(pool):
    cache = [tenure.DeviceBuffer(size=12 * MIB, mr=pool)]
    asked = []

    def give_way(device, size):
        asked.append((device, size))
        return cache.pop().size if cache else None

    hook = tenure.on_low_memory(give_way)
    buffer = tenure.DeviceBuffer(size=8 * MIB, mr=pool)
    assert len(asked) == 1
    assert asked[0][0] == 0
    assert asked[0][1] >= 8 * MIB
    with pytest.raises(tenure.OutOfMemoryError) as raised:
        tenure.DeviceBuffer(size=12 * MIB, mr=pool)
    error = raised.value
    assert (error.live, error.limit) == (8 * MIB, 16 * MIB)
    assert error.cached == error.reserved - error.live
    assert "growing (the limit is reached)" in error.tried
    assert "other libraries (nothing came of it)" in error.tried
    assert error.tried in str(error)
    assert error.unproven >= 0
    assert isinstance(error.pending, str)
    hook.remove()
    hook.remove()
    with pytest.raises(tenure.OutOfMemoryError):
        tenure.DeviceBuffer(size=12 * MIB, mr=pool)
    assert len(asked) == 2
    del buffer


def test_what_a_hook_raises_stops_nothing(pool, monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda u: seen.append((u.exc_type, str(u.exc_value))))
    cache = [tenure.DeviceBuffer(size=12 * MIB, mr=pool)]

    def wrong(device, size):
        raise KeyError("gone")

    with (
        tenure.on_low_memory(lambda device, size: cache.pop().size if cache else 0),
        tenure.on_low_memory(wrong),
        tenure.on_low_memory(lambda device, size: "much"),
    ):
        buffer = tenure.DeviceBuffer(size=8 * MIB, mr=pool)
    assert [kind for kind, _ in seen] == [TypeError, KeyError]
    del buffer


def test_it_may_allocate_and_end_itself(pool):
    cache = [tenure.DeviceBuffer(size=12 * MIB, mr=pool)]
    hooks = []

    def give_way(device, size):
        with pytest.raises(tenure.OutOfMemoryError):
            tenure.DeviceBuffer(size=15 * MIB, mr=pool)
        hooks.pop().remove()
        return cache.pop().size

    hooks.append(tenure.on_low_memory(give_way))
    buffer = tenure.DeviceBuffer(size=8 * MIB, mr=pool)
    assert not hooks
    del buffer


def test_bad_arguments():
    with pytest.raises(TypeError, match="callable"):
        tenure.on_low_memory(3)
    with pytest.raises(ValueError, match="0 or more"):
        tenure.low_memory(-1)
    with pytest.raises(ValueError, match="no device 99"):
        tenure.low_memory(99)
    with pytest.raises(ValueError, match="size"):
        tenure.low_memory(0, -5)


def test_pools_give_back_when_they_are_asked(cuda):
    pool = mr.PoolMemoryResource(cuda, release_threshold="64MiB")
    tenure.DeviceBuffer(size=32 * MIB, mr=pool)
    some = tenure.low_memory(0, "4MiB")
    assert some >= 4 * MIB
    left = pool.info().reserved_bytes
    assert tenure.low_memory() == left
    assert pool.info().reserved_bytes == 0


def test_settings(cuda):
    pool = mr.PoolMemoryResource(cuda, remap=False, decay_ms=30, chunk_size="4MiB", grow_ahead=True)
    tenure.DeviceBuffer(size=MIB, mr=pool)
    end = time.monotonic() + 10
    while pool.info().reserved_bytes:
        assert time.monotonic() < end, "what is idle goes by itself"
        time.sleep(0.005)


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"initial_pool_size": "2MiB", "maximum_pool_size": "1MiB"}, "initial_pool_size.*maximum_pool_size"),
        ({"initial_pool_size": 2**64 - 1}, "initial_pool_size"),
        ({"maximum_pool_size": 2**64 - 1}, "maximum_pool_size"),
        ({"maximum_pool_size": 2**64}, "maximum_pool_size"),
        ({"release_threshold": 2**64 - 1}, "release_threshold"),
        ({"chunk_size": "3MiB"}, "chunk_size"),
        ({"chunk_size": 2**63}, "chunk_size"),
        ({"chunk_size": "4MiB", "maximum_pool_size": "2MiB"}, "chunk_size.*maximum_pool_size"),
        ({"decay_ms": -1}, "decay_ms"),
        ({"decay_ms": 2**64}, "decay_ms"),
        ({"prefer": "speed"}, "prefer.*speed.*concurrency.*footprint"),
        ({"pages": "mine"}, "pages"),
        ({"export_handle_type": "pigeon"}, "export_handle_type"),
        ({"device": 99}, "device 99"),
        ({"peers": [-1]}, "peers holds -1"),
        ({"peers": [2**40]}, "peers holds"),
        ({"peers": [63]}, "no device 63"),
    ],
)
def test_settings_are_refused_by_name(cuda, settings, named):
    before = cuda.info()
    with pytest.raises(ValueError, match=named) as raised:
        mr.PoolMemoryResource(cuda, **settings)
    assert "_bytes" not in str(raised.value), "the name that Python knows"
    assert cuda.info() == before


def test_settings_that_the_device_or_the_pool_cannot_keep(cuda):
    for settings, named in [
        ({"peers": [1], "pages": "driver"}, "peers.*cudaDeviceEnablePeerAccess"),
        ({"rdma": True, "pages": "driver"}, "rdma"),
    ]:
        with pytest.raises(NotImplementedError, match=named):
            mr.PoolMemoryResource(cuda, **settings)


def test_an_upstreams_exception_is_not_reworded(cuda):
    said = ValueError("chunk_bytes of mine")

    def fail(size, stream):
        raise said

    with pytest.raises(ValueError) as raised:
        mr.PoolMemoryResource(mr.CallbackMemoryResource(fail, lambda *_: None), initial_pool_size="1MiB")
    assert raised.value is said


def test_a_small_footprint_is_preferred(cuda):
    pool = mr.PoolMemoryResource(cuda, prefer="footprint")
    first, second = tenure.Stream(), tenure.Stream()
    buffer = tenure.DeviceBuffer(size=8 * MIB, stream=first, mr=pool)
    tenure.sim.busy(first, 100)
    buffer.close()
    # Where growth comes first, the pool takes as much again while the first stream is busy.
    tenure.DeviceBuffer(size=8 * MIB, stream=second, mr=pool)
    assert pool.info().peak_reserved_bytes == 8 * MIB
    assert mr.PoolMemoryResource(cuda, prefer="concurrency").info().reserved_bytes == 0


def test_a_device_without_virtual_memory_serves_from_chunks():
    program = """
import tenure
assert not tenure.device_info()["virtual_memory"]
pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource(), maximum_pool_size="8MiB", chunk_size="2MiB")
assert not pool.own_ranges and pool.info().own_ranges == 0
buffers = [tenure.DeviceBuffer(size=1 << 20, mr=pool) for _ in range(8)]
try:
    tenure.DeviceBuffer(size=1, mr=pool)
    raise SystemExit("beyond the limit")
except tenure.OutOfMemoryError as error:
    assert "remapping idle pages (chunks cannot be remapped)" in error.tried, error.tried
del buffers
assert tenure.low_memory() == 8 << 20
print("good")
"""
    environment = {**os.environ, "TENURE_SIM_VIRTUAL_MEMORY": "0"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("good\n", "")
    pool = mr.PoolMemoryResource(mr.CudaMemoryResource())
    assert pool.own_ranges and pool.info().own_ranges == 1
