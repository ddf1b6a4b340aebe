"""RMM's Python package, served by tenure: ``import tenure.rmm as rmm``, and RMM 26.10's names, signatures and defaults are there.

The modules stand where RMM's stand and hold what RMM's hold; each name is the one of ``tenure`` itself, so that objects of
both may be mixed freely. What differs on purpose, and why, is in ``docs/deliberate-differences.md``.

A program that says ``import rmm`` runs unmodified as ``python -m tenure.rmm script.py args`` or ``python -m tenure.rmm -m
module args``, or after ``tenure.rmm.install()``.
"""

from __future__ import annotations

from . import _cuda as _cuda
from . import mr
from . import pylibrmm as pylibrmm
from ._alias import install as install
from ._alias import installed as installed
from ._version import __git_commit__ as __git_commit__
from ._version import __version__ as __version__
from .mr import disable_logging, enable_logging, get_log_filenames
from .pylibrmm.device_buffer import DeviceBuffer
from .pylibrmm.logger import (
    flush_logger,
    get_flush_level,
    get_logging_level,
    level_enum,
    set_flush_level,
    set_logging_level,
    should_log,
)
from .rmm import (
    RMMError,
    is_initialized,
    register_reinitialize_hook,
    reinitialize,
    unregister_reinitialize_hook,
)

__all__ = [
    "DeviceBuffer",
    "RMMError",
    "disable_logging",
    "enable_logging",
    "flush_logger",
    "get_flush_level",
    "get_log_filenames",
    "get_logging_level",
    "is_initialized",
    "level_enum",
    "mr",
    "register_reinitialize_hook",
    "reinitialize",
    "set_flush_level",
    "set_logging_level",
    "should_log",
    "unregister_reinitialize_hook",
]
