"""The bridge to RMM: `tenure.enable("rmm")` and `tenure.allocators.rmm`, with RMM's own wheel.

Each test is a program of its own, because RMM's tables are the process's. Without a GPU RMM can be imported, and can make buffers
of a resource that needs none: tenure's, on the simulated device. What copies is run on a GPU. ci/bridge has an environment with
each minor of RMM; where RMM or the bridge is not there, this is skipped.
"""

from __future__ import annotations

import importlib.util
import textwrap

import pytest
from conftest import DEVICE, child
from tenure.allocators import rmm as plug


def why_not() -> str:
    if importlib.util.find_spec("rmm") is None:
        return "RMM is not installed (ci/bridge tests with it)"
    if not plug.built():
        return "no bridge was built: make bridge-rmm"
    return ""


needs_rmm = pytest.mark.skipif(bool(why_not()), reason=why_not())
gpu = pytest.mark.skipif(DEVICE != "cuda", reason="RMM's copies need a GPU")
sim = pytest.mark.skipif(DEVICE != "sim", reason="has two devices, or fails at will, on the simulated device")

START = """
import ctypes, gc, os, sys, threading, warnings, weakref
import tenure
from tenure.allocators import rmm as plug
mr = tenure.mr
def pool(): return mr.PoolMemoryResource(mr.CudaMemoryResource(), 1 << 20)
def told(): return [str(w.message) for w in caught]
def agree(): return all(entry.agree for entry in plug.check())
caught = warnings.catch_warnings(record=True).__enter__()
warnings.simplefilter("always")
calls = []
class Functions:
    # What a callback resource of RMM's is made of, over a pool. Who looks at `calls` keeps nothing of it.
    def __init__(self):
        self.base = pool()
    def allocate(self, nbytes, stream):
        if nbytes == 13:
            raise MemoryError("thirteen")
        if nbytes == 14:
            raise LookupError("fourteen")
        calls.append(nbytes)
        return self.base.allocate(nbytes)
    def deallocate(self, ptr, nbytes, stream):
        calls.append(-nbytes)
        self.base.deallocate(ptr, nbytes)
"""
END = """
gc.collect()
assert mr.misuse_count() == 0
if os.environ["TENURE_DEVICE"] == "sim":
    assert tenure.sim.violations() == 0
print("through")
"""


def run(code: str, *, enabled: bool = True, timeout: float = 120, **environment: str) -> str:
    """Runs a program of its own; it must reach its end and say nothing of a failure."""
    on = 'import rmm\ntenure.enable("rmm")\n' if enabled else ""
    done = child(START + on + textwrap.dedent(code) + END, timeout=timeout, **environment)
    assert done.returncode == 0 and "through" in done.stdout, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr and "tenure:" not in done.stderr, done.stderr
    return done.stdout


# ------------------------------------------------------------------ what is missing is named


def test_without_rmm_the_package_is_named():
    run(
        """
        from importlib.abc import MetaPathFinder
        class Hide(MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name == "rmm":
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        sys.meta_path.insert(0, Hide())
        for call in (lambda: tenure.enable("rmm"), plug.check, plug.to_rmm, lambda: plug.from_rmm(None)):
            try:
                call()
                raise SystemExit("no error")
            except ModuleNotFoundError as error:
                assert "RMM is not installed: pip install rmm-cu13" in str(error), error
        """,
        enabled=False,
    )


def test_where_tenure_poses_as_rmm_there_is_nothing_to_bridge():
    run(
        """
        import tenure.rmm
        tenure.rmm.install()
        import rmm
        try:
            tenure.enable("rmm")
            raise SystemExit("no error")
        except RuntimeError as error:
            assert "rmm is served by tenure in this process" in str(error), error
        # All that is found: a row says so, and nothing else fails for it.
        row = tenure.enable()["rmm"]
        assert row.state == "failed" and "served by tenure" in row.notes[0], row
        """
        if why_not() == ""
        else """
        import tenure.rmm
        tenure.rmm.install()
        import rmm
        try:
            tenure.enable("rmm")
            raise SystemExit("no error")
        except RuntimeError as error:
            assert "rmm is served by tenure in this process" in str(error), error
        """,
        enabled=False,
    )


@needs_rmm
def test_an_rmm_without_a_bridge_is_told_what_to_do():
    run(
        """
        import rmm
        rmm.__version__ = "31.02.00"
        try:
            tenure.enable("rmm")
            raise SystemExit("no error")
        except RuntimeError as error:
            for part in ("no bridge for RMM 31.02.00", plug.built()[-1], "tools/bridge-rmm 31.2"):
                assert part in str(error), error
        assert "rmm" not in str(tenure.disable())
        """,
        enabled=False,
    )


# ------------------------------------------------------------------ both tables


@needs_rmm
def test_the_table_of_enable():
    run(
        """
        before = plug.check()[0]
        assert not before.agree and before.cpp == "RMM's own, never set", before
        row = tenure.enable("rmm")["rmm"]
        assert row.state == "waiting", row
        import rmm
        row = tenure.enable("rmm")["rmm"]
        assert (row.state, row.route, row.resource) == ("on", "both tables", "current"), row
        assert not any("not tested" in note for note in row.notes), row
        assert agree(), plug.check()
        assert "tenure's CudaMemoryResource" in str(plug.check()[0])
        """.replace("before = plug.check()[0]\n", "import rmm; before = plug.check()[0]; del sys.modules['rmm']\n", 1),
        enabled=False,
    )


@needs_rmm
def test_it_waits_for_the_import():
    run(
        """
        assert tenure.enable("rmm")["rmm"].state == "waiting"
        import rmm
        assert agree()
        first = pool()
        mr.set_per_device_resource(0, first)
        assert agree() and plug.check()[0].cpp == "tenure's PoolMemoryResource", plug.check()
        """,
        enabled=False,
    )


@needs_rmm
def test_blocks_go_home_whatever_the_tables_say_by_then():
    run(
        """
        first, second = pool(), pool()
        ids = weakref.ref(first)
        mr.set_per_device_resource(0, first)
        held = [rmm.DeviceBuffer(size=size, mr=rmm.mr.get_per_device_resource(0)) for size in (1, 1000, 100_000)]
        assert all(first.owns(buffer.ptr) for buffer in held)
        raw = rmm.mr.get_per_device_resource(0)
        ptr = raw.allocate(512)
        mr.set_per_device_resource(0, second)
        assert agree()
        held.append(rmm.DeviceBuffer(size=100, mr=rmm.mr.get_per_device_resource(0)))
        assert second.owns(held[-1].ptr) and first.info().live_bytes > 100_000
        del held[:3]
        raw.deallocate(ptr, 512)
        del raw
        assert first.info().live_bytes == 0 and second.info().live_bytes > 0
        # Its owner is dropped by everybody but the block.
        mr.reset_per_device_resource(0)
        id = second.id
        del second
        gc.collect()
        assert mr.owner_of(held[0].ptr).id == id
        held.clear()
        tenure.disable("rmm")
        """
    )


@needs_rmm
def test_a_change_by_native_code_is_written_to_both():
    """As C, C++ and Rust set it: through the library, without the interpreter's lock, on a thread that Python knows not."""
    run(
        """
        from tenure import bindings
        library = ctypes.CDLL(os.path.join(os.path.dirname(tenure.__file__), "lib", "libtenure.so.0"))
        set_ = library.tenure_current_set
        set_.argtypes = [ctypes.c_int32, ctypes.c_uint64, ctypes.c_void_p]
        first = pool()
        handle = bindings.borrow_resource(first)
        assert set_(0, handle, None) == 0
        assert agree() and plug.check()[0].python == "tenure's PoolMemoryResource", plug.check()
        # pthread_create of the C function itself.
        libc = ctypes.CDLL(None)
        libc.pthread_create.argtypes = [ctypes.c_void_p] * 4
        libc.pthread_join.argtypes = [ctypes.c_ulong, ctypes.c_void_p]
        reset = library.tenure_current_reset  # (device, out): a pointer that is null is device 0
        thread = ctypes.c_ulong()
        assert libc.pthread_create(ctypes.byref(thread), None, ctypes.cast(reset, ctypes.c_void_p), None) == 0
        assert libc.pthread_join(thread, None) == 0
        assert agree() and plug.check()[0].python == "tenure's CudaMemoryResource", plug.check()
        """
    )


@needs_rmm
def test_what_rmms_python_sets_is_seen_and_warned_of_once():
    run(
        """
        base = pool()
        mr.set_per_device_resource(0, base)
        counter = rmm.mr.StatisticsResourceAdaptor(rmm.mr.get_per_device_resource(0))
        rmm.mr.set_per_device_resource(0, counter)
        assert not plug.check()[0].agree and not told(), told()
        now = mr.get_per_device_resource(0)
        assert now.kind == "rmm" and agree(), plug.check()
        assert len(told()) == 1 and "StatisticsResourceAdaptor through rmm.mr" in told()[0], told()
        assert caught[0].filename == "<string>", caught[0].filename
        assert mr.get_per_device_resource(0) is now
        assert plug.to_rmm(now) is counter and rmm.mr.get_per_device_resource(0) is counter
        # tenure's own calls are counted by RMM's adaptor, and end in tenure's pool.
        buffer = tenure.DeviceBuffer(size=5000, mr=now)
        assert base.owns(buffer.ptr) and counter.allocation_counts.current_bytes == 5000
        # Again, and with the setter in between: no second warning, and the previous one is theirs.
        limit = rmm.mr.LimitingResourceAdaptor(counter, 1 << 20)
        rmm.mr.set_per_device_resource(0, limit)
        previous = mr.set_per_device_resource(0, base)
        assert plug.to_rmm(previous) is limit and len(told()) == 1
        assert agree() and plug.check()[0].python == "tenure's PoolMemoryResource"
        # Back again: the very object, in both tables.
        mr.set_per_device_resource(0, previous)
        assert rmm.mr.get_per_device_resource(0) is limit and agree()
        # One of tenure's that was set through RMM is nobody's surprise.
        rmm.mr.set_per_device_resource(0, plug.to_rmm(base))
        assert mr.get_per_device_resource(0) is base and len(told()) == 1
        del buffer
        assert counter.allocation_counts.current_bytes == 0
        mr.reset_per_device_resource(0)
        """
    )


@needs_rmm
def test_what_rmms_cpp_sets_is_seen():
    run(
        """
        bridge = plug._bridge()
        base = pool()
        mr.set_per_device_resource(0, base)
        # What rmm::mr::set_per_device_resource does in C++: RMM's Python table does not hear of it.
        bridge.set_table_entry(0, rmm.mr.TrackingResourceAdaptor(plug.to_rmm(base)))
        gc.collect()
        entry = plug.check()[0]
        assert not entry.agree and entry.python == "tenure's PoolMemoryResource", entry
        assert "tracking_resource_adaptor" in entry.cpp, entry
        now = mr.get_per_device_resource(0)
        assert now.kind == "rmm" and agree(), plug.check()
        assert len(told()) == 1 and "through RMM's C++ functions" in told()[0], told()
        buffer = tenure.DeviceBuffer(size=3000, mr=now)
        theirs = rmm.DeviceBuffer(size=100, mr=rmm.mr.get_per_device_resource(0))
        assert base.owns(buffer.ptr) and base.owns(theirs.ptr)
        del buffer, theirs
        # Set back to one of tenure's by C++.
        bridge.set_table_entry(0, plug.to_rmm(base))
        assert mr.get_per_device_resource(0) is base and agree() and len(told()) == 1
        # reset_per_device_resource of C++.
        bridge.set_table_entry(0, None)
        assert mr.get_per_device_resource(0).kind == "rmm" and agree()
        assert "cuda_memory_resource" in plug.check()[0].cpp, plug.check()
        """
    )


@needs_rmm
def test_a_scope_is_not_written_and_does_not_look():
    run(
        """
        base, scoped = pool(), pool()
        mr.set_current_device_resource(base)
        with mr.using(scoped):
            assert agree() and plug.check()[0].python == "tenure's PoolMemoryResource"
            assert plug._bridge().ours(rmm.mr.get_per_device_resource(0)) is base
            rmm.mr.set_per_device_resource(0, rmm.mr.CudaMemoryResource())
            assert mr.get_current_device_resource() is scoped and not told()
        assert mr.get_current_device_resource().kind == "rmm" and len(told()) == 1
        # The entry of the process, not the scope's, is what is written.
        tenure.disable("rmm")
        mr.set_current_device_resource(base)
        with mr.using(scoped):
            tenure.enable("rmm")
        assert plug._bridge().ours(rmm.mr.get_per_device_resource(0)) is base
        """
    )


@needs_rmm
def test_a_fixed_resource_follows_nobody_and_disable_puts_back():
    run(
        """
        import rmm
        before = rmm.mr.StatisticsResourceAdaptor(rmm.mr.CudaMemoryResource())
        rmm.mr.set_per_device_resource(0, before)
        fixed, other = pool(), pool()
        row = tenure.enable("rmm", mr=fixed)["rmm"]
        assert row.resource == "PoolMemoryResource", row
        mr.set_per_device_resource(0, other)
        assert plug._bridge().ours(rmm.mr.get_per_device_resource(0)) is fixed
        assert mr.get_per_device_resource(0) is other and not told()
        # On again without one: it follows.
        tenure.enable("rmm")
        assert agree() and plug._bridge().ours(rmm.mr.get_per_device_resource(0)) is other
        tenure.enable("rmm")
        assert tenure.disable("rmm")["rmm"].notes == ()
        assert rmm.mr.get_per_device_resource(0) is before
        assert "statistics_resource_adaptor" in plug.check()[0].cpp, plug.check()
        mr.set_per_device_resource(0, fixed)
        assert rmm.mr.get_per_device_resource(0) is before
        # Where RMM's two tables differed, each gets its own back.
        bridge = plug._bridge()
        bridge.set_table_entry(0, rmm.mr.TrackingResourceAdaptor(before))
        tenure.enable("rmm")
        assert agree() and not told(), told()
        tenure.disable("rmm")
        assert rmm.mr.get_per_device_resource(0) is before
        assert "tracking_resource_adaptor" in plug.check()[0].cpp, plug.check()
        rmm.mr.set_per_device_resource(0, before)
        # What somebody else set meanwhile stays.
        tenure.enable("rmm")
        mine = rmm.mr.LimitingResourceAdaptor(before, 1 << 20)
        rmm.mr.set_per_device_resource(0, mine)
        notes = tenure.disable("rmm")["rmm"].notes
        assert "device 0 was set by somebody else" in notes[0], notes
        assert rmm.mr.get_per_device_resource(0) is mine
        assert mr.get_per_device_resource(0) is fixed and not told()
        """,
        enabled=False,
    )


@sim
@needs_rmm
def test_each_device_has_its_entries():
    run(
        """
        tenure.set_current_device(1)
        second = pool()
        tenure.set_current_device(0)
        mr.set_per_device_resource(1, second)
        assert agree() and [entry.python for entry in plug.check()] == ["tenure's CudaMemoryResource", "tenure's PoolMemoryResource"]
        tenure.disable("rmm")
        tenure.enable("rmm", mr=second)
        bridge = plug._bridge()
        assert bridge.ours(rmm.mr.get_per_device_resource(0)) is None
        assert bridge.ours(rmm.mr.get_per_device_resource(1)) is second
        """
    )


# ------------------------------------------------------------------ errors, adaptors, callbacks


@needs_rmm
def test_out_of_memory_is_rmms_and_its_failure_callback_is_asked():
    run(
        """
        limited = mr.LimitingResourceAdaptor(pool(), 1 << 20)
        theirs = plug.to_rmm(limited)
        asked = []
        def callback(nbytes):
            asked.append(nbytes)
            return len(asked) < 3
        adaptor = rmm.mr.FailureCallbackResourceAdaptor(theirs, callback)
        for attempt in (lambda: theirs.allocate(1 << 21), lambda: rmm.DeviceBuffer(size=1 << 21, mr=theirs),
                        lambda: adaptor.allocate(1 << 21)):
            try:
                attempt()
                raise SystemExit("no error")
            except MemoryError as error:
                assert "2.00 MiB requested from limiting > pool" in str(error), error
        assert asked == [1 << 21] * 3, asked
        """
    )


@needs_rmm
def test_rmms_adaptors_over_tenure():
    run(
        """
        import tempfile
        base = pool()
        theirs = plug.to_rmm(base)
        log = os.path.join(tempfile.mkdtemp(), "log.csv")
        stack = rmm.mr.TrackingResourceAdaptor(rmm.mr.LimitingResourceAdaptor(rmm.mr.StatisticsResourceAdaptor(theirs), 1 << 24))
        rmm.mr.set_per_device_resource(0, stack)
        buffers = [rmm.DeviceBuffer(size=1000 * n, mr=stack) for n in range(1, 20)]
        assert all(base.owns(buffer.ptr) for buffer in buffers)
        assert stack.get_allocated_bytes() == sum(1000 * n for n in range(1, 20))
        for buffer in buffers:
            assert buffer.size % 1000 == 0
        del buffer
        buffers.clear()
        assert stack.get_allocated_bytes() == 0 and base.info().live_bytes == 0
        assert plug.from_rmm(theirs) is base and repr(theirs).startswith("<TenureMemoryResource over ")
        for wrong in (1, None, base):
            try:
                plug.from_rmm(wrong)
                raise SystemExit("no error")
            except TypeError as error:
                assert "mr must be a resource of rmm.mr" in str(error), error
        try:
            plug.to_rmm(theirs)
            raise SystemExit("no error")
        except TypeError as error:
            assert "mr must be a resource of tenure.mr" in str(error), error
        # RMM itself ends the process with such a one.
        class Mine(rmm.mr.DeviceMemoryResource):
            pass
        try:
            plug.from_rmm(Mine())
            raise SystemExit("no error")
        except TypeError as error:
            assert "CallbackMemoryResource" in str(error), error
        """
    )


@needs_rmm
def test_functions_of_a_callback_resource_live_as_long_as_a_block():
    """RMM's C++ object only borrows them: case 5 of RMM's own troubles."""
    run(
        """
        functions = Functions()
        gone = weakref.ref(functions)
        foreign = plug.from_rmm(rmm.mr.CallbackMemoryResource(functions.allocate, functions.deallocate))
        assert foreign.kind == "rmm" and foreign.device == 0
        del functions
        buffer = tenure.DeviceBuffer(size=100, mr=foreign)
        for size, kind, text in ((13, MemoryError, "thirteen"), (14, RuntimeError, "fourteen")):
            try:
                tenure.DeviceBuffer(size=size, mr=foreign)
                raise SystemExit("no error")
            except kind as error:
                assert text in str(error), error
        del foreign
        gc.collect()
        assert gone() is not None and calls == [100]
        del buffer
        gc.collect()
        assert gone() is None and calls == [100, -100], calls
        """
    )


@needs_rmm
def test_functions_below_a_pool_of_rmms_live_until_it_has_given_back():
    """A pool of RMM's frees what it holds when it goes, through functions that its Python object keeps alive."""
    run(
        """
        functions = Functions()
        gone = weakref.ref(functions)
        calls_when_gone = []
        weakref.finalize(functions, lambda: calls_when_gone.extend(calls))
        below = rmm.mr.CallbackMemoryResource(functions.allocate, functions.deallocate)
        foreign = plug.from_rmm(rmm.mr.PoolMemoryResource(below, initial_pool_size=1 << 20))
        del functions, below
        gc.collect()
        assert gone() is not None and calls == [1 << 20], calls
        del foreign
        gc.collect()
        assert gone() is None and calls == [1 << 20, -(1 << 20)], calls
        assert calls_when_gone == calls, (calls_when_gone, calls)
        """
    )


@needs_rmm
def test_a_python_resource_of_tenures_serves_rmm():
    run(
        """
        base = pool()
        seen = []
        def allocate(nbytes, stream):
            seen.append(nbytes)
            return base.allocate(nbytes, stream)
        ours = mr.CallbackMemoryResource(allocate, lambda ptr, nbytes, stream: base.deallocate(ptr, nbytes, stream))
        mr.set_per_device_resource(0, ours)
        buffer = rmm.DeviceBuffer(size=777, mr=rmm.mr.get_per_device_resource(0))
        assert seen == [777] and base.owns(buffer.ptr)
        mr.reset_per_device_resource(0)
        del buffer
        assert base.info().live_bytes == 0
        """
    )


# ------------------------------------------------------------------ threads, exit


@needs_rmm
def test_threads_allocate_while_both_sides_are_replaced():
    run(
        """
        pools = [pool() for _ in range(3)]
        mr.set_per_device_resource(0, pools[0])
        stop = threading.Event()
        failed = []
        def work(seed):
            try:
                held = []
                n = seed
                while not stop.is_set():
                    n = (n * 1103515245 + 12345) % (1 << 31)
                    held.append(rmm.DeviceBuffer(size=1 + n % 5000, mr=rmm.mr.get_per_device_resource(0)))
                    if n % 3 == 0:
                        held.append(tenure.DeviceBuffer(size=1 + n % 3000, mr=mr.get_per_device_resource(0)))
                    if len(held) > 20:
                        del held[n % 20]
                        del held[0]
            except BaseException as error:
                failed.append(error)
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for turn in range(150):
            mr.set_per_device_resource(0, pools[turn % 3])
            if turn % 5 == 0:
                rmm.mr.set_per_device_resource(0, rmm.mr.StatisticsResourceAdaptor(plug.to_rmm(pools[(turn + 1) % 3])))
            if turn % 7 == 0:
                mr.get_per_device_resource(0)
            if turn % 11 == 0:
                plug._bridge().set_table_entry(0, rmm.mr.TrackingResourceAdaptor(plug.to_rmm(pools[(turn + 2) % 3])))
        stop.set()
        for thread in threads:
            thread.join()
        assert not failed, failed
        del threads
        gc.collect()
        mr.get_per_device_resource(0)
        assert agree(), plug.check()
        assert [p.info().live_bytes for p in pools] == [0, 0, 0]
        mr.reset_per_device_resource(0)
        assert agree(), plug.check()
        """
    )


@needs_rmm
@pytest.mark.parametrize("order", ["rmm first", "tenure first"])
def test_exit_with_everything_alive(order):
    imports = "import rmm, tenure" if order == "rmm first" else "import tenure, rmm"
    code = f"""
{imports}
from tenure.allocators import rmm as plug
pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource(), 1 << 20)
tenure.enable("rmm")
tenure.mr.set_current_device_resource(pool)
a = rmm.DeviceBuffer(size=100, mr=rmm.mr.get_per_device_resource(0))
counter = rmm.mr.StatisticsResourceAdaptor(rmm.mr.get_per_device_resource(0))
rmm.mr.set_per_device_resource(0, counter)
import warnings
warnings.simplefilter("ignore")
b = tenure.DeviceBuffer(size=100, mr=tenure.mr.get_current_device_resource())
c = tenure.DeviceBuffer(size=100, mr=plug.from_rmm(rmm.mr.CallbackMemoryResource(lambda n, s: pool.allocate(n), lambda p, n, s: pool.deallocate(p, n))))
d = rmm.DeviceBuffer(size=100, mr=counter)
cycle = [a, b, c, d]
cycle.append(cycle)
print("through")
"""
    for _ in range(3):
        done = child(code)
        assert done.returncode == 0 and done.stdout == "through\n" and done.stderr == "", (
            done.returncode,
            done.stdout,
            done.stderr,
        )


# ------------------------------------------------------------------ on a GPU


@gpu
@needs_rmm
def test_buffers_of_rmms_on_a_gpu():
    run(
        """
        base = mr.StatisticsResourceAdaptor(pool())
        mr.set_current_device_resource(base)
        data = bytes(range(256)) * 1000
        first = rmm.DeviceBuffer.to_device(data)
        second = first.copy()
        second.resize(300_000)
        stream = rmm.pylibrmm.stream.Stream()
        third = rmm.DeviceBuffer(ptr=first.ptr, size=first.size, stream=stream)
        stream.synchronize()
        assert base.owns(first.ptr) and base.owns(second.ptr) and base.owns(third.ptr)
        mr.reset_current_device_resource()
        assert first.tobytes() == data and second.tobytes()[: len(data)] == data and third.tobytes() == data
        del first, second, third
        assert base.allocation_counts.current_count == 0 and base.allocation_counts.total_count >= 4
        with rmm.statistics.statistics():
            assert mr.get_current_device_resource().kind == "rmm"
            buffer = rmm.DeviceBuffer(size=1000)
            assert rmm.statistics.get_statistics().current_bytes == 1000
        """.replace("stream = rmm.pylibrmm", "import rmm.pylibrmm.stream, rmm.statistics\n        stream = rmm.pylibrmm")
    )


@needs_rmm
def test_what_rmm_asks_for_is_rmms_in_reports():
    run(
        """
        tenure.report(True)
        theirs = rmm.DeviceBuffer(size=3 << 20, mr=plug.to_rmm())
        over = rmm.mr.StatisticsResourceAdaptor(plug.to_rmm(pool()))
        adapted = rmm.DeviceBuffer(size=1 << 20, mr=over)
        ours = tenure.DeviceBuffer(size=1000)
        # One that fails leaves the thread as it was.
        try:
            rmm.DeviceBuffer(size=1 << 60, mr=plug.to_rmm())
            raise SystemExit("no error")
        except MemoryError:
            pass
        more = tenure.DeviceBuffer(size=24)
        held = {name: one.live_bytes for name, one in tenure.report().libraries.items()}
        assert held == {"rmm": 4 << 20, "the program": 1024}, held
        del theirs, adapted
        assert tenure.report().libraries["rmm"].live_bytes == 0
        tenure.report(False)
        """
    )
