"""One wrong kernel under compute-sanitizer, in memory of tenure's pool and of RMM's: who finds it.

    python sanitizer.py                 needs the package tenure, CuPy, a GPU and compute-sanitizer; RMM where it is there
    python sanitizer.py child KIND      what runs under compute-sanitizer

Each child makes two blocks of 1000 bytes and runs kernels that write to them, each under a name of its own:

    right        writes what was allocated                                  must not be reported
    overrun      writes one byte more                                       an error, which a checker should find
    after_free   writes to a block that was freed                           an error, which a checker should find
    again        writes to a block that came after that free                must not be reported
    busy         still writes when its block is freed, in stream order      right, and yet see docs/tools.md

The rows `mapped` speak of no pool: they ask compute-sanitizer, by hand, whether it takes a heap in memory that is mapped
(cuMemMap), over one physical handle and over two. As long as it does not, tenure's pool takes plain pieces under it.

The exit code is 0 when tenure's pool has every error found and nothing reported that is right; `busy` and the rows `mapped`
are figures, not a condition.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

NO_RMM = "no wheels of RMM"
KERNELS = ("right", "overrun", "after_free", "again", "busy")
BYTES = 1000
SOURCE = "".join(
    f"""
extern "C" __global__ void {name}(unsigned char *p, unsigned long long n, long long cycles)
{{
    for (long long start = clock64(); clock64() - start < cycles;) {{ }}
    for (unsigned long long i = threadIdx.x; i < n; i += blockDim.x) p[i] = 7;
}}
"""
    for name in KERNELS
)


# --------------------------------------------------------------------------------------------------------- under the tool


def tenure_pool() -> tuple[Callable[[int], int], Callable[[int, int], None]]:
    import tenure

    pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource(), 64 << 20)
    return pool.allocate, pool.deallocate


def rmm_pool() -> tuple[Callable[[int], int], Callable[[int, int], None]]:
    import rmm

    pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=64 << 20)
    return pool.allocate, pool.deallocate


class Client:
    """A client of NVTX 3 by hand: the core's tables, and the memory extension."""

    def __init__(self) -> None:
        tool = ctypes.CDLL(os.environ["NVTX_INJECTION64_PATH"])
        sizes = (0, 16, 9, 15, 7, 16, 7)
        self.slots = [(ctypes.c_void_p * 16)() for _ in sizes]
        self.tables = []
        for slots, size in zip(self.slots, sizes, strict=True):
            table = (ctypes.c_void_p * 17)()
            for i in range(1, size):
                table[i] = ctypes.addressof(slots) + 8 * i
            self.tables.append(table)

        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_uint))
        def module_table(module, table, size):
            if not 0 < module < len(sizes):
                return 0
            if table:
                table[0] = ctypes.addressof(self.tables[module])
            if size:
                size[0] = sizes[module]
            return 1

        @ctypes.CFUNCTYPE(None, ctypes.c_uint)
        def set_version(version):
            pass

        callbacks = (ctypes.c_void_p * 2)(16, ctypes.cast(module_table, ctypes.c_void_p).value)
        version = (ctypes.c_void_p * 3)(24, 3, ctypes.cast(set_version, ctypes.c_void_p).value)

        @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint)
        def export_table(number):
            return {1: ctypes.addressof(callbacks), 3: ctypes.addressof(version)}.get(number)

        self.kept = (tool, module_table, set_version, callbacks, version, export_table)
        print("core taken:", bool(tool.InitializeInjectionNvtx2(export_table)))
        self.domain = None
        if self.slots[5][12]:
            create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(self.slots[5][12])
            self.domain = create(b"probe")
        self.memory = (ctypes.c_void_p * 63)()
        segment = (ctypes.c_size_t * 3)(1, 63, ctypes.addressof(self.memory))
        # Four 16-bit numbers: version, size, module, compatibility; then one segment, and no functions back.
        module = (ctypes.c_size_t * 5)(3 | 40 << 16 | 1 << 32 | 0x102 << 48, 1, ctypes.addressof(segment), 0, 0)
        print("extension taken:", bool(tool.InitializeInjectionNvtxExtension(ctypes.byref(module))))

    def heap(self, base: int, size: int) -> int:
        region = (ctypes.c_size_t * 2)(size, base)
        description = (ctypes.c_size_t * 6)(0x102 | 48 << 16, 1 | 1 << 32, 16, ctypes.addressof(region), 0, 0)
        register = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(self.memory[0])
        heap = register(self.domain, ctypes.addressof(description)) or 0
        print(f"heap at {base:#x}: {heap:#x}")
        return heap

    def register(self, heap: int, ptr: int, size: int) -> None:
        region = (ctypes.c_size_t * 2)(size, ptr)
        batch = (ctypes.c_size_t * 6)(0x102 | 48 << 16 | 1 << 32, heap, 1, 16, ctypes.addressof(region), 0)
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(self.memory[3])(self.domain, ctypes.addressof(batch))

    def unregister(self, ptr: int) -> None:
        region = (ctypes.c_size_t * 1)(ptr)
        batch = (ctypes.c_size_t * 4)(0x102 | 32 << 16 | 1 << 32, 1, 8, ctypes.addressof(region))
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(self.memory[5])(self.domain, ctypes.addressof(batch))


def mapped(handles: int) -> tuple[Callable[[int], int], Callable[[int, int], None]]:
    """Blocks one after the other, the first across the border of the first two handles where there are two."""
    from cuda.bindings import driver

    def call(function, *arguments):
        code, *rest = function(*arguments)
        if code != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{function.__name__}: {code}")
        return rest[0] if rest else None

    page = 2 << 20
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 0
    base = int(call(driver.cuMemAddressReserve, page * handles, page, 0, 0))
    for i in range(handles):
        handle = call(driver.cuMemCreate, page, properties, 0)
        call(driver.cuMemMap, base + i * page, page, 0, handle, 0)
    access = driver.CUmemAccessDesc()
    access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = 0
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    call(driver.cuMemSetAccess, base, page * handles, [access], 1)
    client = Client()
    heap = client.heap(base, page * handles)
    at = base + (page - 512 if handles > 1 else 0)

    def allocate(size: int) -> int:
        nonlocal at
        ptr, at = at, at + 4096
        client.register(heap, ptr, size)
        return ptr

    return allocate, lambda ptr, size: client.unregister(ptr)


KINDS: dict[str, Callable[[], tuple[Callable[[int], int], Callable[[int, int], None]]]] = {
    "tenure": tenure_pool,
    "rmm": rmm_pool,
    "mapped-one": lambda: mapped(1),
    "mapped-two": lambda: mapped(2),
}


def child(kind: str) -> None:
    import cupy
    import numpy

    cupy.cuda.runtime.free(0)
    module = cupy.RawModule(code=SOURCE)
    kernels = {name: module.get_function(name) for name in KERNELS}

    def launch(name: str, ptr: int, size: int, cycles: int = 0) -> None:
        print(f"{name}: {size} bytes at {ptr:#x}", flush=True)
        kernels[name]((1,), (32,), (numpy.uint64(ptr), numpy.uint64(size), numpy.int64(cycles)))

    def run(name: str, ptr: int, size: int) -> None:
        launch(name, ptr, size)
        # The tool ends the kernel that is wrong, and the program goes on.
        cupy.cuda.runtime.deviceSynchronize()

    allocate, deallocate = KINDS[kind]()
    first, second = allocate(BYTES), allocate(BYTES)
    run("right", first, BYTES)
    run("right", second, BYTES)
    run("overrun", first, BYTES + 1)
    deallocate(second, BYTES)
    run("after_free", second, BYTES)
    third = allocate(BYTES // 2)
    run("again", third, BYTES // 2)
    launch("busy", third, BYTES // 2, cycles=200_000_000)
    deallocate(third, BYTES // 2)
    cupy.cuda.runtime.deviceSynchronize()
    deallocate(first, BYTES)
    print("all kernels ran")


# ------------------------------------------------------------------------------------------------------- around the tool


def reported(text: str) -> set[str]:
    """The kernels that a report names."""
    found = set()
    for report in re.split(r"(?m)^=+ (?=Invalid |Program hit )", text)[1:]:
        match = re.search(r" at (?:0x[0-9a-f]+ in )?(\w+)", report)
        if match and match.group(1) in KERNELS:
            found.add(match.group(1))
    return found


def under_tool(tool: str, kind: str, options: list[str]) -> str:
    """Runs a child under the tool; gives what both said."""
    if kind == "rmm" and importlib.util.find_spec("rmm") is None:
        return NO_RMM
    command = [tool, "--tool", "memcheck", "--nvtx", "yes", "--destroy-on-device-error", "kernel", *options]
    command += [sys.executable, __file__, "child", kind]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, check=False)
        return f"{done.stdout}\nexit code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        return f"{said.decode() if isinstance(said, bytes) else said}\nended after {error.timeout:.0f} s"


def main() -> int:
    tool = os.environ.get("COMPUTE_SANITIZER") or shutil.which(
        "compute-sanitizer", path=os.environ["PATH"] + ":/usr/local/cuda/bin"
    )
    if tool is None:
        print("skipped: no compute-sanitizer")
        return 0
    if importlib.util.find_spec("cupy") is None:
        print("skipped: no CuPy, which compiles and runs the kernels")
        return 0
    rows: list[tuple[str, str, list[str]]] = [
        ("tenure pool", "tenure", []),
        ("tenure pool, --force-blocking-launches", "tenure", ["--force-blocking-launches"]),
        ("rmm pool", "rmm", []),
        ("mapped, a heap of one handle", "mapped-one", []),
        ("mapped, a heap over two handles", "mapped-two", []),
    ]
    print(f"{'':42}" + "".join(f"{name:>12}" for name in KERNELS))
    failed = 0
    # Most of the time goes into starting Python and the tool: all at once.
    with ThreadPoolExecutor(len(rows)) as pool:
        runs = [pool.submit(under_tool, tool, kind, options) for _, kind, options in rows]
    for (title, kind, options), run in zip(rows, runs, strict=True):
        text = run.result()
        sys.stderr.write(f"\n##### {title} {' '.join(options)}\n{text}\n")
        found = reported(text)
        if "all kernels ran" not in text:
            print(f"{title:42}{text if text == NO_RMM else 'did not run to its end: see the log':>48}")
            failed |= kind == "tenure"
            continue
        words = []
        for name in KERNELS:
            wrong = name in ("overrun", "after_free")
            words.append(("found" if name in found else "missed") if wrong else ("REPORTED" if name in found else "-"))
        print(f"{title:42}" + "".join(f"{word:>12}" for word in words))
        if kind == "tenure":
            failed |= not {"overrun", "after_free"} <= found or bool(found & {"right", "again"})
    return int(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2])
    else:
        sys.exit(main())
