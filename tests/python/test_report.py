"""``tenure.report()``: what was held at the peak and by whom, what is left, and how long allocating took."""

from __future__ import annotations

import json
import threading
from html.parser import HTMLParser

import pytest
import tenure
from tenure._tenure import _library_buffer

MIB = 1 << 20


@pytest.fixture(autouse=True)
def counting():
    tenure.report(True)
    yield
    tenure.report(False)


def of_library(name, size):
    return _library_buffer(name, size, tenure.DEFAULT_STREAM, None)


def test_the_first_call_begins_and_the_last_stays():
    kept = tenure.DeviceBuffer(size=MIB)
    report = tenure.report()
    assert report.counting and report.live_bytes == MIB and report.seconds > 0
    ended = tenure.report(False)
    assert not ended.counting and ended.live_bytes == MIB
    more = tenure.DeviceBuffer(size=MIB)
    assert tenure.report().live_bytes == MIB
    again = tenure.report(True)
    assert again.counting and (again.live_bytes, again.allocations) == (0, 0)
    # What was out before is not counted out.
    del kept, more
    assert tenure.report().live_bytes == 0


def test_who_held_what_at_the_peak():
    first = of_library("cupy", 3 * MIB)
    second = of_library("torch", 2 * MIB)
    with tenure.tag("loader"):
        third = tenure.DeviceBuffer(size=MIB)
    del first
    fourth = of_library("numba", 2 * MIB)
    report = tenure.report()
    assert report.peak_live_bytes == 6 * MIB and report.live_bytes == 5 * MIB
    held = {name: one.at_peak_bytes for name, one in report.libraries.items()}
    assert held == {"cupy": 3 * MIB, "torch": 2 * MIB, "the program": MIB, "numba": 0}
    assert report.libraries["numba"].peak_bytes == 2 * MIB
    assert report.tags["loader"].at_peak_bytes == MIB and report.tags[""].at_peak_bytes == 5 * MIB
    assert {(block.library, block.size) for block in report.left} == {
        ("torch", 2 * MIB),
        ("numba", 2 * MIB),
        ("the program", MIB),
    }
    assert report.peak_reserved_bytes >= 6 * MIB and report.driver_peak_bytes > 0
    assert report.raw["allocate_calls"] == 4 and report.raw["free_calls"] == 1
    assert 0 < report.allocation_seconds < report.seconds and report.free_seconds > 0
    assert max(point["live_bytes"] for point in report.raw["timeline"]) == 6 * MIB
    del second, third, fourth


def test_the_peak_of_many_threads_is_the_sum_of_its_holders():
    def work():
        for _ in range(200):
            buffers = [of_library("cupy", 4096) for _ in range(5)]
            with tenure.tag("step"):
                tenure.DeviceBuffer(size=10_000)
            buffers.clear()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report = tenure.report()
    assert report.live_bytes == report.live_count == 0 and report.allocations == 4 * 200 * 6
    assert sum(one.at_peak_bytes for one in report.libraries.values()) == report.peak_live_bytes >= 5 * 4096


def test_lines_where_they_are_asked_for():
    tenure.report(True, stacks=True)
    kept = tenure.DeviceBuffer(size=1000)
    (block,) = tenure.report().left
    assert block.maker == block.frames[0] and "test_report.py" in block.maker and block.maker.endswith("asked_for")
    del kept


class Cells(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.texts = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in ("br", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_it_is_shown(tmp_path):
    with tenure.tag("<b>&"):
        kept = of_library("cupy", 3 * MIB)
    report = tenure.report()
    assert "cupy: 3.0 MiB at the peak, 1 allocations" in str(report) and "3.0 MiB in 1 by cupy, tag '<b>&'" in str(report)
    page = Cells()
    page.feed(report._repr_html_())
    assert page.open == [] and {"cupy", "3.0 MiB", "cupy, tag '<b>&'"} <= set(page.texts)
    report.save(tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text()) == report.raw
    del kept


def test_what_is_no_answer():
    for answer in ("yes", 0, 1):
        with pytest.raises(TypeError, match="counting must be"):
            tenure.report(answer)
