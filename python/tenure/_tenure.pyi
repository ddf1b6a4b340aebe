"""The extension module. What is public is documented in ``tenure``, ``tenure.mr``, ``tenure.sim`` and ``tenure.bindings``."""

from collections.abc import Callable
from typing import Any, Literal, final

from typing_extensions import Buffer, CapsuleType

from . import (
    DEFAULT_STREAM as DEFAULT_STREAM,
)
from . import (
    LEGACY_DEFAULT_STREAM as LEGACY_DEFAULT_STREAM,
)
from . import (
    PER_THREAD_DEFAULT_STREAM as PER_THREAD_DEFAULT_STREAM,
)
from . import (
    CudaStreamPool as CudaStreamPool,
)
from . import (
    DeviceBuffer as DeviceBuffer,
)
from . import (
    LowMemoryHook as LowMemoryHook,
)
from . import (
    SharedArena as SharedArena,
)
from . import (
    Stream as Stream,
)
from . import _AnyStream, _Size
from . import (
    capture_scope as capture_scope,
)
from . import (
    copy_device_to_ptr as copy_device_to_ptr,
)
from . import (
    copy_host_to_ptr as copy_host_to_ptr,
)
from . import (
    copy_ptr_to_host as copy_ptr_to_host,
)
from . import (
    device_count as device_count,
)
from . import (
    device_info as device_info,
)
from . import (
    from_arrow as from_arrow,
)
from . import (
    from_cuda_array_interface as from_cuda_array_interface,
)
from . import (
    from_dlpack as from_dlpack,
)
from . import (
    get_current_device as get_current_device,
)
from . import (
    library_version as library_version,
)
from . import (
    low_memory as low_memory,
)
from . import (
    observe as observe,
)
from . import (
    on_low_memory as on_low_memory,
)
from . import (
    parse_bytes as parse_bytes,
)
from . import (
    set_current_device as set_current_device,
)
from . import (
    synchronize as synchronize,
)
from . import (
    tag as tag,
)
from . import (
    to_device as to_device,
)
from .mr import (
    AlignedResourceAdaptor as AlignedResourceAdaptor,
)
from .mr import (
    ArenaMemoryResource as ArenaMemoryResource,
)
from .mr import (
    BinningMemoryResource as BinningMemoryResource,
)
from .mr import (
    CallbackMemoryResource as CallbackMemoryResource,
)
from .mr import (
    CudaAsyncManagedMemoryResource as CudaAsyncManagedMemoryResource,
)
from .mr import (
    CudaAsyncMemoryResource as CudaAsyncMemoryResource,
)
from .mr import (
    CudaAsyncViewMemoryResource as CudaAsyncViewMemoryResource,
)
from .mr import (
    CudaMemoryResource as CudaMemoryResource,
)
from .mr import (
    DeviceMemoryResource as DeviceMemoryResource,
)
from .mr import (
    FailureCallbackResourceAdaptor as FailureCallbackResourceAdaptor,
)
from .mr import (
    FixedSizeMemoryResource as FixedSizeMemoryResource,
)
from .mr import (
    LimitingResourceAdaptor as LimitingResourceAdaptor,
)
from .mr import (
    LoggingResourceAdaptor as LoggingResourceAdaptor,
)
from .mr import (
    ManagedMemoryResource as ManagedMemoryResource,
)
from .mr import (
    MemoryInfo as MemoryInfo,
)
from .mr import (
    PinnedHostMemoryResource as PinnedHostMemoryResource,
)
from .mr import (
    PoolMemoryResource as PoolMemoryResource,
)
from .mr import (
    PrefetchResourceAdaptor as PrefetchResourceAdaptor,
)
from .mr import (
    SamHeadroomMemoryResource as SamHeadroomMemoryResource,
)
from .mr import (
    Statistics as Statistics,
)
from .mr import (
    StatisticsResourceAdaptor as StatisticsResourceAdaptor,
)
from .mr import (
    SystemMemoryResource as SystemMemoryResource,
)
from .mr import (
    ThreadSafeResourceAdaptor as ThreadSafeResourceAdaptor,
)
from .mr import (
    TrackingResourceAdaptor as TrackingResourceAdaptor,
)
from .mr import (
    UpstreamResourceAdaptor as UpstreamResourceAdaptor,
)
from .mr import (
    get_current_device_resource as get_current_device_resource,
)
from .mr import (
    get_per_device_resource as get_per_device_resource,
)
from .mr import (
    misuse_count as misuse_count,
)
from .mr import (
    owner_of as owner_of,
)
from .mr import (
    reset_current_device_resource as reset_current_device_resource,
)
from .mr import (
    reset_per_device_resource as reset_per_device_resource,
)
from .mr import (
    set_current_device_resource as set_current_device_resource,
)
from .mr import (
    set_per_device_resource as set_per_device_resource,
)
from .mr import (
    using as using,
)
from .sim import (
    Graph as _Graph,
)

_C_API: CapsuleType

def sim_active() -> bool: ...
def sim_busy(stream: _AnyStream, ms: float) -> None: ...
def sim_capture_begin(stream: _AnyStream, mode: Literal["global", "thread_local", "relaxed"] = "global") -> None: ...
def sim_capture_end(stream: _AnyStream) -> _Graph: ...
def sim_configure(devices: int | None = None, memory: _Size | None = None) -> None: ...
def sim_fail_clear() -> None: ...
def sim_fail_next(call: str, code: int, after: int = 0) -> None: ...
def sim_set_memory(device: int, memory: _Size) -> None: ...
def sim_violations() -> int: ...
def driver_calls(call: str | None = None) -> int: ...
def device_used(device: int = 0) -> int: ...
def describe() -> str: ...
def _rebuild(cls: type[DeviceBuffer], bytes: Buffer) -> DeviceBuffer: ...
def _wrap_buffer(handle: int) -> DeviceBuffer: ...
def _borrow_buffer(buffer: DeviceBuffer) -> int: ...
def _take_buffer(buffer: DeviceBuffer) -> int: ...
def _wrap_resource(handle: int) -> DeviceMemoryResource: ...
def _borrow_resource(mr: DeviceMemoryResource) -> int: ...
def _retain_resource(mr: DeviceMemoryResource) -> int: ...
def _wrap_stream(raw: int, object: int) -> Stream: ...
def _borrow_stream(stream: Stream) -> tuple[int, int]: ...
def _raise_for_status(status: int) -> None: ...
def _references(mr: DeviceMemoryResource) -> tuple[int, int] | None: ...
def _record_history(enabled: bool, stacks: bool, max_entries: int) -> None: ...
def _memory_snapshot() -> str: ...
def _library_buffer(library: str, size: int, stream: Any, mr: DeviceMemoryResource | None) -> DeviceBuffer: ...
def _report_begin(on: bool, stacks: bool) -> None: ...
def _report() -> str: ...
def _usage(by: int) -> list[tuple[str, int, int, int, int, int, int, int]]: ...
def tenure_cupy_allocator(nbytes: int) -> Any: ...
def _cupy_owner(memory: Any) -> Any: ...
def _cupy_mr(memory: Any) -> DeviceMemoryResource | None: ...
def _follow_current(look: Callable[[int], None], told: Callable[[int, DeviceMemoryResource], None]) -> None: ...
def _unfollow_current() -> None: ...
def _cupy_record_stream(memory: Any, stream: _AnyStream) -> None: ...
def _cupy_in_place() -> bool: ...
def _cuda_core_resource(device: int, mr: DeviceMemoryResource | None) -> Any: ...

@final
class CudaCoreGetter:
    def __new__(cls, fill: Callable[[Any], Any]) -> CudaCoreGetter: ...
    def get(self, device: Any) -> Any: ...

@final
class CupyAllocator:
    def __new__(cls, mr: DeviceMemoryResource) -> CupyAllocator: ...
    @property
    def mr(self) -> DeviceMemoryResource: ...
    def malloc(self, size: int) -> Any: ...

def _torch_prepare(library: str) -> dict[str, int]: ...
def _torch_resource(mr: DeviceMemoryResource | None) -> None: ...
def _torch_answer_cache_info(libraries: list[str]) -> bool: ...
def _torch_external(stream: int) -> None: ...
def _torch_used() -> bool: ...
def _torch_figures(device: int) -> dict[str, Any]: ...
def _torch_reset_figures(device: int, accumulated: bool) -> None: ...
def _torch_blocks(device: int) -> list[tuple[int, int, int]]: ...

@final
class _StatisticsScope:
    def counters(self) -> Statistics: ...
    def close(self) -> Statistics: ...

def _scope_open(mr: DeviceMemoryResource, opener: object = None) -> _StatisticsScope: ...
def _scope_find(mr: DeviceMemoryResource | None = None, opener: object = None) -> _StatisticsScope | None: ...
def _share(buffer: DeviceBuffer, kinds: int) -> tuple[bytes, list[int]]: ...
def _import_shared(
    cls: type[DeviceBuffer], data: bytes, fds: list[int], device: int | None = None, stream: _AnyStream | None = None
) -> DeviceBuffer: ...
def _shared_info(data: bytes) -> dict[str, Any]: ...
def _exports(mr: DeviceMemoryResource) -> int: ...
