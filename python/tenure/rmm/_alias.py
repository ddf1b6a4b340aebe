"""``import rmm`` gives tenure: the alias, and what it refuses.

```text
 import rmm.mr  -->  finder  -->  import tenure.rmm.mr  -->  the same module object under both names
 import cudf    -->  finder  -->  ImportError: it needs RMM's compiled modules
```

One module object has two names, so that ``rmm.DeviceBuffer is tenure.DeviceBuffer`` and what one half of a program makes
the other half recognises. Pickles name ``tenure`` and can be read without the alias.

Child processes of ``multiprocessing`` get the alias too, however they are started: a forked one has it, and one that starts
afresh is told by the data that its parent sends. Other programs that a program starts are none of ours, as with any
``python -m``.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

__all__ = ["install", "installed"]

_OURS = __package__ or "tenure.rmm"
_NAME = "rmm"

# What is built against RMM's compiled modules, and so loads them or nothing.
_NEEDS_RMM = frozenset(
    [
        "cudf",
        "pylibcudf",
        "cudf_polars",
        "dask_cudf",
        "cuml",
        "cugraph",
        "pylibcugraph",
        "pylibraft",
        "raft_dask",
        "cuvs",
        "rapidsmpf",
    ]
)


class _Loader(importlib.abc.Loader):
    """Gives the module that is there."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        # It ran under its own name, whose spec it keeps: reloading and resources go by it.
        module.__spec__ = self.spec


class _Distribution(importlib.metadata.Distribution):
    """RMM's entry among the installed distributions, for programs that ask for its version."""

    def __init__(self, name: str) -> None:
        from ._version import __version__

        version = ".".join(str(int(part)) for part in __version__.split("."))
        self._text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: RMM's interface, served by tenure\n"

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(f"{path}: rmm is served by tenure and has no files of its own")


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in _NEEDS_RMM:
            raise ImportError(
                f"{fullname} needs RMM's own compiled modules, which tenure.rmm does not replace: run the program as it is "
                'and put tenure into RMM\'s tables with the bridge, tenure.enable("rmm")',
                name=fullname,
            )
        if fullname != _NAME and not fullname.startswith(f"{_NAME}."):
            return None
        ours = _OURS + fullname[len(_NAME) :]
        try:
            module = importlib.import_module(ours)
        except ModuleNotFoundError as error:
            if error.name != ours:
                raise
            return None
        package = hasattr(module, "__path__")
        origin = module.__spec__.origin if module.__spec__ else None
        return importlib.machinery.ModuleSpec(fullname, _Loader(module), origin=origin, is_package=package)

    def find_distributions(self, context: Any = None) -> Iterable[importlib.metadata.Distribution]:
        name = getattr(context, "name", None)
        if name is not None and name.lower().replace("_", "-") in ("rmm", "rmm-cu12", "rmm-cu13"):
            yield _Distribution(name)


_finder: _Finder | None = None


def installed() -> bool:
    """Whether ``import rmm`` gives tenure in this process."""
    return _finder is not None and _finder in sys.meta_path


def install() -> None:
    """From now on ``import rmm``, and every submodule of it, gives tenure in this process. Again: nothing.

    Call it before anything imports RMM. Where the real RMM is loaded already this is an ``ImportError``: its compiled
    modules cannot be taken back.
    """
    global _finder
    if installed():
        return
    for name in sorted(sys.modules):
        module = sys.modules[name]
        if name == "librmm" or name == _NAME or name.startswith(f"{_NAME}."):
            if module is None or (getattr(module, "__name__", "") or "").startswith(_OURS):
                continue
            where = getattr(module, "__file__", None) or "a module without a file"
            raise ImportError(
                f"the real RMM is loaded already ({name} from {where}), and its compiled modules cannot be taken back: call "
                "tenure.rmm.install() before anything imports rmm, or run the program with python -m tenure.rmm",
                name=name,
            )
    _finder = _Finder()
    sys.meta_path.insert(0, _finder)
    _tell_children()


class _Told(dict[str, Any]):
    """What a parent process sends to a child that starts afresh: reading it installs the alias there."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_read_in_child, (dict(self),))


def _read_in_child(data: dict[str, Any]) -> dict[str, Any]:
    install()
    return data


def _tell_children() -> None:
    try:
        from multiprocessing import spawn
    except ImportError:
        return  # a Python without processes
    original = spawn.get_preparation_data
    if getattr(original, "_tenure", False):
        return

    def get_preparation_data(name: str) -> dict[str, Any]:
        data = original(name)
        return _Told(data) if installed() else data

    get_preparation_data._tenure = True  # type: ignore[attr-defined]
    spawn.get_preparation_data = get_preparation_data
