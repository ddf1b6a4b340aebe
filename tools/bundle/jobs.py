"""Two programs that are nobody's test: a job that mixes CuPy and PyTorch, and the largest batch that fits. By allocator, one process
each, side by side in this run: figures, no judgement.

    python jobs.py FOLDER [--gib N...] [--only JOB]     FOLDER holds mixed_job.py and largest_batch.py
    python jobs.py --drive ROUTE SCRIPT ARGS...    one of them, unchanged, over tenure

The scripts know routes of their own (``own``, ``rmm_pool``, ``rmm_async``). They are not edited: for tenure they run with ``own``,
after tenure was enabled for their libraries, and with what limits PyTorch's own allocator turned into a resource of that size.
Both print one line; for tenure's runs a second one says what the resource had live and of the driver at the most.

ROUTE is ``process`` or ``pool`` (PyTorch's), with ``+async`` for a resource over the driver's pool.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

GIB = 1 << 30
ROUTES = {
    "mixed_job.py": ("own", "own_expandable", "rmm_pool", "rmm_async"),
    "largest_batch.py": ("own", "own_expandable", "rmm_pool", "rmm_async"),
}
OURS = ("process", "pool")


def there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False


def drive(route: str, script: str, arguments: list[str]) -> None:
    """Runs a script over tenure, as it is."""
    import tenure

    mr = tenure.mr
    job = Path(script).name
    base: Any = mr.CudaAsyncMemoryResource() if route.endswith("+async") else None
    if job == "largest_batch.py":
        limit = int(float(arguments[1]) * GIB)
        # All that there is, taken at the start, as RMM's pool does in the same script.
        base = base or mr.PoolMemoryResource(mr.CudaMemoryResource(), limit // 256 * 256, limit // 256 * 256)
        if route.endswith("+async"):
            base = mr.LimitingResourceAdaptor(base, limit)
    else:
        base = base or mr.PoolMemoryResource(mr.CudaMemoryResource(), 0)
    counter = mr.StatisticsResourceAdaptor(base)
    mr.set_current_device_resource(counter)
    names = [name for name in ("cupy", "torch") if there(name)]
    tenure.enable(*names, route=route.partition("+")[0])
    import torch

    # The limit is the resource's; PyTorch's own allocator, which is another's here, would be told of it.
    torch.cuda.set_per_process_memory_fraction = lambda fraction, device=None: None
    # The scripts end with os._exit, after their line and before anything else could be said.
    leave = os._exit

    def say_and_leave(code: int) -> None:
        counts, info = counter.allocation_counts, base.info()
        print(f"    tenure: peak live {counts.peak_bytes >> 20} MiB, peak reserved {info.peak_reserved_bytes >> 20} MiB")
        sys.stdout.flush()
        leave(code)

    os._exit = say_and_leave  # type: ignore[assignment]
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def run(command: list[str], label: str, timeout: float, environment: dict[str, str] | None = None) -> bool:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(environment or {})}
        )
    except subprocess.TimeoutExpired:
        print(f"{label}: it did not end within {timeout:.0f} s", flush=True)
        return False
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    if done.returncode != 0 or not lines:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["it ended without a word"]
        print(f"{label}: failed: {said[-1]}", flush=True)
        return False
    for line in lines:
        print(f"{label}: {line}", flush=True)
    return True


def main() -> int:
    if sys.argv[1:2] == ["--drive"]:
        drive(sys.argv[2], sys.argv[3], sys.argv[4:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    # 6 and 10 are round; in 6.3 and 10.37 the live bytes of one more step fit (12 and 21: 6.274 and 10.346 GiB), with little over.
    parser.add_argument(
        "--gib", nargs="+", default=["6", "6.3", "10", "10.37"], help="budgets of largest_batch.py (default: %(default)s)"
    )
    parser.add_argument("--only", choices=tuple(ROUTES), help="this job alone")
    parser.add_argument("--timeout", type=float, default=400)
    options = parser.parse_args()
    needed = {"mixed_job.py": ("cupy", "torch"), "largest_batch.py": ("torch", "transformers")}
    good = True
    for job, routes in ROUTES.items():
        script = options.folder / job
        if options.only not in (None, job):
            continue
        lacking = [module for module in needed[job] if not there(module)]
        if not script.is_file() or lacking:
            print(f"{job}: left out: {', '.join(lacking) + ' is not installed' if lacking else 'not in the folder'}")
            continue
        batches = job == "largest_batch.py"
        if not there("rmm"):
            print(f"{job}: RMM's routes left out: rmm is not installed")
            routes = tuple(route for route in routes if not route.startswith("rmm"))
        # The first job watches what the device has left, so nothing may run beside it; the other counts within its own budget.
        with ThreadPoolExecutor(max_workers=4 if batches else 1) as at_a_time:
            ours = []
            for gib in options.gib if batches else [""]:
                more, label = ([gib], f" in {gib} GiB") if batches else ([], "")
                for route in routes:
                    setting = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if route == "own_expandable" else {}
                    command = [sys.executable, str(script), route, *more]
                    # A peer that fails is a figure; ours is a failure.
                    at_a_time.submit(run, command, f"{job} {route}{label}", options.timeout, setting)
                for route in OURS:
                    command = [sys.executable, __file__, "--drive", route, str(script), "own", *more]
                    ours.append(at_a_time.submit(run, command, f"{job} tenure {route}{label}", options.timeout))
            good &= all(one.result() for one in ours)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
