"""``python -m tenure``: where things are, and the command line.

``--cmake-dir``, ``--include-dir`` and ``--pkgconfig-dir`` print a folder for build scripts. ``run`` runs a Python program on
tenure's memory and says what it took. Everything else goes to the ``tenure`` program of the package, which then uses the
package's library. ``bench`` gets one row more, which only Python can measure.
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
    """The row of ``bench`` that only Python can measure, with its reference, in the form of the other rows."""
    import tenure

    pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
    warm = tenure.DeviceBuffer(size=1024, mr=pool)
    make = tenure.DeviceBuffer
    clock = time.perf_counter_ns

    def time_of(function: Callable[[], object]) -> list[float]:
        figures = []
        for _ in range(7):
            start = clock()
            for _ in range(rounds):
                function()
            figures.append((clock() - start) / rounds)
        return sorted(figures)

    def singles(function: Callable[[], object]) -> list[float]:
        cost = sorted(-(clock() - clock()) for _ in range(1001))[500]
        figures = []
        for _ in range(rounds):
            start = clock()
            function()
            figures.append(max(0.0, clock() - start - cost))
        return sorted(figures)

    ours = time_of(lambda: make(size=1024, mr=pool))
    one = singles(lambda: make(size=1024, mr=pool))
    reference = time_of(lambda: bytearray(1024))
    del warm
    return {
        "name": "python-buffer",
        "theme": "python",
        "what": "an owning buffer of 1 KiB made and dropped from Python, on a pool",
        "threads": 1,
        "ns": ours[3],
        "mean_ns": sum(ours) / len(ours),
        "p50_ns": one[len(one) // 2],
        "p99_ns": one[len(one) * 99 // 100],
        "max_ns": one[-1],
        "worst_thread_ns": ours[3],
        "growth": None,
        "reference": "a bytearray of 1 KiB",
        "reference_ns": reference[3],
        "reference_worst_thread_ns": reference[3],
        "reference_growth": None,
        "ratio": ours[3] / reference[3],
        "driver_calls": None,
        "host_bytes_per_block": None,
        "target": "<= 400 ns",
        "met": ours[3] <= 400,
    }


def value_of(option: str, arguments: list[str]) -> str | None:
    """The value of ``--option value`` or ``--option=value``."""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if argument == option:
            return following
        if argument.startswith(f"{option}="):
            return argument.removeprefix(f"{option}=")
    return None


def wants_python(arguments: list[str]) -> bool:
    """Whether the names among the arguments of ``bench`` select the row of Python: there are none, or one is its beginning."""
    names, skip = [], False
    for argument in arguments[1:]:
        if not skip and not argument.startswith("-"):
            names.append(argument)
        skip = argument in ("--device", "--rounds") and not skip
    return not names or any(name and "python-buffer".startswith(name) for name in names)


def bench(arguments: list[str]) -> int:
    """The program's rows, and ours behind them: as text, or as one JSON object."""
    if {"-h", "--help", "--list"} & set(arguments) or not wants_python(arguments):
        return run(arguments).returncode
    done = run(arguments, capture="--json" in arguments)
    # 1: a row failed, and the others are there.
    if done.returncode not in (0, 1) or done.stdout == "":
        return done.returncode
    if device := value_of("--device", arguments):
        os.environ["TENURE_DEVICE"] = device
    row = measure_a_buffer(2_000 if "--quick" in arguments else 20_000)
    if "--json" in arguments:
        everything = json.loads(done.stdout)
        everything["rows"].append(row)
        print(json.dumps(everything, indent=2))
    else:
        print(
            f"\n{row['name']}: {row['what']}: {row['ns']:.0f} ns, p50 {row['p50_ns']:.0f}, p99 {row['p99_ns']:.0f}, "
            f"max {row['max_ns']:.0f}; reference: {row['reference']}, {row['reference_ns']:.0f} ns; target {row['target']}"
        )
    return done.returncode


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
    if arguments == ["--pkgconfig-dir"]:
        return folder("lib/pkgconfig")
    if arguments[:1] == ["run"]:
        from tenure import _run

        return _run.main(arguments[1:])
    if arguments[:1] == ["bench"]:
        return bench(arguments)
    return run(arguments).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
