"""``rmm.librmm._logger``."""

from __future__ import annotations

from tenure.logger import level_enum

__all__ = ["level_enum"]
