"""Rules 1, 2 and 3: who keeps a resource alive, who may free what, and how ownership is taken."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import tenure
from tenure import DEFAULT_STREAM, DeviceBuffer, OwnershipError, Stream


def test_a_buffer_keeps_its_resource(recorder):
    buffer = DeviceBuffer(size=100, mr=recorder.mr)
    del recorder.mr
    gc.collect()
    assert buffer.mr.kind == "callback"
    del buffer
    assert len(recorder.freed) == 1


def test_a_buffer_keeps_a_pool_whose_object_is_gone(cuda, recorder):
    pool = tenure.mr.PoolMemoryResource(recorder.mr)
    buffer = DeviceBuffer(size=100, mr=pool)
    gone = weakref.ref(pool)
    del pool
    assert gone() is None
    assert buffer.mr.info().live_count == 1
    assert buffer.mr.get_upstream() is recorder.mr
    del buffer
    gc.collect()
    assert len(recorder.freed) == len(recorder.allocated)


def test_a_raw_allocation_keeps_its_resource(recorder):
    ptr = recorder.mr.allocate(100)
    del recorder.mr
    gc.collect()
    owner = tenure.mr.owner_of(ptr)
    assert owner.kind == "callback"
    owner.deallocate(ptr, 100)
    assert len(recorder.freed) == 1


def test_adaptors_keep_their_upstream(recorder):
    stack = tenure.mr.LimitingResourceAdaptor(tenure.mr.StatisticsResourceAdaptor(recorder.mr), 1000)
    buffer = DeviceBuffer(size=100, mr=stack)
    del recorder.mr, stack
    gc.collect()
    assert buffer.mr.get_upstream().get_upstream().kind == "callback"
    del buffer
    assert len(recorder.freed) == 1


def test_the_table_keeps_its_resource(recorder):
    tenure.mr.set_current_device_resource(recorder.mr)
    del recorder.mr
    gc.collect()
    DeviceBuffer(size=10).close()
    assert len(recorder.freed) == 1


@pytest.mark.parametrize("wrong", ["resource", "size", "twice", "interior", "unknown", "alignment"])
@pytest.mark.parametrize("kind", ["cuda", "pool", "limiting", "statistics", "callback"])
def test_a_wrong_free_is_an_error_and_changes_nothing(kind, wrong, cuda, recorder):
    mr = {
        "cuda": lambda: cuda,
        "pool": lambda: tenure.mr.PoolMemoryResource(cuda),
        "limiting": lambda: tenure.mr.LimitingResourceAdaptor(cuda, 1 << 20),
        "statistics": lambda: tenure.mr.StatisticsResourceAdaptor(cuda),
        "callback": lambda: recorder.mr,
    }[kind]()
    other = tenure.mr.PoolMemoryResource(cuda)
    # A block whose address does not happen to have the highest alignment.
    blocks = [mr.allocate(1000) for _ in range(2)]
    ptr = min(blocks, key=lambda block: block & -block)
    beyond = (ptr & -ptr) << 1
    before = mr.info()
    with pytest.raises(OwnershipError) as caught:
        match wrong:
            case "resource":
                other.deallocate(ptr, 1000)
            case "size":
                mr.deallocate(ptr, 100_000)
            case "interior":
                mr.deallocate(ptr + 256, 1000)
            case "unknown":
                mr.deallocate(0x1234500, 1000)
            case "alignment":
                mr.deallocate(ptr, 1000, DEFAULT_STREAM, beyond)
            case "twice":
                mr.deallocate(ptr, 1000)
                before = None
                mr.deallocate(ptr, 1000)
    assert isinstance(caught.value, ValueError)
    assert caught.value.ptr and caught.value.size
    if before is not None:
        assert mr.info().live_count == before.live_count
        assert mr.owns(ptr)
        mr.deallocate(ptr, 1000)
    assert not mr.owns(ptr)
    blocks.remove(ptr)
    mr.deallocate(blocks[0], 1000)


def test_owns_and_owner_of(pool, cuda):
    buffer = DeviceBuffer(size=1000, mr=pool)
    assert pool.owns(buffer.ptr) and pool.owns(buffer.ptr + 999)
    assert not pool.owns(buffer.ptr + (1 << 40))
    assert tenure.mr.owner_of(buffer.ptr + 10) is pool
    assert tenure.mr.owner_of(0) is None
    assert tenure.mr.owner_of(id(object())) is None


def test_the_owner_is_who_was_asked(cuda):
    adaptor = tenure.mr.StatisticsResourceAdaptor(cuda)
    buffer = DeviceBuffer(size=1000, mr=adaptor)
    assert tenure.mr.owner_of(buffer.ptr) is adaptor
    assert adaptor.owns(buffer.ptr)


def test_detach_and_adopt_are_inverse(pool, stream):
    buffer = DeviceBuffer.to_device(b"precious", stream, pool)
    ptr, size, mr, home = buffer.detach()
    assert mr is pool and home == stream and size == 8
    assert (buffer.ptr, buffer.size) == (0, 0)
    assert pool.info().live_count == 1
    again = DeviceBuffer.adopt(ptr, size, mr=mr, stream=home)
    assert again.tobytes() == b"precious"
    assert again.ptr == ptr
    del again
    assert pool.info().live_count == 0


def test_a_detached_block_is_freed_by_hand(pool):
    ptr, size, mr, home = DeviceBuffer(size=100, mr=pool).detach()
    mr.deallocate(ptr, size, home)
    assert pool.info().live_count == 0


def test_adopting_with_the_wrong_resource_is_refused(pool, cuda, stream):
    ptr = pool.allocate(100, stream)
    with pytest.raises(OwnershipError):
        DeviceBuffer.adopt(ptr, 100, mr=cuda, stream=stream)
    with pytest.raises(OwnershipError):
        DeviceBuffer.adopt(ptr + 16, 50, mr=pool, stream=stream)
    with pytest.raises(OwnershipError):
        DeviceBuffer.adopt(0xDEAD00, 100, mr=pool, stream=stream)
    assert pool.info().live_count == 1
    pool.deallocate(ptr, 100, stream)


def test_adopting_needs_exactly_one_answer(pool, stream):
    ptr = pool.allocate(100, stream)
    with pytest.raises(ValueError, match="got none"):
        DeviceBuffer.adopt(ptr, 100, stream=stream)
    with pytest.raises(ValueError, match="got both"):
        DeviceBuffer.adopt(ptr, 100, mr=pool, owner=object(), stream=stream)
    with pytest.raises(TypeError):
        DeviceBuffer.adopt(ptr, 100, mr=pool)
    pool.deallocate(ptr, 100, stream)


def test_an_owner_object_is_kept_and_let_go(pool, stream):
    class Owner:
        pass

    owner = Owner()
    gone = weakref.ref(owner)
    block = DeviceBuffer.to_device(b"theirs", mr=pool)
    buffer = DeviceBuffer.adopt(block.ptr, 6, owner=owner, stream=stream)
    del owner
    assert gone() is not None
    assert buffer.tobytes() == b"theirs"
    assert buffer.mr is None
    with pytest.raises((ValueError, NotImplementedError, RuntimeError)):
        buffer.detach()
    del buffer
    assert gone() is None


def test_a_free_function_is_called_once_with_the_stream(pool, stream):
    calls = []
    block = DeviceBuffer(size=64, mr=pool)
    buffer = DeviceBuffer.adopt(block.ptr, 64, owner=lambda *args: calls.append(args), stream=stream)
    buffer.close()
    assert calls == [(block.ptr, 64, stream)]
    del buffer
    assert len(calls) == 1


def test_a_failing_free_function_is_reported(pool, stream, monkeypatch):
    seen = []
    monkeypatch.setattr("sys.unraisablehook", seen.append)
    block = DeviceBuffer(size=64, mr=pool)

    def fail(*_):
        raise ZeroDivisionError("in a free function")

    DeviceBuffer.adopt(block.ptr, 64, owner=fail, stream=stream).close()
    assert [type(u.exc_value) for u in seen] == [ZeroDivisionError]


def test_the_scene_of_the_wrong_label(recorder):
    """A buffer is made under the current resource, the entry is replaced and dropped, another thread frees the buffer."""
    tenure.mr.set_current_device_resource(recorder.mr)
    box = [DeviceBuffer(size=100)]
    assert box[0].mr is recorder.mr
    tenure.mr.set_current_device_resource(tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource()))
    del recorder.mr
    gc.collect()
    thread = threading.Thread(target=box.pop)
    thread.start()
    thread.join()
    assert len(recorder.allocated) == len(recorder.freed) == 1


def test_handles_for_bindings(pool):
    from tenure import _tenure

    buffer = DeviceBuffer.to_device(b"native", mr=pool)
    assert _tenure._borrow_buffer(buffer) != 0
    handle = _tenure._take_buffer(buffer)
    assert (buffer.ptr, buffer.size) == (0, 0)
    assert buffer.mr is pool
    again = _tenure._wrap_buffer(handle)
    assert again.tobytes() == b"native" and again.mr is pool
    assert _tenure._wrap_resource(_tenure._retain_resource(pool)) is pool
    with pytest.raises(TypeError):
        _tenure._borrow_buffer(b"")
    with pytest.raises(TypeError):
        _tenure._borrow_resource(object())
    assert _tenure._borrow_stream(Stream())[0] > 2


@pytest.mark.parametrize("handle", [0, 1, 12345, 2**64 - 1])
def test_a_foreign_handle_is_refused(handle):
    from tenure import _tenure

    with pytest.raises((ValueError, TypeError)):
        _tenure._wrap_buffer(handle)
    with pytest.raises((ValueError, TypeError)):
        _tenure._wrap_resource(handle)
