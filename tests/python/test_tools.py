"""What a profiler or a memory checker hears of the package: a range per call, a region per block of a pool.

The tool is that of the engine's tests (``crates/tenure-core/tests/tools/recorder.c``), which writes down what it is told.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import child

SOURCE = Path(__file__).resolve().parents[2] / "crates/tenure-core/tests/tools/recorder.c"


@pytest.fixture(scope="module")
def tool(tmp_path_factory):
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    if not SOURCE.is_file():
        pytest.skip("the source of the tool is not here")
    library = tmp_path_factory.mktemp("tool") / "recorder.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", "-o", library, SOURCE], check=True)
    return library


@pytest.fixture
def heard(tool, tmp_path):
    """Runs code with the tool attached and gives the lines that it wrote, without what it heard when it was attached."""

    def run(code: str) -> list[str]:
        record = tmp_path / "record"
        record.unlink(missing_ok=True)
        done = child(code, NVTX_INJECTION64_PATH=str(tool), RECORD=str(record))
        assert done.returncode == 0, done.stderr
        lines = record.read_text().splitlines()
        assert not [line for line in lines if line.startswith("wrong")]
        return [
            line for line in lines if line.split()[0] not in ("opened", "closed", "initialise", "domain", "string", "extension")
        ]

    return run


POOL = """
import tenure
pool = tenure.mr.PoolMemoryResource(tenure.mr.CudaMemoryResource())
"""


def words(lines):
    return [line.split()[0] for line in lines]


def test_a_range_per_call_and_a_region_per_block(heard):
    lines = heard(
        POOL
        + """
buf = tenure.DeviceBuffer(size=1000, mr=pool)
ptr = pool.allocate(63)
pool.deallocate(ptr, 63)
buf.close()
del buf, pool
"""
    )
    ranges = [line for line in lines if line.startswith("push")]
    assert ranges == [
        "push tenure allocate 1000",
        "push tenure allocate 63",
        "push tenure deallocate 63",
        "push tenure deallocate 1000",
    ]
    # One heap, which the pool takes along when it goes.
    assert [word for word in words(lines) if word != "push"] == [
        *("heap", "region", "pop"),
        *("region", "pop"),
        *("noregion", "pop"),
        *("noregion", "pop"),
        "noheap",
    ]
    sizes = [int(line.split()[-1]) for line in lines if line.startswith("region")]
    assert sizes == [1000, 63]


def test_a_buffer_that_goes_out_of_scope(heard):
    lines = heard(
        POOL
        + """
stream = tenure.Stream()
for _ in range(10):
    tenure.DeviceBuffer(size=500, stream=stream, mr=pool)
"""
    )
    assert lines.count("push tenure allocate 500") == lines.count("push tenure deallocate 500") == 10
    assert words(lines).count("pop") == 20
    assert words(lines).count("region") == words(lines).count("noregion") == 10


def test_every_resource_has_ranges_and_only_pools_have_regions(heard):
    lines = heard(
        """
import tenure
plain = tenure.mr.CudaMemoryResource()
counted = tenure.mr.StatisticsResourceAdaptor(plain)
for resource in (plain, counted, tenure.mr.CudaAsyncMemoryResource()):
    tenure.DeviceBuffer(size=4096, mr=resource)
"""
    )
    assert words(lines) == ["push", "pop"] * 6


def test_without_a_tool_nothing_is_written(tool, tmp_path):
    record = tmp_path / "record"
    done = child(POOL + "tenure.DeviceBuffer(size=1000, mr=pool)", RECORD=str(record))
    assert done.returncode == 0, done.stderr
    assert not record.exists()
