"""RMM on tenure's memory: the bridge. How it works is in ``rmm.py``."""

from dataclasses import dataclass
from typing import Any

from ..mr import DeviceMemoryResource

__all__ = ["Entry", "check", "from_rmm", "to_rmm"]

def to_rmm(mr: DeviceMemoryResource | None = None) -> Any:
    """A resource of tenure's as an ``rmm.mr.DeviceMemoryResource``, for a ``mr=`` of RMM's or cuDF's and for RMM's adaptors.

    Without ``mr`` the one that is current now: the object stays with it. For a resource that `from_rmm` made, what it was made
    of.
    """

def from_rmm(mr: Any, device: int | None = None) -> DeviceMemoryResource:
    """A resource of RMM's as one of ``tenure.mr``, of kind ``"rmm"``.

    ``device`` is the device of its memory (default: the current one). For a resource that `to_rmm` made, what it was made of.
    """

@dataclass(frozen=True)
class Entry:
    """What the three tables hold for one device."""

    device: int
    tenure: str
    """The class of the entry of tenure's table."""
    python: str
    """What RMM's Python table holds: its class, and whose it is."""
    cpp: str
    """What RMM's C++ table holds, in the same words."""
    agree: bool
    """Whether all three are one resource."""

def check() -> tuple[Entry, ...]:
    """Says for each device what tenure's table and RMM's two hold. Changes nothing, and may be called before ``enable``."""

def built() -> tuple[str, ...]:
    """The minor versions of RMM for which a bridge is here."""

_PLUGS: dict[str, Any]
