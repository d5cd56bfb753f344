"""The records, functions and tasks of the random flows: small, and each with a way to fail.

All records have the fields `key`, `n`, `x` and `note`, so that any step can follow any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from geartrain import Context, Record, State, Task


class Reading(Record):
    """A record with a key, an integer, a float and an optional text."""

    key: str
    n: int
    x: float
    note: str | None = None


def grow(r: Any) -> Reading:
    """Multiplies, so that integers overflow in the end and become dead letters."""
    return Reading(r.key, r.n * 1_000_003, r.x * 1.5, r.note)


def shift(r: Any) -> Reading:
    """Divides by n + 3: a dead letter for n = -3, an int in the float field now and then."""
    return Reading(r.key, r.n + 1, 7 if r.n == 2 else r.x / (r.n + 3), str(r.n))


def rekey(r: Any) -> Reading:
    """Changes the key, which ends the partition domain."""
    return Reading(r.key[:1], r.n, r.x, r.note)


def spread(r: Any) -> Iterable[Reading]:
    """As many children as n modulo 4."""
    return [Reading(r.key, r.n + i, r.x, r.note) for i in range(r.n % 4)]


def odd(r: Any) -> bool:
    """Raises for n = 5."""
    if r.n == 5:
        raise ValueError("five")
    return bool(r.n % 2 == 1)


def small(r: Any) -> bool:
    """Keeps what is below 100, NaN not."""
    return bool(r.x < 100.0)


def pair_key(r: Any) -> Any:
    """A tuple; a list, which is no key, for n = 7."""
    return [r.key] if r.n == 7 else (r.key, r.n % 3)


def int_key(r: Any) -> Any:
    """An int, too large to be a key now and then; raises for n = 5."""
    return 2**64 if r.n == 6 else 1 // (r.n - 5) * 0 + r.n % 2


def bool_key(r: Any) -> bool:
    """One of two."""
    return bool(r.n > 4)


class Last(Record):
    """A float within a state."""

    x: float = 0.0


class Tally(State):
    """What a key has seen."""

    count: int = 0
    total: int = 0
    last: float = 0.0
    inner: Last | None = None
    recent: list[float] = msgspec.field(default_factory=list)
    seen: list[int] = msgspec.field(default_factory=list)


class Running(Task[Reading, Reading]):
    """Emits the running total of its key; raises for n = 13 after it has changed its state."""

    state: ClassVar[type[Tally]] = Tally
    every: int = 1

    def on_next(self, value: Reading, ctx: Context[Reading, Tally]) -> None:
        tally = ctx.state
        tally.count += 1
        tally.total += abs(value.n)  # beyond 64 bits in the end: a state that cannot be saved
        tally.seen = [*tally.seen[-3:], value.n]
        ctx.emit(Reading(value.key, tally.total, tally.last, repr((tally.seen, tally.inner, tally.recent))))
        tally.last = value.n if tally.count % 3 == 0 else value.x  # an int is a float once it is saved
        tally.inner = Last(tally.count)
        tally.recent = [*tally.recent[-2:], tally.count]
        if tally.count == 9:
            tally.total = "nine"  # type: ignore[assignment]  # a state of another type cannot be saved
        if value.n == 13:
            raise ValueError("thirteen")
        if tally.count % self.every:
            ctx.emit(Reading(str(ctx.key), tally.count, float(ctx.event_time)))
