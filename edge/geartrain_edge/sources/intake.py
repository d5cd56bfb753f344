"""The intake: reads the open splits of a device's sources in turn, into its fragment.

The first half of the agent, from a record's birth to the fragment's output. Guarantees: rows are fed as soon
as they are read, and the split's own watermark decides which are late. One round reads a bounded number of
rows of each split, fewer where the flow's code is slow: acks and keep-alives wait while it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from geartrain.declarations.source import Batch as Read
from geartrain.errors import ConfigError, SourceError
from geartrain.planning import Plan
from geartrain.ports import Clock
from geartrain.ports.boot_clock import BootClock
from geartrain.ports.buggify import buggify
from geartrain.ports.spool import SplitProgress
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.runtime.fragment import Fragment
from geartrain.runtime.reader import SplitReader, open_splits
from geartrain.runtime.splits import SplitTracker
from geartrain_edge.sources.notes import Notes
from geartrain_edge.sources.untimed import MARK_BOUND, Timed, Untimed
from geartrain_edge.spool.backlog import Counters
from geartrain_edge.spool.sealing import Progress

_LOG = logging.getLogger("geartrain.agent")

_EMPTY_READS_MAX = 100
"""Reads in a row that may give nothing while rows of a former life are read again."""
_FEED_S_MAX = 0.5
"""So long may the flow's code run for one read, about: nothing else of the process runs meanwhile."""
_SLOW_READ_S = 10.0
"""A read that takes so long is said."""
_OUR_SOURCES = "geartrain_devices."
"""Modules of sources that come with Geartrain: their users cannot change how they read."""
_AUTHOR_ADVICE = "let it return what is there, and an empty Batch where nothing is"
_MACHINE_ADVICE = (
    "a large file is put into the order of time at its first read, and a disk, network or machine that is "
    "busy makes any read slow"
)
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.001, 0.1


class _Feed(msgspec.Struct):
    """One open split, and whether it waits for `release`."""

    reader: SplitReader
    held: bool = False
    lowest: int = END_OF_TIME
    """No row that was fed while the others were held has a lower event time, as far as is known."""

    @property
    def tracker(self) -> SplitTracker:
        """Where the split stands."""
        return self.reader.tracker

    def tracker_at(self, positions: Mapping[tuple[str, str], SplitProgress]) -> SplitTracker:
        """A tracker that stands where `positions` says."""
        return self.reader.tracker_at(positions.get((self.reader.step, self.reader.name)))


class Intake:
    """The splits that a device holds of the sources of a plan."""

    def __init__(
        self,
        plan: Plan,
        device: str,
        read_max: int,
        names_max: int,
        clock: Clock,
        boots: BootClock | None = None,
        shared: Path | None = None,
        life: str = "",
    ) -> None:
        """Open every source; boots: None where the device's clock is always right; shared: where the apps of
        the device share sensors; life: what tells the spool from every other, for the ids of sources that are
        clients.

        Raises `SourceError`, or `ConfigError` for more splits than fit a header."""
        self._plan, self._read_max, self._clock = plan, read_max, clock
        self._rows_max = read_max  # of the next read, by what the last ones took
        self._readers = open_splits(plan.graph, device, clock, shared, life)
        if max(len(self._readers), len(plan.channels)) > names_max:
            raise ConfigError(
                f"device {device} has more than {names_max} splits or channels: deal them to more devices"
            )
        kinds = {step.id: step.out for step in plan.graph.sources()}
        self.untimed = Untimed(kinds, clock, boots)
        self.notes = Notes()
        self.is_reading = True
        """Whether sources are read; else only what was read before goes on."""
        self.spares_room = False
        """Whether only sources are read that cannot wait."""
        self._feeds: list[_Feed] = []
        self._first = 0
        self._positions: dict[tuple[str, str], SplitProgress] = {}
        self._moved: set[tuple[str, str]] = set()
        self._told: dict[str, int] = {}
        self.epoch = b""
        """Stands in the origins of what cannot be read again: a fresh spool counts from 0 once more."""

    def restore(
        self,
        positions: Mapping[tuple[str, str], SplitProgress],
        state: Mapping[tuple[str, bytes], bytes] | None = None,
        *,
        hold: bool = False,
    ) -> None:
        """Stand where a former life was; before the first read. state: what the spool keeps, notes of splits
        among it; hold: splits that can be read again wait for `release`.
        """
        self._restore_notes(state or {})
        self._positions = dict(positions)
        self._feeds = []
        for reader in self._readers:
            at = positions.get((reader.step, reader.name))
            reader.stand_at(at)
            lowest = START_OF_TIME if at is not None and at.position else END_OF_TIME
            self._feeds.append(_Feed(reader, hold and reader.replayable, lowest))
        sources = [step.id for step in self._plan.graph.sources()]
        self._told = {s: START_OF_TIME if self.holds else self._watermark(frozenset((s,))) for s in sources}

    def _restore_notes(self, state: Mapping[tuple[str, bytes], bytes]) -> None:
        self.notes.restore(state, [step.id for step in self._plan.graph.sources()])
        for reader in self._readers:
            reader.split.take_notes(self.notes.of((reader.step, reader.name)))

    @property
    def lacks(self) -> tuple[str, ...]:
        """The sources of which there is no split here."""
        has = {feed.tracker.step for feed in self._feeds}
        return tuple(sorted(step.id for step in self._plan.graph.sources() if step.id not in has))

    @property
    def waits_for_time(self) -> bool:
        """Whether a split's records cannot have their times yet."""
        return not self.untimed.is_known and any(feed.reader.is_live for feed in self._feeds)

    @property
    def holds(self) -> bool:
        """Whether splits wait for `release`."""
        return any(feed.held for feed in self._feeds)

    async def release(
        self, positions: Mapping[tuple[str, str], SplitProgress], fragment: Fragment
    ) -> dict[tuple[str, str], SplitProgress]:
        """Let the held splits begin where `positions` says; returns the positions of those that it names.

        Where steps keep something for each key, the rows before these positions are read again to rebuild it.
        Their output is thrown away, because a former life sent it. Splits that cannot wait were read in the
        meantime, and those rows stay in the steps. They stay even where the clock was set back and they lie
        below the point that the former life had reached. Raises `SourceError` when the rows before are not
        there any more.
        """
        stateful = any(self._plan.graph[step].operator.stateful for step in self._plan.edge)
        moved = {}
        for feed in self._feeds:
            at = positions.get((feed.tracker.step, feed.tracker.name))
            if not feed.held or at is None:
                continue
            if stateful:
                await self._replay(feed, at, fragment)
            moved[feed.tracker.step, feed.tracker.name] = feed.tracker.progress = at
        if stateful:
            self.advance(fragment, positions)  # what fires up to there was sent in a former life, too
            fragment.take()
        for feed in self._feeds:
            feed.held = False
        self._positions |= moved
        return moved

    async def _replay(self, feed: _Feed, upto: SplitProgress, fragment: Fragment) -> None:
        tracker, empty = feed.tracker, 0
        while (at := tracker.progress.position) < upto.position:
            poll = await feed.reader.split.read(at, min(self._read_max, upto.position - at))
            if poll.position == at and not poll.ended and empty < _EMPTY_READS_MAX:
                empty += 1  # a source may have nothing there yet
                await self._clock.sleep(min(_PAUSE_S_MIN * 2**empty, _PAUSE_S_MAX))
                continue
            empty = 0
            if not at < poll.position <= upto.position:
                raise SourceError(
                    f"split {tracker.origin_name} was read up to {upto.position} in a former life, but "
                    f"cannot be read again from {at} to there: has its file changed?"
                )
            fragment.feed(tracker.step, tracker.observe(poll)[0])
            fragment.take()

    @property
    def ended(self) -> bool:
        """Whether every split has given its last record."""
        return all(feed.tracker.progress.ended and not feed.held for feed in self._feeds)

    async def read(self, fragment: Fragment, counters: Counters, limit: int) -> int:
        """One read of each split that goes on, in turn, of `limit` rows in all; returns how many came."""
        rows, first = 0, self._first
        for number, feed in enumerate(self._feeds[first:] + self._feeds[:first], first):
            waits = self.spares_room and feed.reader.pausable
            if feed.held or waits or feed.tracker.progress.ended:
                continue
            if rows >= limit:  # the next read goes on from here, so that each has its turn
                self._first = number % len(self._feeds)
                break
            most = 1 if buggify("poll of one row", 0.3) else min(limit - rows, self._rows_max)
            rows += await self._read_split(feed, fragment, counters, most)
        if not self.holds:  # else what fires by rows of this life could not be told from a former one's
            self.advance(fragment)
        return rows

    def advance(
        self, fragment: Fragment, former: Mapping[tuple[str, str], SplitProgress] | None = None
    ) -> None:
        """Tell the fragment how far each source is, or was in a former life."""
        for step in self._plan.graph.sources():
            watermark = self._watermark(frozenset((step.id,)), former)
            fragment.advance(step.id, watermark)
            if former is None:
                self._told[step.id] = watermark

    def _watermark(
        self,
        sources: frozenset[str],
        former: Mapping[tuple[str, str], SplitProgress] | None = None,
    ) -> int:
        """The min over the splits of `sources`, microseconds; that of a former life, if it is given."""
        marks = (
            feed.tracker.watermark if former is None else min(feed.tracker_at(former).watermark, feed.lowest)
            for feed in self._feeds
            if feed.tracker.step in sources
        )
        return min(marks, default=END_OF_TIME)

    async def _read_split(self, feed: _Feed, fragment: Fragment, counters: Counters, limit: int) -> int:
        reader, tracker = feed.reader, feed.tracker
        if not reader.is_live:
            return self._take(feed, await self._fetch(feed, limit, counters), fragment, counters)
        split = tracker.step, tracker.name
        if (timed := self.untimed.next(split, tracker.progress.position)) is not None:
            bounded = sum(mark == MARK_BOUND for mark in timed.marks.values())
            counters.add("records_timed_by_bound", bounded)
            counters.add("records_timed_later", len(timed.marks) - bounded)
            return self._take(feed, timed.read, fragment, counters, timed)
        offset_us = self.untimed.offset_us()
        if offset_us is None:
            return self._take(feed, await self._fetch(feed, limit, counters), fragment, counters)
        return await self._hold(feed, fragment, counters, limit, offset_us)

    async def _hold(
        self, feed: _Feed, fragment: Fragment, counters: Counters, limit: int, offset_us: int
    ) -> int:
        """Read what has to wait for its time; what can wait itself is not read."""
        reader, tracker = feed.reader, feed.tracker
        split = tracker.step, tracker.name
        waits = (reader.replayable and not self.untimed.is_known) or (
            self.untimed.is_full and reader.pausable
        )
        if waits or self.untimed.has_ended(split):
            return 0
        found = await self._fetch(feed, limit, counters)
        rows = len(found.values) + len(found.rejects)
        if not rows and not found.ended:
            # Its watermark follows the device's clock, once that can be believed and nothing of before waits.
            follows = self.untimed.is_known and not self.untimed.holds(split)
            return self._take(feed, found, fragment, counters) if follows else 0
        if self.untimed.is_full:
            counters.add("records_untimed_dropped", rows)
        else:
            self.untimed.hold(split, found, offset_us)
        tracker.progress = replace(tracker.progress, position=found.position)
        self._note(tracker)
        return rows

    async def _fetch(self, feed: _Feed, limit: int, counters: Counters) -> Read:
        if not self.is_reading:
            return Read([], [], [], feed.tracker.progress.position)
        began_s = self._clock.monotonic_s()
        found = await feed.reader.fetch(limit)
        self._warn_if_slow(feed, self._clock.monotonic_s() - began_s, counters)
        for name, count in found.counts.items():
            counters.add(name, count)
        if found.notes:
            self.notes.hold_notes((feed.tracker.step, feed.tracker.name), found.notes)
        return found

    def _note(self, tracker: SplitTracker) -> None:
        """The split has moved."""
        self._positions[tracker.step, tracker.name] = tracker.progress
        self._moved.add((tracker.step, tracker.name))

    def _take(
        self, feed: _Feed, found: Read, fragment: Fragment, counters: Counters, timed: Timed | None = None
    ) -> int:
        """Feed what a read gave; timed: where its times were set afterwards."""
        tracker = feed.tracker
        quarantined, before_1970, mistimed = tracker.quarantined, tracker.before_1970, tracker.mistimed
        now_us = self._clock.now_us() if timed is None else timed.now_us
        taken = feed.reader.take(
            found, now_us if feed.reader.is_live else None, self.epoch, timed.marks if timed else None
        )
        counters.add("records_quarantined", tracker.quarantined - quarantined)
        counters.add("records_before_1970", tracker.before_1970 - before_1970)
        counters.add("records_mistimed", tracker.mistimed - mistimed)
        if len(taken.batch) and not feed.reader.replayable:
            feed.lowest = min(feed.lowest, *taken.batch.times)
        began_s = self._clock.monotonic_s()
        taken.feed(tracker.step, fragment)
        self._settle_rows_max(taken.rows, self._clock.monotonic_s() - began_s)
        if taken.moved:
            self._note(tracker)
        counters.add("records_read", taken.rows)
        return taken.rows

    def _settle_rows_max(self, rows: int, took_s: float) -> None:
        """Have the next read give as many rows as the flow's code runs in `_FEED_S_MAX`, twice as many as
        this one at most.
        """
        if rows:
            fitting = int(rows * _FEED_S_MAX / took_s) if took_s > 0 else self._read_max
            self._rows_max = max(1, min(self._read_max, fitting, 2 * max(self._rows_max, rows)))

    @staticmethod
    def _warn_if_slow(feed: _Feed, took_s: float, counters: Counters) -> None:
        """Say that a read was long at work: splits are read in turn, so that all others waited."""
        if took_s < _SLOW_READ_S:
            return
        counters.add("reads_slow")
        is_ours = feed.reader.module.startswith(_OUR_SOURCES)
        _LOG.warning(
            "slow_read: source %s, split %s: read took %.0f s, and the other splits waited; %s",
            *(feed.tracker.step, feed.tracker.name, took_s, _MACHINE_ADVICE if is_ours else _AUTHOR_ADVICE),
        )

    def progress(self) -> Progress:
        """The watermark of each channel, the min over its sources, that of each source, and all positions.

        Of each source it is the one that the fragment was told: beyond that it may still hold rows. Of a
        source without a split on this device nothing is said, nor of a channel that has only such sources.
        Other devices may have it, and its end is not ours to tell.
        """
        sources = {step: self._told[step] for step in sorted({feed.tracker.step for feed in self._feeds})}
        watermarks = {
            channel.id: min(sources[source] for source in channel.sources if source in sources)
            for channel in self._plan.channels
            if not channel.sources.isdisjoint(sources)
        }
        trackers = [feed.tracker for feed in self._feeds if not feed.held]
        positions = self._positions | {(t.step, t.name): t.progress for t in trackers}
        return Progress(watermarks, positions, sources)

    def moved(self) -> dict[tuple[str, str], SplitProgress]:
        """The positions that moved since the last call."""
        moved = {split: self._positions[split] for split in sorted(self._moved)}
        self._moved.clear()
        return moved

    async def close(self) -> None:
        """Release every split."""
        for reader in self._readers:
            await reader.split.close()
