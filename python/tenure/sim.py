"""The simulated device and its levers. The documentation is in ``sim.pyi``."""

from __future__ import annotations

from ._tenure import (
    _Graph as Graph,
)
from ._tenure import (
    device_used as used,
)
from ._tenure import (
    driver_calls,
)
from ._tenure import (
    sim_active as active,
)
from ._tenure import (
    sim_busy as busy,
)
from ._tenure import (
    sim_capture_begin as capture_begin,
)
from ._tenure import (
    sim_capture_end as capture_end,
)
from ._tenure import (
    sim_configure as configure,
)
from ._tenure import (
    sim_fail_clear as fail_clear,
)
from ._tenure import (
    sim_fail_next as fail_next,
)
from ._tenure import (
    sim_set_memory as set_memory,
)
from ._tenure import (
    sim_violations as violations,
)

__all__ = [
    "Graph",
    "active",
    "busy",
    "capture_begin",
    "capture_end",
    "configure",
    "driver_calls",
    "fail_clear",
    "fail_next",
    "set_memory",
    "used",
    "violations",
]
