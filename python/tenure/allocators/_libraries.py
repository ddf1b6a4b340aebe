"""How each library is found, and what its package is called."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any, NamedTuple


class Library(NamedTuple):
    """A library that tenure can plug into."""

    name: str
    """What `tenure.enable` calls it."""
    module: str
    """The module whose import makes it usable."""
    title: str
    packages: tuple[str, ...]
    """The packages of PyPI's that bring it; the first one is named to whoever lacks it."""
    tested: tuple[str, ...]
    """The versions, to the minor one, with which this tenure's own tests ran."""


LIBRARIES = {
    library.name: library
    for library in (
        Library("cupy", "cupy", "CuPy", ("cupy-cuda13x", "cupy-cuda12x", "cupy"), ("14.2",)),
        Library("torch", "torch", "PyTorch", ("torch",), ("2.11", "2.15")),
        Library("numba", "numba.cuda", "Numba-CUDA", ("numba-cuda",), ("0.30",)),
        Library("numba-cuda-mlir", "numba_cuda_mlir", "numba-cuda-mlir", ("numba-cuda-mlir",), ("0.6",)),
        Library("warp", "warp", "Warp", ("warp-lang",), ("1.19",)),
        Library("cuda.core", "cuda.core", "cuda.core", ("cuda-core",), ("1.2",)),
        Library("rmm", "rmm", "RMM", ("rmm-cu13", "rmm-cu12"), ("26.08", "26.10")),
    )
}

# What has no hook of its own, and where its memory comes from instead.
HOOKLESS = {
    "cudf": 'it takes its memory from RMM: tenure.enable("rmm")',
    "pylibcudf": 'it takes its memory from RMM: tenure.enable("rmm")',
    "cuml": 'it takes its memory from RMM: tenure.enable("rmm")',
    "jax": "its allocator is compiled in; arrays are exchanged without a copy, see docs/libraries/jax.md",
    "tensorflow": "its allocator is compiled in; tensors are exchanged without a copy, see docs/libraries/tensorflow.md",
}

# What else people call them.
ALIASES = {
    "pytorch": "torch",
    "numba.cuda": "numba",
    "numba_cuda": "numba",
    "numba-cuda": "numba",
    "numba_cuda_mlir": "numba-cuda-mlir",
    "warp-lang": "warp",
    "cuda-core": "cuda.core",
    "cuda_core": "cuda.core",
    "cuda": "cuda.core",
}


def named(library: str | ModuleType) -> Library:
    """The library of a name or of a module."""
    if isinstance(library, ModuleType):
        for known in LIBRARIES.values():
            # Not by its `__name__`: that of `cuda.core` says for which CUDA it is.
            if sys.modules.get(known.module) is library:
                return known
    name = library.__name__ if isinstance(library, ModuleType) else library
    if not isinstance(name, str):
        raise TypeError(f"a library is a name or a module, not {type(library).__name__}: one of {', '.join(LIBRARIES)}")
    found = LIBRARIES.get(ALIASES.get(name, name))
    if found is None:
        why = f" ({HOOKLESS[name]})" if name in HOOKLESS else ""
        raise ValueError(f"tenure has no plug for {name!r}{why}; it has some for {', '.join(LIBRARIES)}")
    return found


def installed(library: Library) -> bool:
    """Whether the library could be imported; imports nothing but the namespace `cuda`."""
    if library.module in sys.modules:
        return True
    try:
        if library.name == "numba":
            # Numba itself had a module of this name for long: what it has now is a reference to the package. Asking for
            # `numba.cuda` would import Numba.
            return all(importlib.util.find_spec(package) is not None for package in ("numba", "numba_cuda"))
        return importlib.util.find_spec(library.module) is not None
    except (ImportError, ValueError):
        return False


def missing(library: Library) -> ModuleNotFoundError:
    """What is said to somebody who lacks a library."""
    others = f" (or {', '.join(library.packages[1:])})" if len(library.packages) > 1 else ""
    return ModuleNotFoundError(
        f"{library.title} is not installed: pip install {library.packages[0]}{others}, then try again", name=library.module
    )


def need(name: str) -> ModuleType:
    """Imports a library that is about to be given memory; an error names its package. Refuses the simulated device."""
    library = LIBRARIES[name]
    refuse_simulated(f"{library.title} here")
    try:
        return importlib.import_module(library.module)
    except ModuleNotFoundError as error:
        # A module of theirs that is missing is their error, and it says more than ours would.
        if error.name is None or not library.module.startswith(error.name.partition(".")[0]):
            raise
        raise missing(library) from error


def cupy() -> ModuleType:
    """CuPy; for the extension module."""
    return need("cupy")


def version(library: Library) -> str:
    """The version of a library as it says itself, or, before its import, as its package says."""
    said = getattr(sys.modules.get(library.module), "__version__", None)
    if isinstance(said, str):
        return said
    for package in library.packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


def is_tested(library: Library, version: str) -> bool:
    """Whether this tenure's own tests ran with that minor version."""
    return ".".join(version.split(".")[:2]) in library.tested


# Whether the device was found to be one for libraries, which it stays.
_allowed = False


def refuse_simulated(what: str) -> None:
    """Raises where the device is the simulated one and nobody asked for that: no GPU library can use its memory."""
    global _allowed
    if _allowed:
        return
    from .. import sim

    _allowed = os.environ.get("TENURE_DEVICE", "").strip().lower() == "sim" or not sim.active()
    if not _allowed:
        raise RuntimeError(
            f"{what} would get memory of the simulated device, which is the host's: there is no CUDA driver here, so tenure "
            "simulates one. Run this on a machine with an NVIDIA GPU; to have it all the same, for a test, set "
            "TENURE_DEVICE=sim before tenure is used"
        )


def resource_name(mr: Any) -> str:
    """A resource in a table: its class."""
    return "current" if mr is None else type(mr).__name__
