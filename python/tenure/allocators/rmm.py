"""RMM on tenure's memory, and so cuDF, pylibcudf, cuML and whatever else takes its memory from RMM.

    tenure.enable("rmm")

RMM has two tables of current resources, one in C++ and one in Python, which know of each other only what Python sets:

```text
  tenure's table --told--> +-- RMM's Python table   results of pylibcudf, rmm.DeviceBuffer      (set in Python: both)
                  <-look-- +-- RMM's C++ table      scratch memory of libcudf, C++ programs     (set in C++: this one alone)
```

* An entry of tenure's that changes, in whatever language, is written to both of RMM's.
* What RMM's own functions set is found at the next ``tenure.mr.get_current_device_resource()`` (or any other getter or setter of
  ``tenure.mr``): RMM's resource then is tenure's entry too, as a resource of kind ``"rmm"``, and both of RMM's tables. A
  warning says so once.
* A block that is out goes home to the resource that made it: RMM's buffers own a reference to it.

The extension module that stands between the two is compiled for one minor version of RMM: see ``tenure.bridges``.

# Invariants
* ``_Plug._entries`` says what RMM's tables were last seen or made to hold; both are compared with it.
* RMM's Python setter writes both tables while it holds the interpreter lock. So where the two differ, C++ was set last.
"""

from __future__ import annotations

import contextvars
import importlib
import pkgutil
import threading
import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

from .. import _tenure
from .. import mr as _mr
from .._tenure import device_count as _device_count
from ._libraries import LIBRARIES, need, version

__all__ = ["Entry", "check", "from_rmm", "to_rmm"]

_BRIDGES = "tenure.bridges"


def _minor(text: str) -> str:
    """``26.10.00`` and ``26.10.0a3`` are both ``26.10``."""
    return ".".join(str(int(part)) for part in text.split(".")[:2])


def built() -> tuple[str, ...]:
    """The minor versions of RMM for which a bridge is here."""
    folder = importlib.import_module(_BRIDGES).__path__
    names = [module.name.split("_")[1:] for module in pkgutil.iter_modules(folder) if module.name.startswith("rmm_")]
    return tuple(f"{year}.{month}" for year, month in sorted(names, key=lambda name: [int(part) for part in name]))


def _rmm() -> ModuleType:
    """RMM itself, not what poses as it."""
    rmm = need("rmm")
    if rmm.__name__ != "rmm":
        raise RuntimeError(
            "rmm is served by tenure in this process (python -m tenure.rmm, or tenure.rmm.install()): there is no RMM whose tables "
            "could be written, and all that asks rmm for memory gets tenure's already; for cuDF and what else needs RMM's compiled "
            'modules, run the program as it is and call tenure.enable("rmm")'
        )
    return rmm


def _bridge() -> Any:
    """The module that was compiled for the RMM that is installed."""
    _rmm()
    said = version(LIBRARIES["rmm"])
    try:
        minor = _minor(said)
        name = f"rmm_{minor.replace('.', '_')}"
    except ValueError:
        minor, name = said, "rmm_unknown"
    try:
        return importlib.import_module(f"{_BRIDGES}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{_BRIDGES}.{name}":
            raise
        here = built()
        have = f"there is one for {', '.join(here)}" if here else "there is none here"
        raise RuntimeError(
            f"tenure has no bridge for RMM {said}, whose C++ types are others in each minor version: {have}; install such an RMM, or "
            f"build a bridge for {minor} in tenure's source tree: tools/bridge-rmm {minor}"
        ) from None
    except ImportError as error:
        raise RuntimeError(
            f"tenure's bridge to RMM {minor} cannot be loaded ({error}); build it on this machine, in tenure's source tree: "
            f"tools/bridge-rmm {minor}"
        ) from error


def to_rmm(mr: Any = None) -> Any:
    """A resource of tenure's as an ``rmm.mr.DeviceMemoryResource``, for a ``mr=`` of RMM's or cuDF's and for RMM's adaptors.

    Without ``mr`` the one that is current now: the object stays with it. For a resource that `from_rmm` made, what it was made
    of.
    """
    bridge = _bridge()
    if mr is None:
        mr = _mr.get_current_device_resource()
    elif not isinstance(mr, _mr.DeviceMemoryResource):
        raise TypeError(f"mr must be a resource of tenure.mr, not {type(mr).__name__}")
    found = bridge.theirs(mr)
    return found if found is not None else bridge.TenureMemoryResource(mr)


def from_rmm(mr: Any, device: int | None = None) -> Any:
    """A resource of RMM's as one of ``tenure.mr``, of kind ``"rmm"``.

    ``device`` is the device of its memory (default: the current one). For a resource that `to_rmm` made, what it was made of.
    """
    bridge = _bridge()
    if not isinstance(mr, _rmm().mr.DeviceMemoryResource):
        raise TypeError(f"mr must be a resource of rmm.mr, not {type(mr).__name__}")
    found = bridge.ours(mr)
    if found is not None:
        return found
    return bridge.foreign(mr, _tenure.get_current_device() if device is None else device)


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

    def __str__(self) -> str:
        same = "agree" if self.agree else "DIFFER"
        return f"device {self.device}: tenure {self.tenure}, RMM's Python {self.python}, RMM's C++ {self.cpp}: {same}"


def check() -> tuple[Entry, ...]:
    """Says for each device what tenure's table and RMM's two hold. Changes nothing, and may be called before ``enable``."""
    bridge, rmm = _bridge(), _rmm()
    entries = []
    for device in range(_device_count()):
        # Without what a getter would take over, and without the scopes of this task.
        with _plug.not_looking():
            ours = _entry_of_tenure(device)
        python = rmm.mr.get_per_device_resource(device)
        cpp = bridge.table_entry(device)
        behind = [None if entry is None else bridge.ours(entry) for entry in (python, cpp)]
        theirs = bridge.theirs(ours)
        if theirs is not None:
            agree = bridge.table_is(device, theirs) and bridge.table_is(device, python)
        else:
            agree = all(entry is not None and entry.same_as(ours) for entry in behind)
        entries.append(
            Entry(device, type(ours).__name__, _describe(bridge, python), _describe(bridge, cpp), agree),
        )
    return tuple(entries)


def _describe(bridge: Any, entry: Any) -> str:
    if entry is None:
        return "RMM's own, never set"
    behind = bridge.ours(entry)
    if behind is not None:
        return f"tenure's {type(behind).__name__}"
    return str(entry.cpp_class) if isinstance(entry, bridge.RmmMemoryResource) else f"RMM's {type(entry).__name__}"


def _entry_of_tenure(device: int) -> Any:
    """The entry itself: what `using` binds here and now is no entry."""
    return contextvars.Context().run(_mr.get_per_device_resource, device)


# ------------------------------------------------------------------ for tenure.enable


class _Held(NamedTuple):
    """What RMM's tables are to hold for a device."""

    theirs: Any
    """RMM's object, as in its Python table."""
    ours: Any
    """The resource of tenure's that it stands for, or that stands for it."""


class _Plug:
    """The two followers of tenure's table, and what was in RMM's before.

    The lock is held while both of RMM's tables are written, so that who looks does not take one half for somebody else's. The
    engine calls `_told` without a lock of its own, and nobody waits for a listener of another thread: so holding it while
    tenure's table is set is no deadlock.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._quiet = threading.local()
        self._mr: Any = None
        self._entries: dict[int, _Held] = {}
        self._before: dict[int, tuple[Any, Any]] = {}
        self._warned = False
        self._rmm: Any = None
        self._bridge: Any = None

    # ---- enable, disable

    def turn_on(self, mr: Any, route: str) -> tuple[str, Any, tuple[str, ...]]:
        bridge, rmm = _bridge(), _rmm()
        with self._lock:
            self._rmm, self._bridge = rmm, bridge
            self._mr, self._warned = mr, False
            _tenure._unfollow_current()
            for device in self._devices():
                if device not in self._before:
                    self._before[device] = (rmm.mr.get_per_device_resource(device), bridge.table_entry(device))
            try:
                if mr is None:
                    # First, so that no change is missed between.
                    _tenure._follow_current(self._look, self._told)
                with self.not_looking():
                    for device in self._devices():
                        self._write(device, mr if mr is not None else _entry_of_tenure(device))
            except BaseException:
                self._restore()
                raise
        notes = []
        if mr is None:
            notes.append(
                "`using` binds for a thread, RMM's tables for the process: RMM follows set_current_device_resource, not `using`"
            )
        return "both tables", mr, tuple(notes)

    def turn_off(self) -> str:
        with self._lock:
            return self._restore()

    def _devices(self) -> list[int]:
        devices = list(range(_device_count()))
        if self._mr is not None and self._mr.device is not None:
            # A pool of one device cannot serve another.
            devices = [device for device in devices if device == self._mr.device]
        return devices

    def _restore(self) -> str:
        """Puts back what was there, where nobody has set something else since."""
        _tenure._unfollow_current()
        left = []
        for device, (python, cpp) in self._before.items():
            held = self._entries.get(device)
            if held is None:
                continue
            if not self._as_left(device, held.theirs) or self._bridge.ours(held.theirs) is None:
                left.append(str(device))
                continue
            self._rmm.mr.set_per_device_resource(device, python)
            if cpp is None or not self._bridge.table_is(device, cpp):
                self._bridge.set_table_entry(device, cpp)
        self._entries.clear()
        self._before.clear()
        self._mr = None
        return f"RMM's resource of device {', '.join(left)} was set by somebody else, and was left as it is" if left else ""

    # ---- following

    def not_looking(self) -> Any:
        """While it is entered, this thread's getters look into nobody's table."""
        return _Quiet(self._quiet)

    def _as_left(self, device: int, theirs: Any) -> bool:
        """Whether both of RMM's tables hold this."""
        return self._rmm.mr.get_per_device_resource(device) is theirs and self._bridge.table_is(device, theirs)

    def _write(self, device: int, mr: Any) -> None:
        theirs = self._bridge.theirs(mr)
        if theirs is None:
            theirs = self._bridge.TenureMemoryResource(mr)
        # Known first: between RMM's two tables another thread may look, and then waits for the lock.
        self._entries[device] = _Held(theirs, mr)
        self._rmm.mr.set_per_device_resource(device, theirs)

    def _told(self, device: int, mr: Any) -> None:
        """An entry of tenure's table has changed."""
        with self._lock:
            if not self._following():
                return
            held = self._entries.get(device)
            if held is not None and held.ours.same_as(mr) and self._as_left(device, held.theirs):
                return
            self._write(device, mr)

    def _following(self) -> bool:
        return self._mr is None and self._rmm is not None and bool(self._before)

    def _look(self, device: int) -> None:
        """Somebody reads tenure's table in Python."""
        held = self._entries.get(device)
        if held is None or getattr(self._quiet, "depth", 0) or self._as_left(device, held.theirs):
            return
        with self._lock:
            held = self._entries.get(device)
            if held is None or not self._following() or self._as_left(device, held.theirs):
                return
            theirs = self._rmm.mr.get_per_device_resource(device)
            through = "rmm.mr"
            if not self._bridge.table_is(device, theirs):
                found = self._bridge.table_entry(device)
                if found is not None:
                    theirs, through = found, "RMM's C++ functions"
            ours = self._bridge.ours(theirs)
            foreign = ours is None
            if foreign:
                ours = self._bridge.foreign(theirs, device)
            self._entries[device] = _Held(theirs, ours)
            # What C++ set is in one table only.
            self._rmm.mr.set_per_device_resource(device, theirs)
            with self.not_looking():
                contextvars.Context().run(_mr.set_per_device_resource, device, ours)
            warn, self._warned = foreign and not self._warned, self._warned or foreign
        if warn:
            warnings.warn(
                f"RMM's current resource of device {device} was set to {_describe(self._bridge, theirs)} through {through}; it is "
                "tenure's current resource too from now on. Set it with tenure.mr.set_current_device_resource, which writes all "
                "tables; this is said once",
                RuntimeWarning,
                stacklevel=2,
            )


class _Quiet:
    def __init__(self, here: threading.local) -> None:
        self._here = here

    def __enter__(self) -> None:
        self._here.depth = getattr(self._here, "depth", 0) + 1

    def __exit__(self, *_: object) -> None:
        self._here.depth -= 1


_plug = _Plug()
_PLUGS = {"rmm": _plug}
