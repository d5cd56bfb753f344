"""Records that `gear fetch` has brought from a platform's log, run through the data centre's steps of a flow.

In the place of the sources of `gear run`: what devices made of theirs before is not made again. Guarantees:
steps are fed with the records in the order of the log. Their clocks end where the log's stood, or where the
range ends. With state, results before the range are left out.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from geartrain.errors import ConfigError
from geartrain.graph.conform import raw_form
from geartrain.graph.graph import CLAIMS, DEAD_LETTERS, LATE, OVERTAKEN, STATE, Graph
from geartrain.planning import Plan
from geartrain.planning.mixed import make_mixed_plan
from geartrain.planning.properties import derive_properties
from geartrain.ports import Clock
from geartrain.records.batch import DeadLetter
from geartrain.records.letters import to_batch
from geartrain.runtime.fragment import Fragment, Output
from geartrain.runtime.local import Progress
from geartrain.schema import ColumnBatch, Field, FieldType, Schema
from geartrain.schema.upgrading import Upgrading
from geartrain_client.cli.fetching import META_FILE, RECORDS_FILE, FetchedMeta
from geartrain_cloud.spark.chains import OVERTAKEN_BY_CLOCK
from geartrain_cloud.spark.followed import Followed
from geartrain_cloud.spark.rows import Reject, decoded
from geartrain_cloud.spark.upgrading import upgraded

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
            said = error.strerror or error if isinstance(error, OSError) else error
            raise ConfigError(
                f"--fetched {folder} holds nothing that gear fetch has written whole: {said}; fetch again"
            ) from None

    def plan(self, graph: Graph) -> tuple[Plan, dict[str, FetchedRows]]:
        """The app's plan, for the flow as it is here, and by channel what reads its records; raises
        `ConfigError` where the records are others.
        """
        ours = graph.with_options(self.meta.options, f"--fetched {self.folder}:")
        plan = make_mixed_plan(ours, self.meta.cut, self.meta.cuts)
        given_up = self.meta.given_up
        known = {
            channel.id: FetchedRows(channel.entry, channel.kind, given_up.get(channel.id, ()))
            for channel in plan.channels
        }
        strange = [
            channel
            for channel, schemas in self.meta.types.items()
            if channel not in known or not all(map(known[channel].knows, schemas.values()))
        ]
        if strange:
            raise ConfigError(
                f"--fetched {self.folder}: the flow here has no channel {strange[0]} with such records: run "
                f"the code that app {self.meta.app} ran"
            )
        return plan, known

    def said(self, graph: Graph) -> str:
        """Where a run over it begins, as a sentence; raises `ConfigError`."""
        plan, _ = self.plan(graph)
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
        self._fetched, self._meta = fetched, fetched.meta
        self.plan, self._rows = fetched.plan(graph)
        self._steps = Followed(self.plan, self.plan.cloud, clock)
        self.progress = Progress()
        self.ended = False
        known = derive_properties(self.plan.graph)
        entries = {channel.id: channel.entry for channel in self.plan.channels}
        self._timely = {c for c, entry in entries.items() if entry in known and known[entry].timely}

    @property
    def fragment(self) -> Fragment:
        """The steps at work."""
        return self._steps.fragment

    async def outputs(self, rows_max: int, going: Callable[[], bool]) -> AsyncIterator[Output]:
        """Feed the records, then let time pass; yield what leaves."""
        for (channel, overtaken, schema, _), lines in groupby(self._fetched.records(), _together):
            # What a device says in one batch is for all of its steps at once.
            for rows in [list(lines)] if channel == CLAIMS else _chunks(lines, rows_max):
                if not going():
                    return
                output = self._feed(channel, rows, schema, overtaken=overtaken)
                self.progress.records_read += len(rows)
                yield self._kept(output)
        clocks = {s: min(clock, self._meta.end) for s, clock in self._meta.clocks.items()}
        self._steps.advance([c.id for c in self.plan.channels if c.id not in _BESIDE], clocks)
        self._steps.close()
        self.ended = True
        yield self._kept(self._steps.take())

    def _feed(self, channel: str, rows: list[dict[str, Any]], schema: str, *, overtaken: bool) -> Output:
        read, text = self._rows[channel], self._meta.types.get(channel, {}).get(schema)
        if text is None:
            raise ConfigError(
                f"--fetched {self._fetched.folder}: records of channel {channel} are of a type that "
                f"{META_FILE} does not name: fetch again"
            )
        columns, kept = read.columns(rows, text, self.fragment.reject)
        devices = [rows[row]["device"] for row in kept]
        if channel == STATE:
            self._steps.take_in(columns, devices)
            return self._steps.take()
        if channel == CLAIMS:
            self._steps.answer(columns, devices, self._meta.end)
            return self._steps.take()
        output, batch = Output(), decoded(read.codec, columns, channel, self.fragment.reject)
        if channel in (DEAD_LETTERS, LATE):
            output.add(channel, batch)
            return output
        self._steps.note_owners(channel, columns, devices)
        if overtaken and channel in self._timely:
            letters = [
                DeadLetter(channel, batch.origin(row), batch.times[row], *OVERTAKEN_BY_CLOCK, raw_form(value))
                for row, value in enumerate(batch.values)
            ]
            output.add(OVERTAKEN, to_batch(letters))
        else:
            self._steps.feed(channel, batch)
        for stream, batches in self._steps.take().batches.items():
            for one in batches:
                output.add(stream, one)
        return output

    def _kept(self, output: Output) -> Output:
        """Without what belongs before the range, which the records before it have made."""
        begin, kept = self._meta.begin, Output()
        for stream, batches in output.batches.items():
            for batch in batches:
                kept.add(stream, batch.where([time >= begin for time in batch.times]))
        return kept


class FetchedRows:
    """Reads the records of a channel in whichever type they came; stream: the step that sent them; given_up:
    the layouts of former types whose records are dead letters.
    """

    def __init__(self, stream: str, kind: Any, given_up: Collection[str] = ()) -> None:
        self._stream, self._reads = stream, Upgrading(kind, given_up)
        self.codec = self._reads.codec

    def knows(self, text: str) -> bool:
        """Whether records of a schema can be read; raises `SchemaError` for what is none."""
        return self._reads.codec_of(Schema.from_json(text)) is not None

    def columns(
        self, rows: Sequence[dict[str, Any]], text: str, reject: Reject
    ) -> tuple[ColumnBatch, Sequence[int]]:
        """Records of a schema that it knows as rows of the present type, and which of them these are; what
        cannot be upgraded is rejected.
        """
        codec = self._reads.codec_of(Schema.from_json(text)) or self.codec
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
        if codec is self.codec:
            return columns, range(len(rows))
        return upgraded(self._reads, codec, columns, self._stream, reject)


def _together(line: dict[str, Any]) -> tuple[str, bool, str, str]:
    """What stands in one batch."""
    place = line["entry"] if line["channel"] == CLAIMS else ""
    return line["channel"], line["overtaken"], line.get("schema", ""), place


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
