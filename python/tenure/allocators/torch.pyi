"""PyTorch on tenure's memory: ``tenure.enable("torch", route=...)``, or
``torch.cuda.memory.change_current_allocator(tenure.allocators.torch.tenure_torch_allocator)``.

``"process"``: all device memory of the process, that of backward threads included, is tenure's, block by block. It must be
chosen before PyTorch begins to use CUDA, and there is no way back.

``"pool"``: PyTorch's own caching allocator stays in charge, over segments that it takes from tenure through a
``torch.cuda.MemPool``. It can be chosen at any time, for the current device, and be left again.

``"auto"`` is ``"process"`` where that is still possible and its calls can be answered with the PyTorch that is here, else
``"pool"``; the table of `tenure.enable` says which, and why. PyTorch is imported by the first use of an allocator.
"""

from typing import Any

from ..mr import DeviceMemoryResource

tenure_torch_allocator: Any
"""For ``torch.cuda.memory.change_current_allocator``: the process route."""
rmm_torch_allocator: Any
"""RMM's name for it."""

def mem_pool(mr: DeviceMemoryResource | None = None) -> Any:
    """A ``torch.cuda.MemPool`` of the current device whose segments come from tenure, for ``torch.cuda.use_mem_pool``.

    All such pools, and the process route, share one resource: ``mr``, or what is current at each allocation of a segment.
    """

def memory_stats(device: int) -> dict[str, Any]:
    """The process route's figures of a device, nested and named as ``torch.cuda.memory_stats_as_nested_dict`` has them.

    Allocated and active are the bytes that PyTorch asked for and holds; reserved is what the resource has of the driver, of
    which others may use a part. What belongs to PyTorch's own way of caching is 0.
    """

def memory_snapshot(devices: int) -> dict[str, Any]:
    """The process route's live blocks, each as a segment of its own, as ``torch.cuda.memory_snapshot`` has them."""

_PLUGS: dict[str, Any]
_chosen: list[Any]
