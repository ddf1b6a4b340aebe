"""A plugin of pytest's that runs RMM's own Python tests, as they are, with tenure's memory under them.

    PYTHONPATH=tools/bundle python -m pytest -p rmm_base path/to/rmm/python/rmm/rmm/tests

RMM is RMM's own wheel. Before each test tenure's entry is a pool under a counter, which the bridge writes to both of RMM's
tables; each test's end calls ``rmm.reinitialize()``, as RMM's conftest has it, so that the bridge has to notice and to take over
again. ``rmm.mr.CudaMemoryResource()``, on which the tests build their pools and adaptors, is tenure's too.

The run fails where a free was wrong, where blocks are left, or where next to nothing went through tenure.
"""

from __future__ import annotations

import gc
import warnings

import pytest
import rmm
import rmm.mr
import tenure
from tenure.allocators import rmm as plug

LEAVE = ("test_memory_resource_deallocate_stream_none",)
_counter = tenure.mr.StatisticsResourceAdaptor(
    tenure.mr.TrackingResourceAdaptor(tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource()), capture_stacks=True)
)
tenure.enable("rmm")
_TenureMemoryResource = type(plug.to_rmm(_counter))


class CudaMemoryResource(_TenureMemoryResource):
    """What the tests call RMM's plain resource."""

    def __new__(cls):
        return super().__new__(cls, _counter)


rmm.mr.CudaMemoryResource = CudaMemoryResource


@pytest.fixture(autouse=True)
def tenure_is_current(rmm_auto_reinitialize):
    with warnings.catch_warnings():
        # That RMM's reinitialize was noticed.
        warnings.simplefilter("ignore", RuntimeWarning)
        tenure.mr.set_current_device_resource(_counter)
    assert all(entry.agree for entry in plug.check()[:1])


def pytest_sessionfinish(session, exitstatus):
    tenure.mr.reset_current_device_resource()
    gc.collect()
    counts = _counter.allocation_counts
    # Theirs that leave a block on purpose: a free without a stream is refused, and they look no further.
    left = [
        block for block in _counter.upstream_mr.get_outstanding_allocations() if not any(name in block[2] for name in LEAVE)
    ]
    wrong = tenure.mr.misuse_count()
    print(
        f"\ntenure: {counts.total_count} allocations of {counts.total_bytes} bytes through the bridge, "
        f"{counts.current_count} left by RMM's tests, {len(left)} of them by mistake, {wrong} wrong frees"
    )
    for address, size, stack in left:
        print(f"{address:#x}: {size} bytes\n{stack}")
    if wrong or left or counts.total_count < session.testscollected // 10:
        session.exitstatus = 1
