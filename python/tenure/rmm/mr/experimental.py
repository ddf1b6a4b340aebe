"""``rmm.mr.experimental``."""

from __future__ import annotations

from ..pylibrmm.memory_resource.experimental import *  # noqa: F403
from ..pylibrmm.memory_resource.experimental import __all__ as __all__
