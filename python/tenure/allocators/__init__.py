"""Other libraries on tenure's memory: ``tenure.enable("cupy", "torch", "numba")``.

One module for each library has its hooks by themselves: ``tenure.allocators.cupy``, ``.torch``, ``.numba``, ``.warp``,
``.cuda_core`` and ``.rmm``. Importing any of them imports no library.
"""

from __future__ import annotations

import importlib
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Protocol

from .._report import begin_in_a_notebook
from . import _libraries
from ._libraries import LIBRARIES, Library

__all__ = ["Row", "Table", "disable", "enable"]


@dataclass(frozen=True)
class Row:
    """What became of one library."""

    library: str
    version: str
    """As its package says; empty where it is not installed."""
    state: str
    """``on``; ``waiting``, until it is imported; ``off``; ``failed``; or ``not installed``."""
    route: str
    """How the library gets its memory from tenure."""
    resource: str
    """The class of the resource; ``current`` where each allocation reads the table."""
    notes: tuple[str, ...] = ()
    """What cannot be had and why, and whether the version is one that tenure was tested with."""

    def __str__(self) -> str:
        return str(Table((self,)))


class Table(Sequence[Row]):
    """Rows, by number or by the name of the library. Its text is a table."""

    def __init__(self, rows: Sequence[Row] = ()) -> None:
        self._rows = tuple(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, str):
            name = _libraries.named(which).name
            for row in self._rows:
                if row.library == name:
                    return row
            raise KeyError(which)
        return self._rows[which]

    def __str__(self) -> str:
        heads = ("library", "version", "state", "route", "resource")
        lines = [heads, *((row.library, row.version, row.state, row.route, row.resource) for row in self._rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
        text = []
        for number, line in enumerate(lines):
            text.append("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip())
            if number:
                text.extend(f"    {note}" for note in self._rows[number - 1].notes)
        return "\n".join(text)

    __repr__ = __str__


class _Plug(Protocol):
    """What a module of this package does for `enable`."""

    def turn_on(self, mr: Any, route: str) -> tuple[str, Any, tuple[str, ...]]:
        """Turns it on, again with another resource if need be: the route, the resource, what cannot be had."""

    def turn_off(self) -> str:
        """Puts back what was there before: an empty text, or why it was not."""


_PLACES = {
    "cupy": "cupy",
    "torch": "torch",
    "numba": "numba",
    "numba-cuda-mlir": "numba",
    "warp": "warp",
    "cuda.core": "cuda_core",
    "rmm": "rmm",
}
ROUTES = ("auto", "process", "pool")


def _plug(library: Library) -> _Plug:
    module: Any = importlib.import_module(f"{__name__}.{_PLACES[library.name]}")
    plugs: dict[str, _Plug] = module._PLUGS
    return plugs[library.name]


@dataclass(frozen=True)
class _Wish:
    """What somebody asked for."""

    mr: Any
    route: str
    # Whether the library was named: then a failure is an error, and not only a row.
    named: bool


_lock = threading.RLock()
_wishes: dict[str, _Wish] = {}
_on: dict[str, Row] = {}


def _turn_on(library: Library, wish: _Wish) -> Row:
    version = _libraries.version(library)
    route, mr, lacks = _plug(library).turn_on(wish.mr, wish.route)
    notes = list(lacks)
    if not _libraries.is_tested(library, version):
        notes.append(f"{library.title} {version} was not tested with this tenure, which knows {', '.join(library.tested)}")
    row = Row(library.name, version, "on", route, _libraries.resource_name(mr), tuple(notes))
    _on[library.name] = row
    return row


def _waiting(library: Library, wish: _Wish) -> Row:
    note = f"it is turned on when {library.module} is imported"
    version = _libraries.version(library)
    return Row(library.name, version, "waiting", "", _libraries.resource_name(wish.mr), (note,))


class _Watch(MetaPathFinder):
    """Turns a library on right after it was imported."""

    def __init__(self) -> None:
        self._looking = threading.local()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        library = next((library for library in LIBRARIES.values() if library.module == name), None)
        if library is None or library.name not in _wishes or getattr(self._looking, "now", False):
            return None
        # The other finders say where it is; asking them comes through here again.
        self._looking.now = True
        try:
            for finder in sys.meta_path:
                spec = finder.find_spec(name, path, target) if finder is not self else None
                if spec is not None:
                    break
            else:
                return None
        finally:
            self._looking.now = False
        if spec.loader is not None:
            spec.loader = _After(spec.loader, library)
        return spec


class _After(Loader):
    """A loader that does what the library's does, and then turns the library on."""

    def __init__(self, inner: Any, library: Library) -> None:
        self._inner = inner
        self._library = library

    def __getattr__(self, name: str) -> Any:
        # `get_source` and the like, for whoever looks at the module's loader meanwhile.
        return getattr(self._inner, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._inner.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        # From here on the module is as if nobody had watched.
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        module.__loader__ = self._inner
        self._inner.exec_module(module)
        with _lock:
            wish = _wishes.get(self._library.name)
            if wish is None:
                return
            try:
                _turn_on(self._library, wish)
            except Exception as error:
                if wish.named:
                    raise
                warnings.warn(f"{self._library.title} was imported and is not on tenure's memory: {error}", stacklevel=2)


_watch = _Watch()


def _watch_imports() -> None:
    if _watch not in sys.meta_path:
        sys.meta_path.insert(0, _watch)


def enable(*libraries: str | ModuleType, mr: Any = None, route: str = "auto") -> Table:
    """Puts libraries on tenure's memory.

    ``libraries`` are names (``"cupy"``, ``"torch"``, ``"numba"``, ``"numba-cuda-mlir"``, ``"warp"``, ``"cuda.core"``,
    ``"rmm"``) or the modules; without any, all that are imported or will be. A library that is not imported yet is turned on
    when it is.

    With ``mr`` the libraries use that resource, whatever is current; without, each of their allocations reads the table of
    current resources once. ``route`` is PyTorch's: ``"process"``, ``"pool"``, or ``"auto"``; see ``tenure.allocators.torch``.

    Returns a table: library, version, state, route, resource, and what cannot be had and why. May be called again, with
    another resource too; what is out by then is freed by the resource that made it. Nothing is printed.

    Raises `ModuleNotFoundError` with the name of the package where a library that was named is not installed, and
    `RuntimeError` on the simulated device unless ``TENURE_DEVICE=sim`` was set, or where a library cannot be turned on any
    more.
    """
    from .. import mr as resources

    if route not in ROUTES:
        raise ValueError(f"route is {route!r}; it must be one of {', '.join(map(repr, ROUTES))}")
    if mr is not None and not isinstance(mr, resources.DeviceMemoryResource):
        raise TypeError(f"mr must be a resource of tenure.mr, not {type(mr).__name__}")
    chosen = [_libraries.named(library) for library in libraries] or list(LIBRARIES.values())
    chosen = list(dict.fromkeys(chosen))
    _libraries.refuse_simulated("tenure.enable(...)")
    absent = [library for library in chosen if not _libraries.installed(library)]
    if libraries and absent:
        raise _libraries.missing(absent[0])
    begin_in_a_notebook()
    wish = _Wish(mr, route, bool(libraries))
    return Table([_enabled(library, wish) if library not in absent else _absent(library) for library in chosen])


def _absent(library: Library) -> Row:
    return Row(library.name, "", "not installed", "", "", (f"pip install {library.packages[0]}",))


def _enabled(library: Library, wish: _Wish) -> Row:
    """One library of `enable`'s."""
    with _lock:
        _wishes[library.name] = wish
        if library.module not in sys.modules:
            _watch_imports()
            return _waiting(library, wish)
    try:
        # Another thread may be in the middle of importing it, and waits for the lock at its end: so without the lock.
        importlib.import_module(library.module)
        with _lock:
            return _turn_on(library, wish)
    except Exception as error:
        with _lock:
            # It is on as it was before, or not at all; its import is over.
            _wishes.pop(library.name, None)
        if wish.named:
            raise
        return Row(library.name, _libraries.version(library), "failed", "", "", (str(error),))


def disable(*libraries: str | ModuleType) -> Table:
    """Gives libraries their own memory back, as far as they allow it; without names, all that `enable` turned on.

    What is out by then is freed by the resource that made it. Returns a table.
    """
    rows = []
    with _lock:
        for library in [_libraries.named(library) for library in libraries] or [
            known for known in LIBRARIES.values() if known.name in {**_wishes, **_on}
        ]:
            wish = _wishes.pop(library.name, None)
            row = _on.get(library.name)
            if row is None:
                note = "it was not on" if wish is None else "its import is not waited for any more"
                rows.append(Row(library.name, "", "off", "", "", (note,)))
                continue
            why = _plug(library).turn_off()
            if why.startswith("on: "):
                rows.append(Row(library.name, row.version, "on", row.route, row.resource, (why[4:],)))
                if wish is not None:
                    _wishes[library.name] = wish
                continue
            del _on[library.name]
            rows.append(Row(library.name, row.version, "off", "", "", (why,) if why else ()))
        if not _wishes and _watch in sys.meta_path:
            sys.meta_path.remove(_watch)
    return Table(rows)


def __getattr__(name: str) -> Any:
    # `tenure.allocators.cupy` without an import of its own, as `tenure.mr` is there without one.
    if name in _PLACES.values():
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES.values()})
