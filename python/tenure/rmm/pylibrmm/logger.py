"""``rmm.pylibrmm.logger``: the levels of the log of messages."""

from __future__ import annotations

import os

from tenure.logger import (
    flush_logger,
    get_flush_level,
    get_logging_level,
    level_enum,
    set_flush_level,
    set_logging_level,
    should_log,
    write_to,
)

__all__ = [
    "flush_logger",
    "get_flush_level",
    "get_logging_level",
    "level_enum",
    "set_flush_level",
    "set_logging_level",
    "should_log",
]

# RMM's own variable for the file, where tenure's is not set.
if os.environ.get("RMM_DEBUG_LOG_FILE") and not os.environ.get("TENURE_DEBUG_LOG_FILE"):
    write_to(os.environ["RMM_DEBUG_LOG_FILE"])
