"""tenure and RMM side by side, in one process and one run: figures, no judgement.

    python peers.py          needs the packages tenure and rmm, and a GPU

Each row is the best of seven rounds, in nanoseconds for one operation, both through Python: a pair of allocate and
deallocate on a pool, a buffer made and dropped, and random sizes with 256 blocks alive. `bytearray` is the floor that Python
itself sets. RMM's C++ figures need a compiler and are not taken here.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
START, LIMIT = 4 * GIB, 8 * GIB


def best(function: Callable[[], object], operations: int, rounds: int = 7) -> float:
    """Nanoseconds for one of the operations that a call performs."""
    shortest = float("inf")
    for _ in range(rounds):
        start = time.perf_counter_ns()
        function()
        shortest = min(shortest, time.perf_counter_ns() - start)
    return shortest / operations


def pairs(resource, size: int, count: int = 20_000) -> float:
    def run():
        allocate, deallocate = resource.allocate, resource.deallocate
        for _ in range(count):
            deallocate(allocate(size), size)

    return best(run, count)


def buffers(make: Callable[[int], object], size: int, count: int = 20_000) -> float:
    def run():
        for _ in range(count):
            make(size)

    return best(run, count)


def churn(resource, count: int = 20_000) -> float:
    """Random sizes between 256 bytes and 4 MiB, 256 blocks alive; the same sequence for everybody."""
    chance = random.Random(7)
    steps = [(chance.randrange(256), 256 << chance.randrange(15)) for _ in range(count)]

    def run():
        live: dict[int, tuple[int, int]] = {}
        for place, size in steps:
            if place in live:
                resource.deallocate(*live.pop(place))
            live[place] = (resource.allocate(size), size)
        for block in live.values():
            resource.deallocate(*block)

    return best(run, count)


def main() -> None:
    import rmm
    import tenure

    rmm_pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=START, maximum_pool_size=LIMIT)
    rmm_arena = rmm.mr.ArenaMemoryResource(rmm.mr.CudaMemoryResource(), arena_size=START)
    our_pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource(), START, LIMIT)
    print(f"tenure {tenure.__version__}, rmm {rmm.__version__}; ns for one operation, through Python\n")
    print(f"{'':34}{'tenure pool':>14}{'rmm pool':>14}{'rmm arena':>14}{'bytearray':>14}")

    def row(name: str, *figures: float | None) -> None:
        print(f"{name:34}" + "".join(f"{'-' if f is None else format(f, '.0f'):>14}" for f in figures))

    for size in (KIB, MIB):
        label = f"{size // KIB} KiB"
        row(f"allocate and deallocate, {label}", *(pairs(r, size) for r in (our_pool, rmm_pool, rmm_arena)), None)

    def maker(module, resource):
        return lambda size: module.DeviceBuffer(size=size, mr=resource)

    makers = (maker(tenure, our_pool), maker(rmm, rmm_pool), maker(rmm, rmm_arena), bytearray)
    row("a buffer of 1 KiB", *(buffers(make, KIB) for make in makers))
    row("random sizes, 256 alive", *(churn(r) for r in (our_pool, rmm_pool, rmm_arena)), None)
    row(
        "reading the current resource",
        buffers(lambda _: tenure.mr.get_current_device_resource(), 0),
        buffers(lambda _: rmm.mr.get_current_device_resource(), 0),
        None,
        None,
    )


if __name__ == "__main__":
    main()
