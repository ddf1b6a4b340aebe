"""Adaptors that hint, align and take turns; memory with headroom and managed pools; what constructors refuse."""

from __future__ import annotations

import gc
import threading

import pytest
import tenure
from conftest import child
from tenure import DeviceBuffer

mr = tenure.mr
MiB = 1 << 20

# ------------------------------------------------------------------------------------------------------------ prefetch

UPSTREAMS = {
    "cuda": mr.CudaMemoryResource,
    "async": mr.CudaAsyncMemoryResource,
    "pinned": mr.PinnedHostMemoryResource,
    "system": mr.SystemMemoryResource,
    "managed": mr.ManagedMemoryResource,
    "managed_async": mr.CudaAsyncManagedMemoryResource,
    "pool": lambda: mr.PoolMemoryResource(mr.CudaMemoryResource()),
    "managed_pool": lambda: mr.PoolMemoryResource(mr.ManagedMemoryResource()),
    "pinned_pool": lambda: mr.PoolMemoryResource(mr.PinnedHostMemoryResource()),
}


@pytest.mark.parametrize("kind", UPSTREAMS)
def test_prefetch_is_never_an_error(kind, stream):
    hinted = mr.PrefetchResourceAdaptor(UPSTREAMS[kind]())
    moves = "managed" in kind
    if tenure.sim.active():
        assert hinted.hints is moves
    for nbytes in (1, 1000, 2 * MiB):
        before = hinted.told
        block = DeviceBuffer(size=nbytes, stream=stream, mr=hinted)
        told = block.prefetch(), block.prefetch(stream=tenure.DEFAULT_STREAM), block.prefetch(-1), block.prefetch(0)
        if tenure.sim.active():
            assert hinted.told == before + moves
            assert told == (moves,) * 4
        stream.synchronize()
        block.copy_from_host(b"p" * nbytes)
        assert block.tobytes() == b"p" * nbytes


def test_prefetch_of_nothing_and_to_nowhere():
    empty = DeviceBuffer(size=0)
    assert empty.prefetch() is False
    assert DeviceBuffer(size=0, mr=mr.PrefetchResourceAdaptor(mr.ManagedMemoryResource())).prefetch(-1) is False
    block = DeviceBuffer(size=100, mr=mr.ManagedMemoryResource())
    with pytest.raises(ValueError, match="no device 77"):
        block.prefetch(77)
    with pytest.raises(ValueError, match="device is -2"):
        block.prefetch(-2)


@pytest.mark.needs_sim
def test_a_driver_that_refuses_a_hint_is_no_error():
    for code in (1, 801, 2, 700):
        tenure.sim.fail_next("cuMemPrefetchAsync", code)
        hinted = mr.PrefetchResourceAdaptor(mr.ManagedMemoryResource())
        block = DeviceBuffer(size=100, mr=hinted)
        assert hinted.told == 0
        tenure.sim.fail_next("cuMemPrefetchAsync", code)
        assert block.prefetch() is False
        assert block.prefetch() is True


@pytest.mark.needs_sim
def test_nothing_is_put_into_a_capture(stream):
    pool = mr.PoolMemoryResource(mr.ManagedMemoryResource())
    outside = DeviceBuffer(size=100, stream=stream, mr=pool)
    calls = tenure.sim.driver_calls("cuMemPrefetchAsync")
    tenure.sim.capture_begin(stream)
    assert outside.prefetch() is False
    graph = tenure.sim.capture_end(stream)
    assert tenure.sim.driver_calls("cuMemPrefetchAsync") == calls
    del graph


def test_prefetch_on_another_stream_is_recorded(stream):
    # The block is not handed out again before the other stream's work is done.
    pool = mr.PoolMemoryResource(mr.ManagedMemoryResource())
    other = tenure.Stream()
    block = DeviceBuffer(size=4096, stream=stream, mr=pool)
    ptr = block.ptr
    if tenure.sim.active():
        tenure.sim.busy(other, 200)
    block.prefetch(stream=other)
    del block
    again = DeviceBuffer(size=4096, stream=stream, mr=pool)
    stream.synchronize()
    if tenure.sim.active():
        # Another block, or the same one in the order of both streams.
        assert again.ptr != ptr or other.query()
    other.synchronize()


# ------------------------------------------------------------------------------------------------ aligned, thread-safe


@pytest.mark.parametrize("upstream", ["cuda", "async", "pool", "system", "managed"])
@pytest.mark.parametrize("alignment", [256, 512, 4096, "64KiB", 2 * MiB])
def test_aligned(upstream, alignment):
    aligned = mr.AlignedResourceAdaptor(UPSTREAMS[upstream](), alignment, alignment_threshold=1000)
    wanted = 64 << 10 if isinstance(alignment, str) else alignment
    assert (aligned.alignment, aligned.alignment_threshold, aligned.kind) == (wanted, 1000, "aligned")
    blocks = [DeviceBuffer(size=size, mr=aligned) for size in (1, 999, 1000, 1001, 5000, 3, 1 << 17)]
    for block in blocks:
        if block.size >= 1000:
            assert block.ptr % wanted == 0
        assert aligned.upstream_mr.info().live_count >= len(blocks)
    ptr = aligned.allocate(2000)
    assert ptr % wanted == 0
    with pytest.raises(tenure.OwnershipError):
        aligned.deallocate(ptr, 9000)
    aligned.deallocate(ptr, 2000)
    large = aligned.allocate(10, alignment=8192)
    assert large % 8192 == 0
    aligned.deallocate(large, 10, alignment=8192)
    blocks.clear()
    del block
    assert aligned.info().live_count == 0


@pytest.mark.parametrize("alignment", [0, 3, 300, 4 * MiB, -256])
def test_an_alignment_that_is_none_is_refused_by_name(cuda, alignment):
    with pytest.raises(ValueError, match="alignment"):
        mr.AlignedResourceAdaptor(cuda, alignment)


def test_an_alignment_of_less_than_the_usual_one_is_raised(cuda):
    assert mr.AlignedResourceAdaptor(cuda, 16).alignment == 256
    assert mr.AlignedResourceAdaptor(cuda).alignment == 256


def test_one_call_at_a_time(cuda):
    inside = []
    most = []

    def take(nbytes, stream):
        inside.append(1)
        most.append(len(inside))
        # Lets others run.
        threading.Event().wait(0.001)
        ptr = cuda.allocate(nbytes, stream)
        inside.pop()
        return ptr

    def give(ptr, nbytes, stream):
        inside.append(1)
        most.append(len(inside))
        cuda.deallocate(ptr, nbytes, stream)
        inside.pop()

    def hammer(resource):
        def work():
            for _ in range(20):
                resource.deallocate(resource.allocate(100), 100)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    unsafe = mr.CallbackMemoryResource(take, give)
    hammer(unsafe)
    assert max(most) > 1, "the test would not notice"
    most.clear()
    hammer(mr.ThreadSafeResourceAdaptor(unsafe))
    assert set(most) == {1}


def test_a_callback_may_come_back_to_its_turn(cuda):
    depth = []

    def take(nbytes, stream):
        if not depth:
            depth.append(1)
            safe.deallocate(safe.allocate(10), 10)
            assert safe.info() is not None
        return cuda.allocate(nbytes, stream)

    upstream = mr.CallbackMemoryResource(take, lambda ptr, n, s: cuda.deallocate(ptr, n, s))
    safe = mr.ThreadSafeResourceAdaptor(upstream)
    assert DeviceBuffer(size=100, mr=safe).size == 100
    assert depth

    # And an error gives the turn back.
    depth.append(1)
    failing = mr.ThreadSafeResourceAdaptor(mr.CallbackMemoryResource(lambda n, s: 1 / 0, lambda *_: None))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            failing.allocate(10)

    def fail():
        with pytest.raises(ZeroDivisionError):
            failing.allocate(10)

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def test_exit_while_a_thread_that_is_stopped_has_the_turn():
    done = child(
        """
import threading, time, tenure
mr = tenure.mr
cuda = mr.CudaMemoryResource()
entered = threading.Event()

def take(nbytes, stream):
    if nbytes == 77:
        entered.set()
        time.sleep(60)
    return cuda.allocate(nbytes, stream)

safe = mr.ThreadSafeResourceAdaptor(mr.CallbackMemoryResource(take, lambda p, n, s: cuda.deallocate(p, n, s)))
kept = tenure.DeviceBuffer(size=100, mr=safe)
threading.Thread(target=lambda: safe.allocate(77), daemon=True).start()
entered.wait()
""",
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")


# -------------------------------------------------------------------------------------- system memory with headroom etc.


@pytest.mark.parametrize("headroom", [0, MiB, "1GiB", 1 << 50])
def test_sam_headroom_is_memory_of_the_host(headroom):
    sam = mr.SamHeadroomMemoryResource(headroom)
    assert sam.kind == "sam_headroom" and sam.is_host_accessible
    if not isinstance(headroom, str):
        assert sam.headroom == headroom
    block = DeviceBuffer.to_device(b"abc" * 1000, mr=sam)
    assert block.tobytes() == b"abc" * 1000 and block.mr is sam
    assert sam.info().live_bytes == 3000
    with pytest.raises(tenure.OwnershipError):
        sam.deallocate(block.ptr, 9)
    del block
    assert sam.info().live_bytes == 0


@pytest.mark.parametrize("wrong", [-1, "many", "1.5.5GiB", None])
def test_sam_headroom_names_what_is_wrong(wrong):
    with pytest.raises((ValueError, TypeError), match="headroom"):
        mr.SamHeadroomMemoryResource(wrong)


@pytest.mark.needs_sim
def test_headroom_and_prefetch_where_devices_use_memory_of_the_host():
    code = """
import tenure
mr, sim = tenure.mr, tenure.sim
calls = lambda: sim.driver_calls("cuMemAdvise")
calls()
for headroom, want in [(0, 1), (1 << 40, 1), ((256 << 20) - (1 << 20), 2)]:
    before = calls()
    sam = mr.SamHeadroomMemoryResource(headroom)
    assert sam.hints and sam.is_device_accessible
    block = tenure.DeviceBuffer(size=4 << 20, mr=sam)
    # On the device as a whole, on the host as a whole, or in two parts.
    assert calls() - before == want, (headroom, calls() - before)
    assert block.prefetch() is True and block.prefetch(-1) is True
    sim.fail_next("cuMemAdvise", 801)
    assert tenure.DeviceBuffer(size=100, mr=sam).size == 100
hinted = mr.PrefetchResourceAdaptor(mr.SystemMemoryResource())
block = tenure.DeviceBuffer(size=100, mr=hinted)
assert hinted.hints and hinted.told == 1
assert sim.violations() == 0
"""
    done = child(code, TENURE_SIM_PAGEABLE_ACCESS="1")
    assert (done.returncode, done.stderr) == (0, "")


def test_managed_memory_in_stream_order(stream):
    try:
        managed = mr.CudaAsyncManagedMemoryResource()
    except RuntimeError as error:
        # Before CUDA 13, or on a device without it.
        assert "managed" in str(error)
        return
    assert managed.kind == "cuda_async_managed" and managed.is_managed and managed.is_host_accessible
    assert managed.pool_handle() == mr.CudaAsyncManagedMemoryResource(device=0).pool_handle() != 0
    block = DeviceBuffer(size=1000, stream=stream, mr=managed)
    block.copy_from_host(b"m" * 1000)
    assert block.tobytes() == b"m" * 1000
    assert type(block.mr) is mr.CudaAsyncManagedMemoryResource
    pool = mr.PoolMemoryResource(managed)
    assert DeviceBuffer(size=100, mr=pool).size == 100


@pytest.mark.needs_sim
def test_a_driver_without_a_managed_pool_is_told_apart():
    tenure.sim.fail_next("cuMemGetDefaultMemPool", 801)
    with pytest.raises(NotImplementedError, match="no pool of managed memory"):
        mr.CudaAsyncManagedMemoryResource()


@pytest.mark.parametrize(
    "options", [{"enable_ipc": True}, {"enable_fabric": True}, {"enable_ipc": True, "enable_fabric": True}]
)
def test_handle_types_work_or_say_why(options):
    try:
        pool = mr.CudaAsyncMemoryResource(**options)
    except RuntimeError as error:
        assert "handle type" in str(error) and not isinstance(error, MemoryError)
        return
    assert DeviceBuffer(size=100, mr=pool).size == 100


@pytest.mark.parametrize("name", ["PrefetchResourceAdaptor", "AlignedResourceAdaptor", "ThreadSafeResourceAdaptor"])
def test_other_adaptors_are_resources_like_any_other(cuda, name):
    adaptor = getattr(mr, name)(cuda)
    assert adaptor.upstream_mr is cuda and adaptor.get_upstream() is cuda
    buffer = DeviceBuffer(size=100, mr=adaptor)
    with pytest.raises(TypeError):
        getattr(mr, name)(None)
    kind = type(adaptor)
    del adaptor
    gc.collect()
    assert type(buffer.mr) is kind

    class Mine(getattr(mr, name)):
        pass

    assert DeviceBuffer(size=100, mr=Mine(cuda)).size == 100


# -------------------------------------------------------------------------------------------- what is refused, by name


@pytest.mark.parametrize(
    "word, make",
    [
        ("allocation_limit is 0", lambda up: mr.LimitingResourceAdaptor(up, 0)),
        ("allocation_limit", lambda up: mr.LimitingResourceAdaptor(up, -1)),
        ("allocation_limit", lambda up: mr.LimitingResourceAdaptor(up, "10 parsecs")),
        ("initial_pool_size is '80%'", lambda up: mr.PoolMemoryResource(up, "80%", MiB)),
        ("initial_pool_size is 67108864", lambda up: mr.PoolMemoryResource(up, 64 * MiB, "32MiB")),
        ("arena_size is 32768", lambda up: mr.ArenaMemoryResource(up, 32 << 10)),
        ("alignment is 3", lambda up: mr.AlignedResourceAdaptor(up, 3)),
        ("alignment_threshold", lambda up: mr.AlignedResourceAdaptor(up, 256, -1)),
        ("headroom", lambda up: mr.SamHeadroomMemoryResource("some")),
        ("release_threshold", lambda up: mr.CudaAsyncMemoryResource(release_threshold=-1)),
        ("initial_pool_size", lambda up: mr.CudaAsyncMemoryResource("1XB")),
    ],
)
def test_nonsense_is_refused_with_the_name_of_the_parameter(cuda, word, make):
    with pytest.raises(ValueError, match=word):
        make(cuda)
