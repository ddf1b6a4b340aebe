"""Memory resources, and the table of current ones.

A resource allocates and frees memory in the order of streams. It lives while an object, a buffer, an adaptor or the table
names it, in whatever language; the last one out closes it. The names and signatures are RMM's; what differs is said below.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, Self, final

from typing_extensions import disjoint_base

from . import Stream, _Address, _AnyStream, _Size

__all__ = [
    "AlignedResourceAdaptor",
    "ArenaMemoryResource",
    "BinningMemoryResource",
    "CallbackMemoryResource",
    "CudaAsyncManagedMemoryResource",
    "CudaAsyncMemoryResource",
    "CudaAsyncViewMemoryResource",
    "CudaMemoryResource",
    "DeviceMemoryResource",
    "FailureCallbackResourceAdaptor",
    "FixedSizeMemoryResource",
    "LimitingResourceAdaptor",
    "LoggingResourceAdaptor",
    "ManagedMemoryResource",
    "MemoryInfo",
    "PinnedHostMemoryResource",
    "PoolMemoryResource",
    "PrefetchResourceAdaptor",
    "SamHeadroomMemoryResource",
    "Statistics",
    "StatisticsResourceAdaptor",
    "SystemMemoryResource",
    "ThreadSafeResourceAdaptor",
    "TrackingResourceAdaptor",
    "UpstreamResourceAdaptor",
    "available_device_memory",
    "get_current_device_resource",
    "get_per_device_resource",
    "misuse_count",
    "owner_of",
    "reset_current_device_resource",
    "reset_per_device_resource",
    "set_current_device_resource",
    "set_per_device_resource",
    "using",
]

@disjoint_base
class DeviceMemoryResource:
    """The base of all resources. It makes none itself.

    **Identity.** Whoever asks for a resource (``get_current_device_resource()``, ``buffer.mr``, ``get_upstream()``,
    ``owner_of``) gets the same Python object while one is alive, and otherwise a new one of the class that fits, also when
    C++, C or Rust made the resource. Two objects of one resource are equal.

    **Subclassing.** Pools, adaptors and callback resources may be subclassed; a constructor of one's own calls
    ``super().__init__(...)``, and until then every method raises ``TypeError``. Overriding ``allocate`` in Python changes what
    Python callers of that method get, not what buffers, adaptors and other languages do: they call the engine's resource. For
    a resource of your own functions make a ``CallbackMemoryResource``; an object of a class that derives from this base alone
    has no resource, and ``mr=`` refuses it.
    """

    def __init__(self) -> None: ...
    def allocate(self, nbytes: _Size, stream: _AnyStream | None = None, alignment: int = 256) -> int:
        """Allocates and returns the address, usable in the order of ``stream`` (default: ``DEFAULT_STREAM``). 0 bytes are
        address 0 and ask nobody.

        The resource lives until the block is freed: a block that is never freed keeps it for the life of the process. A
        ``DeviceBuffer`` frees by itself.
        """
    def deallocate(self, ptr: _Address, nbytes: _Size, stream: _AnyStream | None = None, alignment: int = 256) -> None:
        """Frees in the order of ``stream``. What does not fit (address, size, alignment, resource, freed already) is an
        ``OwnershipError`` and nothing happens."""
    def allocate_many(self, sizes: Iterable[_Size], stream: _AnyStream | None = None, alignment: int = 256) -> list[int]:
        """Allocates one block for each of ``sizes`` in one call: all of them, or an exception and none. 0 bytes are address 0.
        Each is a block like any other."""
    def deallocate_many(
        self,
        ptrs: Iterable[_Address],
        sizes: Iterable[_Size],
        stream: _AnyStream | None = None,
        alignment: int = 256,
    ) -> None:
        """Frees blocks in one call, in the order of ``stream``. Each is checked: one that does not fit stays as it is, every
        other is freed, and the ``OwnershipError`` is that of the first, whose place is in its text."""
    def owns(self, ptr: _Address) -> bool:
        """Whether a live block that was asked of this very resource contains the address."""
    def info(self) -> MemoryInfo:
        """The figures."""
    def trim(self, keep_bytes: _Size = 0) -> int:
        """Gives back what is cached, down to ``keep_bytes``. Returns how many bytes went."""
    def same_as(self, other: object) -> bool:
        """Whether both stand for one resource."""
    @property
    def id(self) -> int:
        """A number that no other resource of the process ever has."""
    @property
    def kind(self) -> str:
        """The engine's word for what it is, such as ``"pool"``."""
    @property
    def device(self) -> int | None:
        """The device, or ``None`` when it follows from the stream of each call."""
    @property
    def is_device_accessible(self) -> bool:
        """Whether kernels can use the memory."""
    @property
    def is_host_accessible(self) -> bool:
        """Whether the host can read and write it in place."""
    @property
    def is_managed(self) -> bool:
        """Whether it migrates on demand."""
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __lt__(self, value: Any, /) -> bool: ...
    def __le__(self, value: Any, /) -> bool: ...
    def __gt__(self, value: Any, /) -> bool: ...
    def __ge__(self, value: Any, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> Any: ...

class UpstreamResourceAdaptor(DeviceMemoryResource):
    """The base of the resources that take their memory from another one. It makes none itself."""

    def __init__(self, upstream_mr: DeviceMemoryResource) -> None: ...
    @property
    def upstream_mr(self) -> DeviceMemoryResource | None:
        """The upstream."""
    def get_upstream(self) -> DeviceMemoryResource | None:
        """The upstream."""

@final
class CudaMemoryResource(DeviceMemoryResource):
    """Plain device memory (``cuMemAlloc``), on the device of the stream of each call. One per process: the constructor gives
    the same object while one is alive. It is the first entry of the table."""

    def __new__(cls) -> Self: ...
    def __init__(self) -> None: ...

@final
class ManagedMemoryResource(DeviceMemoryResource):
    """Memory that migrates between host and devices. One per process."""

    def __new__(cls) -> Self: ...
    def __init__(self) -> None: ...

@final
class PinnedHostMemoryResource(DeviceMemoryResource):
    """Page-locked memory of the host, which devices can use. One per process."""

    def __new__(cls) -> Self: ...
    def __init__(self) -> None: ...

@final
class SystemMemoryResource(DeviceMemoryResource):
    """Memory of the system's allocator. One per process."""

    def __new__(cls) -> Self: ...
    def __init__(self) -> None: ...

class CudaAsyncMemoryResource(DeviceMemoryResource):
    """Stream-ordered memory from a driver pool of its own."""

    def __init__(
        self,
        initial_pool_size: _Size | None = None,
        release_threshold: _Size | None = None,
        enable_ipc: bool = False,
        enable_fabric: bool = False,
        *,
        device: int | None = None,
        stream_outlives_buffer: bool = False,
    ) -> None:
        """``release_threshold``: what the driver keeps at a synchronisation (default: everything). ``stream_outlives_buffer``:
        states that streams given as bare addresses outlive every buffer that names them; without it such streams are refused
        for buffers."""
    def pool_handle(self) -> int:
        """The driver's pool (``CUmemoryPool``)."""
    @property
    def export_handle_type(self) -> Literal["fd", "fabric", "fd+fabric"] | None:
        """How other processes can be given the memory (``enable_ipc``, ``enable_fabric``)."""

class CudaAsyncViewMemoryResource(DeviceMemoryResource):
    """Stream-ordered memory from somebody else's driver pool, which must outlive the resource."""

    def __init__(self, pool_handle: _Address, *, device: int | None = None) -> None:
        """``pool_handle``: an integer, or an object of cuda.bindings. ``device`` defaults to the current one."""
    def pool_handle(self) -> int:
        """The driver's pool (``CUmemoryPool``)."""

class CudaAsyncManagedMemoryResource(DeviceMemoryResource):
    """Stream-ordered managed memory from the default pool of managed memory of a device, which keeps what is free from now on.
    ``NotImplementedError`` (a ``RuntimeError``) before CUDA 13 and on devices that do not use managed memory together with the
    host."""

    def __init__(self, *, device: int | None = None) -> None:
        """``device`` defaults to the current one."""
    def pool_handle(self) -> int:
        """The driver's pool (``CUmemoryPool``)."""

class SamHeadroomMemoryResource(DeviceMemoryResource):
    """Memory of the system's allocator that is at home on the device of each request as far as that has more than ``headroom``
    bytes free, and on the host beyond.

    A hint: where devices cannot use memory of the host, it is that of ``SystemMemoryResource``.
    """

    def __init__(self, headroom: _Size) -> None:
        """``headroom``: the bytes of each device that are left to others."""
    @property
    def headroom(self) -> int:
        """The bytes of each device that are left to others."""
    @property
    def hints(self) -> bool:
        """Whether devices can use memory of the host, so that the driver is told anything at all."""

class PoolMemoryResource(UpstreamResourceAdaptor):
    """A pool: requests are served from memory that it holds, in stream order, and it grows by need."""

    def __init__(
        self,
        upstream_mr: DeviceMemoryResource,
        initial_pool_size: _Size | None = None,
        maximum_pool_size: _Size | None = None,
        *,
        release_threshold: _Size | None = None,
        prefer: Literal["concurrency", "footprint"] = "concurrency",
        device: int | None = None,
        remap: bool = True,
        decay_ms: int = 0,
        chunk_size: _Size | None = None,
        grow_ahead: bool = False,
        export_handle_type: Literal["fd", "fabric", "fd+fabric"] | None = None,
        pages: Literal["own", "driver"] | None = None,
        peers: Sequence[int] = (),
        rdma: bool = False,
    ) -> None:
        """``initial_pool_size``: taken at once, or an error (default: nothing; RMM takes half of the free memory).
        ``maximum_pool_size``: a hard limit (default: what the device has). ``release_threshold``: ``trim`` keeps at least this
        many idle bytes. ``prefer``: what comes first when a stream's own memory does not suffice, growth (``"concurrency"``) or
        another stream's memory and a wait for it (``"footprint"``). ``device`` defaults to the current one. ``remap``: idle pages
        may be mapped a second time where a larger range is needed; no for users whose network cards keep what they know of an address. ``decay_ms``: pages idle for so many milliseconds are given back by themselves (0:
        never). ``chunk_size``: the unit of growth, a power of two of 2 MiB to 1 GiB (default: what suits). ``grow_ahead``: a
        thread grows the pool after it had to grow, so that nobody waits for the next growth. ``export_handle_type``: how other
        processes can be given the memory (``DeviceBuffer.export_handle``); ``NotImplementedError`` where the device cannot.
        ``pages``: ``"driver"`` takes plain allocations from the upstream instead of mapping pages of the pool's own, which
        legacy handles need. ``peers``: other devices whose kernels and copies may use the memory; ``cudaDeviceEnablePeerAccess``
        says nothing for it. ``rdma``: network cards can be given the memory. Both are ``NotImplementedError`` where the devices
        cannot, or where the pool maps no pages of its own."""
    def pool_size(self) -> int:
        """Bytes that the pool holds from its upstream or the device."""
    @property
    def own_ranges(self) -> bool:
        """Whether it maps address ranges of its own. If not (the device cannot, or the upstream is not the plain resource), it
        takes chunks through its upstream."""
    @property
    def export_handle_type(self) -> Literal["fd", "fabric", "fd+fabric"] | None:
        """How other processes can be given the memory. ``tenure.sharing.exports(pool)`` counts legacy handles too."""
    def graph_bytes(self) -> int:
        """Bytes of them that belong to captured graphs."""

class FixedSizeMemoryResource(UpstreamResourceAdaptor):
    """Blocks of one size, taken from the upstream in chunks of many. A request that is larger than a block is a ``ValueError``.

    ``info()`` counts whole blocks. A free is checked to the byte: it names the size that was asked for.
    """

    def __init__(
        self,
        upstream_mr: DeviceMemoryResource,
        block_size: _Size = 1048576,
        blocks_to_preallocate: int = 128,
        *,
        device: int | None = None,
    ) -> None:
        """``block_size``: rounded up to a multiple of 256. ``blocks_to_preallocate``: taken at once, or an error, and as many
        at a time later; 0: none at first, and one after the other. ``device`` defaults to the current one."""
    @property
    def block_size(self) -> int:
        """Bytes of each block."""

class BinningMemoryResource(UpstreamResourceAdaptor):
    """Sends each request to the smallest bin that is large enough, and what no bin takes to the upstream.

    Bins may be added at any time: a block goes home to whoever made it, whatever bins there are by then. The bins that are
    made here take nothing before their first use, and then 128 blocks, or 32 MiB, at a time (RMM takes 128 blocks at once).
    """

    def __init__(
        self,
        upstream_mr: DeviceMemoryResource,
        min_size_exponent: int = -1,
        max_size_exponent: int = -1,
        *,
        device: int | None = None,
    ) -> None:
        """A bin of ``2**n`` bytes for each ``n`` from ``min_size_exponent`` to ``max_size_exponent``; both -1: none.
        ``device``: where the bins made here lie; defaults to the current one."""
    def add_bin(self, allocation_size: _Size, bin_resource: DeviceMemoryResource | None = None) -> None:
        """Adds a bin for requests of up to ``allocation_size`` bytes, rounded up to a multiple of 256. ``bin_resource`` serves
        it and is held; by default it is a ``FixedSizeMemoryResource`` with blocks of that size over the upstream. A size that
        has a bin keeps it where no resource is given; with one, the new bin serves the size from now on, and blocks of the
        old one go home to the old one."""
    @property
    def bin_mrs(self) -> list[DeviceMemoryResource]:
        """The bins' resources, the smallest bin first."""

class ArenaMemoryResource(UpstreamResourceAdaptor):
    """Memory of one size, taken at once, that many threads and streams share in stream order. It never grows."""

    def __init__(
        self,
        upstream_mr: DeviceMemoryResource,
        arena_size: _Size | None = None,
        dump_log_on_failure: bool = False,
        *,
        device: int | None = None,
    ) -> None:
        """``arena_size``: taken at once, or an error, and at least 1 MiB; defaults to half of the free memory of the device.
        ``dump_log_on_failure``: each request that cannot be served leaves the state of the arena in
        ``tenure_arena_memory_dump.log`` in the working directory. ``device`` defaults to the current one."""
    @property
    def arena_size(self) -> int:
        """Bytes of the arena."""

class LimitingResourceAdaptor(UpstreamResourceAdaptor):
    """Refuses what would take more than ``allocation_limit`` bytes from its upstream at once."""

    def __init__(self, upstream_mr: DeviceMemoryResource, allocation_limit: _Size) -> None: ...
    def get_allocated_bytes(self) -> int:
        """Bytes that are handed out."""
    def get_allocation_limit(self) -> int:
        """The limit."""

class TrackingResourceAdaptor(UpstreamResourceAdaptor):
    """Keeps a list of the blocks that are out, with the stack of each allocation where that is wanted.

    Stacks show the Python frames first, then the native ones, whose names are looked up when the list is asked for (seconds
    the first time). Keeping one costs microseconds, and takes the interpreter lock on threads that Python knows.
    """

    def __init__(self, upstream_mr: DeviceMemoryResource, capture_stacks: bool = False) -> None: ...
    @property
    def capture_stacks(self) -> bool:
        """Whether stacks are kept."""
    def get_allocated_bytes(self) -> int:
        """Bytes that are out."""
    def get_outstanding_allocations(self) -> list[tuple[int, int, str]]:
        """The blocks that are out, by address: address, bytes, and the stack (empty where stacks are not kept)."""
    def get_outstanding_allocations_str(self) -> str:
        """The same as text: ``0x7f0000000000: 1024 B`` and a line end for each block, its stack behind it where there is one.
        Empty when nothing is out."""
    def log_outstanding_allocations(self) -> None:
        """Hands that text to ``logging.getLogger("tenure")`` at level ``DEBUG``."""

@disjoint_base
class FailureCallbackResourceAdaptor(UpstreamResourceAdaptor):
    """Asks a function before a request fails for want of memory: ``callback(nbytes)`` returns whether to try again.

    **When.** Only out of memory asks, whoever says so: a ``CudaError``, an ``OwnershipError`` or another exception of the
    upstream goes straight to the caller. The function is called on the thread that asks for memory, perhaps on several at
    once, without a lock, and may allocate and free. A request that it makes through this very resource does not ask it again.

    **Trying again has an end.** ``True`` is believed for as long as something becomes free. A try before which nothing has
    become better than at any failure of this request (no fewer live bytes in the upstream, no larger free block, no more free
    memory of the device) is idle, and 100 idle tries in a row end the request with its ``MemoryError``, which says so. A
    function that has to wait until others free waits by itself and then returns.

    **Exceptions.** What the function raises, ``KeyboardInterrupt`` included, is what the caller gets, as the same object.
    Once the interpreter ends (tenure's ``atexit`` hook) it is not called any more: the request fails.

    **Ownership.** The resource owns the function: it stays as long as a buffer, an adaptor, the table or another language needs
    the resource. A cycle through it is collected as for ``CallbackMemoryResource``.
    """

    def __init__(self, upstream_mr: DeviceMemoryResource, callback: Callable[[int], object]) -> None: ...
    @property
    def callback(self) -> Callable[[int], object] | None:
        """The function; ``None`` where another language made the resource."""

class PrefetchResourceAdaptor(UpstreamResourceAdaptor):
    """Moves memory that migrates (managed, or of the host where devices can use that) to the device of each request's stream.

    A hint and nothing else: over memory that does not migrate, where the device or the driver lacks it, and on a stream that
    is capturing, the memory is handed out as it is.
    """

    def __init__(self, upstream_mr: DeviceMemoryResource) -> None: ...
    @property
    def hints(self) -> bool:
        """Whether memory of the upstream migrates, so that the driver is told anything at all."""
    @property
    def told(self) -> int:
        """How often the driver was told."""

class AlignedResourceAdaptor(UpstreamResourceAdaptor):
    """Raises the alignment of what is large enough. The upstream aligns: no byte is asked for beyond the request. (RMM has this
    in C++ only.)"""

    def __init__(self, upstream_mr: DeviceMemoryResource, alignment: _Size = 256, alignment_threshold: _Size = 0) -> None:
        """``alignment``: a power of two up to 2 MiB; what is below 256 is 256. ``alignment_threshold``: blocks of fewer bytes
        are left as they are."""
    @property
    def alignment(self) -> int:
        """The alignment."""
    @property
    def alignment_threshold(self) -> int:
        """The bytes from which on blocks are aligned to it."""

class ThreadSafeResourceAdaptor(UpstreamResourceAdaptor):
    """One call at a time for an upstream of user functions that cannot take more; every resource of tenure's own can. The
    functions may come back to this resource on the same thread. (RMM has this in C++ only, and there they wait for ever.)"""

    def __init__(self, upstream_mr: DeviceMemoryResource) -> None: ...

class LoggingResourceAdaptor(UpstreamResourceAdaptor):
    """Writes a row of CSV for each allocation and free that goes through: RMM's columns first
    (``Thread,Time,Action,Pointer,Size,Stream``), then device, day, monotonic nanoseconds, stream id, outcome and tag. Each row
    is in the file at once, also when the process is killed; ``tenure replay`` replays it.

    >>> import os, tempfile, tenure
    >>> folder = tempfile.mkdtemp()
    >>> log = tenure.mr.LoggingResourceAdaptor(tenure.mr.CudaMemoryResource(), os.path.join(folder, "run.csv"))
    >>> buffer = tenure.DeviceBuffer(size=1000, mr=log)
    >>> log.flush()
    >>> with open(log.get_file_name()) as rows:
    ...     print(rows.readlines()[1].split(",")[2:5:2])
    ['allocate', '1000']
    """

    def __init__(self, upstream_mr: DeviceMemoryResource, log_file_name: str | os.PathLike[str] | None = None) -> None:
        """``log_file_name``: ``.devN``, with the number of the device, is put before its extension; without a name the
        environment variable ``RMM_LOG_FILE`` gives it. The file is emptied; adaptors that name a file which this process is
        writing share it as it is. ``ValueError`` where it cannot be written or another process writes it; nothing was
        created."""
    def flush(self) -> None:
        """Ends the file behind its last row. Until then spaces may follow it, inside its last field."""
    def get_file_name(self) -> str:
        """The absolute name of the file."""

class StatisticsResourceAdaptor(UpstreamResourceAdaptor):
    """Counts what goes through."""

    def __init__(self, upstream_mr: DeviceMemoryResource) -> None: ...
    @property
    def allocation_counts(self) -> Statistics:
        """The counters, since the innermost ``push_counters``."""
    def push_counters(self) -> Statistics:
        """Starts a nested set of counters; returns the enclosing ones."""
    def pop_counters(self) -> Statistics:
        """Ends the nested set and returns it; the enclosing one takes it in."""

@disjoint_base
class CallbackMemoryResource(DeviceMemoryResource):
    """A resource of two Python functions, which it owns: they live as long as a buffer, an adaptor, the table or another
    language needs them.

    ``allocate_func(nbytes, stream) -> int`` returns an address aligned to 256 bytes, or raises. Whatever it raises,
    ``KeyboardInterrupt`` included, comes back to the caller as the same object, through any stack of adaptors and languages.

    ``deallocate_func(ptr, nbytes, stream)`` frees. What it raises goes to ``sys.unraisablehook``; the block counts as freed.

    Both are called on any thread, with no lock of tenure's held, and may allocate. A callback that allocates from its own
    resource more than 32 deep gets an error. The stream is valid during the call. Once the interpreter ends (tenure's
    ``atexit`` hook), neither is called: allocations are errors, frees do nothing.

    **Cycles.** ``self.mr = CallbackMemoryResource(self.allocate, self.free)`` is a cycle through the engine. It is collected
    when this object is all that names the resource: no live block, no adaptor, no entry of the table, no other language.
    Otherwise the functions stay, and stay whole.
    """

    def __init__(
        self,
        allocate_func: Callable[[int, Stream], int],
        deallocate_func: Callable[[int, int, Stream], object],
        *,
        device_accessible: bool = True,
        host_accessible: bool = False,
    ) -> None:
        """``device_accessible`` and ``host_accessible`` say what the memory can do."""
    @property
    def allocate_func(self) -> Callable[[int, Stream], int]:
        """The function that allocates."""
    @property
    def deallocate_func(self) -> Callable[[int, int, Stream], object]:
        """The function that frees."""

@final
class MemoryInfo:
    """The figures of a resource, in bytes and in blocks."""

    __match_args__: tuple[
        Literal["live_bytes"],
        Literal["cached_bytes"],
        Literal["reserved_bytes"],
        Literal["largest_free_bytes"],
        Literal["peak_live_bytes"],
        Literal["peak_reserved_bytes"],
        Literal["live_count"],
        Literal["unproven_bytes"],
        Literal["device_proofs"],
        Literal["own_ranges"],
    ]
    def __new__(
        cls,
        live_bytes: int,
        cached_bytes: int,
        reserved_bytes: int,
        largest_free_bytes: int,
        peak_live_bytes: int,
        peak_reserved_bytes: int,
        live_count: int,
        unproven_bytes: int,
        device_proofs: int,
        own_ranges: int,
    ) -> Self: ...
    @property
    def live_bytes(self) -> int:
        """Handed out and not given back."""
    @property
    def cached_bytes(self) -> int:
        """Held ready for the next request."""
    @property
    def reserved_bytes(self) -> int:
        """Taken from the device or the upstream."""
    @property
    def largest_free_bytes(self) -> int:
        """The largest single request that could be served from what is cached."""
    @property
    def peak_live_bytes(self) -> int:
        """The highest ``live_bytes`` so far."""
    @property
    def peak_reserved_bytes(self) -> int:
        """The highest ``reserved_bytes`` so far."""
    @property
    def live_count(self) -> int:
        """Blocks handed out and not given back."""
    @property
    def unproven_bytes(self) -> int:
        """Free bytes that other streams may not have before the device is waited for."""
    @property
    def device_proofs(self) -> int:
        """How often the whole device was waited for."""
    @property
    def own_ranges(self) -> int:
        """1 where the memory lies in address ranges that the resource maps itself; 0 where it comes in pieces from the device or
        an upstream, as a pool's does where the device has no virtual memory management."""
    def as_dict(self) -> dict[str, int]:
        """All figures by name."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Statistics:
    """The counters of a statistics adaptor, in bytes and in blocks."""

    __match_args__: tuple[
        Literal["current_bytes"],
        Literal["current_count"],
        Literal["peak_bytes"],
        Literal["peak_count"],
        Literal["total_bytes"],
        Literal["total_count"],
    ]
    def __new__(
        cls,
        current_bytes: int,
        current_count: int,
        peak_bytes: int,
        peak_count: int,
        total_bytes: int,
        total_count: int,
    ) -> Self: ...
    @property
    def current_bytes(self) -> int:
        """Bytes alive."""
    @property
    def current_count(self) -> int:
        """Blocks alive."""
    @property
    def peak_bytes(self) -> int:
        """The highest ``current_bytes``."""
    @property
    def peak_count(self) -> int:
        """The highest ``current_count``."""
    @property
    def total_bytes(self) -> int:
        """All bytes ever allocated."""
    @property
    def total_count(self) -> int:
        """All blocks ever allocated."""
    def as_dict(self) -> dict[str, int]:
        """All counters by name."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

def available_device_memory() -> tuple[int, int]:
    """The free and the total memory of the current device, in bytes."""

def get_current_device_resource() -> DeviceMemoryResource:
    """The current resource of the current device: the innermost ``using`` around the call, else the table's entry."""

def get_per_device_resource(device: int) -> DeviceMemoryResource:
    """The current resource of a device."""

def set_current_device_resource(mr: DeviceMemoryResource) -> DeviceMemoryResource:
    """Replaces the current resource of the current device, for the whole process and all languages, and returns the previous.
    Memory that was handed out is not touched. Inside a ``using`` of that device the scope's binding is replaced instead."""

def set_per_device_resource(device: int, mr: DeviceMemoryResource) -> DeviceMemoryResource:
    """Replaces the current resource of a device and returns the previous."""

def reset_current_device_resource() -> DeviceMemoryResource:
    """Puts the plain device resource back for the current device and returns the previous."""

def reset_per_device_resource(device: int) -> DeviceMemoryResource:
    """Puts the plain device resource back for a device and returns the previous."""

@final
class using:
    """``with using(mr):`` makes ``mr`` the current resource of the device that is current on entry, until the block is left,
    by an exception or otherwise.

    The binding is a context variable: ``asyncio`` tasks and ``asyncio.to_thread`` take it along, a plain thread does not. For
    tenure's own calls it is exact, also across ``await`` and in generators. Native code that reads the table by itself sees
    the binding inside a plain ``with`` block; after an ``await`` it may see the one of the task that called tenure last on this
    thread, so pass ``mr`` on to native code in coroutines.
    """

    def __new__(cls, mr: DeviceMemoryResource) -> Self: ...
    def __enter__(self) -> DeviceMemoryResource:
        """Returns the resource."""
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

def owner_of(ptr: _Address) -> DeviceMemoryResource | None:
    """Who was asked for the smallest live block around an address; ``None`` when nobody knows it."""

def misuse_count() -> int:
    """How many frees that could not return an error (a destructor, a foreign deleter) were wrong. A test suite asserts 0."""
