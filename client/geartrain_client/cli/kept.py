"""How much state steps keep, in words, as devices and Spark have said."""

from __future__ import annotations


def kept_words(cells: int | None, size: int | None) -> str:
    """Cells and their bytes; None where nobody has said."""
    if cells is None or size is None:
        return "how much that is has not been told yet"
    return f"{cells:,} cell{'' if cells == 1 else 's'}, {bytes_words(size)}"


def bytes_words(size: int) -> str:
    """Bytes with a unit."""
    for limit, unit in ((1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")):
        if size >= limit:
            return f"{size / limit:,.1f} {unit}"
    return f"{size:,} B"
