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


def measure_a_buffer(rounds: int = 20_000) -> dict[str, object]:
    """The row of ``bench`` that only Python can measure, the best of seven, with its reference."""
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
    return {
        "name": "buffer-python",
        "what": "an owning buffer of 1 KiB made and dropped from Python, on a pool",
        "ns": ours,
        "reference": "a bytearray of 1 KiB",
        "reference_ns": reference,
        "ratio": ours / reference,
    }


def value_of(option: str, arguments: list[str]) -> str | None:
    """The value of ``--option value`` or ``--option=value``."""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if argument == option:
            return following
        if argument.startswith(f"{option}="):
            return argument.removeprefix(f"{option}=")
    return None


def bench(arguments: list[str]) -> int:
    """The program's rows, and ours behind them: as text, or as one JSON object."""
    if {"-h", "--help"} & set(arguments) or (value_of("--filter", arguments) or "") not in "buffer-python":
        return run(arguments).returncode
    done = run(arguments, capture="--json" in arguments)
    if done.returncode != 0:
        return done.returncode
    if device := value_of("--device", arguments):
        os.environ["TENURE_DEVICE"] = device
    row = measure_a_buffer()
    if "--json" in arguments:
        everything = json.loads(done.stdout)
        everything["rows"].append(row)
        print(json.dumps(everything, indent=2))
    else:
        print(f"{row['name']}: {row['ns']:.0f} ns: {row['what']}; reference: {row['reference']}, {row['reference_ns']:.0f} ns")
    return 0


def run(arguments: list[str], capture: bool = False) -> subprocess.CompletedProcess[str]:
    """The program, with the package's library."""
    binary = program()
    if not binary.exists():
        print(f"tenure: {binary} is not there: this is no installed package; build a wheel with `make wheel`", file=sys.stderr)
        return subprocess.CompletedProcess(arguments, 1, "", "")
    environment = dict(os.environ)
    if library().exists():
        environment.setdefault("TENURE_LIBRARY", str(library()))
    output = subprocess.PIPE if capture else None
    return subprocess.run([str(binary), *arguments], env=environment, stdout=output, text=True)


def main(arguments: list[str]) -> int:
    if arguments in (["--cmake-dir"], ["--include-dir"]):
        return folder(arguments[0].removeprefix("--").removesuffix("-dir"))
    if arguments[:1] == ["bench"]:
        return bench(arguments)
    return run(arguments).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
