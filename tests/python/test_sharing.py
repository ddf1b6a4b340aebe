"""Memory of one process in another, in real processes, on whatever device there is."""

import multiprocessing
import os
import pickle
import socket
import subprocess
import sys
import threading

import pytest
import tenure
from tenure import sharing

MIB = 1 << 20
WORDS = b"from parent!"
spawn = multiprocessing.get_context("spawn")


def has(make):
    """A resource, or a skip with the reason."""
    try:
        return make()
    except NotImplementedError as error:
        pytest.skip(str(error)[:150])


def exportable(cuda, **options):
    return has(lambda: tenure.mr.PoolMemoryResource(cuda, export_handle_type="fd", **options))


KINDS = {
    "pool": ("fd", lambda cuda: exportable(cuda, chunk_size=2 * MIB)),
    "driver pool": ("fd", lambda cuda: has(lambda: tenure.mr.CudaAsyncMemoryResource(enable_ipc=True))),
    "chunks": ("legacy", lambda cuda: tenure.mr.PoolMemoryResource(cuda, pages="driver")),
    "plain": ("legacy", lambda cuda: cuda),
    "over a pool": ("fd", lambda cuda: tenure.mr.StatisticsResourceAdaptor(exportable(cuda))),
    "bins": ("fd", lambda cuda: tenure.mr.BinningMemoryResource(exportable(cuda), 20, 23)),
    "chunks of a driver pool": (
        "fd",
        lambda cuda: tenure.mr.PoolMemoryResource(
            has(lambda: tenure.mr.CudaAsyncMemoryResource(enable_ipc=True, stream_outlives_buffer=True))
        ),
    ),
}


def filled(mr, size=5 * MIB, words=WORDS, before=3 * MIB):
    """A block that starts somewhere in its piece of memory, and what stands before it."""
    first = tenure.DeviceBuffer(size=before, mr=mr)
    buffer = tenure.DeviceBuffer(size=size, mr=mr)
    buffer.copy_from_host(words + bytes(size - len(words)))
    return first, buffer


def reader(handle, answers):
    buffer, again = handle.open(), tenure.DeviceBuffer.from_handle(handle, tenure.Stream())
    answers.put((buffer.ptr == again.ptr, buffer.tobytes()[:12], buffer.size, buffer.mr.kind, handle.pid))
    again.close()
    buffer.copy_from_host(b"from child!!" + bytes(buffer.size - 12))
    buffer.close()
    answers.put(tenure.mr.misuse_count())


@pytest.mark.parametrize("name", KINDS)
def test_memory_reaches_another_process_and_comes_back_changed(cuda, name):
    kind, make = KINDS[name]
    mr = make(cuda)
    assert kind in sharing.exports(mr)
    _, buffer = filled(mr)
    handle = buffer.export_handle()
    assert (handle.kind, handle.size, handle.pid, len(handle.device_uuid)) == (kind, 5 * MIB, os.getpid(), 16)
    answers = spawn.Queue()
    process = spawn.Process(target=reader, args=(handle, answers))
    process.start()
    assert answers.get(timeout=60) == (True, WORDS, 5 * MIB, "imported", os.getpid())
    assert answers.get(timeout=60) == 0
    process.join(60)
    assert process.exitcode == 0
    assert buffer.tobytes()[:12] == b"from child!!"


def through_a_queue(questions, answers):
    while (handle := questions.get()) is not None:
        with handle:
            answers.put(handle.open().tobytes()[:12])


def test_handles_travel_through_queues(cuda):
    mr = exportable(cuda)
    questions, answers = spawn.Queue(), spawn.Queue()
    process = spawn.Process(target=through_a_queue, args=(questions, answers))
    process.start()
    buffers = []
    for at in range(10):
        buffers += filled(mr, words=b"number %05d" % at, size=MIB)
        questions.put(buffers[-1].export_handle())
        assert answers.get(timeout=60) == b"number %05d" % at
    questions.put(None)
    process.join(60)
    assert process.exitcode == 0


def test_handles_travel_over_a_socket_with_many_descriptors(cuda, monkeypatch):
    mr = exportable(cuda, chunk_size=2 * MIB)
    # More than one message takes.
    monkeypatch.setattr(sharing, "_PER_MESSAGE", 7)
    size = 40 * MIB
    buffer = tenure.DeviceBuffer(size=size, mr=mr)
    buffer.copy_from_host(WORDS + bytes(size - 12))
    here, there = socket.socketpair()
    with buffer.export_handle() as handle, here, there:
        assert len(handle.fds) >= size // (2 * MIB)
        sender = threading.Thread(target=handle.send, args=(here,))
        sender.start()
        got = sharing.SharedHandle.receive(there)
        sender.join()
        with got:
            assert got.fds != handle.fds
            # As every descriptor that Python opens.
            assert not any(os.get_inheritable(fd) for fd in got.fds)
            # In the process itself it is the same memory a second time.
            opened = got.open()
            assert opened.ptr != buffer.ptr and opened.tobytes()[:12] == WORDS
            here.shutdown(socket.SHUT_WR)
            with pytest.raises(EOFError, match="middle of a handle"):
                sharing.SharedHandle.receive(there)


def test_legacy_handles_are_bytes(cuda):
    buffer = filled(cuda)[1]
    data = buffer.export_handle("legacy").to_bytes()
    code = """if True:
        import sys, tenure
        print(tenure.sharing.SharedHandle.from_bytes(bytes.fromhex(sys.argv[1])).open().tobytes()[:12])
    """
    got = subprocess.run([sys.executable, "-c", code, data.hex()], capture_output=True, text=True, timeout=60)
    assert got.stdout.strip() == repr(WORDS), got.stderr


def heir(handle, started, end):
    buffer = handle.open()
    started.set()
    end.wait(60)
    sys.exit(0 if buffer.tobytes()[:12] == WORDS and handle.open().tobytes()[:12] == WORDS else 1)


def test_an_importer_outlives_block_pool_and_handle(cuda):
    mr = exportable(cuda)
    first, buffer = filled(mr)
    started, end = spawn.Event(), spawn.Event()
    handle = buffer.export_handle()
    process = spawn.Process(target=heir, args=(handle, started, end))
    process.start()
    assert started.wait(60)
    handle.close()
    del handle, first, buffer
    mr.trim(0)
    assert mr.info().reserved_bytes == 0
    # New memory, which must not be the old.
    other = tenure.DeviceBuffer(size=8 * MIB, mr=mr)
    other.copy_from_host(b"x" * other.size)
    end.set()
    process.join(60)
    assert process.exitcode == 0


def test_a_handle_keeps_its_buffer(cuda):
    mr = exportable(cuda)
    handle = filled(mr)[1].export_handle()
    assert mr.info().live_bytes == 5 * MIB
    handle.close()
    assert mr.info().live_bytes == 0
    for use in (handle.open, lambda: pickle.dumps(handle), lambda: handle.send(None)):
        with pytest.raises(ValueError, match="the handle is closed"):
            use()


def test_one_mapping_goes_with_its_last_buffer(cuda):
    mr = exportable(cuda)
    before, buffer = filled(mr)
    handles = [buffer.export_handle(), buffer.export_handle(), before.export_handle()]
    opened = [handle.open() for handle in handles]
    assert opened[0].ptr == opened[1].ptr and opened[0].mr.same_as(opened[1].mr)
    imported = opened[0].mr
    assert imported.info().live_count == sum(b.mr.same_as(imported) for b in opened)
    with pytest.raises(NotImplementedError, match="nothing is allocated from memory"):
        tenure.DeviceBuffer(size=1, mr=imported)
    with pytest.raises(NotImplementedError, match="pass its handle on"):
        opened[0].export_handle()
    opened[0].resize(100)
    with pytest.raises(NotImplementedError):
        opened[0].resize(6 * MIB)
    copy = opened[0].copy(mr=mr)
    assert copy.tobytes()[:12] == WORDS
    for buffer in opened:
        buffer.close()
    assert imported.info().live_bytes == 0


def test_what_cannot_be_shared_says_what_would_be(cuda, pool):
    buffer = tenure.DeviceBuffer(size=100, mr=pool)
    if pool.own_ranges:
        assert sharing.exports(pool) == () and pool.export_handle_type is None
        with pytest.raises(NotImplementedError, match=r"export_handle_type=.*enable_ipc=True.*pages="):
            buffer.export_handle()
        mr = exportable(cuda)
        assert mr.export_handle_type == "fd" and sharing.exports(mr) == ("fd",)
        with pytest.raises(NotImplementedError, match="it can as file descriptor"):
            filled(mr)[1].export_handle("legacy")
    with pytest.raises(ValueError, match="no bytes"):
        tenure.DeviceBuffer(size=0, mr=pool).export_handle()
    with pytest.raises(NotImplementedError, match="of the host"):
        tenure.DeviceBuffer(size=1, mr=tenure.mr.SystemMemoryResource()).export_handle()
    with pytest.raises(NotImplementedError, match="takes chunks"):
        tenure.mr.PoolMemoryResource(cuda, pages="driver", export_handle_type="fd")
    with pytest.raises(ValueError, match='export_handle_type is "pipe"'):
        tenure.mr.PoolMemoryResource(cuda, export_handle_type="pipe")
    with pytest.raises(ValueError, match="pages is"):
        tenure.mr.PoolMemoryResource(cuda, pages="mine")
    with pytest.raises(ValueError, match="kind is 'pipe'"):
        buffer.export_handle("pipe")
    with pytest.raises(NotImplementedError, match="use the buffer that was shared"):
        filled(cuda)[1].export_handle().open()


@pytest.mark.needs_sim
def test_a_device_without_fabric_says_so(cuda):
    with pytest.raises(NotImplementedError, match=r"device 0 cannot hand its memory out as asked.*fabric.*file descriptor"):
        tenure.mr.PoolMemoryResource(cuda, export_handle_type="fabric")


def test_broken_handles_are_errors_and_nothing_is_left(cuda):
    mr = exportable(cuda)
    handle = filled(mr)[1].export_handle()
    data = handle.to_bytes()
    for cut in range(0, len(data), 7):
        with pytest.raises(ValueError, match="no handle of shared memory"):
            sharing.SharedHandle.from_bytes(data[:cut] or b"?")
    with pytest.raises(ValueError, match="descriptors and 0 were given"):
        sharing.SharedHandle.from_bytes(data)
    with pytest.raises(ValueError, match="changed on their way"):
        sharing.SharedHandle.from_bytes(data[:50] + b"?" + data[51:])
    # Descriptors that are closed, and descriptors of something else.
    copies = [os.dup(fd) for fd in handle.fds]
    closed = sharing.SharedHandle.from_bytes(data, copies)
    for fd in copies:
        os.close(fd)
    with pytest.raises(ValueError, match="is closed"):
        closed.open()
    closed._fds = []
    others = sharing.SharedHandle.from_bytes(data, [os.open(os.devnull, os.O_RDONLY) for _ in handle.fds])
    with pytest.raises((ValueError, tenure.CudaError)):
        others.open()
    assert handle.open().tobytes()[:12] == WORDS


def test_the_device_is_the_memorys(cuda):
    mr = exportable(cuda)
    handle = filled(mr)[1].export_handle()
    assert handle.open(device=0).device == 0
    if tenure.device_count() > 1:
        with pytest.raises(ValueError, match="lies on device 0"):
            handle.open(device=1)


def stranger(handle, answers):
    try:
        handle.open()
    except NotImplementedError as error:
        answers.put(str(error))


@pytest.mark.needs_sim
def test_a_process_that_does_not_see_the_device_is_told(cuda, monkeypatch):
    second = tenure.mr.PoolMemoryResource(cuda, export_handle_type="fd", device=1)
    tenure.set_current_device(1)
    try:
        _, buffer = filled(second)
        handle = buffer.export_handle()
    finally:
        tenure.set_current_device(0)
    monkeypatch.setenv("TENURE_SIM_DEVICES", "1")
    answers = spawn.Queue()
    process = spawn.Process(target=stranger, args=(handle, answers))
    process.start()
    assert "does not see" in answers.get(timeout=60)
    process.join(60)


@pytest.mark.needs_sim
@pytest.mark.parametrize("name", ["pool", "driver pool", "plain"])
def test_a_failing_driver_leaves_nothing_behind(cuda, name):
    mr = KINDS[name][1](cuda)
    _, buffer = filled(mr)
    open_before = len(os.listdir("/proc/self/fd"))
    calls = {
        "pool": ["cuMemExportToShareableHandle"],
        "driver pool": ["cuMemPoolExportToShareableHandle", "cuMemPoolExportPointer"],
        "plain": ["cuMemGetAddressRange"],
    }[name]
    for call in calls:
        tenure.sim.fail_next(call, 999)
        with pytest.raises(tenure.CudaError):
            buffer.export_handle()
    assert len(os.listdir("/proc/self/fd")) == open_before
    if name != "pool":
        return
    handle = buffer.export_handle()
    used = tenure.sim.used(0)
    for call in ["cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"]:
        tenure.sim.fail_next(call, 999)
        with pytest.raises((ValueError, tenure.CudaError)):
            handle.open()
    assert tenure.sim.used(0) == used
    assert handle.open().tobytes()[:12] == WORDS


@pytest.mark.needs_sim
def test_exports_wait_for_the_work_on_the_streams(cuda):
    mr = exportable(cuda)
    stream, other = tenure.Stream(), tenure.Stream()
    buffer = tenure.DeviceBuffer(size=MIB, stream=stream, mr=mr)
    buffer.record_stream(other)
    for busy in (stream, other):
        tenure.sim.busy(busy, 50)
        handle = buffer.export_handle()
        assert busy.query()
        handle.close()
