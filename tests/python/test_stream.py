"""`Stream`, and rule 6: a buffer knows its stream and keeps it."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref

import pytest
import tenure
from tenure import DEFAULT_STREAM, LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM, DeviceBuffer, Stream


class Foreign:
    """Somebody else's stream, over one of ours."""

    def __init__(self):
        self.inner = Stream()

    def __cuda_stream__(self):
        return (0, self.inner.handle)


def named_like(module: str, attribute: str, wrap=int):
    stream = Stream()
    cls = type("Stream", (), {"__module__": module})
    foreign = cls()
    setattr(foreign, attribute, wrap(stream.handle))
    foreign.inner = stream
    return foreign


def test_defaults():
    assert [s.handle for s in (DEFAULT_STREAM, LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM)] == [0, 1, 2]
    assert all(s.is_default() for s in (DEFAULT_STREAM, LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM))
    assert DEFAULT_STREAM.device == 0
    DEFAULT_STREAM.synchronize()
    assert DEFAULT_STREAM.query()
    assert DEFAULT_STREAM != LEGACY_DEFAULT_STREAM


def test_a_new_one():
    stream = Stream()
    assert stream.handle > 2 and not stream.is_default()
    assert stream.__cuda_stream__() == (0, stream.handle)
    assert stream == Stream(stream) and hash(stream) == hash(Stream(stream))
    assert stream != Stream() and stream != 1
    assert "0x" in repr(stream)
    assert Stream(non_blocking=True).query()


@pytest.mark.parametrize(
    "make",
    [
        Foreign,
        lambda: named_like("cupy.cuda.stream", "ptr"),
        lambda: named_like("numba.cuda.cudadrv.driver", "handle", ctypes.c_void_p),
        lambda: named_like("numba.cuda.cudadrv.driver", "handle"),
        lambda: named_like("torch.cuda.streams", "cuda_stream"),
    ],
)
def test_foreign_streams_are_taken_with_their_owner(make, pool):
    foreign = make()
    handle = foreign.inner.handle
    stream = Stream(foreign)
    assert stream.handle == handle
    buffer = DeviceBuffer(size=10, stream=foreign, mr=pool)
    assert buffer.stream.handle == handle
    gone = weakref.ref(foreign)
    del foreign, stream
    gc.collect()
    assert gone() is not None, "the buffer's stream keeps the owner"
    del buffer
    pool.trim()
    gc.collect()
    assert gone() is None


def test_a_bare_address_needs_an_owner_or_is_for_ever():
    stream = Stream()
    owned = Stream.from_handle(stream.handle, owner=stream)
    assert owned.handle == stream.handle and owned.device == 0
    assert Stream.from_handle(2) == PER_THREAD_DEFAULT_STREAM
    assert Stream.from_handle(ctypes.c_void_p(0)).handle == 0


@pytest.mark.parametrize("wrong", [1, 0, "stream", 1.5, object(), b"", []])
def test_what_is_no_stream(wrong, pool):
    for use in (
        Stream,
        lambda w: DeviceBuffer(size=1, stream=w, mr=pool),
        lambda w: pool.allocate(1, w),
        lambda w: DeviceBuffer(size=1, mr=pool).set_stream(w),
        lambda w: DeviceBuffer(size=1, mr=pool).record_stream(w),
    ):
        with pytest.raises(TypeError, match="stream"):
            use(wrong)


@pytest.mark.parametrize("answer", [(1, 7), 7, (0,), ("0", "x"), None])
def test_a_wrong_protocol(answer):
    class Wrong:
        def __cuda_stream__(self):
            return answer

    with pytest.raises((TypeError, ValueError, NotImplementedError)):
        Stream(Wrong())


def test_a_failing_protocol():
    class Failing:
        def __cuda_stream__(self):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Stream(Failing())


def test_wrong_arguments():
    stream = Stream()
    with pytest.raises(ValueError):
        Stream(stream, device=0)
    with pytest.raises((ValueError, tenure.CudaError)):
        Stream(device=99)
    with pytest.raises(ValueError):
        Stream(device=-1)
    with pytest.raises((ValueError, TypeError)):
        Stream.from_handle(-5)
    with pytest.raises(TypeError):
        Stream.from_handle("x")
    with pytest.raises(TypeError):
        type("Sub", (Stream,), {})
    import pickle

    with pytest.raises(TypeError):
        pickle.dumps(stream)


def test_order(pool):
    one, two = Stream(), Stream()
    tenure.sim.busy(one, 200)
    assert not one.query()
    two.wait_stream(one)
    assert not two.query()
    two.synchronize()
    assert one.query() and two.query()
    tenure.synchronize()


def test_a_stream_lives_as_long_as_its_buffers(pool):
    stream = Stream()
    buffer = DeviceBuffer.to_device(b"abc", stream, pool)
    handle = stream.handle
    del stream
    gc.collect()
    assert buffer.stream.handle == handle
    buffer.stream.synchronize()
    assert buffer.tobytes() == b"abc"


def test_a_stream_of_another_device(pool):
    if tenure.device_count() < 2:
        pytest.skip("needs two devices")
    other = Stream(device=1)
    assert other.device == 1
    with pytest.raises(ValueError, match="device"):
        DeviceBuffer(size=10, stream=other, mr=pool)
    with pytest.raises(ValueError, match="device"):
        pool.allocate(10, other)
    buffer = DeviceBuffer(size=10, mr=pool)
    assert pool.info().live_count == 1
    # The plain resource follows the stream.
    assert DeviceBuffer(size=10, stream=other, mr=tenure.mr.CudaMemoryResource()).device == 1
    buffer.close()


@pytest.mark.needs_sim
def test_no_reuse_before_the_recorded_stream_is_done(pool):
    """Whoever gets the memory gets it behind the work that was enqueued on the recorded stream."""
    home, user = Stream(), Stream()
    buffer = DeviceBuffer(size=1 << 20, stream=home, mr=pool)
    ptr = buffer.ptr
    tenure.sim.busy(user, 100)
    buffer.record_stream(user)
    del buffer
    other = DeviceBuffer(size=1 << 20, stream=home, mr=pool)
    home.synchronize()
    assert other.ptr != ptr or user.query()


def test_frees_from_a_thread_with_another_device_current(pool):
    if tenure.device_count() < 2:
        pytest.skip("needs two devices")
    box = [DeviceBuffer(size=10, stream=Stream(), mr=pool)]

    def free():
        tenure.set_current_device(1)
        box.pop()

    thread = threading.Thread(target=free)
    thread.start()
    thread.join()
    assert pool.info().live_count == 0


WAITS = {
    "synchronize": lambda stream, buffer: stream.synchronize(),
    "tobytes": lambda stream, buffer: buffer.tobytes(),
    "copy_from_host": lambda stream, buffer: buffer.copy_from_host(b"x"),
    "close": lambda stream, buffer: buffer.close(),
    "device": lambda stream, buffer: tenure.synchronize(),
    "memoryview": lambda stream, buffer: memoryview(buffer).release(),
}


@pytest.mark.needs_sim
@pytest.mark.parametrize("name", WAITS)
def test_other_threads_run_during_a_wait(name):
    """Each of these waits for the stream. Meanwhile this thread must get its turn; holding the lock it would come too late."""
    stream = Stream()
    buffer = DeviceBuffer(size=100, stream=stream, mr=tenure.mr.PinnedHostMemoryResource())
    begun, turn, seen = threading.Event(), threading.Event(), []

    def wait():
        tenure.sim.busy(stream, 300)
        begun.set()
        WAITS[name](stream, buffer)
        seen.append((turn.is_set(), stream.query()))

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    turn.set()
    thread.join()
    assert seen == [(True, True)]


@pytest.mark.needs_sim
def test_other_threads_run_while_a_destructor_waits():
    stream = Stream()
    box = [DeviceBuffer(size=100, stream=stream, mr=tenure.mr.PinnedHostMemoryResource())]
    begun, turn, seen = threading.Event(), threading.Event(), []

    def wait():
        tenure.sim.busy(stream, 300)
        begun.set()
        box.clear()
        seen.append((turn.is_set(), stream.query()))

    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait()
    turn.set()
    thread.join()
    assert seen == [(True, True)]
