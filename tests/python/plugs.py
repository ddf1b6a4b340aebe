"""What the tests of the plugs share: which libraries are here, and programs of their own."""

from __future__ import annotations

import importlib.util
import textwrap

import pytest
from conftest import DEVICE, child

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


def run(code: str, *arguments: str, timeout: float = 120, quiet: bool = True, **environment: str) -> str:
    """Runs a program of its own and gives what it printed; it must end well and, if `quiet`, say nothing else."""
    done = child(textwrap.dedent(code), *arguments, timeout=timeout, **environment)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr and not (quiet and "tenure:" in done.stderr), done.stderr
    return done.stdout
