"""A windowed aggregate as a plan of Spark's own: from the rows of the log to those of its sinks.

It stands in the place of a query's stages. The columns that the windows need are taken from the log as they
lie there, without a Python value for each record. They are added up by window and key for some thousands of
records at a time, and Spark adds these parts up. The same code as elsewhere turns what a window held into a
result.

Guarantees: records, event times, origins and dead letters are the same as in the embedded form. Spark drops
no row, because no row is made below the clock that its watermark follows.

Spark's watermark is that of the micro-batch before, in whole milliseconds. So a window's result leaves when
the clock has passed the window's end by less than a millisecond, in the micro-batch after. The reader makes
sure that there is such a micro-batch. Dead letters go through the aggregation too, as groups of their own,
because a plan with two branches would read the log twice. They leave when the clock next moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from geartrain.accumulating.aggregating import Aggregating
from geartrain.aggregates.count import Count, CountAll
from geartrain.aggregates.mergeable import AggregateSpec
from geartrain.aggregates.ranking import Max, Min
from geartrain.aggregates.total import Sum
from geartrain.declarations.windows import TIME_US_MAX, Sliding, Tumbling
from geartrain.graph.graph import Step
from geartrain.graph.operator import Services
from geartrain.records.batch import Batch
from geartrain.records.codes import Code, Refusal
from geartrain.records.event_time import END_OF_TIME
from geartrain.records.keys import encode_key
from geartrain.runtime.fragment import Fragment
from geartrain.schema import FieldType, derive
from geartrain.state.keyed import DictBackend, KeyedState
from geartrain.windowing.open_windows import TOO_FAR, ColumnGiver, OpenWindow, Results, finisher
from geartrain_cloud.log.pack import ipc_to_table
from geartrain_cloud.spark.chains import OVERTAKEN_BY_CLOCK, Chains
from geartrain_cloud.spark.clocks import decode_clocks, least_clock, sources_of
from geartrain_cloud.spark.compile import Query
from geartrain_cloud.spark.rows import SINK_ROWS, Routed, Router

RecordBatches = Iterator[pa.RecordBatch]

_BEFORE_1970 = Refusal(Code.BEFORE_1970, "its event time is before 1970, which its source rules out")
_TOO_FAR = Refusal(Code.NO_WINDOW, TOO_FAR)
_TIME = pa.timestamp("us", tz="UTC")
_TYPES = {FieldType.BOOL: "boolean", FieldType.INT64: "long", FieldType.STR: "string"}
_WIDE = pa.decimal128(28, 0)
"""Of a part of a sum: of 28 digits, so that their sum in Spark has 38 and cannot overflow."""
_ARROW = {"boolean": pa.bool_(), "long": pa.int64(), "string": pa.string(), "decimal(28,0)": _WIDE}
_MS = 1_000


def native_frame(rows: DataFrame, query: Query) -> DataFrame:
    """The streaming frame of a query whose windows Spark runs, from `window_layout` to `SINK_ROWS`."""
    plan = _Windows(query)
    rows = rows.withWatermark("clock", "0 seconds").drop("clock")
    watermarked = {"spark.watermarkDelayMs": 0}
    rows = rows.withColumn("ends", F.col("ends").alias("ends", metadata=watermarked))
    added = rows.groupBy("ends", "start", "key", "sink", "letter").agg(*plan.added())
    return added.drop("ends").mapInArrow(window_results(query), SINK_ROWS)


def window_layout(query: Query) -> str:
    """The columns of `window_rows`."""
    columns = [f"{name} {kind}" for name, kind in _Windows(query).columns.items()]
    ours = "clock timestamp, ends timestamp, start long, key binary, sink string, letter binary"
    return ", ".join([ours, *columns])


_ADDED: Mapping[type, str] = {Sum: "sum", Count: "count", Min: "min", Max: "max"}


class _Windows:
    """What of a record the windows of a query take, and how Spark adds it up."""

    def __init__(self, query: Query) -> None:
        graph = query.graph
        self.step: Step = graph[query.native]
        key = graph[self.step.inputs[0].step]
        operator: Any = self.step.operator
        self.window: Tumbling | Sliding = operator.window
        self.fields: Mapping[str, AggregateSpec] = operator.fields
        self.key: str = key.operator.field  # type: ignore[attr-defined]
        (kind,) = query.channels.values()
        types = {f.name: f.type for f in derive(kind).fields}
        self.columns: dict[str, str] = {}
        """By name, the Spark type of what Arrow makes of each aggregate for some thousands of records."""
        for number, spec in enumerate(self.fields.values()):
            kind, field = type(spec.aggregate), spec.selector.field
            counts = kind in (CountAll, Count)
            plain = "long" if counts or field is None else _TYPES[types[field]]
            self.columns[f"v{number}"] = "decimal(28,0)" if kind is Sum else plain

    def added(self) -> list[Column]:
        """One column for each aggregate, in their order."""
        by_kind: Mapping[type, Callable[[str], Column]] = {Min: F.min, Max: F.max}
        kinds = [type(spec.aggregate) for spec in self.fields.values()]
        return [by_kind.get(kind, F.sum)(f"v{n}").alias(f"a{n}") for n, kind in enumerate(kinds)]

    def parts(self, table: pa.Table, start: Any, taken: Any) -> pa.Table:
        """What Arrow adds up: `start`, `key`, and the columns of `columns`; taken: the row of each start."""
        given: dict[str, Any] = {"start": start, "key": table.column(self.key).take(taken)}
        added: list[Any] = []
        for name, spec in zip(self.columns, self.fields.values(), strict=True):
            kind, field = type(spec.aggregate), spec.selector.field
            if field is None:
                added.append(([], "count_all"))
                continue
            column = table.column(field)
            if kind is Sum:
                column = column.cast(pa.int64()).cast(_WIDE)
            given[name] = column.take(taken)
            added.append((name, _ADDED[kind]))
        return pa.table(given).group_by(["start", "key"], use_threads=False).aggregate(added)


def window_rows(query: Query) -> Callable[[RecordBatches], RecordBatches]:
    """`SOURCE_SCHEMA` to rows by window and key, in the columns of `window_layout`."""

    def run(batches: RecordBatches) -> RecordBatches:
        plan, chains = _Windows(query), Chains(query, 1)
        (sources,) = sources_of(query.graph, query.channels).values()
        for batch in batches:
            names = ("channel", "clocks", "packed")
            for channel, clocks, packed in zip(*(batch.column(n).to_pylist() for n in names), strict=True):
                clock = least_clock(decode_clocks(clocks), sources)
                if packed is None:
                    yield _passing(plan, clock, [Routed(0, 0, "", b"")])
                    continue
                yield from _window_rows(plan, chains, channel, ipc_to_table(packed), clock)

    return run


def _window_rows(plan: _Windows, chains: Chains, channel: str, table: pa.Table, clock: int) -> RecordBatches:
    chains.check(channel, table)
    times = table.column("_event_time").to_numpy()
    overtaken = table.column("_overtaken").to_numpy()
    early, far = ~overtaken & (times < 0), ~overtaken & (times > TIME_US_MAX)
    passing: list[Routed] = []
    for refused, step, refusal in (
        (overtaken, channel, OVERTAKEN_BY_CLOCK),
        (early, channel, _BEFORE_1970),
        (far, plan.step.id, _TOO_FAR),
    ):
        if refused.any():
            passing += chains.refuse(channel, step, table.filter(pa.array(refused)), refusal)
    if passing:
        yield _passing(plan, clock, passing)
        table = table.filter(pa.array(~(overtaken | early | far)))
    if table.num_rows:
        yield _taken(plan, table.combine_chunks(), clock)


def _taken(plan: _Windows, table: pa.Table, clock: int) -> pa.RecordBatch:
    """A row for each window and key of these records, added up."""
    window = plan.window
    size = window.size_us
    every = window.every_us if isinstance(window, Sliding) else size
    times = table.column("_event_time").to_numpy()
    # Floor division, as `assign` has it: an offset may put a window's start before 1970.
    last = (times - window.offset_us) // every * every + window.offset_us
    number = (last + size - 1 - times) // every + 1
    index = np.repeat(np.arange(len(times)), number)
    back = np.arange(len(index)) - np.repeat(np.cumsum(number) - number, number)
    start = last[index] - back * every
    parts = plan.parts(table, start, pa.array(index))
    count, starts = parts.num_rows, parts.column("start").to_numpy()
    ends = np.minimum(starts + size, END_OF_TIME)
    keys = _flat(parts.column("key")).dictionary_encode()
    encoded = pa.array([encode_key(key) for key in keys.dictionary.to_pylist()], pa.binary())
    columns: list[Any] = [
        _same(_clamped(clock), count, _TIME),
        pa.array(ends, pa.int64()).cast(_TIME),
        parts.column("start"),
        encoded.take(keys.indices),
        _nulls(count, pa.string()),
        _nulls(count, pa.binary()),
    ]
    added = parts.columns[2:]
    columns += [c.cast(_ARROW[kind]) for c, kind in zip(added, plan.columns.values(), strict=True)]
    return _batch(plan, columns)


def _passing(plan: _Windows, clock: int, rows: Sequence[Routed]) -> pa.RecordBatch:
    """Rows for sinks, as groups that leave when the clock moves."""
    count = len(rows)
    leaves = min(_clamped(clock) // _MS * _MS + _MS, END_OF_TIME)
    columns = [
        _same(_clamped(clock), count, _TIME),
        _same(leaves, count, _TIME),
        _same(0, count, pa.int64()),
        _nulls(count, pa.binary()),
        pa.array([row.stream for row in rows], pa.string()),
        pa.array([row.packed for row in rows], pa.binary()),
        *(_nulls(count, _ARROW[kind]) for kind in plan.columns.values()),
    ]
    return _batch(plan, columns)


def _batch(plan: _Windows, columns: Sequence[Any]) -> pa.RecordBatch:
    names = ["clock", "ends", "start", "key", "sink", "letter", *plan.columns]
    return pa.RecordBatch.from_arrays([_flat(column) for column in columns], names=names)


def _flat(column: Any) -> Any:
    if isinstance(column, pa.ChunkedArray):
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column


def _nulls(count: int, kind: Any) -> Any:
    return pa.nulls(count, kind)


def _same(value: int, count: int, kind: pa.DataType) -> Any:
    return pa.repeat(pa.scalar(value, pa.int64()), count).cast(kind)


def _clamped(clock: int) -> int:
    """Spark's watermark begins in 1970."""
    return max(clock, 0)


def window_results(query: Query) -> Callable[[RecordBatches], RecordBatches]:
    """What Spark added up, to `SINK_ROWS`."""

    def run(batches: RecordBatches) -> RecordBatches:
        results = _Results(query)
        for batch in batches:
            if rows := list(results.rows(batch)):
                yield pa.record_batch(
                    {
                        "sink": pa.array([row.stream for row in rows], pa.string()),
                        "packed": pa.array([row.packed for row in rows], pa.binary()),
                    }
                )

    return run


class _Results:
    """The end of a native plan in one task: results of windows, and the steps below."""

    def __init__(self, query: Query) -> None:
        plan, graph = _Windows(query), query.graph
        step, operator = plan.step, plan.step.operator
        self._size_us, self._step = plan.window.size_us, step.id
        self._fragment = Fragment(graph, query.prefix)
        self._router = Router(query, 0, 1, self._fragment.reject)
        inputs = tuple(graph[i.step].out for i in step.inputs)
        services = Services(step.id, step.out, self._fragment.reject, KeyedState(DictBackend()), inputs)
        content = Aggregating(services, plan.fields, operator.key_fields, plan.window)  # type: ignore[attr-defined]
        self._giver, self._finished = ColumnGiver(services, content), finisher(services)
        self._specs = list(plan.fields.values())

    def rows(self, batch: pa.RecordBatch) -> Iterator[Routed]:
        """Those of one batch."""
        sinks = batch.column("sink")
        if sinks.null_count < len(sinks):
            passing: list[Any] = batch.filter(sinks.is_valid()).select(["sink", "letter"]).to_pylist()
            yield from (Routed(0, 0, row["sink"], row["letter"]) for row in passing if row["sink"])
            batch = batch.filter(sinks.is_null())
        if batch.num_rows:
            self._fragment.feed(self._step, self._given(batch))
        yield from self._router.drain(self._fragment)

    def _given(self, batch: pa.RecordBatch) -> Batch:
        """The results of windows, those of one start together."""
        batch = batch.sort_by("start")
        keys: list[Any] = batch.column("key").to_pylist()
        starts: list[Any] = batch.column("start").to_pylist()
        columns = [_accumulators(spec, batch.column(f"a{n}")) for n, spec in enumerate(self._specs)]
        held, results = list(zip(*columns, strict=True)), Results()
        for start, mine in groupby(range(len(starts)), starts.__getitem__):
            rows = list(mine)
            windows = [OpenWindow(start, start + self._size_us, held[row]) for row in rows]
            self._giver.give_all(results, keys[rows[0] : rows[-1] + 1], windows)
        return self._finished(results)


def _accumulators(spec: AggregateSpec, column: Any) -> list[Any]:
    """What windows hold, of what Spark has added up; None where it is of nothing."""
    aggregate = spec.aggregate
    if isinstance(aggregate, Count):
        return column.to_pylist()  # type: ignore[no-any-return]
    create, add = aggregate.create, aggregate.add_all
    return [None if value is None else add(create(), [value], (), ()) for value in _whole(column)]


def _whole(column: Any) -> list[Any]:
    """The values of a column, a sum as an int."""
    if not pa.types.is_decimal(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    try:
        return column.cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]
    except pa.ArrowInvalid:  # one of them has more than 64 bits
        return [None if value is None else int(value) for value in column.to_pylist()]
