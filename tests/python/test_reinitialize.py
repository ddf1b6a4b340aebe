"""``reinitialize``, its hooks, and what it leaves behind."""

from __future__ import annotations

import gc

import pytest
import tenure
import tenure.rmm as rmm
from tenure import DeviceBuffer, mr

MIB = 1 << 20


@pytest.fixture(params=["tenure", "tenure.rmm"])
def reinitialize(request):
    return tenure.reinitialize if request.param == "tenure" else rmm.reinitialize


@pytest.fixture
def hooks():
    added = []

    def add(function, *args, **kwargs):
        added.append(function)
        return tenure.register_reinitialize_hook(function, *args, **kwargs)

    yield add
    for function in added:
        tenure.unregister_reinitialize_hook(function)


def test_what_it_makes(reinitialize):
    reinitialize()
    assert mr.get_current_device_resource() is mr.CudaMemoryResource()
    reinitialize(managed_memory=True)
    assert mr.get_current_device_resource() is mr.ManagedMemoryResource()
    reinitialize(pool_allocator=True)
    pool = mr.get_current_device_resource()
    assert type(pool) is mr.PoolMemoryResource and pool.pool_size() == 0
    reinitialize(pool_allocator=True, managed_memory=True, initial_pool_size="2MiB", maximum_pool_size="8MiB")
    pool = mr.get_current_device_resource()
    assert pool.pool_size() == 2 * MIB and pool.upstream_mr is mr.ManagedMemoryResource()
    # Without a pool the sizes do not count, whatever they are.
    reinitialize(initial_pool_size=10**30, maximum_pool_size=0)
    assert mr.get_current_device_resource() is mr.CudaMemoryResource()
    assert tenure.is_initialized() and rmm.is_initialized() and rmm.mr.is_initialized()


def test_devices(reinitialize):
    if tenure.device_count() < 2:
        pytest.skip("needs two devices")
    reinitialize(pool_allocator=True, devices=[1, 0, 1])
    first, second = mr.get_per_device_resource(0), mr.get_per_device_resource(1)
    assert (first.device, second.device) == (0, 1) and first is not second
    assert tenure.get_current_device() == 0
    # Every other device has the plain resource again.
    reinitialize(pool_allocator=True, devices=1)
    assert mr.get_per_device_resource(0) is mr.CudaMemoryResource()
    assert mr.get_per_device_resource(1).kind == "pool"
    reinitialize(devices=None)
    assert mr.get_per_device_resource(1) is mr.CudaMemoryResource()
    reinitialize(devices=range(2))


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"devices": 99}, ValueError, "device 99"),
        ({"devices": [0, -1]}, ValueError, "device -1"),
        ({"devices": "0"}, TypeError, "devices"),
        ({"devices": [0.5]}, TypeError, "devices"),
        ({"initial_pool_size": 64 * MIB, "maximum_pool_size": MIB}, ValueError, "Initial pool size exceeds the maximum"),
        ({"initial_pool_size": 64 * MIB, "maximum_pool_size": MIB}, RuntimeError, "initial_pool_size is 67108864"),
        ({"initial_pool_size": "many"}, ValueError, "many"),
        ({"initial_pool_size": -1}, ValueError, "negative"),
        ({"initial_pool_size": "101%"}, ValueError, "100%"),
        ({"initial_pool_size": 1.5}, TypeError, "float"),
        ({"maximum_pool_size": 0}, ValueError, "maximum_pool_size is 0"),
        ({"initial_pool_size": 1 << 50}, MemoryError, "out of memory"),
    ],
)
def test_what_fails_changes_nothing(reinitialize, options, error, text):
    pool = mr.PoolMemoryResource(mr.CudaMemoryResource(), "2MiB")
    mr.set_current_device_resource(pool)
    keep = DeviceBuffer.to_device(b"keep")
    with pytest.raises(error, match=text):
        reinitialize(pool_allocator=True, **options)
    assert pool.pool_size() == 2 * MIB or "%" in str(options)
    assert mr.get_current_device_resource() is pool and tenure.get_current_device() == 0
    assert keep.tobytes() == b"keep" and DeviceBuffer(size=10).mr is pool


def test_a_failure_on_the_second_device_changes_nothing(reinitialize):
    if tenure.device_count() < 2:
        pytest.skip("needs two devices")
    before = mr.get_per_device_resource(0)
    taken = mr.PoolMemoryResource(mr.CudaMemoryResource(), "60%", device=1)
    keep = DeviceBuffer(size=taken.pool_size() - MIB, mr=taken, stream=tenure.Stream(device=1))
    size = mr.PoolMemoryResource(mr.CudaMemoryResource(), "60%").pool_size()
    with pytest.raises(MemoryError):
        reinitialize(pool_allocator=True, initial_pool_size=size, devices=[0, 1])
    assert mr.get_per_device_resource(0) is before and keep.size
    assert tenure.get_current_device() == 0
    del keep, taken


def test_one_big_pool_follows_another(reinitialize):
    free = mr.available_device_memory()[0]
    size = free * 6 // 10 // (2 * MIB) * (2 * MIB)
    for _ in range(3):
        reinitialize(pool_allocator=True, initial_pool_size=size)
        assert mr.get_current_device_resource().pool_size() >= size
        DeviceBuffer(size=MIB)
    # A share is one of what is free without the pool that goes.
    for _ in range(3):
        reinitialize(pool_allocator=True, initial_pool_size="60%")
        assert mr.get_current_device_resource().pool_size() > free // 2
    reinitialize()
    gc.collect()
    assert mr.available_device_memory()[0] == free


def test_live_buffers_go_home(reinitialize):
    reinitialize(pool_allocator=True)
    old = mr.get_current_device_resource()
    buffer = DeviceBuffer.to_device(b"old")
    reinitialize(pool_allocator=True)
    assert mr.get_current_device_resource() is not old and buffer.mr is old
    assert buffer.tobytes() == b"old" and old.info().live_count == 1
    del buffer
    assert old.info().live_count == 0


def test_hooks(hooks):
    called = []
    hooks(called.append, 1)
    two = hooks(lambda: called.append(2))
    hooks(called.append, 3)
    assert two.__name__ == "<lambda>"
    rmm.reinitialize()
    assert called == [3, 2, 1]
    rmm.unregister_reinitialize_hook(two)
    rmm.unregister_reinitialize_hook(print)  # was none
    tenure.reinitialize()
    assert called == [3, 2, 1, 3, 1]
    with pytest.raises(TypeError, match="callable"):
        tenure.register_reinitialize_hook("no function")


def test_a_hook_that_raises(hooks):
    before = mr.get_current_device_resource()

    @hooks
    def fail():
        raise LookupError("on purpose")

    with pytest.raises(LookupError, match="on purpose"):
        tenure.reinitialize(pool_allocator=True)
    assert mr.get_current_device_resource() is before


def test_a_hook_may_change_the_hooks(hooks):
    called = []

    @hooks
    def once():
        called.append(1)
        tenure.unregister_reinitialize_hook(once)

    tenure.reinitialize()
    tenure.reinitialize()
    assert called == [1]


def test_a_hook_lets_go_of_what_a_library_keeps(hooks):
    """A cache that fills the device does not stop the next pool."""
    cache = []
    free = mr.available_device_memory()[0]
    tenure.reinitialize(pool_allocator=True)
    hooks(cache.clear)
    cache.append(DeviceBuffer(size=free * 6 // 10))
    tenure.reinitialize(pool_allocator=True, initial_pool_size=free * 6 // 10 // MIB * MIB)
    assert not cache
