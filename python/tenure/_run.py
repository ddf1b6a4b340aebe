"""``python -m tenure run script.py``: a program on tenure's memory, and what it took.

::

    libraries --> a counter for each --> the counter of all --> the resource (--resource)

The program is not changed: the libraries are turned on before it starts, or when it imports them, each over a counter of its
own. The last lines on stderr say the peak, what the resource and the driver had, what each library held, and what was left.

What a library held at the peak, and what the driver had in use, are read every few milliseconds by a thread of their own, so
that a peak of microseconds is missed; everything else is counted exactly.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import runpy
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tenure

from .allocators import Table, _libraries

_EVERY = 0.002
"""Seconds between two readings of the counters."""
_DRIVER_EVERY = 25
"""Readings of the counters for one question to the driver."""


def resource(text: str) -> Any:
    """The resource of a word such as ``pool:80%``: ``pool[:INITIAL[,MAXIMUM]]``, ``arena[:SIZE]``, ``async[:INITIAL]``, ``cuda``,
    ``managed``."""
    name, _, sizes = text.partition(":")
    size = [part.strip() or None for part in sizes.split(",")] if sizes else []
    mr = tenure.mr
    kinds: dict[str, tuple[int, Callable[..., Any]]] = {
        "cuda": (0, mr.CudaMemoryResource),
        "managed": (0, mr.ManagedMemoryResource),
        "async": (1, mr.CudaAsyncMemoryResource),
        "pool": (2, lambda *sizes: mr.PoolMemoryResource(mr.CudaMemoryResource(), *sizes)),
        "arena": (1, lambda *sizes: mr.ArenaMemoryResource(mr.CudaMemoryResource(), *sizes)),
    }
    if name not in kinds:
        raise ValueError(f"there is no resource {name!r}: choose one of {', '.join(kinds)}")
    most, make = kinds[name]
    if len(size) > most:
        raise ValueError(f"{name} takes {most or 'no'} size{'s' if most > 1 else ''}, and {text!r} has {len(size)}")
    return make(*size)


class Account:
    """The counters of a run."""

    def __init__(self, base: Any, names: list[str]) -> None:
        self.base = base
        self.all = tenure.mr.StatisticsResourceAdaptor(base)
        self.of = {name: tenure.mr.StatisticsResourceAdaptor(self.all) for name in [*names, "others"]}
        self.device = tenure.get_current_device()
        self.peak = 0
        self.at_peak: dict[str, int] = {}
        self.driver_peak = 0
        self.readings = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tenure-run", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self.read()
        self.read_driver()

    def read(self) -> None:
        held = {name: int(counter.allocation_counts.current_bytes) for name, counter in self.of.items()}
        total = sum(held.values())
        if total > self.peak:
            self.peak, self.at_peak = total, held

    def read_driver(self) -> None:
        about = tenure.device_info(self.device)
        self.driver_peak = max(self.driver_peak, about["total_bytes"] - about["free_bytes"])

    def _watch(self) -> None:
        while not self._stop.wait(_EVERY):
            self.read()
            if self.readings % _DRIVER_EVERY == 0:
                self.read_driver()
            self.readings += 1

    def report(self, seconds: float, table: Table) -> dict[str, Any]:
        """What is said at the end, as JSON has it. Sizes are in bytes."""
        info = self.base.info()
        whole = self.all.allocation_counts
        return {
            "seconds": seconds,
            "resource": type(self.base).__name__,
            "device": self.device,
            "peak_live_bytes": whole.peak_bytes,
            "peak_reserved_bytes": max(info.peak_reserved_bytes, info.reserved_bytes),
            "driver_peak_bytes": self.driver_peak,
            "allocations": whole.total_count,
            "allocated_bytes": whole.total_bytes,
            "left_blocks": whole.current_count,
            "left_bytes": whole.current_bytes,
            "libraries": {
                name: {
                    "peak_bytes": counts.peak_bytes,
                    "at_peak_bytes": self.at_peak.get(name, 0),
                    "allocations": counts.total_count,
                    "allocated_bytes": counts.total_bytes,
                    "left_blocks": counts.current_count,
                    "left_bytes": counts.current_bytes,
                }
                for name, counts in ((name, counter.allocation_counts) for name, counter in self.of.items())
            },
            "enabled": [
                {
                    "library": row.library,
                    "version": row.version,
                    "state": row.state,
                    "route": row.route,
                    "notes": list(row.notes),
                }
                for row in table
            ],
        }


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def text(report: dict[str, Any]) -> str:
    """The last lines of a run."""
    lines = [
        f"tenure run: {report['seconds']:.1f} s on {report['resource']}: peak live {size(report['peak_live_bytes'])}, peak reserved "
        f"{size(report['peak_reserved_bytes'])}, the driver's peak {size(report['driver_peak_bytes'])} (all processes), "
        f"{report['allocations']} allocations of {size(report['allocated_bytes'])}"
    ]
    for name, one in report["libraries"].items():
        if one["allocations"]:
            lines.append(
                f"  {name}: peak {size(one['peak_bytes'])}, {size(one['at_peak_bytes'])} at the peak of all, "
                f"{one['allocations']} allocations of {size(one['allocated_bytes'])}"
            )
    off = [row for row in report["enabled"] if row["state"] == "failed"]
    lines += [f"  {row['library']} was not turned on: {row['notes'][0]}" for row in off]
    if report["left_blocks"]:
        left = ", ".join(f"{name} {one['left_blocks']}" for name, one in report["libraries"].items() if one["left_blocks"])
        blocks = "1 block" if report["left_blocks"] == 1 else f"{report['left_blocks']} blocks"
        lines.append(f"  left at the end: {blocks} of {size(report['left_bytes'])} ({left})")
    else:
        lines.append("  left at the end: nothing")
    return "\n".join(lines)


def arguments_of(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tenure run",
        description="Runs a program on tenure's memory, unchanged, and says at its end what it took.",
    )
    parser.add_argument(
        "--resource", default="pool", metavar="SPEC", help="pool[:INITIAL[,MAXIMUM]], arena[:SIZE], async, cuda, managed"
    )
    parser.add_argument("--libraries", metavar="NAMES", help="such as cupy,torch; without it, all that are installed")
    parser.add_argument("-o", "--output", metavar="FILE", help="also writes what is said at the end there, as JSON")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    parser.add_argument("program", help="a script, or a module after -m")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own")
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace) -> int:
    """The program, as if it had been started by itself: its exit code."""
    sys.argv = [options.program, *options.arguments]
    try:
        if options.module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(options.program, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(options.program).resolve().parent))
            runpy.run_path(options.program, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main(arguments: list[str]) -> int:
    """Runs ``arguments``; the exit code is the program's, or 2 where it could not be started."""
    options = arguments_of(arguments)
    try:
        if not options.module and not Path(options.program).is_file():
            raise FileNotFoundError(f"there is no file {options.program}")
        named = [_libraries.named(name.strip()) for name in (options.libraries or "").split(",") if name.strip()]
        chosen = named or [library for library in _libraries.LIBRARIES.values() if _libraries.installed(library)]
        account = Account(resource(options.resource), [library.name for library in chosen])
        tenure.mr.set_current_device_resource(account.of["others"])
        rows: list[Any] = []
        for library in chosen:
            rows += tenure.enable(library.name, mr=account.of[library.name])
    except (ValueError, OSError, ImportError, RuntimeError, MemoryError) as error:
        print(f"tenure run: {error}", file=sys.stderr)
        return 2
    account.start()
    start = time.perf_counter()
    code = _run(options)
    seconds = time.perf_counter() - start
    sys.stdout.flush()
    # What the program kept in its globals is gone by now; cycles are not.
    gc.collect()
    account.stop()
    report = account.report(seconds, Table(rows))
    print(text(report), file=sys.stderr)
    if options.output:
        try:
            Path(options.output).write_text(json.dumps(report, indent=1) + "\n")
        except OSError as error:
            print(f"tenure run: {options.output} cannot be written: {error}", file=sys.stderr)
            return code or 2
    return code
