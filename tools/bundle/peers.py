"""tenure, RMM, CuPy and PyTorch side by side, from Python, in one process and one run: figures, no judgement.

    python peers.py [--quick] [--json FILE]      needs the package tenure; whoever else is installed is measured beside it

Each figure is the median of some rounds, in nanoseconds for one operation; with threads, of the slowest thread, all of which
share one interpreter and, where it has one, its lock. RMM's C++ figures are those of peers.cpp.

What an operation is: `pair`, a block allocated and freed; `churn`, one of some live blocks freed and another of 256 bytes to
4 MiB allocated; `threads`, the same by each of some threads with 200 live blocks of 256 bytes to 1 MiB; `buffer`, an owning
object of the library's made and dropped (DeviceBuffer, cupy.ndarray, torch.Tensor).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import plugs  # beside this file

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass
class Peer:
    """An allocator: how a block is had and given back, and how an owner is made."""

    name: str
    allocate: Callable[[int], object]
    free: Callable[[object, int], object]
    buffer: Callable[[int], object]


def resource_peer(name: str, module, resource) -> Peer:
    """A resource with RMM's names, which tenure's are too."""
    return Peer(name, resource.allocate, resource.deallocate, lambda size: module.DeviceBuffer(size=size, mr=resource))


def peers(room: int) -> tuple[list[tuple[str, Callable[[], Peer]]], list[str]]:
    """Functions that make the peers, since not all of them fit beside each other; and who is not here, and why."""
    start = min(16 * GIB, room // 4 // MIB * MIB)
    limit = min(32 * GIB, room // 2 // MIB * MIB)
    found: list[tuple[str, Callable[[], Peer]]] = []
    missing = []

    import tenure

    def ours() -> Peer:
        pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource(), start, limit)
        return resource_peer("tenure", tenure, pool)

    found.append(("tenure", ours))

    def module(name: str):
        try:
            return importlib.import_module(name)
        except Exception as error:  # a package that cannot be loaded here is as good as none, whatever its reason
            missing.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            return None

    if rmm := module("rmm"):

        def theirs(name: str, make: Callable[[], object]) -> None:
            found.append((name, lambda: resource_peer(name, rmm, make())))

        def pool():
            return rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=start, maximum_pool_size=limit)

        theirs("rmm pool", pool)
        theirs("rmm arena", lambda: rmm.mr.ArenaMemoryResource(rmm.mr.CudaMemoryResource(), arena_size=start))
        theirs("rmm binning", lambda: rmm.mr.BinningMemoryResource(pool(), 18, 22))
        theirs("rmm async", lambda: rmm.mr.CudaAsyncMemoryResource(initial_pool_size=start))
    if cupy := module("cupy"):

        def cupy_peer() -> Peer:
            pool = cupy.cuda.MemoryPool()
            cupy.cuda.set_allocator(pool.malloc)
            # A block of CuPy's is an owner itself: giving it back is dropping it.
            return Peer("cupy", pool.malloc, lambda block, size: None, lambda size: cupy.empty(size, dtype="u1"))

        found.append(("cupy", cupy_peer))
    if (torch := module("torch")) and not torch.cuda.is_available():
        missing.append("torch: it sees no GPU")
    elif torch:

        def torch_peer() -> Peer:
            cuda = torch.cuda
            return Peer(
                "torch",
                lambda size: cuda.caching_allocator_alloc(size, 0),
                lambda block, size: cuda.caching_allocator_delete(block),
                lambda size: torch.empty(size, dtype=torch.uint8, device="cuda"),
            )

        found.append(("torch", torch_peer))
    return found, missing


@dataclass
class Effort:
    rounds: int
    count: int


def rounds(function: Callable[[], object], operations: int, effort: Effort) -> float:
    """Nanoseconds for one of the operations that a call performs; the first call is not timed."""
    function()
    figures = []
    for _ in range(effort.rounds):
        start = time.perf_counter_ns()
        function()
        figures.append((time.perf_counter_ns() - start) / operations)
    return statistics.median(figures)


def pair(peer: Peer, size: int, effort: Effort) -> float:
    def run():
        allocate, free = peer.allocate, peer.free
        for _ in range(effort.count):
            free(allocate(size), size)

    return rounds(run, effort.count, effort)


def buffer(peer: Peer, size: int, effort: Effort) -> float:
    def run():
        make = peer.buffer
        for _ in range(effort.count):
            make(size)

    return rounds(run, effort.count, effort)


class Blocks:
    """Live blocks, and steps that are drawn before the clock runs: the same for everybody."""

    def __init__(self, peer: Peer, live: int, most: int, steps: int, seed: int = 7):
        chance = random.Random(seed)
        doublings = most.bit_length() - 9
        # Half of a doubling is drawn from, so that sizes are not powers of two only.
        sizes = [(256 << chance.randrange(doublings)) + 16 * chance.randrange(16) for _ in range(live + steps)]
        self.peer = peer
        self.steps = [(chance.randrange(live), size) for size in sizes[live:]]
        self.live = [(peer.allocate(size), size) for size in sizes[:live]]

    def churn(self) -> None:
        allocate, free, live = self.peer.allocate, self.peer.free, self.live
        for place, size in self.steps:
            block, old = live[place]
            live[place] = (None, 0)
            free(block, old)
            del block
            live[place] = (allocate(size), size)

    def close(self) -> None:
        for block, size in self.live:
            self.peer.free(block, size)
        self.live = []


def churn(peer: Peer, live: int, effort: Effort) -> float:
    blocks = Blocks(peer, live, 4 * MIB, effort.count)
    try:
        return rounds(blocks.churn, effort.count, effort)
    finally:
        blocks.close()


def threads(peer: Peer, count: int, effort: Effort) -> float:
    """The slowest of some threads."""
    meeting = threading.Barrier(count)
    medians: list[float] = []
    failures: list[BaseException] = []
    steps = max(effort.count // 4, 100)

    def work(index: int) -> None:
        try:
            blocks = Blocks(peer, 200, MIB, steps, seed=1000 + index)
            try:
                figures = []
                for _ in range(effort.rounds + 1):
                    meeting.wait()
                    start = time.perf_counter_ns()
                    blocks.churn()
                    figures.append((time.perf_counter_ns() - start) / steps)
                medians.append(statistics.median(figures[1:]))
            finally:
                blocks.close()
        except BaseException as error:
            failures.append(error)
            # The others must not wait for this one.
            meeting.abort()

    all_threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in all_threads:
        thread.start()
    for thread in all_threads:
        thread.join()
    if failures:
        raise next((e for e in failures if not isinstance(e, threading.BrokenBarrierError)), failures[0])
    return max(medians)


def cases(effort: Effort) -> list[tuple[str, str, Callable[[Peer], float]]]:
    all_cases: list[tuple[str, str, Callable[[Peer], float]]] = []

    def add(workload: str, what: str, measure: Callable[..., float], argument: int) -> None:
        all_cases.append((workload, what, lambda peer: measure(peer, argument, effort)))

    for size, label in ((256, "256 B"), (64 * KIB, "64 KiB"), (4 * MIB, "4 MiB")):
        add("pair", label, pair, size)
    for live in (100, 1_000):
        add("churn", f"{live} live", churn, live)
    for count in (1, 4, 16):
        add("threads", f"{count} threads", threads, count)
    for size, label in ((KIB, "1 KiB"), (MIB, "1 MiB")):
        add("buffer", label, buffer, size)
    return all_cases


def free_bytes() -> int:
    import tenure

    return tenure.device_info()["free_bytes"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few and short rounds")
    parser.add_argument("--json", metavar="FILE", help="also writes the figures there")
    options = parser.parse_args()
    effort = Effort(3, 500) if options.quick else Effort(7, 10_000)

    found, missing = peers(free_bytes())
    wanted = cases(effort)
    figures: dict[tuple[str, str], dict[str, float | None]] = {(w, what): {} for w, what, _ in wanted}
    problems = []
    for name, make in found:
        try:
            peer = make()
        except Exception as error:
            problems.append(f"{name}: {error}")
            continue
        for workload, what, measure in wanted:
            try:
                figures[workload, what][name] = measure(peer)
            except Exception as error:
                figures[workload, what][name] = None
                problems.append(f"{name}, {workload}, {what}: {error}")
        del peer
    floor = rounds(lambda: [bytearray(KIB) for _ in range(effort.count)], effort.count, effort)

    names = [name for name, _ in found]
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"Python {sys.version.split()[0]}{'' if locked else ', free-threaded'}, {os.cpu_count()} cores; ns for one operation")
    print(f"{'':24}" + "".join(f"{name:>14}" for name in names))
    for (workload, what), row in figures.items():
        cells = (f"{row[name]:.0f}" if row.get(name) is not None else "-" for name in names)
        print(f"{workload + ', ' + what:24}" + "".join(f"{cell:>14}" for cell in cells))
    print(f"{'bytearray, 1 KiB':24}{floor:>14.0f}   (what Python itself takes for an object with memory)")
    # The libraries' own functions, through tenure and otherwise, each in a process of its own.
    through, not_there, wrong = plugs.rows(options.quick)
    missing += [line for line in not_there if line.partition(":")[0] not in {known.partition(":")[0] for known in missing}]
    problems += wrong
    if through:
        print()
        print(plugs.table(through))
    for line in missing:
        print(f"not here: {line}")
    for line in problems:
        print(f"failed: {line}")
    if options.json:
        rows = [
            {"workload": workload, "case": what, "allocator": name, "ns": ns}
            for (workload, what), row in figures.items()
            for name, ns in row.items()
        ]
        rows += through
        rows.append({"workload": "bytearray", "case": "1 KiB", "allocator": "none", "ns": floor})
        with open(options.json, "w") as file:
            json.dump({"python": sys.version.split()[0], "missing": missing, "failed": problems, "rows": rows}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
