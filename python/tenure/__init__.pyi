"""tenure: GPU memory that is freed by whoever made it, when nobody needs it, in the right order.

All sizes are in bytes. Where a size is taken, text is taken as well: ``"256MiB"``, ``"1.5GB"``, ``"80%"`` (of the memory
that is free on the current device when the call is made). Addresses are integers.

Every call that allocates takes ``mr=``. Without it the current resource is read once, at the start of the call: the one of
the innermost ``with tenure.mr.using(...)`` around the call, else the entry of the process's one table.
"""

import os
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, ClassVar, Literal, Protocol, Self, SupportsIndex, TypeAlias, TypeVar, final, overload, type_check_only

from typing_extensions import Buffer, CapsuleType, disjoint_base

from . import logger as logger
from . import mr as mr
from . import sharing as sharing
from . import sim as sim
from . import statistics as statistics
from ._flags import CudaStreamFlags as CudaStreamFlags
from ._report import report as report
from .allocators import disable as disable
from .allocators import enable as enable
from .mr import DeviceMemoryResource

__all__ = [
    "DEFAULT_STREAM",
    "LEGACY_DEFAULT_STREAM",
    "PER_THREAD_DEFAULT_STREAM",
    "CudaError",
    "CudaStreamFlags",
    "CudaStreamPool",
    "DeviceBuffer",
    "LowMemoryHook",
    "OutOfMemoryError",
    "OwnershipError",
    "SharedArena",
    "Stream",
    "Usage",
    "__version__",
    "capture_scope",
    "copy_device_to_ptr",
    "copy_host_to_ptr",
    "copy_ptr_to_host",
    "describe",
    "device_count",
    "device_info",
    "disable",
    "disable_logging",
    "enable",
    "enable_logging",
    "from_arrow",
    "from_cuda_array_interface",
    "from_dlpack",
    "get_current_device",
    "get_log_filenames",
    "is_initialized",
    "library_version",
    "logger",
    "low_memory",
    "memory_snapshot",
    "mr",
    "observe",
    "on_low_memory",
    "parse_bytes",
    "record_history",
    "register_reinitialize_hook",
    "reinitialize",
    "report",
    "set_current_device",
    "sharing",
    "sim",
    "statistics",
    "synchronize",
    "tag",
    "to_device",
    "unregister_reinitialize_hook",
    "usage",
]

_Host = TypeVar("_Host", bound=Buffer)
_Size: TypeAlias = SupportsIndex | str
_Address: TypeAlias = SupportsIndex | Any

@type_check_only
class _CudaStream(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...

@type_check_only
class _CudaArray(Protocol):
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

@type_check_only
class _ArrowArray(Protocol):
    def __arrow_c_array__(self, requested_schema: Any = ...) -> tuple[CapsuleType, CapsuleType]: ...

@type_check_only
class _ArrowDeviceArray(Protocol):
    def __arrow_c_device_array__(self, requested_schema: Any = ...) -> tuple[CapsuleType, CapsuleType]: ...

@type_check_only
class _DLPack(Protocol):
    def __dlpack__(self, *, stream: Any = ...) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

# A tenure.Stream, or a stream of CuPy, Numba, PyTorch, cuda.core, or whatever else has `__cuda_stream__`.
_AnyStream: TypeAlias = Stream | _CudaStream | Any

__version__: str
"""The version of libtenure."""

DEFAULT_STREAM: Stream
"""The default stream (address 0): what a call uses when no stream is named."""
LEGACY_DEFAULT_STREAM: Stream
"""The legacy default stream by its explicit name (address 1)."""
PER_THREAD_DEFAULT_STREAM: Stream
"""The default stream of each thread (address 2)."""

class OutOfMemoryError(MemoryError):
    """No memory: the only error after which trying again can help. Sizes in bytes, 0 where unknown.

    >>> try:
    ...     tenure.mr.LimitingResourceAdaptor(tenure.mr.CudaMemoryResource(), 100).allocate(1000)
    ... except tenure.OutOfMemoryError as error:
    ...     print(error.requested, error.limit, error.resource)
    1000 100 limiting > cuda
    """

    requested: int
    """What was asked for."""
    live: int
    """What the resource has handed out."""
    reserved: int
    """What the resource holds from its upstream or the device."""
    limit: int
    """The limit that was met, or 0."""
    largest_free: int
    """The largest request that could still be served."""
    driver_free: int
    """Free on the device, 0 when it was not asked."""
    driver_total: int
    """The device's memory, 0 when it was not asked."""
    resource: str
    """The stack of resources, outermost first."""
    cached: int
    """What the resource holds and has not handed out."""
    unproven: int
    """What of it other streams may not have before the device is waited for."""
    pending: str
    """The streams that hold most of what is cached, and how much."""
    tried: str
    """What was tried, in order, and what came of it."""
    def __init__(
        self,
        message: str = "",
        *,
        requested: int = 0,
        live: int = 0,
        reserved: int = 0,
        limit: int = 0,
        largest_free: int = 0,
        driver_free: int = 0,
        driver_total: int = 0,
        resource: str = "",
        cached: int = 0,
        unproven: int = 0,
        pending: str = "",
        tried: str = "",
    ) -> None: ...

class OwnershipError(ValueError):
    """A pointer was named that does not belong where it was named. Nothing happened."""

    kind: str
    """``"unknown pointer"``, ``"interior pointer"``, ``"wrong resource"``, ``"wrong size"``, ``"wrong alignment"`` or
    ``"double free"``."""
    ptr: int
    """The address that was named."""
    size: int
    """The size that was named, in bytes."""
    asked: int
    """The id of the resource that was asked."""
    owner: int
    """The id of the owner, 0 when unknown."""
    owner_size: int
    """The size of the block in bytes, 0 when unknown."""
    def __init__(
        self,
        message: str = "",
        *,
        kind: str = "",
        ptr: int = 0,
        size: int = 0,
        asked: int = 0,
        owner: int = 0,
        owner_size: int = 0,
    ) -> None: ...

class CudaError(RuntimeError):
    """The CUDA driver failed, or there is none where one was asked for. Trying again does not help."""

    code: int
    """The driver's code, such as 700."""
    name: str
    """The name of the code, such as ``"CUDA_ERROR_ILLEGAL_ADDRESS"``."""
    call: str
    """The driver call, such as ``"cuMemAlloc"``."""
    def __init__(self, message: str = "", *, code: int = 0, name: str = "", call: str = "") -> None: ...

@final
class Stream:
    """An order of work on a device.

    ``Stream()`` makes a stream; ``Stream(obj)`` takes one of somebody else's, and keeps ``obj`` alive as long as this
    object or a buffer names the stream. ``obj`` is a ``Stream``, an object with ``__cuda_stream__``, or a stream of CuPy,
    Numba or PyTorch. Wherever a ``stream`` is taken, such an object is taken directly.

    A stream belongs to its process and cannot be pickled. Two are equal when their addresses are.
    """

    def __new__(
        cls,
        obj: _AnyStream | None = None,
        flags: CudaStreamFlags | int | None = None,
        *,
        device: int | None = None,
        non_blocking: bool = False,
    ) -> Self:
        """Makes a stream on ``device`` (default: the current one), or takes ``obj``.

        ``flags=CudaStreamFlags.NON_BLOCKING``, or ``non_blocking=True``: the new stream does not synchronise with the legacy
        default stream. A stream that is taken has its own.
        """
    @staticmethod
    def from_handle(handle: _Address, *, owner: object | None = None, device: int | None = None) -> Stream:
        """A stream by its address.

        ``owner`` is kept alive as long as something names the stream. Without an owner the stream must live as long as the
        process, which is your word: nothing checks it.
        """
    @property
    def handle(self) -> int:
        """The address (``cudaStream_t``); 0, 1 and 2 are the default streams."""
    @property
    def device(self) -> int:
        """The device; of a default stream, the current one."""
    def is_default(self) -> bool:
        """Whether this is one of the default streams."""
    def synchronize(self) -> None:
        """Waits until the work enqueued so far is done. Other Python threads run meanwhile."""
    def note_sync(self) -> None:
        """Says that the host has waited for the stream by other means than ``synchronize`` (CuPy's, PyTorch's): what was freed
        on it before this call may then serve every stream without a wait. Nothing is believed: the driver is asked, and where
        the stream is not idle, all stays as it was."""
    def note_wait(self, other: _AnyStream) -> None:
        """Says that this stream has been made to wait for ``other`` by other means than ``wait_stream`` (CuPy's, PyTorch's events):
        what was freed on ``other`` before this call may then be used in the order of this stream, without a wait for each block.
        Nothing is believed: a pool that holds such memory inserts a wait of its own, once."""
    def query(self) -> bool:
        """Whether all work enqueued so far is done."""
    def wait_stream(self, other: _AnyStream) -> None:
        """Makes later work of this stream wait for the work enqueued on ``other`` so far. The host does not wait. What was freed
        on ``other`` is then at hand for this stream too."""
    def __cuda_stream__(self) -> tuple[int, int]: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __lt__(self, value: Any, /) -> bool: ...
    def __le__(self, value: Any, /) -> bool: ...
    def __gt__(self, value: Any, /) -> bool: ...
    def __ge__(self, value: Any, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> Any: ...

@final
class SharedArena:
    """A name for memory that several CUDA graphs share which never run at the same time.

    Each pool that is asked for memory inside a ``capture_scope`` with this name keeps one arena for it: what one graph freed
    while it was captured serves the next. The memory goes back when the name, the graphs and the allocations are gone. Your
    program orders the runs of these graphs: in one stream, or by events.
    """

    def __new__(cls) -> Self: ...
    def __reduce__(self) -> Any: ...

@final
class capture_scope:
    """``with capture_scope(stream, shared):`` stands around captures of ``stream``.

    A pool over ``CudaMemoryResource`` serves allocations on a capturing stream without a scope: they come from an arena of
    that capture, which the graph keeps as long as it or an executable of it lives. A scope is for two things:

    * ``shared``: graphs that never run at once take their memory from one arena. Captures that share one follow each other.
    * without ``stream``, the scope stands for this thread: for what it captures, and for its per-thread default stream, which
      is asked for capture in every allocation inside such a scope only.

    >>> pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
    >>> stream, arena, graphs = tenure.Stream(non_blocking=True), tenure.SharedArena(), []
    >>> for size in (1000, 2000):
    ...     with tenure.capture_scope(stream, arena):
    ...         tenure.sim.capture_begin(stream)  # in a program: torch.cuda.graph(...), stream.begin_capture()
    ...         tenure.DeviceBuffer(size=size, stream=stream, mr=pool).close()
    ...         graphs.append(tenure.sim.capture_end(stream))
    """

    def __new__(cls, stream: _AnyStream | None = None, shared: SharedArena | None = None) -> Self: ...
    def __enter__(self) -> SharedArena | None:
        """Returns ``shared``."""
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

@disjoint_base
class DeviceBuffer:
    """Memory with its owner: it knows the resource that made it, its home stream and its device.

    It is freed when the last of those who hold it goes (this object, or a DLPack consumer), in the order of its home stream
    and of the streams it was recorded on, by the resource that made it, from whatever thread. The resource lives until then.

    A buffer of no bytes asks no resource: its address is 0.

    The methods that copy between host and device return when the copy is done. Waiting never holds the interpreter lock.
    Two threads may use a buffer at once: what would change it while the other uses it is a ``BufferError``.

    A subclass may have a constructor of its own, which calls ``super().__init__(...)``; until then every method raises.
    """

    def __init__(
        self,
        *,
        ptr: _Address = 0,
        size: _Size = 0,
        stream: _AnyStream | None = None,
        mr: DeviceMemoryResource | None = None,
    ) -> None:
        """Allocates ``size`` bytes on ``stream`` (default: ``DEFAULT_STREAM``).

        With ``ptr``, the bytes are copied from that address, of any kind of memory, and the copy is waited for. This is
        not how memory is taken over: that is ``adopt``.

        Raises ``OutOfMemoryError``, ``ValueError`` for a size that is none or a stream of another device, ``CudaError``, and
        whatever a resource of Python functions raises.
        """
    @staticmethod
    def to_device(b: Buffer, stream: _AnyStream | None = None, mr: DeviceMemoryResource | None = None) -> DeviceBuffer:
        """A new buffer with the bytes of ``b``, which is anything with the buffer protocol (``bytes``, a NumPy array)."""
    @classmethod
    def many(
        cls, sizes: Iterable[_Size], stream: _AnyStream | None = None, mr: DeviceMemoryResource | None = None
    ) -> list[Self]:
        """A buffer for each of ``sizes``, made in one call on ``stream`` (default: ``DEFAULT_STREAM``): all of them, or an
        exception and none. Each lives and goes by itself. A subclass's ``__init__`` is not called."""
    @classmethod
    def adopt(
        cls,
        ptr: _Address,
        size: _Size,
        *,
        stream: _AnyStream,
        mr: DeviceMemoryResource | None = None,
        owner: Callable[[int, int, Stream], object] | object | None = None,
        device: int | None = None,
    ) -> Self:
        """Takes memory over. Give exactly one of ``mr`` and ``owner``.

        ``mr``: the resource that made the block. This is checked; the wrong one, an address inside of a block or a size
        that is not the block's is an ``OwnershipError``. Name the maker, never just the current resource.

        ``owner``: for memory that no resource of tenure's made. A callable is called as ``owner(ptr, size, stream)`` to free
        the memory; any other object is kept alive and let go. ``device`` says where the memory is (default: the stream's
        device; -1: the host's). An owner that holds the buffer is a cycle through the engine, which is not collected: close the
        buffer.

        ``stream`` is the stream in whose order the memory may be used now, and will be freed.
        """
    @property
    def ptr(self) -> int:
        """The address; 0 when there are no bytes."""
    @property
    def size(self) -> int:
        """Bytes in use."""
    @property
    def nbytes(self) -> int:
        """Bytes in use."""
    def capacity(self) -> int:
        """Bytes allocated."""
    @property
    def mr(self) -> DeviceMemoryResource | None:
        """The resource that frees the memory: the same Python object while one is alive. ``None`` when the buffer was
        adopted with an owner."""
    @property
    def stream(self) -> Stream:
        """The home stream, in whose order the memory will be freed."""
    @property
    def device(self) -> int | None:
        """The device of the memory; ``None`` for memory of the host."""
    def resize(self, new_size: _Size, stream: _AnyStream | None = None) -> None:
        """Changes the size. Within the capacity nothing moves; beyond it a new block of the same resource is made and the
        bytes are copied, on ``stream`` (default: the home stream), which becomes the home. On failure nothing changed."""
    def reserve(self, new_capacity: _Size, stream: _AnyStream | None = None) -> None:
        """Makes sure of a capacity."""
    def shrink_to_fit(self, stream: _AnyStream | None = None) -> None:
        """Reduces the capacity to the size."""
    def copy(self, stream: _AnyStream | None = None, mr: DeviceMemoryResource | None = None) -> Self:
        """A copy, made on ``stream`` (default: the home stream) under ``mr`` (default: the buffer's own resource; of memory that
        was adopted with an owner, the current one)."""
    @overload
    def copy_to_host(self, ary: None = None, stream: _AnyStream | None = None) -> Any: ...
    @overload
    def copy_to_host(self, ary: _Host, stream: _AnyStream | None = None) -> _Host:
        """Copies into ``ary``, a writable contiguous host object that is large enough, and returns it; without one, into a
        new NumPy array of bytes."""
    def copy_from_host(self, ary: Buffer, stream: _AnyStream | None = None) -> None:
        """Copies a contiguous host object into the first bytes."""
    def copy_from_device(self, cuda_ary: _CudaArray, stream: _AnyStream | None = None) -> None:
        """Copies the memory of a buffer, or of another object with ``__cuda_array_interface__``, into the first bytes.

        From a ``DeviceBuffer`` the host does not wait; from others it does, as they may free their memory at return.
        """
    def tobytes(self, stream: _AnyStream | None = None) -> bytes:
        """The bytes."""
    def record_stream(self, stream: _AnyStream) -> None:
        """Says that work on ``stream`` uses the memory: it is not reused before all work that is enqueued there until the
        free is done."""
    def prefetch(self, device: int | None = None, stream: _AnyStream | None = None) -> bool:
        """Asks the driver to move the memory to a device (default: the current one; -1: to the host), in the order of
        ``stream`` (default: the home stream). Returns whether it was asked: a hint is no error where memory does not migrate,
        the device or the driver lacks it, or the stream is capturing. Another stream than the home is recorded."""
    def set_stream(self, stream: _AnyStream) -> None:
        """Makes ``stream`` the home stream. Nothing is waited for; the old home stays among the recorded streams."""
    def close(self, stream: _AnyStream | None = None) -> None:
        """Frees the memory now, in the order of ``stream`` (default: the home stream). The buffer is empty afterwards.
        Leaving a ``with`` block does the same."""
    def detach(self) -> tuple[int, int, DeviceMemoryResource, Stream]:
        """Takes the allocation out: ``(ptr, size, mr, stream)``, what ``mr.deallocate`` and ``adopt`` want to hear. The size
        is the capacity. The buffer is empty afterwards, and the resource counts the block until somebody frees it."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3: unsigned bytes, and the home stream as the one to wait on."""
    def __dlpack__(
        self,
        *,
        stream: Any | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """A DLPack capsule of unsigned bytes; the versioned kind when ``max_version`` says so. The capsule keeps the memory.

        The consumer's ``stream`` is made to wait for the home stream, and is recorded. Memory that the host can read, and all
        memory of the simulated device, is exported as the CPU's, after a wait for the home stream. A copy (``copy=True``) is
        made under the buffer's own resource; a copy of device memory for the CPU, in memory of the system's.
        """
    def export_handle(self, kind: Literal["fd", "fabric", "legacy"] | None = None) -> sharing.SharedHandle:
        """What leads another process to this memory: a small object that can be pickled wherever multiprocessing carries
        things. Waits for the work on the home stream and on those that were recorded. ``NotImplementedError`` says which option
        of the resource makes its memory exportable. See ``docs/sharing.md`` for who must live longer than whom."""
    @classmethod
    def from_handle(cls, handle: sharing.SharedHandle, stream: _AnyStream | None = None, *, device: int | None = None) -> Self:
        """A buffer of the memory behind a handle, with ``stream`` as its home, on the device that the memory lies on. However
        often one piece of memory is opened in a process, it is mapped once; the mapping goes with the last buffer."""
    def __dlpack_device__(self) -> tuple[int, int]: ...
    __dlpack_c_exchange_api__: ClassVar[CapsuleType]
    """The table of DLPack's C exchange API, version 1.3: a capsule named ``dlpack_exchange_api``."""
    def __arrow_c_device_array__(
        self, requested_schema: CapsuleType | None = None, **kwargs: Any
    ) -> tuple[CapsuleType, CapsuleType]:
        """An Arrow array of unsigned bytes over the memory, after a wait for the home stream. A requested schema is not followed."""
    def __arrow_c_array__(self, requested_schema: CapsuleType | None = None) -> tuple[CapsuleType, CapsuleType]:
        """The same for memory that the host can read. ``BufferError`` for other memory."""
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...
    def __len__(self) -> int: ...
    def __sizeof__(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def __bool__(self) -> bool: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, _memo: Any) -> Self: ...
    def __del__(self) -> None: ...
    def __reduce__(self) -> tuple[Any, ...]: ...
    def __reduce_ex__(self, protocol: SupportsIndex, /) -> tuple[Any, ...]:
        """For pickle: the bytes, which from protocol 5 on may travel beside it (``buffer_callback=``)."""

@final
class CudaStreamPool:
    """Streams of one device that are given out in turn, for programs that want a stream for each of many small tasks.

    Whoever gets a stream shares it with whoever gets it a round later. A stream that something names outlives the pool. Any
    number of threads may ask at once.
    """

    def __new__(cls, pool_size: int = 16, flags: CudaStreamFlags | int = ..., *, device: int | None = None) -> Self:
        """Makes ``pool_size`` streams on ``device`` (default: the current one), with ``CudaStreamFlags.SYNC_DEFAULT`` by
        default."""
    def get_stream(self, stream_id: int | None = None) -> Stream:
        """The stream whose turn it is, or the one with a number; numbers beyond the last one go round."""
    def get_pool_size(self) -> int:
        """How many streams there are."""
    def __reduce__(self) -> Any: ...

def to_device(b: Buffer, stream: _AnyStream | None = None, mr: DeviceMemoryResource | None = None) -> DeviceBuffer:
    """``DeviceBuffer.to_device``."""

def copy_ptr_to_host(db: _Address, hb: Buffer, stream: _AnyStream | None = None) -> None:
    """Fills ``hb``, a writable contiguous host object, from the address ``db``. Waits for the copy. What the address has
    behind it is your word: nothing checks it, here and below."""

def copy_host_to_ptr(hb: Buffer, db: _Address, stream: _AnyStream | None = None) -> None:
    """Copies ``hb``, a contiguous host object, to the address ``db``. Waits for the copy."""

def copy_device_to_ptr(d_src: _Address, d_dst: _Address, count: _Size, stream: _AnyStream | None = None) -> None:
    """Copies ``count`` bytes from one address to another, in the order of ``stream``. The host does not wait: both must live
    until the copy is done."""

def parse_bytes(s: _Size) -> int:
    """The number of bytes that a size says, as every call reads one.

    >>> tenure.parse_bytes("1.5KiB")
    1536
    """

def reinitialize(
    pool_allocator: bool = False,
    managed_memory: bool = False,
    initial_pool_size: _Size | None = None,
    maximum_pool_size: _Size | None = None,
    devices: int | Iterable[int] | None = 0,
    logging: bool = False,
    log_file_name: Any | None = None,
) -> None:
    """Makes new current resources: of each of ``devices`` a new one, of every other device the plain one again.

    ``pool_allocator``: a pool; otherwise the sizes do not count. ``managed_memory``: of managed memory. ``logging``: with a log
    of allocations in ``log_file_name``.

    Buffers that are alive stay valid and go home to the resource that made them, which ends with the last of them. If
    anything fails nothing has changed. What the old resources hold idle is given back first where a size is a share
    (``"50%"``) or the new pool would not fit otherwise, so that one big pool can follow another.
    """

def is_initialized() -> bool:
    """True: there is always a current resource. RMM's programs ask."""

_Hook = TypeVar("_Hook", bound=Callable[..., Any])

def register_reinitialize_hook(func: _Hook, *args: Any, **kwargs: Any) -> _Hook:
    """Calls ``func(*args, **kwargs)`` before every ``reinitialize``, the hook that was registered last first; a library lets
    go of its cached buffers there. What a hook raises ends the call before anything has changed. Returns ``func``."""

def unregister_reinitialize_hook(func: Callable[..., Any]) -> None:
    """Removes a hook, as often as it was registered."""

def from_dlpack(obj: _DLPack | CapsuleType, *, stream: _AnyStream | None = None) -> DeviceBuffer:
    """A buffer over the memory of an object with ``__dlpack__``, without a copy. The producer frees it when the buffer goes.

    Takes contiguous memory of the CPU, of CUDA devices, pinned and managed. What the producer forbids to write stays
    read-only. ``stream`` becomes the home stream; the producer orders its own work before it.
    """

def from_arrow(obj: _ArrowDeviceArray | _ArrowArray, *, stream: _AnyStream | None = None) -> DeviceBuffer:
    """A read-only buffer over the values of an Arrow array, without a copy. The producer frees it when the buffer goes.

    Takes one run of fixed-width values without nulls, in memory of the CPU, of CUDA devices, pinned and managed. ``stream``
    becomes the home stream; what the producer has pending is waited for by the host.
    """

def from_cuda_array_interface(obj: _CudaArray, *, stream: _AnyStream | None = None) -> DeviceBuffer:
    """A buffer over the memory of an object with ``__cuda_array_interface__``, which is kept alive as long as the buffer.

    ``stream`` becomes the home stream, and waits for the stream that the interface names.
    """

def device_count() -> int:
    """The number of devices. Loads the driver at first use, as every call below does."""

def get_current_device() -> int:
    """The device that is current on this thread."""

def set_current_device(device: int) -> None:
    """Makes a device current on this thread."""

def synchronize(device: int | None = None) -> None:
    """Waits for all work of a device (default: the current one). A stream capture that is under way goes on."""

@final
class LowMemoryHook:
    """A registration of ``on_low_memory``: it lasts until ``remove`` is called or the ``with`` block ends, whatever becomes of
    this object."""

    def remove(self) -> None:
        """Stops being asked. A call that is under way on another thread may still end after this. Again: nothing."""
    def __enter__(self) -> LowMemoryHook: ...
    def __exit__(self, *args: object) -> None: ...

def on_low_memory(callback: Callable[[int, int], int | None], /) -> LowMemoryHook:
    """Calls ``callback(device, size)`` whenever a pool is about to fail for want of ``size`` bytes. It frees what it can and
    returns how many bytes (``None`` is 0); it may allocate, and what fails in it calls nobody. On any thread, perhaps on several
    at once. What it raises goes to ``sys.unraisablehook`` and stops nothing."""

def low_memory(device: int | None = None, size: _Size = 0) -> int:
    """For libraries that need memory: makes tenure's pools on a device (default: the current one) give back idle memory until
    ``size`` bytes went, or all that is idle with 0; returns how many did. May wait for the device. Release thresholds do not
    count."""

@final
class tag:
    """``with tenure.tag("loader"):`` counts what the block allocates under a name, in every language called from it. Tags nest;
    the innermost counts. Like ``tenure.mr.using`` a tag belongs to the context that opened it: tasks and ``asyncio.to_thread``
    take it along, a plain thread does not. From the first tag of the process on it is booked who allocates what."""

    def __new__(cls, name: str, /) -> Self: ...
    @property
    def name(self) -> str: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...

def observe(enabled: bool = True, /) -> None:
    """Books who allocates what from now on, for ``usage``, ``memory_snapshot`` and the notes of an ``OutOfMemoryError``;
    ``False``: no more, unless events are recorded."""

class Usage:
    """What one tag, thread or resource has and had. Sizes are bytes, as they were asked for."""

    name: str
    """The tag (empty: none was open), the thread's name, the resource and what it stands on."""
    id: int
    """The operating system's number of the thread, the id of the resource; 0 for tags."""
    live_bytes: int
    live_count: int
    peak_bytes: int
    """The most bytes that were live at once; too low by at most 1 MiB for each other thread that allocates."""
    peak_count: int
    total_bytes: int
    """Bytes of all allocations."""
    total_count: int

    def __init__(
        self,
        name: str,
        id: int,
        live_bytes: int,
        live_count: int,
        peak_bytes: int,
        peak_count: int,
        total_bytes: int,
        total_count: int,
    ) -> None: ...
    def __eq__(self, other: object) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

def usage(by: Literal["tag", "thread", "resource"] = "tag") -> dict[str, Usage]:
    """What each tag (``""``: none was open), thread or resource has and had, those with most live bytes first. Counted is what
    was allocated since the book was begun: by the first tag, ``observe()`` or ``record_history()``."""

def memory_snapshot() -> dict[str, Any]:
    """All memory, as values that ``json`` can write: ``resources`` with their figures, ``reserved`` and ``free`` ranges;
    ``blocks`` that are live, each with ``address``, ``size``, ``stream``, ``resource``, and ``tag``, ``thread`` and ``frames``
    where they were booked; ``threads``; and the recorded ``events``. Nobody is stopped meanwhile: what lives throughout is in
    it."""

def record_history(enabled: bool = True, *, stacks: bool = False, max_entries: int = 100_000) -> None:
    """Records the last ``max_entries`` events (allocations, frees, failures, resources, trims, the current resource) for
    ``memory_snapshot()``, with the Python stack of each allocation and failure if ``stacks``. ``False`` ends it; what was
    recorded stays until recording begins again."""

def device_info(device: int | None = None) -> dict[str, Any]:
    """What a device is: ``name``, ``free_bytes``, ``total_bytes``, ``simulated``, ``virtual_memory``, ``memory_pools``,
    ``managed_memory``, ``pageable_access``, ``compute_capability``."""

def enable_logging(log_file_name: str | os.PathLike[str] | None = None, devices: int | Iterable[int] | None = None) -> None:
    """Puts a ``tenure.mr.LoggingResourceAdaptor`` over the current resource of each device: of ``devices``, or of those that have
    been given a resource and the current one. A device that logs already is left alone. Each file has ``.devN`` before its
    extension; without a name ``RMM_LOG_FILE`` gives it. Where one of the files cannot be written, no device's resource changes."""

def disable_logging() -> None:
    """Puts the resource below back where a device's current one is a logging adaptor. What was allocated through the adaptor is
    still freed through it, and logged."""

def get_log_filenames() -> dict[int, str | None]:
    """The file that each device in use is logged to, or ``None``."""

def library_version() -> str:
    """The version of libtenure."""

def describe() -> dict[str, Any]:
    """What is here: ``version``, ``abi``, ``requested_device``; then ``layer`` (``"cuda"`` or ``"sim"``), ``library``,
    ``driver_version`` and ``devices``, or ``error`` with the reason why there is no device layer."""
