"""``rmm.pylibrmm.utils``."""

from __future__ import annotations

from tenure import Stream

__all__ = ["as_stream"]


def as_stream(stream: Stream) -> Stream:
    """``stream``. ``None`` is a ``TypeError``, as it is in RMM; any other object with a stream in it becomes a ``Stream``."""
    if stream is None:
        raise TypeError("stream argument cannot be None. Please provide a valid Stream instance.")
    return stream if isinstance(stream, Stream) else Stream(stream)
