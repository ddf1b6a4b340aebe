"""The adaptors that list what is out and that ask before a request fails."""

from __future__ import annotations

import ctypes
import gc
import logging
import threading
import weakref

import pytest
import tenure
from conftest import child
from tenure import DeviceBuffer

mr = tenure.mr
MiB = 1 << 20


def on_foreign_thread(function):
    """Calls `function` on a thread that Python did not make, and hands on what it raises."""
    raised = []

    def run(_argument):
        try:
            function()
        except BaseException as error:
            raised.append(error)
        return 0

    start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(run)
    libc = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    assert libc.pthread_create(ctypes.byref(thread), None, start, None) == 0
    assert libc.pthread_join(thread, None) == 0
    if raised:
        raise raised[0]


# ------------------------------------------------------------------------------------------------------------ tracking


def test_tracking_lists_what_is_out(cuda):
    tracked = mr.TrackingResourceAdaptor(cuda)
    assert tracked.upstream_mr is cuda and tracked.get_upstream() is cuda
    assert tracked.kind == "tracking" and tracked.capture_stacks is False
    buffers = [DeviceBuffer(size=1000, mr=tracked) for _ in range(10)]
    assert tracked.get_allocated_bytes() == 10_000
    del buffers[9], buffers[4]
    assert tracked.get_allocated_bytes() == 8000
    assert tracked.get_outstanding_allocations() == sorted((b.ptr, 1000, "") for b in buffers)
    lines = tracked.get_outstanding_allocations_str().splitlines()
    assert lines == [f"{ptr:#x}: 1000 B" for ptr in sorted(b.ptr for b in buffers)]
    info = tracked.info()
    assert (info.live_bytes, info.live_count) == (8000, 8)
    buffers.clear()
    assert tracked.get_outstanding_allocations_str() == "" and tracked.get_allocated_bytes() == 0


def test_tracking_of_its_own_share_only(cuda):
    pool = mr.PoolMemoryResource(cuda)
    inner = mr.TrackingResourceAdaptor(pool)
    outer = mr.TrackingResourceAdaptor(inner, capture_stacks=True)
    a = DeviceBuffer(size=500, mr=inner)
    b = DeviceBuffer(size=700, mr=outer)
    assert (inner.get_allocated_bytes(), outer.get_allocated_bytes()) == (1200, 700)
    assert [block[0] for block in outer.get_outstanding_allocations()] == [b.ptr]
    del a
    assert inner.get_allocated_bytes() == 700


@pytest.mark.parametrize("stacks", [False, True])
def test_a_wrong_free_leaves_the_list_alone(cuda, pool, stacks):
    for upstream in (cuda, pool):
        tracked = mr.TrackingResourceAdaptor(upstream, stacks)
        ptr = tracked.allocate(5000)
        before = [block[:2] for block in tracked.get_outstanding_allocations()]
        for wrong in [(ptr, 9000), (ptr + 256, 5000)]:
            with pytest.raises(tenure.OwnershipError):
                tracked.deallocate(*wrong)
        with pytest.raises(tenure.OwnershipError):
            upstream.deallocate(ptr, 5000)
        assert [block[:2] for block in tracked.get_outstanding_allocations()] == before == [(ptr, 5000)]
        assert tracked.get_allocated_bytes() == 5000
        tracked.deallocate(ptr, 5000)
        assert tracked.get_outstanding_allocations() == []
        with pytest.raises(tenure.OwnershipError):
            tracked.deallocate(ptr, 5000)
        assert tracked.get_allocated_bytes() == 0


def test_stacks_begin_with_python(pool):
    tracked = mr.TrackingResourceAdaptor(pool, capture_stacks=True)

    def a_function_of_the_test():
        return DeviceBuffer(size=100, mr=tracked)

    kept = a_function_of_the_test()
    ((ptr, size, stack),) = tracked.get_outstanding_allocations()
    assert (ptr, size) == (kept.ptr, 100)
    lines = stack.splitlines()
    assert "a_function_of_the_test" in lines[0] and __file__ in lines[0]
    assert "test_stacks_begin_with_python" in lines[1]
    native = [line for line in lines if ".py:" not in line]
    assert native and lines.index(native[0]) > 1 and "tenure_" in native[0]
    text = tracked.get_outstanding_allocations_str()
    assert text.startswith(f"{kept.ptr:#x}: 100 B : callstack:\n  {__file__}:")


def test_stacks_of_threads(pool):
    tracked = mr.TrackingResourceAdaptor(pool, capture_stacks=True)
    kept = []

    def in_a_thread():
        kept.append(tracked.allocate(300))

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    on_foreign_thread(in_a_thread)
    stacks = [stack for _, _, stack in tracked.get_outstanding_allocations()]
    assert len(stacks) == 2 and all("in_a_thread" in stack for stack in stacks)
    for ptr in kept:
        tracked.deallocate(ptr, 300)


def test_a_finalizer_that_runs_inside_a_capture_may_free(pool):
    tracked = mr.TrackingResourceAdaptor(pool, capture_stacks=True)

    class Cycle:
        def __init__(self):
            self.me = self
            self.buffer = DeviceBuffer(size=100, mr=tracked)

    old = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(50):
            Cycle()
    finally:
        gc.set_threshold(*old)
    gc.collect()
    assert tracked.get_allocated_bytes() == 0


def test_log_outstanding_allocations(cuda, caplog):
    tracked = mr.TrackingResourceAdaptor(cuda)
    kept = DeviceBuffer(size=128, mr=tracked)
    with caplog.at_level(logging.INFO, logger="tenure"):
        tracked.log_outstanding_allocations()
    assert caplog.records == []
    with caplog.at_level(logging.DEBUG, logger="tenure"):
        tracked.log_outstanding_allocations()
    assert f"{kept.ptr:#x}: 128 B" in caplog.text


def test_an_error_of_the_upstream_leaves_no_trace(recorder):
    tracked = mr.TrackingResourceAdaptor(recorder.mr, capture_stacks=True)
    recorder.raise_next = error = KeyError("own")
    with pytest.raises(KeyError) as caught:
        tracked.allocate(100)
    assert caught.value is error and tracked.get_outstanding_allocations() == []


def test_many_threads_leave_an_empty_list(pool):
    tracked = mr.TrackingResourceAdaptor(pool)

    def work():
        for size in range(1, 300):
            blocks = [tracked.allocate(size * 16) for _ in range(4)]
            tracked.get_allocated_bytes()
            for ptr in blocks:
                tracked.deallocate(ptr, size * 16)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tracked.get_outstanding_allocations() == [] and tracked.get_allocated_bytes() == 0


def test_tracking_of_many_blocks_in_one_call(pool):
    tracked = mr.TrackingResourceAdaptor(pool)
    ptrs = tracked.allocate_many([100, 0, 300])
    assert [size for _, size, _ in tracked.get_outstanding_allocations()].count(300) == 1
    assert tracked.get_allocated_bytes() == 400
    tracked.deallocate_many(ptrs, [100, 0, 300])
    assert tracked.get_allocated_bytes() == 0


# ---------------------------------------------------------------------------------------------------- failure callback


@pytest.fixture
def limited(cuda):
    return mr.LimitingResourceAdaptor(cuda, MiB)


def test_asked_until_it_fits(limited):
    cache = [DeviceBuffer(size=MiB // 4, mr=limited) for _ in range(4)]
    asked = []

    def callback(nbytes):
        asked.append(nbytes)
        return bool(cache) and cache.pop() is not None

    asking = mr.FailureCallbackResourceAdaptor(limited, callback)
    assert asking.upstream_mr is limited and asking.callback is callback and asking.kind == "failure_callback"
    assert DeviceBuffer(size=MiB // 2, mr=asking).size == MiB // 2
    assert asked == [MiB // 2] * 2 and len(cache) == 2
    # Nothing fails: nobody is asked.
    assert DeviceBuffer(size=100, mr=asking).size == 100 and len(asked) == 2
    cache.clear()
    with pytest.raises(tenure.OutOfMemoryError, match=r"failure callback.*gave up") as caught:
        asking.allocate(2 * MiB)
    assert caught.value.requested == 2 * MiB and len(asked) == 3


@pytest.mark.parametrize("answer", [True, 1, "yes"])
def test_again_for_ever_has_an_end(limited, answer):
    asked = []

    def callback(nbytes):
        asked.append(nbytes)
        return answer

    asking = mr.FailureCallbackResourceAdaptor(limited, callback)
    with pytest.raises(tenure.OutOfMemoryError, match="again and again"):
        DeviceBuffer(size=2 * MiB, mr=asking)
    assert len(asked) == 100


def test_progress_may_take_longer_than_the_bound(limited):
    # 300 tries, each of which finds a little more: all of them are made.
    cache = [DeviceBuffer(size=1024, mr=limited) for _ in range(300)]
    asked = []

    def callback(nbytes):
        asked.append(nbytes)
        cache.pop()
        return True

    asking = mr.FailureCallbackResourceAdaptor(limited, callback)
    assert DeviceBuffer(size=MiB, mr=asking).size == MiB
    assert len(asked) == 300


def test_memory_that_comes_and_goes_is_no_progress(limited):
    asked = []
    kept = [DeviceBuffer(size=1024, mr=limited)]

    def callback(nbytes):
        asked.append(nbytes)
        if len(asked) % 2:
            kept.clear()
        else:
            kept.append(DeviceBuffer(size=1024, mr=limited))
        return True

    asking = mr.FailureCallbackResourceAdaptor(limited, callback)
    with pytest.raises(tenure.OutOfMemoryError, match="again and again"):
        asking.allocate(2 * MiB)
    assert len(asked) < 150


def test_a_memory_error_of_a_callback_resource_asks_and_stays_itself():
    error = MemoryError("the user's own")

    def take(nbytes, stream):
        raise error

    asked = []

    def callback(nbytes):
        asked.append(nbytes)
        return len(asked) < 3

    upstream = mr.CallbackMemoryResource(take, lambda *_: None)
    asking = mr.FailureCallbackResourceAdaptor(mr.StatisticsResourceAdaptor(upstream), callback)
    with pytest.raises(MemoryError) as caught:
        asking.allocate(100)
    assert caught.value is error and asked == [100] * 3


@pytest.mark.needs_sim
def test_nothing_else_asks(cuda, pool):
    asked = []
    for upstream in (cuda, pool):
        asking = mr.FailureCallbackResourceAdaptor(upstream, asked.append)
        with pytest.raises(ValueError):
            asking.allocate(100, alignment=3)
        with pytest.raises(tenure.OwnershipError):
            asking.deallocate(0x100, 10)
    tenure.sim.fail_next("cuMemAlloc", 700)
    with pytest.raises(tenure.CudaError):
        mr.FailureCallbackResourceAdaptor(cuda, asked.append).allocate(MiB)
    assert asked == []


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt, SystemExit, MemoryError])
@pytest.mark.parametrize("layers", [0, 2])
def test_what_the_callback_raises_is_what_the_caller_gets(limited, kind, layers):
    error = kind("from the callback")

    def callback(nbytes):
        raise error

    top = mr.FailureCallbackResourceAdaptor(limited, callback)
    for _ in range(layers):
        top = mr.TrackingResourceAdaptor(mr.StatisticsResourceAdaptor(top))
    with pytest.raises(kind) as caught:
        DeviceBuffer(size=2 * MiB, mr=top)
    assert caught.value is error
    assert any("callback" in frame for frame in _names(error.__traceback__))
    # And the resource works on.
    assert DeviceBuffer(size=100, mr=top).size == 100


def _names(traceback):
    while traceback is not None:
        yield traceback.tb_frame.f_code.co_name
        traceback = traceback.tb_next


def test_an_answer_without_a_truth_value_is_an_error(limited):
    class Odd:
        def __bool__(self):
            raise LookupError("no truth")

    with pytest.raises(LookupError, match="no truth"):
        mr.FailureCallbackResourceAdaptor(limited, lambda n: Odd()).allocate(2 * MiB)


def test_the_callback_may_use_the_resource_itself(limited):
    calls = []

    def callback(nbytes):
        calls.append(nbytes)
        small = DeviceBuffer(size=64, mr=asking)
        assert small.size == 64
        for _ in range(3):
            with pytest.raises(tenure.OutOfMemoryError, match="not asked"):
                asking.allocate(4 * MiB)
        return False

    asking = mr.FailureCallbackResourceAdaptor(limited, callback)
    with pytest.raises(tenure.OutOfMemoryError, match="gave up"):
        asking.allocate(2 * MiB)
    assert calls == [2 * MiB]
    # It may be asked again afterwards.
    with pytest.raises(tenure.OutOfMemoryError, match="gave up"):
        asking.allocate(2 * MiB)
    assert calls == [2 * MiB] * 2


def test_asked_on_any_thread(limited):
    seen = []

    def callback(nbytes):
        seen.append(threading.get_ident())
        return False

    asking = mr.FailureCallbackResourceAdaptor(limited, callback)

    def fail():
        with pytest.raises(MemoryError):
            asking.allocate(2 * MiB)

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    on_foreign_thread(fail)
    assert len(seen) == 2 and threading.get_ident() not in seen


@pytest.mark.parametrize("wrong", [None, 3, "text"])
def test_what_cannot_be_called_is_refused(cuda, wrong):
    with pytest.raises(TypeError, match="callback must be callable"):
        mr.FailureCallbackResourceAdaptor(cuda, wrong)
    with pytest.raises(TypeError, match="mr must be a resource"):
        mr.FailureCallbackResourceAdaptor(wrong, print)


def test_the_callable_lives_as_long_as_the_resource(limited):
    def callback(nbytes):
        return False

    gone = weakref.ref(callback)
    buffer = DeviceBuffer(size=100, mr=mr.StatisticsResourceAdaptor(mr.FailureCallbackResourceAdaptor(limited, callback)))
    del callback
    gc.collect()
    assert gone() is not None
    del buffer
    gc.collect()
    assert gone() is None


def test_a_cycle_through_the_callable_is_collected(limited):
    class Owner:
        def __init__(self):
            self.mr = mr.FailureCallbackResourceAdaptor(limited, self.failed)

        def failed(self, nbytes):
            return False

    owner = Owner()
    gone = weakref.ref(owner)
    buffer = DeviceBuffer(size=10, mr=owner.mr)
    del owner
    gc.collect()
    # A buffer names the resource: the callable is in use.
    assert gone() is not None
    del buffer
    gc.collect()
    assert gone() is None


def test_a_getter_gives_the_class_and_the_callable_back(limited):
    callback = lambda nbytes: False  # noqa: E731
    buffer = DeviceBuffer(size=10, mr=mr.FailureCallbackResourceAdaptor(limited, callback))
    gc.collect()
    again = buffer.mr
    assert type(again) is mr.FailureCallbackResourceAdaptor
    assert again.callback is callback and again.upstream_mr == limited


@pytest.mark.parametrize("name", ["TrackingResourceAdaptor", "FailureCallbackResourceAdaptor"])
def test_a_subclass_works(cuda, name):
    base = getattr(mr, name)

    class Mine(base):
        def __init__(self, upstream):
            super().__init__(upstream, *([lambda n: False] if "Failure" in name else []))

    mine = Mine(cuda)
    assert DeviceBuffer(size=100, mr=mine).mr is mine

    class Forgot(base):
        def __init__(self):
            pass

    with pytest.raises(TypeError, match="super"):
        DeviceBuffer(size=100, mr=Forgot())


EXIT = """
import tenure
mr = tenure.mr
limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 1000)
asking = mr.FailureCallbackResourceAdaptor(limited, lambda nbytes: print("asked"))
tracked = mr.TrackingResourceAdaptor(asking, capture_stacks=True)
kept = [tenure.DeviceBuffer(size=100, mr=tracked)]
raw = tracked.allocate(100)
kept.append(kept)

class Late:
    # Asks for memory while the interpreter is taken apart.
    def __del__(self, tenure=tenure, tracked=tracked):
        try:
            tenure.DeviceBuffer(size=5000, mr=tracked)
        except (MemoryError, RuntimeError):
            pass

class Late2(Late):
    pass

late = Late()
late.me = Late2()
late.me.me = late
"""


def test_exit_with_everything_alive():
    for _ in range(3):
        done = child(EXIT)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_nobody_is_asked_once_the_interpreter_goes():
    code = """
import atexit

def last():
    # Registered before tenure's own hook, hence run after it.
    try:
        tracked.allocate(5000)
    except MemoryError as error:
        print(type(error).__name__, asked)
    ptr = tracked.allocate(100)
    print(tracked.get_allocated_bytes(), "File" in tracked.get_outstanding_allocations_str())
    tracked.deallocate(ptr, 100)
    print(tracked.get_allocated_bytes())

atexit.register(last)
import tenure
mr = tenure.mr
asked = []
limited = mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), 1000)
asking = mr.FailureCallbackResourceAdaptor(limited, lambda n: asked.append(n) or True)
tracked = mr.TrackingResourceAdaptor(asking, capture_stacks=True)
"""
    done = child(code)
    assert done.stdout == "OutOfMemoryError []\n100 False\n0\n", done.stdout + done.stderr
    assert done.returncode == 0 and done.stderr == ""
