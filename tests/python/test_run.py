"""``python -m tenure run``: an unchanged program on tenure's memory, and what is said at its end."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
import tenure
from tenure import _report, _run
from tenure._report import Report
from tenure.allocators import Table


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
        assert type(tenure.mr.get_current_device_resource()).__name__ == "PoolMemoryResource"
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
    report = Report(json.loads(file.read_text()))
    assert (report.peak_live_bytes, report.allocations, report.live_count) == (3 << 20, 3, 0)
    assert report.libraries["the program"].at_peak_bytes == 3 << 20 and report.raw["end"] == "exit"
    assert report.peak_reserved_bytes >= 3 << 20 and report.driver_peak_bytes >= 3 << 20
    assert report.raw["allocate_calls"] == 3 and report.allocation_seconds > 0


def test_each_library_is_counted_by_itself(program, tmp_path):
    """Memory that a plug asks for is its library's, under the resource that is current."""
    path = program(
        """
        import cupy, tenure
        from tenure._tenure import _library_buffer
        assert cupy.cuda.get_allocator().__name__ == "tenure_cupy_allocator"
        kept = _library_buffer("cupy", 2 << 20, tenure.DEFAULT_STREAM, None)
        with tenure.tag("mine"):
            tenure.kept = tenure.DeviceBuffer(size=1000)
        """
    )
    done = tenure_run(*CUPY, path)
    assert done.returncode == 0, done
    assert "  cupy: 2.0 MiB at the peak" in done.stderr and "  the program: 1000 B at the peak" in done.stderr
    assert "left at the end: 1 block of 1000 B\n    1000 B in 1 by the program, tag 'mine'" in done.stderr


ENDS = {
    "import os; os._exit(3)": (3, "os._exit(3)"),
    "raise SystemExit('a word')": (1, "exit"),
    "import sys; sys.exit(5)": (5, "exit"),
    "1 / 0": (1, "ZeroDivisionError"),
    "raise KeyboardInterrupt": (-signal.SIGINT, "KeyboardInterrupt"),
    "import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)": (-signal.SIGTERM, "signal SIGTERM"),
    "import threading, time; threading.Thread(target=lambda: time.sleep(0.2)).start()": (0, "exit"),
}


@pytest.mark.parametrize("end", ENDS)
def test_however_it_ends(program, tmp_path, end):
    path = program(f"import tenure\nkept = tenure.DeviceBuffer(size=4096)\n{end}\n")
    file = tmp_path / "out.json"
    done = tenure_run(*CUPY, "-o", str(file), path)
    code, said = ENDS[end]
    assert done.returncode == code and done.stderr.count("tenure run: ") == 1, done
    assert "peak live 4.0 KiB" in done.stderr and "_run.py" not in done.stderr, done.stderr
    assert json.loads(file.read_text())["end"] == said
    assert [path.name for path in tmp_path.glob(".out*")] == []


def test_a_kill_leaves_the_last_writing(program, tmp_path):
    path = program("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    file = tmp_path / "out.json"
    assert tenure_run(*CUPY, "-o", str(file), path).returncode == -signal.SIGKILL
    assert json.loads(file.read_text())["end"] == "running"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("stderr", ["> /dev/full", ">&-"])
def test_the_file_is_written_where_nobody_can_read_the_lines(program, tmp_path, stderr):
    path = program("import sys\nprint('done', flush=True)\nsys.exit(7)")
    file = tmp_path / "out.json"
    command = f'"$@" 2{stderr.replace(" ", "")}'
    arguments = [sys.executable, "-m", "tenure", "run", *CUPY, "-o", str(file), path]
    done = subprocess.run(["sh", "-c", command, "sh", *arguments], stdout=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (7, "done\n"), done
    assert json.loads(file.read_text())["end"] == "exit"


def test_what_was_counted_before_the_end_is_not_written_after_it(tmp_path):
    """The thread that writes every few seconds may have counted before the end, and come to its writing after it."""
    options = argparse.Namespace(output=str(tmp_path / "out.json"), program="program", arguments=[], stacks=False)
    run = _run.Run(options, tenure.mr.CudaMemoryResource(), Table([]))
    run.write("running")
    counted = run.raw("running")
    run.say("exit")
    run.write("running", counted)
    assert json.loads(run.file.read_text())["end"] == "exit"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("end", ["os._exit(4)", "sys.exit(4)"])
def test_a_forked_child_says_nothing(program, tmp_path, end):
    path = program(
        f"""
        import os, sys, tenure
        kept = tenure.DeviceBuffer(size=4096)
        child = os.fork()
        if not child:
            {end}
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
        """
    )
    file = tmp_path / "out.json"
    done = tenure_run(*CUPY, "-o", str(file), path)
    assert done.returncode == 0 and done.stderr.count("tenure run: ") == 1, done
    assert json.loads(file.read_text())["peak_live_bytes"] == 4096


def test_lines_of_who_made_what_is_left(program):
    path = program("import tenure\n\ndef make():\n    tenure.kept = tenure.DeviceBuffer(size=4096)\nmake()\n")
    done = tenure_run(*CUPY, "--stacks", path)
    assert f"4.0 KiB in 1 by {path}:4 make" in done.stderr, done.stderr


def test_main_is_the_program_until_the_end(program):
    """Also for what runs behind its last line, and for what pickles a class of it."""
    path = program(
        """
        import atexit, pickle, sys, threading, time
        class Mine: pass
        def later():
            time.sleep(0.2)
            print(type(pickle.loads(pickle.dumps(Mine()))).__module__, sys.modules["__main__"].__file__ == __file__)
        threading.Thread(target=later).start()
        atexit.register(lambda: print("end", Mine.__name__))
        """
    )
    done = tenure_run(*CUPY, path)
    assert (done.returncode, done.stdout) == (0, "__main__ True\nend Mine\n"), done


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
        (("-o", "/no/such/folder/x.json", path), "/no/such/folder/x.json cannot be written (No such file or directory)"),
        (("-o", "/", path), "name another file after -o"),
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
    assert [_report.size(n) for n in (0, 1023, 1024, 1536, 3 << 20, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "3.0 MiB",
        "5120.0 GiB",
    ]
