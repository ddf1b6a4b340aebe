"""Cycles through the engine: a callback resource whose functions belong to what uses it."""

from __future__ import annotations

import gc
import pickle
import weakref

import pytest
from tenure import DeviceBuffer, mr


class Holder:
    """Its methods are the functions of its resource."""

    def __init__(self, freed):
        self.base, self.freed = mr.CudaMemoryResource(), freed
        self.mr = mr.CallbackMemoryResource(self.take, self.give)

    def take(self, nbytes, stream):
        return self.base.allocate(nbytes, stream)

    def give(self, ptr, nbytes, stream):
        self.base.deallocate(ptr, nbytes, stream)
        self.freed.append(nbytes)


@pytest.fixture
def freed():
    gc.collect()
    yield []
    mr.reset_current_device_resource()
    gc.collect()


def let_go(make, freed):
    """Makes a cycle, lets go of it, collects; whether the holder is gone."""
    holder = Holder(freed)
    make(holder)
    end = weakref.ref(holder)
    del holder
    gc.collect()
    return end() is None


def one(holder):
    holder.buffer = DeviceBuffer(size=100, mr=holder.mr)


def many(holder):
    holder.buffers = DeviceBuffer.many([100] * 5, mr=holder.mr)


def without_the_resource(holder):
    one(holder)
    del holder.mr


def by_a_getter(holder):
    one(holder)
    del holder.mr
    holder.found = holder.buffer.mr


def through_the_table(holder):
    mr.set_current_device_resource(holder.mr)
    holder.buffer = DeviceBuffer(size=100)
    mr.reset_current_device_resource()


def in_a_scope(holder):
    with mr.using(holder.mr):
        holder.buffer = DeviceBuffer.to_device(b"x" * 100)
        holder.again = pickle.loads(pickle.dumps(holder.buffer))


def a_copy(holder):
    one(holder)
    holder.copy = holder.buffer.copy()


def resized(holder):
    one(holder)
    holder.buffer.resize(1000)


def no_bytes(holder):
    holder.buffer = DeviceBuffer(mr=holder.mr)


def adopted(holder):
    stream = DeviceBuffer().stream
    holder.buffer = DeviceBuffer.adopt(holder.mr.allocate(100), 100, stream=stream, mr=holder.mr)


def a_subclass(holder):
    class Named(DeviceBuffer):
        pass

    holder.buffer = Named(size=100, mr=holder.mr)


def functions_that_close_over_it(holder):
    base, freed = holder.base, holder.freed

    def take(nbytes, stream):
        return base.allocate(nbytes, stream)

    def give(ptr, nbytes, stream):
        base.deallocate(ptr, nbytes, stream)
        freed.append(nbytes)
        assert kept.buffer is not None

    kept = holder
    holder.mr = mr.CallbackMemoryResource(take, give)
    one(holder)


CYCLES = [
    (lambda holder: None, []),
    (one, [100]),
    (many, [100] * 5),
    (without_the_resource, [100]),
    (by_a_getter, [100]),
    (through_the_table, [100]),
    (in_a_scope, [100] * 2),
    (a_copy, [100] * 2),
    (resized, [100, 1000]),
    (no_bytes, []),
    (adopted, [100]),
    (a_subclass, [100]),
    (functions_that_close_over_it, [100]),
]


@pytest.mark.parametrize("make, sizes", CYCLES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_cycle_is_collected(make, sizes, freed):
    """Each block goes home through functions that are whole, and then they go."""
    assert let_go(make, freed)
    assert freed == sizes


def test_each_class_is_garbage_too(freed):
    """The functions' own class is a part of the garbage, and older than the buffers: it is not taken apart before them."""
    for _ in range(20):

        class Local(Holder):
            def give(self, ptr, nbytes, stream):
                super().give(ptr, nbytes, stream)

        local = Local(freed)
        local.buffer = DeviceBuffer(size=100, mr=local.mr)
        del local, Local
        gc.collect()
    assert freed == [100] * 20


def the_table(holder):
    one(holder)
    mr.set_current_device_resource(holder.mr)


def the_buffer(holder):
    one(holder)
    KEPT.append(holder.buffer)


def a_capsule(holder):
    one(holder)
    KEPT.append(holder.buffer.__dlpack__())


KEPT = []


@pytest.mark.parametrize("make", [the_table, the_buffer, a_capsule], ids=lambda make: make.__name__)
def test_what_somebody_uses_stays_whole(make, freed):
    assert not let_go(make, freed)
    assert freed == []
    if make is the_table:
        assert DeviceBuffer(size=10).size == 10
        assert mr.reset_current_device_resource().kind == "callback"
    KEPT.clear()
    gc.collect()
    assert freed == ([10, 100] if make is the_table else [100])


def test_a_holder_that_is_saved(freed):
    """A finalizer that saves its object finds the buffer closed, and may use it again."""
    saved = []

    class Saved(Holder):
        def __del__(self):
            saved.append(self)

    saver = Saved(freed)
    one(saver)
    del saver
    gc.collect()
    assert len(saved) == 1 and freed == [100]
    buffer = saved[0].buffer
    assert buffer.size == 0
    buffer.resize(50)
    assert buffer.size == 50 and saved[0].mr.allocate_func
    buffer.close()
    assert freed == [100, 50]


def test_errors_in_the_last_free(freed, monkeypatch):
    import sys

    said = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: said.append(unraisable.exc_value))

    class Failing(Holder):
        def give(self, ptr, nbytes, stream):
            super().give(ptr, nbytes, stream)
            raise LookupError("on purpose")

    failing = Failing(freed)
    one(failing)
    del failing
    gc.collect()
    assert freed == [100] and [type(error) for error in said] == [LookupError]
