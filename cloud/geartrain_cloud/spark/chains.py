"""Stage 0 of a query inside Spark: the steps without state, from rows of the log to packed rows for sinks or
shards.

It stands inside the source of a hosting query, in the reader's workers. The same fused chains run here as on
a device.

Guarantees: no state is kept from row to row, so any task may be run again. Rows of one stream and position
stay together and in order. A row of the log that cannot be read becomes a dead letter of its channel.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.graph.conform import raw_form
from geartrain.graph.graph import CLAIMS, OVERTAKEN, STATE
from geartrain.planning.properties import derive_properties
from geartrain.records.batch import Batch, DeadLetter
from geartrain.records.codes import Code, Refusal
from geartrain.records.letters import Letter, to_batch
from geartrain.runtime.fragment import Fragment
from geartrain.schema import ColumnBatch, RowCodec
from geartrain_cloud.log.arrow import from_table
from geartrain_cloud.log.pack import pack, take
from geartrain_cloud.spark.claims import Claimed
from geartrain_cloud.spark.clocks import Clocks, least_clock, sources_of
from geartrain_cloud.spark.compile import Query
from geartrain_cloud.spark.moved_state import dealt_cells
from geartrain_cloud.spark.rows import Routed, Router, decoded
from geartrain_cloud.spark.tally import Tally
from geartrain_cloud.spark.upgrading import Present

OVERTAKEN_BY_CLOCK = Refusal(Code.OVERTAKEN, "overtaken: the clock had passed it when it came into the log")


class Chains:
    """The opened stage 0 of one query, in one task."""

    def __init__(self, query: Query, shards: int, tally: Tally | None = None) -> None:
        """tally: counts what goes to later stages by keys."""
        self._query, self._shards = query, shards
        self.clocks: Clocks | None = None
        """Those of the micro-batch, in the task that reads its heartbeat."""
        self._sources = sources_of(query.graph, map(query.entry, query.channels))
        self._present = {
            channel: Present(channel, kind, query.given_up.get(channel, ()))
            for channel, kind in query.channels.items()
        }
        clock, randomness = SystemClock(), SystemRandomness()  # for tasks that say they are not replayable
        self._fragment = Fragment(query.graph, query.prefix, clock=clock, randomness=randomness)
        self._router = Router(query, 0, shards, self._fragment.reject, tally=tally)
        timely = derive_properties(query.graph)
        self._timely = frozenset(
            c for c in query.channels if (entry := query.entry(c)) in timely and timely[entry].timely
        )
        self._claimed = Claimed(query, shards)
        self._fed = frozenset(i.step for s in query.graph.steps if s.id in query.prefix for i in s.inputs)

    def run(self, channel: str, table: pa.Table) -> list[Routed]:
        """What the log rows `table` of `channel` become; raises `LedgerError` for rows of another flow."""
        table = self._in_present_type(channel, table)
        rows, found = self._columns(channel, table)
        direct = pack(rows) if self._query.direct[channel] and len(rows) else b""
        found += [Routed(0, 0, sink, direct) for sink in self._query.direct[channel] if direct]
        entry = self._query.entry(channel)
        if channel == STATE:
            batch, reject = self._decoded(channel, rows), self._fragment.reject
            found += dealt_cells(self._query.stages, rows, batch, self._shards, reject)
            found += self._claimed.owners_of_cells(rows, table)
        if channel == CLAIMS:
            found += self._claimed.said(self._decoded(channel, rows).values, table)
        found += self._claimed.owners(channel, table)
        if entry in self._fed or self._router.reads(entry):
            batch = self._decoded(channel, rows)
            found += self._router.route(entry, batch)
            if entry in self._fed:
                self._fragment.feed(entry, batch)
        found += self._router.drain(self._fragment)
        return found

    def refuse(self, channel: str, step: str, table: pa.Table, refusal: Refusal) -> list[Routed]:
        """What becomes of log rows that `step` cannot take: dead letters, or what they were overtaken by."""
        rows, found = self._columns(channel, self._in_present_type(channel, table))
        batch = self._decoded(channel, rows)
        for row, value in enumerate(batch.values):
            letter = DeadLetter(step, batch.origin(row), batch.times[row], *refusal, raw_form(value))
            self._fragment.reject(letter)
        return [*found, *self._router.drain(self._fragment)]

    def finish(self) -> list[Routed]:
        """Stop the steps, which one task of the micro-batch has told of its clocks before; what they say to
        that.

        No step of stage 0 waits for time, but a task may want to know of it. In a large micro-batch others
        still read on meanwhile: a task without a key can promise nothing of what came before.
        """
        if self.clocks is not None:
            for entry, sources in self._sources.items():
                self._fragment.advance(entry, least_clock(self.clocks, sources))
        found = list(self._router.drain(self._fragment))
        self._fragment.close()
        return found

    def check(self, channel: str, table: pa.Table) -> None:
        """Raises `LedgerError` for rows that are not of the flow."""
        self._present[channel].check(table)

    def _in_present_type(self, channel: str, table: pa.Table) -> pa.Table:
        """Log rows of a channel without those that cannot be upgraded: these are dead letters of the step
        that made them.
        """
        return self._present[channel].table(table, self._query.stream(channel), self._fragment.reject)[0]

    def _decoded(self, channel: str, rows: ColumnBatch) -> Batch:
        """The records of a channel; what cannot be read is a dead letter of the step that made it."""
        codec = self._present[channel].codec
        return decoded(codec, rows, self._query.stream(channel), self._fragment.reject)

    def _columns(self, channel: str, table: pa.Table) -> tuple[ColumnBatch, list[Routed]]:
        """The rows that the clock had not passed when they came, and the others for a table of their own."""
        rows = from_table(self._present[channel].codec.schema, table)
        if channel not in self._timely or not pc.any(table.column("_overtaken")).as_py():
            return rows, []
        return self._on_time(channel, rows, [bool(flag) for flag in table.column("_overtaken").to_pylist()])

    def _on_time(
        self, channel: str, rows: ColumnBatch, overtaken: list[bool]
    ) -> tuple[ColumnBatch, list[Routed]]:
        passed = take(rows, [row for row, flag in enumerate(overtaken) if flag])
        found = []
        stream = self._query.stream(channel)
        if stream in self._query.owned:
            batch = self._decoded(channel, passed)
            letters = to_batch(
                [
                    DeadLetter(
                        stream, batch.origin(row), batch.times[row], *OVERTAKEN_BY_CLOCK, raw_form(value)
                    )
                    for row, value in enumerate(batch.values)
                ]
            )
            columns = RowCodec(Letter).to_columns(letters.values)
            packed = ColumnBatch(columns, letters.times, letters.names, letters.numbers, letters.paths)
            found.append(Routed(0, 0, OVERTAKEN, pack(packed)))
        return take(rows, [row for row, flag in enumerate(overtaken) if not flag]), found
