"""``rmm.statistics``: counters and the profiler."""

from __future__ import annotations

from tenure.statistics import (
    ProfilerContext,
    ProfilerRecords,
    Statistics,
    default_profiler_records,
    enable_statistics,
    get_statistics,
    pop_statistics,
    profiler,
    push_statistics,
    statistics,
)
from tenure.statistics import (
    _get_descriptive_name_of_object as _get_descriptive_name_of_object,
)

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
