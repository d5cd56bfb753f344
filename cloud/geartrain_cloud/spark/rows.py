"""Packed rows between the parts of a query: from records to bytes and back, and where each one goes.

It stands between the chains of stage 0, the fragments of the later stages, and the sinks.

Guarantees: every record goes once to each stage that reads its stream, in the order in which it was put out.
A dead letter leaves its query once. A record that cannot be turned into columns or back becomes a dead letter
and stops nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast
from zlib import crc32

from geartrain.errors import USER_ERRORS
from geartrain.graph.conform import describe, raw_form
from geartrain.graph.graph import DEAD_LETTERS, LATE, Step, key_step
from geartrain.graph.operator import Services, Transform
from geartrain.records.batch import Batch, DeadLetter, Origin
from geartrain.records.codes import Code
from geartrain.records.letters import Letter
from geartrain.runtime.fragment import Fragment
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.state.keyed import DictBackend, KeyedState
from geartrain_cloud.log.pack import pack, take
from geartrain_cloud.spark.compile import Query
from geartrain_cloud.spark.shards import shard_of
from geartrain_cloud.spark.stages import Boundary
from geartrain_cloud.spark.tally import Tally

ROUTED_ROWS = (
    "shard int, stage int, stream string, sender string, position long, sequence long, packed binary"
)
"""What goes into a shuffle: records of one stream for one shard of a stage, or for a sink.

shard: its label; stage: where the rows are fed, 0 for a sink; stream: the entry of that stage, or the sink;
sender: the partition of the log whose rows they were, or the stage and shard that put them out; position: in
that partition of the last row that they were made of, 0 below stage 0; sequence: counts what the sender puts
out for one position, or in one call. A row without stream brings a stage the clocks of the flow's sources,
packed.
"""

CLOCKS = ""
"""The stream of a row that brings the clocks."""

Reject = Callable[[DeadLetter], None]


@dataclass(frozen=True, slots=True)
class Routed:
    """Records on their way: to shard number `shard` of a stage, or to a sink (stage 0; any shard)."""

    shard: int
    stage: int
    stream: str
    packed: bytes


def home_of(name: str, number: int, path: bytes, shards: int) -> int:
    """The shard of a record that is dealt by its origin."""
    return crc32(path, crc32(f"{name}\0{number}".encode())) % shards


class Router:
    """Turns what the fragment of one stage hands out into packed rows for sinks and for later stages."""

    def __init__(
        self,
        query: Query,
        stage: int,
        shards: int,
        reject: Reject,
        shard: int = 0,
        tally: Tally | None = None,
    ) -> None:
        """`shard`: the one that this stage runs as; unreadable records go to `reject`; what is dealt by keys
        is counted in `tally`.
        """
        self._tally = tally
        self._query, self._shards, self._shard, self._reject = query, shards, shard, reject
        self._codecs: dict[str, RowCodec] = {}
        self._letter = RowCodec(Letter)
        self._below: dict[str, list[Boundary]] = {}
        for later in query.stages[stage + 1 :]:
            for boundary in later.inputs:
                self._below.setdefault(boundary.stream, []).append(boundary)
        self._key_bys: dict[str, Transform] = {}

    def reads(self, stream: str) -> bool:
        """Whether a later stage reads `stream`."""
        return stream in self._below

    def drain(self, fragment: Fragment, *, by_all: bool = False) -> Iterator[Routed]:
        """All that left `fragment` since it was last asked. by_all: every shard was fed the same since then,
        so of what all of them have refused, this one hands out its share.
        """
        while batches := fragment.take().batches:  # what cannot be encoded comes as letters in a second turn
            for stream, several in batches.items():
                for batch in several:
                    yield from self.route(stream, batch, by_all=by_all)

    def route(self, stream: str, batch: Batch, *, by_all: bool = False) -> Iterator[Routed]:
        """The records of one stream, as `drain`; what another query takes further goes nowhere."""
        if stream in (DEAD_LETTERS, LATE):
            letters = self._letters(batch, by_all=by_all)
            if len(letters):
                yield Routed(self._shard, 0, stream, pack(letters))
        elif stream in self._query.sinks:
            rows, _ = self._columns(stream, batch)
            yield Routed(self._shard, 0, stream, pack(rows))
        elif stream in self._below:
            boundaries = self._below[stream]
            if batch.keys is None and any(boundary.dealing == "key" for boundary in boundaries):
                batch = self._keyed(stream, batch)
            rows, batch = self._columns(stream, batch)
            for boundary in boundaries:
                yield from self._dealt(boundary, rows, batch)

    def _dealt(self, boundary: Boundary, rows: ColumnBatch, batch: Batch) -> Iterator[Routed]:
        if boundary.dealing == "all":
            packed = pack(rows)
            for shard in range(self._shards):
                yield Routed(shard, boundary.stage, boundary.entry, packed)
            return
        indexes: dict[int, list[int]] = {}
        for index, shard in enumerate(self._shards_of(boundary, batch)):
            indexes.setdefault(shard, []).append(index)
        for shard, chosen in sorted(indexes.items()):
            part = rows if len(indexes) == 1 else take(rows, chosen)
            yield Routed(shard, boundary.stage, boundary.entry, pack(part))

    def _shards_of(self, boundary: Boundary, batch: Batch) -> list[int]:
        if boundary.dealing == "origin":
            paths: Sequence[bytes] = batch.paths if batch.paths is not None else [b""] * len(batch)
            origins = zip(batch.names, batch.numbers, paths, strict=True)
            return [home_of(*origin, self._shards) for origin in origins]
        keys = batch.keys or []
        counts: Iterable[bytes] = set(keys) if self._tally is None else Counter(keys)
        of_key = {key: shard_of(key, self._shards) for key in counts}
        if self._tally is not None and isinstance(counts, Counter):
            self._tally.add(boundary.stream, counts, of_key)
        return [of_key[key] for key in keys]

    def _keyed(self, stream: str, batch: Batch) -> Batch:
        """A batch of a keyed stream that came over a channel, which carries no keys."""
        if stream not in self._key_bys:
            graph = self._query.graph
            step = cast(Step, key_step(graph, stream))  # the stages were made of keyed streams
            services = Services(stream, graph[stream].out, self._reject, KeyedState(DictBackend()))
            self._key_bys[stream] = cast(Transform, step.operator.open(services))
        return self._key_bys[stream](batch)

    def _columns(self, step: str, batch: Batch) -> tuple[ColumnBatch, Batch]:
        """Records of the output of `step`, or of the input of the sink `step`, and those that could be
        encoded.
        """
        if step not in self._codecs:
            graph = self._query.graph
            made_by = graph[step] if graph[step].out is not None else graph[graph[step].inputs[0].step]
            self._codecs[step] = RowCodec(made_by.out)
        codec = self._codecs[step]
        try:
            return _as_columns(codec.to_columns(batch.values), batch), batch
        except USER_ERRORS:  # found again, record by record
            kept = []
            for row, value in enumerate(batch.values):
                try:
                    codec.to_columns([value])
                    kept.append(row)
                except USER_ERRORS as error:  # a record may be of any class
                    self._reject(_unwritable(step, batch, row, error))
            batch = batch.take(kept)
            return _as_columns(codec.to_columns(batch.values), batch), batch

    def _letters(self, batch: Batch, *, by_all: bool) -> ColumnBatch:
        """Dead letters that are this query's and this shard's to hand out: one that every shard has leaves
        where a record of its origin would be dealt to.
        """
        columns = self._letter.to_columns(batch.values)
        rows = _as_columns(columns, batch)
        ours = [
            row
            for row, step in enumerate(columns[0])
            if step in self._query.owned and (not by_all or self._is_home(batch.origin(row)))
        ]
        return rows if len(ours) == len(rows) else take(rows, ours)

    def _is_home(self, origin: Origin) -> bool:
        return home_of(origin.name, origin.number, origin.path, self._shards) == self._shard


def decoded(codec: RowCodec, rows: ColumnBatch, stream: str, reject: Reject) -> Batch:
    """The records of `rows`, which are of the output of step `stream`; those that cannot be made are
    rejected.
    """
    try:
        values = codec.from_columns(rows.fields)
    except USER_ERRORS:  # found again, record by record
        values, kept = [], []
        for row in range(len(rows)):
            one = [[column[row]] for column in rows.fields]
            try:
                values += codec.from_columns(one)
                kept.append(row)
            except USER_ERRORS as error:
                names = [field.name for field in codec.schema.fields]
                raw = dict(zip(names, (column[0] for column in one), strict=True))
                path = b"" if rows.paths is None else rows.paths[row]
                origin = Origin(rows.names[row], rows.numbers[row], path)
                reject(_unreadable(stream, origin, rows.times[row], error, raw))
        rows = take(rows, kept)
    return Batch(values, rows.times, rows.names, rows.numbers, rows.paths)


def _unreadable(step: str, origin: Origin, time: int, error: BaseException, raw: Any) -> DeadLetter:
    reason = f"the record cannot be read: {describe(error)}"[:300]
    return DeadLetter(step, origin, time, Code.UNREADABLE, reason, raw_form(raw))


def _unwritable(step: str, batch: Batch, row: int, error: BaseException) -> DeadLetter:
    reason = f"the record cannot be handed on: {describe(error)}"[:300]
    raw = raw_form(batch.values[row])
    return DeadLetter(step, batch.origin(row), batch.times[row], Code.UNWRITABLE, reason, raw)


def _as_columns(columns: list[list[Any]], batch: Batch) -> ColumnBatch:
    return ColumnBatch(columns, batch.times, batch.names, batch.numbers, batch.paths)
