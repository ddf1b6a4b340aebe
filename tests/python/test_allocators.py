"""`tenure.enable` and the hooks of CuPy, Numba, Warp and cuda.core.

What needs a library is skipped where it is not installed; what needs a GPU runs in the bundle of the GPU. On the simulated
device the hooks are called as their library would call them.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import textwrap
import threading

import pytest
import tenure
from conftest import DEVICE, SOURCE_PACKAGE, child
from tenure.allocators import Row, Table, _libraries

mr = tenure.mr
MIB = 1 << 20
gpu = pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")


def has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


needs_cupy = pytest.mark.skipif(not has("cupy"), reason="CuPy is not installed")
needs_numba = pytest.mark.skipif(not has("numba_cuda"), reason="numba-cuda is not installed")
needs_mlir = pytest.mark.skipif(not has("numba_cuda_mlir"), reason="numba-cuda-mlir is not installed")
needs_core = pytest.mark.skipif(not has("cuda.core"), reason="cuda-core is not installed")
needs_warp = pytest.mark.skipif(not has("warp"), reason="warp-lang is not installed")


def run(code: str, *arguments: str, timeout: float = 120, **environment: str) -> str:
    """Runs a program of its own and gives what it printed; it must end well and say nothing else."""
    done = child(textwrap.dedent(code), *arguments, timeout=timeout, **environment)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr and "tenure:" not in done.stderr, done.stderr
    return done.stdout


# ------------------------------------------------------------------ without any library


def test_importing_the_hooks_imports_no_library():
    run(
        """
        import sys, tenure
        import tenure.allocators.cupy, tenure.allocators.numba, tenure.allocators.torch
        import tenure.allocators.warp, tenure.allocators.cuda_core
        for name in ("cupy", "numba", "torch", "warp", "cuda.core", "numpy"):
            assert name not in sys.modules, name
        """
    )


LACKED = {
    "cupy": "cupy-cuda13x",
    "torch": "torch",
    "numba": "numba-cuda",
    "warp": "warp-lang",
    "cuda.core": "cuda-core",
    "rmm": "rmm-cu13",
}


@pytest.mark.parametrize("library", LACKED)
def test_a_library_that_is_not_installed_is_named_with_its_package(library):
    """Whatever is installed here: the finder that would find it is told not to."""
    told = run(
        f"""
        import sys, importlib.util
        from importlib.abc import MetaPathFinder
        class Hide(MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name.partition(".")[0] in ("cupy", "torch", "numba", "numba_cuda", "warp", "cuda", "numba_cuda_mlir", "rmm"):
                    raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        import tenure
        sys.meta_path.insert(0, Hide())
        try:
            tenure.enable({library!r})
        except ModuleNotFoundError as error:
            print(error)
        rows = tenure.enable()
        assert all(row.state == "not installed" for row in rows), rows
        """
    )
    assert LACKED[library] in told


def test_waiting_imports_no_library():
    run(
        """
        import sys, tenure
        rows = tenure.enable()
        assert all(row.state in ("waiting", "not installed") for row in rows), rows
        for name in ("cupy", "numba", "torch", "warp", "cuda.core", "numba_cuda_mlir"):
            assert name not in sys.modules, name
        assert len(tenure.disable()) == sum(row.state == "waiting" for row in rows)
        """
    )


def test_names_that_are_no_library_are_refused():
    with pytest.raises(ValueError, match=r"no plug for 'numpy'.*cupy"):
        tenure.enable("numpy")
    with pytest.raises(TypeError, match="a name or a module"):
        tenure.enable(3)
    with pytest.raises(TypeError, match=r"resource of tenure\.mr"):
        tenure.enable("cupy", mr=object())
    with pytest.raises(ValueError, match="route"):
        tenure.enable("cupy", route="sideways")


@pytest.mark.needs_sim
def test_the_simulated_device_is_refused_unless_it_was_asked_for():
    environment = {key: value for key, value in os.environ.items() if key != "TENURE_DEVICE"}
    code = "import tenure\ntry:\n    tenure.enable('cupy')\nexcept RuntimeError as e:\n    print(e)"
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert "TENURE_DEVICE=sim" in done.stdout, done


def test_a_table_reads_like_one():
    table = Table([Row("cupy", "14.2.0", "on", "set_allocator", "current", ("a note",)), Row("warp", "", "off", "", "")])
    assert table["cupy"] is table[0] and len(table) == 2 and [row.library for row in table] == ["cupy", "warp"]
    lines = str(table).splitlines()
    assert lines[0].split() == ["library", "version", "state", "route", "resource"]
    assert lines[1].startswith("cupy") and lines[2].strip() == "a note" and lines[3].startswith("warp")
    with pytest.raises(KeyError):
        table["torch"]


def test_versions_are_told_apart():
    cupy = _libraries.LIBRARIES["cupy"]
    assert _libraries.is_tested(cupy, "14.2.9") and not _libraries.is_tested(cupy, "14.20.0")
    assert _libraries.named("pytorch").name == "torch" and _libraries.named("numba.cuda").name == "numba"


# A package that stands in for CuPy: only for the import hook and what `enable` does with it.
STAND_IN = """
__version__ = "99.0"
class cuda:
    _now = staticmethod(lambda size: "its own")
    @staticmethod
    def set_allocator(f): cuda._now = f
    @staticmethod
    def get_allocator(): return cuda._now
"""


@pytest.fixture
def stand_in(tmp_path):
    (tmp_path / "cupy").mkdir()
    (tmp_path / "cupy" / "__init__.py").write_text(STAND_IN)
    # The package of the source tree, where it is tested, and the one that stands in.
    own = [str(SOURCE_PACKAGE)] if SOURCE_PACKAGE.is_dir() and "TENURE_TEST_INSTALLED" not in os.environ else []
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join([str(tmp_path), *own, *inherited])


def test_a_library_that_is_imported_later_is_turned_on_then(stand_in):
    run(
        """
        import sys, tenure
        table = tenure.enable("cupy")
        assert table["cupy"].state == "waiting" and "cupy" not in sys.modules
        import cupy
        assert cupy.cuda.get_allocator() is tenure.allocators.cupy.tenure_cupy_allocator
        # The module is as an ordinary import leaves it.
        assert type(cupy.__loader__).__name__ == "SourceFileLoader" and cupy.__spec__.loader is cupy.__loader__
        row = tenure.enable("cupy")["cupy"]
        assert row.state == "on" and row.version == "99.0" and "was not tested" in row.notes[-1]
        assert tenure.disable("cupy")["cupy"].state == "off"
        assert cupy.cuda.get_allocator()(1) == "its own"
        assert not any(type(f).__name__ == "_Watch" for f in sys.meta_path)
        """,
        PYTHONPATH=stand_in,
    )


def test_the_module_itself_and_import_before_are_the_same(stand_in):
    run(
        """
        import cupy, tenure
        pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
        row = tenure.enable(cupy, mr=pool)["cupy"]
        assert (row.state, row.resource) == ("on", "PoolMemoryResource")
        first = cupy.cuda.get_allocator()
        tenure.enable(cupy, mr=pool)
        assert cupy.cuda.get_allocator() is first, "it was built twice"
        tenure.enable(cupy)
        assert cupy.cuda.get_allocator() is tenure.allocators.cupy.tenure_cupy_allocator
        # Somebody else's allocator is left alone.
        theirs = lambda size: "theirs"
        cupy.cuda.set_allocator(theirs)
        row = tenure.disable("cupy")["cupy"]
        assert cupy.cuda.get_allocator() is theirs and "left as it is" in row.notes[0]
        """,
        PYTHONPATH=stand_in,
    )


def test_an_import_that_is_no_longer_waited_for(stand_in):
    run(
        """
        import tenure
        tenure.enable("cupy")
        row = tenure.disable("cupy")["cupy"]
        assert row.state == "off" and "not waited for" in row.notes[0]
        import cupy
        assert cupy.cuda.get_allocator()(1) == "its own"
        assert len(tenure.disable()) == 0
        """,
        PYTHONPATH=stand_in,
    )


def test_a_library_that_fails_after_its_import(stand_in):
    """Named: the import fails with the reason. Not named: a warning, and the library works on."""
    broken = """
        import sys, warnings, tenure, tenure.allocators.cupy as plug
        def fail(mr, route): raise RuntimeError("no such hook")
        plug._PLUGS["cupy"].turn_on = fail
    """
    run(
        broken
        + """
        tenure.enable("cupy")
        try:
            import cupy
        except RuntimeError as error:
            assert "no such hook" in str(error)
        else:
            raise AssertionError("the import went through")
        """,
        PYTHONPATH=stand_in,
    )
    run(
        broken
        + """
        tenure.enable()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            import cupy
        assert "no such hook" in str(seen[0].message) and cupy.cuda.get_allocator()(1) == "its own"
        """,
        PYTHONPATH=stand_in,
    )


# ------------------------------------------------------------------ CuPy


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


# ------------------------------------------------------------------ Numba


class Context:
    """What a manager holds weakly."""


@pytest.fixture(params=["numba", "numba-cuda-mlir"])
def numba_kind(request):
    module = {"numba": "numba_cuda", "numba-cuda-mlir": "numba_cuda_mlir"}[request.param]
    if not has(module):
        pytest.skip(f"{request.param} is not installed")
    name = {"numba": "numba.cuda", "numba-cuda-mlir": "numba_cuda_mlir.numba_cuda"}[request.param]
    try:
        driver = importlib.import_module(f"{name}.cudadrv.driver")
    except Exception as error:
        pytest.skip(f"{request.param} cannot be imported here: {type(error).__name__}")
    return request.param, driver


def test_numba_manager_follows_the_interface(numba_kind, pool):
    from tenure.allocators.numba import manager

    library, driver = numba_kind
    kind = manager(pool, library=library)
    assert kind is manager(pool, library=library), "it was built twice"
    assert kind is not manager(library=library) and issubclass(kind, driver.BaseCUDAMemoryManager)
    assert kind(context=None).interface_version == 1
    context = Context()
    made = kind(context=context)
    memory = made.memalloc(1000)
    assert isinstance(memory, driver.MemoryPointer) and memory.size == 1000 and pool.owns(int(memory.device_pointer))
    assert pool.info().live_count == 1
    view = memory.view(10, 20)
    del memory, view
    gc.collect()
    assert pool.info().live_count == 0
    forced = made.memalloc(10)
    forced.free()
    assert pool.info().live_count == 0
    with pytest.raises(RuntimeError, match="dead"):
        forced.free()
    with made.defer_cleanup():
        pass
    made.reset()


def test_numba_sizes_of_zero_do_not_collide(numba_kind, recorder):
    from tenure.allocators.numba import manager

    library, _ = numba_kind
    context = Context()
    made = manager(recorder.mr, library=library)(context=context)
    blocks = [made.memalloc(0) for _ in range(3)]
    assert [int(block.device_pointer) for block in blocks] == [0, 0, 0]
    del blocks
    assert recorder.allocated == [] and recorder.freed == []


def test_numba_blocks_go_home(numba_kind, recorder, pool):
    from tenure.allocators.numba import manager

    library, _ = numba_kind
    context = Context()
    made = manager(library=library)(context=context)
    mr.set_current_device_resource(recorder.mr)
    block = made.memalloc(100)
    mr.set_current_device_resource(pool)
    del block
    gc.collect()
    assert len(recorder.freed) == 1 and pool.info().live_count == 0


def test_numba_out_of_memory_is_numbas(numba_kind, pool):
    from tenure.allocators.numba import manager

    library, driver = numba_kind
    context = Context()
    made = manager(mr.LimitingResourceAdaptor(pool, MIB), library=library)(context=context)
    with pytest.raises(driver.CudaAPIError) as caught:
        made.memalloc(2 * MIB)
    assert caught.value.code == driver.binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    assert isinstance(caught.value, MemoryError) and isinstance(caught.value.__cause__, tenure.OutOfMemoryError)
    assert made.memalloc(1000).size == 1000


def test_numba_manager_of_the_environment(numba_kind):
    """The variable names one module for both libraries, which look there themselves."""
    _, driver = numba_kind
    told = run(
        f"""
        import tenure, importlib
        driver = importlib.import_module({driver.__name__!r})
        driver._ensure_memory_manager()
        context = driver.Context(None, None)
        made = context.memory_manager
        assert isinstance(made, driver.HostOnlyCUDAMemoryManager) and type(made).__name__ == "TenureNumbaManager"
        block = made.memalloc(100)
        print(type(tenure.mr.owner_of(int(block.device_pointer))).__name__)
        """,
        NUMBA_CUDA_MEMORY_MANAGER="tenure.allocators.numba",
    )
    assert told.strip() == "CudaMemoryResource"


@needs_numba
def test_numba_names(numba_kind):
    library, _ = numba_kind
    if library != "numba":
        pytest.skip("the plain names are Numba-CUDA's")
    from tenure.allocators import numba

    assert numba.TenureNumbaManager is numba.RMMNumbaManager is numba.manager()
    with pytest.raises(ValueError, match="numba-cuda-mlir"):
        numba.manager(library="numpy")
    with pytest.raises(TypeError, match=r"resource of tenure\.mr"):
        numba.manager(3)
    with pytest.raises(AttributeError):
        numba.nothing


def test_numba_enable_and_disable(numba_kind, pool):
    library, driver = numba_kind
    row = tenure.enable(library, mr=pool)[library]
    assert row.state == "on" and row.route == "memory manager" and any("stream" in note for note in row.notes)
    first = driver._memory_manager
    tenure.enable(library, mr=pool)
    assert driver._memory_manager is first and first.resource is pool
    tenure.enable(library)
    assert driver._memory_manager.resource is None
    assert tenure.disable(library)[library].state == "off"
    assert driver._memory_manager is driver.NumbaCUDAMemoryManager


@needs_numba
@gpu
@pytest.mark.parametrize("order", ["before", "after", "environment"])
def test_numba_arrays(order):
    """Turned on before Numba's first context, after it, and by the environment alone."""
    code = f"""
        import gc, sys
        order = {order!r}
        if order == "after":
            from numba import cuda
            early = cuda.to_device([1.0, 2.0])
        import tenure
        pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
        other = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
        tenure.mr.set_current_device_resource(pool)
        if order != "environment":
            tenure.enable("numba")
        import numpy
        from numba import cuda
        try:
            import numba.cuda.np.arrayobj
        except AttributeError as error:  # this Numba and this NumPy are not for each other
            print("no kernels:", error)
            sys.exit()
        @cuda.jit
        def double(array):
            at = cuda.grid(1)
            if at < array.size:
                array[at] *= 2
        array = cuda.to_device(numpy.arange(1000, dtype="f4"))
        assert pool.owns(array.__cuda_array_interface__["data"][0])
        double[8, 128](array)
        assert array.copy_to_host()[10] == 20
        assert cuda.device_array(0).size == 0
        count = pool.info().live_count
        tenure.mr.set_current_device_resource(other)
        del array
        gc.collect()
        assert pool.info().live_count == count - 1 and other.info().live_count == 0
        info = cuda.current_context().get_memory_info()
        assert 0 < info.free <= info.total
        limited = tenure.mr.LimitingResourceAdaptor(other, 1 << 20)
        tenure.mr.set_current_device_resource(limited)
        try:
            cuda.device_array(1 << 22, dtype="u1")
        except MemoryError as error:
            assert isinstance(error, cuda.cudadrv.driver.CudaAPIError)
        else:
            raise AssertionError("no error beyond the limit")
        keep = cuda.device_array(1000)
        if order == "after":
            assert early.copy_to_host()[1] == 2.0
        """
    extra = {"NUMBA_CUDA_MEMORY_MANAGER": "tenure.allocators.numba"} if order == "environment" else {}
    run(code, NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS="0", **extra)


@needs_numba
@gpu
def test_numba_handles_for_other_processes():
    """Plain memory has one; a pool's memory has a sentence."""
    run(
        """
        import tenure
        tenure.enable("numba")
        from numba import cuda
        plain = cuda.device_array(1000, dtype="u1")
        plain.get_ipc_handle()
        tenure.mr.set_current_device_resource(tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource()))
        try:
            cuda.device_array(1000, dtype="u1").get_ipc_handle()
        except RuntimeError as error:
            assert "PoolMemoryResource" in str(error) and "CudaMemoryResource()" in str(error), error
        else:
            print("this pool's memory has a handle")
        """
    )


# ------------------------------------------------------------------ Warp and cuda.core


@needs_warp
@gpu
def test_warp_arrays():
    run(
        """
        import gc, tenure
        pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
        row = tenure.enable("warp", mr=pool)["warp"]
        import warp
        warp.config.quiet = True
        tenure.enable("warp", mr=pool)
        array = warp.full(1000, 3.0, dtype=float, device="cuda:0")
        assert pool.owns(array.ptr) and array.numpy()[999] == 3.0
        stream = warp.Stream("cuda:0")
        with warp.ScopedStream(stream):
            other = warp.zeros(1000, dtype=float, device="cuda:0")
        del array, other
        gc.collect()
        warp.synchronize()
        assert pool.info().live_count == 0
        keep = warp.zeros(10, device="cuda:0")
        tenure.disable("warp")
        assert not pool.owns(warp.zeros(10, device="cuda:0").ptr)
        """
    )


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
def test_cuda_core_resource_is_one_of_cuda_cores(pool):
    core = pytest.importorskip("cuda.core")
    from tenure.allocators.cuda_core import memory_resource

    made = memory_resource(0, pool)
    assert isinstance(made, core.MemoryResource) and made.device_id == 0 and made.is_device_accessible
    assert not made.is_host_accessible and not made.is_managed
    with pytest.raises(TypeError, match=r"resource of tenure\.mr"):
        memory_resource(0, 3)


@needs_core
@pytest.mark.needs_sim
def test_cuda_core_resource_keeps_account(pool, recorder):
    """Called as cuda.core calls it, with a stream of tenure's, which has what is needed of one of cuda.core's."""
    pytest.importorskip("cuda.core")
    from tenure.allocators.cuda_core import _memory_resource_class

    kind = _memory_resource_class()
    first, second = tenure.Stream(), tenure.Stream()
    made = kind(0, recorder.mr)
    # `Buffer` of cuda.core wants a driver: what lies before it is what is tested here.
    with pytest.raises(ValueError, match="no block of this resource"):
        made.deallocate(4096, 10, stream=first)
    for free_on in (first, second):
        buffer = tenure.DeviceBuffer(size=100, stream=first, mr=recorder.mr)
        made._live[buffer.ptr] = (buffer, first.handle)
        ptr = buffer.ptr
        del buffer
        made.deallocate(ptr, 100, stream=free_on)
        assert recorder.freed[-1][:2] == (ptr, 100) and recorder.freed[-1][2].handle == free_on.handle
    assert made._live == {}


@needs_warp
@pytest.mark.needs_sim
def test_warp_allocator_keeps_account(pool, monkeypatch):
    import warp
    from tenure.allocators.warp import allocator

    stream = tenure.Stream()
    monkeypatch.setattr(warp, "get_cuda_device", lambda: None)
    monkeypatch.setattr(warp, "get_stream", lambda device: stream)
    made = allocator(pool)
    blocks = [made.allocate(1000) for _ in range(3)]
    assert all(pool.owns(block) for block in blocks) and pool.info().live_count == 3
    for block in blocks:
        made.deallocate(block, 1000)
    assert pool.info().live_count == 0
    with pytest.raises(ValueError, match="freed already"):
        made.deallocate(blocks[0], 1000)
    with pytest.raises(TypeError, match=r"resource of tenure\.mr"):
        allocator(3)
