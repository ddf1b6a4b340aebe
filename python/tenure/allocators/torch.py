"""PyTorch on tenure's memory."""

from __future__ import annotations

from typing import Any

_PLUGS: dict[str, Any] = {}
