"""Each call of docs/allocating-calls.md with a resource named, while the current one refuses everything.

The page is made by ``tools/allocating-calls``, which complains about a public call that is in neither of its lists; here
it is run as a check, and each call of Python and of the C functions is made. A row without a call here fails.
"""

from __future__ import annotations

import copy
import ctypes
import json
import os
import pickle
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tenure
from conftest import DEVICE
from tenure import mr

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools/allocating-calls"
BYTES = 1000

if not TOOL.is_file():
    pytest.skip("the source tree is not here", allow_module_level=True)

TABLE = tomllib.loads((ROOT / "tools/allocating_calls.toml").read_text())


def test_the_page_is_complete_and_up_to_date():
    checked = subprocess.run([sys.executable, TOOL, "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_call_that_is_missing_is_found(tmp_path):
    """The check can fail: a table that lacks one row is complained about."""
    tree = tmp_path / "tree"
    for part in ("python", "crates/tenure-abi/src", "crates/tenure/src", "include/tenure"):
        (tree / part).parent.mkdir(parents=True, exist_ok=True)
        (tree / part).symlink_to(ROOT / part)
    (tree / "tools").mkdir()
    (tree / "docs").mkdir()
    text = (ROOT / "tools/allocating_calls.toml").read_text()
    for call in ("DeviceBuffer.copy", "buffer_copy", "uvector.hpp:resize", "typed::DeviceVec::resize"):
        without = text.replace(f'call = "{call}"', 'call = "nobody"')
        assert without != text
        (tree / "tools/allocating_calls.toml").write_text(without)
        tool = tree / "tools/allocating-calls"
        tool.write_bytes(TOOL.read_bytes())
        checked = subprocess.run([sys.executable, tool], capture_output=True, text=True)
        assert checked.returncode == 1 and f" {call} is public and is in neither list" in checked.stdout


def test_the_table_is_read_where_the_list_says(tmp_path):
    """ci/check-table passes, and finds a reading in the pool, and a second one in a public call."""
    tool = ROOT / "ci/check-table"
    if not (ROOT / "crates/tenure-python").is_dir():
        pytest.skip("this is no source tree")
    checked = subprocess.run([sys.executable, tool], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    tree = tmp_path / "tree"
    for part in sorted(ROOT.glob("crates/*/src")):
        shutil.copytree(part, tree / part.relative_to(ROOT))
    shutil.copytree(ROOT / "include", tree / "include")
    (tree / "ci").mkdir()
    shutil.copy(tool, tree / "ci")
    for file, before, after in (
        (
            "crates/tenure-core/src/pool/mod.rs",
            "    pub fn options(&self) -> &PoolOptions {\n",
            "    pub fn options(&self) -> &PoolOptions {\n        let _ = crate::current::get(0);\n",
        ),
        (
            "crates/tenure-core/src/buffer.rs",
            "None => current::get(",
            "None if false => current::get(0),\n        None => current::get(",
        ),
    ):
        text = (ROOT / file).read_text()
        assert before in text
        (tree / file).write_text(text.replace(before, after, 1))
        checked = subprocess.run([sys.executable, tree / "ci/check-table"], capture_output=True, text=True)
        assert checked.returncode == 1 and f"{file}::" in checked.stdout, checked.stdout
        (tree / file).write_text(text)


# ---------------------------------------------------------------------------------------------------------------- Python


def filled(resource, size=BYTES):
    return tenure.DeviceBuffer.to_device(bytes(range(250)) * (size // 250), mr=resource)


def new_buffer(resource):
    return tenure.DeviceBuffer(size=BYTES, mr=resource)


def new_copy_of_an_address(resource):
    source = filled(resource)
    return tenure.DeviceBuffer(ptr=source.ptr, size=source.size, mr=resource)


def to_device(resource):
    return tenure.DeviceBuffer.to_device(b"x" * BYTES, mr=resource)


def resize(resource):
    buffer = filled(resource)
    buffer.resize(5 * BYTES)
    return buffer


def reserve(resource):
    buffer = filled(resource)
    buffer.reserve(5 * BYTES)
    return buffer


def shrink_to_fit(resource):
    buffer = filled(resource, 5 * BYTES)
    buffer.resize(BYTES)
    buffer.shrink_to_fit()
    return buffer


def buffer_copy(resource):
    return filled(resource).copy(mr=resource)


def protocol_copy(resource):
    buffer = filled(resource)
    with mr.using(resource):
        return copy.copy(buffer)


def deep_copy(resource):
    buffer = filled(resource)
    with mr.using(resource):
        return copy.deepcopy(buffer)


def unpickle(resource):
    text = pickle.dumps(filled(resource))
    with mr.using(resource):
        return pickle.loads(text)


def dlpack_copy(resource):
    buffer = filled(resource)
    capsule = buffer.__dlpack__(copy=True, max_version=(1, 0))
    again = tenure.from_dlpack(capsule)
    assert again.ptr != buffer.ptr
    assert again.tobytes() == buffer.tobytes()
    return buffer


def dlpack_copy_of_foreign_memory(resource):
    """A buffer that was adopted with an owner has no resource of its own: a copy of it is the current one's."""
    memory = tenure.mr.PinnedHostMemoryResource()
    whole = filled(memory)
    buffer = tenure.DeviceBuffer.adopt(whole.ptr, whole.size, owner=whole, stream=tenure.DEFAULT_STREAM)
    with mr.using(resource):
        capsule = buffer.__dlpack__(copy=True, max_version=(1, 0))
    again = tenure.from_dlpack(capsule)
    assert again.ptr != buffer.ptr and again.tobytes() == whole.tobytes()


def allocate(resource):
    ptr = resource.allocate(BYTES)
    assert resource.owns(ptr)
    resource.deallocate(ptr, BYTES)


def allocate_many(resource):
    ptrs = resource.allocate_many([BYTES, 0, BYTES])
    assert [resource.owns(ptr) for ptr in ptrs] == [True, False, True]
    resource.deallocate_many(ptrs, [BYTES, 0, BYTES])


def many_buffers(resource):
    return tenure.DeviceBuffer.many([BYTES, 0, BYTES], mr=resource)


def pool_with_an_initial_size(resource):
    # Over the plain resource a pool maps pages of its own; over any other it asks for a chunk, now and when it grows.
    pool = mr.PoolMemoryResource(mr.StatisticsResourceAdaptor(resource), "2MiB")
    return tenure.DeviceBuffer(size="8MiB", mr=pool)


def blocks_that_are_preallocated(resource):
    blocks = mr.FixedSizeMemoryResource(mr.StatisticsResourceAdaptor(resource), "1MiB", 2)
    return [tenure.DeviceBuffer(size="1MiB", mr=blocks) for _ in range(3)]


def arena(resource):
    return tenure.DeviceBuffer(size="1MiB", mr=mr.ArenaMemoryResource(mr.StatisticsResourceAdaptor(resource), "2MiB"))


def arena_of_half_the_memory(resource):
    mr.ArenaMemoryResource(resource)


def async_with_an_initial_size(_):
    return mr.CudaAsyncMemoryResource(initial_pool_size="1MiB")


def module_to_device(resource):
    return tenure.to_device(bytes(BYTES), mr=resource)


def reinitialized(_):
    before = mr.get_current_device_resource()
    try:
        tenure.reinitialize(pool_allocator=True, initial_pool_size="1MiB")
    finally:
        mr.set_current_device_resource(before)


PYTHON = {
    "DeviceBuffer.__init__": [new_buffer, new_copy_of_an_address],
    "DeviceBuffer.to_device": [to_device],
    "to_device": [module_to_device],
    "reinitialize": [reinitialized],
    "DeviceBuffer.resize": [resize],
    "DeviceBuffer.reserve": [reserve],
    "DeviceBuffer.shrink_to_fit": [shrink_to_fit],
    "DeviceBuffer.copy": [buffer_copy],
    "DeviceBuffer.__copy__": [protocol_copy],
    "DeviceBuffer.__deepcopy__": [deep_copy],
    "DeviceBuffer.__reduce__": [unpickle],
    "DeviceBuffer.__dlpack__": [dlpack_copy, dlpack_copy_of_foreign_memory],
    "DeviceBuffer.many": [many_buffers],
    "mr.DeviceMemoryResource.allocate": [allocate],
    "mr.DeviceMemoryResource.allocate_many": [allocate_many],
    "mr.PoolMemoryResource.__init__": [pool_with_an_initial_size],
    "mr.FixedSizeMemoryResource.__init__": [blocks_that_are_preallocated],
    # Half of a GPU's memory, pinned or managed, takes minutes to get.
    "mr.ArenaMemoryResource.__init__": [arena, arena_of_half_the_memory] if DEVICE == "sim" else [arena],
    "mr.CudaAsyncMemoryResource.__init__": [async_with_an_initial_size],
}


def resources():
    cuda = mr.CudaMemoryResource()
    return {
        "plain": cuda,
        "pool": mr.PoolMemoryResource(cuda),
        "pinned": mr.PinnedHostMemoryResource(),
        "managed": mr.ManagedMemoryResource(),
        "statistics": mr.StatisticsResourceAdaptor(mr.LimitingResourceAdaptor(cuda, "1GiB")),
    }


def test_each_row_has_its_call():
    assert sorted(row["call"] for row in TABLE["python"]) == sorted(PYTHON)
    assert sorted(row["call"] for row in TABLE["c"]) == sorted(C)


@pytest.mark.parametrize("kind", ["plain", "pool", "pinned", "managed", "statistics"])
@pytest.mark.parametrize("make", [f for calls in PYTHON.values() for f in calls], ids=lambda f: f.__name__)
def test_python_asks_the_named_resource_only(make, kind, forbidden_current):
    resource = resources()[kind]
    made = make(resource)
    if isinstance(made, tenure.DeviceBuffer) and make not in (pool_with_an_initial_size, arena):
        assert made.mr.same_as(resource)


def test_the_current_resource_does_refuse(forbidden_current):
    """The net of the tests above holds: without a name each of these meets the refusing resource."""
    buffer = filled(mr.CudaMemoryResource())
    text = pickle.dumps(buffer)
    for call in (
        lambda: tenure.DeviceBuffer(size=1),
        lambda: tenure.DeviceBuffer.to_device(b"x"),
        lambda: tenure.DeviceBuffer.many([1, 2]),
        lambda: pickle.loads(text),
    ):
        with pytest.raises(forbidden_current):
            call()
    # And what the table says of these: they ask the buffer's own resource, named or not.
    buffer.resize(10 * BYTES)
    for made in (buffer.copy(), copy.copy(buffer), copy.deepcopy(buffer)):
        assert made.mr is buffer.mr
    buffer.__dlpack__(copy=True)


def test_what_allocates_nothing_asks_nobody(forbidden_current, tmp_path):
    """A walk over the rest of the surface with everything refused, the buffers' own resources too."""
    asked = []

    def count(nbytes, stream):
        asked.append(nbytes)
        return cuda.allocate(nbytes + 16, stream)

    cuda = mr.CudaMemoryResource()
    own = mr.CallbackMemoryResource(count, lambda ptr, n, s: cuda.deallocate(ptr, n + 16, s))
    buffer = filled(own)
    other = filled(own)
    stream = tenure.Stream()
    del asked[:]
    buffer.copy_to_host(bytearray(BYTES))
    buffer.copy_from_host(bytes(BYTES))
    buffer.copy_from_device(other)
    buffer.tobytes()
    buffer.record_stream(stream)
    buffer.set_stream(stream)
    view = tenure.from_cuda_array_interface(buffer)
    capsule = tenure.from_dlpack(buffer)
    del view, capsule
    stream.wait_stream(tenure.DEFAULT_STREAM)
    stream.synchronize()
    ptr, size, maker, home = buffer.detach()
    buffer = tenure.DeviceBuffer.adopt(ptr, size, mr=maker, stream=home)
    with mr.using(own):
        assert mr.get_current_device_resource() is own
    mr.LimitingResourceAdaptor(own, 1)
    mr.StatisticsResourceAdaptor(own)
    mr.PoolMemoryResource(own)
    bins = mr.BinningMemoryResource(own, 12, 14)
    bins.add_bin(1 << 20), bins.add_bin(1 << 21, own), bins.bin_mrs
    mr.CudaAsyncMemoryResource()
    assert mr.owner_of(buffer.ptr) is own
    own.info(), own.trim(), own.owns(buffer.ptr)
    other.resize(1)
    buffer.close()
    assert asked == []


# -------------------------------------------------------------------------------------------------------------------- C


class Stream(ctypes.Structure):
    _fields_ = [("raw", ctypes.c_void_p), ("object", ctypes.c_uint64)]


CURRENT = 2**64 - 1
DEFAULT = Stream(None, 0)


class Library:
    """The C functions, called as a C program calls them."""

    def __init__(self):
        path = os.environ.get("TENURE_LIBRARY") or self.loaded()
        self.library = ctypes.CDLL(path)

    @staticmethod
    def loaded():
        """The libtenure that the package has opened."""
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.split(maxsplit=5)[-1]
            if Path(path).name.startswith("libtenure.so"):
                return path
        pytest.skip("libtenure is not a library of its own here")

    def __call__(self, name, *arguments):
        status = getattr(self.library, f"tenure_{name}")(*arguments)
        assert status == 0, f"tenure_{name}: status {status}"

    def status(self, name, *arguments):
        return getattr(self.library, f"tenure_{name}")(*arguments)

    def handle(self, name, *arguments):
        out = ctypes.c_uint64()
        self(name, *arguments, ctypes.byref(out))
        return out


@pytest.fixture
def library():
    return Library()


U = ctypes.c_uint64
N = ctypes.c_size_t


def c_buffer(library, resource, size=BYTES):
    return library.handle("buffer_create", N(size), N(0), DEFAULT, U(resource))


def c_allocate(library, resource):
    out = ctypes.c_void_p()
    library("allocate", U(resource), N(BYTES), N(0), DEFAULT, ctypes.byref(out))
    library("deallocate", U(resource), out, N(BYTES), N(0), DEFAULT)


def c_try_allocate(library, resource):
    pool = c_warm_pool(library, resource)
    out = ctypes.c_void_p()
    library("try_allocate", pool, N(BYTES), N(0), DEFAULT, ctypes.byref(out))
    library("deallocate", pool, out, N(BYTES), N(0), DEFAULT)
    library("resource_release", pool)


def c_warm_pool(library, resource):
    """A pool that has memory and knows the default stream."""
    pool = library.handle("pool_create", U(resource), None)
    first = c_buffer(library, pool.value)
    library("buffer_destroy", first)
    return pool


def c_allocate_sync(library, resource):
    out = ctypes.c_void_p()
    library("allocate_sync", U(resource), N(BYTES), N(256), ctypes.byref(out))
    library("deallocate_sync", U(resource), out, N(BYTES), N(256))


def c_buffer_create(library, resource):
    library("buffer_destroy", c_buffer(library, resource))


def c_buffer_try_create(library, resource):
    pool = c_warm_pool(library, resource)
    buffer = library.handle("buffer_try_create", N(BYTES), N(0), DEFAULT, pool)
    library("buffer_destroy", buffer)
    library("resource_release", pool)


def c_buffer_resize(library, resource):
    buffer = c_buffer(library, resource)
    library("buffer_resize", buffer, N(5 * BYTES), DEFAULT)
    library("buffer_destroy", buffer)


def c_buffer_reserve(library, resource):
    buffer = c_buffer(library, resource)
    library("buffer_reserve", buffer, N(5 * BYTES), DEFAULT)
    library("buffer_destroy", buffer)


def c_buffer_shrink_to_fit(library, resource):
    buffer = c_buffer(library, resource, 5 * BYTES)
    library("buffer_resize", buffer, N(BYTES), DEFAULT)
    library("buffer_shrink_to_fit", buffer, DEFAULT)
    library("buffer_destroy", buffer)


def c_buffer_copy(library, resource):
    buffer = c_buffer(library, resource)
    copied = library.handle("buffer_copy", buffer, DEFAULT, U(resource))
    library("buffer_destroy", copied)
    library("buffer_destroy", buffer)


def c_allocate_many(library, resource):
    sizes, ptrs = (ctypes.c_size_t * 3)(BYTES, 0, BYTES), (ctypes.c_void_p * 3)()
    library("allocate_many", U(resource), N(3), sizes, N(0), DEFAULT, ptrs)
    library("deallocate_many", U(resource), N(3), ptrs, sizes, N(0), DEFAULT, None)


def c_buffer_create_many(library, resource):
    sizes, buffers = (ctypes.c_size_t * 2)(BYTES, 0), (ctypes.c_uint64 * 2)()
    library("buffer_create_many", N(2), sizes, N(0), DEFAULT, U(resource), buffers)
    for buffer in buffers:
        library("buffer_destroy", U(buffer))


def c_pool_create(library, resource):
    library("resource_release", c_warm_pool(library, resource))


def c_fixed_size_create(library, resource):
    blocks = library.handle("fixed_size_create", U(resource), None)
    library("buffer_destroy", c_buffer(library, blocks.value))
    library("resource_release", blocks)


def c_arena_create(library, resource):
    arena = library.handle("arena_create", U(resource), None)
    library("buffer_destroy", c_buffer(library, arena.value))
    library("resource_release", arena)


def c_async_resource_create(library, _):
    library("resource_release", library.handle("async_resource_create", None))


class Text(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]


def c_replay(library, _):
    log = next(iter(sorted((ROOT / "examples").rglob("*.csv"))), None)
    if log is None:
        pytest.skip("no log is here")
    options = json.dumps({"log": str(log), "resource": "pool", "repeat": 1}).encode()
    text = Text()
    status = library.status("replay", options, None, None, ctypes.byref(text))
    assert status == 0
    library("text_free", ctypes.byref(text))


C = {
    "allocate": c_allocate,
    "try_allocate": c_try_allocate,
    "allocate_sync": c_allocate_sync,
    "buffer_create": c_buffer_create,
    "buffer_try_create": c_buffer_try_create,
    "buffer_resize": c_buffer_resize,
    "buffer_reserve": c_buffer_reserve,
    "buffer_shrink_to_fit": c_buffer_shrink_to_fit,
    "buffer_copy": c_buffer_copy,
    "allocate_many": c_allocate_many,
    "buffer_create_many": c_buffer_create_many,
    "pool_create": c_pool_create,
    "fixed_size_create": c_fixed_size_create,
    "arena_create": c_arena_create,
    "async_resource_create": c_async_resource_create,
    "replay": c_replay,
}


@pytest.mark.parametrize("call", sorted(C))
def test_c_asks_the_named_resource_only(call, library, forbidden_current):
    cuda = library.handle("cuda_resource")
    C[call](library, cuda.value)
    library("resource_release", cuda)


def test_the_current_resource_refuses_c_too(library, forbidden_current):
    out = ctypes.c_uint64()
    refused = library.status("buffer_create", N(BYTES), N(0), DEFAULT, U(CURRENT), ctypes.byref(out))
    assert refused != 0 and out.value == 0
    ptr = ctypes.c_void_p()
    assert library.status("allocate", U(CURRENT), N(BYTES), N(0), DEFAULT, ctypes.byref(ptr)) != 0
    assert ptr.value is None
    cuda = library.handle("cuda_resource")
    buffer = c_buffer(library, cuda.value)
    assert library.status("buffer_copy", buffer, DEFAULT, U(CURRENT), ctypes.byref(out)) == refused
    library("buffer_destroy", buffer)
    library("resource_release", cuda)
    # A pool over the refusing resource is made, and refused when it grows.
    pool = library.handle("pool_create", U(CURRENT), None)
    assert library.status("buffer_create", N(BYTES), N(0), DEFAULT, pool, ctypes.byref(out)) == refused
    library("resource_release", pool)
    # What takes its memory at once is refused at once.
    for call in ("fixed_size_create", "arena_create"):
        assert library.status(call, U(CURRENT), None, ctypes.byref(out)) == refused
    # These take no word for the current one.
    for call, arguments in (("try_allocate", (N(BYTES), N(0), DEFAULT)), ("allocate_sync", (N(BYTES), N(0)))):
        status = library.status(call, U(CURRENT), *arguments, ctypes.byref(ptr))
        assert status not in (0, refused) and ptr.value is None


# ------------------------------------------------------------------------------------------------------------- C++, Rust


def test_cpp_asks_the_named_resource_only(library, tmp_path):
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler was found")
    program, shared = tmp_path / "calls", Path(library.library._name)
    source = ROOT / "tests/python/allocating_calls.cpp"
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}", f"-Wl,-rpath,{shared.parent}", "-pthread"]
    built = subprocess.run([*compiler.split(), source, shared, *flags, "-o", program], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and ran.stderr == "", ran.stderr
    # What needs other people's headers is called in tests/cpp/foreign, which ci/cpp-packages compiles.
    packages = ("cccl.hpp:", "thrust.hpp:", "rmm.hpp:")
    assert sorted(ran.stdout.split()) == sorted(row["call"] for row in TABLE["cpp"] if not row["call"].startswith(packages))


def test_rust_has_a_test_of_its_own():
    """crates/tenure/tests/allocating_calls.rs calls each row of Rust, and compares its rows with the table's."""
    text = (ROOT / "crates/tenure/tests/allocating_calls.rs").read_text()
    for row in TABLE["rust"]:
        assert f'("{row["call"]}",' in text
