"""PyTorch on tenure's memory.

    torch.cuda.memory.change_current_allocator(tenure.allocators.torch.tenure_torch_allocator)

or ``tenure.enable("torch", route=...)``. There are two routes:

``"process"``
    All device memory of the process, that of backward threads included, is tenure's, block by block. It must be chosen before
    PyTorch makes its first allocation, and there is no way back. ``Tensor.record_stream`` is honoured, out of memory is
    ``torch.OutOfMemoryError``, and ``torch.cuda.memory_stats`` and its like answer with tenure's numbers. What it cannot have:
    graph trees of ``torch.compile(mode="reduce-overhead")`` and memory histories, which ask PyTorch's own allocator.
``"pool"``
    PyTorch's own caching allocator stays in charge, over segments that it takes from tenure through a ``torch.cuda.MemPool``.
    It can be chosen at any time, for the current device, and be left again.

``"auto"`` is ``"process"`` where that is still possible and all of its calls can be answered with the PyTorch that is here,
else ``"pool"``; the table of `tenure.enable` says which, and why. PyTorch is imported by the first use of an allocator.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Any

from .. import mr as _mr
from .._tenure import (
    _torch_answer_cache_info,
    _torch_blocks,
    _torch_external,
    _torch_figures,
    _torch_prepare,
    _torch_reset_figures,
    _torch_resource,
    _torch_used,
)
from ._libraries import need

# Where PyTorch keeps what the process route looks up by name.
_EXCEPTIONS = "libc10.so"
_ALLOCATOR = ["libc10_cuda.so", "libtorch_cuda.so", "libtorch_python.so"]

# What the allocator is told beside malloc and free.
_SETTERS = {"set_record_stream_fn": "record_stream", "set_reset_fn": "reset"}

_lock = threading.RLock()
_functions: dict[str, int] | None = None
_process: Any = None
_segments: Any = None
# Whether somebody has taken the process route's allocator, so that questions about memory are tenure's to answer.
_handed_out = False


def _torch() -> Any:
    torch: Any = need("torch")
    if torch.version.cuda is None:
        raise RuntimeError(
            "this PyTorch was built without CUDA and has no device memory to manage: install one that was built with it, see "
            "https://pytorch.org/get-started/locally"
        )
    return torch


def _prepared() -> dict[str, int]:
    """Addresses of tenure's functions; keeps what PyTorch has of external streams in view from now on."""
    global _functions
    with _lock:
        if _functions is None:
            torch = _torch()
            _functions = _torch_prepare(_EXCEPTIONS)
            _watch_external_streams(torch)
        return _functions


def _watch_external_streams(torch: Any) -> None:
    """PyTorch's own streams live as long as the process. One that is somebody else's may end, which the engine must know."""
    kind = torch.cuda.ExternalStream
    made = kind.__new__

    def __new__(cls: Any, stream_ptr: int, *args: Any, **kwargs: Any) -> Any:
        _torch_external(int(stream_ptr))
        return made(cls, stream_ptr, *args, **kwargs)

    kind.__new__ = __new__


def _allocator_class(torch: Any) -> type[Any]:
    base: Any = torch.cuda.memory._CUDAAllocator

    class TenureAllocator(base):  # type: ignore[misc]
        """An allocator for ``torch.cuda.memory.change_current_allocator``."""

        def allocator(self) -> Any:
            """PyTorch's object. Whoever takes it is about to make it the current one."""
            global _handed_out
            _handed_out = True
            _answer_questions(_torch())
            return super().allocator()

    return TenureAllocator


def _process_allocator() -> Any:
    """The allocator of the process route. It must outlive all memory, so there is one, for ever."""
    global _process
    with _lock:
        if _process is None:
            torch, functions = _torch(), _prepared()
            made = torch._C._cuda_customAllocator(functions["malloc"], functions["free"])
            for setter, function in _SETTERS.items():
                if hasattr(made, setter):
                    getattr(made, setter)(functions[function])
            _process = _allocator_class(torch)(made)
        return _process


def _segment_allocator() -> Any:
    """PyTorch's object for the segments of a MemPool."""
    global _segments
    with _lock:
        if _segments is None:
            functions = _prepared()
            _segments = _torch()._C._cuda_customAllocator(functions["segment_malloc"], functions["free"])
        return _segments


def __getattr__(name: str) -> Any:
    if name in ("tenure_torch_allocator", "rmm_torch_allocator"):
        return _process_allocator()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def mem_pool(mr: Any = None) -> Any:
    """A ``torch.cuda.MemPool`` of the current device whose segments come from tenure, for ``torch.cuda.use_mem_pool``.

    All such pools, and the process route, share one resource: ``mr``, or what is current at each allocation of a segment.
    """
    torch = _torch()
    _choose(mr)
    return torch.cuda.MemPool(_segment_allocator())


def _choose(mr: Any) -> None:
    if mr is not None and not isinstance(mr, _mr.DeviceMemoryResource):
        raise TypeError(f"mr must be a resource of tenure.mr, not {type(mr).__name__}")
    _torch_resource(mr)
    _chosen[0] = mr


# What `_torch_resource` was told, for the figures of what is reserved.
_chosen: list[Any] = [None]


# ------------------------------------------------------------------ what PyTorch asks of its allocator


def _mine() -> bool:
    """Whether the current allocator is the process route's, as far as it can be told."""
    return _torch_used() or _PLUGS["torch"].route == "process" or (_handed_out and not _PLUGS["torch"].route)


def _figure(current: int = 0, peak: int = 0, allocated: int = 0, freed: int = 0) -> dict[str, int]:
    return {"current": current, "peak": peak, "allocated": allocated, "freed": freed}


def _of_three(figure: dict[str, int]) -> dict[str, dict[str, int]]:
    return {"all": figure, "small_pool": _figure(), "large_pool": dict(figure)}


def memory_stats(device: int) -> dict[str, Any]:
    """The process route's figures of a device, nested and named as ``torch.cuda.memory_stats_as_nested_dict`` has them.

    Allocated and active are the bytes that PyTorch asked for and holds; reserved is what the resource has of the driver, of
    which others may use a part. What belongs to PyTorch's own way of caching is 0.
    """
    figures = _torch_figures(device)
    size, count = figures["bytes"], figures["count"]
    mr = _chosen[0] if _chosen[0] is not None else _mr.get_per_device_resource(device)
    info = mr.info()
    reserved = max(info.reserved_bytes, size["all"]["current"])
    peak = max(reserved, info.peak_reserved_bytes, size["all"]["peak"])
    nothing = _of_three(_figure())
    return {
        "allocation": count,
        "active": count,
        "segment": nothing,
        "inactive_split": nothing,
        "allocated_bytes": size,
        "active_bytes": size,
        "requested_bytes": size,
        "reserved_bytes": _of_three(_figure(reserved, peak, peak, peak - reserved)),
        "inactive_split_bytes": nothing,
        "oversize_allocations": _figure(),
        "oversize_segments": _figure(),
        "reserved_bytes_by_private_pools": {},
        "max_split_size": -1,
        "num_alloc_retries": 0,
        "num_ooms": figures["failures"],
        "num_sync_all_streams": 0,
        "num_device_alloc": 0,
        "num_device_free": 0,
    }


def memory_snapshot(devices: int) -> dict[str, Any]:
    """The process route's live blocks, each as a segment of its own, as ``torch.cuda.memory_snapshot`` has them."""
    segments = []
    for device in range(devices):
        for address, size, stream in sorted(_torch_blocks(device)):
            block = {
                "address": address,
                "size": size,
                "requested_size": size,
                "state": "active_allocated",
                "frames": [],
            }
            segments.append(
                {
                    "device": device,
                    "address": address,
                    "total_size": size,
                    "allocated_size": size,
                    "active_size": size,
                    "requested_size": size,
                    "stream": stream,
                    "segment_type": "small" if size <= 1 << 20 else "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": False,
                    "frames": [],
                    "blocks": [block],
                }
            )
    return {"segments": segments, "device_traces": [[] for _ in range(devices)], "external_annotations": []}


def _answers(torch: Any) -> dict[str, Callable[..., Any]]:
    """What PyTorch's C++ says it has no answer for, by the names of `torch._C`."""

    def snapshot(*_: Any) -> dict[str, Any]:
        return memory_snapshot(torch.cuda.device_count())

    return {
        "_cuda_memoryStats": memory_stats,
        "_cuda_resetPeakMemoryStats": lambda device: _torch_reset_figures(device, False),
        "_cuda_resetAccumulatedMemoryStats": lambda device: _torch_reset_figures(device, True),
        "_cuda_memorySnapshot": snapshot,
        "_cuda_getMemoryFraction": lambda device: 1.0,
        "_cuda_isHistoryEnabled": lambda: False,
        "_accelerator_getDeviceStats": memory_stats,
        "_accelerator_resetPeakStats": lambda device: _torch_reset_figures(device, False),
        "_accelerator_resetAccumulatedStats": lambda device: _torch_reset_figures(device, True),
    }


# What `torch.cuda.memory` gets its figures from. A PyTorch that lacks one of them asks something else, which nobody answers.
_ASKED = (
    "_cuda_memoryStats",
    "_cuda_resetPeakMemoryStats",
    "_cuda_resetAccumulatedMemoryStats",
    "_cuda_memorySnapshot",
    "_cuda_setMemoryFraction",
)

# What has no answer, and what to do instead.
_UNANSWERED = {
    "_cuda_record_memory_history": "a memory history",
    "_cuda_getCheckpointState": "the state of a graph's memory, which torch.compile's graph trees want,",
    "_cuda_checkPoolLiveAllocations": "the list of a graph's blocks, which torch.compile's graph trees want,",
    "_cuda_setCheckpointPoolState": "the state of a graph's memory, which torch.compile's graph trees want,",
    "_cuda_attach_out_of_memory_observer": "an observer of out of memory",
}


def _answer_questions(torch: Any) -> None:
    """Lets tenure answer where PyTorch's pluggable allocator says that it cannot. Once."""
    for name, answer in _answers(torch).items():
        theirs = getattr(torch._C, name, None)
        if theirs is not None and not hasattr(theirs, "_tenure"):
            setattr(torch._C, name, _answered(theirs, answer))
    _refuse_fractions(torch)
    for name, what in _UNANSWERED.items():
        theirs = getattr(torch._C, name, None)
        if theirs is not None and not hasattr(theirs, "_tenure"):
            setattr(torch._C, name, _explained(theirs, what))


def _refuse_fractions(torch: Any) -> None:
    """A fraction of the device's memory, which PyTorch's pluggable allocator takes and forgets."""
    theirs = torch._C._cuda_setMemoryFraction
    if hasattr(theirs, "_tenure"):
        return

    def set_fraction(fraction: float, device: int) -> Any:
        if fraction < 1 and _mine():
            raise RuntimeError(
                "torch.cuda.set_per_process_memory_fraction limits PyTorch's own allocator, and all memory of this process is "
                "tenure's: put a tenure.mr.LimitingResourceAdaptor over the resource instead"
            )
        return theirs(fraction, device)

    set_fraction._tenure = theirs  # type: ignore[attr-defined]
    torch._C._cuda_setMemoryFraction = set_fraction


def _unsupported(error: RuntimeError) -> bool:
    # "CUDAPluggableAllocator does not yet support", or "pluggable does not yet support": the words change with the version.
    return _mine() and "luggable" in str(error) and "does not yet support" in str(error)


def _answered(theirs: Callable[..., Any], answer: Callable[..., Any]) -> Callable[..., Any]:
    def ask(*args: Any, **kwargs: Any) -> Any:
        try:
            return theirs(*args, **kwargs)
        except RuntimeError as error:
            if not _unsupported(error):
                raise
        return answer(*args, **kwargs)

    ask._tenure = theirs  # type: ignore[attr-defined]
    return ask


def _explained(theirs: Callable[..., Any], what: str) -> Callable[..., Any]:
    def ask(*args: Any, **kwargs: Any) -> Any:
        try:
            return theirs(*args, **kwargs)
        except RuntimeError as error:
            if not _unsupported(error):
                raise
            raise RuntimeError(
                f"{what} is PyTorch's own allocator's to give, and all memory of this process is tenure's: start again with "
                'tenure.enable("torch", route="pool")'
            ) from error

    ask._tenure = theirs  # type: ignore[attr-defined]
    return ask


# ------------------------------------------------------------------ for tenure.enable

_PROCESS_LACKS = (
    "torch.compile's graph trees, memory histories and handles for other processes: they ask PyTorch's own allocator",
    "torch.cuda.set_per_process_memory_fraction: put a tenure.mr.LimitingResourceAdaptor over the resource instead",
)
_POOL_LACKS = (
    "memory that PyTorch cached before: it stays where it is",
    "tensors with record_stream: PyTorch may keep their memory until the pool is turned off",
)


class _Plug:
    def __init__(self) -> None:
        self.route = ""
        # The pools that are on, by device.
        self.pools: dict[int, Any] = {}
        # PyTorch's function that puts one at the end of its list.
        self.begin: Any = None
        self.leaves = False
        # A pool of PyTorch's own, by which its order of pools was found out.
        self.probe: Any = None
        self.lacks: tuple[str, ...] = ()

    def turn_on(self, mr: Any, route: str) -> tuple[str, Any, tuple[str, ...]]:
        torch = _torch()
        if not self.route and _torch_used():
            # Somebody has made our allocator the current one by hand.
            self.route, self.lacks = "process", self.lacking()
        if self.route == "process":
            if route == "pool":
                raise RuntimeError("PyTorch is on the process route, and has no way back: choose the pool in a new process")
            _choose(mr)
            return "process", mr, self.lacks
        if route == "auto":
            route, why = self.choose(torch)
        else:
            why = ()
        if route == "process":
            self.lacks = (*why, *self.process(torch, mr))
        else:
            self.lacks = (*why, *self.pool(torch, mr))
        self.route = route
        return route, mr, self.lacks

    def choose(self, torch: Any) -> tuple[str, tuple[str, ...]]:
        if self.pools:
            return "pool", ()
        if torch.cuda.is_initialized():
            return "pool", ("route pool, since PyTorch has begun to use CUDA and its allocator cannot be changed any more",)
        lacks = [name for name in _SETTERS if not hasattr(_process_allocator()._allocator, name)]
        lacks += [f"torch._C.{name}" for name in _ASKED if not hasattr(torch._C, name)]
        if not _prepared()["out_of_memory"]:
            lacks.append("c10::OutOfMemoryError")
        if lacks:
            return "pool", (f"route pool, since this PyTorch lacks what the process route needs: {', '.join(lacks)}",)
        return "process", ()

    def process(self, torch: Any, mr: Any) -> tuple[str, ...]:
        allocator = _process_allocator()
        _choose(mr)
        try:
            torch.cuda.memory.change_current_allocator(allocator)
        except RuntimeError as error:
            raise RuntimeError(
                "PyTorch has allocated device memory already, and its allocator cannot be changed any more: call "
                'tenure.enable("torch") before the first tensor on a GPU, or choose route="pool"'
            ) from error
        return self.lacking()

    def lacking(self) -> tuple[str, ...]:
        """Makes the allocator that is current answer what it can, and says what it cannot."""
        lacks = list(_PROCESS_LACKS)
        if not hasattr(_process_allocator()._allocator, "set_record_stream_fn"):
            lacks.append("Tensor.record_stream: this PyTorch does not tell it, so keep tensors until other streams are done")
        if not _prepared()["out_of_memory"]:
            lacks.append("torch.OutOfMemoryError: this PyTorch does not show its exception, and a RuntimeError is raised")
        if not _torch_answer_cache_info(_ALLOCATOR):
            lacks.append("torch.backends.cudnn.benchmark: this PyTorch's allocator cannot say what is free; leave it off")
        return tuple(lacks)

    def pool(self, torch: Any, mr: Any) -> tuple[str, ...]:
        torch.cuda.init()
        device = torch.cuda.current_device()
        lacks = [f"devices other than {device}: call tenure.enable again with another one current", *_POOL_LACKS]
        _choose(mr)
        # For all threads, those of backward too; use_mem_pool is for one.
        begin = getattr(torch._C, "_cuda_beginAllocateToPool", None)
        if begin is None:
            begin = torch._C._cuda_beginAllocateCurrentThreadToPool
            lacks.append("other threads, those of backward too: this PyTorch routes the memory of one thread only")
        self.begin = begin = getattr(begin, "_tenure", begin)
        if device not in self.pools:
            pool = torch.cuda.MemPool(_segment_allocator())
            begin(device, pool.id)
            self.pools[device] = pool
            if self.probe is None:
                self.probe = torch.cuda.MemPool()
                if _first_wins(torch, device, self.probe, begin):
                    _step_back(torch)
            if not self.leaves:
                # PyTorch's pools must be left while PyTorch is whole.
                atexit.register(self.leave)
                self.leaves = True
        return tuple(lacks)

    def leave(self) -> None:
        torch = _torch()
        for device, pool in self.pools.items():
            _end(torch)(device, pool.id)
            torch._C._cuda_releasePool(device, pool.id)
        self.pools.clear()
        # PyTorch ends the process where a pool of its own is dropped while another one is on.
        self.probe = None

    def move_back(self) -> None:
        """Puts the pools that are on behind all others."""
        torch = _torch()
        for device, pool in self.pools.items():
            _end(torch)(device, pool.id)
            # Each begin takes a reference to the pool, and no end gives it back.
            self.begin(device, pool.id)
            torch._C._cuda_releasePool(device, pool.id)

    def turn_off(self) -> str:
        if self.route == "process":
            return "on: PyTorch has no way back from the process route"
        self.leave()
        self.route = ""
        return ""


def _end(torch: Any) -> Any:
    """PyTorch's function that takes a pool from its list. Its name before PyTorch 2.8 is the second one."""
    return getattr(torch._C, "_cuda_endAllocateToPool", None) or torch._C._cuda_endAllocateCurrentStreamToPool


def _first_wins(torch: Any, device: int, other: Any, begin: Callable[..., Any]) -> bool:
    """Whether of two pools that are on PyTorch takes memory from the one that was turned on first.

    That depends on its version (2.11 takes the last one) and is said nowhere, so that it is tried with ``other``, a pool of
    PyTorch's own, while ours is on.
    """
    begin(device, other.id)
    try:
        probe = torch.empty(512, dtype=torch.uint8, device=f"cuda:{device}")
        address = probe.data_ptr()
        of = [
            tuple(segment.get("segment_pool_id", ()))
            for segment in torch.cuda.memory_snapshot()
            if segment["address"] <= address < segment["address"] + segment["total_size"]
        ]
        del probe
    finally:
        _end(torch)(device, other.id)
        torch._C._cuda_releasePool(device, other.id)
    return of != [tuple(other.id)]


def _step_back(torch: Any) -> None:
    """Lets others' pools go before ours, where the first one of PyTorch's list whose condition holds gives the memory. Once.

    Ours holds for all, so that the pool of a graph's capture would never be asked: the graph's memory would be given to others
    after the capture, and its next replay would write into theirs. So whenever another one is put into the list, ours moves to
    the end.
    """
    names = ("_cuda_beginAllocateToPool", "_cuda_beginAllocateCurrentThreadToPool", "_cuda_beginAllocateCurrentStreamToPool")
    for place in (torch._C, torch.cuda.memory):
        for name in names:
            theirs = getattr(place, name, None)
            if theirs is not None and not hasattr(theirs, "_tenure"):
                setattr(place, name, _followed(theirs))
    graph = torch.cuda.CUDAGraph
    if not hasattr(graph.capture_begin, "_tenure"):
        graph.capture_begin = _followed(graph.capture_begin)


def _followed(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def begin(*args: Any, **kwargs: Any) -> Any:
        done = theirs(*args, **kwargs)
        _PLUGS["torch"].move_back()
        return done

    begin._tenure = theirs  # type: ignore[attr-defined]
    return begin


_PLUGS = {"torch": _Plug()}
