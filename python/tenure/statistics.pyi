"""Statistics of what goes through the current resource, and a profiler: RMM's ``rmm.statistics``.

The functions work on the current resource of the current device, if that is a ``tenure.mr.StatisticsResourceAdaptor``
(``enable_statistics`` makes it one). Measurements belong to the thread or the task that opened them:

* an allocation counts in the scopes of the thread or task that allocates, a free in those of the one that frees, whoever had
  allocated. So ``current_bytes`` is what the own work has added; it may be negative, and those of all threads add up to what
  the adaptor counted;
* a scope that is opened inside another one counts there too;
* a task that is started inside a scope is in it, since it copies the context; a thread that is started is in none
  (``contextvars.copy_context().run`` takes one along);
* outside of all scopes, ``get_statistics`` gives what the adaptor counted: all threads.

>>> import tenure
>>> from tenure.statistics import get_statistics, profiler, statistics
>>> with statistics():
...     kept = tenure.DeviceBuffer(size=1000)
...     with statistics():
...         del kept
...         buffer = tenure.DeviceBuffer(size=300)
...         print(get_statistics())
...     get_statistics().peak_bytes
Statistics(current_bytes=-700, current_count=0, peak_bytes=0, peak_count=0, total_bytes=300, total_count=1)
1000
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, ParamSpec, TypeVar

from .mr import Statistics as Statistics

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

_P = ParamSpec("_P")
_T = TypeVar("_T")

def enable_statistics() -> None:
    """Puts a statistics adaptor over the current resource; where there is one already, nothing."""

def get_statistics() -> Statistics | None:
    """What the innermost scope of this thread or task has counted; outside of all, what the adaptor has. ``None`` where the
    current resource keeps no statistics."""

def push_statistics() -> Statistics | None:
    """Opens a scope of this thread or task; returns what ``get_statistics`` would have. ``None``, and nothing is opened, where
    the current resource keeps no statistics."""

def pop_statistics() -> Statistics | None:
    """Closes the innermost scope that ``push_statistics`` opened here for the current resource, and returns what it counted.
    ``IndexError`` where there is none; ``None`` where the current resource keeps no statistics."""

def statistics() -> AbstractContextManager[None]:
    """A scope for a ``with`` block. Where the current resource keeps no statistics, an adaptor is put over it for the block, in
    this thread or task alone. ``ValueError`` at its end where the current resource is another one then; an error of the block's
    own passes through as it is."""

class ProfilerRecords:
    """What a profiler has recorded, by name. Any number of threads may add."""

    @dataclass
    class MemoryRecord:
        """The calls of one block of code."""

        num_calls: int = 0
        memory_total: int = 0
        memory_peak: int = 0

        def add(self, memory_total: int, memory_peak: int) -> None:
            """One more call: adds its bytes, and keeps the highest peak."""

    def __init__(self) -> None: ...
    def add(self, name: str, data: Statistics) -> None:
        """Adds a call of ``name``."""
    @property
    def records(self) -> dict[str, MemoryRecord]:
        """The records by their names."""
    def report(self, ordered_by: Literal["num_calls", "memory_peak", "memory_total"] = "memory_peak") -> str:
        """The records as a table for people, the highest first."""

def _get_descriptive_name_of_object(obj: object) -> str: ...

default_profiler_records: ProfilerRecords
"""Where a profiler records that was given no records."""

class ProfilerContext:
    """Records what a function or a block of code allocates. One object may be used by any number of threads and tasks at once."""

    def __init__(self, records: ProfilerRecords, name: str) -> None: ...
    def __call__(self, func: Callable[_P, _T]) -> Callable[_P, _T]:
        """As a decorator, of functions and of coroutine functions."""
    def __enter__(self) -> ProfilerContext: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

def profiler(*, records: ProfilerRecords = ..., name: str = "") -> ProfilerContext:
    """A decorator and context manager that records memory statistics where the current resource keeps them, and does nothing
    where not. ``records`` defaults to ``default_profiler_records``. ``name`` must be given to a context manager; a decorator
    defaults to ``filename:lineno(function)``.

    >>> import tenure
    >>> from tenure.statistics import ProfilerRecords, enable_statistics, profiler
    >>> enable_statistics()
    >>> records = ProfilerRecords()
    >>> with profiler(records=records, name="load"):
    ...     buffer = tenure.DeviceBuffer(size=4096)
    >>> print(records.report().splitlines()[-1])
         1           4,096           4,096  load
    """
