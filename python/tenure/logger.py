"""Messages: what tenure's Python side tells about itself. The documentation is in ``logger.pyi``."""

from __future__ import annotations

import logging
import logging.handlers
import os
import threading
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
    trace = 0
    debug = 1
    info = 2
    warn = 3
    error = 4
    critical = 5
    off = 6
    n_levels = 7


# The same in the standard library's numbers; nothing is ever as high as the last two.
_STANDARD = {
    level_enum.trace: 5,
    level_enum.debug: logging.DEBUG,
    level_enum.info: logging.INFO,
    level_enum.warn: logging.WARNING,
    level_enum.error: logging.ERROR,
    level_enum.critical: logging.CRITICAL,
    level_enum.off: logging.CRITICAL + 10,
    level_enum.n_levels: logging.CRITICAL + 20,
}

_logger = logging.getLogger("tenure")
_logger.addHandler(logging.NullHandler())
_lock = threading.Lock()
_level = level_enum.info
_flush_level = level_enum.info
_file: logging.handlers.MemoryHandler | None = None
_file_name: str | None = os.environ.get("TENURE_DEBUG_LOG_FILE") or None


def _checked(level):
    if not isinstance(level, level_enum):
        raise TypeError(f"level must be an instance of the level_enum enum, not {type(level).__name__}")
    return level


def should_log(level):
    return _checked(level) >= _level


def set_logging_level(level):
    global _level
    _level = _checked(level)


def get_logging_level():
    return _level


def set_flush_level(level):
    global _flush_level
    _flush_level = _checked(level)
    with _lock:
        if _file is not None:
            _file.flushLevel = _STANDARD[_flush_level]


def get_flush_level():
    return _flush_level


def flush_logger():
    for handler in _handlers():
        handler.flush()


def write_to(file_name):
    global _file, _file_name
    with _lock:
        old, _file = _file, None
        _file_name = None if file_name is None else os.fspath(file_name)
    if old is not None:
        _logger.removeHandler(old)
        old.close()
        if old.target is not None:
            old.target.close()


def message(level, text):
    if not should_log(level) or level >= level_enum.off:
        return
    _open()
    # The level is ours to decide, here; the standard library's filters and handlers see what passed.
    if _logger.level != _STANDARD[level_enum.trace]:
        _logger.setLevel(_STANDARD[level_enum.trace])
    _logger.log(_STANDARD[level], text)


def _handlers():
    """The handlers that a message reaches."""
    handlers, at = list(_logger.handlers), _logger
    while at.propagate and at.parent is not None:
        at = at.parent
        handlers += at.handlers
    return handlers


def _open():
    """Opens the file at the first message, once."""
    global _file, _file_name
    with _lock:
        if _file is not None or _file_name is None:
            return
        name, _file_name = _file_name, None
        try:
            target = logging.FileHandler(name)
        except OSError as error:
            logging.getLogger("tenure").warning("messages are not written to %s: %s", name, error)
            return
        form = "[%(process)d/%(threadName)s] [%(asctime)s.%(msecs)03d] [%(levelname)s] %(message)s"
        target.setFormatter(logging.Formatter(form, "%Y-%m-%d %H:%M:%S"))
        _file = logging.handlers.MemoryHandler(1000, _STANDARD[_flush_level], target)
        _logger.addHandler(_file)
