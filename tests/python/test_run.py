"""``python -m tenure run``: an unchanged program on tenure's memory, and what is said at its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
from tenure import _run


def tenure_run(*arguments: str, **keywords) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "tenure", "run", *arguments], capture_output=True, text=True, timeout=120, **keywords
    )


@pytest.fixture
def program(tmp_path):
    def write(code: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(code))
        return str(path)

    return write


@pytest.fixture(autouse=True)
def a_library_that_stands_in(tmp_path, monkeypatch):
    """What is called CuPy here has the two functions that `enable` calls, and no library that is installed is asked."""
    folder = tmp_path / "site"
    (folder / "cupy").mkdir(parents=True)
    (folder / "cupy" / "__init__.py").write_text(
        "class cuda:\n    now = None\n    set_allocator = classmethod(lambda c, f: setattr(c, 'now', f))\n"
        "    get_allocator = classmethod(lambda c: c.now)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))


CUPY = ("--libraries", "cupy")


def test_a_program_runs_as_if_by_itself(program, tmp_path):
    path = program(
        """
        import sys
        import tenure
        assert __name__ == "__main__" and sys.argv[1:] == ["-x", "y"], sys.argv
        assert type(tenure.mr.get_current_device_resource()).__name__ == "StatisticsResourceAdaptor"
        blocks = [tenure.DeviceBuffer(size=1 << 20) for _ in range(3)]
        del blocks[1:]
        print("done")
        sys.exit(7)
        """
    )
    file = tmp_path / "out.json"
    done = tenure_run(*CUPY, "-o", str(file), path, "-x", "y")
    assert (done.returncode, done.stdout) == (7, "done\n"), done
    last = done.stderr.splitlines()
    assert last[0].startswith("tenure run: ") and "peak live 3.0 MiB" in last[0], last
    assert last[-1].strip() == "left at the end: nothing"
    report = json.loads(file.read_text())
    assert report["peak_live_bytes"] == 3 << 20 and report["allocations"] == 3 and report["left_blocks"] == 0
    assert report["libraries"]["others"]["allocations"] == 3 and report["libraries"]["cupy"]["allocations"] == 0
    assert report["peak_reserved_bytes"] >= 3 << 20 and report["driver_peak_bytes"] >= 3 << 20


def test_each_library_is_counted_by_itself(program, tmp_path):
    """The stand-in's allocator is tenure's, over a counter of its own."""
    path = program(
        """
        import cupy, tenure
        mr = cupy.cuda.get_allocator().__self__.mr
        assert type(mr).__name__ == "StatisticsResourceAdaptor" and mr is not tenure.mr.get_current_device_resource()
        kept = tenure.DeviceBuffer(size=2 << 20, mr=mr)
        tenure.kept = tenure.DeviceBuffer(size=1000)
        """
    )
    done = tenure_run(*CUPY, path)
    assert done.returncode == 0, done
    assert "  cupy: peak 2.0 MiB" in done.stderr and "  others: peak 1000 B" in done.stderr
    assert "left at the end: 1 block of 1000 B (others 1)" in done.stderr


def test_a_module_and_a_failure(tmp_path):
    (tmp_path / "package.py").write_text("import tenure\ntenure.DeviceBuffer(size=10)\nraise KeyError('mine')\n")
    done = tenure_run(*CUPY, "-m", "package", cwd=tmp_path)
    assert done.returncode == 1 and "KeyError: 'mine'" in done.stderr
    assert done.stderr.splitlines()[-1].strip() == "left at the end: nothing"


def test_what_cannot_be_started(program):
    path = program("print('ran')")
    for arguments, said in (
        ((path + "x",), "there is no file"),
        (("--resource", "heap", path), "there is no resource 'heap'"),
        (("--resource", "cuda:1GiB", path), "takes no size"),
        (("--resource", "pool:lots", path), "lots"),
        (("--libraries", "numpy", path), "no plug for 'numpy'"),
    ):
        done = tenure_run(*arguments)
        assert done.returncode == 2 and said in done.stderr and done.stdout == "", (arguments, done)
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "spec", ["cuda", "managed", "async", "pool", "pool:1MiB", "pool:1MiB,8MiB", "pool:10%", "pool:,8MiB", "arena:4MiB"]
)
def test_resources_by_their_words(spec):
    made = _run.resource(spec)
    made.deallocate(made.allocate(1000), 1000)


def test_sizes_for_people():
    assert [_run.size(n) for n in (0, 1023, 1024, 1536, 3 << 20, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "3.0 MiB",
        "5120.0 GiB",
    ]
