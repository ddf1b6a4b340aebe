"""pylibcudf over tenure: its results and scratch come from tenure's current resource, through RMM and `tenure.enable("rmm")`.

pylibcudf takes a GPU and packages of half a gigabyte, which nothing here fetches: where they are installed, this runs.
"""

from __future__ import annotations

import importlib.util

import pytest
from conftest import DEVICE
from test_rmm_bridge import needs_rmm, run

pytestmark = [
    needs_rmm,
    pytest.mark.skipif(DEVICE != "cuda", reason="pylibcudf's kernels need a GPU"),
    pytest.mark.skipif(importlib.util.find_spec("pylibcudf") is None, reason="pylibcudf is not installed"),
]

TABLE = """
import numpy, pyarrow
import pylibcudf as plc
random = numpy.random.default_rng(1)
rows = 100_000
arrow = pyarrow.table({"key": random.integers(0, 100, rows), "value": random.random(rows)})
def buffers(table):
    todo = list(table.columns())
    while todo:
        column = todo.pop()
        todo += [column.child(n) for n in range(column.num_children())]
        if column.data() is not None and column.data().ptr:
            yield column.data().ptr
first = pool()
mr.set_current_device_resource(first)
table = plc.Table.from_arrow(arrow)
"""


def test_results_lie_in_tenures_pool_and_are_right():
    run(
        TABLE
        + """
counter = mr.StatisticsResourceAdaptor(first)
mr.set_current_device_resource(counter)
groups = plc.groupby.GroupBy(plc.Table(table.columns()[:1]))
keys, (sums,) = groups.aggregate([plc.groupby.GroupByRequest(table.columns()[1], [plc.aggregation.sum()])])
ordered = plc.sorting.sort(table, [plc.types.Order.ASCENDING] * 2, [plc.types.NullOrder.AFTER] * 2)
left, right = plc.join.inner_join(plc.Table(table.columns()[:1]), keys, plc.types.NullEquality.EQUAL)
assert left.size() == right.size() == rows
assert counter.allocation_counts.total_count > 4  # scratch too, not the results alone
assert list(buffers(table)) and all(first.owns(ptr) for ptr in buffers(table))
for made in (keys, sums, ordered, plc.Table([left, right])):
    # The adaptor was asked, so it is the owner.
    assert list(buffers(made)) and all(counter.owns(ptr) for ptr in buffers(made)), made
found = dict(zip(keys.to_arrow().column(0).to_pylist(), sums.to_arrow().column(0).to_pylist()))
wanted = arrow.group_by("key").aggregate([("value", "sum")]).to_pydict()
for key, value in zip(wanted["key"], wanted["value_sum"]):
    assert abs(found[key] - value) < 1e-6
assert ordered.to_arrow().column(0).to_pylist() == sorted(arrow["key"].to_pylist())
"""
    )


def test_columns_go_home_when_the_resource_was_replaced():
    run(
        TABLE
        + """
second = pool()
mr.set_current_device_resource(second)
assert agree()
half = plc.Table.from_arrow(arrow.slice(0, rows // 2))
assert all(second.owns(ptr) for ptr in buffers(half)) and all(first.owns(ptr) for ptr in buffers(table))
in_second = second.info().live_bytes
del table
gc.collect()
assert first.info().live_bytes == 0 and second.info().live_bytes == in_second > 0
del half
gc.collect()
assert second.info().live_bytes == 0
"""
    )


def test_a_failure_is_a_memory_error_and_loses_nothing():
    run(
        TABLE
        + """
small = mr.PoolMemoryResource(mr.CudaMemoryResource(), "1MiB", "1MiB")
mr.set_current_device_resource(small)
try:
    plc.sorting.sort(table, [plc.types.Order.ASCENDING] * 2, [plc.types.NullOrder.AFTER] * 2)
    raise SystemExit("no error")
except MemoryError:
    pass
gc.collect()
assert small.info().live_bytes == 0
mr.set_current_device_resource(first)
plc.sorting.sort(table, [plc.types.Order.ASCENDING] * 2, [plc.types.NullOrder.AFTER] * 2)
"""
    )
