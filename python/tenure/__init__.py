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

from . import mr, sim, statistics  # noqa: E402
from ._logs import disable_logging, enable_logging, get_log_filenames  # noqa: E402
from ._errors import CudaError, OutOfMemoryError, OwnershipError  # noqa: E402
from ._tenure import (  # noqa: E402
    DEFAULT_STREAM,
    LEGACY_DEFAULT_STREAM,
    PER_THREAD_DEFAULT_STREAM,
    DeviceBuffer,
    LowMemoryHook,
    SharedArena,
    Stream,
    capture_scope,
    device_count,
    device_info,
    from_cuda_array_interface,
    from_dlpack,
    get_current_device,
    library_version,
    low_memory,
    on_low_memory,
    set_current_device,
    synchronize,
)

__version__ = library_version()


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
    "DeviceBuffer",
    "LowMemoryHook",
    "OutOfMemoryError",
    "OwnershipError",
    "SharedArena",
    "Stream",
    "__version__",
    "capture_scope",
    "describe",
    "device_count",
    "device_info",
    "disable_logging",
    "enable_logging",
    "from_cuda_array_interface",
    "from_dlpack",
    "get_current_device",
    "get_log_filenames",
    "library_version",
    "low_memory",
    "mr",
    "on_low_memory",
    "set_current_device",
    "sim",
    "statistics",
    "synchronize",
]
