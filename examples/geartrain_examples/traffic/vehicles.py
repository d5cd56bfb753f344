"""What is known of a vehicle by its passes: sections that it drove too fast, and its trace.

Keyed by vehicle, in the data centre, where the passes of all devices meet. Guarantees: the passes of a
vehicle count in the order of (time, detector), then of their file, however the streets were dealt. Distances
and speeds are exact until they are written, and compared so.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

from msgspec import field

from geartrain import Context, State, Task
from geartrain.records.event_time import to_datetime
from geartrain_examples.traffic.records import Checkpoint, Leg, Pass, Placed, Section, Trace, TracePass

IMPOSSIBLE_KMH = 200
"""No vehicle is faster: its plate is used twice."""
PASSES_KEPT = 20
"""Of a trace."""

P = TypeVar("P", Pass, Placed)
Out = TypeVar("Out")


def placed(seen: Pass, checkpoints: Mapping[str, Checkpoint]) -> Placed:
    """A pass with the place of its camera."""
    at = checkpoints.get(seen.detector)
    x_m, y_m = (None, None) if at is None else (at.x_m, at.y_m)
    return Placed(seen.detector, seen.edge, seen.vehicle, x_m, y_m)


class InOrder(Task[P, Out]):
    """Takes the passes of a vehicle moment by moment, those of one moment in the order of their detectors.

    Canonical order alone would not do: it orders those of one moment by device. So they wait for a timer one
    microsecond later, which fires before anything later is seen.
    """

    def on_next(self, value: P, ctx: Context[Out, Any]) -> None:
        """Let a pass wait for the others of its moment."""
        ctx.state.waiting.append(value)
        ctx.notify_at(ctx.event_time + 1)

    def on_notify(self, time: int, ctx: Context[Out, Any]) -> None:
        """All passes of the moment before are there."""
        passes, ctx.state.waiting = ctx.state.waiting, []
        self.on_moment(time - 1, sorted(passes, key=lambda one: (one.detector, one.edge)), ctx)

    def on_moment(self, time: int, passes: Sequence[P], ctx: Context[Out, Any]) -> None:
        """All passes of the key at `time`, in order."""
        raise TypeError(f"{type(self).__name__} must define on_moment(time, passes, ctx)")


class Driven(State):
    """Of one vehicle: its last pass, and those that wait for others of the same moment."""

    waiting: list[Placed] = field(default_factory=list)
    last: Placed | None = None
    last_time: int = 0


class Legs(InOrder[Placed, Leg]):
    """The ways from pass to pass that were faster than `limit_kmh`, or than any vehicle."""

    limit_kmh: float = 60.0
    state: ClassVar[Any] = Driven

    def on_moment(self, time: int, passes: Sequence[Placed], ctx: Context[Leg, Driven]) -> None:
        """Compare each pass with the one before."""
        now = ctx.state
        for one in passes:
            if now.last is not None and (leg := self._leg(now.last, now.last_time, one, time)):
                ctx.emit(leg)
            now.last, now.last_time = one, time

    def _leg(self, last: Placed, last_time: int, one: Placed, time: int) -> Leg | None:
        """The way between two passes, if it was that fast."""
        metres, took_us = distance(last, one), time - last_time
        # A metre a microsecond is 3,600,000 km/h; multiplied, so that no time at all is no special case.
        above_limit = metres * 3_600_000 > exact(self.limit_kmh) * took_us
        impossible = metres * 3_600_000 > IMPOSSIBLE_KMH * took_us
        if not metres or not (above_limit or impossible):
            return None
        section = Section(
            to_datetime(time),
            one.vehicle,
            last.detector,
            one.detector,
            to_datetime(last_time),
            float(metres),
            float(metres * 1_000_000 / took_us) if took_us else None,
        )
        return Leg(section, above_limit, impossible)


def distance(left: Placed, right: Placed) -> Fraction:
    """Metres along the streets of a grid, exact; 0 where a place is not known."""
    if left.x_m is None or left.y_m is None or right.x_m is None or right.y_m is None:
        return Fraction(0)
    return abs(exact(left.x_m) - exact(right.x_m)) + abs(exact(left.y_m) - exact(right.y_m))


@lru_cache(maxsize=65_536)
def exact(number: float) -> Fraction:
    """The decimal number that was written, which the nearest float only stands for.

    >>> exact(0.1)
    Fraction(1, 10)
    """
    return Fraction(repr(number))


def too_fast(leg: Leg) -> list[Section]:
    """The section, if it was above the limit."""
    return [leg.section] if leg.above_limit else []


def twice_used(leg: Leg) -> list[Section]:
    """The section, if no vehicle could drive it so."""
    return [leg.section] if leg.impossible else []


class Followed(State):
    """Of one vehicle: its trace, and passes that wait for others of the same moment."""

    waiting: list[Pass] = field(default_factory=list)
    passes: list[TracePass] = field(default_factory=list)


class Traces(InOrder[Pass, Trace]):
    """The last passes of a vehicle, after each."""

    state: ClassVar[Any] = Followed

    def on_moment(self, time: int, passes: Sequence[Pass], ctx: Context[Trace, Followed]) -> None:
        """Lengthen the trace."""
        moment = to_datetime(time)
        fresh = [TracePass(moment, one.detector, one.edge, one.speed_mps) for one in passes]
        ctx.state.passes = (ctx.state.passes + fresh)[-PASSES_KEPT:]
        ctx.emit(Trace(passes[0].vehicle, ctx.state.passes))
