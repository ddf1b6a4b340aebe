"""Warp on tenure's memory. What needs a GPU runs in the bundle of the GPU. On the simulated device the hook is called as the library would call it."""

from __future__ import annotations

import pytest
import tenure
from plugs import gpu, needs_warp, run

mr = tenure.mr


@needs_warp
@gpu
def test_warp_arrays():
    run(
        """
        import gc, tenure
        pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
        tenure.enable("warp", mr=pool)
        import warp
        warp.config.quiet = True  # what Warp is told before it begins still holds
        tenure.enable("warp", mr=pool)
        array = warp.full(1000, 3.0, dtype=float, device="cuda:0")
        assert pool.owns(array.ptr) and array.numpy()[999] == 3.0
        stream = warp.Stream("cuda:0")
        with warp.ScopedStream(stream):
            other = warp.zeros(1000, dtype=float, device="cuda:0")
        del array, other
        gc.collect()
        warp.synchronize()
        assert pool.info().live_count == 0
        keep = warp.zeros(10, device="cuda:0")
        tenure.disable("warp")
        assert not pool.owns(warp.zeros(10, device="cuda:0").ptr)
        """
    )


@needs_warp
@pytest.mark.needs_sim
@pytest.mark.parametrize("how", ["before", "by its import", "off again"])
def test_warp_is_initialised_by_the_program(how):
    """Turning its hook would do it: Warp would print, and the program's settings would come too late."""
    told = run(
        f"""
        import sys, tenure
        from types import SimpleNamespace
        pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
        if {how!r} == "before":
            import warp
        tenure.enable("warp")
        import warp
        assert tenure.enable("warp", mr=pool)["warp"].state == "on"
        inside = sys.modules["warp._src.context"]
        assert inside.runtime is None, "enable has initialised it"
        # A device, where there is none.
        device = SimpleNamespace(_custom_allocator=None)
        inside.get_cuda_devices = warp.get_cuda_devices = lambda: [device]
        inside.get_device_allocator = warp.get_device_allocator = lambda device: device._custom_allocator
        if {how!r} == "off again":
            tenure.disable("warp")
        print("here", flush=True)
        warp.config.log_level = 40
        warp.init()
        assert inside.runtime is not None and isinstance(inside.Runtime, type)
        if {how!r} == "off again":
            assert device._custom_allocator is None
            tenure.enable("warp", mr=pool)
        assert device._custom_allocator.mr is pool
        assert tenure.disable("warp")["warp"].notes == () and device._custom_allocator is None
        """
    )
    assert told == "here\n"


@needs_warp
@pytest.mark.needs_sim
def test_warp_allocator_keeps_account(pool, monkeypatch):
    import warp
    from tenure.allocators.warp import allocator

    stream = tenure.Stream()
    monkeypatch.setattr(warp, "get_cuda_device", lambda: None)
    monkeypatch.setattr(warp, "get_stream", lambda device: stream)
    made = allocator(pool)
    blocks = [made.allocate(1000) for _ in range(3)]
    assert all(pool.owns(block) for block in blocks) and pool.info().live_count == 3
    for block in blocks:
        made.deallocate(block, 1000)
    assert pool.info().live_count == 0
    with pytest.raises(ValueError, match="freed already"):
        made.deallocate(blocks[0], 1000)
    with pytest.raises(TypeError, match=r"resource of tenure\.mr"):
        allocator(3)
