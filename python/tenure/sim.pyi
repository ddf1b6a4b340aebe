"""The simulated device and its levers, for tests.

``TENURE_DEVICE=sim`` chooses it; ``TENURE_SIM_DEVICES`` and ``TENURE_SIM_MEMORY`` size it, or ``configure`` does;
``TENURE_SIM_VIRTUAL_MEMORY=0`` makes its devices say that they cannot map pages, ``TENURE_SIM_PAGEABLE_ACCESS=1`` that they
can use ordinary memory of the host.

>>> tenure.sim.fail_next("cuMemAlloc", 2)
>>> tenure.mr.CudaMemoryResource().allocate(100)
Traceback (most recent call last):
tenure.OutOfMemoryError: ...
"""

from typing import Literal, final

from . import _AnyStream, _Size

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

def active() -> bool:
    """Whether the device layer is the simulated one. Loads the driver at first use."""

def configure(devices: int | None = None, memory: _Size | None = None) -> None:
    """Sets the number of devices and the memory of each, before the first use of a device."""

def set_memory(device: int, memory: _Size) -> None:
    """Changes the memory of a device while it runs: bytes used plus bytes free."""

def used(device: int = 0) -> int:
    """Bytes that the driver has handed out on a device."""

def busy(stream: _AnyStream, ms: float) -> None:
    """Keeps a stream busy for some milliseconds. On CUDA too."""

@final
class Graph:
    """A small graph for tests, on CUDA too. It ends when it is closed or dropped; a run that is under way ends first."""

    def launch(self, stream: _AnyStream) -> None:
        """Runs the graph in the order of a stream."""

    def close(self) -> None:
        """Ends it. Closing twice does nothing."""

def capture_begin(stream: _AnyStream, mode: Literal["global", "thread_local", "relaxed"] = "global") -> None:
    """Begins the capture of a stream. On CUDA too."""

def capture_end(stream: _AnyStream) -> Graph:
    """Ends the capture of a stream and makes its graph ready to run."""

def fail_next(call: str, code: int, after: int = 0) -> None:
    """Makes a later driver call of this name (``"cuMemAlloc"``, ``"cuMemCreate"``) fail with ``code`` (2 is out of memory): the
    next one after ``after`` that succeed."""

def fail_clear() -> None:
    """Takes back every failure that has not happened yet."""

def violations() -> int:
    """How many calls broke the rules of the driver, such as naming a destroyed handle. A test suite asserts 0."""

def driver_calls(call: str | None = None) -> int:
    """How many driver calls of this name were made; of all names without one."""
