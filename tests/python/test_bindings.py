"""The border for people who write bindings: `python.h` (stable ABI), the casters, and `cimport tenure`.

Each is called by a module that is compiled here, with the tools of `examples/bindings/build.py`; what this Python lacks is
skipped with the reason. The five examples themselves are run by `ci/bindings`.
"""

from __future__ import annotations

import fcntl
import gc
import importlib.util
import os
import re
import sys
import sysconfig
import weakref
from pathlib import Path

import pytest
import tenure
from tenure import DEFAULT_STREAM, DeviceBuffer, OutOfMemoryError, Stream, bindings

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "handover"
OUT = Path(os.environ.get("TENURE_BINDINGS_OUT", ROOT / "build" / "bindings-tests")) / sysconfig.get_config_var("SOABI")
STRICT = ["-Wpedantic", "-Wshadow", "-Werror"]


@pytest.fixture(scope="session")
def tools():
    """`examples/bindings/build.py`: what finds compilers, headers and packages."""
    path = ROOT / "examples" / "bindings" / "build.py"
    for needed in (path, SOURCES / "python_h.c"):
        if not needed.is_file():
            pytest.skip(f"the sources of the bindings are not here: no {needed}")
    spec = importlib.util.spec_from_file_location("bindings_build", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def c_module(tools, source, target):
    command = tools.compiler("CC", "cc", "gcc", "clang")
    # Signatures of C functions in a PyMethodDef are what -Wpedantic would complain about.
    flags = ["-std=c99", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Wshadow", "-Werror"]
    tools.run(*command, *flags, f"-I{tools.HEADERS}", f"-I{tools.python_headers()}", source, "-o", target)


def pyx_module(tools, source, target):
    tools.package("Cython")
    translated = target.with_name(f"{source.stem}.c")
    tools.run(sys.executable, "-m", "cython", "-3", "-Wextra", "-I", tools.PACKAGE.parent, source, "-o", translated)
    command = tools.compiler("CC", "cc", "gcc", "clang")
    flags = ["-O1", "-fPIC", "-shared", f"-I{tools.HEADERS}", f"-I{tools.python_headers()}"]
    tools.run(*command, *flags, translated, "-o", target)


def pybind11_module(tools, source, target):
    tools.cxx([source], target, tools.package("pybind11").get_include())


def nanobind_module(tools, source, target):
    nanobind = tools.package("nanobind")
    folder = Path(nanobind.source_dir())
    robin_map = folder.parent / "ext" / "robin_map" / "include"
    tools.cxx([source, folder / "nb_combined.cpp"], target, nanobind.include_dir(), robin_map)


BUILDERS = {
    "python_h": (c_module, "python_h.c"),
    "declarations": (pyx_module, "declarations.pyx"),
    "casters_pybind11": (pybind11_module, "casters_pybind11.cpp"),
    "casters_nanobind": (nanobind_module, "casters_nanobind.cpp"),
}


def stale(target, tools, source):
    """Whether something that a module is made of is newer than it."""
    if not target.is_file():
        return True
    parts = [source, *SOURCES.glob("*.hpp"), *tools.HEADERS.rglob("*"), *tools.PACKAGE.glob("*.pxd")]
    return max(part.stat().st_mtime for part in parts) > target.stat().st_mtime


def built(tools, name):
    """A module that is compiled if need be."""
    builder, source = BUILDERS[name]
    target = OUT / f"{name}{tools.SUFFIX}"
    OUT.mkdir(parents=True, exist_ok=True)
    with open(OUT / f"{name}.lock", "w") as lock:
        # Two processes of pytest-xdist must not build at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stale(target, tools, SOURCES / source):
            try:
                builder(tools, SOURCES / source, target)
            except tools.Skipped as why:
                pytest.skip(str(why))
    spec = importlib.util.spec_from_file_location(name, target)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def python_h(tools):
    return built(tools, "python_h")


@pytest.fixture(scope="session", params=["python_h", "declarations"])
def c_border(request, tools):
    """The functions in C: directly, and through Cython's declarations."""
    return built(tools, request.param)


@pytest.fixture(scope="session", params=["pybind11", "nanobind"])
def casters(request, tools):
    return built(tools, f"casters_{request.param}")


# ------------------------------------------------------------------------------------------------ python.h and cimport tenure


def test_a_buffer_is_taken_and_wrapped(c_border, pool, stream):
    buffer = DeviceBuffer.to_device(b"native", stream, pool)
    ptr = buffer.ptr
    assert c_border.size_of(buffer) == 6
    again = c_border.pass_buffer(buffer)
    assert (buffer.ptr, buffer.size) == (0, 0)
    assert (again.ptr, again.mr, again.stream, again.tobytes()) == (ptr, pool, stream, b"native")
    assert again.mr is pool
    del buffer, again
    assert pool.info().live_count == 0


def test_a_buffer_is_made_natively(c_border, pool, stream):
    buffer = c_border.make(100, stream, pool)
    assert (buffer.size, buffer.stream) == (100, stream) and buffer.mr is pool
    tenure.mr.set_current_device_resource(pool)
    buffer = c_border.make(100)
    assert buffer.mr is pool and buffer.stream == DEFAULT_STREAM
    other = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
    with tenure.mr.using(other):
        assert c_border.make(100, None, None).mr is other


def test_a_resource_keeps_its_object(c_border, cuda):
    pool = tenure.mr.PoolMemoryResource(cuda)
    assert c_border.pass_resource(pool) is pool
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is None


def test_a_stream_comes_back(c_border, stream):
    again = c_border.pass_stream(stream)
    assert again == stream and again is not stream
    del stream
    again.synchronize()
    assert c_border.pass_stream(None) == DEFAULT_STREAM


def test_errors_are_those_of_the_package(c_border, cuda):
    limited = tenure.mr.LimitingResourceAdaptor(cuda, 1000)
    with pytest.raises(OutOfMemoryError) as caught:
        c_border.make(2000, None, limited)
    assert (caught.value.requested, caught.value.limit) == (2000, 1000)

    class Mine(Exception):
        pass

    mine = Mine("as it was raised")

    def refuse(nbytes, stream):
        raise mine

    with pytest.raises(Mine) as caught:
        c_border.make(10, None, tenure.mr.CallbackMemoryResource(refuse, lambda *_: None))
    assert caught.value is mine


@pytest.mark.parametrize("wrong", [b"", 5, object(), "pool"])
def test_a_wrong_type_is_a_type_error(c_border, wrong):
    for function in (c_border.pass_buffer, c_border.size_of, c_border.pass_resource, c_border.pass_stream):
        with pytest.raises(TypeError):
            function(wrong)
    with pytest.raises(TypeError):
        c_border.make(10, None, wrong)


def test_what_is_exported_is_not_taken(c_border):
    buffer = DeviceBuffer(size=10, mr=tenure.mr.PinnedHostMemoryResource())
    with memoryview(buffer), pytest.raises(BufferError):
        c_border.pass_buffer(buffer)
    assert buffer.size == 10


@pytest.mark.parametrize("handle", [0, 1, 12345, 2**64 - 1])
def test_a_handle_of_nothing_is_refused(python_h, handle):
    with pytest.raises(ValueError, match="buffer handle"):
        python_h.wrap_buffer(handle)
    with pytest.raises(ValueError, match="TENURE_RESOURCE_CURRENT" if handle == bindings.CURRENT else "(?i)resource"):
        python_h.wrap_resource(handle)
    if handle:
        with pytest.raises(ValueError, match="stream"):
            python_h.wrap_stream(handle)


def test_what_cannot_be_wrapped_is_given_back(python_h, cuda, monkeypatch):
    """The package is broken between making and wrapping: the exception is that of the package, and nothing is lost."""
    pool = tenure.mr.PoolMemoryResource(cuda)

    def broken(*_):
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(bindings, "wrap_buffer", broken)
    with pytest.raises(ZeroDivisionError, match="broken"):
        python_h.make(100, None, pool)
    assert pool.info().live_count == 0

    monkeypatch.setattr(bindings, "wrap_resource", broken)
    id = pool.id
    with pytest.raises(ZeroDivisionError):
        python_h.pass_resource(pool)
    del pool
    gc.collect()
    from ctypes import byref, c_uint64

    out = c_uint64(1)
    assert library().tenure_resource_from_id(c_uint64(id), byref(out)) == 0
    assert out.value == 0, "the reference that could not be wrapped is still held"

    gone = []

    class Foreign:
        def __del__(self):
            gone.append(True)

    stream = Stream()
    foreign = Stream.from_handle(stream.handle, owner=Foreign())
    monkeypatch.setattr(bindings, "wrap_stream", broken)
    with pytest.raises(ZeroDivisionError):
        python_h.pass_stream(foreign)
    del foreign
    gc.collect()
    assert gone == [True]


def library():
    """The library of this process."""
    import ctypes

    return ctypes.CDLL("libtenure.so.0", mode=os.RTLD_NOW | os.RTLD_NOLOAD)


def test_a_status_of_nothing_raises_something(python_h):
    assert python_h.check(0) is None
    with pytest.raises(ValueError):
        python_h.wrap_buffer(12345)
    # What that call said is not what is told about another one.
    with pytest.raises(RuntimeError, match="12345"):
        python_h.check(12345)


def test_a_resource_made_in_c_has_its_class(python_h, cuda):
    pool = python_h.make_pool(cuda)
    assert type(pool) is tenure.mr.PoolMemoryResource
    assert pool.get_upstream() is cuda
    assert python_h.pass_resource(pool) is pool


# ------------------------------------------------------------------------------------------------------------- the casters


def test_casters_pass_buffers(casters, pool, stream):
    buffer = DeviceBuffer.to_device(b"native", stream, pool)
    ptr = buffer.ptr
    for function in (casters.pass_buffer, casters.pass_buffer_moved, casters.pass_pointer):
        assert casters.size_of(buffer) == 6
        taken, buffer = buffer, function(buffer)
        assert (taken.ptr, taken.size) == (0, 0)
        assert (buffer.ptr, buffer.stream) == (ptr, stream) and buffer.mr is pool
    casters.grow(buffer, 1000)
    assert buffer.size == 1000 and buffer.tobytes()[:6] == b"native"
    assert casters.no_pointer() is None
    buffer.close()
    assert pool.info().live_count == 0


def test_casters_pass_resources_and_streams(casters, pool, cuda, stream):
    assert casters.id_of(pool) == pool.id
    tenure.mr.set_current_device_resource(pool)
    assert casters.id_of(None) == pool.id
    assert casters.pass_resource(pool) is pool
    assert casters.pass_pool(pool) is pool
    assert casters.pass_stream(stream) == stream
    assert casters.pass_view(stream) == stream
    assert casters.pass_view(None) == DEFAULT_STREAM
    assert casters.own_stream(stream)


def test_casters_refuse_other_types(casters, cuda, pool):
    for function, wrong in (
        (casters.pass_buffer, pool),
        (casters.size_of, b"bytes"),
        (casters.id_of, "pool"),
        (casters.id_of, tenure.mr.DeviceMemoryResource.__new__(tenure.mr.DeviceMemoryResource)),
        (casters.pass_resource, None),
        (casters.pass_pool, cuda),
        (casters.pass_stream, 7),
        (casters.pass_view, "stream"),
    ):
        with pytest.raises(TypeError):
            function(wrong)
    for function in (casters.pass_buffer, casters.pass_buffer_moved):
        buffer = DeviceBuffer(size=10, mr=tenure.mr.PinnedHostMemoryResource())
        with memoryview(buffer), pytest.raises(BufferError):
            function(buffer)
        assert function(buffer).size == 10


def test_casters_translate_exceptions(casters):
    with pytest.raises(ValueError, match="default-constructed"):
        casters.empty()
    with pytest.raises((ValueError, TypeError)) as caught:
        casters.no_buffer()
    # pybind11 says "unable to convert" and names the reason as the cause.
    assert "handle" in str(caught.value.__cause__ or caught.value)
    with pytest.raises(RuntimeError, match="somebody else's"):
        casters.throw_other()


# -------------------------------------------------------------------------------------------------------- what is declared


def test_the_declarations_are_complete(tools):
    """Each function of the table, each structure and each constant of `tenure.h` is known to Cython."""
    header = (Path(bindings.get_include()) / "tenure" / "tenure.h").read_text()
    declared = (tools.PACKAGE / "__init__.pxd").read_text()
    body = re.search(r"typedef struct tenure_api \{(.*?)\n\} tenure_api;", header, re.DOTALL)
    functions = re.findall(r"\(\*(\w+)\)\(", re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL))
    assert len(functions) > 90
    missing = [name for name in functions if f"(*{name})(" not in declared]
    constants = re.findall(r"^#define (TENURE_[A-Z_]+) ", header, re.MULTILINE)
    missing += [name for name in constants if name != "TENURE_STATIC_ASSERT" and not re.search(rf"\b{name}\b", declared)]
    missing += [name for name in re.findall(r"^\} (tenure_\w+);", header, re.MULTILINE) if name not in declared]
    assert not missing, f"python/tenure/__init__.pxd does not declare {missing}"
    # Cython takes the last of two declarations, which need not be the one that is kept up to date.
    table = re.search(r"ctypedef struct tenure_api:\n(.*?)\n\n", declared, re.DOTALL)
    declarations = re.findall(r"\(\*(\w+)\)\(", table[1]) + re.findall(
        r"^    ctypedef .*\(\*(tenure_\w+)\)\(", declared, re.MULTILINE
    )
    twice = {name for name in declarations if declarations.count(name) > 1}
    assert len(declarations) > 90 and not twice, f"python/tenure/__init__.pxd declares {twice} twice"


def test_each_header_is_compiled_alone(tools, tmp_path):
    """As C11 and as C++17 and 20, without warnings."""
    folders = [f"-I{tools.HEADERS}", f"-I{tools.python_headers()}"]
    c, cxx = tools.compiler("CC", "cc", "gcc", "clang"), tools.compiler("CXX", "c++", "g++", "clang++")
    for language, suffix, command, header, standards in (
        ("c", ".c", c, "python.h", ("c11", "c17")),
        ("c++", ".cpp", cxx, "python.h", ("c++17",)),
        ("c++", ".cpp", cxx, "python.hpp", ("c++17", "c++20")),
    ):
        source = tmp_path / f"alone{suffix}"
        source.write_text(f"#include <tenure/{header}>\n")
        for standard in standards:
            tools.run(
                *command, "-x", language, f"-std={standard}", "-Wall", "-Wextra", *STRICT, *folders, "-fsyntax-only", source
            )


def test_the_include_folder_is_the_package_s():
    folder = Path(bindings.get_include())
    assert {path.name for path in (folder / "tenure").iterdir()} >= {
        "tenure.h",
        "tenure.hpp",
        "python.h",
        "python.hpp",
        "nanobind.hpp",
        "pybind11.hpp",
    }


def test_none_stands_for_the_current_resource_and_the_default_stream():
    assert bindings.borrow_resource(None) == bindings.CURRENT
    assert bindings.borrow_stream(None) == (0, 0)
    assert bindings.raise_for_status(0) is None
