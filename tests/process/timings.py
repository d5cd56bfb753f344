"""Recovery figures: what each recovery is called, how long its runs took, and all of it as one table.

Between the recoveries, which enter themselves here, and what runs them. Guarantees: percentiles are of runs
that happened (the nearest rank, nothing interpolated); what was lost or doubled stands beside them.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.process.oracle import Account
from tests.process.registry import HELD
from tests.process.world import World


@dataclass(slots=True)
class Runs:
    """How often a recovery is to be run, and the seconds that each run so far took."""

    wanted: int
    small: bool = False
    seconds: list[float] = field(default_factory=list)
    beside: dict[str, list[float]] = field(default_factory=dict)
    """Of other moments of the same runs, by the name of their row."""

    def note(self, row: str, seconds: float) -> None:
        """Take the time of another moment of a run."""
        self.beside.setdefault(row, []).append(seconds)


Recover = Callable[[World, Runs], Awaitable[Account]]


@dataclass(frozen=True, slots=True)
class Recovery:
    """One recovery: `play` has it happen as often as is wanted, and returns the account of all of it.

    bar_s: what p95 of its runs may be, None where it is only printed; spark: whether it needs Spark, whose
    start alone takes longer than all of the others in their small form.
    """

    name: str
    play: Recover
    bar_s: float | None
    spark: bool = False


RECOVERIES: dict[str, Recovery] = {}


def recovery(name: str, bar_s: float | None, *, spark: bool = False) -> Callable[[Recover], Recover]:
    """Enter a function as the recovery `name`."""

    def enter(play: Recover) -> Recover:
        assert name not in RECOVERIES, name
        RECOVERIES[name] = Recovery(name, play, bar_s, spark)
        return play

    return enter


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. verdict: `held`, or what went wrong in the runs; it says nothing of times."""

    name: str
    seconds: tuple[float, ...]
    bar_s: float | None
    account: Account
    verdict: str = HELD

    @property
    def held(self) -> bool:
        """Whether every run came to its end with each record there once."""
        return self.verdict == HELD

    @property
    def is_within(self) -> bool:
        """Whether p95 is within the bar."""
        return self.held and (self.bar_s is None or rank(self.seconds, 0.95) <= self.bar_s)

    def content(self) -> dict[str, Any]:
        """As it stands in the report."""
        return {
            "name": self.name,
            "runs": len(self.seconds),
            "p50_s": round(rank(self.seconds, 0.5), 4),
            "p95_s": round(rank(self.seconds, 0.95), 4),
            "max_s": round(rank(self.seconds, 1.0), 4),
            "bar_s": self.bar_s,
            "lost": self.account.lost,
            "doubled": self.account.duplicated,
            "accepted": self.account.accepted,
            "verdict": self.verdict,
            "seconds": [round(value, 4) for value in self.seconds],
        }


def rank(seconds: Sequence[float], part: float) -> float:
    """The smallest of `seconds` that `part` of them do not exceed; 0 where there are none."""
    ordered = sorted(seconds)
    return ordered[max(math.ceil(part * len(ordered)), 1) - 1] if ordered else 0.0


HEAD = ("recovery", "runs", "p50", "p95", "maximum", "bar", "lost", "doubled", "")


def table(figures: Sequence[Figure]) -> str:
    """The figures as a table of text."""
    lines = [HEAD, *(_line(figure) for figure in figures)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(HEAD) - 1)]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(line[1:-1], widths[1:], strict=True)]
            + [line[-1]]
        ).rstrip()
        for line in lines
    )


def _line(figure: Figure) -> tuple[str, ...]:
    times = [shown(rank(figure.seconds, part)) if figure.seconds else "-" for part in (0.5, 0.95, 1.0)]
    word = "" if figure.is_within else "above its bar" if figure.held else figure.verdict.split("\n")[0][:100]
    bar = "-" if figure.bar_s is None else shown(figure.bar_s)
    counts = (str(figure.account.lost), str(figure.account.duplicated))
    return (figure.name, str(len(figure.seconds)), *times, bar, *counts, word)


def shown(seconds: float) -> str:
    """For people."""
    return f"{seconds * 1_000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
