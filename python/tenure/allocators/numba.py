"""Numba-CUDA and numba-cuda-mlir on tenure's memory: a plug-in of their External Memory Management.

    numba.cuda.set_memory_manager(tenure.allocators.numba.TenureNumbaManager)    # what is current, at each allocation
    numba.cuda.set_memory_manager(tenure.allocators.numba.manager(mr))           # always mr

or ``tenure.enable("numba")``, or ``NUMBA_CUDA_MEMORY_MANAGER=tenure.allocators.numba`` in the environment. Numba tells its
memory manager no stream: memory is allocated, and freed, in the order of the default stream, which is the one that Numba's
own manager promises it to. Out of memory is Numba's ``CudaAPIError`` and a ``MemoryError`` in one. Numba is imported by the
first use of a class of this module.
"""

from __future__ import annotations

import importlib
import sys
import weakref
from typing import Any

from .. import _errors
from .. import mr as _mr
from .._tenure import DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM, _library_buffer
from ._libraries import need

__all__ = ["RMMNumbaManager", "TenureNumbaManager", "manager"]  # noqa: F822 (two are made by __getattr__)


class _Kind:
    """A library with Numba's memory management: where its modules are."""

    def __init__(self, library: str, driver: str, config: str) -> None:
        self.library = library
        self.driver_module = driver
        self.config_module = config
        self.base: type[Any] | None = None
        # By the number of the resource's object. A class goes with the last who uses it, and its resource with it.
        self.made: weakref.WeakValueDictionary[int, type[Any]] = weakref.WeakValueDictionary()

    @property
    def driver(self) -> Any:
        need(self.library)
        return importlib.import_module(self.driver_module)


_NUMBA = _Kind("numba", "numba.cuda.cudadrv.driver", "numba.cuda.core.config")
_MLIR = _Kind(
    "numba-cuda-mlir",
    "numba_cuda_mlir.numba_cuda.cudadrv.driver",
    "numba_cuda_mlir.numba_cuda.core.config",
)


def _stream(kind: _Kind) -> Any:
    """The default stream as this process's Numba has it."""
    try:
        config: Any = importlib.import_module(kind.config_module)
    except ImportError:
        config = getattr(kind.driver, "config", None)
    if getattr(config, "CUDA_PER_THREAD_DEFAULT_STREAM", 0):
        return PER_THREAD_DEFAULT_STREAM
    return DEFAULT_STREAM


def _make_base(kind: _Kind) -> type[Any]:
    """The plug-in, over the base class of one of the libraries."""
    if kind.base is not None:
        return kind.base
    driver = kind.driver
    host_only: Any = driver.HostOnlyCUDAMemoryManager
    with_handles: Any = driver.GetIpcHandleMixin
    binding, pointer_class, info_class = driver.binding, driver.MemoryPointer, driver.MemoryInfo
    api_error: Any = driver.CudaAPIError
    stream = _stream(kind)
    out_of_memory = int(binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY)

    class OutOfMemory(api_error, MemoryError):  # type: ignore[misc]
        """Numba's own error for a lack of memory, which is a `MemoryError` too; tenure's is its cause."""

    class Manager(with_handles, host_only):  # type: ignore[misc]
        """A memory manager whose device memory comes from tenure."""

        resource: Any = None
        """The resource; ``None`` for what is current at each allocation."""

        def initialize(self) -> None:
            # Host memory is Numba's own, and is freed late: how much may wait is measured by the device's memory.
            if self.deallocations.memory_capacity == driver._SizeNotSet:
                self.deallocations.memory_capacity = self.get_memory_info().total

        def memalloc(self, size: int) -> Any:
            try:
                buffer = _library_buffer(kind.library, size, stream, self.resource)
            except _errors.OutOfMemoryError as error:
                raise OutOfMemory(out_of_memory, str(error)) from error
            # The list alone holds the buffer: to clear it is to free the memory, into the resource that made it.
            return pointer_class(weakref.proxy(self.context), binding.CUdeviceptr(buffer.ptr), size, finalizer=[buffer].clear)

        def get_ipc_handle(self, memory: Any) -> Any:
            try:
                return super().get_ipc_handle(memory)
            except api_error as error:
                owner = _mr.owner_of(int(memory.handle))
                what = f"a {type(owner).__name__}" if owner is not None else "a resource that is not tenure's"
                raise RuntimeError(
                    f"this memory has no handle for another process: it was made by {what}, and the driver gives such handles "
                    "for memory of cuMemAlloc alone. Allocate what is shared from tenure.mr.CudaMemoryResource(), or a pool with "
                    'pages="driver", for example inside `with tenure.mr.using(...)`'
                ) from error

        def get_memory_info(self) -> Any:
            free, total = driver.driver.cuMemGetInfo()
            return info_class(free=free, total=total)

        @property
        def interface_version(self) -> int:
            return 1

    Manager.__name__ = Manager.__qualname__ = "TenureNumbaManager"
    Manager.__module__ = __name__
    kind.base = Manager
    return Manager


def _manager(kind: _Kind, mr: Any) -> type[Any]:
    base = _make_base(kind)
    if mr is None:
        return base
    if not isinstance(mr, _mr.DeviceMemoryResource):
        raise TypeError(f"mr must be a resource of tenure.mr, not {type(mr).__name__}")
    made = kind.made.get(id(mr))
    if made is None or made.resource is not mr:
        made = kind.made[id(mr)] = type(base.__name__, (base,), {"resource": mr, "__module__": __name__})
    return made


def manager(mr: Any = None, *, library: str = "numba") -> type[Any]:
    """A class for ``numba.cuda.set_memory_manager`` that always uses ``mr``; without one, `TenureNumbaManager`.

    ``library="numba-cuda-mlir"`` makes it for that library. The class keeps ``mr``, and is made once for each that is in use.
    """
    kinds = {"numba": _NUMBA, "numba-cuda-mlir": _MLIR}
    if library not in kinds:
        raise ValueError(f"library is {library!r}; it must be one of {', '.join(map(repr, kinds))}")
    return _manager(kinds[library], mr)


def _numba_memory_manager(context: Any = None) -> Any:
    """What ``NUMBA_CUDA_MEMORY_MANAGER=tenure.allocators.numba`` names: both libraries read that variable and look here."""
    # A context is of the library that asks; the probe before the first one is told by its caller.
    caller = sys._getframe(1).f_globals.get("__name__", "") if context is None else type(context).__module__
    return _make_base(_MLIR if caller.startswith("numba_cuda_mlir") else _NUMBA)(context=context)


def __getattr__(name: str) -> Any:
    # Classes over Numba's own, which is imported when one is asked for.
    if name in ("TenureNumbaManager", "RMMNumbaManager"):
        return _make_base(_NUMBA)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# ------------------------------------------------------------------ for tenure.enable


def _contexts(kind: _Kind) -> list[Any]:
    """The contexts that the library has made so far."""
    known: dict[int, Any] = getattr(kind.driver.driver, "devices", {})
    contexts = (getattr(device, "primary_context", None) for device in known.values())
    return [context for context in contexts if context is not None]


def _install(kind: _Kind, chosen: type[Any]) -> None:
    """Makes a class the memory manager, also of the contexts that there are: what is out is freed by who made it."""
    driver = kind.driver
    driver.set_memory_manager(chosen)
    for context in _contexts(kind):
        old = context.memory_manager
        if type(old) is chosen:
            continue
        successor = chosen(context=context)
        # How much host memory may wait for its end, which a manager learns when its context begins.
        successor.deallocations.memory_capacity = old.deallocations.memory_capacity
        with driver.driver.get_active_context() as active:
            if active:
                old.deallocations.clear()
        context.memory_manager = successor


class _Plug:
    def __init__(self, kind: _Kind) -> None:
        self.kind = kind
        self.before: Any = None
        self.mine: Any = None

    def turn_on(self, mr: Any, route: str) -> tuple[str, Any, tuple[str, ...]]:
        chosen = _manager(self.kind, mr)
        driver = self.kind.driver
        now = driver._memory_manager
        _install(self.kind, chosen)
        if self.mine is None or now is not self.mine:
            self.before = now
        self.mine = chosen
        return (
            "memory manager",
            mr,
            (
                "the stream of an allocation: Numba does not say it, so memory is allocated on the default stream",
                "pinned and managed memory: Numba's own",
            ),
        )

    def turn_off(self) -> str:
        driver = self.kind.driver
        mine, before, self.mine, self.before = self.mine, self.before, None, None
        if driver._memory_manager is not mine:
            return "the memory manager is somebody else's by now, and was left as it is"
        _install(self.kind, before or driver.NumbaCUDAMemoryManager)
        return ""


_PLUGS = {"numba": _Plug(_NUMBA), "numba-cuda-mlir": _Plug(_MLIR)}
