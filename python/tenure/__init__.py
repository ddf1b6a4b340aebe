"""tenure: GPU memory that is freed by whoever made it, when nobody needs it, in the right order.

>>> import tenure
>>> pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
>>> buffer = tenure.DeviceBuffer(size=1024, mr=pool)
>>> del pool    # the buffer keeps the resource, the resource keeps its memory
>>> del buffer  # freed into the pool in stream order, then the pool is closed

The modules: ``tenure`` (buffers, streams, exceptions, devices), ``tenure.mr`` (memory resources and the table of current
ones), ``tenure.statistics`` (what threads and tasks allocate), ``tenure.sim`` (the simulated device). Importing makes no
driver call.
"""

from __future__ import annotations


def _import_extension():
    """Opens the extension, which opens libtenure; says in a sentence why where that fails."""
    try:
        from . import _tenure
    except ImportError as error:
        if error.name == f"{__name__}._tenure" or ("_tenure" in str(error) and "cannot import name" in str(error)):
            raise ImportError(
                "tenure's extension module is not there: install tenure with pip, or build it in the source tree: make lib",
                name=f"{__name__}._tenure",
            ) from error
        if "subinterpreter" in str(error).replace("-", ""):
            raise ImportError(
                "tenure cannot be imported in a sub-interpreter: its table of current resources is one per process and "
                "belongs to the main interpreter; import it there, or use processes or threads"
            ) from error
        raise
    return _tenure


_import_extension()

from . import mr, sim  # noqa: E402
from ._errors import CudaError, OutOfMemoryError, OwnershipError  # noqa: E402
from ._tenure import (  # noqa: E402
    DEFAULT_STREAM,
    LEGACY_DEFAULT_STREAM,
    PER_THREAD_DEFAULT_STREAM,
    CudaStreamPool,
    DeviceBuffer,
    LowMemoryHook,
    SharedArena,
    Stream,
    capture_scope,
    copy_device_to_ptr,
    copy_host_to_ptr,
    copy_ptr_to_host,
    device_count,
    device_info,
    from_arrow,
    from_cuda_array_interface,
    from_dlpack,
    get_current_device,
    library_version,
    low_memory,
    observe,
    on_low_memory,
    parse_bytes,
    set_current_device,
    synchronize,
    tag,
    to_device,
)

__version__ = library_version()


# What is loaded when it is first asked for: an import of tenure pulls in no module of the standard library that is slow.
_LATER = {
    "CudaStreamFlags": "_flags",
    "Usage": "_observe",
    "allocators": None,
    "disable": "allocators",
    "disable_logging": "_logs",
    "enable": "allocators",
    "enable_logging": "_logs",
    "get_log_filenames": "_logs",
    "is_initialized": "_initialize",
    "logger": None,
    "memory_snapshot": "_observe",
    "record_history": "_observe",
    "register_reinitialize_hook": "_initialize",
    "reinitialize": "_initialize",
    "sharing": None,
    "report": "_report",
    "statistics": None,
    "unregister_reinitialize_hook": "_initialize",
    "usage": "_observe",
}


def __getattr__(name):
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = _LATER[name]
    value = import_module(f".{module or name}", __name__)
    if module is not None:
        value = getattr(value, name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *_LATER})


def describe():
    """What is here: version, device layer, driver and devices. See ``__init__.pyi``."""
    import json

    from ._tenure import describe as text

    return json.loads(text())


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
