"""Rule 7: callbacks are owned, may raise, may allocate; and what the collector may take."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
import weakref

import pytest
import tenure
from tenure import DeviceBuffer

mr = tenure.mr


class Special(Exception):
    pass


@pytest.fixture
def unraisable(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda u: seen.append((u.exc_type, str(u.exc_value))))
    return seen


def test_arguments(recorder, stream):
    buffer = DeviceBuffer(size=100, stream=stream, mr=recorder.mr)
    assert recorder.allocated == [(buffer.ptr, 100, stream)]
    ptr = buffer.ptr
    del buffer
    assert recorder.freed == [(ptr, 100, stream)]
    ptr = recorder.mr.allocate(50)
    recorder.mr.deallocate(ptr, 50)
    assert recorder.freed[1] == (ptr, 50, tenure.DEFAULT_STREAM)
    assert recorder.mr.allocate_func.__self__ is recorder


@pytest.mark.parametrize("layers", [0, 1, 3])
@pytest.mark.parametrize("kind", [Special, KeyboardInterrupt, SystemExit, MemoryError, ValueError, tenure.OutOfMemoryError])
def test_an_exception_comes_back_as_it_was_raised(kind, layers, recorder):
    error = kind("from the callback")
    resource = recorder.mr
    for _ in range(layers):
        resource = mr.StatisticsResourceAdaptor(mr.LimitingResourceAdaptor(resource, 1 << 30))
    recorder.raise_next = error
    with pytest.raises(kind) as caught:
        DeviceBuffer(size=10, mr=resource)
    assert caught.value is error
    assert any(frame.name == "_allocate" for frame in traceback.extract_tb(error.__traceback__))
    assert resource.info().live_count == 0
    # And the resource works on.
    assert DeviceBuffer(size=10, mr=resource).size == 10


def test_an_exception_is_not_kept_alive(recorder):
    class Local(Exception):
        pass

    recorder.raise_next = Local()
    gone = weakref.ref(recorder.raise_next)
    with pytest.raises(Local):
        recorder.mr.allocate(1)
    gc.collect()
    # The next failing call on this thread lets go of what the engine kept.
    with pytest.raises(tenure.OwnershipError):
        recorder.mr.deallocate(1, 1)
    gc.collect()
    assert gone() is None


def test_an_exception_of_a_free_is_reported_and_the_free_stands(cuda, unraisable):
    calls = []

    def free(ptr, nbytes, stream):
        calls.append(ptr)
        cuda.deallocate(ptr, nbytes, stream)
        raise Special("in free")

    resource = mr.CallbackMemoryResource(cuda.allocate, free)
    buffer = DeviceBuffer(size=10, mr=resource)
    del buffer
    assert unraisable == [(Special, "in free")]
    assert resource.info().live_count == 0
    buffer = DeviceBuffer(size=10, mr=resource)
    buffer.close()
    assert len(unraisable) == len(calls) == 2
    ptr = resource.allocate(10)
    resource.deallocate(ptr, 10)
    assert len(unraisable) == 3


def test_a_free_while_an_exception_is_on_its_way(recorder):
    def work():
        buffer = DeviceBuffer(size=10, mr=recorder.mr)  # noqa: F841
        raise Special("kept")

    with pytest.raises(Special, match="kept") as caught:
        work()
    caught.value.__traceback__ = None
    del caught
    gc.collect()
    assert len(recorder.freed) == 1


@pytest.mark.parametrize("answer", [0, None, "1", 1.5, -1, 2**64, 2**70, b"", object()])
def test_a_wrong_answer(answer, cuda):
    resource = mr.CallbackMemoryResource(lambda n, s: answer, cuda.deallocate)
    with pytest.raises((TypeError, ValueError)):
        resource.allocate(10)
    assert resource.info().live_count == 0


def test_a_misaligned_or_doubled_answer(cuda):
    block = cuda.allocate(4096)
    freed = []
    crooked = mr.CallbackMemoryResource(lambda n, s: block + 1, lambda *a: freed.append(a))
    with pytest.raises(Exception, match="aligned"):
        crooked.allocate(16)
    twice = mr.CallbackMemoryResource(lambda n, s: block, lambda *a: freed.append(a))
    assert twice.allocate(16) == block
    with pytest.raises(Exception, match=r"in use|overlap"):
        twice.allocate(16)
    twice.deallocate(block, 16)
    cuda.deallocate(block, 4096)


@pytest.mark.parametrize("wrong", [None, 1, "f", object()])
def test_what_is_not_callable(wrong, cuda):
    with pytest.raises(TypeError, match="allocate_func must be callable"):
        mr.CallbackMemoryResource(wrong, cuda.deallocate)
    with pytest.raises(TypeError, match="deallocate_func must be callable"):
        mr.CallbackMemoryResource(cuda.allocate, wrong)


def test_callables_live_as_long_as_the_engine_needs_them(cuda):
    class Arena:
        def allocate(self, nbytes, stream):
            return cuda.allocate(nbytes, stream)

        def deallocate(self, ptr, nbytes, stream):
            cuda.deallocate(ptr, nbytes, stream)

    arena = Arena()
    gone = weakref.ref(arena)
    resource = mr.CallbackMemoryResource(arena.allocate, arena.deallocate)
    buffer = DeviceBuffer(size=10, mr=resource)
    top = mr.StatisticsResourceAdaptor(resource)
    del arena, resource
    gc.collect()
    assert gone() is not None
    del buffer
    gc.collect()
    assert gone() is not None, "the adaptor still needs it"
    assert DeviceBuffer(size=10, mr=top).size == 10
    del top
    gc.collect()
    assert gone() is None


def test_callbacks_may_allocate_and_replace_the_table(cuda, pool):
    def allocate(nbytes, stream):
        scratch = DeviceBuffer(size=64, mr=pool)
        mr.set_current_device_resource(pool)
        del scratch
        mr.reset_current_device_resource()
        return cuda.allocate(nbytes, stream)

    resource = mr.CallbackMemoryResource(allocate, cuda.deallocate)
    mr.set_current_device_resource(resource)
    assert DeviceBuffer(size=10).mr is resource


def test_endless_recursion_is_an_error(cuda):
    resource = mr.CallbackMemoryResource(lambda n, s: DeviceBuffer(size=n).ptr, cuda.deallocate)
    mr.set_current_device_resource(resource)
    with pytest.raises(Exception, match="deep") as caught:
        DeviceBuffer(size=10)
    assert not isinstance(caught.value, (MemoryError, RecursionError))


def test_a_callback_that_uses_the_buffer_it_allocates_for(cuda):
    box = []
    seen = []

    def allocate(nbytes, stream):
        if box:
            assert box[0].size == 10
            for use in (lambda b: b.resize(5), lambda b: b.close(), lambda b: b.copy(mr=cuda), lambda b: b.set_stream(stream)):
                with pytest.raises(BufferError):
                    use(box[0])
            seen.append(True)
        return cuda.allocate(nbytes, stream)

    resource = mr.CallbackMemoryResource(allocate, cuda.deallocate)
    box.append(DeviceBuffer(size=10, mr=resource))
    box[0].resize(1 << 20)
    assert seen == [True]
    # Box, buffer, resource and function are a cycle through the engine, which is not collected while the buffer lives.
    box.clear()


def test_many_threads(recorder):
    failures = []

    def work():
        try:
            for _ in range(100):
                DeviceBuffer(size=100, mr=recorder.mr)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(recorder.allocated) == len(recorder.freed) == 400


def test_a_pool_over_callbacks(recorder):
    pool = mr.PoolMemoryResource(recorder.mr, maximum_pool_size="8MiB")
    buffers = [DeviceBuffer(size=1000, mr=pool) for _ in range(10)]
    assert 1 <= len(recorder.allocated) < 10
    recorder.raise_next = Special("no more")
    with pytest.raises(Special):
        pool.allocate("4MiB")
    del buffers, pool
    gc.collect()
    assert len(recorder.freed) == len(recorder.allocated)


def test_a_resource_that_closes_calls_back_without_the_lock(recorder):
    """The last reference goes in a destructor while other Python threads run."""
    pool = mr.PoolMemoryResource(recorder.mr)
    DeviceBuffer(size=10, mr=pool)
    ticks = []
    ticker = threading.Thread(target=lambda: [ticks.append(1) for _ in range(1000)])
    ticker.start()
    del pool
    ticker.join()
    gc.collect()
    assert len(recorder.freed) == len(recorder.allocated)


class Cycle:
    def __init__(self, cuda):
        self.cuda = cuda
        self.mr = mr.CallbackMemoryResource(self.allocate, self.deallocate)

    def allocate(self, nbytes, stream):
        return self.cuda.allocate(nbytes, stream)

    def deallocate(self, ptr, nbytes, stream):
        self.cuda.deallocate(ptr, nbytes, stream)


def test_a_cycle_through_callables_is_collected(cuda):
    cycle = Cycle(cuda)
    DeviceBuffer(size=10, mr=cycle.mr)
    if tenure._tenure._references(cycle.mr) is None:
        pytest.skip("this engine does not tell its counts, so cycles through callables stay")
    gone = weakref.ref(cycle)
    del cycle
    gc.collect()
    assert gone() is None


def test_callables_in_use_are_never_taken_apart(cuda):
    cycle = Cycle(cuda)
    buffer = DeviceBuffer(size=10, mr=cycle.mr)
    gone = weakref.ref(cycle)
    del cycle
    gc.collect()
    assert gone() is not None
    ptr = buffer.mr.allocate(20)
    buffer.mr.deallocate(ptr, 20)
    top = mr.StatisticsResourceAdaptor(gone().mr)
    buffer.close()
    del buffer
    gc.collect()
    assert DeviceBuffer(size=5, mr=top).size == 5
