"""Runs the same checks on each binding that `build.py` has built.

    python examples/bindings/run.py [NAME...]

Each check is a promise that a binding makes to its users, and none of them depends on the tool that made the binding.
"""

import gc
import importlib.util
import sys
import threading

import tenure
from build import BUILDERS, out

N = 1000


class Recorder:
    """A resource of Python functions over plain device memory that keeps account."""

    def __init__(self):
        upstream = tenure.mr.CudaMemoryResource()
        self.made, self.freed, self.closed = made, freed, closed = [], [], []

        def allocate(nbytes, stream):
            ptr = upstream.allocate(nbytes, stream)
            made.append((ptr, nbytes, stream.handle))
            return ptr

        def deallocate(ptr, nbytes, stream):
            freed.append((ptr, nbytes, stream.handle, threading.get_ident()))
            upstream.deallocate(ptr, nbytes, stream)

        class Closing:
            """Goes when the resource lets its functions go."""

            def __del__(self):
                closed.append(True)

        allocate.closing = Closing()
        self.mr = tenure.mr.CallbackMemoryResource(allocate, deallocate)


class Refused(Exception):
    """What a resource raises that must not be asked."""


def refusing():
    """A resource that must not be asked."""

    def refuse(nbytes, stream):
        raise Refused(nbytes)

    return tenure.mr.CallbackMemoryResource(refuse, lambda *_: None)


def raises(kind, function, *arguments):
    """The exception that a call raises."""
    try:
        function(*arguments)
    except kind as error:
        return error
    raise AssertionError(f"{function} did not raise {kind.__name__}")


def elsewhere(function, *arguments):
    """Runs a function in another thread, and says in which."""
    threads = []

    def body():
        function(*arguments)
        threads.append(threading.get_ident())

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return threads[0]


def names_its_resource(module):
    """The buffer names the very object that was passed, its stream and its device."""
    pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
    stream = tenure.Stream()
    tenure.mr.set_current_device_resource(refusing())
    column = module.make_column(N, stream, pool)
    assert type(column) is tenure.DeviceBuffer
    assert column.mr is pool
    assert column.stream == stream and column.device == stream.device
    assert column.size == N and column.tobytes() == bytes([42]) * N
    assert pool.info().live_count == 1
    module.free_column(column)
    assert pool.info().live_count == 0


def uses_the_current_one(module):
    """Without `mr` it is the current resource, scopes included, as it was when the function was called."""
    current = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
    scoped = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
    tenure.mr.set_current_device_resource(current)
    columns = [module.make_column(N)]
    with tenure.mr.using(scoped):
        columns.append(module.make_column(N, mr=None))
    tenure.mr.set_current_device_resource(refusing())
    assert [column.mr for column in columns] == [current, scoped]
    assert columns[0].mr is current and columns[1].mr is scoped
    assert columns[0].stream == tenure.DEFAULT_STREAM


def is_freed_by_its_maker_once(module):
    """Entry replaced, every name of the resource dropped, freed by native code on another thread: home, once, on its stream."""
    recorder, stream = Recorder(), tenure.Stream()
    tenure.mr.set_current_device_resource(recorder.mr)
    column = module.make_column(N, stream)
    tenure.mr.set_current_device_resource(refusing())
    del recorder.mr
    gc.collect()
    assert not recorder.closed
    thread = elsewhere(module.free_column, column)
    ptr, nbytes, order = recorder.made[0]
    assert recorder.freed == [(ptr, nbytes, order, thread)] and order == stream.handle
    assert (column.ptr, column.size) == (0, 0)
    # What is left of the object still names the resource, and owns nothing of it.
    assert not recorder.closed
    del column
    gc.collect()
    assert recorder.closed == [True] and len(recorder.freed) == 1


def may_be_freed_by_python(module):
    """The same, when Python lets go of it."""
    recorder = Recorder()
    columns = [module.make_column(N, None, recorder.mr)]
    del recorder.mr
    elsewhere(columns.clear)
    gc.collect()
    assert len(recorder.freed) == 1 and recorder.closed == [True]


def raises_what_tenure_raises(module):
    """Out of memory with its figures; a callback's exception as the same object; nothing is lost on the way."""
    pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
    limited = tenure.mr.LimitingResourceAdaptor(pool, 4 * N)
    error = raises(tenure.OutOfMemoryError, module.make_column, 5 * N, None, limited)
    assert error.requested == 5 * N and error.limit == 4 * N
    assert raises(Refused, module.make_column, N, None, refusing()).args == (N,)
    assert pool.info().live_count == 0


def refuses_what_is_no_resource(module):
    """A wrong type of an argument is a TypeError, and nothing happens."""
    for wrong in ("pool", 7, object()):
        raises(TypeError, module.make_column, N, None, wrong)
        raises(TypeError, module.make_column, N, wrong)
        raises(TypeError, module.free_column, wrong)
    raises(TypeError, module.free_column, None)


def leaves_what_is_in_use(module):
    """A buffer whose bytes somebody looks at is not taken out."""
    column = module.make_column(N, None, tenure.mr.PinnedHostMemoryResource())
    with memoryview(column) as view:
        raises(BufferError, module.free_column, column)
        assert bytes(view) == bytes([42]) * N
    module.free_column(column)
    assert column.size == 0


def takes_foreign_streams(module):
    """A stream of another library is a stream, and the column keeps its owner alive."""

    class Foreign:
        """What CuPy, PyTorch and others pass."""

        def __init__(self, stream):
            self.stream = stream

        def __cuda_stream__(self):
            return 0, self.stream.handle

        def __del__(self):
            gone.append(True)

    gone, stream = [], tenure.Stream()
    column = module.make_column(N, Foreign(stream))
    gc.collect()
    assert column.stream == stream and not gone
    module.free_column(column)
    del column
    gc.collect()
    assert gone == [True]


def knows_no_bytes(module):
    """A column of no bytes asks nobody and is a column."""
    column = module.make_column(0, None, refusing())
    assert (column.ptr, column.size) == (0, 0)
    module.free_column(column)
    module.free_column(column)


CHECKS = (
    names_its_resource,
    uses_the_current_one,
    is_freed_by_its_maker_once,
    may_be_freed_by_python,
    raises_what_tenure_raises,
    refuses_what_is_no_resource,
    leaves_what_is_in_use,
    takes_foreign_streams,
    knows_no_bytes,
)


def run(name):
    """Runs the checks on one binding; returns how many failed."""
    module = importlib.import_module(f"column_{name}")
    failed = 0
    for check in CHECKS:
        try:
            check(module)
            why = ""
        except Exception as error:
            failed += 1
            why = f": {type(error).__name__}: {error} (line {error.__traceback__.tb_next.tb_lineno})"
        finally:
            tenure.mr.reset_current_device_resource()
        print(f"{'FAIL' if why else 'ok  '}  {name:10} {check.__doc__.splitlines()[0]}{why}")
    if tenure.mr.misuse_count() != 0:
        failed += 1
        print(f"FAIL  {name:10} {tenure.mr.misuse_count()} wrong frees")
    return failed


def main(names):
    """Runs the checks on each binding that is named, or is there."""
    sys.path.insert(0, str(out()))
    there = [name for name in BUILDERS if importlib.util.find_spec(f"column_{name}") is not None]
    if not (names or there):
        sys.exit(f"nothing is built in {out()}: run build.py first")
    return 1 if sum(run(name) for name in names or there) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
