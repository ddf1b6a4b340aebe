"""CuPy, PyTorch, Numba, a C++ library and tenure's own buffers in one process: they allocate, hand memory to each other without a
copy and free, in a random order, on several threads and streams, while the current resource is replaced and dropped.

    python mix.py                    every order of imports, each in a process of its own (--seed, --seconds, --library FILE)
    python mix.py --one ORDER        one of them, in this process

Each block gets a pattern of its owner's (a kernel of CuPy's writes it, or the C++ library), and whoever drops it, on whatever
thread and in whatever library's hands it is by then, finds it again first. A block that another stream used is either waited for
or recorded (`record_stream`), and now and then the stream is slow, so that memory that is given away too early is overwritten
before it is looked at. At the end every resource that was current, and is known still, counts nothing alive, no free was wrong,
and the process ends well, with some blocks alive.

ORDER names the libraries that are imported before tenure, ``none`` or ``cupy+numba``; ``late-`` before it enables them after all
imports, otherwise tenure.enable comes right after tenure's import. On the simulated device (TENURE_DEVICE=sim) there are no
kernels: CuPy's allocator, Numba's manager, the C++ library and tenure's buffers are driven by themselves. ``--spoil`` writes a
byte where it does not belong, ``--early`` drops blocks that a slow stream uses without saying so: both must fail.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import importlib.util
import itertools
import os
import random
import subprocess
import sys
import threading
import time
from typing import Any

MIB = 1 << 20
SIZES = (1, 100, 4000, 70_000, MIB, 5 * MIB)
SIM = os.environ.get("TENURE_DEVICE", "").strip().lower() == "sim"
MODULES = {"cupy": "cupy", "torch": "torch", "numba": "numba.cuda"}

KERNELS = r"""
__device__ unsigned char wanted(unsigned long long at, unsigned seed) {
    unsigned word = (unsigned)at * 2654435761u ^ seed;
    return (unsigned char)(word >> 15 ^ word);
}
extern "C" __global__ void fill(unsigned char* data, unsigned long long count, unsigned seed, long long ticks) {
    for (long long start = clock64(); clock64() - start < ticks;) {}
    for (unsigned long long at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x)
        data[at] = wanted(at, seed);
}
extern "C" __global__ void check(unsigned char const* data, unsigned long long count, unsigned seed, long long ticks, unsigned* wrong) {
    for (long long start = clock64(); clock64() - start < ticks;) {}
    for (unsigned long long at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x)
        if (data[at] != wanted(at, seed)) atomicAdd(wrong, 1u);
}
"""


def there(name: str) -> bool:
    try:
        return importlib.util.find_spec({"numba": "numba_cuda"}.get(name, name)) is not None
    except ImportError:
        return False


class Native:
    """The C++ library."""

    def __init__(self, path: str) -> None:
        from tenure import bindings

        self._library = ctypes.CDLL(path)
        self._bindings = bindings

    def _call(self, name: str, *arguments: Any) -> None:
        why = ctypes.create_string_buffer(512)
        if getattr(self._library, name)(*arguments, why, ctypes.c_size_t(512)) != 0:
            raise RuntimeError(f"{name}: {why.value.decode()}")

    def _stream(self, stream: Any) -> Any:
        class Value(ctypes.Structure):
            _fields_ = (("raw", ctypes.c_void_p), ("object", ctypes.c_uint64))

        return Value(*self._bindings.borrow_stream(stream))

    def make(self, count: int, seed: int, stream: Any) -> Any:
        """A buffer with its pattern, made and written in C++ under what is current there."""
        out = ctypes.c_uint64()
        current = ctypes.c_uint64(self._bindings.borrow_resource(None))
        self._call(
            "mixed_make", ctypes.c_size_t(count), ctypes.c_uint32(seed), self._stream(stream), current, ctypes.byref(out)
        )
        return self._bindings.wrap_buffer(out.value)

    def write(self, ptr: int, count: int, seed: int, stream: Any) -> None:
        self._call("mixed_write", ctypes.c_void_p(ptr), ctypes.c_size_t(count), ctypes.c_uint32(seed), self._stream(stream))

    def wrong(self, ptr: int, count: int, seed: int, stream: Any) -> int:
        """How many bytes are not their owner's."""
        out = ctypes.c_size_t()
        self._call(
            "mixed_check",
            ctypes.c_void_p(ptr),
            ctypes.c_size_t(count),
            ctypes.c_uint32(seed),
            self._stream(stream),
            ctypes.byref(out),
        )
        return out.value

    def free(self, buffer: Any) -> None:
        """Frees a buffer in C++."""
        self._call("mixed_free", ctypes.c_uint64(self._bindings.take_buffer(buffer)))


class Block:
    """What one library holds: its object, the address, and what its owner wrote there."""

    __slots__ = ("count", "kind", "object", "ptr", "seed")

    def __init__(self, kind: str, held: Any, ptr: int, count: int, seed: int) -> None:
        self.kind, self.object, self.ptr, self.count, self.seed = kind, held, ptr, count, seed


class Mix:
    """What both devices share: resources that come and go, threads, and the balance at the end."""

    def __init__(self, options: argparse.Namespace) -> None:
        import tenure

        self.tenure = tenure
        self.options = options
        self.native = Native(options.library)
        self.stop = threading.Event()
        self.wrong: list[Any] = []
        self.counted: list[Any] = []
        self.made = dict.fromkeys(self.kinds(), 0)
        self.handed: list[Block] = []
        self.replaced = 0
        self.lock = threading.Lock()

    def kinds(self) -> tuple[str, ...]:
        raise NotImplementedError

    def fresh(self, chance: random.Random, keep: bool) -> Any:
        """A resource of some kind under a counter, which is known until the end or dropped as soon as it is replaced."""
        mr = self.tenure.mr
        kind = chance.randrange(4)
        plain = mr.CudaMemoryResource()
        if kind == 0:
            base: Any = plain
        elif kind == 1:
            base = mr.PoolMemoryResource(plain, 0)
        elif kind == 2:
            base = mr.BinningMemoryResource(mr.PoolMemoryResource(plain, 0), 8, 16)
        else:
            base = mr.LimitingResourceAdaptor(mr.PoolMemoryResource(plain, 0), 8 << 30)
        counter = mr.StatisticsResourceAdaptor(base)
        if keep:
            self.counted.append(counter)
        return counter

    def replace(self) -> None:
        chance = random.Random(self.options.seed)
        try:
            while not self.stop.wait(0.01):
                self.tenure.mr.set_current_device_resource(self.fresh(chance, keep=self.replaced % 3 == 0))
                self.replaced += 1
                if self.replaced % 10 == 0:
                    gc.collect()
        except BaseException as error:
            self.wrong.append(error)

    def run(self) -> None:
        self.tenure.mr.set_current_device_resource(self.fresh(random.Random(0), keep=True))
        changer = threading.Thread(target=self.replace)
        threads = [threading.Thread(target=self.guarded, args=(number,)) for number in range(self.options.threads)]
        changer.start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.stop.set()
        changer.join()

    def guarded(self, number: int) -> None:
        try:
            self.work(number)
        except BaseException as error:
            self.wrong.append(error)

    def work(self, number: int) -> None:
        raise NotImplementedError

    def keep(self, chance: random.Random, live: list[Block], block: Block) -> Block | None:
        """Keeps a block, hands one to whichever thread comes next, takes one that was handed: which one is to be dropped."""
        live.append(block)
        with self.lock:
            self.made[block.kind] += 1
        if len(live) < 8:
            return None
        block = live.pop(chance.randrange(len(live)))
        if chance.randrange(3):
            return block
        self.settle()
        with self.lock:
            self.handed.append(block)
            return self.handed.pop(chance.randrange(len(self.handed)))

    def settle(self) -> None:
        """What this thread has written is there for all."""

    def balance(self) -> str:
        """Nothing is alive, nothing was wrong: the last line, or an exception."""
        assert not self.wrong, self.wrong[:5]
        mr = self.tenure.mr
        mr.reset_current_device_resource()
        self.handed.clear()
        gc.collect()
        left = [each.allocation_counts.current_count for each in self.counted]
        assert sum(left) == 0, f"alive at the end, by resource: {left}"
        assert mr.misuse_count() == 0, "a free was wrong"
        assert self.replaced > 2, "the current resource was not replaced"
        assert all(self.made.values()), f"a library made nothing: {self.made}"
        made = ", ".join(f"{kind} {count}" for kind, count in self.made.items())
        return f"{made} blocks; {self.replaced} resources; none overwritten, none left, none freed wrongly"


class Simulated(Mix):
    """Without kernels: each library's allocator by itself, and the C++ library writes and reads the patterns."""

    def kinds(self) -> tuple[str, ...]:
        return (*(name for name in ("cupy", "numba") if there(name)), "C++", "tenure")

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        if "cupy" in self.made:
            self.cupy: Any = importlib.import_module("tenure.allocators.cupy")
        if "numba" in self.made:
            self.numba: Any = importlib.import_module("tenure.allocators.numba")
        # What the first pool of a device makes once and keeps is no leak.
        with self.tenure.mr.using(self.tenure.mr.PoolMemoryResource(self.tenure.mr.CudaMemoryResource(), 0)):
            self.tenure.DeviceBuffer(size=1).close()
        gc.collect()
        self.before = self.tenure.sim.used(0)

    def allocate(self, kind: str, count: int, seed: int, stream: Any, manager: Any) -> Block:
        if kind == "cupy":
            pointer = self.cupy.tenure_cupy_allocator(count)
            return Block(kind, pointer, pointer.ptr, count, seed)
        if kind == "numba":
            memory = manager.memalloc(count)
            return Block(kind, memory, int(memory.device_pointer), count, seed)
        if kind == "C++":
            buffer = self.native.make(count, seed, stream)
        else:
            buffer = self.tenure.DeviceBuffer(size=count, stream=stream)
        return Block(kind, buffer, buffer.ptr, count, seed)

    def work(self, number: int) -> None:
        chance = random.Random(self.options.seed * 1000 + number)
        stream = self.tenure.Stream(non_blocking=bool(number % 2))
        context = type("Context", (), {})()
        manager = self.numba.manager()(context=context) if "numba" in self.made else None
        live: list[Block] = []
        end = time.monotonic() + self.options.seconds
        while time.monotonic() < end:
            kind = chance.choice(self.kinds())
            block = self.allocate(kind, chance.choice(SIZES[:5]), chance.getrandbits(32), stream, manager)
            # Memory of the default stream is written and read there, as Numba and CuPy do on a thread that set none.
            on = stream if kind in ("C++", "tenure") else self.tenure.DEFAULT_STREAM
            if kind != "C++":
                self.native.write(block.ptr, block.count, block.seed, on)
            if self.options.spoil and chance.randrange(20) == 0:
                self.native.write(block.ptr, 1, block.seed ^ 1, on)
            dropped = self.keep(chance, live, block)
            del block
            if dropped is not None:
                self.drop(chance, dropped, stream)
        for each in live:
            self.drop(chance, each, stream)
        with self.lock:
            rest, self.handed = self.handed, []
        for each in rest:
            self.drop(chance, each, stream)
        live.clear()

    def drop(self, chance: random.Random, block: Block, stream: Any) -> None:
        if self.native.wrong(block.ptr, block.count, block.seed, stream):
            self.wrong.append((block.kind, block.count))
        if block.kind in ("C++", "tenure") and chance.randrange(2):
            self.native.free(block.object)
        block.object = None

    def balance(self) -> str:
        said = super().balance()
        assert self.tenure.sim.violations() == 0, "a rule of the driver was broken"
        self.counted.clear()
        gc.collect()
        used = self.tenure.sim.used(0) - self.before
        assert used == 0, f"{used} bytes of the device are still taken"
        return said


class OnGpu(Mix):
    """With the libraries themselves."""

    def kinds(self) -> tuple[str, ...]:
        return (*(name for name in ("cupy", "torch", "numba") if there(name)), "C++", "tenure")

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        import cupy

        self.cupy = cupy
        self.hook: Any = importlib.import_module("tenure.allocators.cupy")
        module = cupy.RawModule(code=KERNELS)
        self.fill, self.check = module.get_function("fill"), module.get_function("check")
        # Counts for each thread what it found wrong; not of the resources that come and go.
        with self.tenure.mr.using(self.tenure.mr.CudaMemoryResource()):
            self.found = cupy.zeros(options.threads, dtype="u4")
        cupy.cuda.Device().synchronize()
        if "torch" in self.made:
            self.torch: Any = importlib.import_module("torch")
        if "numba" in self.made:
            self.cuda: Any = importlib.import_module("numba.cuda")
        self.threads = threading.local()

    def streams(self, number: int) -> tuple[Any, Any]:
        """A thread's stream of CuPy's and of PyTorch's: the same one, made by the one or the other, or two."""
        if "torch" not in self.made:
            return self.cupy.cuda.Stream(non_blocking=bool(number % 2)), None
        way = number % 3
        if way == 0:
            theirs = self.torch.cuda.Stream()
            return self.cupy.cuda.ExternalStream(theirs.cuda_stream), theirs
        mine = self.cupy.cuda.Stream(non_blocking=bool(number % 2))
        return mine, self.torch.cuda.ExternalStream(mine.ptr) if way == 1 else self.torch.cuda.Stream()

    def settle(self) -> None:
        self.threads.stream.synchronize()

    def launch(self, kernel: Any, *arguments: Any) -> None:
        kernel((64,), (128,), arguments)

    def allocate(self, kind: str, count: int, seed: int, ticks: int) -> Block:
        """A block of some library's, filled on this thread's stream of CuPy's, ready in the order of that stream."""
        u4, u8, i8 = (getattr(self.cupy, name) for name in ("uint32", "uint64", "int64"))
        if kind == "C++":
            held: Any = self.native.make(count, seed, self.threads.ours)
            return Block(kind, held, held.ptr, count, seed)
        if kind == "cupy":
            held = self.cupy.empty(count, dtype="u1")
            ptr = held.data.ptr
        elif kind == "torch":
            held = self.torch.empty(count, dtype=self.torch.uint8, device="cuda")
            ptr = held.data_ptr()
            # It may be used in the order of PyTorch's stream.
            if self.threads.torch.cuda_stream != self.threads.stream.ptr:
                self.threads.torch.synchronize()
        elif kind == "numba":
            held = self.cuda.device_array(count, dtype="u1")
            ptr = held.__cuda_array_interface__["data"][0]
            self.cupy.cuda.Stream.null.synchronize()
        else:
            held = self.tenure.DeviceBuffer(size=count, stream=self.threads.ours)
            ptr = held.ptr
        self.launch(self.fill, u8(ptr), u8(count), u4(seed), i8(ticks))
        return Block(kind, held, ptr, count, seed)

    def view(self, chance: random.Random, block: Block) -> Any:
        """The same memory in another library's hands."""
        held = block.object
        takers = [self.cupy.asarray if block.kind == "numba" else self.cupy.from_dlpack]
        if block.kind != "numba":
            takers.append(self.tenure.from_dlpack)
            if "torch" in self.made:
                takers.append(self.torch.from_dlpack)
        if "numba" in self.made and block.kind in ("cupy", "torch"):
            takers.append(self.cuda.as_cuda_array)
        taken = chance.choice(takers)(held)
        at = next(
            (
                get(taken)
                for get in (
                    lambda o: o.data.ptr,
                    lambda o: o.data_ptr(),
                    lambda o: o.ptr,
                    lambda o: o.device_ctypes_pointer.value,
                )
                if _answers(get, taken)
            ),
            None,
        )
        assert at == block.ptr, f"{block.kind} memory was copied: {at} is not {block.ptr}"
        return taken

    def work(self, number: int) -> None:
        chance = random.Random(self.options.seed * 1000 + number)
        if "numba" in self.made:
            self.cuda.current_context()
        stream, theirs = self.streams(number)
        self.threads.number, self.threads.stream, self.threads.torch = number, stream, theirs
        self.threads.ours = self.tenure.Stream(stream)
        if theirs is None:
            with stream:
                self.turns(number, chance)
        else:
            with stream, self.torch.cuda.stream(theirs):
                self.turns(number, chance)
        stream.synchronize()
        self.threads.__dict__.clear()

    def turns(self, number: int, chance: random.Random) -> None:
        live: list[Block] = []
        end = time.monotonic() + self.options.seconds
        while time.monotonic() < end:
            kind = chance.choice(self.kinds())
            slow = 200_000 if chance.randrange(30) == 0 else 0
            block = self.allocate(kind, chance.choice(SIZES), chance.getrandbits(32), slow)
            if self.options.spoil and chance.randrange(20) == 0:
                self.launch(self.fill, *self.numbers(block.ptr, 1, block.seed ^ 1, 0))
            dropped = self.keep(chance, live, block)
            del block
            if dropped is not None:
                self.drop(number, chance, dropped)
        with self.lock:
            rest, self.handed = self.handed, []
        for each in live + rest:
            self.drop(number, chance, each)
        live.clear()

    def numbers(self, ptr: int, count: int, seed: int, ticks: int) -> tuple[Any, ...]:
        cupy = self.cupy
        return cupy.uint64(ptr), cupy.uint64(count), cupy.uint32(seed), cupy.int64(ticks)

    def drop(self, number: int, chance: random.Random, block: Block) -> None:
        """Finds the pattern again, in the hands of some library, and lets go."""
        stream = self.threads.stream
        taken = self.view(chance, block) if chance.randrange(2) else None
        if self.options.early:
            ticks = 2_000_000
        else:
            ticks = 200_000 if chance.randrange(20) == 0 else 0
        self.launch(self.check, *self.numbers(block.ptr, block.count, block.seed, ticks), self.found[number:])
        recorded = chance.randrange(2) and block.kind != "numba"
        if self.options.early:
            pass
        elif recorded:
            self.record(block, stream)
        else:
            stream.synchronize()
        if chance.randrange(2):
            # The one that made it goes first, or the one that took it.
            block.object = None
            del taken
        elif taken is None and block.kind in ("C++", "tenure"):
            self.native.free(block.object)
        else:
            taken = None
            block.object = None

    def record(self, block: Block, stream: Any) -> None:
        if block.kind == "cupy":
            self.hook.record_stream(block.object, stream)
        elif block.kind == "torch":
            block.object.record_stream(self.torch.cuda.ExternalStream(stream.ptr))
            # A stream that is PyTorch's by another name, or that ends with this thread, is none that it may keep.
            if self.threads.torch.cuda_stream != stream.ptr:
                stream.synchronize()
        else:
            block.object.record_stream(stream)

    def balance(self) -> str:
        self.cupy.cuda.Device().synchronize()
        found = self.found.get().tolist()
        assert not any(found), f"bytes that were not their owner's, by thread: {found}"
        if "torch" in self.made and self.options.route == "pool":
            self.tenure.disable("torch")
            self.torch.cuda.empty_cache()
        if "numba" in self.made:
            self.cuda.current_context().deallocations.clear()
        said = super().balance()
        # Alive at the exit, on purpose.
        self.left = [self.cupy.zeros(1000), self.tenure.DeviceBuffer(size=1000)]
        if "torch" in self.made:
            self.left.append(self.torch.zeros(1000, device="cuda"))
        if "numba" in self.made:
            self.left.append(self.cuda.device_array(1000))
        return said


def _answers(get: Any, held: Any) -> bool:
    try:
        get(held)
    except (AttributeError, TypeError):
        return False
    return True


def one(options: argparse.Namespace) -> None:
    """One process: imports in their order, the mix, the balance."""
    order = options.one.removeprefix("late-")
    first = [] if order == "none" else order.split("+")
    here = [name for name in MODULES if there(name) and not (SIM and name == "torch")]
    for name in first:
        importlib.import_module(MODULES[name])
    import tenure

    def enable() -> None:
        tenure.enable(*here, route=options.route)

    late = options.one.startswith("late-")
    if not late:
        enable()
    for name in here:
        importlib.import_module(MODULES[name])
    if late:
        enable()
    mix: Mix = Simulated(options) if SIM else OnGpu(options)
    mix.run()
    print(mix.balance())
    sys.modules["kept until the end"] = mix  # type: ignore[assignment]


def orders() -> list[str]:
    """Each library before and after tenure, and tenure.enable before and after the imports."""
    here = [name for name in MODULES if there(name) and not (SIM and name == "torch")]
    chosen = ["+".join(some) or "none" for count in range(len(here) + 1) for some in itertools.combinations(here, count)]
    return chosen + [f"late-{order}" for order in (chosen[0], chosen[-1])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.path.join(os.environ.get("MIX_LIBRARIES", "build/mix"), "libmixed.so")
    parser.add_argument("--library", default=default, help="the C++ library (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("MIX_SEED", "1")))
    parser.add_argument("--seconds", type=float, default=5.0, help="for each order (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--route", default="process", choices=("process", "pool"), help="PyTorch's")
    parser.add_argument("--one", metavar="ORDER", help="only this order of imports, in this process")
    parser.add_argument("--spoil", action="store_true", help="writes where it must not: must fail")
    parser.add_argument("--early", action="store_true", help="drops what a stream still uses, unsaid: must fail on a GPU")
    options = parser.parse_args()
    if options.one:
        one(options)
        return 0
    plans = [(order, options.route) for order in orders()]
    if there("torch") and not SIM:
        plans.append(("none", "pool"))
    bad = 0
    for number, (order, route) in enumerate(plans):
        command = [sys.executable, __file__, "--one", order, "--route", route, "--library", options.library]
        command += ["--seed", str(options.seed + number), "--seconds", str(options.seconds), "--threads", str(options.threads)]
        command += ["--spoil"] * options.spoil + ["--early"] * options.early
        environment = {**os.environ, "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0", "NUMBA_CUDA_LOG_LEVEL": "ERROR"}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=options.seconds * 10 + 120, env=environment)
            good = done.returncode == 0 and "tenure:" not in done.stderr and "Traceback" not in done.stderr
            said = (done.stdout.strip().splitlines() or ["it said nothing"])[-1] if good else done.stdout + done.stderr
            said = said if good else f"FAILED with {done.returncode} (seed {options.seed + number}): {said}"
        except subprocess.TimeoutExpired:
            good, said = False, f"FAILED (seed {options.seed + number}): it did not end"
        bad += not good
        print(f"imported before tenure: {order:20} {route:8} {said}", flush=True)
    print(f"{len(plans) - bad} orders of imports passed, {bad} failed")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
