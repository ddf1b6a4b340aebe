"""``tenure.statistics``: whose allocations count where, and what the profiler makes of it."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest
import tenure
from tenure import statistics as st

KiB = 1024


def bytes_of(figures):
    return figures.current_bytes, figures.peak_bytes, figures.total_bytes


def run_threads(*functions):
    raised = []

    def run(function):
        try:
            function()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for error in raised:
        raise error


def test_off_is_none():
    assert st.get_statistics() is None
    assert st.push_statistics() is None
    assert st.pop_statistics() is None


def test_enable_is_idempotent():
    st.enable_statistics()
    mr = tenure.mr.get_current_device_resource()
    st.enable_statistics()
    assert tenure.mr.get_current_device_resource() is mr
    assert bytes_of(st.get_statistics()) == (0, 0, 0)


def test_push_and_pop_as_rmm_has_them():
    st.enable_statistics()
    a = tenure.DeviceBuffer(size=10)
    b = tenure.DeviceBuffer(size=20)
    assert bytes_of(st.push_statistics()) == (30, 30, 30)
    del a
    popped = st.pop_statistics()
    assert popped == st.Statistics(-10, -1, 0, 0, 0, 0)
    del b
    assert st.get_statistics() == st.Statistics(
        current_bytes=0, current_count=0, peak_bytes=30, peak_count=2, total_bytes=30, total_count=2
    )
    with pytest.raises(IndexError, match="cannot pop the last counter pair"):
        st.pop_statistics()


def test_context_over_a_plain_resource():
    before = tenure.mr.get_current_device_resource()
    with st.statistics():
        outer = tenure.mr.get_current_device_resource()
        assert isinstance(outer, tenure.mr.StatisticsResourceAdaptor)
        kept = tenure.DeviceBuffer(size=20)
        with st.statistics():
            assert tenure.mr.get_current_device_resource() is outer
            inner = tenure.DeviceBuffer(size=10)
            assert bytes_of(st.get_statistics()) == (10, 10, 10)
        assert bytes_of(st.get_statistics()) == (30, 30, 30)
        del kept, inner
    assert tenure.mr.get_current_device_resource() is before


def test_a_plain_resource_stays_current_for_other_threads():
    before = tenure.mr.get_current_device_resource()
    gate = threading.Barrier(2)

    def measures():
        with st.statistics():
            gate.wait(20)
            gate.wait(20)

    def looks():
        gate.wait(20)
        assert tenure.mr.get_current_device_resource() is before
        gate.wait(20)

    run_threads(measures, looks)


def test_overlapping_scopes_of_two_threads_add_up():
    st.enable_statistics()
    gate = threading.Barrier(2)
    seen = {}

    def work(name, size, leave_first):
        gate.wait(20)
        with st.statistics():
            gate.wait(20)
            block = tenure.DeviceBuffer(size=size)
            gate.wait(20)
            seen[name] = st.get_statistics()
            if leave_first:
                gate.wait(20)
        if not leave_first:
            gate.wait(20)
        assert block.size == size

    run_threads(lambda: work("a", 64 * KiB, True), lambda: work("b", 256 * KiB, False))
    assert bytes_of(seen["a"]) == (64 * KiB,) * 3
    assert bytes_of(seen["b"]) == (256 * KiB,) * 3
    assert st.get_statistics().total_bytes == sum(figures.total_bytes for figures in seen.values())


def test_a_free_counts_where_it_is_made():
    st.enable_statistics()
    with st.statistics():
        blocks = [tenure.DeviceBuffer(size=100)]

        def free():
            with st.statistics():
                blocks.clear()
                assert bytes_of(st.get_statistics()) == (-100, 0, 0)

        run_threads(free)
        assert bytes_of(st.get_statistics()) == (100, 100, 100)
    assert st.get_statistics().current_bytes == 0


def test_raw_allocations_and_many_count_too():
    st.enable_statistics()
    mr = tenure.mr.get_current_device_resource()
    with st.statistics():
        ptr = mr.allocate(100)
        ptrs = mr.allocate_many([10, 20])
        buffers = tenure.DeviceBuffer.many([1, 2])
        assert bytes_of(st.get_statistics())[0] == 133
        mr.deallocate(ptr, 100)
        mr.deallocate_many(ptrs, [10, 20])
        del buffers
        assert bytes_of(st.get_statistics()) == (0, 133, 133)


def test_a_buffer_that_changes_counts_in_the_task_that_changes_it():
    st.enable_statistics()
    buffer = tenure.DeviceBuffer(size=256)

    async def grow(size):
        with st.statistics():
            await asyncio.sleep(0)
            buffer.resize(size)
            await asyncio.sleep(0)
            return st.get_statistics().total_bytes

    async def idle():
        with st.statistics():
            for _ in range(3):
                await asyncio.sleep(0)
            return st.get_statistics().total_bytes

    async def main():
        return await asyncio.gather(grow(4096), idle())

    assert asyncio.run(main()) == [4096, 0]


def test_tasks_that_take_turns_on_one_thread():
    st.enable_statistics()

    async def measure(size, turns):
        with st.statistics():
            kept = []
            for _ in range(turns):
                kept.append(tenure.DeviceBuffer(size=size))
                await asyncio.sleep(0)
            kept.pop()
            await asyncio.sleep(0)
            return bytes_of(st.get_statistics())

    async def main():
        tenure.DeviceBuffer(size=7)
        figures = await asyncio.gather(measure(10, 3), measure(100, 5), measure(1000, 1))
        tenure.DeviceBuffer(size=7)
        return figures

    assert asyncio.run(main()) == [(20, 30, 30), (400, 500, 500), (0, 1000, 1000)]


def test_tasks_that_are_started_inside_are_inside():
    st.enable_statistics()

    async def work(size):
        await asyncio.sleep(0)
        tenure.DeviceBuffer(size=size)

    async def main():
        with st.statistics():
            await asyncio.gather(work(1), work(2), asyncio.to_thread(tenure.DeviceBuffer, size=4))
            return st.get_statistics().total_bytes

    assert asyncio.run(main()) == 7


def test_a_thread_is_inside_only_when_the_context_is_taken_along():
    st.enable_statistics()
    with st.statistics():
        run_threads(lambda: tenure.DeviceBuffer(size=1))
        assert st.get_statistics().total_bytes == 0
        context = contextvars.copy_context()
        run_threads(lambda: context.run(tenure.DeviceBuffer, size=2))
        assert st.get_statistics().total_bytes == 2


def test_a_generator_that_is_closed_elsewhere():
    st.enable_statistics()

    def generator():
        with st.statistics():
            tenure.DeviceBuffer(size=1)
            yield
            yield

    running = generator()
    contextvars.copy_context().run(next, running)
    with st.statistics():
        running.close()
        tenure.DeviceBuffer(size=2)
        assert st.get_statistics().total_bytes == 2


def test_errors_pass_through_and_a_change_is_told():
    with pytest.raises(KeyError), st.statistics():
        tenure.mr.set_current_device_resource(tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource()))
        raise KeyError("the user's own")
    st.enable_statistics()
    with pytest.raises(ValueError, match="was changed"), st.statistics():
        tenure.mr.set_current_device_resource(tenure.mr.CudaMemoryResource())
    assert st.get_statistics() is None


def test_two_devices_keep_their_own():
    if tenure.device_count() < 2:
        pytest.skip("needs two devices")
    st.enable_statistics()
    first = tenure.mr.get_current_device_resource()
    with st.statistics():
        tenure.set_current_device(1)
        try:
            assert st.get_statistics() is None
            st.enable_statistics()
            with st.statistics():
                ptr = first.allocate(5, tenure.Stream(device=0))
                assert st.get_statistics().total_bytes == 0
        finally:
            tenure.mr.reset_per_device_resource(1)
            tenure.set_current_device(0)
        assert st.get_statistics().total_bytes == 5
        first.deallocate(ptr, 5)


def test_profiler_decorates_and_nests():
    st.enable_statistics()
    records = st.ProfilerRecords()
    assert "No data" in records.report()

    @st.profiler(records=records)
    def outer():
        kept = tenure.DeviceBuffer(size=10)
        with st.profiler(records=records, name="inner"):
            tenure.DeviceBuffer(size=100)
        return kept

    outer()
    outer()
    (name,) = [name for name in records.records if name != "inner"]
    assert name.startswith(__file__) and name.endswith("outer)"), name
    record = st.ProfilerRecords.MemoryRecord
    assert records.records == {name: record(2, 220, 110), "inner": record(2, 200, 100)}
    report = records.report(ordered_by="memory_total")
    lines = report.splitlines()
    assert lines[0] == "Memory Profiling" and lines[-1].endswith("inner") and lines[-1].split()[:3] == ["2", "100", "200"]
    assert repr(records).startswith("ProfilerRecords({") and str(records) == records.report()
    with pytest.raises(ValueError, match="ordered by one of"):
        records.report(ordered_by="size")
    with pytest.raises(ValueError, match="needs a name"), st.profiler():
        pass


def test_profiler_of_four_threads_and_of_tasks():
    st.enable_statistics()
    records = st.ProfilerRecords()
    gate = threading.Barrier(4)

    @st.profiler(records=records, name="work")
    def work(size):
        gate.wait(20)
        block = tenure.DeviceBuffer(size=size)
        gate.wait(20)
        return block.size

    run_threads(*[lambda i=i: work(KiB << i) for i in range(4)])
    assert records.records["work"] == st.ProfilerRecords.MemoryRecord(4, 15 * KiB, 8 * KiB)

    shared = st.profiler(records=records, name="shared")

    @st.profiler(records=records, name="task")
    async def task(size):
        with shared:
            await asyncio.sleep(0)
            tenure.DeviceBuffer(size=size)
            await asyncio.sleep(0)

    async def main():
        await asyncio.gather(task(1), task(2), task(4))

    asyncio.run(main())
    expected = st.ProfilerRecords.MemoryRecord(3, 7, 4)
    assert records.records["task"] == expected and records.records["shared"] == expected


def test_profiler_is_nothing_where_statistics_are_off():
    records = st.ProfilerRecords()

    @st.profiler(records=records)
    def work():
        return tenure.DeviceBuffer(size=1).size

    assert work() == 1 and records.records == {}


def test_a_recursive_function_counts_each_call():
    st.enable_statistics()
    records = st.ProfilerRecords()

    @st.profiler(records=records, name="f")
    def f(n):
        block = tenure.DeviceBuffer(size=10)
        return block.size + (f(n - 1) if n else 0)

    assert f(2) == 30
    assert records.records["f"] == st.ProfilerRecords.MemoryRecord(3, 60, 30)


def test_the_adaptors_own_counters_are_everybodys():
    st.enable_statistics()
    mr = tenure.mr.get_current_device_resource()
    with st.statistics():
        mr.push_counters()
        run_threads(lambda: tenure.DeviceBuffer(size=3))
        assert mr.pop_counters().total_bytes == 3
        assert st.get_statistics().total_bytes == 0
    assert mr.allocation_counts.total_bytes == 3


def test_figures_are_made_and_matched_like_a_dataclass():
    match st.Statistics(1, 2, 3, 4, 5, 6):
        case st.Statistics(now, count, peak_count=peak):
            assert (now, count, peak) == (1, 2, 4)
        case _:
            raise AssertionError
    with pytest.raises(TypeError):
        st.Statistics(1)
