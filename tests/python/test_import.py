"""Import: quick, silent, without driver and NumPy; and clear where it cannot be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tenure
from conftest import child

PACKAGE = Path(tenure.__file__).parent


def test_no_driver_call_no_numpy_no_output():
    code = """
import sys
before = set(sys.modules)
import tenure
loaded = (sys.modules.keys() - before) & {"numpy", "asyncio", "dataclasses", "typing", "inspect", "ctypes"}
assert not loaded, loaded
maps = open("/proc/self/maps").read()
assert "libcuda" not in maps
assert tenure.mr.misuse_count() == 0
from tenure.sim import driver_calls
assert driver_calls() == 0
tenure.DeviceBuffer(size=10)
assert driver_calls() > 0, "calls are not counted, so the line above says nothing"
"""
    done = child(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_resources_are_made_without_a_driver_where_they_can_be():
    code = """
import tenure
tenure.mr.CudaMemoryResource().info()
tenure.mr.CallbackMemoryResource(len, len)
print(tenure.sim.driver_calls())
"""
    done = child(code)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_it_is_quick():
    """The best of ten, in the child's own clock: what others do on the machine makes it only slower."""
    code = "import time; s = time.perf_counter(); import tenure; print(time.perf_counter() - s)"
    best = min(float(child(code).stdout) for _ in range(10))
    assert best < 0.030


def test_the_api_capsule():
    import ctypes

    get = ctypes.pythonapi.PyCapsule_Import
    get.restype = ctypes.c_void_p
    table = get(b"tenure._tenure._C_API", 0)
    abi, size = (ctypes.c_uint32 * 2).from_address(table)
    assert abi >= 1 and size > 8


def copy_package(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "tenure", ignore=shutil.ignore_patterns("__pycache__", "lib", "bin", "include"))
    return {"PYTHONPATH": str(tmp_path), "TENURE_LIBRARY": ""}


def test_a_missing_library(tmp_path):
    done = child("import tenure", **copy_package(tmp_path))
    assert done.returncode == 1
    assert "ImportError" in done.stderr and "libtenure.so.0" in done.stderr and "TENURE_LIBRARY" in done.stderr


def test_a_library_that_is_none(tmp_path):
    environment = copy_package(tmp_path)
    (tmp_path / "tenure" / "lib").mkdir()
    (tmp_path / "tenure" / "lib" / "libtenure.so.0").write_text("not a library")
    done = child("import tenure", **environment)
    assert done.returncode == 1 and "ImportError" in done.stderr and "cannot be loaded" in done.stderr
    done = child("import tenure", **{**environment, "TENURE_LIBRARY": str(tmp_path / "nowhere")})
    assert done.returncode == 1 and "ImportError" in done.stderr and "nowhere" in done.stderr


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("static unsigned t[64]; const void *tenure_get_api(unsigned v) { t[0] = 0; t[1] = sizeof t; return t; }", "older"),
        ("const void *tenure_get_api(unsigned v) { return 0; }", "no table"),
        ("int other;", "not libtenure"),
    ],
)
def test_a_library_of_another_version(body, words, tmp_path):
    environment = copy_package(tmp_path)
    (tmp_path / "other.c").write_text(body)
    library = tmp_path / "other.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libtenure.so.0", "-o", library, tmp_path / "other.c"], check=True)
    done = child("import tenure", **{**environment, "TENURE_LIBRARY": str(library)})
    assert done.returncode == 1 and "ImportError" in done.stderr and words in done.stderr


def test_a_missing_extension(tmp_path):
    environment = copy_package(tmp_path)
    for file in (tmp_path / "tenure").glob("_tenure*.so"):
        file.unlink()
    done = child("import tenure", **environment)
    assert done.returncode == 1 and "extension module is not there" in done.stderr


SUB_INTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
{first}
number = interpreters.create({arguments})
code = '''
try:
    import tenure
except ImportError as error:
    assert "sub-interpreter" in str(error), error
else:
    raise SystemExit("imported")
'''
failed = {run}(number, code)
assert failed is None, failed
interpreters.destroy(number)
"""


@pytest.mark.parametrize("first", ["import tenure", ""])
@pytest.mark.parametrize("arguments", ["", "'legacy'"])
def test_sub_interpreters_are_refused(first, arguments):
    if sys.version_info < (3, 13):
        run = "interpreters.run_string"
        arguments = "" if not arguments else "isolated=False"
    else:
        run = "interpreters.exec" if sys.version_info >= (3, 13) else ""
    done = child(SUB_INTERPRETER.format(first=first, arguments=arguments, run=run))
    assert (done.returncode, done.stderr) == (0, "")


def test_cuda_that_is_not_there():
    """`TENURE_DEVICE=cuda` without a driver is an error of the first use, not of the import."""
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("there is an NVIDIA driver")
    code = """
import tenure
try:
    tenure.DeviceBuffer(size=10)
except tenure.CudaError as error:
    print(error)
"""
    done = child(code, TENURE_DEVICE="cuda")
    assert done.returncode == 0, done.stderr
    assert "driver" in done.stdout


def test_two_imports_at_once():
    code = """
import threading
threads = [threading.Thread(target=lambda: __import__("tenure").device_count()) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    done = child(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command(tmp_path):
    def run(*arguments):
        return subprocess.run([sys.executable, "-m", "tenure", *arguments], capture_output=True, text=True, env=os.environ)

    for option, folder in (("--include-dir", "include"), ("--cmake-dir", "cmake"), ("--pkgconfig-dir", "lib/pkgconfig")):
        done = run(option)
        if (PACKAGE / folder).is_dir():
            assert done.stdout.strip() == str(PACKAGE / folder)
        else:
            assert done.returncode == 1 and "make wheel" in done.stderr
    done = run("info")
    if (PACKAGE / "bin" / "tenure").exists():
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 1 and "make wheel" in done.stderr


def test_version():
    assert tenure.__version__.count(".") == 2


def test_the_extension_links_no_interpreter():
    """One file serves every Python from 3.11 on; a name of one version's library in it would load a second interpreter."""
    assert b"libpython3" not in Path(tenure._tenure.__file__).read_bytes()


@pytest.mark.skipif(not (PACKAGE / "bin" / "tenure").exists(), reason="the program is not built")
def test_the_bench_row():
    import json

    command = [sys.executable, "-m", "tenure", "bench", "--json", "--quick", "--rounds", "1", "buffer", "python"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["python-buffer"]["ns"] > 0 and rows["python-buffer"].keys() == rows["buffer-rust"].keys()
    # Names that do not select it leave it out; an option's value is no name.
    command = [sys.executable, "-m", "tenure", "bench", "--json", "--quick", "--rounds", "1", "current"]
    rows = {
        row["name"] for row in json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["rows"]
    }
    assert "current-1" in rows and "python-buffer" not in rows
