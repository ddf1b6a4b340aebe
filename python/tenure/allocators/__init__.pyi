"""Other libraries on tenure's memory: ``tenure.enable("cupy", "torch", "numba")``.

One module for each library has its hooks by themselves: ``tenure.allocators.cupy``, ``.torch``, ``.numba``, ``.warp``,
``.cuda_core`` and ``.rmm``. Importing any of them imports no library.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, overload

from ..mr import DeviceMemoryResource
from . import cuda_core as cuda_core
from . import cupy as cupy
from . import numba as numba
from . import rmm as rmm
from . import torch as torch
from . import warp as warp

__all__ = ["Row", "Table", "disable", "enable"]

@dataclass(frozen=True)
class Row:
    """What became of one library."""

    library: str
    version: str
    """As the library or its package says; empty where it is not installed."""
    state: str
    """``on``; ``waiting``, until it is imported; ``off``; ``failed``; or ``not installed``."""
    route: str
    """How the library gets its memory from tenure."""
    resource: str
    """The class of the resource; ``current`` where each allocation reads the table."""
    notes: tuple[str, ...] = ()
    """What cannot be had and why, and whether the version is one that tenure was tested with."""

class Table(Sequence[Row]):
    """Rows, by number or by the name of the library. Its text is a table."""

    def __init__(self, rows: Sequence[Row] = ()) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Row]: ...
    @overload
    def __getitem__(self, which: int | str) -> Row: ...
    @overload
    def __getitem__(self, which: slice) -> Sequence[Row]: ...

ROUTES: tuple[str, ...]

def enable(
    *libraries: str | ModuleType,
    mr: DeviceMemoryResource | None = None,
    route: Literal["auto", "process", "pool"] = "auto",
) -> Table:
    """Puts libraries on tenure's memory.

    ``libraries`` are names (``"cupy"``, ``"torch"``, ``"numba"``, ``"numba-cuda-mlir"``, ``"warp"``, ``"cuda.core"``,
    ``"rmm"``) or the modules; without any, all that are imported or will be. A library that is not imported yet is turned on
    when it is.

    With ``mr`` the libraries use that resource, whatever is current; without, each of their allocations reads the table of
    current resources once. ``route`` is PyTorch's; see ``tenure.allocators.torch``.

    Returns a table: library, version, state, route, resource, and what cannot be had and why. May be called again, with
    another resource too; what is out by then is freed by the resource that made it. Nothing is printed.

    Raises `ModuleNotFoundError` with the name of the package where a library that was named is not installed, and
    `RuntimeError` on the simulated device unless ``TENURE_DEVICE=sim`` was set, or where a library cannot be turned on any
    more.
    """

def disable(*libraries: str | ModuleType) -> Table:
    """Gives libraries their own memory back, as far as they allow it; without names, all that `enable` turned on.

    What is out by then is freed by the resource that made it. Returns a table.
    """

_watch: Any
_on: dict[str, Row]
