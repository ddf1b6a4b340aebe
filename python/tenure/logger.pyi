"""Messages: what tenure's Python side tells about itself, such as a change of the current resource.

They go to the logger ``"tenure"`` of Python's ``logging``, where a program's own handlers get them, and to the file that
``write_to`` or the environment variable ``TENURE_DEBUG_LOG_FILE`` names (in ``tenure.rmm`` also ``RMM_DEBUG_LOG_FILE``). This
is not the log of allocations, which ``LoggingResourceAdaptor`` writes.

>>> import tenure.logger
>>> tenure.logger.get_logging_level().name
'info'
"""

import os
from enum import IntEnum

__all__ = [
    "flush_logger",
    "get_flush_level",
    "get_logging_level",
    "level_enum",
    "message",
    "set_flush_level",
    "set_logging_level",
    "should_log",
    "write_to",
]

class level_enum(IntEnum):
    """The levels, under RMM's names: ``trace`` tells most, ``off`` nothing. ``n_levels`` is their number."""

    trace = 0
    debug = 1
    info = 2
    warn = 3
    error = 4
    critical = 5
    off = 6
    n_levels = 7

def should_log(level: level_enum) -> bool:
    """Whether a message of this level is passed on. Anything but a ``level_enum`` is a ``TypeError``, here and below."""

def set_logging_level(level: level_enum) -> None:
    """Passes on messages of this level and above (first: ``info``)."""

def get_logging_level() -> level_enum:
    """The level from which on messages are passed on."""

def flush_logger() -> None:
    """Writes out what handlers hold back."""

def set_flush_level(level: level_enum) -> None:
    """Messages of this level and above are written to the file at once (first: ``info``)."""

def get_flush_level() -> level_enum:
    """The level from which on messages are written at once."""

def write_to(file_name: str | os.PathLike[str] | None) -> None:
    """Writes messages to this file from now on, which the next message opens; ``None``: to none. A file that cannot be
    opened is a warning in the logger."""

def message(level: level_enum, text: str) -> None:
    """Passes a message on, if its level says so."""
