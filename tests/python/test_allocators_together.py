"""CuPy, PyTorch, Numba, a C++ library and tenure's own buffers in one process (`tests/mix/mix.py`): they allocate, hand memory to
each other without a copy and free, on several threads and streams, while the current resource is replaced and dropped.

On the simulated device the allocators of the libraries that are here are driven without their kernels.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DEVICE
from plugs import has

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests/mix/mix.py"

if not PROGRAM.is_file():
    pytest.skip("the source tree is not here", allow_module_level=True)


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """The C++ library: the one that came along, or built here."""
    if "MIX_LIBRARIES" in os.environ:
        return Path(os.environ["MIX_LIBRARIES"]) / "libmixed.so"
    if not (shutil.which("make") and shutil.which("g++")):
        pytest.skip("needs make and g++")
    import tenure

    folder = tmp_path_factory.mktemp("mix")
    place = Path(tenure.__file__).parent
    command = ["make", "-s", "-C", str(ROOT / "tests/mix"), f"OUT={folder}", f"LIBDIR={place / 'lib'}"]
    command.append(f"INCLUDE={ROOT / 'include'}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "libmixed.so"


def mix(library: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), "--library", str(library), *arguments]
    environment = {**os.environ, "TENURE_SIM_MEMORY": "2GiB"}
    return subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)


@pytest.mark.skipif(DEVICE == "cuda" and not has("cupy"), reason="CuPy is not installed, whose kernels write the patterns")
def test_all_in_one_process(library):
    seconds = "4" if DEVICE == "cuda" else "1"
    done = mix(library, "--seconds", seconds)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(DEVICE == "cuda" and not has("cupy"), reason="CuPy is not installed, whose kernels write the patterns")
def test_a_byte_in_the_wrong_place_is_found(library):
    done = mix(library, "--seconds", "1", "--one", "none", "--spoil")
    assert done.returncode != 0 and "AssertionError" in done.stderr, done.stdout + done.stderr
