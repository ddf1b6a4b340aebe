"""``rmm.pylibrmm.helper``: RMM's grammar of sizes, which is narrower than tenure's own."""

from __future__ import annotations

import re
from typing import Any

import tenure

__all__ = ["parse_bytes"]

# A number, and a unit that ends in B: "1.5GB", "256 MiB", "100". Beyond RMM's: a share of the free memory, "50%".
_SIZE = re.compile(r"[0-9]+(\.[0-9]*)?[\t ]*(([kmgtp]i?)?b|%)?", re.IGNORECASE | re.ASCII)


def size_text(size: Any) -> Any:
    """``size`` as it is; text that is none of RMM's sizes is a ``ValueError``."""
    if isinstance(size, str) and _SIZE.fullmatch(size) is None:
        raise ValueError(
            f"Could not parse {size} as a byte specification: write a number of bytes, or one with a unit that ends in B, "
            'such as "256MiB" or "1.5GB", or a share of the free memory, such as "50%"'
        )
    return size


def parse_bytes(s: int | str) -> int:
    """The number of bytes that ``s`` says. Text is a number, and a unit of ``B``, ``kB`` ... ``PB`` (thousands) or ``KiB`` ...
    ``PiB`` (1024) in any case, or ``%`` of the memory that is free on the current device."""
    return tenure.parse_bytes(size_text(s))
