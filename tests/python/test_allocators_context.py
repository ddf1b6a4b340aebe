"""What a library's first allocation through tenure leaves behind on its thread, and a hook that there is not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from conftest import DEVICE

gpu = pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")


def test_an_unknown_hook_is_an_attribute_error():
    import tenure

    with pytest.raises(AttributeError, match="jax"):
        tenure.allocators.jax


def on_a_new_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@gpu
def test_cupys_first_allocation_gives_the_thread_a_context():
    """Without a current context the CUDA runtime takes a microsecond and more for each question about the device."""
    cupy = pytest.importorskip("cupy")
    import tenure

    def work() -> tuple[int, int]:
        before = cupy.cuda.driver.ctxGetCurrent()
        with cupy.cuda.using_allocator(tenure.allocators.cupy.tenure_cupy_allocator):
            array = cupy.empty(1024, dtype="u1")
        after = cupy.cuda.driver.ctxGetCurrent()
        del array
        return before, after

    before, after = on_a_new_thread(work)
    assert before == 0 and after != 0
