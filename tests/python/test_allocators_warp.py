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
        row = tenure.enable("warp", mr=pool)["warp"]
        import warp
        warp.config.quiet = True
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
