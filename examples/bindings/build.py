"""Builds the five bindings of the same library, each with its tool where that is there.

    python examples/bindings/build.py [NAME...]        cython, nanobind, pybind11, pyo3, ctypes

Prints what was built, and what was skipped and why. The results go to `build/bindings/` (`BINDINGS_OUT` names another folder),
one folder for each kind of Python; `run.py` tests them. CC, CXX and CARGO name the compilers.
"""

import concurrent.futures
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import tenure
from tenure import bindings

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = Path(tenure.__file__).absolute().parent
HEADERS = Path(bindings.get_include())
PYTHON_HEADERS = Path(sysconfig.get_path("include"))
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")

# The three in C++ find libtenure in the process (TENURE_HEADER_ONLY), so that nothing is linked.
CXX_FLAGS = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-DTENURE_HEADER_ONLY", "-Wall", "-Wextra"]


class Skipped(Exception):
    """A tool is not there; the text says which."""


def out():
    """Where the results for this Python go."""
    return Path(os.environ.get("BINDINGS_OUT", ROOT / "build" / "bindings")) / sysconfig.get_config_var("SOABI")


def run(*command, **options):
    """Runs a command; its output is the error's text."""
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    except FileNotFoundError as error:
        raise RuntimeError(f"{command[0]} is not there; CC, CXX and CARGO name the compilers") from error
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(map(str, command))}\n{done.stdout}{done.stderr}")


def compiler(variable, *names):
    """The compiler that an environment variable names, or the first that is found."""
    wanted = shlex.split(os.environ.get(variable, "")) or next(([name] for name in names if shutil.which(name)), None)
    if wanted is None:
        raise Skipped(f"no compiler: none of {', '.join(names)} is found, and {variable} names none")
    return wanted


def package(name):
    """A Python package that a binding needs to be built."""
    spec = importlib.util.find_spec(name)
    # The folders beside this file have the same names; they are no packages.
    if spec is None or spec.origin is None:
        raise Skipped(f"{name} is not installed for this Python")
    return importlib.import_module(name)


def python_headers():
    """The headers of Python itself."""
    if not (PYTHON_HEADERS / "Python.h").is_file():
        raise Skipped(f"no Python.h in {PYTHON_HEADERS}: install the development files of this Python")
    return PYTHON_HEADERS


def cxx(sources, target, *includes):
    """Compiles an extension module in C++."""
    command = compiler("CXX", "c++", "g++", "clang++")
    folders = [f"-I{folder}" for folder in (HEADERS, python_headers(), *includes)]
    run(*command, *CXX_FLAGS, *folders, *sources, "-o", target)


def build_cython(folder):
    """The .pyx is translated to C++; `cimport tenure` finds `tenure/__init__.pxd` in the installed package."""
    package("Cython")
    source = folder / "column_cython.cpp"
    pyx = HERE / "cython" / "column_cython.pyx"
    run(sys.executable, "-m", "cython", "--cplus", "-3", "-I", PACKAGE.parent, pyx, "-o", source)
    cxx([source], folder / f"column_cython{SUFFIX}", pyx.parent)


def build_nanobind(folder):
    """nanobind's own build goes through CMake; without it, its library is one more source: nb_combined.cpp."""
    nanobind = package("nanobind")
    library = Path(nanobind.source_dir()) / "nb_combined.cpp"
    includes = [nanobind.include_dir(), Path(nanobind.source_dir()).parent / "ext" / "robin_map" / "include"]
    source = HERE / "nanobind" / "column_nanobind.cpp"
    cxx([source, library], folder / f"column_nanobind{SUFFIX}", *includes)


def build_pybind11(folder):
    """pybind11 is headers alone."""
    pybind11 = package("pybind11")
    source = HERE / "pybind11" / "column_pybind11.cpp"
    cxx([source], folder / f"column_pybind11{SUFFIX}", pybind11.get_include())


def build_pyo3(folder):
    """A member of the workspace, over the crate `tenure`: for Python 3.11 and everything newer."""
    cargo = compiler("CARGO", "cargo")
    if not (ROOT / "Cargo.toml").is_file():
        raise Skipped("the Rust sources are not here")
    # A module for the stable ABI: no Python is needed to build it, and none is linked.
    environment = {**os.environ, "PYO3_BUILD_EXTENSION_MODULE": "1", "PYO3_NO_PYTHON": "1"}
    run(*cargo, "build", "--quiet", "--release", "-p", "column-pyo3", cwd=ROOT, env=environment)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    shutil.copy2(target / "release" / "libcolumn_pyo3.so", folder / "column_pyo3.abi3.so")


def build_ctypes(folder):
    """A plain C library, linked with libtenure, and a Python file beside it."""
    libtenure = Path(os.environ.get("TENURE_LIBRARY", PACKAGE / "lib"))
    if libtenure.is_file():
        libtenure = libtenure.parent
    source = HERE / "ctypes" / "column.c"
    command = compiler("CC", "cc", "gcc", "clang")
    flags = ["-std=c99", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", f"-I{HEADERS}"]
    run(*command, *flags, source, "-o", folder / "libcolumn.so", f"-L{libtenure}", "-l:libtenure.so.0")
    shutil.copy2(HERE / "ctypes" / "column_ctypes.py", folder)


BUILDERS = {
    "cython": build_cython,
    "nanobind": build_nanobind,
    "pybind11": build_pybind11,
    "pyo3": build_pyo3,
    "ctypes": build_ctypes,
}


def build(names=BUILDERS):
    """Builds; returns for each name "" or why it was skipped. A build that fails is an error."""
    folder = out()
    folder.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {name: pool.submit(BUILDERS[name], folder) for name in names}
    results = {}
    for name, future in running.items():
        try:
            future.result()
            results[name] = ""
        except Skipped as why:
            results[name] = str(why)
    return results


def main(names):
    """Builds and says what happened."""
    for name, why in build(names or BUILDERS).items():
        print(f"{name:10} skipped: {why}" if why else f"{name:10} built in {out()}")


if __name__ == "__main__":
    main(sys.argv[1:])
