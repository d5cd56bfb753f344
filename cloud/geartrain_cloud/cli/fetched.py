"""Records that `gear fetch` has brought from a platform's log, run through the data centre's steps of a flow.

In the place of the sources of `gear run`: what devices made of theirs before is not made again. Guarantees:
steps are fed with the records in the order of the log. Their clocks end where the log's stood, or where the
range ends. With state, results before the range are left out.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from geartrain.adapters.system import SystemRandomness
from geartrain.errors import ConfigError
from geartrain.graph.conform import raw_form
from geartrain.graph.graph import CLAIMS, DEAD_LETTERS, LATE, OVERTAKEN, STATE, Graph
from geartrain.planning import Plan
from geartrain.planning.mixed import make_mixed_plan
from geartrain.planning.properties import derive_properties
from geartrain.ports import Clock
from geartrain.records.batch import Batch, DeadLetter
from geartrain.records.letters import to_batch
from geartrain.runtime.fragment import Fragment, Output
from geartrain.runtime.local import Progress
from geartrain.schema import ColumnBatch, Field, FieldType, RowCodec
from geartrain.state.moving import Cells
from geartrain_client.cli.fetching import META_FILE, RECORDS_FILE, FetchedMeta
from geartrain_cloud.spark.chains import OVERTAKEN_REASON
from geartrain_cloud.spark.clocks import least_clock, sources_of
from geartrain_cloud.spark.rows import decoded

_BESIDE = (DEAD_LETTERS, LATE, STATE, CLAIMS)
"""Channels whose rows are no records of a step."""


class Fetched:
    """A folder that `gear fetch` has written."""

    def __init__(self, folder: Path) -> None:
        """Raises `ConfigError` where it is none, or not whole."""
        self.folder = folder
        try:
            self.meta = msgspec.json.decode((folder / META_FILE).read_bytes(), type=FetchedMeta)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(
                f"--fetched {folder} holds nothing that gear fetch has written whole: {error}; fetch again"
            ) from None

    def plan(self, graph: Graph) -> Plan:
        """The app's plan, for the flow as it is here; raises `ConfigError` where the records are others."""
        ours = graph.with_options(self.meta.options, f"--fetched {self.folder}:")
        plan = make_mixed_plan(ours, self.meta.cut, self.meta.cuts)
        known = {channel.id: channel.schema.schema_id for channel in plan.channels}
        for channel, schema in self.meta.channels.items():
            if known.get(channel) != schema:
                raise ConfigError(
                    f"--fetched {self.folder}: the flow here has no channel {channel} with such records: run "
                    f"the code that app {self.meta.app} ran"
                )
        return plan

    def said(self, graph: Graph) -> str:
        """Where a run over it begins, as a sentence; raises `ConfigError`."""
        plan = self.plan(graph)
        made = [step for step in plan.edge if plan.graph[step].inputs]
        streams = ", ".join(c.id for c in plan.channels if c.id not in _BESIDE)
        before = f"; {', '.join(made)} ran on devices, and is not run again" if made else ""
        return f"the flow begins at {streams}, as it came over the link{before}"

    def records(self) -> Iterator[dict[str, Any]]:
        """The records, in the order of the file; raises `ConfigError`."""
        try:
            with (self.folder / RECORDS_FILE).open(encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    try:
                        yield json.loads(line)
                    except ValueError:
                        raise ConfigError(
                            f"{self.folder / RECORDS_FILE}, line {number} is no JSON: fetch again"
                        ) from None
        except OSError as error:
            raise ConfigError(f"{self.folder / RECORDS_FILE} cannot be read: {error.strerror}") from None


class FetchedRun:
    """One run of the data centre's steps over what was fetched; used as `LocalRun` is."""

    def __init__(self, fetched: Fetched, graph: Graph, clock: Clock) -> None:
        """Raises `ConfigError` and `PlacementError`."""
        self._fetched, self._meta, self.plan = fetched, fetched.meta, fetched.plan(graph)
        self.fragment = Fragment(self.plan.graph, self.plan.cloud, clock=clock, randomness=SystemRandomness())
        self.progress = Progress()
        self.ended = False
        self._begun = Cells()
        self._codecs = {channel.id: RowCodec(channel.kind) for channel in self.plan.channels}
        self._entries = {channel.id: channel.entry for channel in self.plan.channels}
        known = derive_properties(self.plan.graph)
        self._timely = {c for c, entry in self._entries.items() if entry in known and known[entry].timely}

    async def outputs(self, rows_max: int, going: Callable[[], bool]) -> AsyncIterator[Output]:
        """Feed the records, then let time pass; yield what leaves."""
        for (channel, overtaken), lines in groupby(
            self._fetched.records(), itemgetter("channel", "overtaken")
        ):
            for rows in _chunks(lines, rows_max):
                if not going():
                    return
                output = self._feed(channel, self._batch(channel, rows), overtaken=overtaken)
                self.progress.records_read += len(rows)
                yield self._kept(output)
        clocks = {s: min(clock, self._meta.end) for s, clock in self._meta.clocks.items()}
        for entry, sources in sources_of(self.plan.graph, self._entries.values()).items():
            if entry not in _BESIDE:
                self.fragment.advance(entry, least_clock(clocks, sources))
        self.fragment.close()
        self.ended = True
        yield self._kept(self.fragment.take())

    def _feed(self, channel: str, batch: Batch, *, overtaken: bool) -> Output:
        output = Output()
        if channel in (DEAD_LETTERS, LATE):
            output.add(channel, batch)
        elif channel == STATE:
            self._take_in(batch)
        elif channel == CLAIMS:
            return output  # what devices have said, and no records
        elif overtaken and channel in self._timely:
            letters = [
                DeadLetter(channel, batch.origin(row), batch.times[row], OVERTAKEN_REASON, raw_form(value))
                for row, value in enumerate(batch.values)
            ]
            output.add(OVERTAKEN, to_batch(letters))
        else:
            self.fragment.feed(self._entries[channel], batch)
        for stream, batches in self.fragment.take().batches.items():
            for one in batches:
                output.add(stream, one)
        return output

    def _take_in(self, batch: Batch) -> None:
        """Go on with cells that devices have left with their steps; those in pieces once they are whole."""
        for piece in batch.values:
            at = piece.step, piece.key
            begun = self._begun.pop(at, b"") if piece.offset else b""
            if len(begun) == piece.offset:
                self._begun[at] = begun + piece.cell
                if len(self._begun[at]) == piece.size and piece.step in self.fragment.steps:
                    self.fragment.take_in({at: self._begun.pop(at)})

    def _kept(self, output: Output) -> Output:
        """Without what belongs before the range, which the records before it have made."""
        begin, kept = self._meta.begin, Output()
        for stream, batches in output.batches.items():
            for batch in batches:
                kept.add(stream, batch.where([time >= begin for time in batch.times]))
        return kept

    def _batch(self, channel: str, rows: list[dict[str, Any]]) -> Batch:
        codec = self._codecs[channel]
        fields = [
            [_column(field, row["values"][field.name]) for row in rows] for field in codec.schema.fields
        ]
        columns = ColumnBatch(
            fields,
            [row["time"] for row in rows],
            [row["split"] for row in rows],
            [row["number"] for row in rows],
            [bytes.fromhex(row["path"]) for row in rows],
        )
        return decoded(codec, columns, channel, self.fragment.reject)


def _chunks(lines: Iterator[dict[str, Any]], count: int) -> Iterator[list[dict[str, Any]]]:
    rows = []
    for line in lines:
        rows.append(line)
        if len(rows) == count:
            yield rows
            rows = []
    if rows:
        yield rows


def _column(field: Field, value: Any) -> Any:
    """A value as the log's column has it."""
    if value is None:
        return None
    if field.type is FieldType.BYTES:
        return bytes.fromhex(value)
    return float(value) if field.type is FieldType.FLOAT64 else value
