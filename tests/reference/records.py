"""The records, functions and tasks of the random flows: small, and each with a way to fail.

All records have the fields `key`, `n`, `x` and `note`, so that any step can follow any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import msgspec

from geartrain import Context, Record, State, Task
from geartrain.records.event_time import END_OF_TIME


class Named(Record):
    """The same with other names, as former devices send it."""

    name: str
    n: int
    x: float
    remark: str | None


class Brief(Record):
    """The same in fewer columns, as those before them send it."""

    name: str
    rest: bytes


class Reading(Record):
    """A record with a key, an integer, a float and an optional text."""

    key: str
    n: int
    x: float
    note: str | None = None
    upgrade: ClassVar[Mapping[Any, Any]] = {
        Brief: lambda one: Named(one.name, *msgspec.msgpack.decode(one.rest)),
        Named: lambda one: Reading(one.name, one.n, one.x, one.remark),
    }


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


def bool_key(r: Any) -> Any:
    """One of two. Its type is not said, so that a flow in which the key fits no field is built."""
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


class Alarms(State):
    """What a key that sets timers has seen."""

    count: int = 0
    rearmed: int = 0
    total: float = 0.0


class Timed(Task[Any, Reading]):
    """Sets timers before, at and after its records, and at the end of time; every call can fail."""

    state: ClassVar[type[Alarms]] = Alarms
    rearms: int = 3

    def on_next(self, value: Any, ctx: Context[Reading, Alarms]) -> None:
        alarms, n = ctx.state, value.n
        alarms.count += 1
        ctx.emit(Reading(str(ctx.key), alarms.count, alarms.total, value.note))
        alarms.total += value.x
        if n % 2 == 0:
            ctx.notify_at(ctx.event_time + n % 7)
        if n % 3 == 0:
            ctx.notify_at(ctx.event_time + n)  # may be past, or after the end of time
        if n == 14:
            ctx.notify_at(END_OF_TIME)
        if n == 13:
            raise ValueError("thirteen")

    def on_notify(self, time: int, ctx: Context[Reading, Alarms]) -> None:
        alarms = ctx.state
        alarms.count += 10
        ctx.emit(Reading(str(ctx.key), alarms.count, alarms.total, f"{time} {ctx.event_time}"))
        if alarms.rearmed < self.rearms:
            alarms.rearmed += 1
            ctx.notify_at(time + alarms.rearmed * 2 - 2)  # the first one now
        if alarms.count % 4 == 3:
            raise ValueError("a timer")
        if alarms.count % 3 == 0:
            ctx.emit(Reading(str(ctx.key), 2**63, 0.0))
            ctx.emit(Reading(str(ctx.key), alarms.rearmed, 0.0))

    def on_watermark(self, time: int, ctx: Context[Reading, Alarms]) -> None:
        for forbidden in (ctx.emit, ctx.notify_at):
            try:
                forbidden(Reading("watermark", time, 0.0))  # type: ignore[arg-type]
            except RuntimeError:
                continue


class Bell(Task[Any, Reading]):
    """Timers without a state."""

    def on_next(self, value: Any, ctx: Context[Reading, Any]) -> None:
        ctx.notify_at(ctx.event_time + value.n % 5)

    def on_notify(self, time: int, ctx: Context[Reading, Any]) -> None:
        ctx.emit(Reading(str(ctx.key), time % 10, 0.5))


class Counting(Task[Any, Reading]):
    """A plain number as state, and no `on_notify`: a timer that it sets is refused."""

    state: ClassVar[type[int]] = int

    def on_next(self, value: Any, ctx: Context[Reading, int]) -> None:
        ctx.state += 1
        if value.n == 3:
            ctx.notify_at(ctx.event_time)
        ctx.emit(Reading(str(ctx.key), ctx.state, 0.0))


class Twice(State):
    """A number that was plain before, and how often it was changed since."""

    count: int = 0
    since: int = 0


class Thrice(State):
    """The same in one text."""

    text: str = ""


def twice(count: int) -> Twice:
    """Raises for one number in five."""
    if count % 5 == 4:
        raise ValueError("four")
    return Twice(count=count)


def thrice(one: Twice) -> Thrice:
    """A later one, that is not saved where it is of a wrong type."""
    return Thrice(text=f"{one.count}/{one.since}" if one.count % 7 != 6 else one.count)  # type: ignore[arg-type]


class CountingTwice(Task[Any, Reading]):
    """Goes on with what `Counting` has kept."""

    state: ClassVar[type[Twice]] = Twice
    migrate: ClassVar[Mapping[Any, Any]] = {int: twice}

    def on_next(self, value: Any, ctx: Context[Reading, Twice]) -> None:
        ctx.state.count += 2
        ctx.state.since += 1
        if value.n == 11:
            raise ValueError("eleven")
        ctx.emit(Reading(str(ctx.key), ctx.state.count, float(ctx.state.since)))


class CountingThrice(Task[Any, Reading]):
    """Goes on with what either of them has kept."""

    state: ClassVar[type[Thrice]] = Thrice
    migrate: ClassVar[Mapping[Any, Any]] = {int: twice, Twice: thrice}

    def on_next(self, value: Any, ctx: Context[Reading, Thrice]) -> None:
        ctx.state.text = f"{ctx.state.text[-20:]}+{value.n}"
        ctx.emit(Reading(str(ctx.key), len(ctx.state.text), 0.0, ctx.state.text))


class Alarmed(State):
    """What `Timed` has seen, by other names."""

    total: float = 0.0
    seen: int = 0


def alarmed(alarms: Alarms) -> Alarmed:
    """Raises for one in three."""
    return Alarmed(total=alarms.total, seen=10 // (alarms.count % 3))


class TimedAgain(Task[Any, Reading]):
    """Goes on with what `Timed` has kept, and with its timers."""

    state: ClassVar[type[Alarmed]] = Alarmed
    migrate: ClassVar[Mapping[Any, Any]] = {Alarms: alarmed}

    def on_next(self, value: Any, ctx: Context[Reading, Alarmed]) -> None:
        ctx.state.seen += 1
        ctx.notify_at(ctx.event_time + 3)

    def on_notify(self, time: int, ctx: Context[Reading, Alarmed]) -> None:
        ctx.emit(Reading(str(ctx.key), ctx.state.seen, ctx.state.total, str(time)))


def alarms_at_start() -> dict[Any, Alarms]:
    """States that some keys begin with."""
    keys = ("a0", "d0a0", "d1b\x000", ("a0", 1), 0, True)
    return {key: Alarms(count=number, total=0.5) for number, key in enumerate(keys)}


def counts_at_start() -> dict[Any, int]:
    """Numbers that some keys begin with."""
    return {"a0": 100, "d0a0": 200, 1: 300, False: 400}


def heat(r: Any) -> str:
    """Names a branch, or none; raises for n = 5."""
    return ("hot", "cold", "hot", "luke", "cold")[r.n % 5 if r.n != 5 else 9]


def halve(r: Any) -> Reading:
    """One round of an iteration; raises for n = 12."""
    return Reading(r.key, (r.n + 3) // 2 if r.n != 12 else 1 // 0, r.x * 0.5, r.note)


def done(r: Any) -> bool:
    """Ends an iteration; raises for NaN."""
    if r.x != r.x:
        raise ValueError("not a number")
    return bool(r.n <= 3)


def pair(left: Any, right: Any) -> Reading:
    """Joins two records; raises for n = 8 at the left, and may not fit."""
    if left.n == 8:
        raise ValueError("eight")
    if right is None:
        return Reading(left.key, left.n, -1.0, "alone")
    return Reading(left.key, left.n * 31 + right.n, left.x + right.x, right.note)


def told(r: Any) -> Reading:
    """All of a result that does not depend on where its window lies, so that any step can follow it."""
    return Reading(r.key, r.n, -1.0 if r.x is None else r.x, f"{r.note!r} {r.top}")


def look_up(value: Any, table: Mapping[Any, Any]) -> Reading:
    """Reads the whole table, in its order; raises for n = 9."""
    if value.n == 9:
        raise ValueError("nine")
    found = table.get(value.key)
    seen = ",".join(f"{key}:{small.n}" for key, small in table.items())
    return Reading(value.key, len(table), 0.0 if found is None else found.x, seen)


def mixed_key(r: Any) -> Any:
    """Keys of several types, two of which Python holds for equal."""
    return {1: True, 2: 1, 3: b"b", 4: 1.5}.get(r.n, r.key)
