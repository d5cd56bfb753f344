"""How long a table gets nothing while its flow changes, for the benchmarks of revisions, slots and moves.

The pause is the longest time between two commits of the table around the change, less the median before it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tests.bench.harness import SIZE, Work

RATE = 1_000
"""Records a second of the stream."""
CHANGES = {10: 5, 10_000: 20, 300_000: 5} if SIZE >= 1 else {10: 5, 10_000: 5} if SIZE > 0.1 else {10: 1}
"""How often each change is made, by how many keys have state."""
COMMITS_BEFORE = 10
"""The median gap between so many commits before a change is what its pause is compared with."""


def pause_ms(commits: Sequence[float], at_s: float, until_s: float) -> float:
    """The pause in milliseconds of what was asked for at `at_s`; commits: when they were, in seconds of one
    clock; until_s: the last that counts.
    """
    gaps = [(end, end - begin) for begin, end in pairwise(commits)]
    before = [gap for end, gap in gaps if end <= at_s][-COMMITS_BEFORE:]
    around = [gap for end, gap in gaps if at_s < end < until_s]
    return (max(around) - statistics.median(before)) * 1_000


def report(what: str, keys: int, pauses: Sequence[float], goal_ms: float) -> None:
    """Print and keep the pauses of a change beside what was asked for."""
    contenders: dict[str, Any] = {
        "p50": lambda: statistics.median(pauses),
        "p95": lambda: sorted(pauses)[math.ceil(0.95 * len(pauses)) - 1],
        "longest": lambda: max(pauses),
        "asked for": lambda: goal_ms,
    }
    Work(f"pause of {what}, {keys:,} keys", "ms", contenders, "p50", notes=[how_many(keys)]).run(1)


def how_many(keys: int) -> str:
    """The note below a table: how often the change was made."""
    return f"{CHANGES[keys]} times, {keys:,} keys with state, {RATE:,} records/s; lost 0, doubled 0"
