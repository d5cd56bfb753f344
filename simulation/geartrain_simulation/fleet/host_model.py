"""A short model of a host of flows: the query of one, with the state of its steps and an outbox for devices.

It stands where the Spark model does, which it is. The stages of the query are the production classes.
Guarantees: the state after a micro-batch is there once that is noted as done. One that is run again starts
from the state before it. The outbox holds what devices are given by a micro-batch, and its number, wholly or
not at all; so do the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa

from geartrain.graph.graph import CLAIMS, GIVEN
from geartrain.planning import Plan
from geartrain.records.event_time import START_OF_TIME
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.state.claims import GivenCell
from geartrain.wire.envelope import EPOCH_BYTES
from geartrain_cloud.log.arrow import to_table
from geartrain_cloud.ports import Entry
from geartrain_cloud.spark.buckets import forget_steps
from geartrain_cloud.spark.claims import claims_lost
from geartrain_cloud.spark.clocks import least_clock
from geartrain_cloud.spark.compile import hosted_query
from geartrain_simulation.fleet.spark_model import Positions, SparkModel, key_of, revision_of
from geartrain_simulation.fleet.stage_run import LogRow, StageRun
from geartrain_simulation.machine.world import Process
from geartrain_simulation.stores.outboxes import OutboxBook
from geartrain_simulation.stores.segments import LoggedRow

State = dict[tuple[int, int], dict[int, bytes]]
"""By stage and shard, what Spark keeps."""


class HostModel(SparkModel):
    """One flow of a host, which gives devices what they claim."""

    def __init__(
        self,
        *world: Any,
        plan: Plan,
        partitions: int,
        outbox: OutboxBook,
        later: Plan | None = None,
        gifts: int = 0,
        drops: Collection[str] = (),
    ) -> None:
        """world: as the Spark model takes it; plan: the cloud's, for all cuts of its devices; partitions: of
        the log; later: the plan of its next code, to which it goes over behind the micro-batch in which it
        gives cells for the `gifts`-th time; drops: the steps that begin empty with each revision that the
        log brings.
        """
        super().__init__(*world)
        self._graph, self._partitions, self._outbox = plan.graph, partitions, outbox
        self._stages = StageRun(hosted_query(plan), Random(0))
        self._later, self._gifts = None if later is None else hosted_query(later), gifts
        self.over = -1
        """The first micro-batch of its next code, -1 for none yet."""
        self._codecs = {channel.id: RowCodec(channel.kind) for channel in plan.channels}
        self._state = self._kept()
        self._given, self._written = -1, -1
        self._drops = drops
        self.tables: dict[str, list[ColumnBatch]] = {}
        """What came to each sink."""
        self.cells_given = 0

    async def _run_steps(
        self, process: Process, random: Random, number: int, ends: Positions, entries: Sequence[Entry]
    ) -> Callable[[], None]:
        rows = [row for entry in entries for row in self._tables_of(entry)]
        if self._later is not None and number == self.over:
            self._stages.query = self._later
        found = self._attempt(rows, self._clocks(ends), self._begun_at(number))
        after = self._kept()
        await self._effect(process, random, "spark.give")
        await self._give(process, random, number, found.pop(GIVEN, []))
        process.point("spark.give done", str(number))
        if self._written < number:
            self._written = number
            for sink, batches in found.items():
                self.tables.setdefault(sink, []).extend(batches)
        return partial(self._keep, after)

    def _revision(self, starts: Positions) -> int:
        brought = self._ledger.entries.values()
        newest = [
            max((revision_of(one) for one in entries[: starts.get(key_of(entries[0]), 0)]), default=0)
            for entries in brought
        ]
        return max(min(newest), 1) if len(newest) == self._partitions else 1

    def _begun_at(self, number: int) -> int:
        """The revision that begins with a micro-batch, 0 for none."""
        now, before = (
            self._revision(self.checkpoint.offsets[at - 1] if at > 0 else {}) for at in (number, number - 1)
        )
        return now if now > before else 0

    def _attempt(
        self, rows: list[LogRow], clocks: dict[str, int], begins: int
    ) -> dict[str, list[ColumnBatch]]:
        """What a micro-batch gives, from the state before it; begins: the revision with which some steps are
        empty before its rows, 0 for none.
        """
        for place, values in self._state.items():
            self._stages.states[place].values = dict(values)
            if begins:
                stage = self._stages.query.stages[place[0]]
                forget_steps(self._stages.states[place], stage.steps & set(self._drops), begins)
        return self._stages.micro_batch(rows, clocks)

    def _kept(self) -> State:
        return {place: dict(state.values) for place, state in self._stages.states.items()}

    def _keep(self, state: State) -> None:
        self._state = state

    async def _give(
        self, process: Process, random: Random, number: int, batches: Sequence[ColumnBatch]
    ) -> None:
        """Have the outbox hold what devices are given, unless it does; one that was not committed is made
        again.
        """
        if number <= self._given:
            return
        codec, of_device = RowCodec(GivenCell), dict[str, list[GivenCell]]()
        for batch in batches:
            *fields, names = batch.fields
            for name, given in zip(names, codec.from_columns(fields), strict=True):
                of_device.setdefault(name, []).append(given)
        rows = {
            name: ColumnBatch(
                codec.to_columns(given),
                [START_OF_TIME] * len(given),
                [GIVEN] * len(given),
                list(range(len(given))),
            )
            for name, given in of_device.items()
        }
        if rows:
            epoch = partial(random.randbytes, EPOCH_BYTES)
            stage = partial(self._outbox.stage, GIVEN, codec.schema, rows, ({}, {}), epoch)
            stage()
            process.on_end.append(self._outbox.staged.clear)
            await process.pause(random, self._faults)
            stage()
            self._outbox.commit()
            self.cells_given += sum(bool(one.step) for given in of_device.values() for one in given)
            self._gifts -= 1
            if not self._gifts and self._later is not None:
                self.over = number + 1
        self._given = number

    def _clocks(self, ends: Positions) -> dict[str, int]:
        """Of each source, the least over the partitions where a micro-batch ends."""
        found = [
            entries[ends[key] - 1].clocks
            for entries in self._ledger.entries.values()
            if ends.get(key := key_of(entries[0]))
        ]
        sources = [step.id for step in self._graph.sources()]
        if len(found) < self._partitions:
            return dict.fromkeys(sources, START_OF_TIME)
        return {source: min(least_clock(one, [source]) for one in found) for source in sources}

    def _tables_of(self, entry: Entry) -> list[LogRow]:
        """The rows of an entry as a segment has them in Arrow."""
        if not entry.segment:
            said = claims_lost([entry])
            return [] if said is None else [(CLAIMS, entry.number, said, key_of(entry))]
        rows, schema = self._rows(entry), self._codecs[entry.channel].schema
        return [(entry.channel, entry.number, _table(schema, rows), key_of(entry))] if rows else []


def _table(schema: Any, logged: Sequence[LoggedRow]) -> pa.Table:
    rows = [one.row for one in logged]
    columns = ColumnBatch(
        [list(column) for column in zip(*(row.fields for row in rows), strict=True)],
        [row.time for row in rows],
        [row.name for row in rows],
        [row.number for row in rows],
        [row.path for row in rows],
    )
    late, overtaken = [one.late for one in logged], [one.overtaken for one in logged]
    return to_table(
        schema, columns, [one.device for one in logged], [one.seq for one in logged], late, overtaken
    )
