"""Text of a device, made safe for a log: it may hold control characters and be of any length.

Stands wherever a record or a name that a device chose is shown to people.
"""

from __future__ import annotations

_CHARS_MAX = 1_000


def escaped(text: str) -> str:
    """Text of a device without its control characters, at most 1,000 characters."""
    cut = text if len(text) <= _CHARS_MAX else f"{text[:_CHARS_MAX]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
