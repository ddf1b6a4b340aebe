"""Rule 8: exit is safe and silent with anything still alive anywhere, and a forked child is told.

Each scenario runs in a process of its own, ``TENURE_EXIT_REPEATS`` times (default 20), with the pool current and not.
"""

from __future__ import annotations

import os
import signal

import pytest
from conftest import child

REPEATS = int(os.environ.get("TENURE_EXIT_REPEATS", "20"))

PRELUDE = """
import atexit, gc, sys, threading, time
import tenure
from tenure import DeviceBuffer, Stream
mr = tenure.mr
cuda = mr.CudaMemoryResource()
pool = mr.PoolMemoryResource(cuda)
callback = mr.CallbackMemoryResource(cuda.allocate, cuda.deallocate)
if sys.argv[1] == "current":
    mr.set_current_device_resource(pool)
make = lambda size=1000, mr=pool: DeviceBuffer(size=size, stream=Stream(), mr=mr)
"""

SCENARIOS = {
    "module global": "buffer = make()",
    "module global of callbacks": "buffer = make(mr=callback); del callback",
    "adaptors": "buffer = make(mr=mr.LimitingResourceAdaptor(mr.StatisticsResourceAdaptor(callback), 1 << 20))",
    "current callbacks": "mr.set_current_device_resource(callback); buffer = DeviceBuffer(size=10)",
    "cycle": """
class Node: pass
node = Node(); node.self = node; node.buffer = make(); node.other = make(mr=callback)
gc.disable(); del node
""",
    "cycle through callables": """
class Arena:
    def __init__(self): self.mr = mr.CallbackMemoryResource(self.allocate, self.free); self.buffer = make(mr=self.mr)
    def allocate(self, n, s): return cuda.allocate(n, s)
    def free(self, p, n, s): cuda.deallocate(p, n, s)
Arena()
""",
    "thread-local of a live daemon thread": """
local = threading.local(); ready = threading.Event()
def work():
    local.buffer = make(); local.other = make(mr=callback); ready.set(); time.sleep(1000)
threading.Thread(target=work, daemon=True).start(); ready.wait()
""",
    "daemon thread that allocates": """
ready = threading.Event()
def work():
    while True:
        buffer = make(); buffer.copy_from_host(b"x"); buffer.resize(100_000); ready.set()
for _ in range(3): threading.Thread(target=work, daemon=True).start()
ready.wait()
""",
    "daemon thread that waits in the driver": """
ready = threading.Event(); stream = Stream()
def work():
    ready.set()
    while True:
        tenure.sim.busy(stream, 5); stream.synchronize()
threading.Thread(target=work, daemon=True).start(); ready.wait()
""",
    "daemon thread in callbacks": """
ready = threading.Event()
def work():
    while True:
        make(mr=callback); ready.set()
for _ in range(2): threading.Thread(target=work, daemon=True).start()
ready.wait()
""",
    "atexit hook that allocates and frees": """
kept = []
def hook(): kept.append(make()); kept.append(make(mr=callback)); kept.clear(); kept.append(make())
atexit.register(hook)
""",
    "atexit hook registered before the import": """
# Runs after tenure's own hook: native resources work on, Python callables are not entered any more.
buffer = make()
def hook():
    buffer.close()
    make()
    try:
        make(mr=callback)
    except RuntimeError as error:
        assert "ending" in str(error) or "exit" in str(error), error
    else:
        raise SystemExit("a callback was entered after the interpreter began to go")
hooks.append(hook)
""",
    "exported": """
import numpy as np
if tenure.sim.active(): array = np.from_dlpack(make())
view = memoryview(DeviceBuffer(size=10, mr=mr.PinnedHostMemoryResource()))
capsule = make().__dlpack__(max_version=(1, 0)); other = make(mr=callback).__dlpack__()
taken = tenure.from_dlpack(np.arange(10))
""",
    "adopted": """
block = make()
class Owner: pass
owned = DeviceBuffer.adopt(block.ptr, 10, owner=Owner(), stream=Stream())
freed = DeviceBuffer.adopt(block.ptr, 10, owner=lambda *a: print("freed late"), stream=Stream())
""",
    "foreign stream": """
class Theirs:
    def __init__(self): self.inner = Stream()
    def __cuda_stream__(self): return (0, self.inner.handle)
buffer = DeviceBuffer(size=10, stream=Theirs(), mr=pool)
""",
    "using that never ends": """
scope = mr.using(pool); scope.__enter__(); buffer = DeviceBuffer(size=10)
def generator():
    with mr.using(callback): yield
alive = generator(); next(alive)
""",
    "busy stream": """
stream = Stream(); buffer = DeviceBuffer(size=10, stream=stream, mr=pool)
tenure.sim.busy(stream, 50); buffer.record_stream(Stream())
""",
    "in sys.modules": "sys.tenure_buffer = make(mr=callback); import builtins; builtins.kept = make()",
    "os._exit": "import os; buffer = make(); sys.stdout.flush(); os._exit(0)",
    "an exception ends the program": "buffer = make(mr=callback); sys.exit(0)",
}


@pytest.mark.parametrize("current", ["current", "plain"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_exit(scenario, current):
    before = "import atexit\nhooks = []\natexit.register(lambda: [hook() for hook in hooks])\n"
    code = before + PRELUDE + SCENARIOS[scenario]
    for _ in range(REPEATS):
        done = child(code, current)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), f"{done.returncode}\n{done.stdout}\n{done.stderr}"


def test_interrupt():
    done = child(
        PRELUDE + "buffer = make(mr=callback)\nimport os, signal\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)", "plain"
    )
    assert done.returncode in (-signal.SIGINT, 1) and "KeyboardInterrupt" in done.stderr


FORK = (
    PRELUDE
    + """
import os, signal
buffer = make(); raw = pool.allocate(100); called = make(mr=callback); stream = Stream()
view = mr.PinnedHostMemoryResource()
capsule = make().__dlpack__()
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    code = 0
    for name, use in {
        "buffer": make,
        "plain": lambda: DeviceBuffer(size=10, mr=cuda),
        "current": lambda: DeviceBuffer(size=10),
        "callback": lambda: make(mr=callback),
        "raw": lambda: pool.allocate(10),
        "resize": lambda: buffer.resize(1 << 22),
        "copy": lambda: buffer.copy(),
        "pool": lambda: mr.PoolMemoryResource(cuda, "1MiB").allocate(10),
    }.items():
        try:
            use()
        except RuntimeError as error:
            if "fork" not in str(error):
                print(name, "no word of the fork:", error); code = 1
        except BaseException as error:
            print(name, type(error), error); code = 1
        else:
            print(name, "worked in the child"); code = 1
    del buffer, called, capsule
    gc.collect()
    sys.exit(code)
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert pool.info().live_count == 3
pool.deallocate(raw, 100)
buffer.copy_from_host(b"goes on")
assert buffer.tobytes()[:7] == b"goes on"
del buffer, capsule
assert pool.info().live_count == 0
DeviceBuffer(size=10, mr=callback)
"""
)


@pytest.mark.parametrize("current", ["current", "plain"])
def test_fork(current):
    for _ in range(max(1, REPEATS // 4)):
        done = child(FORK, current, PYTHONWARNINGS="ignore::DeprecationWarning")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), f"{done.stdout}\n{done.stderr}"


def test_fork_inside_of_scopes():
    """Leaving the blocks is fine in the child as well; what allocates inside of them is told."""
    code = (
        PRELUDE
        + """
import os
scopes = [mr.using(pool), mr.using(callback), mr.using(pool)]
make()
with scopes[0], scopes[1]:
    with scopes[2]:
        DeviceBuffer(size=10)
        pid = os.fork()
        if pid == 0:
            try:
                DeviceBuffer(size=10)
            except RuntimeError as error:
                assert "fork" in str(error)
            else:
                raise SystemExit("allocated in the child")
if pid:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert DeviceBuffer(size=10).mr is cuda
"""
    )
    done = child(code, "plain", PYTHONWARNINGS="ignore::DeprecationWarning")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), f"{done.stdout}\n{done.stderr}"


def test_fork_while_threads_are_in_the_middle():
    """The child hangs neither on a buffer that another thread was changing nor on its way out."""
    code = (
        PRELUDE
        + """
import os, signal
inside = threading.Event(); go_on = threading.Event()
def allocate(nbytes, stream):
    if nbytes > 5000: inside.set(); go_on.wait()
    return cuda.allocate(nbytes, stream)
slow = mr.CallbackMemoryResource(allocate, cuda.deallocate)
buffer = DeviceBuffer(size=10, mr=slow)
thread = threading.Thread(target=lambda: buffer.resize(10_000)); thread.start()
inside.wait()
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    for use in (lambda: buffer.resize(5), lambda: buffer.copy(), buffer.close, lambda: buffer.record_stream(Stream())):
        try:
            use()
        except (RuntimeError, BufferError) as error:
            assert "fork" in str(error) or "another thread" in str(error), error
        else:
            raise SystemExit("worked in the child")
    sys.exit(0)
go_on.set(); thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert buffer.size == 10_000
"""
    )
    done = child(code, "plain", PYTHONWARNINGS="ignore::DeprecationWarning")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), f"{done.stdout}\n{done.stderr}"


def test_fork_before_the_first_use():
    """The import makes no driver call, so a child may be the first to use the device."""
    code = """
import os, sys, tenure
pid = os.fork()
if pid == 0:
    assert tenure.DeviceBuffer.to_device(b"child").tobytes() == b"child"
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert tenure.DeviceBuffer.to_device(b"parent").tobytes() == b"parent"
"""
    done = child(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_multiprocessing_spawn():
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as workers:
        import tenure

        buffer = tenure.DeviceBuffer.to_device(b"sent")
        assert workers.apply(bytes_of, (buffer,)) == b"sent"


def bytes_of(buffer):
    return buffer.tobytes()
