"""Numba-CUDA and numba-cuda-mlir on tenure's memory. What needs a GPU runs in the bundle of the GPU. On the simulated device the hook is called as the library would call it."""

from __future__ import annotations

import gc
import importlib
import weakref

import pytest
import tenure
from plugs import MIB, gpu, has, needs_numba, run

mr = tenure.mr


class Context:
    """What a manager holds weakly."""


@pytest.fixture(params=["numba", "numba-cuda-mlir"])
def numba_kind(request):
    module = {"numba": "numba_cuda", "numba-cuda-mlir": "numba_cuda_mlir"}[request.param]
    if not has(module):
        pytest.skip(f"{request.param} is not installed")
    name = {"numba": "numba.cuda", "numba-cuda-mlir": "numba_cuda_mlir.numba_cuda"}[request.param]
    try:
        driver = importlib.import_module(f"{name}.cudadrv.driver")
    except Exception as error:
        pytest.skip(f"{request.param} cannot be imported here: {type(error).__name__}")
    return request.param, driver


def test_numba_manager_follows_the_interface(numba_kind, pool):
    from tenure.allocators.numba import manager

    library, driver = numba_kind
    kind = manager(pool, library=library)
    assert kind is manager(pool, library=library), "it was built twice"
    assert kind is not manager(library=library) and issubclass(kind, driver.BaseCUDAMemoryManager)
    assert kind(context=None).interface_version == 1
    context = Context()
    made = kind(context=context)
    memory = made.memalloc(1000)
    assert isinstance(memory, driver.MemoryPointer) and memory.size == 1000 and pool.owns(int(memory.device_pointer))
    assert pool.info().live_count == 1
    view = memory.view(10, 20)
    del memory, view
    gc.collect()
    assert pool.info().live_count == 0
    forced = made.memalloc(10)
    forced.free()
    assert pool.info().live_count == 0
    with pytest.raises(RuntimeError, match="dead"):
        forced.free()
    with made.defer_cleanup():
        pass
    made.reset()


def test_numba_sizes_of_zero_do_not_collide(numba_kind, recorder):
    from tenure.allocators.numba import manager

    library, _ = numba_kind
    context = Context()
    made = manager(recorder.mr, library=library)(context=context)
    blocks = [made.memalloc(0) for _ in range(3)]
    assert [int(block.device_pointer) for block in blocks] == [0, 0, 0]
    del blocks
    assert recorder.allocated == [] and recorder.freed == []


def test_numba_blocks_go_home(numba_kind, recorder, pool):
    from tenure.allocators.numba import manager

    library, _ = numba_kind
    context = Context()
    made = manager(library=library)(context=context)
    mr.set_current_device_resource(recorder.mr)
    block = made.memalloc(100)
    mr.set_current_device_resource(pool)
    del block
    gc.collect()
    assert len(recorder.freed) == 1 and pool.info().live_count == 0


def test_numba_out_of_memory_is_numbas(numba_kind, pool):
    from tenure.allocators.numba import manager

    library, driver = numba_kind
    context = Context()
    made = manager(mr.LimitingResourceAdaptor(pool, MIB), library=library)(context=context)
    with pytest.raises(driver.CudaAPIError) as caught:
        made.memalloc(2 * MIB)
    assert caught.value.code == driver.binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    assert isinstance(caught.value, MemoryError) and isinstance(caught.value.__cause__, tenure.OutOfMemoryError)
    assert made.memalloc(1000).size == 1000


def test_numba_manager_of_the_environment(numba_kind):
    """The variable names one module for both libraries, which look there themselves."""
    _, driver = numba_kind
    told = run(
        f"""
        import tenure, importlib
        driver = importlib.import_module({driver.__name__!r})
        driver._ensure_memory_manager()
        context = driver.Context(None, None)
        made = context.memory_manager
        assert isinstance(made, driver.HostOnlyCUDAMemoryManager) and type(made).__name__ == "TenureNumbaManager"
        block = made.memalloc(100)
        print(type(tenure.mr.owner_of(int(block.device_pointer))).__name__)
        """,
        NUMBA_CUDA_MEMORY_MANAGER="tenure.allocators.numba",
    )
    assert told.strip() == "CudaMemoryResource"


@needs_numba
def test_numba_names(numba_kind):
    library, _ = numba_kind
    if library != "numba":
        pytest.skip("the plain names are Numba-CUDA's")
    from tenure.allocators import numba

    assert numba.TenureNumbaManager is numba.RMMNumbaManager is numba.manager()
    with pytest.raises(ValueError, match="numba-cuda-mlir"):
        numba.manager(library="numpy")
    with pytest.raises(TypeError, match=r"resource of tenure\.mr"):
        numba.manager(3)
    with pytest.raises(AttributeError):
        numba.nothing


def test_numba_enable_and_disable(numba_kind, pool):
    library, driver = numba_kind
    row = tenure.enable(library, mr=pool)[library]
    assert row.state == "on" and row.route == "memory manager" and any("stream" in note for note in row.notes)
    first = driver._memory_manager
    tenure.enable(library, mr=pool)
    assert driver._memory_manager is first and first.resource is pool
    tenure.enable(library)
    assert driver._memory_manager.resource is None
    assert tenure.disable(library)[library].state == "off"
    assert driver._memory_manager is driver.NumbaCUDAMemoryManager


def test_numba_keeps_no_resource_that_nobody_uses(numba_kind, cuda):
    """A class is made for each resource, and goes with it."""
    library, driver = numba_kind
    ours = [mr.PoolMemoryResource(cuda) for _ in range(2)]
    for pool in ours:
        tenure.enable(library, mr=pool)
    first = weakref.ref(ours[0])
    del ours, pool
    gc.collect()
    assert first() is None and driver._memory_manager.resource is not None
    tenure.disable(library)


@pytest.mark.needs_sim
@pytest.mark.parametrize("first", ["tenure", "numba"])
def test_numba_blocks_alive_at_exit(numba_kind, first):
    """Numba ends its blocks from an exit function of its own, before or after tenure's. In a cycle, too, and with views."""
    library, driver = numba_kind
    imports = ["import tenure", f"import {driver.__name__} as driver"]
    run(
        "\n".join(imports if first == "tenure" else reversed(imports))
        + f"""
from tenure.allocators.numba import manager
pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
class Context:
    pass
context = Context()
made = manager(pool, library={library!r})(context=context)
kept = [made.memalloc(1000) for _ in range(10)]
kept.append(kept[0].view(10, 20))
kept.append(kept)
del pool
"""
    )


@needs_numba
@gpu
@pytest.mark.parametrize("order", ["before", "after", "environment"])
def test_numba_arrays(order):
    """Turned on before Numba's first context, after it, and by the environment alone."""
    code = f"""
        import gc, sys
        order = {order!r}
        if order == "after":
            from numba import cuda
            early = cuda.to_device([1.0, 2.0])
        import tenure
        pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
        other = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
        tenure.mr.set_current_device_resource(pool)
        if order != "environment":
            tenure.enable("numba")
        import numpy
        from numba import cuda
        try:
            import numba.cuda.np.arrayobj
        except AttributeError as error:  # this Numba and this NumPy are not for each other
            print("no kernels:", error)
            sys.exit()
        @cuda.jit
        def double(array):
            at = cuda.grid(1)
            if at < array.size:
                array[at] *= 2
        array = cuda.to_device(numpy.arange(1000, dtype="f4"))
        assert pool.owns(array.__cuda_array_interface__["data"][0])
        double[8, 128](array)
        assert array.copy_to_host()[10] == 20
        assert cuda.device_array(0).size == 0
        count = pool.info().live_count
        tenure.mr.set_current_device_resource(other)
        del array
        gc.collect()
        assert pool.info().live_count == count - 1 and other.info().live_count == 0
        info = cuda.current_context().get_memory_info()
        assert 0 < info.free <= info.total
        limited = tenure.mr.LimitingResourceAdaptor(other, 1 << 20)
        tenure.mr.set_current_device_resource(limited)
        try:
            cuda.device_array(1 << 22, dtype="u1")
        except MemoryError as error:
            assert isinstance(error, cuda.cudadrv.driver.CudaAPIError)
        else:
            raise AssertionError("no error beyond the limit")
        keep = cuda.device_array(1000)
        if order == "after":
            assert early.copy_to_host()[1] == 2.0
        """
    extra = {"NUMBA_CUDA_MEMORY_MANAGER": "tenure.allocators.numba"} if order == "environment" else {}
    run(code, NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS="0", **extra)


@needs_numba
@gpu
def test_numba_handles_for_other_processes():
    """Plain memory has one; a pool's memory has a sentence."""
    run(
        """
        import tenure
        tenure.enable("numba")
        from numba import cuda
        plain = cuda.device_array(1000, dtype="u1")
        plain.get_ipc_handle()
        tenure.mr.set_current_device_resource(tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource()))
        try:
            cuda.device_array(1000, dtype="u1").get_ipc_handle()
        except RuntimeError as error:
            assert "PoolMemoryResource" in str(error) and "CudaMemoryResource()" in str(error), error
        else:
            print("this pool's memory has a handle")
        """
    )
