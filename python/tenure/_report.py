"""Did it help? ``tenure.report()``, and what ``python -m tenure run`` says at its end.

::

    plugs --name their library--> the engine's meter --JSON--> Report: fields, text, a table in a notebook, a file

The engine counts (``docs/tools.md`` says what that costs); this module reads and shows. Sizes are in bytes, times in seconds.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from . import _tenure

__all__ = ["Block", "Holder", "Report", "report"]

PROGRAM = "the program"
"""What is allocated by no library that `tenure.enable` turned on."""


class Holder(NamedTuple):
    """What one library, or one tag, had."""

    name: str
    live_bytes: int
    live_count: int
    peak_bytes: int
    """The most that it had at once; of several pairs of library and tag together, at most that."""
    at_peak_bytes: int
    """What it held when most was live in all."""
    total_bytes: int
    total_count: int


class Block(NamedTuple):
    """A block that is out."""

    address: int
    size: int
    library: str
    tag: str | None
    thread: str
    resource: str
    frames: tuple[str, ...]
    """The Python lines that asked, the innermost first; empty without ``stacks=True``."""

    @property
    def maker(self) -> str:
        """Who made it, in a few words."""
        if self.frames:
            return self.frames[0]
        return f"{self.library}, tag {self.tag!r}" if self.tag else self.library


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def _merged(raw: list[dict[str, Any]], name: Callable[[dict[str, Any]], str]) -> dict[str, Holder]:
    sums: dict[str, list[int]] = {}
    fields = ("live_bytes", "live_count", "peak_bytes", "at_peak_bytes", "total_bytes", "total_count")
    for one in raw:
        row = sums.setdefault(name(one), [0] * len(fields))
        for at, field in enumerate(fields):
            row[at] += one[field]
    ordered = sorted(sums.items(), key=lambda item: (-item[1][3], -item[1][2], item[0]))
    return {key: Holder(key, *row) for key, row in ordered}


class Report:
    """What was counted until now. ``print(report)``, look at it in a notebook, read its fields, or `save` it."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        """All of it, as ``tenure view`` and ``tenure stats`` read it."""

    @property
    def counting(self) -> bool:
        """Whether it is still counted."""
        return bool(self.raw["counting"])

    @property
    def seconds(self) -> float:
        """Since counting began, until it ended or now."""
        return (self.raw["time_ns"] - self.raw["begun_ns"]) / 1e9 if self.raw["begun_ns"] else 0.0

    @property
    def peak_live_bytes(self) -> int:
        """The most bytes that were live at once, as they were asked for."""
        return int(self.raw["peak_live_bytes"])

    @property
    def live_bytes(self) -> int:
        return int(self.raw["live_bytes"])

    @property
    def live_count(self) -> int:
        return int(self.raw["live_count"])

    @property
    def peak_reserved_bytes(self) -> int:
        """The most that resources had of the driver and the host, as seen when they grew."""
        return max(int(self.raw["peak_reserved_bytes"]), int(self.raw["reserved_bytes"]))

    @property
    def driver_peak_bytes(self) -> int:
        """The most that the devices had in use, of all processes, as the driver said when memory was asked of it and every
        20 ms. 0 where no device was asked."""
        return sum(int(device["peak_used_bytes"]) for device in self.raw["devices"])

    @property
    def allocations(self) -> int:
        return sum(int(one["total_count"]) for one in self.raw["holders"])

    @property
    def allocated_bytes(self) -> int:
        return sum(int(one["total_bytes"]) for one in self.raw["holders"])

    @property
    def allocation_seconds(self) -> float:
        """Spent in allocations, all threads together, without what counting costs."""
        return int(self.raw["allocate_ns"]) / 1e9

    @property
    def free_seconds(self) -> float:
        """Spent in frees."""
        return int(self.raw["free_ns"]) / 1e9

    @property
    def libraries(self) -> dict[str, Holder]:
        """By library, those that held most at the peak first."""
        return _merged(self.raw["holders"], lambda one: one["library"] or PROGRAM)

    @property
    def tags(self) -> dict[str, Holder]:
        """By tag; without one: an empty name."""
        return _merged(self.raw["holders"], lambda one: one["tag"] or "")

    @property
    def left(self) -> list[Block]:
        """The blocks that are out and were made since counting began, the largest first, a thousand at most."""
        return [
            Block(
                one["address"],
                one["size"],
                one["library"] or PROGRAM,
                one["tag"],
                one["thread"],
                one["resource"],
                tuple(one["frames"] or ()),
            )
            for one in self.raw["left"]
        ]

    def makers(self) -> list[tuple[str, int, int]]:
        """Who made what is out: the maker, blocks and bytes; most bytes first."""
        made: dict[str, list[int]] = {}
        for block in self.left:
            one = made.setdefault(block.maker, [0, 0])
            one[0] += 1
            one[1] += block.size
        return sorted(((name, count, held) for name, (count, held) in made.items()), key=lambda row: -row[2])

    def lines(self) -> list[str]:
        """The text, by line."""
        if not self.raw["begun_ns"]:
            return ["nothing was counted yet"]
        spent = self.allocation_seconds + self.free_seconds
        calls = int(self.raw["allocate_calls"]) + int(self.raw["free_calls"])
        lines = [
            f"peak live {size(self.peak_live_bytes)}, peak reserved {size(self.peak_reserved_bytes)}, the driver's peak "
            f"{size(self.driver_peak_bytes)} (all processes), {self.allocations} allocations of {size(self.allocated_bytes)}"
        ]
        lines += [
            f"  {one.name}: {size(one.at_peak_bytes)} at the peak, {one.total_count} allocations of {size(one.total_bytes)}"
            for one in self.libraries.values()
        ]
        each = f", {spent / calls * 1e9:.0f} ns each" if calls else ""
        lines.append(f"  time spent in allocation: {spent:.3f} s of {self.seconds:.1f} s in {calls} calls{each}")
        return lines

    def left_lines(self, verb: str = "out now") -> list[str]:
        """What is out, by line."""
        if not self.live_count:
            return [f"  {verb}: nothing"]
        blocks = "1 block" if self.live_count == 1 else f"{self.live_count} blocks"
        lines = [f"  {verb}: {blocks} of {size(self.live_bytes)}"]
        makers = self.makers()
        for name, count, held in makers[:8]:
            lines.append(f"    {size(held)} in {count} by {name}")
        if len(makers) > 8:
            lines.append(f"    and {len(makers) - 8} more makers: tenure stats FILE has all")
        return lines

    def __str__(self) -> str:
        return "\n".join([*self.lines(), *self.left_lines()])

    def __repr__(self) -> str:
        return f"<Report: peak live {size(self.peak_live_bytes)}, {self.allocations} allocations>"

    def _repr_html_(self) -> str:
        cell = html.escape
        rows = "".join(
            f"<tr><td>{cell(one.name)}</td><td>{size(one.at_peak_bytes)}</td><td>{size(one.live_bytes)}</td>"
            f"<td>{one.total_count}</td><td>{size(one.total_bytes)}</td></tr>"
            for one in self.libraries.values()
        )
        makers = "".join(
            f"<tr><td>{cell(name)}</td><td>{count}</td><td>{size(held)}</td></tr>" for name, count, held in self.makers()[:20]
        )
        left = f"<table><tr><th>out now, by</th><th>blocks</th><th>bytes</th></tr>{makers}</table>" if makers else ""
        said = "<br>".join(cell(line.strip()) for line in (self.lines()[0], self.lines()[-1]))
        return (
            f"<p>{said}</p><table><tr><th>library</th><th>at the peak</th><th>live now</th><th>allocations</th>"
            f"<th>allocated</th></tr>{rows}</table>{left}"
        )

    def save(self, file: Any) -> None:
        """Writes it for ``tenure view FILE`` and ``tenure stats FILE``."""
        with open(file, "w") as out:
            json.dump(self.raw, out)
            out.write("\n")


def report(counting: bool | None = None, *, stacks: bool = False) -> Report:
    """What was counted since counting began.

    Counting begins with the first call, and anew with ``True``; ``False`` ends it, and what was counted stays. With ``stacks``
    the Python lines that allocate are kept, where counting begins. What it costs is in ``docs/tools.md``: without
    stacks, half a microsecond for a buffer made and dropped.
    """
    # 0 and 1 are equal to them, and are neither: what they were to do would be a guess.
    if counting is not None and not isinstance(counting, bool):
        raise TypeError(f"counting must be True, False or None, not {counting!r}")
    raw = json.loads(_tenure._report())
    if counting is False:
        _tenure._report_begin(False, False)
    elif counting or not raw["begun_ns"]:
        _tenure._report_begin(True, bool(stacks))
    else:
        return Report(raw)
    return Report(json.loads(_tenure._report()))


def begin_in_a_notebook() -> None:
    """`tenure.enable` calls this: where a person sits in front of it, counting begins by itself."""
    import builtins

    if hasattr(builtins, "__IPYTHON__") and not json.loads(_tenure._report())["begun_ns"]:
        _tenure._report_begin(True, False)
