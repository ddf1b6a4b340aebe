"""Many blocks and buffers in one call: all or none, each free checked, and what a wait is worth."""

from __future__ import annotations

import gc
import threading

import pytest
import tenure
from tenure import DeviceBuffer, Stream

mr = tenure.mr

SIZES = [4096, 0, 100, 3 << 20, 100]


def test_blocks_of_a_batch_are_like_any_other(pool, stream):
    ptrs = pool.allocate_many(SIZES, stream)
    assert [bool(ptr) for ptr in ptrs] == [True, False, True, True, True]
    assert len(set(ptrs)) == 5
    assert pool.info().live_count == 4
    pool.deallocate(ptrs[0], 4096, stream)
    pool.deallocate_many(ptrs[1:], SIZES[1:], stream)
    assert pool.info().live_count == 0
    assert pool.allocate_many([]) == []
    pool.deallocate_many([], [])


def test_any_iterable_and_any_size_will_do(pool):
    ptrs = pool.allocate_many(size for size in ("1KiB", 5, True + 1))
    pool.deallocate_many(tuple(ptrs), iter([1024, 5, 2]))
    assert pool.info().live_bytes == 0


@pytest.mark.parametrize(
    ("sizes", "error", "text"),
    [
        (5, TypeError, "sizes must be a list"),
        (None, TypeError, "sizes must be a list"),
        ("1GiB", TypeError, "sizes must be a list"),
        (b"12", TypeError, "sizes must be a list"),
        ([1, -2], ValueError, r"sizes\[1\] is -2"),
        ([1, 2.5], TypeError, r"sizes\[1\]"),
        ([True], TypeError, r"sizes\[0\]"),
        ([2**64], ValueError, r"sizes\[0\]"),
        ([1, 2**63], tenure.OutOfMemoryError, None),
        ([2**55] * 600, tenure.OutOfMemoryError, None),
    ],
)
def test_sizes_that_make_no_sense(sizes, error, text, pool):
    for call in (pool.allocate_many, lambda sizes: DeviceBuffer.many(sizes, mr=pool)):
        with pytest.raises(error, match=text):
            call(sizes)
    assert pool.info().live_count == 0


def test_arguments_that_do_not_go_together(pool):
    ptrs = pool.allocate_many([100, 200])
    with pytest.raises(ValueError, match="2 addresses in ptrs and 1 sizes"):
        pool.deallocate_many(ptrs, [100])
    with pytest.raises(TypeError, match="ptrs must be a list"):
        pool.deallocate_many(ptrs[0], [100])
    with pytest.raises(TypeError, match=r"ptrs\[1\]"):
        pool.deallocate_many([ptrs[0], None], [100, 200])
    with pytest.raises(ValueError, match="alignment"):
        pool.deallocate_many(ptrs, [100, 200], alignment=3)
    with pytest.raises(ValueError, match="alignment"):
        pool.allocate_many([100, 200], alignment=-1)
    assert pool.info().live_count == 2
    pool.deallocate_many(ptrs, [100, 200])


def test_an_iterator_that_fails_leaves_nothing(pool):
    def sizes():
        yield 100
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        pool.allocate_many(sizes())
    with pytest.raises(RuntimeError, match="no more"):
        DeviceBuffer.many(sizes(), mr=pool)
    assert pool.info().live_count == 0


def test_a_wrong_block_is_named_and_every_other_is_freed(pool, cuda):
    ptrs = pool.allocate_many(SIZES)
    foreign = cuda.allocate(100)
    with pytest.raises(tenure.OwnershipError, match="block 2 of 5") as caught:
        pool.deallocate_many([*ptrs[:2], foreign, *ptrs[3:]], SIZES)
    assert caught.value.ptr == foreign
    assert pool.info().live_count == 1
    with pytest.raises(tenure.OwnershipError, match="block 0 of 5") as caught:
        pool.deallocate_many(ptrs, SIZES)
    assert caught.value.kind == "double-free" or "freed already" in str(caught.value)
    assert pool.info().live_count == 0
    cuda.deallocate(foreign, 100)


def test_out_of_memory_in_the_middle_gives_everything_back(cuda):
    limit = mr.LimitingResourceAdaptor(mr.PoolMemoryResource(cuda), 1 << 20)
    for call in (limit.allocate_many, lambda sizes: DeviceBuffer.many(sizes, mr=limit)):
        with pytest.raises(tenure.OutOfMemoryError):
            call([600 << 10, 5, 600 << 10])
        assert (limit.get_allocated_bytes(), limit.info().live_count) == (0, 0)


def test_a_resource_of_python_functions_is_asked_for_each(recorder):
    ptrs = recorder.mr.allocate_many(SIZES)
    recorder.mr.deallocate_many(ptrs, SIZES)
    buffers = DeviceBuffer.many(SIZES, mr=recorder.mr)
    assert [buffer.size for buffer in buffers] == SIZES


def test_buffers_live_and_go_by_themselves(pool, stream):
    buffers = DeviceBuffer.many(SIZES, stream, pool)
    assert [buffer.size for buffer in buffers] == SIZES
    assert all(buffer.mr is pool and buffer.stream == stream for buffer in buffers)
    buffers[2].copy_from_host(b"x" * 100)
    assert buffers[2].tobytes() == b"x" * 100
    del buffers[0]
    gc.collect()
    assert pool.info().live_count == 3
    buffers.clear()
    gc.collect()
    assert pool.info().live_count == 0


def test_the_current_resource_makes_them_where_none_is_named(pool):
    with mr.using(pool):
        buffers = DeviceBuffer.many([1, 2])
    assert [buffer.mr for buffer in buffers] == [pool, pool]


def test_a_subclass_that_fails_leaves_nothing(pool):
    class Fails(DeviceBuffer):
        made = 0

        def __new__(cls, *args, **kwargs):
            cls.made += 1
            if cls.made == 2:
                raise RuntimeError("the second")
            return super().__new__(cls)

    with pytest.raises(RuntimeError, match="the second"):
        Fails.many([100, 200, 300], mr=pool)
    gc.collect()
    assert pool.info().live_count == 0

    class Fine(DeviceBuffer):
        pass

    assert [type(buffer) for buffer in Fine.many([1, 0], mr=pool)] == [Fine, Fine]


def test_threads_take_batches_of_one_pool(pool):
    failed = []

    def work():
        try:
            stream = Stream(non_blocking=True)
            for _ in range(30):
                ptrs = pool.allocate_many([500] * 20, stream)
                pool.deallocate_many(ptrs, [500] * 20, stream)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert pool.info().live_count == 0


@pytest.mark.needs_sim
@pytest.mark.parametrize("by_other_means", [False, True])
def test_what_was_freed_before_a_wait_serves_other_streams(by_other_means, cuda):
    pool = mr.PoolMemoryResource(cuda, maximum_pool_size="12MiB")
    a, b = Stream(non_blocking=True), Stream(non_blocking=True)
    DeviceBuffer(size=100, stream=b, mr=pool).close()
    buffer = DeviceBuffer(size=8 << 20, stream=a, mr=pool)
    ptr = buffer.ptr
    tenure.sim.busy(a, 20)
    buffer.close()
    unproven = pool.info().unproven_bytes
    a.note_sync()
    assert pool.info().unproven_bytes == unproven, "nobody has waited"
    if by_other_means:
        while not a.query():
            pass
        a.note_sync()
    else:
        a.synchronize()
    assert pool.info().unproven_bytes <= unproven - (8 << 20)
    calls = tenure.sim.driver_calls("cuStreamWaitEvent")
    assert DeviceBuffer(size=8 << 20, stream=b, mr=pool).ptr == ptr
    assert tenure.sim.driver_calls("cuStreamWaitEvent") == calls


@pytest.mark.needs_sim
@pytest.mark.parametrize("by_other_means", [False, True])
def test_what_was_freed_on_a_stream_is_at_hand_for_one_that_waits_for_it(by_other_means, cuda):
    pool = mr.PoolMemoryResource(cuda)
    a, b = Stream(non_blocking=True), Stream(non_blocking=True)
    DeviceBuffer(size=100, stream=b, mr=pool).close()
    buffer = DeviceBuffer(size=8 << 20, stream=a, mr=pool)
    ptr = buffer.ptr
    tenure.sim.busy(a, 20)
    buffer.close()
    if by_other_means:
        b.note_wait(a)
    else:
        b.wait_stream(a)
    calls = tenure.sim.driver_calls("cuStreamWaitEvent")
    assert DeviceBuffer(size=8 << 20, stream=b, mr=pool).ptr == ptr
    assert tenure.sim.driver_calls("cuStreamWaitEvent") == calls
