"""Bad input gives a clear error and changes nothing: sizes, types, addresses, alignments."""

from __future__ import annotations

import itertools

import pytest
import tenure
from hypothesis import given, settings
from hypothesis import strategies as st
from tenure import DeviceBuffer

mr = tenure.mr

HUGE = [2**63 - 1, 2**63, 2**64 - 4096, 2**64 - 257, 2**64 - 256, 2**64 - 1]


def consumers(pool):
    buffer = DeviceBuffer.to_device(b"unchanged", mr=pool)
    return buffer, [
        lambda size: DeviceBuffer(size=size, mr=pool),
        lambda size: pool.allocate(size),
        lambda size: buffer.resize(size),
        lambda size: buffer.reserve(size),
    ]


def limit(cuda, size):
    size = tenure.parse_bytes(size)
    # A limit of nothing is refused, and not because of how it is written.
    return mr.LimitingResourceAdaptor(cuda, size).get_allocation_limit() if size else 0


@pytest.mark.parametrize("size", HUGE)
def test_sizes_near_the_end(size, pool, cuda, recorder):
    buffer, uses = consumers(pool)
    adaptors = [mr.LimitingResourceAdaptor(cuda, 2**64 - 1), mr.StatisticsResourceAdaptor(cuda), recorder.mr]
    uses += [adaptor.allocate for adaptor in [cuda, *adaptors]]
    for use in uses:
        with pytest.raises((tenure.OutOfMemoryError, ValueError)):
            use(size)
    assert buffer.tobytes() == b"unchanged"
    assert pool.info().live_count == 1
    for adaptor in adaptors:
        assert adaptor.info().live_count == 0


@pytest.mark.parametrize(
    "size",
    [
        -1,
        -(2**63),
        -(2**70),
        2**64,
        2**70,
        "-1",
        "lots",
        "",
        " ",
        "GiB",
        "1 XB",
        "1GiBs",
        "1..5GB",
        "0x10",
        "1e3",
        "200%",
        "-5%",
        "%",
        "nan",
        "inf",
        "٣",
        "18446744073709551616",
        "20EiB",
        "9" * 60,
    ],
)
def test_what_is_no_size(size, pool):
    buffer, uses = consumers(pool)
    for use in uses:
        with pytest.raises(ValueError):
            use(size)
    with pytest.raises(ValueError):
        mr.PoolMemoryResource(mr.CudaMemoryResource(), size)
    assert buffer.tobytes() == b"unchanged" and pool.info().live_count == 1


@pytest.mark.parametrize("size", [None, 1.0, 1.5, True, b"1", [], (), object(), 1j])
def test_what_is_not_even_like_a_size(size, pool):
    buffer, uses = consumers(pool)
    for use in uses[1:] if size is None else uses:
        with pytest.raises(TypeError):
            use(size)
    assert buffer.tobytes() == b"unchanged" and pool.info().live_count == 1


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("1KiB", 1024),
        ("1kb", 1000),
        ("1 MiB", 1 << 20),
        ("0.5GiB", 1 << 29),
        ("1GB", 10**9),
        ("2TiB", 2 << 40),
        ("1PiB", 1 << 50),
        ("1_000", 1000),
        (" 16 B ", 16),
        ("1", 1),
        ("16m", 16 * 10**6),
        ("16Ki", 16384),
    ],
)
def test_sizes_as_text(text, size, cuda):
    assert limit(cuda, text) == size


def test_shares_of_the_free_memory(cuda):
    free = tenure.device_info()["free_bytes"]
    assert abs(limit(cuda, "50%") - free / 2) < max(1 << 20, free / 20)
    for nothing in ("0", "0%", 0):
        with pytest.raises(ValueError, match="allocation_limit"):
            mr.LimitingResourceAdaptor(cuda, nothing)
    assert DeviceBuffer(size="1KiB").size == 1024


def test_numbers_of_other_libraries(cuda):
    import numpy as np

    assert limit(cuda, np.int64(77)) == 77
    assert limit(cuda, np.uint64(2**63)) == 2**63
    with pytest.raises(ValueError):
        limit(cuda, np.int8(-1))

    class Index:
        def __index__(self):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        limit(cuda, Index())


@given(st.text(max_size=12))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_size_or_a_value_error(text):
    try:
        limit(mr.CudaMemoryResource(), text)
    except ValueError:
        pass


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 300_000)), max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_life_of_buffers_ends_at_zero(steps):
    pool = mr.PoolMemoryResource(mr.CudaMemoryResource(), maximum_pool_size="64MiB")
    streams = [tenure.Stream() for _ in range(2)]
    alive = []
    for action, number in steps:
        match action:
            case 0 | 1:
                alive.append(DeviceBuffer(size=number, stream=streams[number % 2], mr=pool))
            case 2 if alive:
                alive.pop(number % len(alive))
            case 3 if alive:
                alive[number % len(alive)].resize(number)
                assert alive[number % len(alive)].size == number
            case 4 if alive:
                alive[number % len(alive)].set_stream(streams[number % 2])
            case 5 if alive:
                alive[number % len(alive)].close()
        assert pool.info().live_count == sum(1 for buffer in alive if buffer.ptr)
    ranges = sorted((buffer.ptr, buffer.capacity()) for buffer in alive if buffer.ptr)
    for (start, size), (following, _) in itertools.pairwise(ranges):
        assert start + size <= following
    alive.clear()
    assert pool.info().live_bytes == 0


@pytest.mark.parametrize("alignment", [0, 3, -1, -256, 100, 2**62, 2**63 - 1])
def test_alignments_that_are_none(alignment, pool, cuda):
    for resource in (pool, cuda):
        with pytest.raises(ValueError):
            resource.allocate(100, alignment=alignment)
    ptr = pool.allocate(100)
    with pytest.raises(ValueError):
        pool.deallocate(ptr, 100, alignment=alignment)
    pool.deallocate(ptr, 100)


@pytest.mark.parametrize("alignment", [1, 2, 16, 256, 4096, 65536])
def test_alignments(alignment, pool, cuda):
    for resource in (pool, cuda):
        ptr = resource.allocate(100, alignment=alignment)
        assert ptr % alignment == 0
        resource.deallocate(ptr, 100, alignment=alignment)


@pytest.mark.parametrize("ptr", [-1, 2**64, "1", None, 1.0, object()])
def test_what_is_no_address(ptr, pool, stream):
    for use in (
        lambda p: pool.deallocate(p, 1),
        pool.owns,
        mr.owner_of,
        lambda p: DeviceBuffer.adopt(p, 1, mr=pool, stream=stream),
    ):
        with pytest.raises((TypeError, ValueError)):
            use(ptr)
    if ptr is not None:
        with pytest.raises((TypeError, ValueError)):
            DeviceBuffer(ptr=ptr, size=1, mr=pool)
    assert pool.info().live_count == 0


def test_freeing_null(pool):
    pool.deallocate(0, 0)
    with pytest.raises(ValueError):
        pool.deallocate(0, 100)


def test_pool_arguments(cuda):
    with pytest.raises(TypeError):
        mr.PoolMemoryResource()
    with pytest.raises(ValueError):
        mr.PoolMemoryResource(cuda, "2MiB", "1MiB")
    with pytest.raises(ValueError):
        mr.PoolMemoryResource(cuda, maximum_pool_size=0)
    with pytest.raises((tenure.OutOfMemoryError, ValueError)):
        mr.PoolMemoryResource(cuda, 2**50)
    with pytest.raises((ValueError, tenure.CudaError)):
        mr.PoolMemoryResource(cuda, device=77)
    with pytest.raises((ValueError, tenure.CudaError)):
        mr.CudaAsyncViewMemoryResource(0)
    with pytest.raises(TypeError):
        mr.CudaAsyncViewMemoryResource("pool")
    assert cuda.info().live_count == 0


def test_out_of_memory_has_its_fields(cuda):
    limited = mr.LimitingResourceAdaptor(cuda, 1000)
    kept = DeviceBuffer(size=600, mr=limited)
    with pytest.raises(tenure.OutOfMemoryError) as caught:
        limited.allocate(500)
    error = caught.value
    assert isinstance(error, MemoryError)
    assert (error.requested, error.live, error.limit) == (500, 600, 1000)
    assert "limiting" in error.resource and "500" in str(error)
    assert kept.size == 600
    assert limited.get_allocated_bytes() == 600


def test_devices():
    for wrong in (-1, 99):
        with pytest.raises((ValueError, tenure.CudaError)):
            tenure.set_current_device(wrong)
        with pytest.raises((ValueError, tenure.CudaError)):
            tenure.device_info(wrong)
        with pytest.raises((ValueError, tenure.CudaError)):
            tenure.synchronize(wrong)
    with pytest.raises(TypeError):
        tenure.set_current_device("0")
    assert tenure.get_current_device() == 0


def test_resources_cannot_be_pickled(pool):
    import copy
    import pickle

    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(pool)
    with pytest.raises(TypeError):
        copy.deepcopy(pool)


@pytest.mark.parametrize(
    "kind, arguments, error, text",
    [
        ("PoolMemoryResource", ("80%", 1 << 20), ValueError, "initial_pool_size is '80%'"),
        ("PoolMemoryResource", (2 << 20, "1MiB"), ValueError, "above maximum_pool_size, '1MiB'"),
        ("PoolMemoryResource", (None, 10), ValueError, "maximum_pool_size is 10"),
        ("PoolMemoryResource", (None, 0), ValueError, "maximum_pool_size is 0"),
        ("PoolMemoryResource", ("5 zb",), ValueError, 'initial_pool_size is "5 zb"'),
        ("LimitingResourceAdaptor", (0,), ValueError, "allocation_limit is 0"),
        ("LimitingResourceAdaptor", ("1 xb",), ValueError, "allocation_limit is"),
        ("ArenaMemoryResource", (32 << 10,), ValueError, "arena_size is 32768"),
        ("FixedSizeMemoryResource", (1 << 20, -1), ValueError, "blocks_to_preallocate is -1"),
    ],
)
def test_constructors_name_the_parameter(kind, arguments, error, text):
    with pytest.raises(error, match=text):
        getattr(tenure.mr, kind)(tenure.mr.CudaMemoryResource(), *arguments)


@pytest.mark.parametrize(
    "kind", ["PoolMemoryResource", "ArenaMemoryResource", "BinningMemoryResource", "FixedSizeMemoryResource"]
)
def test_an_upstream_that_is_none(kind):
    with pytest.raises(TypeError, match="upstream_mr must be a resource"):
        getattr(tenure.mr, kind)(None)
