"""The same Python object while one is alive, else one of the concrete class; and objects that were never made."""

from __future__ import annotations

import gc
import weakref

import pytest
import tenure
from tenure import DeviceBuffer

mr = tenure.mr

PLAIN = [mr.CudaMemoryResource, mr.ManagedMemoryResource, mr.PinnedHostMemoryResource, mr.SystemMemoryResource]


def make(name, cuda):
    return {
        "CudaMemoryResource": lambda: mr.CudaMemoryResource(),
        "ManagedMemoryResource": lambda: mr.ManagedMemoryResource(),
        "PinnedHostMemoryResource": lambda: mr.PinnedHostMemoryResource(),
        "SystemMemoryResource": lambda: mr.SystemMemoryResource(),
        "CudaAsyncMemoryResource": lambda: mr.CudaAsyncMemoryResource(),
        "PoolMemoryResource": lambda: mr.PoolMemoryResource(cuda),
        "FixedSizeMemoryResource": lambda: mr.FixedSizeMemoryResource(cuda, 4096, 4),
        "BinningMemoryResource": lambda: mr.BinningMemoryResource(cuda, 12, 14),
        "ArenaMemoryResource": lambda: mr.ArenaMemoryResource(cuda, "2MiB"),
        "LimitingResourceAdaptor": lambda: mr.LimitingResourceAdaptor(cuda, 1 << 20),
        "StatisticsResourceAdaptor": lambda: mr.StatisticsResourceAdaptor(cuda),
        "CallbackMemoryResource": lambda: mr.CallbackMemoryResource(cuda.allocate, cuda.deallocate),
    }[name]()


ALL = [
    "CudaMemoryResource",
    "ManagedMemoryResource",
    "PinnedHostMemoryResource",
    "SystemMemoryResource",
    "CudaAsyncMemoryResource",
    "PoolMemoryResource",
    "FixedSizeMemoryResource",
    "BinningMemoryResource",
    "ArenaMemoryResource",
    "LimitingResourceAdaptor",
    "StatisticsResourceAdaptor",
    "CallbackMemoryResource",
]


@pytest.mark.parametrize("name", ALL)
def test_getters_give_the_same_object(name, cuda):
    resource = make(name, cuda)
    assert type(resource).__name__ == name
    assert mr.set_current_device_resource(resource) is not None
    assert mr.get_current_device_resource() is resource
    assert mr.get_per_device_resource(0) is resource
    stream = tenure.Stream()
    buffer = DeviceBuffer(size=10, stream=stream, mr=resource)
    assert buffer.mr is resource
    if name != "CallbackMemoryResource":  # there the same block is two resources'
        assert mr.owner_of(buffer.ptr) is resource
    assert mr.LimitingResourceAdaptor(resource, 10).get_upstream() is resource
    assert mr.LimitingResourceAdaptor(resource, 10).upstream_mr is resource
    assert mr.set_current_device_resource(cuda) is resource


@pytest.mark.parametrize("name", ALL)
def test_and_else_one_of_the_concrete_class(name, cuda):
    if name == "CudaMemoryResource":
        pytest.skip("the fixture holds the one object")
    resource = make(name, cuda)
    gone = weakref.ref(resource)
    mr.set_current_device_resource(resource)
    key = resource.id
    del resource
    gc.collect()
    assert gone() is None
    again = mr.get_current_device_resource()
    assert type(again).__name__ == name and again.id == key
    assert again is mr.get_current_device_resource()
    match name:
        case "PoolMemoryResource":
            assert again.pool_size() >= 0
        case "LimitingResourceAdaptor":
            assert again.get_allocation_limit() == 1 << 20
        case "StatisticsResourceAdaptor":
            assert again.allocation_counts.current_count == 0
        case "CallbackMemoryResource":
            assert again.allocate_func == cuda.allocate
        case "CudaAsyncMemoryResource":
            assert again.pool_handle() != 0


@pytest.mark.parametrize("cls", PLAIN)
def test_plain_resources_are_one(cls):
    one, two = cls(), cls()
    assert one is two and one.same_as(two) and one == two
    with pytest.raises(TypeError):
        cls(1)
    with pytest.raises(TypeError):
        type("Sub", (cls,), {})


def test_equality(cuda):
    a, b = mr.PoolMemoryResource(cuda), mr.PoolMemoryResource(cuda)
    assert a == a and a != b and not a.same_as(b) and a.same_as(a)
    assert len({a, b, a}) == 2
    assert a != 1 and not a.same_as("x")
    with pytest.raises(TypeError):
        a < b  # noqa: B015


def test_the_object_that_was_set_is_the_one_that_is_got(cuda):
    """Two objects can stand for one resource when one of them is of a subclass: the last one that was set wins."""

    class Mine(mr.PoolMemoryResource):
        pass

    pool = Mine(cuda)
    pool.note = "kept"
    mr.set_current_device_resource(pool)
    assert mr.get_current_device_resource().note == "kept"
    assert DeviceBuffer(size=1).mr.note == "kept"


class Skips(mr.PoolMemoryResource):
    def __init__(self):
        pass


class Fails(mr.LimitingResourceAdaptor):
    def __init__(self, keep):
        keep.append(self)
        super().__init__("no resource", 10)


class Pure(mr.DeviceMemoryResource):
    def __init__(self):
        pass

    def allocate(self, nbytes, stream=None, alignment=256):
        return 4096


def unmade():
    kept = []
    with pytest.raises(TypeError):
        Fails(kept)
    return [
        Skips(),
        kept[0],
        Pure(),
        mr.PoolMemoryResource.__new__(mr.PoolMemoryResource),
        mr.CallbackMemoryResource.__new__(mr.CallbackMemoryResource),
        mr.DeviceMemoryResource.__new__(mr.DeviceMemoryResource, 1, two=2),
    ]


def test_an_object_that_was_never_made_raises_on_every_method(cuda):
    for resource in unmade():
        for name in dir(resource):
            if name.startswith("_"):
                continue
            if type(resource) is Pure and name == "allocate":
                continue
            with pytest.raises(TypeError):
                member = getattr(resource, name)
                match name:
                    case "allocate" | "owns" | "same_as":
                        member(1)
                    case "deallocate":
                        member(1, 1)
                    case _:
                        member()
        for use in (
            lambda r: DeviceBuffer(size=1, mr=r),
            lambda r: DeviceBuffer(size=0, mr=r),
            mr.set_current_device_resource,
            mr.PoolMemoryResource,
            mr.using,
            lambda r: mr.LimitingResourceAdaptor(r, 1),
        ):
            with pytest.raises(TypeError, match="no resource behind it"):
                use(resource)
        assert "without a resource" in repr(resource)
        assert resource == resource and resource != cuda


def test_a_buffer_that_was_never_made_raises_on_every_method():
    class Empty(DeviceBuffer):
        def __init__(self):
            pass

    failed = []

    class Failing(DeviceBuffer):
        def __init__(self):
            failed.append(self)
            super().__init__(size="lots")

    with pytest.raises(ValueError):
        Failing()
    stream = tenure.Stream()
    for buffer in (Empty(), DeviceBuffer.__new__(DeviceBuffer), failed[0]):
        for use in (
            lambda b: b.ptr,
            lambda b: b.size,
            lambda b: b.nbytes,
            lambda b: b.mr,
            lambda b: b.stream,
            lambda b: b.device,
            lambda b: b.capacity(),
            lambda b: b.resize(1),
            lambda b: b.reserve(1),
            lambda b: b.shrink_to_fit(),
            lambda b: b.copy(),
            lambda b: b.copy_to_host(),
            lambda b: b.copy_from_host(b""),
            lambda b: b.copy_from_device(b),
            lambda b: b.tobytes(),
            lambda b: b.record_stream(stream),
            lambda b: b.set_stream(stream),
            lambda b: b.close(),
            lambda b: b.detach(),
            lambda b: b.__enter__(),
            lambda b: b.__dlpack__(),
            lambda b: b.__dlpack_device__(),
            lambda b: b.__cuda_array_interface__,
            lambda b: b.__reduce__(),
            lambda b: len(b),
            memoryview,
        ):
            with pytest.raises(TypeError, match="never made"):
                use(buffer)
        assert "never made" in repr(buffer)


def test_init_is_called_once(pool, cuda):
    with pytest.raises(RuntimeError, match="second time"):
        pool.__init__(cuda)
    assert pool.info().live_count == 0
    buffer = DeviceBuffer(size=1, mr=pool)
    with pytest.raises(RuntimeError, match="second time"):
        buffer.__init__(size=2, mr=pool)
    assert buffer.size == 1 and pool.info().live_count == 1


def test_base_classes_make_nothing(cuda):
    with pytest.raises(TypeError, match="no resource of its own"):
        mr.DeviceMemoryResource()
    with pytest.raises(TypeError, match="no resource of its own"):
        mr.UpstreamResourceAdaptor(cuda)


def test_a_subclass_with_its_own_constructor(cuda):
    class Sized(mr.PoolMemoryResource):
        def __init__(self, megabytes):
            super().__init__(cuda, maximum_pool_size=f"{megabytes}MiB")
            self.megabytes = megabytes

    pool = Sized(4)
    assert pool.megabytes == 4
    assert DeviceBuffer(size=100, mr=pool).mr is pool
    with pytest.raises(tenure.OutOfMemoryError):
        pool.allocate("8MiB")


def test_cycles_through_python_objects_are_collected(cuda):
    class Holder:
        pass

    holder = Holder()
    holder.pool = type("Pool", (mr.PoolMemoryResource,), {})(cuda)
    holder.pool.holder = holder
    holder.adaptor = mr.StatisticsResourceAdaptor(holder.pool)
    holder.buffer = type("Buffer", (DeviceBuffer,), {})(size=10, mr=holder.adaptor)
    holder.buffer.holder = holder
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None
