"""The one reader of a split: what a source gives, with its watermark and lateness, into a fragment.

Stands between an opened source and its fragment: the agent, `gear run`, measurements and tests all read
through it. Guarantees: what a read gives is fed at once, with the lateness decided by the split's own
watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from geartrain.declarations.source import Batch as Read
from geartrain.graph.graph import Graph
from geartrain.ports import Clock
from geartrain.ports.spool import SplitProgress
from geartrain.records.batch import Batch, DeadLetter
from geartrain.records.event_time import END_OF_TIME
from geartrain.runtime.fragment import Fragment
from geartrain.runtime.opened import OpenedSplit, open_sources
from geartrain.runtime.splits import SplitTracker

REASON_CHARS_MAX = 2_000
"""Characters kept of a source's reason for a dead letter."""


class Taken(msgspec.Struct):
    """What one read of a split gave: records on time, late records, dead letters of the source.

    rows: all of them, as the source counts; moved: whether the split's position or watermark is another;
    counts: what else the source has counted, by name.
    """

    batch: Batch
    late: list[DeadLetter]
    rejected: list[DeadLetter]
    rows: int
    moved: bool
    counts: Mapping[str, int] = {}

    def feed(self, step: str, fragment: Fragment) -> None:
        """Hand all of it to `fragment` as the output of the source `step`."""
        for letter in self.rejected:
            fragment.reject(letter)
        for letter in self.late:
            fragment.divert_late(letter)
        if len(self.batch):
            fragment.feed(step, self.batch)


class SplitReader:
    """One open split, read where its tracker stands."""

    def __init__(self, opened: OpenedSplit, clock: Clock | None = None) -> None:
        """clock: the device's, for a split whose event times are its own time; without one such a split
        never is idle, and none of its records are of the future.
        """
        source = opened.source
        self.step, self.split = opened.step, opened.split
        self.name = self.split.name
        self.replayable = source.replayable
        """Whether it gives the same rows for the same positions, always."""
        self.pausable = source.pausable
        """Whether what nobody reads is not lost."""
        self.module = type(source).__module__
        """That of the source's class, which tells whose code reads."""
        self._since_1970, self._idle_after_us = source.since_1970, source.idle_after_ms * 1_000
        self._clock = clock if self.split.live_clock else None
        self.stand_at(None)

    def tracker_at(self, progress: SplitProgress | None) -> SplitTracker:
        """A tracker that stands where a former life got to, None for a fresh start."""
        bound_us = self.split.out_of_orderness_us
        return SplitTracker(self.step, self.name, bound_us, progress, since_1970=self._since_1970)

    def stand_at(self, progress: SplitProgress | None) -> None:
        """Read on from there."""
        self.tracker = self.tracker_at(progress)
        self._heard_s = 0.0 if self._clock is None else self._clock.monotonic_s()

    @property
    def watermark(self) -> int:
        """No record of this split that is not late will have a lower event time, microseconds."""
        return self.tracker.watermark

    @property
    def is_live(self) -> bool:
        """Whether its event times are the device's own time."""
        return self._clock is not None

    @property
    def ended(self) -> bool:
        """Whether it has nothing more, ever."""
        return self.tracker.progress.ended

    async def read(self, rows_max: int, life: bytes | None = None) -> Taken:
        """Read at most `rows_max` rows and move on; raises what the split raises.

        life: stands in the origins of what cannot be read again, because a fresh life counts from 0 anew.
        """
        found = await self.fetch(rows_max)
        return self.take(found, None if self._clock is None else self._clock.now_us(), life)

    async def fetch(self, rows_max: int) -> Read:
        """What the split gives, at most `rows_max` rows, before anything is decided of it."""
        return await self.split.read(self.tracker.progress.position, rows_max)

    def take(
        self,
        found: Read,
        now_us: int | None,
        life: bytes | None = None,
        marks: Mapping[int, bytes] | None = None,
    ) -> Taken:
        """Move on by what a read gave; now_us: the device's clock then; marks: stand behind `life` in the
        origins of the records of these numbers.
        """
        tracker, before = self.tracker, self.tracker.progress
        batch, late, rejected = tracker.observe(found, now_us)
        if life is not None and not self.replayable:
            marked = marks or {}
            batch.paths = (
                [life + marked.get(number, b"") for number in batch.numbers]
                if marked
                else [life] * len(batch)
            )
            late = [_born(one, life + marked.get(one.origin.number, b"")) for one in late]
            rejected = [_born(one, life + marked.get(one.origin.number, b"")) for one in rejected]
        rejected = [_shortened(one) for one in rejected]
        rows = len(found.values) + len(found.rejects)
        self._note(rows, now_us)
        return Taken(batch, late, rejected, rows, tracker.progress != before, found.counts)

    def _note(self, rows: int, now_us: int | None) -> None:
        """A split of the device's own time follows its clock once nothing has come for long, and nothing is
        known to be there.
        """
        if self._clock is None or now_us is None:
            return
        now_s = self._clock.monotonic_s()
        if rows:
            self._heard_s = now_s
        elif now_s - self._heard_s >= self._idle_after_us / 1_000_000 and not self.split.is_behind:
            self.tracker.idle(now_us, self._idle_after_us)


def open_splits(
    graph: Graph,
    device: str,
    clock: Clock | None = None,
    shared: Path | None = None,
    life: str = "",
) -> list[SplitReader]:
    """The splits that `device` holds of the sources of `graph`, in the order of its steps; shared, life: as
    of `open_sources`.

    Raises `SourceError` when a source cannot open, or gives what is no split.
    """
    return [SplitReader(opened, clock) for opened in open_sources(graph, device, shared, life)]


def watermark_of(readers: Iterable[SplitReader], step: str) -> int:
    """The watermark of a source: the least of its splits', the end of time where it has none."""
    return min((one.watermark for one in readers if one.step == step), default=END_OF_TIME)


def _born(letter: DeadLetter, life: bytes) -> DeadLetter:
    return replace(letter, origin=replace(letter.origin, path=life))


def _shortened(letter: DeadLetter) -> DeadLetter:
    if len(letter.reason) <= REASON_CHARS_MAX:
        return letter
    return replace(letter, reason=letter.reason[:REASON_CHARS_MAX])
