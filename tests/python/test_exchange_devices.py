"""Exchange while another device is current: a default stream is that of the device whose memory it is about."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest
import tenure
from conftest import DEVICE
from tenure import DEFAULT_STREAM, DeviceBuffer, Stream
from test_exchange import CUDA, Producer, give_table, no_stream
from test_export import Deleter, DLTensor, ManagedVersioned

MIB = 1 << 20


class On:
    """A device that is current for a while."""

    def __init__(self, device):
        self.device = device

    def __enter__(self):
        self.before = tenure.get_current_device()
        tenure.set_current_device(self.device)

    def __exit__(self, *_):
        tenure.set_current_device(self.before)


@pytest.fixture(autouse=True)
def two_devices():
    if tenure.device_count() < 2:
        pytest.skip("needs two devices")
    yield
    for device in range(2):
        with On(device):
            tenure.synchronize()


@pytest.fixture
def buffer():
    """On device 1 with its default stream at work, while device 0 is current."""
    with On(1):
        made = DeviceBuffer.to_device(bytes(1000), mr=tenure.mr.CudaMemoryResource())
        tenure.sim.busy(DEFAULT_STREAM, 50)
    assert made.device == 1 and tenure.get_current_device() == 0 and not idle(1)
    return made


def idle(device):
    with On(device):
        return DEFAULT_STREAM.query()


READS = {
    "tobytes": lambda buffer: buffer.tobytes(),
    "copy_to_host": lambda buffer: buffer.copy_to_host(),
    "copy_from_host": lambda buffer: buffer.copy_from_host(b"x"),
    "copy": lambda buffer: buffer.copy().tobytes(),
    "DLPack for the CPU": lambda buffer: np.from_dlpack(buffer, device="cpu"),
    "Arrow": lambda buffer: buffer.__arrow_c_device_array__(),
}


@pytest.mark.parametrize("how", READS)
def test_who_reads_waits_for_the_default_stream_of_the_memorys_device(how, buffer):
    READS[how](buffer)
    assert idle(1)


def test_a_copy_waits_for_the_default_stream_of_the_sources_device(buffer):
    """Default streams have one value on all devices."""
    ours = DeviceBuffer(size=1000, mr=tenure.mr.CudaMemoryResource())
    assert ours.device == 0
    ours.copy_from_device(buffer)
    assert not idle(1) and not idle(0), "the host waited, or the copy did not"
    ours.tobytes()
    assert idle(1)


@pytest.mark.parametrize("who", ["home", "theirs"])
def test_the_interface_of_an_array_on_another_device(who, buffer):
    """It does not say on which device its memory is; the driver does."""
    if who == "theirs":
        buffer = None
        with On(1):
            stream = Stream()
            buffer = DeviceBuffer.to_device(bytes(1000), stream, tenure.mr.CudaMemoryResource())
        tenure.sim.busy(stream, 50)
    ours = tenure.from_cuda_array_interface(buffer)
    assert (ours.device, ours.ptr) == (1, buffer.ptr)
    if who == "theirs":
        assert not stream.query() and not idle(1), "the host waited, or our stream does not wait"
        assert idle(0)
    ours.tobytes()
    assert idle(1) and (who == "home" or stream.query())


@pytest.mark.needs_sim
def test_the_interface_of_memory_that_the_driver_does_not_know():
    class Array:
        __cuda_array_interface__ = {
            "data": (ctypes.addressof(ctypes.create_string_buffer(8)), False),
            "shape": (8,),
            "typestr": "|u1",
            "version": 3,
        }

    assert tenure.from_cuda_array_interface(Array()).device == 0
    with On(1):
        assert tenure.from_cuda_array_interface(Array()).device == 1
    Array.__cuda_array_interface__ = {**Array.__cuda_array_interface__, "data": (0, False), "shape": (0,)}
    assert tenure.from_cuda_array_interface(Array()).device == 0


@pytest.mark.needs_sim
@pytest.mark.parametrize("theirs", ["a stream", "the default one"])
def test_a_producers_work_stream_is_of_the_memorys_device(theirs, buffer):
    with On(1):
        stream = Stream()
    if theirs == "a stream":
        tenure.synchronize(1)
        tenure.sim.busy(stream, 50)
    deleter = Deleter(lambda pointer: None)
    shape = (ctypes.c_int64 * 1)(1000)
    tensor = DLTensor(data=buffer.ptr, device_type=CUDA, device_id=1, ndim=1, code=1, bits=8, lanes=1, shape=shape)
    struct = ManagedVersioned(major=1, deleter=ctypes.cast(deleter, ctypes.c_void_p).value, tensor=tensor)

    def from_object(array, out):
        out[0] = ctypes.addressof(struct)
        return 0

    def work_stream(kind, number, out):
        assert number == 1
        out[0] = stream.handle
        return 0

    class Array(Producer):
        pass

    give_table(Array, from_object, work_stream if theirs == "a stream" else no_stream)
    home = None if theirs == "a stream" else stream
    ours = tenure.from_dlpack(Array(None), stream=home)
    assert ours.device == 1 and idle(0)
    # Whichever of the two was at work, the other one waits for it, and the host does not.
    assert not stream.query() and not idle(1)
    del ours
    gc.collect()


@pytest.mark.skipif(DEVICE != "cuda", reason="needs two GPUs: memory of the simulated device is the CPU's for DLPack")
@pytest.mark.parametrize("home", ["a stream", "the default one"])
@pytest.mark.parametrize("how", ["DLPack", "C exchange API"])
def test_a_consumers_default_stream_is_of_the_memorys_device(home, how):
    with On(1):
        stream = Stream() if home == "a stream" else DEFAULT_STREAM
        other = Stream()
        buffer = DeviceBuffer.to_device(bytes(1000), stream, tenure.mr.CudaMemoryResource())
        tenure.sim.busy(stream, 50)
    if how == "DLPack":
        buffer.__dlpack__(stream=1 if home == "a stream" else other.handle)
    else:
        from test_exchange import Exchange, View, api

        table = Exchange.from_address(api.PyCapsule_GetPointer(DeviceBuffer.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))
        assert View(table.view)(buffer, DLTensor()) == 0
    assert idle(0), "the host waited, or the default stream of the current device does"
    if home == "a stream":
        assert not idle(1), "the host waited, or the consumer's stream does not"
    elif how == "DLPack":
        assert not other.query()
