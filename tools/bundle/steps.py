"""Where the time of `cupy.empty` goes: each step by itself, with CuPy's own pool, tenure and RMM's plug.

    python steps.py              each way in a process of its own
    python steps.py --one WAY    own, tenure, tenure-unsettled or rmm

``tenure-unsettled`` takes the thread's context away first, and keeps it away: what a thread costs that has none current. Figures are
medians in nanoseconds. On the simulated device, which CuPy cannot use, the steps that need no GPU are measured, and the calls of the
driver counted.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

SIM = os.environ.get("TENURE_DEVICE", "").strip().lower() == "sim"
WAYS = ("own", "tenure", "tenure-unsettled", "rmm")


def timed(name: str, call: Callable[[], object], count: int = 5_000, rounds: int = 9) -> None:
    try:
        for _ in range(500):
            call()
        figures = []
        for _ in range(rounds):
            start = time.perf_counter_ns()
            for _ in range(count):
                call()
            figures.append((time.perf_counter_ns() - start) / count)
    except Exception as error:
        print(f"  {name:52} {type(error).__name__}: {error}".splitlines()[0])
        return
    calls = ""
    if SIM:
        import tenure

        before = tenure.sim.driver_calls()
        for _ in range(1000):
            call()
        calls = f"   {(tenure.sim.driver_calls() - before) / 1000:.2f} calls of the driver"
    print(f"  {name:52} {statistics.median(figures):8.0f}{calls}")


def current_stream() -> Callable[[], object]:
    """CuPy's C function for the current stream, through ctypes, which costs some 150 ns itself."""
    import cupy.cuda.stream as module

    capsule = module.__pyx_capi__["get_current_stream_ptr"]
    pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return ctypes.PYFUNCTYPE(ctypes.c_ssize_t)(pointer(capsule, b"intptr_t (void)"))


def driver_function(name: str) -> Callable[[], object]:
    """A call of the driver that asks for one number, through ctypes."""
    function = getattr(ctypes.CDLL("libcuda.so.1"), name)
    out = ctypes.c_uint64()
    place = ctypes.byref(out)
    return lambda: function(place)


def one(way: str) -> None:
    if way.startswith("tenure") or SIM:
        import tenure

        pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource(), "64MiB" if SIM else "1GiB")
        tenure.mr.set_current_device_resource(pool)
    elif way == "rmm":
        import rmm

        rmm.mr.set_current_device_resource(rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=1 << 30))
    import cupy
    from cupy.cuda import memory

    allocator = cupy.cuda.get_allocator()
    if way.startswith("tenure"):
        from tenure.allocators import cupy as hook

        allocator, fixed = hook.tenure_cupy_allocator, hook.allocator(pool)
    elif way == "rmm":
        from rmm.allocators.cupy import rmm_cupy_allocator as allocator
    cupy.cuda.set_allocator(allocator)
    print(f"{way}: Python {sys.version.split()[0]}, CuPy {cupy.__version__}")
    timed("nothing", lambda: None)
    if not SIM:
        cupy.empty(1024, dtype="u1")
        if way == "tenure-unsettled":
            ctypes.CDLL("libcuda.so.1").cuCtxSetCurrent(None)
        timed("runtime.getDevice()", cupy.cuda.runtime.getDevice)
        timed("get_current_stream_ptr(), by ctypes", current_stream())
        timed("cuCtxGetCurrent, by ctypes", driver_function("cuCtxGetCurrent"))
        timed("cuCtxGetDevice, by ctypes", driver_function("cuCtxGetDevice"))
        timed("get_current_stream()", cupy.cuda.get_current_stream)
    held = memory.UnownedMemory(4096, 1024, None, 0)
    timed("MemoryPointer(mem, 0)", lambda: memory.MemoryPointer(held, 0))
    pointer = memory.MemoryPointer(held, 0)
    timed("ndarray over memory that is there", lambda: cupy.ndarray(1024, dtype="u1", memptr=pointer))
    if way.startswith("tenure"):
        timed("DeviceBuffer(size=1024, mr=pool)", lambda: tenure.DeviceBuffer(size=1024, mr=pool))
        timed("DeviceBuffer(size=1024)", lambda: tenure.DeviceBuffer(size=1024))
        timed("allocator(pool)(1024)", lambda: fixed(1024))
    if not SIM or way.startswith("tenure"):
        timed("the allocator, 1 KiB", lambda: allocator(1024))
        timed("the allocator, 1 MiB", lambda: allocator(1 << 20))
    if not SIM:
        timed("cupy.cuda.alloc(1024)", lambda: cupy.cuda.alloc(1024))
        timed("cupy.empty(1024, 'u1')", lambda: cupy.empty(1024, dtype="u1"))
        gc.disable()
        timed("the same without the garbage collector", lambda: cupy.empty(1024, dtype="u1"))
        gc.enable()
        with cupy.cuda.Stream(non_blocking=True):
            timed("the same on a stream of its own", lambda: cupy.empty(1024, dtype="u1"))
        kept: list[Any] = [None] * 100

        def replace() -> None:
            kept.append(cupy.empty(1024, dtype="u1"))
            del kept[0]

        timed("the same with 100 alive", replace)
        cupy.cuda.Device(0).use()
        timed("cupy.empty after Device(0).use()", lambda: cupy.empty(1024, dtype="u1"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", choices=WAYS)
    options = parser.parse_args()
    if options.one:
        one(options.one)
        return 0
    bad = 0
    for way in WAYS:
        if (way == "rmm" and importlib.util.find_spec("rmm") is None) or (SIM and way != "tenure"):
            continue
        done = subprocess.run([sys.executable, __file__, "--one", way], capture_output=True, text=True, timeout=300)
        print(done.stdout, end="", flush=True)
        if done.returncode:
            bad += way != "rmm"
            print(f"{way}: failed: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
