"""Rule 9: a failure changes nothing. Each driver call of a scenario fails once, with out of memory and with a fault."""

from __future__ import annotations

import pytest
import tenure
from tenure import DeviceBuffer, Stream

mr = tenure.mr

pytestmark = pytest.mark.needs_sim

# Codes of the driver. A sticky fault (700) would end the simulated device for all later tests, so the fault is this one.
OUT_OF_MEMORY, INVALID_VALUE = 2, 1


def pool():
    return mr.PoolMemoryResource(mr.CudaMemoryResource())


def life(make):
    def scenario():
        resource = make()
        buffer = DeviceBuffer.to_device(b"abc", mr=resource)
        assert buffer.tobytes() == b"abc"

    return scenario


def grow():
    buffer = DeviceBuffer.to_device(b"abc", mr=pool())
    try:
        buffer.resize("3MiB")
    except (tenure.OutOfMemoryError, tenure.CudaError):
        # As it was.
        assert buffer.size == 3
        tenure.sim.fail_clear()
        assert buffer.tobytes() == b"abc"
        raise
    assert buffer.tobytes()[:3] == b"abc"


def streams():
    one, two = Stream(), Stream()
    resource = pool()
    buffer = DeviceBuffer(size=100, stream=one, mr=resource)
    buffer.record_stream(two)
    two.wait_stream(one)
    buffer.set_stream(two)
    buffer.close()
    two.synchronize()


def copies():
    resource = pool()
    buffer = DeviceBuffer.to_device(b"abc", mr=resource)
    other = buffer.copy(Stream(), resource)
    other.copy_from_device(buffer)
    other.__dlpack__(copy=True)
    resource.trim()


def raw():
    resource = mr.CudaMemoryResource()
    ptr = resource.allocate(1000)
    resource.deallocate(ptr, 1000)


SCENARIOS = {
    "cuda": life(mr.CudaMemoryResource),
    "managed": life(mr.ManagedMemoryResource),
    "pinned": life(mr.PinnedHostMemoryResource),
    "async": life(mr.CudaAsyncMemoryResource),
    "pool": life(pool),
    "sized pool": life(lambda: mr.PoolMemoryResource(mr.CudaMemoryResource(), "4MiB", "8MiB")),
    "fixed size": life(lambda: mr.FixedSizeMemoryResource(mr.CudaMemoryResource(), "1MiB", 4)),
    "binning": life(lambda: mr.BinningMemoryResource(mr.CudaMemoryResource(), 18, 20)),
    "arena": life(lambda: mr.ArenaMemoryResource(mr.CudaMemoryResource(), "4MiB")),
    "limiting": life(lambda: mr.LimitingResourceAdaptor(pool(), "1GiB")),
    "callback": life(lambda: mr.CallbackMemoryResource(mr.CudaMemoryResource().allocate, mr.CudaMemoryResource().deallocate)),
    "grow": grow,
    "streams": streams,
    "copies": copies,
    "raw": raw,
}

# Not the calls that give back: what the driver refuses to take back stays with it, and there is nothing to compare.
CALLS = [
    "cuMemAlloc",
    "cuMemAllocManaged",
    "cuMemHostAlloc",
    "cuMemPoolCreate",
    "cuMemPoolSetAttribute",
    "cuMemAllocFromPoolAsync",
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemcpyAsync",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamQuery",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuMemGetInfo",
    "cuDeviceGetAttribute",
]


def figures():
    plain = (mr.CudaMemoryResource, mr.ManagedMemoryResource, mr.PinnedHostMemoryResource)
    return [(cls().info().live_bytes, cls().info().live_count) for cls in plain], tenure.sim.used(0)


@pytest.mark.parametrize("code", [OUT_OF_MEMORY, INVALID_VALUE])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_call_fails_once(scenario, code, monkeypatch):
    unraisable = []
    monkeypatch.setattr("sys.unraisablehook", lambda u: unraisable.append(u.exc_type))
    run = SCENARIOS[scenario]
    run()
    calls = {call: tenure.sim.driver_calls(call) for call in CALLS}
    run()
    calls = {call: tenure.sim.driver_calls(call) - before for call, before in calls.items()}
    failed = 0
    for call in CALLS:
        for after in range(min(calls[call], 3)):
            before = figures()
            tenure.sim.fail_next(call, code, after)
            try:
                run()
            except tenure.OutOfMemoryError:
                assert code == OUT_OF_MEMORY, f"{call} failed with a fault, which is not out of memory"
                failed += 1
            except tenure.CudaError as error:
                assert error.code == code and error.name.startswith("CUDA_ERROR_"), (call, error)
                failed += 1
            tenure.sim.fail_clear()
            # A scene that broke off waited for nothing: memory that is freed in stream order comes back with its stream.
            tenure.synchronize()
            plain, used = figures()
            if unraisable:
                # A free failed where nobody could be told but the hook: its block, and only that, stays and is counted.
                assert set(unraisable) <= {tenure.CudaError, tenure.OutOfMemoryError}
                assert sum(count for _, count in plain) - sum(count for _, count in before[0]) <= len(unraisable)
                unraisable.clear()
            else:
                assert plain == before[0], f"{call} after {after} left something behind"
                assert used <= before[1], f"{call} after {after} left memory behind"
        # And everything works on.
        run()
    assert failed > 0 and mr.misuse_count() == 0


def test_a_failed_set_changes_nothing(forbidden_current):
    before = mr.get_current_device_resource()
    for wrong in (None, 3, object()):
        with pytest.raises(TypeError):
            mr.set_current_device_resource(wrong)
    assert mr.get_current_device_resource() is before


def test_a_full_device():
    """Out of memory of a real kind: it says so, and after a free it goes on."""
    resource = mr.CudaMemoryResource()
    kept = []
    with pytest.raises(tenure.OutOfMemoryError) as caught:
        while True:
            kept.append(DeviceBuffer(size="32MiB", mr=resource))
    assert caught.value.requested == 32 << 20
    kept.pop()
    assert DeviceBuffer(size="32MiB", mr=resource).size == 32 << 20
