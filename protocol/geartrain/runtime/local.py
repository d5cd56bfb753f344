"""A whole flow in one process: every split read in turn, one fragment holding all steps.

What `gear run` and tests use in place of agents, ingest and Spark. Guarantees the same records at each sink
as any cut gives, because the same fragment does the work; what is missing is only the way between the tiers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping

import msgspec

from geartrain.concurrency.client_id import ID_BYTES
from geartrain.graph.graph import Graph
from geartrain.ports import Clock, Randomness
from geartrain.ports.spool import SplitProgress
from geartrain.runtime.fragment import Fragment, Output
from geartrain.runtime.reader import SplitReader, open_splits, watermark_of
from geartrain.state.keyed import StateBackend

PAUSE_S = 0.02
"""How long a run waits for its sources where none has anything."""


class Progress(msgspec.Struct):
    """Totals of a run: records read from the splits, and rows there that were no records.

    records_of: records by source; positions: where each (source, split) stands; counts: what sources have
    passed over, by name.
    """

    records_read: int = 0
    rejected: int = 0
    late: int = 0
    records_of: dict[str, int] = msgspec.field(default_factory=dict)
    positions: dict[tuple[str, str], SplitProgress] = msgspec.field(default_factory=dict)
    counts: dict[str, int] = msgspec.field(default_factory=dict)


class LocalRun:
    """One run of all steps of a graph over the splits that its sources open for one device or several."""

    def __init__(
        self,
        graph: Graph,
        *,
        device: str = "local",
        backend: StateBackend | None = None,
        positions: Mapping[tuple[str, str], SplitProgress] | None = None,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        fleet: Mapping[str, Graph] | None = None,
    ) -> None:
        """fleet: by name of each device, the graph with the sources and options that it has; without it,
        `device` is the only one, and has the sources of `graph`.

        `backend` and `positions`: where a former run got to; `clock` and `randomness`: for tasks that are
        not replayable, and for sources whose event times are the device's own time. Raises `SourceError` when
        a source cannot open.
        """
        steps = [s.id for s in graph.steps]
        self.fragment = Fragment(graph, steps, backend, clock=clock, randomness=randomness)
        self.progress = Progress(positions=dict(positions or {}))
        self._clock = clock
        life = "" if randomness is None else randomness.token(ID_BYTES).hex()
        self._sources = [step.id for step in graph.sources()]
        self.progress.records_of = dict.fromkeys(self._sources, 0)
        self._readers = list[SplitReader]()
        for name, own in ({device: graph} if fleet is None else fleet).items():
            self._readers += open_splits(own, name, clock, life=life)
        for reader in self._readers:
            reader.stand_at(self.progress.positions.get((reader.step, reader.name)))

    @property
    def ended(self) -> bool:
        """Whether every split has given its last record."""
        return all(reader.ended for reader in self._readers)

    async def outputs(
        self, rows_max: int = 1_000, going: Callable[[], bool] | None = None
    ) -> AsyncIterator[Output]:
        """Read each split by at most `rows_max` rows in turn until all have ended; yield what leaves.

        going: asked before each read, says whether to go on. With it the run waits, by its clock, for a
        source that has nothing to give, and yields in each round, be it nothing. Without, a source with
        nothing to give ends the run too, for there is nobody to wait.
        """
        try:
            for step in self._sources:
                self.fragment.advance(step, watermark_of(self._readers, step))
            yield self.fragment.take()
            moved = True
            while moved and not self.ended:
                moved = False
                for reader in self._readers:
                    if going is not None and not going():
                        break
                    if not reader.ended and await self._read(reader, rows_max):
                        moved = True
                        yield self.fragment.take()
                if going is not None and self._clock is not None and not self.ended:
                    await self._clock.sleep(0 if moved else PAUSE_S)  # a live source comes to its turn
                    moved = going()
                    yield self.fragment.take()
        finally:
            for reader in self._readers:
                await reader.split.close()
        self.fragment.close()

    async def _read(self, reader: SplitReader, rows_max: int) -> bool:
        """Feed one read of a split; False when it gave nothing."""
        taken = await reader.read(rows_max)
        taken.feed(reader.step, self.fragment)
        self.fragment.advance(reader.step, watermark_of(self._readers, reader.step))
        records = taken.rows - len(taken.rejected)
        self.progress.records_read += records
        self.progress.records_of[reader.step] += records
        self.progress.rejected += len(taken.rejected)
        self.progress.late += len(taken.late)
        for name, count in taken.counts.items():
            self.progress.counts[name] = self.progress.counts.get(name, 0) + count
        self.progress.positions[reader.step, reader.name] = reader.tracker.progress
        return taken.moved
