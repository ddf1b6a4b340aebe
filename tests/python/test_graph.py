"""Memory of graphs: what a pool serves on a capturing stream, from Python."""

from __future__ import annotations

import gc
import threading
import time

import pytest
import tenure
from tenure import PER_THREAD_DEFAULT_STREAM, DeviceBuffer, SharedArena, Stream, capture_scope, sim

MODES = ["global", "thread_local", "relaxed"]
SIZE = 1 << 20


def contents(buffer, stream) -> bytes:
    return buffer.tobytes(stream)


def wait_for(pool, nothing=True):
    """The driver tells the end of a graph on a thread of its own."""
    for _ in range(2000):
        pool.trim()
        if (pool.graph_bytes() == 0) == nothing:
            return True
        time.sleep(0.001)
    return False


@pytest.fixture
def source(pool, stream):
    """Eager memory that graphs read, and which outlives them."""
    return DeviceBuffer.to_device(b"tenure!!" * (SIZE // 8), stream=stream, mr=pool)


def record(source, stream, pool, mode):
    """A copy through temporaries, whose memory is used again before the capture ends."""
    sim.capture_begin(stream, mode)
    output = DeviceBuffer(size=SIZE, stream=stream, mr=pool)
    temporary = source.copy(stream=stream, mr=pool)
    output.copy_from_device(temporary, stream=stream)
    where = temporary.ptr
    del temporary
    again = DeviceBuffer(size=SIZE, stream=stream, mr=pool)
    assert again.ptr == where
    again.copy_from_device(output, stream=stream)
    del again
    return sim.capture_end(stream), output


@pytest.mark.parametrize("mode", MODES)
def test_a_graph_while_other_threads_use_the_pool(mode, pool, stream, source):
    stream.synchronize()
    stop = threading.Event()
    failures = []

    def others():
        try:
            own = Stream(non_blocking=True)
            size = 1000
            while not stop.is_set():
                buffer = DeviceBuffer(size=size, stream=own, mr=pool)
                buffer.copy_from_host(b"x" * min(size, 5000), own)
                buffer.close()
                size = size * 3 % 4_000_037 + 1
                if size % 8 == 0:
                    pool.trim()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=others) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        graph, output = record(source, stream, pool, mode)
        for _ in range(5):
            graph.launch(stream)
        assert contents(output, stream) == b"tenure!!" * (SIZE // 8)
        assert pool.graph_bytes() >= 2 * SIZE
        output.close()
        graph.launch(stream)
        stream.synchronize()
        graph.close()
        graph.close()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert wait_for(pool)


def test_buffers_end_whenever_they_like(pool, stream, source):
    stream.synchronize()
    graph, output = record(source, stream, pool, "global")
    graph.launch(stream)
    # The graph first: the memory stays while the buffer does.
    graph.close()
    stream.synchronize()
    time.sleep(0.05)
    pool.trim()
    assert pool.graph_bytes() > 0
    assert contents(output, stream)[:8] == b"tenure!!"
    # Eager growth moves it out of the graph's memory.
    output.resize(2 * SIZE, stream=stream)
    assert contents(output, stream)[:8] == b"tenure!!"
    assert wait_for(pool)


def test_graphs_share_an_arena(pool, stream, source):
    stream.synchronize()
    arena = SharedArena()
    graphs = []
    with capture_scope(stream, arena) as entered:
        assert entered is arena
        for _ in range(4):
            graphs.append(record(source, stream, pool, "global")[0])
            alone = pool.graph_bytes()
    assert alone <= 4 * SIZE
    for graph in graphs:
        graph.launch(stream)
    stream.synchronize()
    del graphs, graph
    gc.collect()
    time.sleep(0.05)
    pool.trim()
    assert pool.graph_bytes() == alone, "the name keeps it"
    del arena, entered
    assert wait_for(pool)


def test_the_per_thread_stream_is_announced(cuda):
    pool = tenure.mr.PoolMemoryResource(cuda, initial_pool_size=8 * SIZE)
    stream = PER_THREAD_DEFAULT_STREAM
    source = DeviceBuffer.to_device(b"tenure!!" * (SIZE // 8), stream=stream, mr=pool)
    stream.synchronize()
    with capture_scope():
        graph, output = record(source, stream, pool, "thread_local")
    assert pool.graph_bytes() > 0
    graph.launch(stream)
    assert contents(output, stream)[:8] == b"tenure!!"
    graph.close()
    output.close()
    assert wait_for(pool)


def test_what_cannot_serve_refuses(cuda, pool, stream, source):
    stream.synchronize()
    others = [
        cuda,
        tenure.mr.ManagedMemoryResource(),
        tenure.mr.PinnedHostMemoryResource(),
        tenure.mr.PoolMemoryResource(tenure.mr.StatisticsResourceAdaptor(cuda)),
    ]
    if tenure.device_info()["memory_pools"]:
        others.append(tenure.mr.CudaAsyncMemoryResource())
    for mode in MODES:
        sim.capture_begin(stream, mode)
        for mr in others:
            with pytest.raises(NotImplementedError, match="capturing"):
                DeviceBuffer(size=100, stream=stream, mr=mr)
        with pytest.raises(NotImplementedError, match="capturing"):
            source.resize(2 * SIZE, stream=stream)
        with pytest.raises(NotImplementedError, match="capturing"):
            stream.synchronize()
        with pytest.raises(NotImplementedError, match="capturing"):
            stream.query()
        # What waits is refused before anything is recorded: the graph would use memory that is gone.
        with pytest.raises(NotImplementedError, match="capturing"):
            source.tobytes(stream)
        with pytest.raises(NotImplementedError, match="capturing"):
            source.copy_from_host(b"never", stream)
        with pytest.raises(NotImplementedError, match="capturing"):
            source.copy_to_host(bytearray(SIZE), stream)
        with pytest.raises(NotImplementedError, match="capturing"):
            DeviceBuffer.to_device(b"never", stream=stream, mr=pool)
        graph = sim.capture_end(stream)
        graph.launch(stream)
        stream.synchronize()
        graph.close()
    assert source.nbytes == SIZE
    assert source.tobytes(stream) == b"tenure!!" * (SIZE // 8)
    assert wait_for(pool)


def test_scopes_that_cannot_be(stream):
    with pytest.raises(ValueError, match="legacy"):
        capture_scope(tenure.LEGACY_DEFAULT_STREAM).__enter__()
    with pytest.raises(TypeError, match="SharedArena"):
        capture_scope(stream, "arena")
    with pytest.raises(TypeError, match="stream"):
        capture_scope(7)
    with pytest.raises(RuntimeError, match="__enter__"):
        capture_scope(stream).__exit__(None, None, None)
    with pytest.raises(TypeError, match="pickled"):
        SharedArena().__reduce__()
    with pytest.raises(ValueError, match="relaxed"):
        sim.capture_begin(stream, "loose")
    arena = SharedArena()
    found = []

    def enter():
        try:
            with capture_scope(stream, arena):
                pass
        except ValueError as error:
            found.append(str(error))

    with capture_scope(stream, arena), capture_scope(stream, arena):
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    assert len(found) == 1 and "another thread" in found[0]


def test_a_graph_of_cupy(pool):
    cupy = pytest.importorskip("cupy")
    if sim.active():
        pytest.skip("needs a GPU")
    for mode in MODES:
        stream = cupy.cuda.Stream(non_blocking=True)
        source = cupy.arange(SIZE, dtype=cupy.int32)
        double = cupy.ElementwiseKernel("int32 x", "int32 y", "y = 2 * x", "tenure_double")
        double(source, cupy.empty_like(source))
        cupy.cuda.Device().synchronize()

        def array(buffer):
            memory = cupy.cuda.UnownedMemory(buffer.ptr, buffer.nbytes, buffer)
            return cupy.ndarray((SIZE,), cupy.int32, cupy.cuda.MemoryPointer(memory, 0))

        kind = {"global": 0, "thread_local": 1, "relaxed": 2}[mode]
        with stream:
            stream.begin_capture(kind)
            output = DeviceBuffer(size=4 * SIZE, stream=stream, mr=pool)
            temporary = DeviceBuffer(size=4 * SIZE, stream=stream, mr=pool)
            double(source, array(temporary))
            double(array(temporary), array(output))
            temporary.close()
            graph = stream.end_capture()
        for _ in range(5):
            graph.launch(stream)
        # Eager work that would destroy the result if it got the graph's memory.
        for _ in range(20):
            other = DeviceBuffer(size=4 * SIZE, stream=stream, mr=pool)
            with stream:
                array(other).fill(-1)
            other.close()
            graph.launch(stream)
        stream.synchronize()
        assert (array(output) == 4 * cupy.arange(SIZE, dtype=cupy.int32)).all()
        del graph
        output.close()
        assert wait_for(pool)


def test_a_graph_of_pytorch(pool):
    torch = pytest.importorskip("torch")
    if sim.active() or not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    stream = torch.cuda.Stream()
    source = torch.arange(SIZE, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        buffer = DeviceBuffer(size=4 * SIZE, stream=stream, mr=pool)
        output = torch.from_dlpack(buffer).view(torch.int32)
        torch.add(source, 5, out=output)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(output, source + 5)
    assert pool.graph_bytes() >= 4 * SIZE
