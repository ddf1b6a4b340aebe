"""The log: its files and rows, ``enable_logging``, what a kill, a fork and an exit leave, and that it can be replayed."""

from __future__ import annotations

import csv
import os
import random
import signal
import subprocess
import sys
import threading
from datetime import date, datetime
from pathlib import Path

import pytest
import tenure

HEAD = ["Thread", "Time", "Action", "Pointer", "Size", "Stream", "Device", "Date", "Nanoseconds", "Stream id", "Outcome", "Tag"]
MiB = 1 << 20


def rows_of(path):
    """The rows of a log, each complete, as a strict reader has them."""
    with open(path, newline="", encoding="utf-8") as source:
        rows = list(csv.reader(source, strict=True))
    assert [name.strip() for name in rows[0]] == HEAD
    assert {len(row) for row in rows} == {len(HEAD)}
    return [dict(zip(HEAD, row, strict=True)) for row in rows[1:]]


@pytest.fixture
def log(tmp_path, cuda):
    pool = tenure.mr.PoolMemoryResource(cuda)
    return tenure.mr.LoggingResourceAdaptor(pool, tmp_path / "run.csv")


def test_a_log_is_named_and_typed_as_rmms(tmp_path, cuda):
    log = tenure.mr.LoggingResourceAdaptor(cuda, log_file_name=str(tmp_path / "a, b.csv"))
    assert log.get_file_name() == str(tmp_path / "a, b.dev0.csv")
    assert log.upstream_mr is cuda and log.get_upstream() is cuda and log.kind == "logging"
    assert rows_of(log.get_file_name()) == []
    assert type(tenure.DeviceBuffer(size=1, mr=log).mr) is tenure.mr.LoggingResourceAdaptor
    relative = os.path.relpath(tmp_path / "plain")
    assert tenure.mr.LoggingResourceAdaptor(cuda, relative).get_file_name() == str(tmp_path / "plain.dev0")


def test_rows_say_what_happened(log, tmp_path):
    streams = [tenure.Stream(), tenure.Stream()]
    buffers = [tenure.DeviceBuffer(size=1000 << i, stream=streams[i % 2], mr=log) for i in range(4)]
    pointers = [hex(buffer.ptr) for buffer in buffers]
    del buffers[0]
    with pytest.raises(MemoryError):
        tenure.DeviceBuffer(size=1 << 50, mr=log)
    log.flush()
    rows = rows_of(log.get_file_name())
    assert [(row["Action"], int(row["Size"]), row["Outcome"]) for row in rows] == [
        *[("allocate", 1000 << i, "ok") for i in range(4)],
        ("free", 1000, "ok"),
        ("allocate failure", 1 << 50, "out of memory"),
    ]
    assert [row["Pointer"] for row in rows] == [*pointers, pointers[0], "(nil)"]
    assert len({row["Stream"] for row in rows[:4]}) == len({row["Stream id"] for row in rows[:4]}) == 2
    assert {row["Thread"] for row in rows} == {str(threading.get_native_id())}
    assert {row["Device"] for row in rows} == {"0"} and {row["Tag"] for row in rows} == {""}
    day = date.fromisoformat(rows[0]["Date"])
    written = datetime.combine(day, datetime.strptime(rows[0]["Time"], "%H:%M:%S.%f").time())
    assert abs((datetime.now() - written).total_seconds()) < 120
    nanoseconds = [int(row["Nanoseconds"]) for row in rows]
    assert nanoseconds == sorted(nanoseconds)


def test_a_refused_free_is_logged_and_frees_nothing(log):
    ptr = log.allocate(1000)
    with pytest.raises(tenure.OwnershipError):
        log.deallocate(ptr, 3 * MiB)
    log.deallocate(ptr, 1000)
    rows = rows_of(log.get_file_name())
    assert [(row["Action"], row["Outcome"]) for row in rows] == [("allocate", "ok"), ("free failure", "misuse"), ("free", "ok")]


def test_every_row_is_there_at_once_and_nothing_else_after_a_flush(log):
    for n in range(1, 3000):
        tenure.DeviceBuffer(size=n, mr=log)
        if n % 500 == 1:
            assert len(rows_of(log.get_file_name())) == 2 * n
    log.flush()
    with open(log.get_file_name()) as source:
        text = source.read()
    assert text.endswith(',ok,""\n') and "  " not in text


def test_names_come_from_the_environment(tmp_path, cuda, monkeypatch):
    monkeypatch.delenv("RMM_LOG_FILE", raising=False)
    with pytest.raises(ValueError, match="RMM_LOG_FILE"):
        tenure.mr.LoggingResourceAdaptor(cuda)
    monkeypatch.setenv("RMM_LOG_FILE", str(tmp_path / "env.txt"))
    assert tenure.mr.LoggingResourceAdaptor(cuda).get_file_name() == str(tmp_path / "env.dev0.txt")
    monkeypatch.setenv("RMM_LOG_FILE", "")
    with pytest.raises(ValueError, match="RMM_LOG_FILE"):
        tenure.enable_logging()


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("no/such/folder/log.csv", ValueError, "its folder does not exist"),
        ("x" * 300, ValueError, "choose another file"),
        ("", ValueError, "log_file_name"),
        (5, TypeError, "log_file_name is a str or a path, not int"),
        ("a\0b", ValueError, "zero byte"),
    ],
)
def test_a_bad_name_is_told_and_changes_nothing(tmp_path, cuda, name, error, words, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = tenure.mr.get_current_device_resource()
    for make in (lambda: tenure.mr.LoggingResourceAdaptor(cuda, name), lambda: tenure.enable_logging(name)):
        with pytest.raises(error, match=words):
            make()
    assert os.listdir(tmp_path) == []
    assert tenure.mr.get_current_device_resource() is before
    assert tenure.get_log_filenames()[0] is None


def test_enable_and_disable(tmp_path, cuda):
    pool = tenure.mr.PoolMemoryResource(cuda)
    tenure.mr.set_current_device_resource(pool)
    assert tenure.get_log_filenames() == {0: None}
    tenure.enable_logging(tmp_path / "rmm.log")
    log = tenure.mr.get_current_device_resource()
    assert isinstance(log, tenure.mr.LoggingResourceAdaptor) and log.get_upstream() is pool
    tenure.enable_logging(tmp_path / "other.log")
    assert tenure.mr.get_current_device_resource() is log, "logging already"
    assert tenure.get_log_filenames() == {0: str(tmp_path / "rmm.dev0.log")}
    kept = tenure.DeviceBuffer(size=10)
    del log
    tenure.disable_logging()
    assert tenure.mr.get_current_device_resource() is pool
    tenure.disable_logging()
    tenure.DeviceBuffer(size=20)
    del kept
    rows = rows_of(tmp_path / "rmm.dev0.log")
    assert [(row["Action"], row["Size"]) for row in rows] == [("allocate", "10"), ("free", "10")]
    assert sorted(os.listdir(tmp_path)) == ["rmm.dev0.log"]


def test_devices_have_files_of_their_own_or_none_has(tmp_path, cuda):
    if tenure.device_count() < 2:
        pytest.skip("needs two devices")
    try:
        tenure.enable_logging(tmp_path / "rmm.csv", devices=[1, 0])
        assert tenure.get_log_filenames() == {n: str(tmp_path / f"rmm.dev{n}.csv") for n in (0, 1)}
        assert tenure.get_current_device() == 0
        tenure.DeviceBuffer(size=5, stream=tenure.Stream(device=1))
        assert [row["Device"] for row in rows_of(tmp_path / "rmm.dev1.csv")] == ["1", "1"]
        assert rows_of(tmp_path / "rmm.dev0.csv") == []
        tenure.disable_logging()
        (tmp_path / "bad.dev1.csv").mkdir()
        with pytest.raises(ValueError, match="it is a directory"):
            tenure.enable_logging(tmp_path / "bad.csv", devices=[0, 1])
        assert set(tenure.get_log_filenames().values()) == {None}
        with pytest.raises(ValueError, match="no device 7"):
            tenure.enable_logging(tmp_path / "x.csv", devices=7)
    finally:
        tenure.mr.reset_per_device_resource(1)


def test_two_adaptors_share_a_file_and_a_new_one_empties_it(tmp_path, cuda):
    first = tenure.mr.LoggingResourceAdaptor(cuda, tmp_path / "a.csv")
    kept = tenure.DeviceBuffer(size=1, mr=first)
    second = tenure.mr.LoggingResourceAdaptor(tenure.mr.PoolMemoryResource(cuda), tmp_path / "a.csv")
    tenure.DeviceBuffer(size=2, mr=second)
    del kept
    assert [row["Size"] for row in rows_of(second.get_file_name())] == ["1", "2", "2", "1"]
    del first, second
    assert rows_of(tenure.mr.LoggingResourceAdaptor(cuda, tmp_path / "a.csv").get_file_name()) == []


def program(mr, threads=3, calls=400):
    """A random program on several threads and streams, through buffers and raw allocations."""

    def work(seed):
        rng, stream = random.Random(seed), tenure.Stream()
        live = []
        for _ in range(calls):
            if live and rng.random() < 0.5:
                live.pop(rng.randrange(len(live)))
            else:
                live.append(tenure.DeviceBuffer(size=rng.randrange(1, 100_000), stream=stream, mr=mr))
            if rng.random() < 0.2:
                size = rng.randrange(1, 5000)
                mr.deallocate(mr.allocate(size, stream), size, stream)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)


def tool():
    binary = Path(tenure.__file__).parent / "bin" / "tenure"
    if not binary.exists():
        pytest.skip("the package has no tenure program")
    return [sys.executable, "-m", "tenure"]


def test_a_logged_program_replays(log):
    import json

    program(log)
    log.flush()
    rows = rows_of(log.get_file_name())
    assert len({row["Thread"] for row in rows}) == 3
    live = {}
    for row in rows:
        if row["Action"] == "allocate":
            assert row["Pointer"] not in live, "an address has two owners"
            live[row["Pointer"]] = row["Size"]
        else:
            assert live.pop(row["Pointer"]) == row["Size"]
    assert not live
    done = subprocess.run([*tool(), "replay", "--json", log.get_file_name()], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    report = report[0] if isinstance(report, list) else report
    assert (report["events"], report["failed_events"], report["threads"]) == (len(rows), 0, 3)
    assert (report["unknown_frees"], report["overlapping"], report["left_live"]) == (0, 0, 0)


def run(code, *arguments):
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def test_a_killed_process_leaves_all_its_rows(tmp_path):
    code = (
        "import os, signal, sys, tenure\n"
        "log = tenure.mr.LoggingResourceAdaptor(tenure.mr.CudaMemoryResource(), sys.argv[1])\n"
        "kept = [tenure.DeviceBuffer(size=1024, mr=log) for _ in range(int(sys.argv[2]))]\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    for count in (0, 1, 10, 1500):
        assert run(code, tmp_path / f"{count}.csv", count).returncode == -signal.SIGKILL
        rows = rows_of(tmp_path / f"{count}.dev0.csv")
        assert [row["Action"] for row in rows] == ["allocate"] * count


def test_an_exit_loses_nothing_and_ends_the_file(tmp_path):
    code = (
        "import sys, tenure\ntenure.enable_logging(sys.argv[1])\nkept = [tenure.DeviceBuffer(size=n + 1) for n in range(100)]\n"
    )
    done = run(code, tmp_path / "a.csv")
    assert (done.returncode, done.stderr) == (0, "")
    text = (tmp_path / "a.dev0.csv").read_text()
    assert text.endswith(',ok,""\n') and "  " not in text
    assert [row["Action"] for row in rows_of(tmp_path / "a.dev0.csv")][:100] == ["allocate"] * 100


def test_a_forked_child_writes_nothing(tmp_path):
    code = (
        "import os, sys, tenure\n"
        "log = tenure.mr.LoggingResourceAdaptor(tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource()), sys.argv[1])\n"
        "kept = [tenure.DeviceBuffer(size=100, mr=log) for _ in range(3)]\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    kept.clear()\n"
        "    try:\n"
        "        tenure.DeviceBuffer(size=5, mr=log)\n"
        "    except RuntimeError:\n"
        "        pass\n"
        "    sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "kept.clear()\n"
    )
    done = run(code, tmp_path / "a.csv")
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "a.dev0.csv")
    assert [row["Action"] for row in rows] == ["allocate"] * 3 + ["free"] * 3
    assert len({row["Thread"] for row in rows}) == 1


def test_another_process_is_refused(tmp_path, cuda):
    log = tenure.mr.LoggingResourceAdaptor(cuda, tmp_path / "a.csv")
    tenure.DeviceBuffer(size=5, mr=log)
    code = "import sys, tenure\ntenure.enable_logging(sys.argv[1])\n"
    done = run(code, tmp_path / "a.csv")
    assert done.returncode == 1
    assert "another process is writing it" in done.stderr.splitlines()[-1]
    assert len(rows_of(log.get_file_name())) == 2


@pytest.mark.needs_sim
def test_a_full_disk_costs_rows_and_nothing_else(tmp_path):
    # A limit of the process on the size of files stands for a full disk.
    code = (
        "import resource, signal, sys, tenure\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource(), 2**20)\n"
        "tenure.DeviceBuffer(size=20_000, mr=pool)\n"
        "log = tenure.mr.LoggingResourceAdaptor(pool, sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))\n"
        "for n in range(20_000):\n"
        "    tenure.DeviceBuffer(size=n + 1, mr=log)\n"
        "try:\n"
        "    log.flush()\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    done = run(code, tmp_path / "a.csv")
    assert done.returncode == 0, done.stderr
    assert "could not be written on" in done.stdout and "it lacks the last" in done.stdout
    rows = rows_of(tmp_path / "a.dev0.csv")
    assert [int(row["Size"]) for row in rows] == [n // 2 + 1 for n in range(len(rows))]
    assert 1000 < len(rows) < 20_000
