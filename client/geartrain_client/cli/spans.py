"""How long something is, in words, for people who read a table or a sentence."""

from __future__ import annotations


def span_words(length_s: float) -> str:
    """A length of time as exactly as one can make use of: in its largest unit of which it has two."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if length_s >= 2 * size:
            return f"{length_s // size:,.0f} {unit}"
    return f"{length_s:,.1f} s"
