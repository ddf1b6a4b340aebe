"""Rules 4 and 5: the one table, `using`, and that a call resolves its resource once."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import tenure
from tenure import DeviceBuffer

mr = tenure.mr


@pytest.fixture
def pools(cuda):
    return [mr.PoolMemoryResource(cuda) for _ in range(3)]


def current():
    """The current resource, as a call that allocates sees it."""
    seen = DeviceBuffer(size=1).mr
    assert seen is mr.get_current_device_resource()
    return seen


def test_the_first_entry_is_the_plain_resource(cuda):
    assert current() is cuda


def test_set_returns_the_previous(cuda, pools):
    assert mr.set_current_device_resource(pools[0]) is cuda
    assert mr.set_current_device_resource(pools[1]) is pools[0]
    assert mr.set_per_device_resource(0, pools[2]) is pools[1]
    assert current() is pools[2]
    assert mr.reset_current_device_resource() is pools[2]
    assert mr.reset_per_device_resource(0) is cuda
    assert current() is cuda


def test_replacing_an_entry_harms_no_memory(recorder):
    mr.set_current_device_resource(recorder.mr)
    buffer = DeviceBuffer.to_device(b"kept")
    mr.reset_current_device_resource()
    gc.collect()
    assert buffer.tobytes() == b"kept"
    buffer.close()
    assert len(recorder.freed) == 1


def test_each_device_has_an_entry(pools):
    if tenure.device_count() < 2:
        pytest.skip("needs two devices")
    mr.set_per_device_resource(1, mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 1 << 20))
    try:
        assert current() is mr.CudaMemoryResource()
        tenure.set_current_device(1)
        assert mr.get_current_device_resource().kind == "limiting"
        tenure.set_current_device(0)
        assert mr.get_per_device_resource(1).kind == "limiting"
    finally:
        tenure.set_current_device(0)
        mr.reset_per_device_resource(1)


@pytest.mark.parametrize("device", [-1, 99, 2**31 - 1])
def test_an_unknown_device(device, pools):
    for use in (mr.get_per_device_resource, lambda d: mr.set_per_device_resource(d, pools[0]), mr.reset_per_device_resource):
        with pytest.raises((ValueError, tenure.CudaError)):
            use(device)


def test_using(cuda, pools):
    with mr.using(pools[0]) as bound:
        assert bound is pools[0]
        assert current() is pools[0]
        with mr.using(pools[1]):
            assert current() is pools[1]
        assert current() is pools[0]
    assert current() is cuda


def test_using_is_undone_by_an_exception(cuda, pools):
    with pytest.raises(ZeroDivisionError), mr.using(pools[0]):
        raise ZeroDivisionError
    assert current() is cuda


def test_set_inside_a_scope_changes_the_scope(cuda, pools):
    with mr.using(pools[0]):
        assert mr.set_current_device_resource(pools[1]) is pools[0]
        assert current() is pools[1]
        with mr.using(pools[2]):
            assert current() is pools[2]
        assert current() is pools[1]
        mr.reset_current_device_resource()
        assert current() is cuda
    assert current() is cuda


def test_one_using_object_can_nest(cuda, pools):
    scope = mr.using(pools[0])
    with scope:
        with scope:
            assert current() is pools[0]
        assert current() is pools[0]
    assert current() is cuda
    with pytest.raises(RuntimeError, match="__enter__"):
        scope.__exit__(None, None, None)


def test_scopes_end_in_any_order(cuda, pools):
    one, two = mr.using(pools[0]), mr.using(pools[1])
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    assert current() is pools[1]
    two.__exit__(None, None, None)
    assert current() is cuda


def test_generators(cuda, pools):
    def under(pool):
        with mr.using(pool):
            while True:
                yield current()

    one = under(pools[0])
    next(one)
    two = under(pools[1])
    next(two)
    one.close()
    assert current() is pools[1]
    two.close()
    assert current() is cuda


def test_a_scope_that_ends_in_another_context(cuda, pools):
    scope = mr.using(pools[0])
    context = contextvars.copy_context()
    context.run(scope.__enter__)
    assert current() is cuda
    scope.__exit__(None, None, None)
    assert context.run(current) is cuda


def test_a_plain_thread_does_not_take_the_scope(cuda, pools):
    seen = []
    with mr.using(pools[0]):
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
        with ThreadPoolExecutor(1) as executor:
            context = contextvars.copy_context()
            seen.append(executor.submit(context.run, current).result())
            # The worker thread itself is as it was.
            seen.append(executor.submit(current).result())
    assert seen == [cuda, pools[0], cuda]


def test_tasks_have_scopes_of_their_own(cuda, pools):
    async def work(pool, log):
        with mr.using(pool):
            for _ in range(5):
                log.append(current() is pool)
                await asyncio.sleep(0)
                log.append(current() is pool)

    async def bystander(log):
        for _ in range(10):
            log.append(current() is cuda)
            await asyncio.sleep(0)

    async def main():
        log = []
        await asyncio.gather(*(work(pool, log) for pool in pools), bystander(log))
        return log

    log = asyncio.run(main())
    assert len(log) == 40 and all(log)
    assert current() is cuda


def test_a_task_takes_the_scope_along(cuda, pools):
    async def late():
        await asyncio.sleep(0.01)
        return current()

    async def main():
        with mr.using(pools[0]):
            task = asyncio.create_task(late())
            in_thread = await asyncio.to_thread(current)
        assert current() is cuda
        return in_thread, await task

    assert asyncio.run(main()) == (pools[0], pools[0])


def test_set_in_a_thread_that_shares_the_scope(cuda, pools):
    async def main():
        with mr.using(pools[0]):
            await asyncio.to_thread(mr.set_current_device_resource, pools[1])
            return current()

    assert asyncio.run(main()) is pools[1]
    assert current() is cuda


def test_using_keeps_the_resource(pools):
    pool = pools.pop()
    gone = weakref.ref(pool)
    with mr.using(pool):
        del pool
        gc.collect()
        assert gone() is not None and current() is gone()


def test_callbacks_that_allocate_see_the_scope(cuda, pools):
    seen = []

    def allocate(nbytes, stream):
        inner = mr.get_current_device_resource()
        seen.append(inner)
        return pools[1].allocate(nbytes, stream)

    outer = mr.CallbackMemoryResource(allocate, pools[1].deallocate)
    with mr.using(pools[0]):
        DeviceBuffer(size=10, mr=outer)
    assert seen == [pools[0]]


@pytest.mark.parametrize("wrong", [None, 1, "cuda", object(), object, lambda: 0])
def test_what_is_no_resource(wrong):
    for use in (mr.set_current_device_resource, mr.using, lambda w: mr.set_per_device_resource(0, w), mr.PoolMemoryResource):
        with pytest.raises(TypeError):
            use(wrong)
    if wrong is not None:
        with pytest.raises(TypeError, match=r"resource of tenure\.mr"):
            DeviceBuffer(size=1, mr=wrong)


def test_explicit_resources_are_the_only_ones_asked(forbidden_current, cuda, pools):
    """Each public call that can allocate, with an explicit resource, while the current one raises."""
    pool = pools[0]
    source = DeviceBuffer.to_device(b"bytes", mr=pool)
    buffer = DeviceBuffer(size=10, mr=pool)
    buffer.resize(1000)
    buffer.reserve(2000)
    buffer.shrink_to_fit()
    buffer.copy(mr=pool)
    DeviceBuffer(ptr=source.ptr, size=source.size, mr=pool)
    source.__dlpack__(copy=True)
    source.copy()
    source.copy_to_host(bytearray(5))
    source.tobytes()
    pool.deallocate(pool.allocate(10), 10)
    for make in (
        lambda: mr.PoolMemoryResource(cuda),
        lambda: mr.LimitingResourceAdaptor(pool, 1000),
        lambda: mr.StatisticsResourceAdaptor(pool),
    ):
        DeviceBuffer(size=10, mr=make())
    for asks in (
        lambda: DeviceBuffer(size=10),
        lambda: DeviceBuffer.to_device(b"bytes"),
    ):
        with pytest.raises(forbidden_current):
            asks()
    # Under a scope nobody asks the table's entry either.
    with mr.using(pool):
        assert DeviceBuffer(size=10).mr is pool


def test_set_and_get_race(cuda):
    """Threads that allocate through the table while others replace its entry and drop the old one."""
    stop = threading.Event()
    failures = []

    def allocate():
        try:
            while not stop.is_set():
                buffer = DeviceBuffer(size=512)
                buffer.mr.info()
                del buffer
        except BaseException as error:
            failures.append(error)

    def replace():
        try:
            for _ in range(200):
                mr.set_current_device_resource(mr.StatisticsResourceAdaptor(cuda))
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=allocate) for _ in range(3)]
    writers = [threading.Thread(target=replace) for _ in range(2)]
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert failures == []
    mr.reset_current_device_resource()
    assert cuda.info().live_count == 0
