"""The exceptions of tenure.

Their fields say what the sentence says, for programs. All fields are optional so that an exception can be made by hand
(in a test, or in a callback that wants to be retried) and pickled.
"""

from __future__ import annotations

__all__ = ["CudaError", "OutOfMemoryError", "OwnershipError"]


class OutOfMemoryError(MemoryError):
    def __init__(
        self,
        message="",
        *,
        requested=0,
        live=0,
        reserved=0,
        limit=0,
        largest_free=0,
        driver_free=0,
        driver_total=0,
        resource="",
        cached=0,
        unproven=0,
        pending="",
        tried="",
    ):
        super().__init__(message)
        self.requested = requested
        self.live = live
        self.reserved = reserved
        self.limit = limit
        self.largest_free = largest_free
        self.driver_free = driver_free
        self.driver_total = driver_total
        self.resource = resource
        self.cached = cached
        self.unproven = unproven
        self.pending = pending
        self.tried = tried


class OwnershipError(ValueError):
    def __init__(self, message="", *, kind="", ptr=0, size=0, asked=0, owner=0, owner_size=0):
        super().__init__(message)
        self.kind = kind
        self.ptr = ptr
        self.size = size
        self.asked = asked
        self.owner = owner
        self.owner_size = owner_size


class CudaError(RuntimeError):
    def __init__(self, message="", *, code=0, name="", call=""):
        super().__init__(message)
        self.code = code
        self.name = name
        self.call = call


class NothingPushedError(IndexError, ValueError):
    """``pop_counters`` without a ``push_counters`` before it; RMM's programs catch an ``IndexError``."""


for _class in (OutOfMemoryError, OwnershipError, CudaError, NothingPushedError):
    _class.__module__ = "tenure"
