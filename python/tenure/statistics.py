"""Statistics of the current resource, and a profiler. The documentation is in ``statistics.pyi``."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from . import mr
from ._tenure import _scope_find, _scope_open
from .mr import Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "ProfilerContext",
    "ProfilerRecords",
    "Statistics",
    "default_profiler_records",
    "enable_statistics",
    "get_statistics",
    "pop_statistics",
    "profiler",
    "push_statistics",
    "statistics",
]

# Who opened a scope, to be found again: `push_statistics`, or the object of a profiler.
_PUSHED = object()


def _adaptor() -> mr.StatisticsResourceAdaptor | None:
    """The current resource, if it keeps statistics."""
    current = mr.get_current_device_resource()
    return current if isinstance(current, mr.StatisticsResourceAdaptor) else None


def enable_statistics() -> None:
    if _adaptor() is None:
        mr.set_current_device_resource(mr.StatisticsResourceAdaptor(mr.get_current_device_resource()))


def get_statistics() -> Statistics | None:
    adaptor = _adaptor()
    return None if adaptor is None else _counters(adaptor)


def _counters(adaptor: mr.StatisticsResourceAdaptor) -> Statistics:
    """What the innermost scope of this context has counted; without one, what the adaptor has."""
    scope = _scope_find(adaptor)
    return adaptor.allocation_counts if scope is None else scope.counters()


def push_statistics() -> Statistics | None:
    adaptor = _adaptor()
    if adaptor is None:
        return None
    before = _counters(adaptor)
    _scope_open(adaptor, _PUSHED)
    return before


def pop_statistics() -> Statistics | None:
    adaptor = _adaptor()
    if adaptor is None:
        return None
    scope = _scope_find(adaptor, _PUSHED)
    if scope is None:
        raise IndexError(
            "cannot pop the last counter pair: this thread or task has pushed none; each pop_statistics needs a "
            "push_statistics of the same resource before it"
        )
    return scope.close()


@contextlib.contextmanager
def statistics() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        adaptor = _adaptor()
        if adaptor is None:
            # For this context alone: no other thread's current resource changes, nor is put back by this one.
            adaptor = mr.StatisticsResourceAdaptor(mr.get_current_device_resource())
            stack.enter_context(mr.using(adaptor))
        stack.callback(_scope_open(adaptor).close)
        yield
        # Not where an error of the user's is on its way, which says more.
        if not mr.get_current_device_resource().same_as(adaptor):
            raise ValueError(
                "the current resource was changed inside of statistics(): what was allocated since then was not counted; "
                "change it outside, or call enable_statistics() after it"
            )


class ProfilerRecords:
    @dataclass
    class MemoryRecord:
        num_calls: int = 0
        memory_total: int = 0
        memory_peak: int = 0

        def add(self, memory_total: int, memory_peak: int) -> None:
            self.num_calls += 1
            self.memory_total += memory_total
            self.memory_peak = max(self.memory_peak, memory_peak)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, ProfilerRecords.MemoryRecord] = defaultdict(ProfilerRecords.MemoryRecord)

    def add(self, name: str, data: Statistics) -> None:
        with self._lock:
            self._records[name].add(memory_total=data.total_bytes, memory_peak=data.peak_bytes)

    @property
    def records(self) -> dict[str, MemoryRecord]:
        with self._lock:
            return dict(self._records)

    def report(self, ordered_by: Literal["num_calls", "memory_peak", "memory_total"] = "memory_peak") -> str:
        columns = ("num_calls", "memory_peak", "memory_total")
        if ordered_by not in columns:
            raise ValueError(f"a report is ordered by one of {', '.join(columns)}, not by {ordered_by!r}")
        lines = ["Memory Profiling", "================", ""]
        records = sorted(self.records.items(), key=lambda item: getattr(item[1], ordered_by), reverse=True)
        if not records:
            return "\n".join([*lines, "No data, maybe profiling wasn't enabled?"])
        lines += [
            "Legends:",
            "  ncalls       - number of times the function or code block was called",
            "  memory_peak  - peak memory allocated in function or code block (in bytes)",
            "  memory_total - total memory allocated in function or code block (in bytes)",
            "",
            f"Ordered by: {ordered_by}",
            "",
            "ncalls     memory_peak    memory_total  filename:lineno(function)",
        ]
        lines += [f"{r.num_calls:6,d} {r.memory_peak:15,d} {r.memory_total:15,d}  {name}" for name, r in records]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.records})"

    def __str__(self) -> str:
        return self.report()


def _get_descriptive_name_of_object(obj: object) -> str:
    """``filename:lineno(qualified name)``; where there is no source, what is known."""
    unwrapped: Any = inspect.unwrap(obj)  # type: ignore[arg-type]
    name = getattr(unwrapped, "__qualname__", repr(unwrapped))
    try:
        file, line = inspect.getfile(unwrapped), inspect.getsourcelines(unwrapped)[1]
    except (OSError, TypeError):
        return f"<no source>({name})"
    return f"{file}:{line}({name})"


default_profiler_records = ProfilerRecords()


class ProfilerContext:
    def __init__(self, records: ProfilerRecords, name: str) -> None:
        self._records = records
        self._name = name

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        name = self._name or _get_descriptive_name_of_object(func)
        if inspect.iscoroutinefunction(func):

            @functools.wraps(func)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self._scope(name):
                    return await func(*args, **kwargs)

        else:

            @functools.wraps(func)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self._scope(name):
                    return func(*args, **kwargs)

        return wrapper

    @contextlib.contextmanager
    def _scope(self, name: str) -> Iterator[None]:
        adaptor = _adaptor()
        if adaptor is None:
            yield
            return
        scope = _scope_open(adaptor)
        try:
            yield
        finally:
            self._records.add(name, scope.close())

    def __enter__(self) -> ProfilerContext:
        if not self._name:
            raise ValueError("a profiler that is used as a context manager needs a name: profiler(name=...)")
        adaptor = _adaptor()
        if adaptor is not None:
            _scope_open(adaptor, self)
        return self

    def __exit__(self, *_: object) -> None:
        # This context's own, whoever else uses the same object.
        scope = _scope_find(None, self)
        if scope is not None:
            self._records.add(self._name, scope.close())


def profiler(*, records: ProfilerRecords = default_profiler_records, name: str = "") -> ProfilerContext:
    return ProfilerContext(records, name)
