"""CuPy on tenure's memory. What needs a GPU runs in the bundle of the GPU. On the simulated device the hook is called as the library would call it."""

from __future__ import annotations

import gc
import importlib
import threading

import pytest
import tenure
from conftest import DEVICE
from plugs import MIB, gpu, needs_cupy, run

mr = tenure.mr


@pytest.fixture
def cupy_hook():
    return importlib.import_module("tenure.allocators.cupy")


@needs_cupy
def test_cupy_memory_is_tenures(cupy_hook, pool):
    from cupy.cuda.memory import BaseMemory, MemoryPointer

    pointer = cupy_hook.allocator(pool)(1000)
    assert isinstance(pointer, MemoryPointer) and isinstance(pointer.mem, BaseMemory)
    assert pointer.ptr == pointer.mem.ptr and pointer.mem.size == 1000 and pointer.device_id == 0
    assert pool.owns(pointer.ptr) and cupy_hook.resource_of(pointer) is pool
    view = pointer + 100
    del pointer
    gc.collect()
    assert pool.info().live_count == 1, "a pointer into the block keeps it"
    del view
    assert pool.info().live_count == 0


@needs_cupy
def test_cupy_blocks_are_accounted_for_in_their_context(cupy_hook, pool):
    import contextvars

    with tenure.tag("cupy's context"):
        context = contextvars.copy_context()
    kept = [context.run(cupy_hook.tenure_cupy_allocator, 1000), context.run(cupy_hook.allocator(pool), 3000)]
    assert tenure.usage()["cupy's context"].live_bytes == 4000
    del kept


@needs_cupy
def test_cupy_attributes_lie_where_they_are_written():
    assert tenure._tenure._cupy_in_place(), "this CuPy's memory objects are written by name, which is slower"


@needs_cupy
def test_cupy_reads_the_table_once_per_block(cupy_hook, recorder, pool):
    allocate = cupy_hook.tenure_cupy_allocator
    mr.set_current_device_resource(recorder.mr)
    first = allocate(100)
    mr.set_current_device_resource(pool)
    second = allocate(100)
    with mr.using(recorder.mr):
        third = allocate(300)
    assert [bytes for _, bytes, _ in recorder.allocated] == [100, 300]
    del first, third
    assert [bytes for _, bytes, _ in recorder.freed] == [100, 300], "a block goes home, whatever is current"
    assert pool.info().live_count == 1
    del second
    assert pool.info().live_count == 0


@needs_cupy
@pytest.mark.needs_sim
def test_cupy_asks_the_driver_nothing_for_a_block_at_hand():
    run(
        """
        import tenure
        from tenure.allocators.cupy import allocator, tenure_cupy_allocator
        pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource(), "16MiB")
        tenure.mr.set_current_device_resource(pool)
        for allocate in (tenure_cupy_allocator, allocator(pool)):
            for _ in range(100): allocate(1000)
            before = tenure.sim.driver_calls()
            for _ in range(1000): allocate(1000)
            assert tenure.sim.driver_calls() == before, allocate
        """,
        TENURE_SIM_DEVICES="1",
    )


@needs_cupy
def test_cupy_block_keeps_its_resource(cupy_hook, cuda):
    pool = mr.PoolMemoryResource(cuda)
    allocate = cupy_hook.allocator(pool)
    block = allocate(MIB)
    del allocate, pool
    gc.collect()
    assert type(cupy_hook.resource_of(block)) is mr.PoolMemoryResource
    del block


@needs_cupy
def test_cupy_block_of_no_bytes(cupy_hook, recorder):
    block = cupy_hook.allocator(recorder.mr)(0)
    assert block.ptr == 0 and block.mem.size == 0 and block.device_id == 0
    assert cupy_hook.resource_of(block) is None
    cupy_hook.record_stream(block, tenure.Stream())
    del block
    assert recorder.allocated == [] and recorder.freed == []


@needs_cupy
def test_cupy_out_of_memory_is_cupys(cupy_hook, pool):
    from cupy.cuda.memory import OutOfMemoryError

    allocate = cupy_hook.allocator(mr.LimitingResourceAdaptor(pool, MIB))
    kept = allocate(MIB // 2)
    with pytest.raises(OutOfMemoryError) as caught:
        allocate(MIB)
    assert type(caught.value) is OutOfMemoryError
    assert isinstance(caught.value.__cause__, tenure.OutOfMemoryError)
    assert f"{MIB:,}" in str(caught.value)
    del caught
    assert allocate(MIB // 4).mem.size == MIB // 4, "it works on"
    del kept


@needs_cupy
def test_cupy_other_errors_are_as_they_were_raised(cupy_hook, recorder):
    allocate = cupy_hook.allocator(recorder.mr)
    recorder.raise_next = KeyError("mine")
    with pytest.raises(KeyError, match="mine"):
        allocate(10)
    for wrong, error in ((-1, ValueError), ("1", TypeError), (1.5, TypeError), (1 << 70, OverflowError)):
        with pytest.raises(error):
            allocate(wrong)
    with pytest.raises(TypeError, match=r"resource of tenure\.mr"):
        cupy_hook.allocator(3)


@needs_cupy
def test_cupy_record_stream_delays_the_next_use(cupy_hook, cuda):
    other, third = tenure.Stream(non_blocking=True), tenure.Stream(non_blocking=True)
    tight = mr.PoolMemoryResource(cuda, 4 * MIB, 4 * MIB)
    block = cupy_hook.allocator(tight)(4 * MIB)
    if DEVICE == "sim":
        tenure.sim.busy(other, 300)
    cupy_hook.record_stream(block, other)
    del block
    with tenure.DeviceBuffer(size=4 * MIB, stream=third, mr=tight):
        # There is no other memory: either the work was waited for, or what comes on this stream waits for it.
        assert other.query() or not third.query(), "the block was given away while another stream used it"
    other.synchronize()
    from cupy.cuda.memory import MemoryPointer, UnownedMemory

    with pytest.raises(TypeError, match="no memory of tenure's"):
        cupy_hook.record_stream(MemoryPointer(UnownedMemory(4096, 16, None, 0), 0), other)


@needs_cupy
def test_cupy_memory_objects_cannot_be_made_by_hand(cupy_hook, pool):
    kind = type(cupy_hook.allocator(pool)(1).mem)
    with pytest.raises(TypeError):
        kind()
    # Nor does anything of it survive its end: no reference cycle, no garbage.
    before = len(gc.get_objects())
    for _ in range(1000):
        cupy_hook.allocator(pool)(16)
    gc.collect()
    assert len(gc.get_objects()) < before + 100


@needs_cupy
def test_cupy_pinned_memory(cupy_hook):
    block = cupy_hook.tenure_cupy_pinned_allocator(1000)
    assert block.size() == 1000 and memoryview(block).nbytes == 1000
    memoryview(block).cast("B")[999] = 7
    again = cupy_hook.pinned_allocator()(10)
    assert again.mem.mr is block.mem.mr, "all share one pool"
    own = mr.PinnedHostMemoryResource()
    assert cupy_hook.pinned_allocator(own)(10).mem.mr is own
    with pytest.raises(TypeError):
        cupy_hook.pinned_allocator(3)


@needs_cupy
def test_cupy_threads(cupy_hook, pool):
    """Threads allocate and free while the current resource is replaced."""
    allocate = cupy_hook.tenure_cupy_allocator
    pools = [pool, mr.PoolMemoryResource(mr.CudaMemoryResource())]
    stop = threading.Event()
    wrong = []

    def work(seed: int) -> None:
        kept: list = []
        try:
            for step in range(400):
                block = allocate(256 + (seed * 977 + step * 131) % 5000)
                kept.append(block)
                if len(kept) > 20:
                    del kept[(step * 7) % 20]
        except BaseException as error:
            wrong.append(error)

    def replace() -> None:
        while not stop.is_set():
            for each in pools:
                mr.set_current_device_resource(each)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    changer = threading.Thread(target=replace)
    changer.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    changer.join()
    assert not wrong, wrong
    mr.reset_current_device_resource()
    assert [each.info().live_count for each in pools] == [0, 0]


EXIT = """
    import tenure
    pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
    tenure.mr.set_current_device_resource(pool)
    from tenure.allocators.cupy import tenure_cupy_allocator, allocator
    keep = [tenure_cupy_allocator(1000), allocator(pool)(1000)]
    cycle = [keep]; cycle.append(cycle)
    import cupy
    cupy.kept = tenure_cupy_allocator(10)
    del pool
"""


@needs_cupy
def test_cupy_blocks_alive_at_exit():
    for _ in range(5):
        run(EXIT)


@needs_cupy
@gpu
def test_cupy_arrays_on_streams(cupy_hook, pool):
    import cupy

    statistics = mr.StatisticsResourceAdaptor(pool)
    table = tenure.enable("cupy", mr=statistics)
    assert table["cupy"].state == "on"
    try:
        array = cupy.arange(1000, dtype="i4")
        assert cupy_hook.resource_of(array) is statistics and int(array.sum()) == 499500
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            on_stream = cupy.ones(MIB, dtype="u1")
            assert statistics.allocation_counts.current_bytes >= 4000 + MIB
            total = on_stream.sum()
        stream.synchronize()
        assert int(total) == MIB
        with cupy.cuda.Stream.ptds:
            cupy.zeros(100)
        # The wrapper of a stream may go before the block.
        with cupy.cuda.Stream():
            left = cupy.ones(1000)
        gc.collect()
        assert float(left.sum()) == 1000
        assert cupy.empty(0).size == 0 and cupy.empty((0, 3)).shape == (0, 3)
        with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
            cupy.empty(1 << 46, dtype="u1")
        del array, on_stream, total, left
        gc.collect()
    finally:
        tenure.disable("cupy")
    cupy.cuda.Device().synchronize()
    assert statistics.allocation_counts.current_count == 0
    assert cupy.cuda.get_allocator() is not None and float(cupy.ones(10).sum()) == 10


@needs_cupy
@gpu
def test_cupy_keeps_patterns_apart(cupy_hook, pool):
    """Several threads with streams of their own write a pattern to each block and find it again."""
    import cupy

    wrong = []

    def work(number: int) -> None:
        try:
            with cupy.cuda.Stream(non_blocking=True) as stream:
                live = []
                for step in range(200):
                    value = (number * 50 + step) % 251
                    block = cupy.full(1000 + 997 * (step % 13), value, dtype="u1")
                    live.append((block, value))
                    if len(live) > 8:
                        old, expected = live.pop(step % 8)
                        if not bool((old == expected).all()):
                            wrong.append((number, step))
                stream.synchronize()
        except BaseException as error:
            wrong.append(error)

    tenure.enable("cupy", mr=pool)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        tenure.disable("cupy")
    gc.collect()
    assert not wrong, wrong
    assert pool.info().live_count == 0


@needs_cupy
@gpu
def test_cupy_in_a_graph_capture(cupy_hook, pool):
    import cupy

    tenure.enable("cupy", mr=pool)
    try:
        stream = cupy.cuda.Stream(non_blocking=True)
        source = cupy.arange(1000, dtype="f4")
        result = cupy.empty(1000, dtype="f4")
        cupy.cuda.Device().synchronize()
        with stream:
            cupy.multiply(source + 1, 2, out=result)  # compiles what the capture needs
            stream.synchronize()
            stream.begin_capture()
            cupy.multiply(source + 1, 2, out=result)  # one temporary is allocated and freed in the capture
            graph = stream.end_capture()
            result.fill(0)
            graph.launch(stream)
            stream.synchronize()
        assert float(result[10]) == 22
        del graph
    finally:
        tenure.disable("cupy")
