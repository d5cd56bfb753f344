"""Splits at work: the watermark of each split and the decision, made once at birth, whether a record is
late (I4).

Stands between the reading of a source and its fragment. A split's watermark after a record is the highest
event time so far minus its bound; a record is late iff its time is below the watermark before it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec.structs import replace

from geartrain.declarations.source import Batch as Read
from geartrain.graph.conform import raw_form
from geartrain.ports.spool import SplitProgress
from geartrain.records.batch import Batch, DeadLetter, Origin, origin_name
from geartrain.records.codes import Code, Refusal
from geartrain.records.event_time import EARLIEST_TIME, END_OF_TIME, SECOND_US, START_OF_TIME, format_time
from geartrain.schema.codec import short_form
from geartrain.schema.storable import as_numbers

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
        self.origin_name = origin_name(step, name)
        """What stands in the origin of each of its records."""
        self.progress = progress or SplitProgress(0, START_OF_TIME)
        self.quarantined = 0
        """Records refused so far because they were too far in the future."""
        self.before_1970 = 0
        """Records refused so far because their source says that it has none so early."""
        self.mistimed = 0
        """Records refused so far because their event time is none: no int, or not from 1700 to 2199."""
        self._earliest = 0 if since_1970 else EARLIEST_TIME

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

        A record whose event time is no int from EARLIEST_TIME to before END_OF_TIME is a dead letter and
        moves nothing. So is one more than 5 minutes in the future, where `now_us` says what the device's
        clock shows, and one before 1970, where the source says that there is none.
        """
        times = as_numbers(poll.times if isinstance(poll.times, list) else list(poll.times), int)
        rejected = [
            DeadLetter(self.step, Origin(self.origin_name, r.number), r.event_time, r.code, r.reason, r.raw)
            for r in poll.rejects
        ]
        if times is None:
            batch, unread = self._with_times(poll)
            rejected += unread
        else:
            batch = Batch(list(poll.values), times, [self.origin_name] * len(times), list(poll.numbers))
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
        rejected += [self._letter(batch, row, *self._beyond(batch, row)) for row in beyond]
        rejected.sort(key=lambda letter: letter.origin.number)  # as they were read, whatever one read gave
        if not late and not beyond:
            return batch, [], rejected
        below = "late: its event time is below the watermark of its split"
        letters = [
            replace(self._letter(batch, row, Code.LATE, below), value=batch.values[row]) for row in late
        ]
        out = {*late, *beyond}
        return batch.take([row for row in range(len(batch)) if row not in out]), letters, rejected

    def _with_times(self, poll: Read) -> tuple[Batch, list[DeadLetter]]:
        """The records whose event times are ints of 64 bits, and dead letters for the others."""
        batch, unread = Batch([], [], [], []), list[DeadLetter]()
        for value, time, number in zip(poll.values, poll.times, poll.numbers, strict=True):
            found = as_numbers([time], int)
            if found is None:
                origin, refusal = Origin(self.origin_name, number), self._mistimed(time, number)
                unread.append(DeadLetter(self.step, origin, None, *refusal, raw_form(value)))
                continue
            batch.values.append(value)
            batch.times += found
            batch.names.append(self.origin_name)
            batch.numbers.append(number)
        return batch, unread

    def _in_order(self, times: list[int], latest: int) -> bool:
        """Whether no time lies below one before it, and none is refused, as it mostly is."""
        return (
            bool(times)
            and max(self._earliest, self.progress.max_time) <= times[0]
            and times[-1] <= latest
            and sorted(times) == times  # as fast as one look at each
        )

    def _letter(self, batch: Batch, row: int, code: str, reason: str) -> DeadLetter:
        time = batch.times[row] if EARLIEST_TIME <= batch.times[row] < END_OF_TIME else None
        return DeadLetter(self.step, batch.origin(row), time, code, reason, raw_form(batch.values[row]))

    def _beyond(self, batch: Batch, row: int) -> Refusal:
        """Why a record is refused for its event time; counts it."""
        time = batch.times[row]
        if not EARLIEST_TIME <= time < END_OF_TIME:
            return self._mistimed(time, batch.numbers[row])
        if time < self._earliest:
            self.before_1970 += 1
            reason = f"event time is {format_time(time)}, but its source says that it has none before 1970"
            return Refusal(Code.BEFORE_1970, reason)
        self.quarantined += 1
        when = format_time(time)
        reason = f"quarantined: event time is {when}, more than 5 minutes in the future of the device's clock"
        return Refusal(Code.IN_FUTURE, reason)

    def _mistimed(self, time: Any, number: int) -> Refusal:
        """Why a record has no event time, and what its source must give; counts it."""
        self.mistimed += 1
        return Refusal(Code.MISTIMED, self._why_mistimed(time, number))

    def _why_mistimed(self, time: Any, number: int) -> str:
        where = f"event time {short_form(time)} of split {self.origin_name}, record {number}"
        meant = "give an int of microseconds since 1970 UTC"
        if isinstance(time, int) and not isinstance(time, bool):
            return f"{where}: it is not in the years 100 to 2199: {meant}"
        if isinstance(time, datetime):
            zone = "it has no zone, and " if time.tzinfo is None else ""
            return f"{where}: {zone}it is a datetime: {meant}, as from_datetime makes it"
        return f"{where}: it is a {type(time).__name__}: {meant}"
