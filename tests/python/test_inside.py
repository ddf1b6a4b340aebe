"""Looking inside: tags, accounts, the snapshot, the history, and what an out-of-memory error has to say."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
import threading

import pytest
import tenure

mr = tenure.mr
MIB = 1 << 20


@pytest.fixture(autouse=True)
def quiet():
    yield
    tenure.record_history(False)
    tenure.observe(False)


@pytest.fixture
def pool(cuda):
    return mr.PoolMemoryResource(cuda, maximum_pool_size="32MiB")


def live(tag):
    account = tenure.usage().get(tag)
    return account.live_bytes if account else 0


def block_of(buffer, snapshot=None):
    """What a snapshot says of a buffer: exactly one live block."""
    snapshot = snapshot or tenure.memory_snapshot()
    found = [b for b in snapshot["blocks"] if b["address"] == buffer.ptr and b["held_by"] is None]
    assert len(found) == 1
    return found[0]


def here():
    """The line that calls this, as frames name it."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"


# ---------------------------------------------------------------- tags
def test_a_tag_counts_what_its_block_allocates(pool):
    with tenure.tag("py outer") as tag:
        a = tenure.DeviceBuffer(size=3000, mr=pool)
        with tenure.tag("py inner"):
            b = tenure.DeviceBuffer(size=5000, mr=pool)
            c = pool.allocate(700)
            d = pool.allocate_many([10, 20])
        e = tenure.DeviceBuffer(size=100, mr=pool)
    f = tenure.DeviceBuffer(size=9000, mr=pool)
    assert (tag.name, repr(tag)) == ("py outer", 'tag("py outer")')
    assert (live("py outer"), live("py inner")) == (3100, 5730)
    assert block_of(b)["tag"] == "py inner"
    assert block_of(f)["tag"] is None
    del a, b, e
    pool.deallocate(c, 700)
    pool.deallocate_many(d, [10, 20])
    assert (live("py outer"), live("py inner")) == (0, 0)
    account = tenure.usage()["py inner"]
    assert isinstance(account, tenure.Usage)
    assert (account.peak_bytes, account.total_bytes, account.total_count) == (5730, 5730, 4)


def test_a_tag_ends_on_every_way_out(pool):
    with pytest.raises(KeyError), tenure.tag("py raised"):
        raise KeyError
    buffer = tenure.DeviceBuffer(size=1000, mr=pool)
    assert block_of(buffer)["tag"] is None
    tag = tenure.tag("py again")
    for _ in range(3):
        with tag, tag:
            pass
    with pytest.raises(RuntimeError, match="without __enter__"):
        tag.__exit__(None, None, None)


@pytest.mark.parametrize("name", ["", "x" * 257, "with\0zero"])
def test_bad_tags(name):
    with pytest.raises(ValueError, match="a tag"):
        tenure.tag(name)


def test_tags_follow_tasks_and_not_plain_threads(pool):
    made = {}

    async def task(name):
        with tenure.tag(name):
            for _ in range(3):
                await asyncio.sleep(0)
                made.setdefault(name, []).append(tenure.DeviceBuffer(size=1000, mr=pool))
                await asyncio.sleep(0)
            made["thread of " + name] = await asyncio.to_thread(tenure.DeviceBuffer, size=1000, mr=pool)

    async def main():
        with tenure.tag("py main"):
            inherits = asyncio.create_task(inherited())
        await asyncio.gather(task("py one"), task("py two"), inherits)

    async def inherited():
        await asyncio.sleep(0)
        made["inherited"] = tenure.DeviceBuffer(size=1000, mr=pool)

    with tenure.tag("py around"):
        thread = threading.Thread(target=lambda: made.update(plain=tenure.DeviceBuffer(size=1000, mr=pool)))
        thread.start()
        thread.join()
    asyncio.run(main())
    snapshot = tenure.memory_snapshot()
    for name in ("py one", "py two"):
        assert [block_of(b, snapshot)["tag"] for b in made[name]] == [name] * 3
        assert block_of(made["thread of " + name], snapshot)["tag"] == name
    assert block_of(made["inherited"], snapshot)["tag"] == "py main"
    # From Python 3.14 on a thread may be told to take the context along.
    if not getattr(sys.flags, "thread_inherit_context", 0):
        assert block_of(made["plain"], snapshot)["tag"] is None
    assert block_of(made["plain"], snapshot)["thread"] != block_of(made["inherited"], snapshot)["thread"]


def test_a_tag_that_ends_in_another_context(pool):
    def steps():
        with tenure.tag("py generator"):
            yield

    generator = steps()
    context = __import__("contextvars").copy_context()
    context.run(next, generator)
    generator.close()
    buffer = context.run(lambda: tenure.DeviceBuffer(size=1000, mr=pool))
    assert block_of(buffer)["tag"] is None


def test_a_tag_counts_in_every_buffer_call(pool):
    plain = tenure.DeviceBuffer(size=1000, mr=pool)
    with tenure.tag("py calls"):
        copy = plain.copy(mr=pool)
        sent = tenure.DeviceBuffer.to_device(b"x" * 1000, mr=pool)
        plain.resize(50_000)
    assert [block_of(b)["tag"] for b in (plain, copy, sent)] == ["py calls"] * 3
    assert live("py calls") == 52_000


# ---------------------------------------------------------------- accounts and the snapshot
def test_accounts_by_thread_and_resource(pool):
    tenure.observe()
    kept = []
    thread = threading.Thread(target=lambda: kept.append(tenure.DeviceBuffer(size=6000, mr=pool)), name="maker")
    thread.start()
    number = thread.native_id
    thread.join()
    threads = {account.id: account for account in tenure.usage("thread").values()}
    assert threads[number].live_bytes == 6000
    assert tenure.usage("resource")[f"pool > cuda (#{pool.id:x})"].live_bytes == 6000
    kept.clear()
    assert tenure.usage("resource")[f"pool > cuda (#{pool.id:x})"].live_bytes == 0
    with pytest.raises(ValueError, match="'tag', 'thread' or 'resource'"):
        tenure.usage("colour")


def test_a_snapshot_has_every_live_block_also_when_nothing_is_booked(cuda, pool):
    resources = [
        cuda,
        pool,
        mr.ManagedMemoryResource(),
        mr.PinnedHostMemoryResource(),
        mr.SystemMemoryResource(),
        mr.CudaAsyncMemoryResource(),
        mr.ArenaMemoryResource(cuda, "8MiB"),
        mr.FixedSizeMemoryResource(cuda, 256 * 1024, 2),
        mr.BinningMemoryResource(cuda, 18, 18),
        mr.StatisticsResourceAdaptor(pool),
        mr.LimitingResourceAdaptor(mr.StatisticsResourceAdaptor(pool), "1MiB"),
    ]
    stream = tenure.Stream()
    buffers = [tenure.DeviceBuffer(size=200 * 1024, stream=stream, mr=resource) for resource in resources]
    snapshot = tenure.memory_snapshot()
    assert json.loads(json.dumps(snapshot)) == snapshot
    assert (snapshot["format"], snapshot["version"]) == ("tenure.memory_snapshot", 1)
    assert snapshot["observing"] is False
    for resource, buffer in zip(resources, buffers, strict=True):
        block = block_of(buffer, snapshot)
        assert block["resource"] == resource.id
        assert 200 * 1024 <= block["size"] <= 256 * 1024
        assert block["stream"] == stream.__cuda_stream__()[1]
        assert (block["tag"], block["thread"]) == (None, None)
    shown = {resource["id"]: resource for resource in snapshot["resources"]}
    assert shown[pool.id]["live_count"] == 3
    ranges = {name: sum(r["size"] for r in shown[pool.id][name]) for name in ("reserved", "free")}
    assert ranges["reserved"] == shown[pool.id]["reserved_bytes"]
    held = sum(b["held"] for b in snapshot["blocks"] if b["layer"] == pool.id)
    assert ranges["free"] == ranges["reserved"] - held
    assert shown[resources[-1].id]["upstream"] == resources[-1].upstream_mr.id
    where = [block["address"] for block in map(block_of, buffers)]
    assert where == [buffer.ptr for buffer in buffers]
    del buffer, buffers
    left = {(b["address"], b["resource"]) for b in tenure.memory_snapshot()["blocks"] if b["held_by"] is None}
    assert not left & {(ptr, r.id) for ptr, r in zip(where, resources, strict=True)}


# ---------------------------------------------------------------- the history
def test_history_has_events_with_the_line_that_allocated(pool):
    tenure.record_history(True, stacks=True)
    buffer, line = tenure.DeviceBuffer(size=123_000, mr=pool), here()
    del buffer
    with pytest.raises(MemoryError):
        pool.allocate(64 * MIB)
    mr.set_current_device_resource(pool)
    pool.trim()
    tenure.record_history(False)
    tenure.DeviceBuffer(size=777, mr=pool)
    events = tenure.memory_snapshot()["events"]
    assert [e["action"] for e in events] == ["allocate", "free", "failure", "set_current", "trim"]
    assert (events[0]["size"], events[0]["frames"][0], events[0]["resource"]) == (123_000, line, pool.id)
    assert events[0]["address"] == events[1]["address"]
    assert [e["time_ns"] for e in events] == sorted(e["time_ns"] for e in events)
    assert "64.00 MiB" in events[2]["detail"]
    assert events[2]["frames"][0].endswith(" test_history_has_events_with_the_line_that_allocated")


def test_history_is_bounded(pool):
    tenure.record_history(True, max_entries=10)
    for size in range(1, 21):
        tenure.DeviceBuffer(size=size, mr=pool)
    snapshot = tenure.memory_snapshot()
    assert [e["size"] for e in snapshot["events"]] == [16, 16, 17, 17, 18, 18, 19, 19, 20, 20]
    assert snapshot["events_dropped"] == 30
    for bad in (0, -1, 1.5, None, 10**9):
        with pytest.raises(ValueError, match="max_entries"):
            tenure.record_history(True, max_entries=bad)


def test_a_snapshot_of_threads_that_allocate_with_stacks(pool):
    tenure.record_history(True, stacks=True, max_entries=1000)

    def work():
        for size in range(1, 300):
            tenure.DeviceBuffer(size=size, mr=pool)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        tenure.memory_snapshot()
    for thread in threads:
        thread.join()
    assert len(tenure.memory_snapshot()["events"]) == 1000
    assert sum(account.live_bytes for account in tenure.usage("resource").values() if account.id == pool.id) == 0


# ---------------------------------------------------------------- out of memory
def notes_of(call):
    with pytest.raises(tenure.OutOfMemoryError) as raised:
        call()
    assert "\n" not in str(raised.value)
    notes = raised.value.__notes__
    assert 1 <= len(notes) <= 8
    return notes


def test_the_largest_holders_are_named(pool):
    tenure.record_history(True, stacks=True)
    with tenure.tag("py model"):
        model, line = tenure.DeviceBuffer(size=10 * MIB, mr=pool), here()
    other = tenure.DeviceBuffer(size=4 * MIB, mr=pool)
    notes = notes_of(lambda: tenure.DeviceBuffer(size=30 * MIB, mr=pool))
    assert notes[0] == f'tag "py model" holds 10.00 MiB in 1 block on the legacy stream, allocated at {line}'
    assert notes[1].startswith(f"pool > cuda (#{pool.id:x}) holds 4.00 MiB")
    assert notes[-1] == f"with maximum_pool_size={44 * MIB} bytes (44.00 MiB) it would have been served"
    del model, other


def test_every_call_that_fails_has_notes(cuda, pool):
    limited = mr.LimitingResourceAdaptor(pool, "1MiB")
    kept = tenure.DeviceBuffer(size=1000, mr=limited)
    calls = [
        lambda: limited.allocate(2 * MIB),
        lambda: limited.allocate_many([2 * MIB]),
        lambda: tenure.DeviceBuffer(size=2 * MIB, mr=limited),
        lambda: kept.resize(2 * MIB),
        lambda: kept.copy(mr=mr.LimitingResourceAdaptor(cuda, 100)),
        lambda: tenure.DeviceBuffer.to_device(bytes(2 * MIB), mr=limited),
    ]
    for call in calls:
        assert "allocation_limit=" in notes_of(call)[-1]
    # What no device could serve no setting can.
    assert not any("would have been served" in note for note in notes_of(lambda: cuda.allocate(7 << 40)))


def test_what_a_callback_raises_is_left_alone(cuda):
    error = MemoryError("mine")

    def allocate(size, stream):
        raise error

    resource = mr.CallbackMemoryResource(allocate, lambda ptr, size, stream: None)
    with pytest.raises(MemoryError) as raised:
        resource.allocate(100)
    assert raised.value is error
    assert not hasattr(error, "__notes__")


REPORT = """
    import tenure
    mr = tenure.mr
    pool = mr.PoolMemoryResource(mr.CudaMemoryResource(), maximum_pool_size="16MiB")
    with tenure.tag("<model>"):
        kept = [tenure.DeviceBuffer(size=3 << 20, mr=pool) for _ in range(4)]
    del kept[1]
    for _ in range({times}):
        try:
            tenure.DeviceBuffer(size=12 << 20, mr=pool)
        except tenure.OutOfMemoryError as error:
            assert error.__notes__
    print(tenure.mr.misuse_count())
"""


def run(source, **env):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr
    return done


def test_a_failure_writes_a_report(tmp_path):
    folder = tmp_path / "new" / "reports"
    run(REPORT.format(times=1), TENURE_OOM_REPORT=str(folder))
    files = sorted(path.name for path in folder.iterdir())
    assert [name.split("-")[-1] for name in files] == ["1.html", "1.json"]
    report = json.loads((folder / files[1]).read_text())
    assert (report["format"], report["version"], report["requested"]) == ("tenure.oom_report", 1, 12 * MIB)
    assert report["holders"][0]["name"] == 'tag "<model>"'
    assert report["holders"][0]["bytes"] == 9 * MIB
    assert len(report["blocks"]) == 3
    assert "maximum_pool_size" in report["advice"]
    assert report["notes"]
    page = (folder / files[0]).read_text()
    assert "&lt;model&gt;" in page
    assert "<model>" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert page.count("<svg") >= 1


def test_reports_are_bounded_and_never_fail_the_caller(tmp_path):
    run(REPORT.format(times=40), TENURE_OOM_REPORT=str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 32
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    run(REPORT.format(times=2), TENURE_OOM_REPORT=str(in_the_way))
    assert in_the_way.read_text() == ""


def test_a_forked_child_may_open_tags():
    run(
        """
        import os, tenure
        with tenure.tag("parent"):
            buffer = tenure.DeviceBuffer(size=1000)
        child = os.fork()
        if child == 0:
            with tenure.tag("child"):
                pass
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )


def test_a_log_has_the_tag_of_each_row(cuda, tmp_path):
    path = tmp_path / "tagged.csv"
    logged = mr.LoggingResourceAdaptor(cuda, log_file_name=str(path))
    with tenure.tag("py logged"):
        buffer = tenure.DeviceBuffer(size=1000, mr=logged)
    del buffer
    (file,) = tmp_path.iterdir()
    rows = [row.split(",")[-1] for row in file.read_text().splitlines()[1:]]
    assert rows[0].strip().strip('"') == "py logged"
    assert rows[1].strip().strip('"') == ""
