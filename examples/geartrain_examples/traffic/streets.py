"""What is known of a street: passes above the limit, and its state minute by minute.

Keyed by street, on the device that has the street. Guarantees: a row of a street's table comes of its clock
and not of its records, so that a street where nothing passes any more says so itself.
"""

from datetime import timedelta
from typing import Any, ClassVar

from msgspec import field

from geartrain import Context, State, Task
from geartrain.aggregates.mean import Mean, Summed
from geartrain.records.event_time import parse_time, to_datetime
from geartrain_examples.traffic.records import Overspeed, Pass, Reading, StreetMinute

MINUTE_US = timedelta(minutes=1) // timedelta(microseconds=1)
CONGESTED_PASSES = 3
CONGESTED_MPS = 5.0
CONGESTED_PCT = 25.0
SILENT_MINUTES = 3
SILENT_PASSES = 3
"""A street is silent when nothing passes after so many minutes of at least so many passes each."""
REST_MINUTES = 60
"""Without an end, a street of which nothing is seen for so long has no more rows until something is."""

_MEAN = Mean()


class TooFast(Task[Pass, Overspeed]):
    """The passes above `limit_mps`."""

    limit_mps: float = 13.89

    def on_next(self, value: Pass, ctx: Context[Overspeed, Any]) -> None:
        """Tell one pass from the limit."""
        if value.speed_mps > self.limit_mps:
            moment = to_datetime(ctx.event_time)
            ctx.emit(Overspeed(moment, value.detector, value.vehicle, value.edge, value.speed_mps))


def as_reading(seen: Pass) -> Reading:
    """A pass as its street takes it, beside the readings of its loops."""
    return Reading(seen.detector, seen.edge, 1, seen.speed_mps, None)


class StreetState(State):
    """Of one street: what the current minute has so far, and the passes of those before, latest last.

    next_time: when the current minute ends, 0 before the first; seen_time: of the last reading or pass.
    """

    speeds: Summed = field(default_factory=_MEAN.create)
    occupancies: Summed = field(default_factory=_MEAN.create)
    before: list[int] = field(default_factory=list)
    next_time: int = 0
    seen_time: int = 0


class Streets(Task[Reading, StreetMinute]):
    """One row for each minute of a street, from its first reading or pass to the minute that `end` lies in.

    end: ISO 8601; empty: as far as time goes on.
    """

    end: str = ""
    state: ClassVar[Any] = StreetState

    def on_next(self, value: Reading, ctx: Context[StreetMinute, StreetState]) -> None:
        """Add to the current minute."""
        now = ctx.state
        if not now.next_time:
            now.next_time = (ctx.event_time // MINUTE_US + 1) * MINUTE_US
            now.before = []
            ctx.notify_at(now.next_time)
        now.seen_time = ctx.event_time
        if value.occupancy_pct is None:
            _MEAN.add_all(now.speeds, [value.speed_mps], [], [])
        else:
            _MEAN.add_all(now.occupancies, [value.occupancy_pct], [], [])

    def on_notify(self, time: int, ctx: Context[StreetMinute, StreetState]) -> None:
        """A minute is over."""
        now = ctx.state
        ctx.emit(_row(ctx.key, time - MINUTE_US, now))
        now.before = [*now.before, now.speeds.count][-SILENT_MINUTES:]
        now.speeds, now.occupancies = _MEAN.create(), _MEAN.create()
        now.next_time = time + MINUTE_US if self._goes_on(time, now) else 0
        if now.next_time:
            ctx.notify_at(now.next_time)

    def _goes_on(self, time: int, now: StreetState) -> bool:
        """Whether the minute that begins at `time` has a row, whatever comes."""
        if self.end:
            return time <= parse_time(self.end)
        return time - now.seen_time < REST_MINUTES * MINUTE_US


def _row(edge: str, minute: int, now: StreetState) -> StreetMinute:
    count = now.speeds.count
    mean_mps = _MEAN.result(now.speeds) if count else None
    occupancy = _MEAN.result(now.occupancies) if now.occupancies.count else None
    level = "free"
    if (mean_mps is not None and count >= CONGESTED_PASSES and mean_mps < CONGESTED_MPS) or (
        occupancy is not None and occupancy >= CONGESTED_PCT
    ):
        level = "congested"
    elif not count and len(now.before) == SILENT_MINUTES and min(now.before) >= SILENT_PASSES:
        level = "silent"
    return StreetMinute(edge, to_datetime(minute), count, mean_mps, occupancy, level)
