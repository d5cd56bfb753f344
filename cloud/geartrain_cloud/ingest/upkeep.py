"""What ingest does for its log besides appending: retention, merging, and checking that it still owns it.

Beside the way into the log. Guarantees: no position and no clock changes. A merge writes the larger segment,
makes it durable, and only then names it in the ledger. A file is deleted only after the ledger has let go of
it, its grace period has passed, and no registered query can still need it. A crash between any two of these
steps leaves orphans, which the next start removes, or replaced files, which a later round deletes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from geartrain.errors import DiskError, LedgerError
from geartrain.ports import Clock, Disk
from geartrain.ports.buggify import buggify
from geartrain_cloud.ingest.alarm import Alarm
from geartrain_cloud.ingest.counters import Counter, Counters
from geartrain_cloud.log.part import UnlikeError, segment_digest
from geartrain_cloud.log.retention import Retention, done_with, find_all_due
from geartrain_cloud.ports import HeldSegment, LedgerStore, ReplacedFile, StoredSegment, position_key

T = TypeVar("T")

_LOG = logging.getLogger("geartrain.ingest")

SegmentMerger = Callable[[Sequence[bytes]], bytes]
"""Makes one segment of several of one channel: their rows follow one another. Raises `LedgerError`."""

MERGE_MIN = 8
"""So many neighbours make a merge worth it."""

MERGE_MAX = 256
"""So many segments are merged at once, at most: with their bytes, what a merge may hold in memory."""

MERGED_BYTES_MAX = 8 << 20
"""A segment of half of this is large enough; none is made larger than this by a merge."""

_NUMBER = re.compile(r"(?P<folder>.*/)(?P<number>\d+)-\d+(m\d+)?\.arrow")


class Upkeep:
    """One ingest's care for its partitions; `round` is called from time to time, never twice at once."""

    def __init__(
        self,
        term: int,
        ledger: LedgerStore,
        disk: Disk,
        clock: Clock,
        counters: Counters,
        alarm: Alarm,
        limits: Retention,
        merge_segments: SegmentMerger | None,
        merge_grace_s: float,
        of_flow: Callable[[], Mapping[str, Retention]] = dict,
    ) -> None:
        """`merge_segments`: None where nothing is to be merged; of_flow: the limits of single flows now."""
        self._term, self._ledger, self._disk, self._clock = term, ledger, disk, clock
        self._counters, self._alarm, self._limits = counters, alarm, limits
        self._merge_segments, self._grace_us = merge_segments, merge_grace_s * 1e6
        self._of_flow = of_flow
        self._damaged: set[str] = set()
        self._unlike: set[str] = set()
        """Segments whose rows are of another type than those right before them."""

    async def round(self) -> None:
        """Do what is due; raises `LedgerError`: `FencedError` where another ingest has taken over.

        What the ledger cannot say, because a row of it is damaged, is left undone with an alarm: nothing is
        removed then, and what devices send is taken as ever.
        """
        await self._ledger.check(self._term)
        of_flow = self._of_flow()
        if self._limits.is_limited or any(own.is_limited for own in of_flow.values()):
            await self._retain(of_flow)
        if self._merge_segments is not None:
            left_alone = self._damaged | self._unlike
            for run in find_runs(await self._asked(self._ledger.held_segments()) or [], left_alone):
                await self._merge(run, self._merge_segments)
        await self._delete_replaced()

    async def _asked(self, answer: Awaitable[list[T]]) -> list[T] | None:
        """What the ledger says, None where it cannot."""
        try:
            return await answer
        except LedgerError as error:
            self._alarm.warn("upkeep", "log", str(error))
            return None

    async def _retain(self, of_flow: Mapping[str, Retention]) -> None:
        held = await self._asked(self._ledger.held_segments())
        queries = await self._asked(self._ledger.queries())
        if held is None or queries is None:
            return
        now_us = self._clock.now_us()
        due = find_all_due(held, queries, self._limits, of_flow, now_us)
        if due.held:
            self._alarm.warn(
                "retention", "log", f"{due.held} segments are due, but no query is done with them"
            )
        if not due.segments:
            return
        rows = sum(one.rows for one in due.segments)
        self._counters.add(Counter.SEGMENTS_REMOVED, len(due.segments))
        self._counters.add(Counter.RECORDS_REMOVED, rows)
        names = [one.segment.name for one in due.segments]
        totals = self._totals(Counter.SEGMENTS_REMOVED, Counter.RECORDS_REMOVED)
        await self._ledger.remove_rows(self._term, names, now_us, totals)
        for place, first, last, count in _ranges(due.segments):
            _LOG.warning("%s: retention removed %d rows, positions %d to %d", place, count, first, last)

    async def _merge(self, run: Sequence[HeldSegment], merge_segments: SegmentMerger) -> None:
        parts = []
        for one in run:
            data = await self._read(one)
            if data is None:
                return
            parts.append(data)
        try:
            data = merge_segments(parts)
        except UnlikeError as error:
            self._unlike.add(run[error.at].segment.name)
            return
        except LedgerError as error:
            self._leave_alone(run, str(error))
            return
        name = _merged_name(run[0].segment.name, self._term, run[-1].last)
        # As old as its newest rows: retention by age then never lets go of any too early.
        made_us = max(one.segment.made_us for one in run)
        merged = StoredSegment(name, len(data), segment_digest(data), made_us)
        try:
            await self._disk.write(name, data)
            await self._disk.fsync(name)
        except DiskError as error:  # what is there already is whole: it stays as it is
            self._alarm.warn("merge", run[0].flow, str(error))
            return
        self._counters.add(Counter.SEGMENTS_MERGED, len(run))
        names, totals = [one.segment.name for one in run], self._totals(Counter.SEGMENTS_MERGED)
        if not await self._ledger.merge(self._term, merged, names, self._clock.now_us(), totals):
            self._counters.add(Counter.SEGMENTS_MERGED, -len(run))
            await self._remove([name])  # `gear log trim` was quicker

    async def _read(self, one: HeldSegment) -> bytes | None:
        """The bytes of a segment, None where they are not those that were written."""
        try:
            data = await self._disk.read(one.segment.name)
        except DiskError as error:
            self._leave_alone([one], str(error))
            return None
        if segment_digest(data) != one.segment.digest:
            self._leave_alone([one], "its bytes are not those that were written: see gear log verify")
            return None
        return data

    def _leave_alone(self, run: Sequence[HeldSegment], why: str) -> None:
        self._damaged.update(one.segment.name for one in run)
        self._counters.add(Counter.SEGMENTS_DAMAGED, len(run))
        for one in run:
            self._alarm.warn(Counter.SEGMENTS_DAMAGED, one.segment.name, f"it cannot be merged: {why}")

    async def _delete_replaced(self) -> None:
        files = await self._asked(self._ledger.replaced_files())
        queries = await self._asked(self._ledger.queries()) if files else None
        if not files or queries is None:
            return
        done, now_us = done_with(queries), self._clock.now_us()
        gone = await self._remove([one.name for one in files if self._is_over(one, done, now_us)])
        if gone:
            await self._ledger.forget_files(self._term, gone)

    async def _remove(self, names: Sequence[str]) -> list[str]:
        """Delete files; returns those that are gone."""
        gone = []
        for name in names:
            try:
                await self._disk.remove(name)
            except DiskError as error:  # the next round tries again
                self._alarm.warn("remove", name, str(error))
            else:
                gone.append(name)
        return gone

    def _is_over(self, one: ReplacedFile, done: Mapping[tuple[str, str], int], now_us: int) -> bool:
        reached = done.get((one.flow, position_key(one.partition)), one.last)
        return now_us - one.since_us >= self._grace_us and reached >= one.last

    def _totals(self, *names: Counter) -> dict[str, int]:
        return {name.value: self._counters[name] for name in names}


def find_runs(held: Sequence[HeldSegment], but: set[str]) -> list[list[HeldSegment]]:
    """Neighbours that are to become one segment; `but`: names to leave alone.

    A run is worth it where it is long and no single segment is most of it. So the number of times that a row
    is written again grows only with the logarithm of the sizes.
    """
    places: dict[tuple[str, str, int], list[HeldSegment]] = {}
    for one in held:
        places.setdefault((one.flow, one.channel, one.partition), []).append(one)
    found: list[list[HeldSegment]] = []
    for several in places.values():
        several.sort(key=lambda one: one.first)
        limit = 16 << 10
        run: list[HeldSegment] | None = None
        while run is None and limit <= MERGED_BYTES_MAX // 2:
            run = _run(several, limit, but)
            limit *= 8
        if run is not None:
            found.append(run)
    return found


def _run(several: Sequence[HeldSegment], limit: int, but: set[str]) -> list[HeldSegment] | None:
    """The first run of neighbours below `limit` bytes that is worth it."""
    run: list[HeldSegment] = []
    for one in [*several, None]:
        is_small = one is not None and one.segment.size < limit and one.segment.name not in but
        is_full = one is not None and (
            len(run) == MERGE_MAX or sum(r.segment.size for r in run) + one.segment.size > MERGED_BYTES_MAX
        )
        if not is_small or is_full:
            at_once = len(run) > 1 and buggify("merge at once", 0.5)
            if at_once or (len(run) >= MERGE_MIN and _is_balanced(run)):
                return run
            run = []
        if one is not None and is_small:
            run.append(one)
    return None


def _is_balanced(run: Sequence[HeldSegment]) -> bool:
    sizes = [one.segment.size for one in run]
    return sum(sizes) >= 2 * max(sizes)


def _merged_name(first: str, term: int, last: int) -> str:
    # Of two merges that begin alike the later one reaches further: no name comes twice.
    parts = _NUMBER.fullmatch(first)
    if parts is None:
        raise LedgerError(f"segment {first!r} has a name that ingest never gave")
    return f"{parts['folder']}{parts['number']}-{term}m{last}.arrow"


def _ranges(segments: Sequence[HeldSegment]) -> list[tuple[str, int, int, int]]:
    """(place, first, last, rows) of what went, by place."""
    found: dict[str, tuple[int, int, int]] = {}
    for one in segments:
        place = f"{one.flow}/{one.channel}, partition {one.partition}"
        first, last, rows = found.get(place, (one.first, one.last, 0))
        found[place] = (min(first, one.first), max(last, one.last), rows + one.rows)
    return [(place, *span) for place, span in sorted(found.items())]
