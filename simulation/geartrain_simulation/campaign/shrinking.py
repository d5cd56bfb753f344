"""The smallest world that still breaks the rule: faults and devices are left out as long as it does.

Guarantees: what is returned fails; none of what is left can be left out alone, unless the tries ran out. The
way is delta debugging (A. Zeller and R. Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

TRIES_MAX = 400


class Tries:
    """A budget of runs."""

    def __init__(self, most: int = TRIES_MAX) -> None:
        self.left = most

    def take(self) -> bool:
        """Take one; False where none is left."""
        self.left -= 1
        return self.left >= 0


def shrink(parts: Sequence[T], fails: Callable[[Sequence[T]], bool], tries: Tries, least: int = 0) -> list[T]:
    """As few of `parts` as still fail, in their order, but at least so many. `fails` runs what is left."""
    kept = list(parts)
    size = max(len(kept) // 2, 1)
    while True:
        at, shrunk = 0, False
        while at < len(kept) and len(kept) > least:
            fewer = kept[:at] + kept[at + size :]
            if len(fewer) >= least and tries.take() and fails(fewer):
                kept, shrunk = fewer, True
            else:
                at += size
        if tries.left <= 0 or (size == 1 and not shrunk):
            return kept
        if not shrunk:
            size = max(size // 2, 1)
