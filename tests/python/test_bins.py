"""Blocks of one size, bins of them, and the arena: RMM's names and parameters, and frees that are checked."""

from __future__ import annotations

import gc
import threading

import pytest
import tenure
from tenure import DeviceBuffer

mr = tenure.mr

KIB, MIB = 1 << 10, 1 << 20
DUMP = "tenure_arena_memory_dump.log"


# ----------------------------------------------------------------------------------------------------------- fixed size


def test_rmms_defaults(cuda):
    blocks = mr.FixedSizeMemoryResource(cuda)
    assert blocks.block_size == MIB and blocks.kind == "fixed_size"
    assert blocks.info().reserved_bytes == 128 * MIB
    assert blocks.upstream_mr is cuda and blocks.get_upstream() is cuda


def test_blocks_are_taken_by_the_chunk(recorder):
    blocks = mr.FixedSizeMemoryResource(recorder.mr, block_size="64KiB", blocks_to_preallocate=4)
    assert len(recorder.allocated) == 1
    buffers = [DeviceBuffer(size=n, mr=blocks) for n in (1, 1000, 64 * KIB, 5)]
    assert len(recorder.allocated) == 1 and blocks.info().live_bytes == 4 * 64 * KIB
    buffers.append(DeviceBuffer(size=1, mr=blocks))
    assert len(recorder.allocated) == 2, "the fifth block takes as many again"
    del blocks
    assert all(type(b.mr) is mr.FixedSizeMemoryResource for b in buffers)
    buffers.clear()
    gc.collect()
    assert len(recorder.freed) == 2


def test_a_request_that_is_larger_than_a_block_says_what_to_do(cuda):
    blocks = mr.FixedSizeMemoryResource(cuda, 4096, 4)
    before = blocks.info()
    for call in (lambda: blocks.allocate(4097), lambda: DeviceBuffer(size="1GiB", mr=blocks)):
        with pytest.raises(ValueError, match=r"block_size is 4096.*binning"):
            call()
    assert blocks.info() == before
    buffer = DeviceBuffer(size=10, mr=blocks)
    buffer.resize(4096)
    with pytest.raises(ValueError, match="block_size"):
        buffer.resize(4097)
    assert buffer.size == 4096


def test_a_free_is_checked_to_the_byte(cuda):
    blocks = mr.FixedSizeMemoryResource(cuda, MIB, 2)
    ptr = blocks.allocate(1000)
    before = blocks.info()
    for address, size in ((ptr, 1001), (ptr, MIB), (ptr + 256, 1000), (ptr + MIB * 100, 1000)):
        with pytest.raises(tenure.OwnershipError):
            blocks.deallocate(address, size)
    with pytest.raises(tenure.OwnershipError):
        mr.FixedSizeMemoryResource(cuda, MIB, 2).deallocate(ptr, 1000)
    assert blocks.info() == before and blocks.owns(ptr)
    blocks.deallocate(ptr, 1000)
    with pytest.raises(tenure.OwnershipError, match="freed already"):
        blocks.deallocate(ptr, 1000)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((0,), ValueError, "block_size is 0"),
        ((-1,), ValueError, "block_size is -1"),
        ((2**60,), ValueError, "block_size"),
        ((MIB, -1), ValueError, "blocks_to_preallocate is -1"),
        ((MIB, 2**64), ValueError, "blocks_to_preallocate"),
        ((MIB, 2**63), ValueError, "blocks_to_preallocate"),
        ((MIB, "128"), TypeError, "blocks_to_preallocate must be a number"),
        ((MIB, True), TypeError, "blocks_to_preallocate"),
        ((MIB, 2**20), tenure.OutOfMemoryError, "fixed_size > cuda"),
    ],
)
def test_blocks_that_make_no_sense(cuda, arguments, error, text):
    with pytest.raises(error, match=text):
        mr.FixedSizeMemoryResource(cuda, *arguments)


# -------------------------------------------------------------------------------------------------------------- binning


def test_each_size_goes_to_the_smallest_bin_that_fits(cuda):
    bins = mr.BinningMemoryResource(cuda, 18, 20)
    assert [type(b) for b in bins.bin_mrs] == [mr.FixedSizeMemoryResource] * 3
    assert [b.block_size for b in bins.bin_mrs] == [256 * KIB, 512 * KIB, MIB]
    assert bins.info().reserved_bytes == 0, "bins take nothing before their first use"
    kept = bins.bin_mrs
    buffers = {n: DeviceBuffer(size=n, mr=bins) for n in (1, 256 * KIB, 256 * KIB + 1, MIB, MIB + 1)}
    assert [b.info().live_count for b in kept] == [2, 1, 1]
    assert bins.info().live_bytes == sum(buffers) and bins.info().live_count == 5
    for buffer in buffers.values():
        assert buffer.mr is bins and mr.owner_of(buffer.ptr) is bins
    del buffer
    buffers.clear()
    assert [b.info().live_count for b in kept] == [0, 0, 0]
    assert bins.info().live_bytes == 0 and bins.trim() > 0


def test_without_exponents_there_are_no_bins(cuda):
    bins = mr.BinningMemoryResource(cuda)
    assert bins.bin_mrs == [] and bins.kind == "binning" and bins.upstream_mr is cuda
    ptr = bins.allocate(1000)
    bins.deallocate(ptr, 1000)


def test_bins_may_come_at_any_time_and_blocks_go_home(cuda):
    bins = mr.BinningMemoryResource(cuda)
    of_upstream = bins.allocate(5000)
    bins.add_bin(MIB)
    of_large = bins.allocate(5000)
    counting = mr.StatisticsResourceAdaptor(cuda)
    bins.add_bin("8KiB", counting)
    of_counting = bins.allocate(5000)
    assert bins.bin_mrs[0] is counting and len(bins.bin_mrs) == 2
    assert counting.allocation_counts.current_bytes == 5000
    with pytest.raises(tenure.OwnershipError, match="5000 bytes"):
        bins.deallocate(of_large, 5001)
    for ptr in (of_upstream, of_large, of_counting):
        bins.deallocate(ptr, 5000)
        with pytest.raises(tenure.OwnershipError):
            bins.deallocate(ptr, 5000)
    assert counting.allocation_counts.current_bytes == 0 and bins.info().live_bytes == 0


def test_a_bin_is_held_and_let_go_of(recorder, cuda):
    bins = mr.BinningMemoryResource(cuda)
    bins.add_bin(4096, mr.StatisticsResourceAdaptor(recorder.mr))
    gc.collect()
    assert type(bins.bin_mrs[0]) is mr.StatisticsResourceAdaptor
    DeviceBuffer(size=100, mr=bins).close()
    assert len(recorder.allocated) == len(recorder.freed) == 1


@pytest.mark.parametrize(
    ("exponents", "text"),
    [
        ((20, 18), "min_size_exponent .20. is above"),
        ((20,), "max_size_exponent is -1"),
        ((-1, 20), "min_size_exponent is -1"),
        ((18, 99), "max_size_exponent is 99"),
    ],
)
def test_exponents_that_make_no_sense(cuda, exponents, text):
    with pytest.raises(ValueError, match=text):
        mr.BinningMemoryResource(cuda, *exponents)


def test_a_bin_in_the_place_of_another(cuda):
    """The new one serves from then on, blocks of the old one go home to the old one, and the figures are of both."""
    bins = mr.BinningMemoryResource(cuda, 12, 12)
    old = bins.allocate(4000)
    counted = mr.StatisticsResourceAdaptor(cuda)
    bins.add_bin(4096, counted)
    assert bins.bin_mrs == [counted]
    new = bins.allocate(4000)
    assert counted.allocation_counts.current_count == 1 and bins.info().live_count == 2
    bins.deallocate(old, 4000)
    assert counted.allocation_counts.current_count == 1 and bins.info().live_count == 1
    bins.deallocate(new, 4000)
    assert counted.allocation_counts.current_count == 0
    assert bins.trim() > 0  # what the old one kept
    bins.add_bin(4096)  # there is one
    bins.add_bin(4096, counted)  # and it is this one
    assert bins.bin_mrs == [counted]


def test_bins_that_make_no_sense(cuda):
    bins = mr.BinningMemoryResource(cuda, 12, 12)
    bins.add_bin(4000)  # there already, rounded
    for size, resource, text in (
        (0, None, "allocation_size is 0"),
        (MIB, bins, "takes its memory from this"),
        (MIB, mr.LimitingResourceAdaptor(bins, 10), "takes its memory from this"),
        (MIB, mr.FixedSizeMemoryResource(cuda, 4096, 0), "4096"),
    ):
        with pytest.raises(ValueError, match=text):
            bins.add_bin(size, resource)
    with pytest.raises(TypeError):
        bins.add_bin(MIB, "cuda")
    with pytest.raises(TypeError):
        bins.add_bin(None)
    assert len(bins.bin_mrs) == 1


# ---------------------------------------------------------------------------------------------------------------- arena


def test_an_arena_has_its_size_and_no_more(recorder):
    arena = mr.ArenaMemoryResource(recorder.mr, "1MiB")
    assert arena.arena_size == MIB and arena.kind == "arena" and len(recorder.allocated) == 1
    buffer = DeviceBuffer(size=MIB, mr=arena)
    with pytest.raises(tenure.OutOfMemoryError, match="arena > ") as caught:
        arena.allocate(1)
    assert caught.value.limit == MIB
    buffer.close()
    DeviceBuffer(size=MIB, mr=arena).close()
    assert len(recorder.allocated) == 1


def test_without_a_size_it_is_half_of_the_free_memory(cuda):
    free = tenure.device_info()["free_bytes"]
    assert mr.ArenaMemoryResource(cuda).arena_size == free // 2 // 256 * 256


def test_threads_share_an_arena(cuda):
    arena = mr.ArenaMemoryResource(cuda, "8MiB")
    errors = []

    def work():
        try:
            stream = tenure.Stream()
            for n in range(50):
                DeviceBuffer(size=n * 1000 + 1, stream=stream, mr=arena).close()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert errors == []
    assert DeviceBuffer(size="8MiB", mr=arena).size == 8 * MIB


def test_a_failure_leaves_the_state_in_a_file_where_that_is_wanted(cuda, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for wanted in (False, True):
        arena = mr.ArenaMemoryResource(cuda, "2MiB", wanted)
        kept = DeviceBuffer(size=1000, mr=arena)
        with pytest.raises(tenure.OutOfMemoryError):
            arena.allocate("4MiB")
        assert (tmp_path / DUMP).exists() == wanted
    text = (tmp_path / DUMP).read_text()
    assert "4.00 MiB requested from arena > cuda" in text and "live blocks" in text and kept.size == 1000


@pytest.mark.parametrize("size", [0, 100, -1, 2**60])
def test_arenas_that_make_no_sense(cuda, size):
    with pytest.raises(ValueError, match="arena_size"):
        mr.ArenaMemoryResource(cuda, size)


# ------------------------------------------------------------------------------------------------------------------ all


@pytest.mark.parametrize("make", ["FixedSizeMemoryResource", "BinningMemoryResource", "ArenaMemoryResource"])
def test_upstreams_are_checked(make):
    with pytest.raises(TypeError, match="resource"):
        getattr(mr, make)("cuda")
    with pytest.raises(TypeError):
        getattr(mr, make)()
    with pytest.raises(ValueError, match="device 77"):
        getattr(mr, make)(mr.CudaMemoryResource(), device=77)
    there = getattr(mr, make).__new__(getattr(mr, make))
    with pytest.raises(TypeError, match="__init__"):
        there.info()


def test_they_serve_as_the_current_resource(cuda):
    bins = mr.BinningMemoryResource(cuda, 12, 16)
    with mr.using(bins):
        buffer = DeviceBuffer.to_device(b"in a bin")
    assert buffer.mr is bins and buffer.tobytes() == b"in a bin"
    assert bins.bin_mrs[0].info().live_count == 1
