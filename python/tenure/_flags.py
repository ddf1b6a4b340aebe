"""``CudaStreamFlags``: how a new stream stands to the legacy default stream."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["CudaStreamFlags"]


class CudaStreamFlags(IntEnum):
    """How a new stream stands to the legacy default stream. The numbers are the driver's."""

    SYNC_DEFAULT = 0
    """It waits for the legacy default stream and is waited for by it."""
    NON_BLOCKING = 1
    """It does not."""


CudaStreamFlags.__module__ = "tenure"
