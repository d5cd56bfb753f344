"""A physical stage of a hosting query: the stages of many flows behind one shuffle.

Between the source, or the stage before, and the next one. A group of Spark's is one slot of one flow, so its
state is that flow's alone. Rows for sinks and for later stages pass.

Guarantees: those of `EmbeddedFragment` for each flow. Before a query's first micro-batch, Spark starts a
process that only asks what state there is: no user code and nothing of the fragment is imported there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from geartrain.errors import LedgerError
from geartrain_cloud.hosting.offsets import (
    ANSWER,
    ASKED,
    COMING,
    DRAINED,
    DROPPED,
    EMPTIED,
    LEAVING,
    TAKEN,
    TALLY,
)
from geartrain_cloud.hosting.places import HostPlaces

if TYPE_CHECKING:
    from geartrain_cloud.hosting.workshop import Workshop


class HostStage(StatefulProcessor):
    """Stage `number` of a group."""

    def __init__(self, number: int, host: Path, group: str, sinks: tuple[int, ...]) -> None:
        """host: its folder; sinks: the labels of rows on their way to sinks."""
        self._number, self._host, self._group, self._sinks = number, str(host), group, sinks
        self._workshop: Workshop | None = None
        self._state: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Take hold of the state."""
        self._state = handle.getMapState("buckets", "bucket int", "packed binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Run the rows of a slot in this micro-batch, `HOST_ROWS` to `HOST_ROWS`, then answer questions."""
        ours: list[Row] = []
        asked: list[Row] = []
        drains = False
        for row in rows:
            if row.stage == self._number and row.stream == EMPTIED:
                self._state.clear()
            elif row.stage == self._number and row.stream == DROPPED:
                self._drop(row)
            elif row.stage == self._number and row.stream == TAKEN:
                self._take(row)
            elif row.stage == self._number and row.stream in (LEAVING, COMING):
                self._move(row)
            elif row.stage == self._number and row.stream == DRAINED:
                drains = True
            elif row.stage == self._number and row.stream == ASKED:
                asked.append(row)
            elif row.stage == self._number:
                ours.append(row)
            else:
                yield row
        if ours:
            yield from self._run(ours, drains=drains)
        if asked:
            yield from self._answer(asked)

    def _drop(self, row: Row) -> None:
        """Forget the state of steps that the next revision of a flow has not, or begins anew."""
        from geartrain_cloud.spark.buckets import forget_steps

        workshop = self._opened()
        hosted = workshop.version(row.sequence).flows[row.flow]
        forgotten = forget_steps(self._state, hosted.drops[self._number], hosted.revision)
        workshop.note_dropped(hosted, f"{self._number}.{row.shard}", forgotten)

    def _take(self, row: Row) -> None:
        """Take what steps that are new have kept beside the state of the slot, while they read the past."""
        from geartrain_cloud.spark.buckets import take_beside

        hosted = self._opened().version(row.sequence).flows[row.flow]
        take_beside(self._state, hosted.takes or ())

    def _move(self, row: Row) -> None:
        """Write what a slot keeps, or take what former slots have written of its keys."""
        from geartrain_cloud.hosting.moving import take_state, write_state

        workshop = self._opened()
        hosted = workshop.version(row.sequence).flows[row.flow]
        move = write_state if row.stream == LEAVING else take_state
        move(workshop.places, hosted, self._number, hosted.labels.index(row.shard), self._state)

    def _opened(self) -> Workshop:
        from geartrain_cloud.hosting.workshop import Workshop

        if self._workshop is None:
            self._workshop = Workshop(HostPlaces(Path(self._host)).group(self._group))
        return self._workshop

    def _run(self, rows: list[Row], *, drains: bool) -> Iterator[Row]:
        from geartrain_cloud.spark.buckets import Beside
        from geartrain_cloud.spark.embedded import EmbeddedFragment
        from geartrain_cloud.spark.rows import CLOCKS
        from geartrain_cloud.spark.tally import Tally

        tick = next((row for row in rows if row.stream == CLOCKS), None)
        if tick is None:
            raise LedgerError(
                f"stage {self._number}, flow {rows[0].flow}: rows came without a clock: keep log and "
                "checkpoint and report this"
            )
        workshop = self._opened()
        hosted = workshop.version(tick.sequence).flows[tick.flow]
        state = Beside(self._state) if hosted.past else self._state
        with workshop.running(hosted) as (query, dealing):
            goes_on = workshop.marks.goes_on
            tally = Tally(len(hosted.labels))
            fragment = EmbeddedFragment(
                query,
                *(self._number, hosted.labels, hosted.buckets, goes_on, tally),
                lambda label, cells: workshop.note_dropped(hosted, f"{self._number}.{label}.migrated", cells),
                hosted.forms,
            )
            found = [
                (row, dealing.named(row.stage, row.stream, row.packed))
                for row in fragment.run(state, iter(rows), hosted.drains if drains else ())
            ]
        for row, packed in found:
            shard = row.shard if row.stage else self._sinks[row.shard % len(self._sinks)]
            place = {"stream": row.stream, "sender": row.sender, "position": row.position}
            yield Row(
                shard=shard,
                stage=row.stage,
                flow=hosted.name,
                **place,
                sequence=row.sequence,
                packed=packed,
            )
        if told := tally.told():
            yield Row(**self._end_of(hosted.name, TALLY), sequence=0, packed=told)

    def _end_of(self, name: str, stream: str) -> dict[str, Any]:
        """The place of a row for the end of the micro-batch."""
        place = {"shard": self._sinks[0], "stage": 0, "flow": name}
        return place | {"stream": stream, "sender": "", "position": 0}

    def _answer(self, rows: list[Row]) -> Iterator[Row]:
        """Answer the questions to a slot, after its rows of this micro-batch."""
        from geartrain_cloud.hosting.answering import answered

        workshop = self._opened()
        hosted = workshop.version(rows[0].sequence).flows[rows[0].flow]
        with workshop.running(hosted) as (query, _):
            found = [answered(query, hosted, self._state, bytes(row.packed)) for row in rows]
        for sequence, packed in enumerate(found):
            yield Row(**self._end_of(hosted.name, ANSWER), sequence=sequence, packed=packed)

    def close(self) -> None:
        """Nothing is held between calls."""
