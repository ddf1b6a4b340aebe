"""Looking inside: accounts, the snapshot, the history. See ``_observe.pyi``."""

from __future__ import annotations

from . import _tenure

__all__ = ["Usage", "memory_snapshot", "record_history", "usage"]

_FIELDS = ("name", "id", "live_bytes", "live_count", "peak_bytes", "peak_count", "total_bytes", "total_count")


class Usage:
    # A named tuple would take longer to make than all of the package to import.
    __slots__ = _FIELDS

    def __init__(self, name, id, live_bytes, live_count, peak_bytes, peak_count, total_bytes, total_count):
        values = (name, id, live_bytes, live_count, peak_bytes, peak_count, total_bytes, total_count)
        for field, value in zip(_FIELDS, values, strict=True):
            setattr(self, field, value)

    def __repr__(self):
        return f"Usage({', '.join(f'{field}={getattr(self, field)!r}' for field in _FIELDS)})"

    def __eq__(self, other):
        if not isinstance(other, Usage):
            return NotImplemented
        return all(getattr(self, field) == getattr(other, field) for field in _FIELDS)

    __hash__ = None


# What the figures are asked by: the engine's number, and how an account is called in the answer.
_BY = {
    "tag": (0, lambda account: account.name),
    "thread": (1, lambda account: f"{account.name} ({account.id})"),
    "resource": (2, lambda account: f"{account.name} (#{account.id:x})"),
}


def usage(by="tag"):
    try:
        number, key = _BY[by]
    except (KeyError, TypeError):
        raise ValueError(f"by must be 'tag', 'thread' or 'resource', not {by!r}") from None
    accounts = [Usage(*row) for row in _tenure._usage(number)]
    return {key(account): account for account in accounts}


def memory_snapshot():
    import json

    return json.loads(_tenure._memory_snapshot())


def record_history(enabled=True, *, stacks=False, max_entries=100_000):
    if not isinstance(max_entries, int) or not 1 <= max_entries <= 100_000_000:
        raise ValueError(f"max_entries must be an int from 1 to 100000000, not {max_entries!r}")
    _tenure._record_history(bool(enabled), bool(stacks), max_entries)


Usage.__module__ = "tenure"
