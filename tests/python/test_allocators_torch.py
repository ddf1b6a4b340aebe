"""PyTorch on tenure's memory.

Without PyTorch, tenure's functions are called from C++ as PyTorch calls them, with classes of its names
(`torch_stand_in.cpp`). With PyTorch and a GPU both routes are tried in processes of their own.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import DEVICE
from plugs import run

HERE = Path(__file__).parent
COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
FLAGS = "-std=c++17 -O1 -Wall -Wextra -Werror -fPIC -shared -fvisibility=hidden".split()
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory) -> dict[str, str]:
    """The stand-in as today's PyTorch has it, as an older one had it, and without the exception."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("torch")
    made = {}
    for name, options in {"new": [], "old": ["-DOLD"]}.items():
        path = folder / f"libc10_{name}.so"
        subprocess.run(
            [COMPILER, *FLAGS, *options, str(HERE / "torch_stand_in.cpp"), "-o", str(path), f"-Wl,-soname,{path.name}"],
            check=True,
        )
        made[name] = str(path)
    return made


DRIVE = """
    import ctypes, gc, sys, threading, tenure
    from tenure import _tenure
    library = ctypes.CDLL(sys.argv[1])
    prepared = _tenure._torch_prepare(sys.argv[2])
    # Like PyTorch, without the lock of the interpreter.
    library.drive_malloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p,
                                     ctypes.POINTER(ctypes.c_void_p), ctypes.c_char_p, ctypes.c_size_t]
    library.drive_free.argtypes = [ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    library.drive_record.argtypes = [ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]
    library.drive_reset.argtypes = [ctypes.c_size_t]
    library.ask_cache_info.restype = ctypes.c_long
    def malloc(size, stream=0, device=0, function="malloc"):
        out, text = ctypes.c_void_p(), ctypes.create_string_buffer(4096)
        kind = library.drive_malloc(prepared[function], size, device, stream, out, text, 4096)
        return kind, out.value or 0, text.value.decode()
    def free(ptr, size, stream=0, device=0):
        library.drive_free(prepared["free"], ptr, size, device, stream)
    mr = tenure.mr
    pool = mr.PoolMemoryResource(mr.CudaMemoryResource())
    MIB = 1 << 20
"""


def drive(libraries: dict[str, str], code: str, which: str = "new", library: str | None = None) -> str:
    path = libraries[which]
    return run(DRIVE + code, path, library or os.path.basename(path))


@needs_compiler
@pytest.mark.needs_sim
@pytest.mark.parametrize("which", ["new", "old"])
def test_out_of_memory_is_pytorchs_exception(libraries, which):
    drive(
        libraries,
        """
    assert prepared["out_of_memory"] is True
    limited = mr.LimitingResourceAdaptor(pool, MIB)
    _tenure._torch_resource(limited)
    for _ in range(3):
        kind, _, text = malloc(2 * MIB)
        assert kind == 1 and text.startswith("out of memory: 2.00 MiB"), (kind, text)
    kind, ptr, _ = malloc(1000)
    assert kind == 0 and limited.owns(ptr), "it works on"
    assert _tenure._torch_figures(0)["failures"] == 3
    free(ptr, 1000)
    assert pool.info().live_count == 0
    """,
        which,
    )


@needs_compiler
@pytest.mark.needs_sim
def test_without_pytorchs_exception_there_is_still_one(libraries):
    drive(
        libraries,
        """
    assert prepared["out_of_memory"] is False
    _tenure._torch_resource(mr.LimitingResourceAdaptor(pool, MIB))
    kind, _, text = malloc(2 * MIB)
    assert kind == 3 and text.startswith("out of memory: 2.00 MiB"), (kind, text)
    """,
        library="libc10_that_is_not_loaded.so",
    )


@needs_compiler
@pytest.mark.needs_sim
def test_other_failures_are_other_exceptions(libraries):
    drive(
        libraries,
        """
    def refuse(nbytes, stream): raise ValueError("not today")
    _tenure._torch_resource(mr.CallbackMemoryResource(refuse, lambda *_: None))
    kind, _, text = malloc(100)
    assert kind == 3 and "not today" in text, (kind, text)
    # A resource whose exception is a lack of memory is one.
    def full(nbytes, stream): raise MemoryError("full")
    _tenure._torch_resource(mr.CallbackMemoryResource(full, lambda *_: None))
    assert malloc(100)[0] == 1
    """,
    )


@needs_compiler
@pytest.mark.needs_sim
def test_sizes_of_zero_are_null_and_no_failure(libraries):
    drive(
        libraries,
        """
    for function in ("malloc", "segment_malloc"):
        assert malloc(0, function=function) == (0, 0, "")
    free(0, 0)
    assert _tenure._torch_figures(0)["count"]["all"]["allocated"] == 0
    """,
    )


@needs_compiler
@pytest.mark.needs_sim
def test_blocks_go_home(libraries):
    drive(
        libraries,
        """
    other = mr.PoolMemoryResource(mr.CudaMemoryResource())
    mr.set_current_device_resource(pool)
    blocks = [malloc(1000)[1] for _ in range(10)]
    mr.set_current_device_resource(other)
    theirs = malloc(1000)[1]
    assert (pool.info().live_count, other.info().live_count) == (10, 1)
    for block in blocks: free(block, 1000)
    assert (pool.info().live_count, other.info().live_count) == (0, 1)
    # A resource that was chosen counts, whatever is current; the old one is let go.
    mr.reset_current_device_resource()
    _tenure._torch_resource(pool)
    mine = malloc(1000)[1]
    assert pool.owns(mine)
    _tenure._torch_resource(None)
    del pool
    gc.collect()
    assert type(mr.owner_of(mine)) is mr.PoolMemoryResource, "the block keeps its resource"
    free(mine, 1000); free(theirs, 1000)
    assert mr.misuse_count() == 0 and other.info().live_count == 0
    free(theirs, 1000)   # PyTorch does not do this; nothing happens
    assert mr.misuse_count() == 0
    """,
    )


@needs_compiler
@pytest.mark.needs_sim
def test_segments_of_a_pool_are_null_on_failure_and_not_counted(libraries):
    drive(
        libraries,
        """
    limited = mr.LimitingResourceAdaptor(pool, 4 * MIB)
    _tenure._torch_resource(limited)
    kind, segment, _ = malloc(2 * MIB, function="segment_malloc")
    assert kind == 0 and limited.owns(segment)
    assert malloc(8 * MIB, function="segment_malloc") == (0, 0, "")
    assert _tenure._torch_figures(0)["bytes"]["all"]["allocated"] == 0 and _tenure._torch_blocks(0) == []
    assert not _tenure._torch_used()
    free(segment, 2 * MIB)
    assert pool.info().live_count == 0
    """,
    )


@needs_compiler
@pytest.mark.needs_sim
def test_record_stream_delays_the_next_use(libraries):
    drive(
        libraries,
        """
    tight = mr.PoolMemoryResource(mr.CudaMemoryResource(), 4 * MIB, 4 * MIB)
    _tenure._torch_resource(tight)
    mine, other, third = (tenure.Stream(non_blocking=True) for _ in range(3))
    block = malloc(4 * MIB, mine.handle)[1]
    tenure.sim.busy(other, 300)
    library.drive_record(prepared["record_stream"], block, other.handle)
    free(block, 4 * MIB, mine.handle)
    kind, taken, _ = malloc(4 * MIB, third.handle)
    # There is no other memory: either the work was waited for, or what comes on this stream waits for it.
    assert kind == 0 and (other.query() or not third.query()), "the block was given away while another stream used it"
    other.synchronize()
    free(taken, 4 * MIB, third.handle)
    _tenure._torch_resource(pool)
    # Without it the block comes back on its stream at once.
    block = malloc(MIB, mine.handle)[1]
    free(block, MIB, mine.handle)
    assert malloc(MIB, mine.handle)[1] == block
    library.drive_record(prepared["record_stream"], 4096, other.handle)   # not ours: nothing happens
    assert tenure.sim.violations() == 0
    """,
    )


@needs_compiler
@pytest.mark.needs_sim
def test_streams_that_end_are_told(libraries):
    """A stream that is not PyTorch's own is carried as a bare value: its block is still good when it is gone."""
    drive(
        libraries,
        """
    _tenure._torch_resource(pool)
    stream = tenure.Stream()
    _tenure._torch_external(stream.handle)
    mr.set_current_device_resource(pool)
    block = malloc(1000, stream.handle)[1]
    assert pool.owns(block)
    value = stream.handle
    del stream
    gc.collect()
    free(block, 1000, value)
    assert pool.info().live_count == 0 and tenure.sim.violations() == 0
    _tenure._torch_resource(None)
    stream = tenure.Stream()
    _tenure._torch_external(stream.handle)
    block = malloc(1000, stream.handle)[1]
    assert pool.owns(block), "the table is read for the device that PyTorch says"
    free(block, 1000, stream.handle)
    """,
    )


@needs_compiler
@pytest.mark.needs_sim
def test_figures_are_named_as_pytorch_has_them(libraries):
    drive(
        libraries,
        """
    from tenure.allocators import torch as plug
    _tenure._torch_resource(pool)
    plug._chosen[0] = pool
    small, large = malloc(1000)[1], malloc(3 * MIB)[1]
    free(small, 1000)
    stats = plug.memory_stats(0)
    assert stats["allocated_bytes"]["all"] == dict(current=3 * MIB, peak=3 * MIB + 1000, allocated=3 * MIB + 1000, freed=1000)
    assert stats["allocated_bytes"]["small_pool"]["current"] == 0 and stats["allocation"]["large_pool"]["current"] == 1
    assert stats["reserved_bytes"]["all"]["current"] >= 3 * MIB and stats["num_ooms"] == 0
    _tenure._torch_reset_figures(0, False)
    assert plug.memory_stats(0)["allocated_bytes"]["all"]["peak"] == 3 * MIB
    _tenure._torch_reset_figures(0, True)
    assert plug.memory_stats(0)["allocation"]["all"]["allocated"] == 0
    segments = plug.memory_snapshot(1)["segments"]
    assert [s["address"] for s in segments] == [large] and segments[0]["blocks"][0]["state"] == "active_allocated"
    assert plug.memory_stats(5)["allocation"]["all"]["current"] == 0
    free(large, 3 * MIB)
    """,
    )


@needs_compiler
@pytest.mark.needs_sim
def test_what_is_cached_goes_back(libraries):
    drive(
        libraries,
        """
    for chosen in (pool, None):
        _tenure._torch_resource(chosen)
        mr.set_current_device_resource(pool)
        free(malloc(40 * MIB)[1], 40 * MIB)
        assert pool.info().reserved_bytes >= 40 * MIB
        library.drive_reset(prepared["reset"])
        assert pool.info().reserved_bytes < 40 * MIB
    """,
    )


@needs_compiler
@pytest.mark.needs_sim
def test_the_allocators_cache_info_is_answered(libraries):
    drive(
        libraries,
        """
    assert _tenure._torch_answer_cache_info([sys.argv[2]]) is False, "there is no allocator yet"
    library.install()
    assert library.ask_cache_info(0) == -1
    assert _tenure._torch_answer_cache_info(["libnothing.so"]) is False
    assert library.ask_cache_info(0) == -1
    assert _tenure._torch_answer_cache_info(["libnothing.so", sys.argv[2]]) is True
    largest = library.ask_cache_info(0)
    assert 0 < largest <= tenure.device_info(0)["total_bytes"], largest
    assert _tenure._torch_answer_cache_info([sys.argv[2]]) is True, "once is enough"
    assert library.ask_cache_info(0) == largest
    """,
    )


@needs_compiler
@pytest.mark.needs_sim
def test_threads_while_the_resource_is_replaced(libraries):
    drive(
        libraries,
        """
    pools = [pool, mr.PoolMemoryResource(mr.CudaMemoryResource())]
    stop, wrong = threading.Event(), []
    def work(number):
        stream = tenure.Stream()
        live = []
        for step in range(500):
            size = 256 + (number * 977 + step * 131) % 9000
            kind, ptr, text = malloc(size, stream.handle)
            if kind: wrong.append(text)
            live.append((ptr, size))
            if len(live) > 16:
                ptr, size = live.pop((step * 7) % 16)
                free(ptr, size, stream.handle)
        for ptr, size in live: free(ptr, size, stream.handle)
        stream.synchronize()
        streams.append(stream)
    streams = []
    def replace():
        turn = 0
        while not stop.is_set():
            turn += 1
            if turn % 3 == 0: _tenure._torch_resource(None)
            elif turn % 3 == 1: _tenure._torch_resource(pools[turn % 2])
            else: mr.set_current_device_resource(mr.PoolMemoryResource(mr.CudaMemoryResource()))
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    changer = threading.Thread(target=replace)
    changer.start()
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    stop.set(); changer.join()
    assert not wrong, wrong[:3]
    mr.reset_current_device_resource()
    assert [each.info().live_count for each in pools] == [0, 0] and _tenure._torch_blocks(0) == []
    assert mr.misuse_count() == 0 and tenure.sim.violations() == 0
    """,
    )


@needs_compiler
@pytest.mark.needs_sim
def test_blocks_alive_at_exit(libraries):
    for _ in range(3):
        drive(
            libraries,
            """
    mr.set_current_device_resource(pool)
    stream = tenure.Stream()
    keep = [malloc(1000)[1], malloc(1000, stream.handle)[1]]
    import atexit
    atexit.register(free, keep[0], 1000)
    del pool
    """,
        )


@needs_compiler
@pytest.mark.needs_sim
def test_a_forked_child_frees_nothing_and_ends(libraries):
    """While another thread of the parent allocates, so that its locks may be held when the child is made."""
    drive(
        libraries,
        """
    import os, warnings
    warnings.simplefilter("ignore")
    _tenure._torch_resource(pool)
    kept, stop = malloc(1000)[1], threading.Event()
    def work():
        while not stop.is_set(): free(malloc(3000)[1], 3000)
    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(20):
        child = os.fork()
        if child == 0:
            free(kept, 1000)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    thread.join()
    assert pool.info().live_count == 1, "the parent's block is the parent's"
    free(kept, 1000)
    assert pool.info().live_count == 0 and mr.misuse_count() == 0
    """,
    )


# ------------------------------------------------------------------ with PyTorch, on a GPU

has_torch = importlib.util.find_spec("torch") is not None
on_gpu = pytest.mark.skipif(DEVICE != "cuda" or not has_torch, reason="needs a GPU and PyTorch")

ROUTES = ["process", "pool"]

PLUGGED = """
    import gc, sys, threading, tenure
    mr = tenure.mr
    MIB = 1 << 20
    pool = mr.PoolMemoryResource(mr.CudaMemoryResource())
    mr.set_current_device_resource(pool)
    table = tenure.enable("torch", route={route!r})
    import torch
    table = tenure.enable("torch", route={route!r})
    row = table["torch"]
    assert (row.state, row.route) == ("on", {route!r}), table
"""


def plugged(route: str, code: str) -> str:
    return run(PLUGGED.format(route=route) + code, timeout=300)


@on_gpu
@pytest.mark.parametrize("route", ROUTES)
def test_tensors(route):
    plugged(
        route,
        """
    tensor = torch.arange(1000, dtype=torch.float32, device="cuda")
    assert pool.owns(tensor.data_ptr()) and float(tensor.sum()) == 499500
    assert torch.empty(0, device="cuda").numel() == 0
    view = tensor[10:]
    del tensor
    gc.collect()
    assert pool.info().live_count >= 1 and float(view[0]) == 10
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        other = torch.ones(MIB, device="cuda")
        assert pool.owns(other.data_ptr())
    other.record_stream(torch.cuda.current_stream())
    side.synchronize()
    assert float(other.sum()) == MIB
    """,
    )


@on_gpu
@pytest.mark.parametrize("route", ROUTES)
def test_out_of_memory_is_torchs(route):
    plugged(
        route,
        """
    kept = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    limited = mr.LimitingResourceAdaptor(pool, 64 * MIB)
    tenure.enable("torch", mr=limited)
    try:
        torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        print(str(error).splitlines()[0])
    else:
        raise AssertionError("no error beyond the limit")
    assert torch.empty(MIB, dtype=torch.uint8, device="cuda").numel() == MIB
    """,
    )


@on_gpu
@pytest.mark.parametrize("route", ROUTES)
def test_a_training_step_and_its_gradients(route):
    """Whose the gradients are, which are made on the threads of backward."""
    plugged(
        route,
        """
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 16)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    data, target = torch.randn(64, 512, device="cuda"), torch.randint(0, 16, (64,), device="cuda")
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(data), target)
        loss.backward()
        owned = [pool.owns(p.grad.untyped_storage().data_ptr()) for p in model.parameters()]
        assert all(owned), (owned, row)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0], losses
    assert all(pool.owns(p.data_ptr()) for p in model.parameters())
    """,
    )


@on_gpu
def test_questions_about_memory_are_answered():
    plugged(
        "process",
        """
    kept = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
    before = torch.cuda.memory_allocated()
    assert before >= 8 * MIB and torch.cuda.max_memory_allocated() >= before
    assert torch.cuda.memory_reserved() >= before and torch.cuda.max_memory_reserved() >= before
    big = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.max_memory_allocated() >= before + 32 * MIB
    del big
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() == before
    torch.cuda.reset_accumulated_memory_stats()
    assert "Allocated memory" in torch.cuda.memory_summary()
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == before and "num_ooms" in stats
    assert any(s["address"] == kept.data_ptr() for s in torch.cuda.memory_snapshot())
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    try:
        torch.cuda.set_per_process_memory_fraction(0.5)
    except RuntimeError as error:
        assert "LimitingResourceAdaptor" in str(error)
    else:
        raise AssertionError("a limit was taken that nobody keeps")
    free, total = torch.cuda.mem_get_info()
    assert 0 < free < total
    torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    reserved = pool.info().reserved_bytes
    torch.cuda.empty_cache()
    assert pool.info().reserved_bytes <= reserved
    torch.backends.cudnn.benchmark = True
    if not any("cudnn.benchmark" in note for note in row.notes):
        layer = torch.nn.Conv2d(3, 16, 3).cuda()
        assert layer(torch.randn(4, 3, 32, 32, device="cuda")).shape == (4, 16, 30, 30)
    try:
        torch.cuda.memory._record_memory_history()
    except RuntimeError as error:
        assert 'route="pool"' in str(error), error
    else:
        print("this PyTorch records a history here")
    """,
    )


@on_gpu
def test_record_stream_really_delays():
    plugged(
        "process",
        """
    tight = mr.PoolMemoryResource(mr.CudaMemoryResource(), 64 * MIB, 64 * MIB)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    tenure.enable("torch", mr=tight)
    block = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(side):
        torch.cuda._sleep(2_000_000_000)
        block.fill_(1)
    block.record_stream(side)
    del block
    taken = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    # There is no other memory: either the work was waited for, or what comes on this stream waits for it.
    assert side.query() or not torch.cuda.current_stream().query(), "the block was given away while another stream used it"
    torch.cuda.synchronize()
    """,
    )


@on_gpu
def test_the_table_is_read_and_blocks_go_home():
    plugged(
        "process",
        """
    first, second = mr.StatisticsResourceAdaptor(pool), mr.StatisticsResourceAdaptor(mr.CudaMemoryResource())
    mr.set_current_device_resource(first)
    tensor = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    assert first.allocation_counts.current_bytes == MIB
    mr.set_current_device_resource(second)
    del tensor
    gc.collect()
    assert first.allocation_counts.current_bytes == second.allocation_counts.current_bytes == 0
    with mr.using(first):
        inside = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    assert first.owns(inside.data_ptr())
    """,
    )


@on_gpu
@pytest.mark.parametrize("route", ROUTES)
def test_threads_and_streams_keep_their_patterns(route):
    plugged(
        route,
        """
    wrong = []
    def work(number):
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                live = []
                for step in range(200):
                    value = (number * 50 + step) % 251
                    live.append((torch.full((1000 + 997 * (step % 13),), value, dtype=torch.uint8, device="cuda"), value))
                    if len(live) > 8:
                        old, expected = live.pop(step % 8)
                        if not bool((old == expected).all()): wrong.append((number, step))
                stream.synchronize()
        except BaseException as error:
            wrong.append(error)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert not wrong, wrong[:3]
    """,
    )


@on_gpu
def test_a_graph_on_the_process_route():
    plugged(
        "process",
        """
    source, side = torch.ones(1000, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side):
        (source + 1) * 2
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = (source + 1) * 2
    source.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    assert float(result[5]) == 8
    keep = torch.full((1000,), 5.0, device="cuda")
    graph.replay()
    torch.cuda.synchronize()
    assert float(keep.sum()) == 5000 and float(result[5]) == 8, "the graph's memory is its own"
    """,
    )


@on_gpu
def test_too_late_for_the_process_route():
    run(
        """
        import tenure, torch
        early = torch.ones(10, device="cuda")
        try:
            tenure.enable("torch", route="process")
        except RuntimeError as error:
            assert 'route="pool"' in str(error)
        else:
            raise AssertionError("the allocator was changed")
        pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
        row = tenure.enable("torch", mr=pool)["torch"]
        assert row.route == "pool" and "cannot be changed" in row.notes[0]
        assert pool.owns(torch.empty(4 << 20, dtype=torch.uint8, device="cuda").data_ptr())
        assert tenure.disable("torch")["torch"].state == "off"
        assert not pool.owns(torch.empty(4 << 20, dtype=torch.uint8, device="cuda").data_ptr())
        assert float(early.sum()) == 10
        """,
        timeout=300,
    )


@on_gpu
def test_a_pytorch_that_asks_otherwise_gets_the_pool():
    run(
        """
        import tenure, torch
        del torch._C._cuda_resetAccumulatedMemoryStats
        row = tenure.enable("torch")["torch"]
        assert row.route == "pool", row
        assert "lacks what the process route needs" in row.notes[0] and "_cuda_resetAccumulatedMemoryStats" in row.notes[0], row
        """,
        timeout=300,
    )


@on_gpu
@pytest.mark.parametrize("order", ["import torch, tenure.allocators.torch", "import tenure.allocators.torch, torch"])
def test_the_hook_by_itself(order):
    run(
        f"""
        {order}
        import tenure
        torch.cuda.memory.change_current_allocator(tenure.allocators.torch.rmm_torch_allocator)
        tenure.mr.set_current_device_resource(tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource()))
        keep = torch.ones(1000, device="cuda")
        assert type(tenure.mr.owner_of(keep.data_ptr())) is tenure.mr.PoolMemoryResource
        assert torch.cuda.memory_allocated() >= 4000
        row = tenure.enable("torch")["torch"]
        assert row.route in ("process", "pool")
        """,
        timeout=300,
    )


@on_gpu
@pytest.mark.parametrize("route", ROUTES)
def test_tensors_alive_at_exit(route):
    for _ in range(3):
        plugged(
            route,
            """
    keep = [torch.ones(MIB, device="cuda") for _ in range(4)]
    sys.modules["kept"] = keep
    mr.set_current_device_resource(mr.CudaMemoryResource())
    keep.append(torch.zeros(1000, device="cuda"))
    del pool
    """,
        )


@on_gpu
def test_a_fork_after_it():
    """DataLoader's workers are forks: they take nothing of the GPU's and end well."""
    plugged(
        "process",
        """
    from torch.utils.data import DataLoader, TensorDataset
    data = TensorDataset(torch.arange(100.0))
    total = 0.0
    for (batch,) in DataLoader(data, batch_size=10, num_workers=2, pin_memory=True):
        total += float(batch.cuda().sum())
    assert total == 4950
    """,
    )
