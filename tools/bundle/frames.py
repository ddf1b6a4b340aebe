"""A turn of pylibcudf's (group, sort and join one table) by what stands under RMM, one process each, side by side in this run.

    python frames.py [--quick] [--rows N]      needs pylibcudf and RMM

What a turn allocates, results and scratch, is the same everywhere; the kernels are. So the difference between two lines is what
the resource costs. Each line is the best of five spans, and each resource comes twice, since machines change while one looks.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from typing import Any

ROUTES = ("rmm pool", "rmm async", "rmm cuda", "tenure pool")


def under(route: str) -> None:
    """Makes a resource RMM's current one, and so pylibcudf's."""
    if route == "tenure pool":
        import tenure

        tenure.mr.set_current_device_resource(tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource(), "1GiB"))
        tenure.enable("rmm")
    import rmm

    peers: dict[str, Any] = {
        "rmm pool": lambda: rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), 1 << 30),
        "rmm async": rmm.mr.CudaAsyncMemoryResource,
        "rmm cuda": rmm.mr.CudaMemoryResource,
    }
    if route in peers:
        rmm.mr.set_current_device_resource(peers[route]())


def turns(route: str, rows: int, span: int) -> float:
    """Seconds of one turn."""
    under(route)
    import numpy as np
    import pyarrow as pa
    import pylibcudf as plc

    random = np.random.default_rng(1)
    arrow = pa.table({"key": random.integers(0, 1000, rows), "value": random.random(rows)})
    table = plc.Table.from_arrow(arrow)

    def turn() -> None:
        groups = plc.groupby.GroupBy(plc.Table(table.columns()[:1]))
        wanted = [plc.aggregation.sum(), plc.aggregation.mean()]
        keys, _ = groups.aggregate([plc.groupby.GroupByRequest(table.columns()[1], wanted)])
        plc.sorting.sort(table, [plc.types.Order.ASCENDING] * 2, [plc.types.NullOrder.AFTER] * 2)
        plc.join.inner_join(plc.Table(table.columns()[:1]), keys, plc.types.NullEquality.EQUAL)

    def timed() -> float:
        start = time.perf_counter()
        for _ in range(span):
            turn()
        return (time.perf_counter() - start) / span

    timed()
    return min(timed() for _ in range(5))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", choices=ROUTES, help="this one, in this process")
    options = parser.parse_args()
    if options.one:
        seconds = turns(options.one, options.rows, 10 if options.quick else 100)
        print(f"{options.one:12s} {seconds * 1e6:8.0f} us a turn of {options.rows} rows", flush=True)
        return 0
    lacking = [name for name in ("rmm", "pylibcudf", "pyarrow") if importlib.util.find_spec(name) is None]
    if lacking:
        print(f"skipped: {', '.join(lacking)} is not installed")
        return 0
    good = True
    for route in ROUTES * 2:
        command = [sys.executable, __file__, "--rows", str(options.rows), *["--quick"] * options.quick, "--one", route]
        good &= subprocess.run(command, timeout=300, check=False).returncode == 0
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
