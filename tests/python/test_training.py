"""`examples/training/train.py` under both routes of PyTorch's, and the graphs of `torch.compile`. On a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DEVICE
from plugs import has, run

SCRIPT = Path(__file__).resolve().parents[2] / "examples/training/train.py"
ROUTES = ["process", "pool"]

pytestmark = pytest.mark.skipif(DEVICE != "cuda" or not has("torch"), reason="needs a GPU and PyTorch")
needs_triton = pytest.mark.skipif(not has("triton"), reason="triton is not installed, which torch.compile wants")


@pytest.mark.parametrize("arguments", [("process", "default"), ("pool", "default"), ("pool", "reduce-overhead")])
def test_the_training_loop(arguments):
    route, kind = arguments
    command = [sys.executable, str(SCRIPT), "--route", route, "--compile", kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"route {route}: loss" in done.stdout and "tenure:" not in done.stderr, done.stdout + done.stderr


@needs_triton
def test_graph_trees_name_the_other_route():
    run(
        """
        import tenure
        tenure.mr.set_current_device_resource(tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource()))
        tenure.enable("torch", route="process")
        import torch
        double = torch.compile(lambda x: (x * 2).sin(), mode="reduce-overhead")
        source = torch.ones(1000, device="cuda")
        try:
            for _ in range(4):
                double(source)
                torch.cuda.synchronize()
        except Exception as error:
            said = ""
            while error is not None:
                said += str(error)
                error = error.__cause__ or error.__context__
            assert 'route="pool"' in said, said
        else:
            print("this PyTorch keeps its trees without asking for the state")
        """,
        timeout=400,
    )


@pytest.mark.parametrize("route", ROUTES)
def test_the_memory_of_a_graph_is_its_own(route):
    """What is allocated after a capture is none of the graph's memory, also where tenure's pool is on for all threads."""
    run(
        f"""
        import tenure
        pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
        tenure.mr.set_current_device_resource(pool)
        tenure.enable("torch", route={route!r})
        import torch
        tenure.enable("torch", route={route!r})
        source = torch.ones(100_000, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            ((source + 1) * 2).cos() + 3
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            result = ((source + 1) * 2).cos() + 3     # temporaries that are freed inside the capture
        torch.cuda.synchronize()
        # On the capture's stream, where memory that is free by its order is given out at once.
        with torch.cuda.stream(side):
            kept = [torch.full((100_000,), float(number), device="cuda") for number in range(16)]
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        for number, tensor in enumerate(kept):
            assert float(tensor.min()) == float(tensor.max()) == number, "the graph wrote into somebody's tensor"
        wanted = ((source + 1) * 2).cos() + 3
        torch.testing.assert_close(result, wanted)
        assert pool.owns(wanted.untyped_storage().data_ptr()), "after a capture the pool is on as before"
        """,
        timeout=300,
    )
