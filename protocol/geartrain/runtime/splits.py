"""Splits at work: the watermark of each split and the decision, made once at birth, whether a record is
late (I4).

Stands between the reading of a source and its fragment. A split's watermark after a record is the highest
event time so far minus its bound; a record is late iff its time is below the watermark before it.
"""

from __future__ import annotations

from msgspec.structs import replace

from geartrain.declarations.source import Batch as Read
from geartrain.graph.conform import raw_form
from geartrain.ports.spool import SplitProgress
from geartrain.records.batch import Batch, DeadLetter
from geartrain.records.event_time import END_OF_TIME, SECOND_US, START_OF_TIME, format_time

FUTURE_US_MAX = 300 * SECOND_US
"""How far a record may lie in the future of its device's clock."""


class SplitTracker:
    """Progress and watermark of one split of the source step `step`."""

    def __init__(
        self,
        step: str,
        name: str,
        out_of_orderness_us: int,
        progress: SplitProgress | None,
        *,
        since_1970: bool = False,
    ) -> None:
        """`progress`: where a former life got to, None for a fresh start; since_1970: as the source says."""
        self.step, self.name, self._bound_us = step, name, out_of_orderness_us
        self.progress = progress or SplitProgress(0, START_OF_TIME)
        self.quarantined = 0
        """Records refused so far because they were too far in the future."""
        self.before_1970 = 0
        """Records refused so far because their source says that it has none so early."""
        self._earliest = 0 if since_1970 else START_OF_TIME

    @property
    def watermark(self) -> int:
        """No record of this split that is not late will have a lower event time, microseconds."""
        if self.progress.ended:
            return END_OF_TIME
        top = self.progress.max_time
        return top if top == START_OF_TIME else top - self._bound_us

    def idle(self, now_us: int, idle_after_us: int) -> None:
        """Follow the device's clock, because nothing came for so long: the watermark is as if a record had
        come then. It moves in steps of that length, and never back.
        """
        top = min(now_us - idle_after_us, END_OF_TIME - 1)
        if top >= max(self.progress.max_time, START_OF_TIME) + idle_after_us:
            self.progress = replace(self.progress, max_time=top)

    def observe(
        self, poll: Read, now_us: int | None = None
    ) -> tuple[Batch, list[DeadLetter], list[DeadLetter]]:
        """Take what a read gave and move on: (records on time, late records, dead letters of the source).

        A record at or after END_OF_TIME is a dead letter and moves nothing, and so is one more than 5 minutes
        in the future, where `now_us` says what the device's clock shows, and one before 1970, where the
        source says that there is none.
        """
        batch = Batch(list(poll.values), list(poll.times), [self.name] * len(poll.values), list(poll.numbers))
        rejected = [
            DeadLetter(
                self.step, Batch([], [], [self.name], [r.number]).origin(0), r.event_time, r.reason, r.raw
            )
            for r in poll.rejects
        ]
        top, late, beyond = self.progress.max_time, [], []
        latest = END_OF_TIME - 1 if now_us is None else min(now_us + FUTURE_US_MAX, END_OF_TIME - 1)
        if self._in_order(batch.times, latest):
            top = batch.times[-1]
        else:
            for row, time in enumerate(batch.times):
                if time > latest or time < self._earliest:
                    beyond.append(row)
                elif time >= top:
                    top = time
                elif time < top - self._bound_us:
                    late.append(row)
        self.progress = SplitProgress(poll.position, top, poll.ended)
        if not late and not beyond:
            return batch, [], rejected
        rejected += [self._letter(batch, row, self._beyond(batch.times[row])) for row in beyond]
        rejected.sort(key=lambda letter: letter.origin.number)  # as they were read, whatever one read gave
        self.before_1970 += sum(batch.times[row] < self._earliest for row in beyond)
        self.quarantined += sum(self._earliest <= batch.times[row] < END_OF_TIME for row in beyond)
        below = "late: its event time is below the watermark of its split"
        letters = [replace(self._letter(batch, row, below), value=batch.values[row]) for row in late]
        out = {*late, *beyond}
        return batch.take([row for row in range(len(batch)) if row not in out]), letters, rejected

    def _in_order(self, times: list[int], latest: int) -> bool:
        """Whether no time lies below one before it, and none is refused, as it mostly is."""
        return (
            bool(times)
            and max(self._earliest, self.progress.max_time) <= times[0]
            and times[-1] <= latest
            and sorted(times) == times  # as fast as one look at each
        )

    def _letter(self, batch: Batch, row: int, reason: str) -> DeadLetter:
        return DeadLetter(self.step, batch.origin(row), batch.times[row], reason, raw_form(batch.values[row]))

    def _beyond(self, time: int) -> str:
        if time >= END_OF_TIME:
            return f"event time is not before {format_time(END_OF_TIME)}"
        if time < self._earliest:
            return f"event time is {format_time(time)}, but its source says that it has none before 1970"
        when = format_time(time)
        return f"quarantined: event time is {when}, more than 5 minutes in the future of the device's clock"
