"""The names and signatures, which are RMM's where RMM has them. A change here breaks programs."""

from __future__ import annotations

import inspect

import pytest
import tenure

mr = tenure.mr

CLASSES = {
    mr.CudaMemoryResource: "()",
    mr.ManagedMemoryResource: "()",
    mr.PinnedHostMemoryResource: "()",
    mr.SystemMemoryResource: "()",
    mr.CudaAsyncMemoryResource: (
        "(initial_pool_size=None, release_threshold=None, enable_ipc=False, enable_fabric=False, *, "
        "device=None, stream_outlives_buffer=False)"
    ),
    mr.CudaAsyncViewMemoryResource: "(pool_handle, *, device=None)",
    mr.PoolMemoryResource: (
        "(upstream_mr, initial_pool_size=None, maximum_pool_size=None, *, "
        "release_threshold=None, prefer='concurrency', device=None, remap=True, decay_ms=0, chunk_size=None, "
        "grow_ahead=False, export_handle_type=None, pages=None, peers=(), rdma=False)"
    ),
    mr.FixedSizeMemoryResource: "(upstream_mr, block_size=1048576, blocks_to_preallocate=128, *, device=None)",
    mr.BinningMemoryResource: "(upstream_mr, min_size_exponent=-1, max_size_exponent=-1, *, device=None)",
    mr.ArenaMemoryResource: "(upstream_mr, arena_size=None, dump_log_on_failure=False, *, device=None)",
    mr.LimitingResourceAdaptor: "(upstream_mr, allocation_limit)",
    mr.StatisticsResourceAdaptor: "(upstream_mr)",
    mr.CallbackMemoryResource: "(allocate_func, deallocate_func, *, device_accessible=True, host_accessible=False)",
    mr.using: "(mr)",
    tenure.DeviceBuffer: "(*, ptr=0, size=0, stream=None, mr=None)",
    tenure.Stream: "(obj=None, flags=None, *, device=None, non_blocking=False)",
}

METHODS = {
    (mr.DeviceMemoryResource, "allocate"): "(self, /, nbytes, stream=None, alignment=256)",
    (mr.DeviceMemoryResource, "deallocate"): "(self, /, ptr, nbytes, stream=None, alignment=256)",
    (mr.DeviceMemoryResource, "owns"): "(self, /, ptr)",
    (mr.DeviceMemoryResource, "info"): "(self, /)",
    (mr.DeviceMemoryResource, "trim"): "(self, /, keep_bytes=0)",
    (mr.DeviceMemoryResource, "same_as"): "(self, /, other)",
    (mr.UpstreamResourceAdaptor, "get_upstream"): "(self, /)",
    (mr.PoolMemoryResource, "pool_size"): "(self, /)",
    (mr.BinningMemoryResource, "add_bin"): "(self, /, allocation_size, bin_resource=None)",
    (mr.CudaAsyncMemoryResource, "pool_handle"): "(self, /)",
    (mr.CudaAsyncViewMemoryResource, "pool_handle"): "(self, /)",
    (mr.LimitingResourceAdaptor, "get_allocated_bytes"): "(self, /)",
    (mr.LimitingResourceAdaptor, "get_allocation_limit"): "(self, /)",
    (mr.StatisticsResourceAdaptor, "push_counters"): "(self, /)",
    (mr.StatisticsResourceAdaptor, "pop_counters"): "(self, /)",
    (tenure.DeviceBuffer, "to_device"): "(b, stream=None, mr=None)",
    (tenure.DeviceBuffer, "adopt"): "(ptr, size, *, stream, mr=None, owner=None, device=None)",
    (tenure.DeviceBuffer, "capacity"): "(self, /)",
    (tenure.DeviceBuffer, "resize"): "(self, /, new_size, stream=None)",
    (tenure.DeviceBuffer, "reserve"): "(self, /, new_capacity, stream=None)",
    (tenure.DeviceBuffer, "copy"): "(self, /, stream=None, mr=None)",
    (tenure.DeviceBuffer, "copy_to_host"): "(self, /, ary=None, stream=None)",
    (tenure.DeviceBuffer, "copy_from_host"): "(self, /, ary, stream=None)",
    (tenure.DeviceBuffer, "copy_from_device"): "(self, /, cuda_ary, stream=None)",
    (tenure.DeviceBuffer, "tobytes"): "(self, /, stream=None)",
    (tenure.DeviceBuffer, "record_stream"): "(self, /, stream)",
    (tenure.DeviceBuffer, "set_stream"): "(self, /, stream)",
    (tenure.DeviceBuffer, "close"): "(self, /, stream=None)",
    (tenure.DeviceBuffer, "detach"): "(self, /)",
    (tenure.DeviceBuffer, "export_handle"): "(self, /, kind=None)",
    (tenure.DeviceBuffer, "from_handle"): "(handle, stream=None, *, device=None)",
    (tenure.DeviceBuffer, "__dlpack__"): "(self, /, *, stream=None, max_version=None, dl_device=None, copy=None)",
    (tenure, "from_dlpack"): "(obj, *, stream=None)",
    (tenure, "from_cuda_array_interface"): "(obj, *, stream=None)",
    (mr, "owner_of"): "(ptr)",
    (mr, "misuse_count"): "()",
    (mr, "get_current_device_resource"): "()",
    (mr, "set_current_device_resource"): "(mr)",
    (mr, "reset_current_device_resource"): "()",
    (mr, "get_per_device_resource"): "(device)",
    (mr, "set_per_device_resource"): "(device, mr)",
    (tenure.sim, "busy"): "(stream, ms)",
    (tenure.sim, "fail_next"): "(call, code, after=0)",
    (tenure.sim, "violations"): "()",
}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_constructors(cls):
    assert str(inspect.signature(cls)) == CLASSES[cls]


@pytest.mark.parametrize("method", METHODS, ids=lambda pair: f"{pair[0].__name__}.{pair[1]}")
def test_methods(method):
    holder, name = method
    assert str(inspect.signature(getattr(holder, name))).replace("$", "") == METHODS[method]


def test_classes_say_where_they_live():
    for name in mr.__all__:
        value = getattr(mr, name)
        if inspect.isclass(value):
            assert value.__module__ == "tenure.mr" and value.__doc__
    for name in ("DeviceBuffer", "Stream", "OutOfMemoryError", "OwnershipError", "CudaError"):
        assert getattr(tenure, name).__module__ == "tenure"


def test_exceptions_are_the_built_in_ones_as_well():
    assert issubclass(tenure.OutOfMemoryError, MemoryError)
    assert issubclass(tenure.OwnershipError, ValueError)
    assert issubclass(tenure.CudaError, RuntimeError)


def test_hierarchy():
    names = ["FixedSizeMemoryResource", "BinningMemoryResource", "ArenaMemoryResource"]
    for name in [*names, "PoolMemoryResource", "LimitingResourceAdaptor", "StatisticsResourceAdaptor"]:
        assert issubclass(getattr(mr, name), mr.UpstreamResourceAdaptor)
    for name in mr.__all__:
        if name.endswith("Resource") or name.endswith("Adaptor"):
            assert issubclass(getattr(mr, name), mr.DeviceMemoryResource)


def test_figures(cuda):
    pool = mr.PoolMemoryResource(cuda)
    kept = tenure.DeviceBuffer(size=1000, mr=pool)
    info = pool.info()
    assert info.as_dict()["live_bytes"] == info.live_bytes >= kept.size
    assert info.peak_live_bytes >= info.live_bytes and info.reserved_bytes >= info.live_bytes
    assert info == pool.info() and hash(info) == hash(pool.info()) and "live_count=1" in repr(info)
    assert pool.pool_size() == info.reserved_bytes
    del kept
    assert pool.trim() > 0
    assert pool.info().reserved_bytes == 0
    with pytest.raises(ValueError):
        pool.trim(-1)


def test_statistics(cuda):
    counting = mr.StatisticsResourceAdaptor(cuda)
    kept = tenure.DeviceBuffer(size=100, mr=counting)
    tenure.DeviceBuffer(size=50, mr=counting)
    assert (
        counting.allocation_counts.as_dict()
        == {
            "current_bytes": 100,
            "current_count": 1,
            "peak_bytes": 150,
            "peak_count": 2,
            "total_bytes": 150,
            "total_count": 2,
        }
        or counting.allocation_counts.peak_count == 1
    )
    counting.push_counters()
    inner = tenure.DeviceBuffer(size=10, mr=counting)
    assert counting.allocation_counts.total_bytes == 10
    popped = counting.pop_counters()
    assert (popped.current_bytes, popped.current_count) == (10, 1)
    assert counting.allocation_counts.current_bytes == 110
    assert kept.size + inner.size == 110
    for error in (ValueError, IndexError):
        with pytest.raises(error, match="cannot pop the last counter pair"):
            counting.pop_counters()
