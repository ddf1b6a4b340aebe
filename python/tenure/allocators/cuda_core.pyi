"""cuda.core on tenure's memory. The documentation is in ``cuda_core.py``."""

from typing import Any

from ..mr import DeviceMemoryResource

def memory_resource(device: int = 0, mr: DeviceMemoryResource | None = None) -> Any:
    """A ``cuda.core.MemoryResource`` of a device: with ``mr``, always of that resource; else of what is current there."""

_PLUGS: dict[str, Any]
