"""``rmm.mr``: memory resources, and the table of current ones."""

from __future__ import annotations

from ..pylibrmm.memory_resource._memory_resource import *  # noqa: F403
from ..pylibrmm.memory_resource._memory_resource import __all__ as _names
from . import experimental as experimental

__all__ = [*_names, "experimental"]
