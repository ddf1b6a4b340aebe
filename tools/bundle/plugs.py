"""The libraries that allocate through tenure, beside their own allocator and RMM's plug: figures, no judgement.

    python plugs.py [--quick] [--json FILE]        each library and way in a process of its own, in this run
    python plugs.py --one LIBRARY WAY [--quick]    one of them, in this process; prints JSON

Each figure is the median of some rounds, and the best of three processes (one with --quick) that come in turns, since a machine
changes while one looks. It is nanoseconds for one array made and dropped by the function that a program calls (`cupy.empty`,
`torch.empty`, `numba.cuda.device_array`, `cuda.core.Device.allocate`). `live` replaces one of 100 live arrays of
256 bytes to 1 MiB. Every way has its warm pool: tenure's and RMM's of 1 GiB, or the library's own. `floor` is what cuda.core takes
with a resource that gives the same address each time, makes its buffers by the public `Buffer.from_handle` and does nothing else.
RMM has no plug for it.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

KIB, MIB = 1 << 10, 1 << 20
# What each library can be asked for: its own allocator, tenure, RMM's plug, and a plug that does nothing.
WAYS = {
    "cupy": ("own", "tenure", "rmm"),
    "torch": ("own", "tenure process", "tenure pool", "rmm"),
    "numba": ("own", "tenure", "rmm"),
    "cuda.core": ("own", "tenure", "floor"),
}
CALLS = {
    "cupy": "cupy.empty",
    "torch": "torch.empty",
    "numba": "numba device_array",
    "cuda.core": "cuda.core allocate",
}
COLUMNS = ("own", "tenure", "tenure pool", "rmm", "floor")
MODULES = {"cupy": "cupy", "torch": "torch", "numba": "numba_cuda", "cuda.core": "cuda.core"}


def through_tenure(library: str, way: str) -> None:
    import tenure

    pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource(), 1 << 30)
    tenure.mr.set_current_device_resource(pool)
    tenure.enable(library, route=way.partition(" ")[2] or "auto")


def through_rmm(library: str) -> None:
    import rmm

    rmm.mr.set_current_device_resource(rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=1 << 30))
    if library == "cupy":
        import cupy
        from rmm.allocators.cupy import rmm_cupy_allocator

        cupy.cuda.set_allocator(rmm_cupy_allocator)
    elif library == "torch":
        import torch
        from rmm.allocators.torch import rmm_torch_allocator

        torch.cuda.memory.change_current_allocator(rmm_torch_allocator)
    else:
        from numba import cuda
        from rmm.allocators.numba import RMMNumbaManager

        cuda.set_memory_manager(RMMNumbaManager)


def through_nothing() -> None:
    """cuda.core on a resource that does nothing, of functions that are no Python code."""
    from cuda.core import Buffer, Device, MemoryResource

    class Nothing(MemoryResource):  # type: ignore[misc]
        is_device_accessible, is_host_accessible, is_managed, device_id = True, False, False, 0
        # Takes anything.
        deallocate = staticmethod("".format)

    nothing = Nothing()
    nothing.allocate = functools.partial(Buffer.from_handle, 4096, mr=nothing)
    Device(0).memory_resource = nothing


def maker(library: str) -> Callable[[int], Any]:
    """The function that makes an array of so many bytes, as programs call it."""
    if library == "cupy":
        import cupy

        return lambda size: cupy.empty(size, dtype="u1")
    if library == "torch":
        import torch

        return lambda size: torch.empty(size, dtype=torch.uint8, device="cuda")
    if library == "numba":
        from numba import cuda

        return lambda size: cuda.device_array(size, dtype="u1")
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    return lambda size: device.allocate(size, stream=stream)


def median(work: Callable[[], object], count: int, rounds: int) -> float:
    work()
    figures = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        work()
        figures.append((time.perf_counter_ns() - start) / count)
    return statistics.median(figures)


def measure(library: str, way: str, quick: bool) -> dict[str, float]:
    rounds, count = (3, 200) if quick else (9, 5_000)
    if way.startswith("tenure"):
        through_tenure(library, way)
    elif way == "rmm":
        through_rmm(library)
    elif way == "floor":
        through_nothing()
    make = maker(library)
    figures = {}
    for size, label in ((KIB, "1 KiB"), (MIB, "1 MiB")):

        def one(size: int = size) -> None:
            for _ in range(count):
                make(size)

        figures[label] = median(one, count, rounds)
    chance = random.Random(7)
    sizes = [(256 << chance.randrange(12)) + 16 * chance.randrange(16) for _ in range(count)]
    places = [chance.randrange(100) for _ in sizes]
    live: list[Any] = [make(KIB) for _ in range(100)]

    def replace() -> None:
        for place, size in zip(places, sizes, strict=True):
            live[place] = None
            live[place] = make(size)

    figures["live"] = median(replace, count, rounds)
    return figures


def there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def rows(quick: bool) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """The figures as `peers.py` writes them, who is not here, and what failed."""
    missing: list[str] = []
    failed: list[str] = []
    best: dict[tuple[str, str, str], float] = {}
    for library, ways in WAYS.items():
        if not there(MODULES[library]):
            missing.append(f"{MODULES[library]}: not installed")
            continue
        for way in ways * (1 if quick else 3):
            if way == "rmm" and not there("rmm"):
                continue
            command = [sys.executable, __file__, "--one", library, way, *(["--quick"] if quick else [])]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=300)
                figures = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
            except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
                failed.append(f"{library} {way}: {error}")
                continue
            if figures is None:
                said = [line for line in done.stderr.splitlines() if any(letter.isalpha() for letter in line)]
                failed.append(f"{library} {way}: {(said or ['it ended without a word'])[-1]}")
                continue
            for case, ns in figures.items():
                best[library, way, case] = min(ns, best.get((library, way, case), ns))
    found = [
        {"workload": CALLS[library], "case": case, "allocator": f"{library} {way}", "ns": ns}
        for (library, way, case), ns in best.items()
    ]
    return found, missing, failed


def table(found: list[dict[str, Any]]) -> str:
    lines = [f"{'':24}" + "".join(f"{way:>16}" for way in COLUMNS)]
    for library, call in CALLS.items():
        for case in ("1 KiB", "1 MiB", "live"):
            by_way = {
                row["allocator"].removeprefix(f"{library} "): row["ns"]
                for row in found
                if row["workload"] == call and row["case"] == case
            }
            if not by_way:
                continue
            by_way.setdefault("tenure", by_way.get("tenure process"))
            cells = (by_way.get(way) for way in COLUMNS)
            lines.append(f"{call + ', ' + case:24}" + "".join(f"{'-' if ns is None else f'{ns:.0f}':>16}" for ns in cells))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few and short rounds")
    parser.add_argument("--json", metavar="FILE", help="also writes the figures there")
    parser.add_argument("--one", nargs=2, metavar=("LIBRARY", "WAY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one, options.quick)))
        return 0
    found, missing, failed = rows(options.quick)
    print(table(found))
    for line in missing:
        print(f"not here: {line}")
    for line in failed:
        print(f"failed: {line}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"rows": found, "missing": missing, "failed": failed}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
