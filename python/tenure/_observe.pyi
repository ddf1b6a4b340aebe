from . import Usage as Usage
from . import memory_snapshot as memory_snapshot
from . import record_history as record_history
from . import usage as usage

__all__ = ["Usage", "memory_snapshot", "record_history", "usage"]
