"""Looking inside: accounts, the snapshot, the history. See ``_observe.pyi``."""

from __future__ import annotations

import json
from typing import NamedTuple

from . import _tenure

__all__ = ["Usage", "memory_snapshot", "record_history", "usage"]


class Usage(NamedTuple):
    name: str
    id: int
    live_bytes: int
    live_count: int
    peak_bytes: int
    peak_count: int
    total_bytes: int
    total_count: int


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
    return json.loads(_tenure._memory_snapshot())


def record_history(enabled=True, *, stacks=False, max_entries=100_000):
    if not isinstance(max_entries, int) or not 1 <= max_entries <= 100_000_000:
        raise ValueError(f"max_entries must be an int from 1 to 100000000, not {max_entries!r}")
    _tenure._record_history(bool(enabled), bool(stacks), max_entries)


Usage.__module__ = "tenure"
