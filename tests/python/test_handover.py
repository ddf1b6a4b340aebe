"""Rules 1 to 4, 7 and 8 across each pair of languages, whoever loads the library first; and the three mistakes.

The actors (C, C++ and Rust libraries, and Python) and the scenes are in `tests/handover`. Each order of loading is a process of
its own that plays all scenes with all pairs; each test here is one scene of one pair.

`TENURE_HANDOVER_OUT` names a folder with actors that are built already. Without it they are built here, into `build/`.
"""

from __future__ import annotations

import fcntl
import functools
import gc
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tenure
from tenure import DEFAULT_STREAM, DeviceBuffer, OwnershipError, Stream, bindings

HANDOVER = Path(__file__).resolve().parents[1] / "handover"
LANGUAGES = ["Python", "C", "C++", "Rust"]
PAIRS = list(itertools.permutations(LANGUAGES, 2))
ORDERS = ["tenure", "C", "C++", "Rust"]
RULES = [1, 2, 3, 4, 7]
ACTORS = ["libactor_c.so", "libactor_cpp.so", "libactor_rust.so"]


def library() -> Path:
    """The libtenure that this process uses."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "libtenure" in line}
    (path,) = {path for path in paths if Path(path).name.startswith("libtenure.so")}
    return Path(path)


@pytest.fixture(scope="session")
def actors() -> Path:
    """The folder of the native actors, built if need be."""
    if not HANDOVER.is_dir():
        pytest.skip(f"the scenes are not here: no {HANDOVER}")
    given = os.environ.get("TENURE_HANDOVER_OUT")
    if given and all((Path(given) / name).is_file() for name in ACTORS):
        return Path(given)
    out = Path(given) if given else HANDOVER.parents[1] / "build" / "handover-tests"
    for tool, why in (("make", "builds the actors"), ("cargo", "compiles the one in Rust"), ("cc", "compiles that in C")):
        if shutil.which(tool) is None and not (tool == "cc" and os.environ.get("CC")):
            pytest.skip(f"no {tool}, which {why}, and none are built in {out}")
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "lock", "w") as lock:
        # Two processes of pytest-xdist must not build at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        make = ["make", "-C", str(HANDOVER), f"OUT={out}", f"LIBDIR={library().parent}"]
        done = subprocess.run(make, capture_output=True, text=True)
    assert done.returncode == 0, f"the actors cannot be built:\n{done.stdout}{done.stderr}"
    return out


def scenes(actors: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Plays scenes in a process of their own, in which nothing of tenure's is loaded yet."""
    environment = {
        **os.environ,
        "TENURE_HANDOVER_OUT": str(actors),
        # However the first language finds the library: C and C++ are linked with it, Rust looks for it.
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(library().parent), os.environ.get("LD_LIBRARY_PATH")])),
        "TENURE_LIBRARY": str(library()),
    }
    command = [sys.executable, "-X", "faulthandler", str(HANDOVER / "scenes.py"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@functools.lru_cache
def played(actors: Path, order: str) -> dict[tuple[int, str, str], str | None]:
    """What came of each scene of each pair in one order of loading."""
    done = scenes(actors, "rules", order)
    assert done.returncode == 0, f"the scenes did not end well:\n{done.stdout[-2000:]}\n{done.stderr}"
    outcomes = map(json.loads, done.stdout.splitlines())
    return {(outcome["rule"], outcome["a"], outcome["b"]): outcome["failure"] for outcome in outcomes}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("maker", "taker"), PAIRS)
@pytest.mark.parametrize("rule", RULES)
def test_the_rule_holds_across(actors, rule, maker, taker, order):
    failure = played(actors, order)[rule, maker, taker]
    assert failure is None, f"rule {rule}, made by {maker}, taken by {taker}, loaded first by {order}:\n{failure}"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("maker", "keeper"), PAIRS)
def test_the_end_is_silent_with_things_alive(actors, maker, keeper, order):
    done = scenes(actors, "exit", order, maker, keeper)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture
def cpp(actors):
    """The actor in C++, in this process."""
    sys.path.insert(0, str(HANDOVER))
    try:
        from actors import Native
    finally:
        sys.path.remove(str(HANDOVER))
    os.environ["TENURE_HANDOVER_OUT"] = str(actors)
    return Native("cpp", "C++")


def made_by_cpp(cpp, size, stream, mr=None):
    """A buffer that C++ made, as Python's: the handle is all that crosses."""
    return bindings.wrap_buffer(cpp.make(size, 7, bindings.borrow_stream(stream), bindings.borrow_resource(mr)))


# ------------------------------------------------------------------------------------------------- the scene of cudf#14229


@pytest.mark.parametrize("freer", ["Python", "C++"])
def test_the_maker_gets_it_back_once(cpp, recorder, stream, freer):
    """C++ allocates under its current resource and returns a buffer, Python owns it, the entry is replaced and dropped."""
    cpp.set_current(bindings.borrow_resource(recorder.mr))
    box = [made_by_cpp(cpp, 1000, stream)]
    assert box[0].mr is recorder.mr
    assert [(nbytes, where) for _, nbytes, where in recorder.allocated] == [(1000, stream)]
    other = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
    tenure.mr.set_current_device_resource(other)
    del recorder.mr
    gc.collect()
    assert box[0].tobytes() == bytes([7]) * 1000

    def free():
        if freer == "C++":
            cpp.free(bindings.take_buffer(box.pop()), elsewhere=False)
        else:
            box.clear()

    thread = threading.Thread(target=free)
    thread.start()
    thread.join()
    gc.collect()
    assert recorder.freed == recorder.allocated and len(recorder.freed) == 1
    assert other.info().live_count == 0 and other.info().peak_live_bytes == 0


# --------------------------------------------------------------------------------------------------- the three mistakes


def test_a_label_instead_of_an_owner(cpp, pool, cuda, stream):
    """The wrapper has a pointer, and writes the current resource next to it."""
    pair = bindings.borrow_stream(stream)
    ptr = cpp.allocate(bindings.borrow_resource(pool), 1000, pair)
    label = tenure.mr.PoolMemoryResource(cuda)
    tenure.mr.set_current_device_resource(label)
    with pytest.raises(OwnershipError) as caught:
        DeviceBuffer.adopt(ptr, 1000, mr=tenure.mr.get_current_device_resource(), stream=stream)
    assert caught.value.kind == "wrong resource"
    assert (caught.value.ptr, caught.value.owner, caught.value.asked) == (ptr, pool.id, label.id)
    assert hex(ptr) in str(caught.value) and f"#{pool.id:x}" in str(caught.value)
    # Nothing has happened: the block is there, and its owner says so.
    buffer = DeviceBuffer.adopt(ptr, 1000, mr=tenure.mr.owner_of(ptr), stream=stream)
    assert buffer.mr is pool
    buffer.close()
    assert pool.info().live_count == 0
    # By handle there is nothing to label.
    assert made_by_cpp(cpp, 1000, stream, pool).mr is pool


def test_the_stream_is_lost(cpp, pool, stream):
    """The wrapper has a pointer, and does not say in which order it is freed."""
    ptr = pool.allocate(1000, stream)
    with pytest.raises(TypeError, match="stream"):
        DeviceBuffer.adopt(ptr, 1000, mr=pool)
    pool.deallocate(ptr, 1000, stream)
    # By handle the stream comes along, and lives as long as the buffer.
    address = stream.handle
    buffer = made_by_cpp(cpp, 1000, stream, pool)
    del stream
    gc.collect()
    assert buffer.stream.handle == address and buffer.stream != DEFAULT_STREAM
    buffer.stream.synchronize()


def test_a_bare_stream_value_is_refused_where_the_free_needs_it(cpp, stream):
    """The allocator of the driver frees on the stream: a value that nobody keeps alive will not do."""
    from actors import Failed

    driver = tenure.mr.CudaAsyncMemoryResource()
    with pytest.raises(Failed, match="stream") as caught:
        cpp.make(1000, 7, (stream.handle, 0), bindings.borrow_resource(driver))
    assert "stream_outlives_buffer" in caught.value.text or "owner" in caught.value.text
    assert driver.info().live_count == 0


def test_the_resource_is_dropped(cpp, recorder, stream):
    """The pool was a local of the function that made the buffer."""

    def column():
        local = tenure.mr.PoolMemoryResource(recorder.mr)
        return made_by_cpp(cpp, 1000, stream, local)

    buffer = column()
    gc.collect()
    assert buffer.mr.kind == "pool" and buffer.mr.info().live_count == 1
    assert not recorder.freed
    buffer.close()
    del buffer
    gc.collect()
    assert len(recorder.freed) == len(recorder.allocated) > 0


def test_a_handle_that_was_given_back_is_refused(cpp, pool):
    """What is left where a resource was dropped by hand: an error, not somebody else's memory."""
    handle = bindings.retain_resource(tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource()))
    cpp.release(handle)
    with pytest.raises(ValueError, match="handle"):
        bindings.wrap_resource(handle)
    taken = bindings.take_buffer(DeviceBuffer(size=10, mr=pool))
    cpp.free(taken)
    with pytest.raises(ValueError, match="handle"):
        bindings.wrap_buffer(taken)
    assert Stream() is not None
