"""What all tests share.

The tests run on the simulated device unless ``TENURE_TEST_DEVICE=cuda``; those marked ``needs_sim`` then are skipped. They
test the package that is installed, or else the one in the source tree. ``TENURE_EXIT_REPEATS`` says how often each exit
scenario runs (default 20).
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

DEVICE = os.environ.setdefault("TENURE_TEST_DEVICE", "sim")
os.environ["TENURE_DEVICE"] = DEVICE
os.environ.setdefault("TENURE_SIM_DEVICES", "2")
os.environ.setdefault("TENURE_SIM_MEMORY", str(256 << 20))

SOURCE_PACKAGE = Path(__file__).resolve().parents[2] / "python"
if SOURCE_PACKAGE.is_dir() and "TENURE_TEST_INSTALLED" not in os.environ:
    sys.path.insert(0, str(SOURCE_PACKAGE))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SOURCE_PACKAGE), os.environ.get("PYTHONPATH")]))

import pytest  # noqa: E402
import tenure  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "needs_sim: only the simulated device can do this")
    config.addinivalue_line("markers", "misuse: makes wrong frees on purpose, so that misuse_count() rises")


def pytest_collection_modifyitems(items):
    if DEVICE != "sim":
        for item in items:
            if "needs_sim" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="only the simulated device can do this"))


@pytest.fixture(autouse=True)
def nothing_left(request):
    """After each test: the plain resource is current, no free was wrong, and the simulated driver was used rightly."""
    misuse = tenure.mr.misuse_count()
    yield
    tenure.mr.reset_current_device_resource()
    gc.collect()
    if DEVICE == "sim":
        tenure.sim.fail_clear()
        assert tenure.sim.violations() == 0
    if "misuse" not in request.keywords:
        assert tenure.mr.misuse_count() == misuse


@pytest.fixture
def cuda():
    return tenure.mr.CudaMemoryResource()


@pytest.fixture
def pool(cuda):
    return tenure.mr.PoolMemoryResource(cuda)


@pytest.fixture
def stream():
    return tenure.Stream()


def child(code: str, *arguments: str, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess:
    """Runs Python code in a process of its own, with this one's environment."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


class Recorder:
    """A resource of Python functions over another one, which keeps account."""

    def __init__(self, upstream):
        self.upstream = upstream
        self.allocated: list[tuple] = []
        self.freed: list[tuple] = []
        self.raise_next: BaseException | None = None
        self.mr = tenure.mr.CallbackMemoryResource(self._allocate, self._deallocate)

    def _allocate(self, nbytes, stream):
        if self.raise_next is not None:
            error, self.raise_next = self.raise_next, None
            raise error
        # A little more, so that of two blocks at one address the smaller one is ours.
        ptr = self.upstream.allocate(nbytes + 16, stream)
        self.allocated.append((ptr, nbytes, stream))
        return ptr

    def _deallocate(self, ptr, nbytes, stream):
        self.freed.append((ptr, nbytes, stream))
        self.upstream.deallocate(ptr, nbytes + 16, stream)


@pytest.fixture
def recorder(cuda):
    return Recorder(cuda)


class Refused(Exception):
    """What the current resource raises in tests in which nobody may ask it."""


@pytest.fixture
def forbidden_current():
    """While this lives, whoever allocates from the current resource gets `Refused`."""

    def refuse(nbytes, stream):
        raise Refused(f"{nbytes} bytes were asked of the current resource")

    tenure.mr.set_current_device_resource(tenure.mr.CallbackMemoryResource(refuse, lambda *_: None))
    yield Refused
    tenure.mr.reset_current_device_resource()
