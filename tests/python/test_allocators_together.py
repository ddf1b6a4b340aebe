"""CuPy, PyTorch, Numba and tenure's own buffers in one process on a GPU: they allocate, hand memory to each other without a copy
and free, on several threads and streams, while the current resource is replaced and dropped."""

from __future__ import annotations

import importlib.util

import pytest
from conftest import DEVICE
from plugs import run

LIBRARIES = ("cupy", "torch", "numba_cuda")
missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU"),
    pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}"),
]

IMPORTS = {
    "tenure first": """
        import tenure
        tenure.enable("cupy", "torch", "numba", route="process")
        import cupy, torch
        from numba import cuda
    """,
    "tenure last": """
        import torch, cupy
        from numba import cuda
        import tenure
        tenure.enable("cupy", "torch", "numba", route="process")
    """,
}

TOGETHER = """
import gc, random, threading
mr = tenure.mr
MIB = 1 << 20
counted, wrong, stop = [], [], threading.Event()

def fresh(keep):
    resource = mr.StatisticsResourceAdaptor(mr.PoolMemoryResource(mr.CudaMemoryResource()))
    if keep:
        counted.append(resource)
    return resource

def value_of(block):
    kind, array, value = block
    if kind == "numba":
        return cupy.asarray(array)
    if kind == "tenure":
        return cupy.asarray(array)
    if kind == "torch":
        return cupy.from_dlpack(array)
    return array

def make(kind, count, value):
    # Each is filled on the thread's stream of its library, and the host waits: the libraries' streams are not each other's.
    if kind == "cupy":
        array = cupy.full(count, value, dtype="u1")
        cupy.cuda.get_current_stream().synchronize()
    elif kind == "torch":
        array = torch.full((count,), value, dtype=torch.uint8, device="cuda")
        torch.cuda.current_stream().synchronize()
    elif kind == "numba":
        array = cuda.device_array(count, dtype="u1")
        cupy.asarray(array).fill(value)
        cupy.cuda.get_current_stream().synchronize()
    else:
        array = tenure.DeviceBuffer.to_device(bytes([value]) * count)
    return kind, array, value

def check(block):
    view = value_of(block)
    good = bool((view == block[2]).all())
    # What another library has used must be done before its owner drops it.
    cupy.cuda.get_current_stream().synchronize()
    return good

def work(number):
    chance = random.Random(number)
    try:
        cuda.current_context()
        with cupy.cuda.Stream(non_blocking=bool(number % 2)) as stream, torch.cuda.stream(torch.cuda.Stream()):
            live = []
            for step in range(150):
                kind = chance.choice(("cupy", "torch", "numba", "tenure"))
                live.append(make(kind, chance.choice((1, 100, 4000, 70_000, MIB)), chance.randrange(251)))
                if len(live) > 10:
                    block = live.pop(chance.randrange(10))
                    if not check(block):
                        wrong.append((number, step, block[0]))
                    del block
            for block in live:
                if not check(block):
                    wrong.append((number, "end", block[0]))
            del live, block
            stream.synchronize()
    except BaseException as error:
        wrong.append(error)

def replace():
    turn = 0
    while not stop.wait(0.01):
        mr.set_current_device_resource(fresh(keep=turn % 2 == 0))
        turn += 1

mr.set_current_device_resource(fresh(keep=True))
changer = threading.Thread(target=replace)
threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
changer.start()
for thread in threads: thread.start()
for thread in threads: thread.join()
stop.set()
changer.join()
assert not wrong, wrong[:5]
mr.reset_current_device_resource()
gc.collect()
torch.cuda.synchronize()
left = [each.allocation_counts.current_count for each in counted]
assert len(counted) > 2
# cuBLAS and its like may keep a workspace of PyTorch's.
assert sum(left) <= 2, left
assert mr.misuse_count() == 0
kept = [make(kind, 1000, 1) for kind in ("cupy", "torch", "numba", "tenure")]   # alive at exit
"""


@pytest.mark.parametrize("order", IMPORTS)
def test_all_in_one_process(order):
    import textwrap

    run(
        textwrap.dedent(IMPORTS[order]) + TOGETHER,
        timeout=400,
        NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS="0",
        NUMBA_CUDA_LOG_LEVEL="ERROR",
    )
