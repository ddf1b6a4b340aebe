"""``rmm.pylibrmm.memory_resource``."""

from __future__ import annotations

from . import experimental as experimental
from ._memory_resource import *  # noqa: F403
from ._memory_resource import __all__ as _names

__all__ = [*_names, "experimental"]
