"""A whole flow in one process: every split read in turn, one fragment holding all steps.

What `gear run` and tests use in place of agents, ingest and Spark. Guarantees the same records at each sink
as any cut gives, because the same fragment does the work; what is missing is only the way between the tiers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import msgspec

from geartrain.declarations.source import Split
from geartrain.graph.graph import Graph
from geartrain.ports import Clock, Randomness
from geartrain.ports.spool import SplitProgress
from geartrain.records.event_time import END_OF_TIME
from geartrain.runtime.fragment import Fragment, Output
from geartrain.runtime.opened import open_sources
from geartrain.runtime.splits import SplitTracker
from geartrain.state.keyed import StateBackend


class Progress(msgspec.Struct):
    """Totals of a run: records read from the splits, and rows there that were no records."""

    records_read: int = 0
    rejected: int = 0
    late: int = 0
    positions: dict[tuple[str, str], SplitProgress] = msgspec.field(default_factory=dict)


class LocalRun:
    """One run of all steps of a graph over the splits that its sources open for `device`."""

    def __init__(
        self,
        graph: Graph,
        *,
        device: str = "local",
        backend: StateBackend | None = None,
        positions: Mapping[tuple[str, str], SplitProgress] | None = None,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
    ) -> None:
        """`backend` and `positions`: where a former run got to; `clock` and `randomness`: for tasks that are
        not replayable. Raises `SourceError` when a source cannot open.
        """
        steps = [s.id for s in graph.steps]
        self.fragment = Fragment(graph, steps, backend, clock=clock, randomness=randomness)
        self.progress = Progress(positions=dict(positions or {}))
        self._splits: list[tuple[SplitTracker, Split]] = []
        self._sources = [step.id for step in graph.sources()]
        for opened in open_sources(graph, device):
            step, split = opened.step, opened.split
            saved = self.progress.positions.get((step, split.name))
            since_1970, bound_us = opened.source.since_1970, split.out_of_orderness_us
            tracker = SplitTracker(step, split.name, bound_us, saved, since_1970=since_1970)
            self._splits.append((tracker, split))

    async def outputs(self, rows_max: int = 1_000) -> AsyncIterator[Output]:
        """Read each split by at most `rows_max` rows in turn until all have ended or give nothing; yield
        what leaves.

        A live source that has nothing to give ends the run too, for there is nobody to wait.
        """
        try:
            for step in self._sources:
                self.fragment.advance(step, self._watermark(step))
            yield self.fragment.take()
            moved = True
            while moved:
                moved = False
                for tracker, split in self._splits:
                    if await self._read(tracker, split, rows_max):
                        moved = True
                        yield self.fragment.take()
        finally:
            for _, split in self._splits:
                await split.close()
        self.fragment.close()

    def _watermark(self, step: str) -> int:
        marks = (tracker.watermark for tracker, _ in self._splits if tracker.step == step)
        return min(marks, default=END_OF_TIME)

    async def _read(self, tracker: SplitTracker, split: Split, rows_max: int) -> bool:
        """Feed one read of a split; False when it gave nothing."""
        if tracker.progress.ended:
            return False
        before = tracker.progress
        poll = await split.read(before.position, rows_max)
        batch, late, rejected = tracker.observe(poll)
        for letter in rejected:
            self.fragment.reject(letter)
        for letter in late:
            self.fragment.divert_late(letter)
        self.fragment.feed(tracker.step, batch)
        self.fragment.advance(tracker.step, self._watermark(tracker.step))
        self.progress.records_read += len(batch) + len(late)
        self.progress.rejected += len(rejected)
        self.progress.late += len(late)
        self.progress.positions[tracker.step, tracker.name] = tracker.progress
        return tracker.progress != before
