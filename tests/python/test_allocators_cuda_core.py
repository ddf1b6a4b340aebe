"""cuda.core on tenure's memory. What needs a GPU runs in the bundle of the GPU.

On the simulated device cuda.core has no driver, and its `Device` cannot be used; its streams and buffers can: a stream that it
is given, and a buffer of a resource that is not its own, need none.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import types
import warnings
import weakref

import pytest
import tenure
from plugs import gpu, needs_core, run

mr = tenure.mr


@pytest.fixture
def resource():
    from tenure.allocators.cuda_core import memory_resource

    return memory_resource


@pytest.fixture
def streams():
    """Streams of cuda.core's over tenure's, as `Device.create_stream(obj)` makes them."""
    from cuda.core import Stream

    return [Stream._init(obj=tenure.Stream()) for _ in range(3)]


def handle(stream):
    return stream.__cuda_stream__()[1]


@needs_core
@gpu
def test_cuda_core_buffers():
    run(
        """
        import gc, threading, tenure
        pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
        tenure.mr.set_current_device_resource(pool)
        assert tenure.enable("cuda.core")["cuda.core"].state in ("on", "waiting")
        from cuda.core import Device
        device = Device(0)
        device.set_current()
        tenure.enable("cuda.core")
        stream = device.create_stream()
        buffer = device.allocate(1000, stream=stream)
        assert pool.owns(int(buffer.handle)) and buffer.size == 1000 and pool.info().live_count == 1
        assert buffer.memory_resource.is_device_accessible and buffer.device_id == 0
        buffer.close(stream)
        assert pool.info().live_count == 0
        seen = []
        def other():
            mine = Device(0)
            mine.set_current()
            block = mine.allocate(1000, stream=mine.create_stream())
            seen.append(pool.owns(int(block.handle)))
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        gc.collect()
        assert seen == [True] and pool.info().live_count == 0
        # Both ways: tenure takes what cuda.core made, and the other way round.
        block = device.allocate(64, stream=stream)
        stream.sync()
        ours = tenure.from_dlpack(block)
        assert ours.ptr == int(block.handle)
        del ours, block
        tenure.disable("cuda.core")
        assert not pool.owns(int(device.allocate(1000, stream=stream).handle))
        """
    )


@needs_core
def test_cuda_core_resource_is_one_of_cuda_cores(resource, pool):
    core = pytest.importorskip("cuda.core")
    made = resource(0, pool)
    assert isinstance(made, core.MemoryResource) and made.device_id == 0 and made.is_device_accessible is True
    assert made.mr is pool and made.is_host_accessible is False and made.is_managed is False
    assert resource(3).mr is None and resource(3).device_id == 3
    assert type(made).__module__ == "tenure.allocators.cuda_core" and type(made).__name__ == "TenureMemoryResource"
    managed = mr.PoolMemoryResource(mr.ManagedMemoryResource())
    assert resource(0, managed).is_managed and resource(0, managed).is_host_accessible
    pinned = mr.PoolMemoryResource(mr.PinnedHostMemoryResource())
    assert resource(0, pinned).is_host_accessible and not resource(0, pinned).is_managed
    with pytest.raises(TypeError, match=r"resource of tenure\.mr"):
        resource(0, 3)
    with pytest.raises(TypeError):
        type(made)()
    with pytest.raises(AttributeError):
        made.mr = None


@needs_core
@pytest.mark.needs_sim
def test_cuda_core_buffer_is_tenures(resource, pool, streams):
    made = resource(0, pool)
    buffer = made.allocate(1000, stream=streams[0])
    assert pool.owns(int(buffer.handle)) and buffer.size == 1000 and pool.info().live_count == 1
    assert buffer.memory_resource is made and buffer.device_id == 0 and buffer.is_device_accessible
    kept = [made.allocate(size=1 << n, stream=streams[n % 3]) for n in range(12)]
    assert pool.info().live_count == 13
    buffer.close()
    buffer.close()
    assert pool.info().live_count == 12
    del kept
    assert pool.info().live_count == 0


@needs_core
@pytest.mark.needs_sim
def test_cuda_core_frees_in_the_order_of_the_stream_that_is_said(resource, recorder, streams):
    made = resource(0, recorder.mr)
    first, second, third = streams
    buffer = made.allocate(100, stream=first)
    assert recorder.allocated[-1][1] == 100 and recorder.allocated[-1][2].handle == handle(first)
    ptr = int(buffer.handle)
    del buffer
    assert recorder.freed[-1][:2] == (ptr, 100) and recorder.freed[-1][2].handle == handle(first)
    buffer = made.allocate(200, stream=first)
    buffer.close(second)
    assert recorder.freed[-1][1] == 200 and recorder.freed[-1][2].handle == handle(second)
    buffer = made.allocate(300, stream=first)
    buffer.set_deallocation_stream(third)
    del buffer
    assert recorder.freed[-1][1] == 300 and recorder.freed[-1][2].handle == handle(third)
    assert len(recorder.allocated) == len(recorder.freed) == 3


@needs_core
@pytest.mark.needs_sim
def test_cuda_core_block_goes_home_whatever_is_current_by_then(resource, streams):
    first, second = (mr.PoolMemoryResource(mr.CudaMemoryResource()) for _ in range(2))
    made = resource(0)
    mr.set_current_device_resource(first)
    try:
        block = made.allocate(1000, stream=streams[0])
        mr.set_current_device_resource(second)
        other = made.allocate(2000, stream=streams[0])
        with mr.using(first):
            scoped = made.allocate(3000, stream=streams[0])
        assert first.info().live_count == 2 and second.info().live_count == 1
        del block, scoped
        assert first.info().live_count == 0 and second.info().live_count == 1
        # Nor must the resource be held by anybody else.
        mr.reset_current_device_resource()
        gone = weakref.ref(second)
        del second
        assert gone() is None and tenure.mr.owner_of(int(other.handle)) is not None
        del other
    finally:
        mr.reset_current_device_resource()


@needs_core
@pytest.mark.needs_sim
def test_cuda_core_refuses_what_is_no_block_of_this_resource(resource, pool, streams, capfd):
    made, another = resource(0, pool), resource(0, pool)
    buffer = made.allocate(1000, stream=streams[0])
    ptr = int(buffer.handle)
    foreign = tenure.DeviceBuffer(size=1000, mr=pool)
    for whose, where, size in [
        (made, foreign.ptr, 1000),
        (made, ptr + 8, 992),
        (made, ptr, 999),
        (made, 0, 1000),
        (made, 1, 1),
        (another, ptr, 1000),
    ]:
        for stream in streams:
            with pytest.raises(ValueError, match="no block of"):
                whose.deallocate(where, size, stream=stream)
    assert pool.info().live_count == 2
    # By hand, then a second time, then by its buffer, which only warns, as cuda.core has it.
    made.deallocate(ptr, 1000, stream=streams[1])
    assert pool.info().live_count == 1
    with pytest.raises(ValueError, match="freed already"):
        made.deallocate(ptr, 1000, stream=streams[0])
    capfd.readouterr()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del buffer
    assert "freed already" in capfd.readouterr().err + "".join(str(one.message) for one in warned)
    assert pool.info().live_count == 1 and tenure.mr.misuse_count() == 0


@needs_core
@pytest.mark.needs_sim
def test_cuda_core_arguments(resource, pool, streams):
    made, stream = resource(0, pool), streams[0]
    for call, error in [
        (lambda: made.allocate(10), TypeError),
        (lambda: made.allocate(10, stream), TypeError),
        (lambda: made.allocate(stream=stream), TypeError),
        (lambda: made.allocate(10, size=10, stream=stream), TypeError),
        (lambda: made.allocate(10, stream=stream, other=1), TypeError),
        (lambda: made.allocate(-1, stream=stream), ValueError),
        (lambda: made.allocate(1 << 64, stream=stream), ValueError),
        (lambda: made.allocate(1 << 60, stream=stream), MemoryError),
        (lambda: made.allocate(1.5, stream=stream), TypeError),
        (lambda: made.allocate(10, stream=None), TypeError),
        (lambda: made.allocate(10, stream=3), TypeError),
        (lambda: made.deallocate(4096, stream=stream), TypeError),
        (lambda: made.deallocate(4096, 10), TypeError),
        (lambda: made.deallocate(4096, 10, stream=None), TypeError),
        (lambda: made.deallocate(None, 10, stream=stream), TypeError),
        (lambda: made.deallocate(-1, 10, stream=stream), ValueError),
    ]:
        with pytest.raises(error):
            call()
    assert pool.info().live_count == 0
    made.allocate(stream=stream, size=10).close()


@needs_core
@pytest.mark.needs_sim
def test_cuda_core_no_bytes(resource, recorder, streams):
    made = resource(0, recorder.mr)
    buffer = made.allocate(0, stream=streams[0])
    assert (int(buffer.handle), buffer.size) == (0, 0) and buffer.memory_resource is made
    buffer.close(streams[1])
    del buffer
    made.deallocate(0, 0, stream=streams[0])
    assert recorder.allocated == recorder.freed == []


@needs_core
@pytest.mark.needs_sim
def test_cuda_core_block_is_freed_where_no_buffer_can_be_made(resource, recorder):
    from cuda.core import LEGACY_DEFAULT_STREAM

    # cuda.core has no context here, without which a buffer cannot be freed on a default stream.
    with pytest.raises(Exception, match=r"context|driver"):
        resource(0, recorder.mr).allocate(100, stream=LEGACY_DEFAULT_STREAM)
    assert len(recorder.allocated) == len(recorder.freed) == 1
    # A stream of tenure's own is none for a buffer of cuda.core's.
    with pytest.raises(TypeError):
        resource(0, recorder.mr).allocate(100, stream=tenure.Stream())
    assert len(recorder.allocated) == len(recorder.freed) == 1


@needs_core
@pytest.mark.needs_sim
def test_cuda_core_stream_that_was_closed(resource, pool, streams):
    made, (first, second, _) = resource(0, pool), streams
    kept = made.allocate(100, stream=first)
    first.close()
    with pytest.raises(RuntimeError, match="closed"):
        made.allocate(100, stream=first)
    with pytest.raises(RuntimeError, match="closed"):
        made.deallocate(int(kept.handle), 100, stream=first)
    assert pool.info().live_count == 1
    del kept
    assert pool.info().live_count == 0
    # What is freed on it, though nobody but tenure has the stream any more, can still be used.
    other = [made.allocate(100, stream=second) for _ in range(100)]
    assert pool.info().live_count == 100
    del other


@needs_core
@pytest.mark.needs_sim
def test_cuda_core_threads(resource, streams):
    """Blocks are made in one thread and freed in another, while the current resource is replaced."""
    pools = [mr.PoolMemoryResource(mr.CudaMemoryResource()) for _ in range(2)]
    made, handed, wrong = resource(0), [], []
    mr.set_current_device_resource(pools[0])

    def work(seed: int) -> None:
        try:
            for step in range(300):
                stream = streams[(seed + step) % 3]
                handed.append(made.allocate(256 + (seed * 977 + step * 131) % 5000, stream=stream))
                if len(handed) > 40:
                    with contextlib.suppress(IndexError):
                        handed.pop((seed * 7 + step) % 20).close(streams[step % 3] if step % 2 else None)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for pool in pools:
                mr.set_current_device_resource(pool)
        for thread in threads:
            thread.join()
    finally:
        mr.reset_current_device_resource()
    assert not wrong
    assert sum(pool.info().live_count for pool in pools) == len(handed)
    handed.clear()
    assert [pool.info().live_count for pool in pools] == [0, 0]


@needs_core
@pytest.mark.needs_sim
def test_cuda_core_blocks_are_counted_as_its_own(resource, pool, streams):
    tenure.report(True)
    try:
        buffer = resource(0, pool).allocate(1 << 20, stream=streams[0])
        report = tenure.report()
        assert report.libraries["cuda.core"].at_peak_bytes == 1 << 20 == report.live_bytes
        del buffer
        assert tenure.report().live_bytes == 0
    finally:
        tenure.report(False)


@needs_core
@pytest.mark.needs_sim
def test_cuda_core_resource_leaves_no_garbage(resource, cuda, streams):
    pool = mr.PoolMemoryResource(cuda)
    made = resource(0, pool)
    made.allocate(100, stream=streams[0]).close()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(300):
        made.allocate(100, stream=streams[0])
        resource(0, pool)
    gc.collect()
    assert len(gc.get_objects()) < before + 50
    gone = weakref.ref(pool)
    del pool, made
    assert gone() is None, "no cycle keeps the resource"

    class Own(mr.PoolMemoryResource):
        pass

    cycle = Own(cuda)
    cycle.made = resource(0, cycle)
    gone = weakref.ref(cycle)
    del cycle
    gc.collect()
    assert gone() is None, "the collector sees through the resource"


@needs_core
@pytest.mark.needs_sim
@pytest.mark.parametrize("where", ["main", "thread"])
def test_cuda_core_buffers_at_exit(where):
    """Buffers that live at the interpreter's end, also in the hands of a thread that still runs."""
    out = run(
        """
        import sys, threading, time, tenure
        from cuda.core import Stream
        from tenure.allocators.cuda_core import memory_resource
        pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
        stream = Stream._init(obj=tenure.Stream())
        made = memory_resource(0, pool)
        kept = [made.allocate(1000, stream=stream) for _ in range(10)]
        def on():
            mine = [made.allocate(500, stream=stream)]
            while True:
                mine.append(made.allocate(500, stream=stream))
                del mine[0]
        if sys.argv[1] == "thread":
            threading.Thread(target=on, daemon=True).start()
            time.sleep(0.1)
        print(pool.info().live_count >= 10)
        """,
        where,
    )
    assert out == "True\n"


def test_cuda_core_getter():
    """What `Device.memory_resource` is asked by: the one that is there, else the one that is filled in."""
    filled = []

    def fill(device):
        filled.append(device)
        device._memory_resource = "made"
        return device._memory_resource

    getter = tenure._tenure.CudaCoreGetter(fill)
    device = types.SimpleNamespace(_memory_resource=None)
    assert getter.get(device) == "made" and getter.get(device) == "made" and filled == [device]
    with pytest.raises(AttributeError):
        getter.get(object())
