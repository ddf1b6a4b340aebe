"""``rmm.rmm``: initialisation. The work is done by ``tenure.reinitialize``; here are RMM's name for an error and its grammar of sizes."""

from __future__ import annotations

from collections.abc import Iterable

import tenure
from tenure import is_initialized, register_reinitialize_hook, unregister_reinitialize_hook

from .pylibrmm.helper import size_text

__all__ = [
    "RMMError",
    "is_initialized",
    "register_reinitialize_hook",
    "reinitialize",
    "unregister_reinitialize_hook",
]


class RMMError(Exception):
    """RMM's own exception. Nothing in RMM 26.10 raises it, and nothing here does; programs name it in ``except`` clauses."""

    def __init__(self, errcode: int, msg: str) -> None:
        self.errcode = errcode
        super().__init__(msg)


def reinitialize(
    pool_allocator: bool = False,
    managed_memory: bool = False,
    initial_pool_size: int | str | None = None,
    maximum_pool_size: int | str | None = None,
    devices: int | list[int] | Iterable[int] | None = 0,
    logging: bool = False,
    log_file_name: str | None = None,
) -> None:
    """Replaces the current resource of each of ``devices``. See ``tenure.reinitialize``, which differs in one point only:
    a size in text is read by RMM's grammar here."""
    tenure.reinitialize(
        pool_allocator=pool_allocator,
        managed_memory=managed_memory,
        initial_pool_size=size_text(initial_pool_size),
        maximum_pool_size=size_text(maximum_pool_size),
        devices=devices,
        logging=logging,
        log_file_name=log_file_name,
    )
