"""``python -m tenure``: where things are, and the command line.

``--cmake-dir`` and ``--include-dir`` print a folder for build scripts. Everything else goes to the ``tenure`` program of
the package, which then uses the package's library. ``bench`` gets one row more, which only Python can measure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent


def library() -> Path:
    return HERE / "lib" / "libtenure.so.0"


def program() -> Path:
    return HERE / "bin" / "tenure"


def folder(name: str) -> int:
    place = HERE / name
    if not place.is_dir():
        print(f"tenure: {place} is not there: this is no installed package; build a wheel with `make wheel`", file=sys.stderr)
        return 1
    print(place)
    return 0


def nanoseconds_of_a_buffer(rounds: int = 20_000) -> tuple[float, float]:
    """The best of seven: a buffer of 1 KiB made and freed under a pool, and a bytearray as the reference."""
    import tenure

    pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
    warm = tenure.DeviceBuffer(size=1024, mr=pool)
    make = tenure.DeviceBuffer

    def time_of(function: Callable[[], object]) -> float:
        best = float("inf")
        for _ in range(7):
            start = time.perf_counter_ns()
            for _ in range(rounds):
                function()
            best = min(best, (time.perf_counter_ns() - start) / rounds)
        return best

    ours = time_of(lambda: make(size=1024, mr=pool))
    reference = time_of(lambda: bytearray(1024))
    del warm
    return ours, reference


def run(arguments: list[str]) -> int:
    binary = program()
    if not binary.exists():
        print(f"tenure: {binary} is not there: this is no installed package; build a wheel with `make wheel`", file=sys.stderr)
        return 1
    environment = dict(os.environ)
    if library().exists():
        environment.setdefault("TENURE_LIBRARY", str(library()))
    return subprocess.run([str(binary), *arguments], env=environment).returncode


def main(arguments: list[str]) -> int:
    if arguments in (["--cmake-dir"], ["--include-dir"]):
        return folder(arguments[0].removeprefix("--").removesuffix("-dir"))
    code = run(arguments)
    if arguments[:1] == ["bench"] and code == 0:
        ours, reference = nanoseconds_of_a_buffer()
        if "--json" in arguments:
            row = {
                "row": "buffer from Python",
                "ns": round(ours, 1),
                "reference": "bytearray",
                "reference_ns": round(reference, 1),
            }
            print(json.dumps(row))
        else:
            print(f"buffer from Python: {ours:.0f} ns   (bytearray: {reference:.0f} ns)")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
