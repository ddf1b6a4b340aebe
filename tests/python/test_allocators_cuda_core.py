"""cuda.core on tenure's memory. What needs a GPU runs in the bundle of the GPU. On the simulated device the hook is called as the library would call it."""

from __future__ import annotations

import pytest
import tenure
from plugs import gpu, needs_core, run

mr = tenure.mr


@needs_core
@gpu
def test_cuda_core_buffers():
    run(
        """
        import gc, threading, tenure
        pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
        tenure.mr.set_current_device_resource(pool)
        assert tenure.enable("cuda.core")["cuda.core"].state in ("on", "waiting")
        from cuda.core import Device
        device = Device(0)
        device.set_current()
        tenure.enable("cuda.core")
        stream = device.create_stream()
        buffer = device.allocate(1000, stream=stream)
        assert pool.owns(int(buffer.handle)) and buffer.size == 1000 and pool.info().live_count == 1
        assert buffer.memory_resource.is_device_accessible and buffer.device_id == 0
        buffer.close(stream)
        assert pool.info().live_count == 0
        seen = []
        def other():
            mine = Device(0)
            mine.set_current()
            block = mine.allocate(1000, stream=mine.create_stream())
            seen.append(pool.owns(int(block.handle)))
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        gc.collect()
        assert seen == [True] and pool.info().live_count == 0
        # Both ways: tenure takes what cuda.core made, and the other way round.
        block = device.allocate(64, stream=stream)
        stream.sync()
        ours = tenure.from_dlpack(block)
        assert ours.ptr == int(block.handle)
        del ours, block
        tenure.disable("cuda.core")
        assert not pool.owns(int(device.allocate(1000, stream=stream).handle))
        """
    )


@needs_core
def test_cuda_core_resource_is_one_of_cuda_cores(pool):
    core = pytest.importorskip("cuda.core")
    from tenure.allocators.cuda_core import memory_resource

    made = memory_resource(0, pool)
    assert isinstance(made, core.MemoryResource) and made.device_id == 0 and made.is_device_accessible
    assert not made.is_host_accessible and not made.is_managed
    with pytest.raises(TypeError, match=r"resource of tenure\.mr"):
        memory_resource(0, 3)


@needs_core
@pytest.mark.needs_sim
def test_cuda_core_resource_keeps_account(pool, recorder):
    """Called as cuda.core calls it, with a stream of tenure's, which has what is needed of one of cuda.core's."""
    pytest.importorskip("cuda.core")
    from tenure.allocators.cuda_core import _memory_resource_class

    kind = _memory_resource_class()
    first, second = tenure.Stream(), tenure.Stream()
    made = kind(0, recorder.mr)
    # `Buffer` of cuda.core wants a driver: what lies before it is what is tested here.
    with pytest.raises(ValueError, match="no block of this resource"):
        made.deallocate(4096, 10, stream=first)
    for free_on in (first, second):
        buffer = tenure.DeviceBuffer(size=100, stream=first, mr=recorder.mr)
        made._live[buffer.ptr] = (buffer, first.handle)
        ptr = buffer.ptr
        del buffer
        made.deallocate(ptr, 100, stream=free_on)
        assert recorder.freed[-1][:2] == (ptr, 100) and recorder.freed[-1][2].handle == free_on.handle
    assert made._live == {}
