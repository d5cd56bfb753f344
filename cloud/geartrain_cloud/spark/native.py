"""A windowed aggregate as a plan of Spark's own: from the rows of the log to those of its sinks.

Stands in the place of the stages of a query. The columns that the windows need are taken from the log as they
lie there, without a Python value a record; Spark adds them up; what a window held becomes a result by the
same code as elsewhere. Guarantees: the same records, event times, origins and dead letters as the embedded
form; Spark drops no row, because none is born below the clock that its watermark follows.

Spark's watermark is that of the micro-batch before, and of whole milliseconds. So a window leaves when the
clock has passed its end by less than one, in the micro-batch after; the reader sees to it that there is one.
Dead letters go through the aggregation too, as groups of their own, because a plan with two branches would
read the log twice: they leave when the clock next moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from geartrain.aggregates.count import Count, CountAll
from geartrain.aggregates.mergeable import AggregateSpec
from geartrain.aggregates.minimum import Minimum
from geartrain.aggregates.total import Total
from geartrain.event_time import END_OF_TIME
from geartrain.graph import Step
from geartrain.keys import encode_key
from geartrain.operators.aggregating import Aggregating
from geartrain.operators.open_windows import TOO_FAR
from geartrain.operators.operator import Services
from geartrain.operators.windowing import Windowing
from geartrain.runtime.fragment import Fragment
from geartrain.runtime.state import DictBackend, KeyedState
from geartrain.schema import FieldType, derive
from geartrain.windows import TIME_US_MAX, Sliding, Tumbling
from geartrain_cloud.spark.chains import Chains
from geartrain_cloud.spark.compile import Query
from geartrain_cloud.spark.pack import ipc_to_table
from geartrain_cloud.spark.rows import SINK_ROWS, Routed, Router

RecordBatches = Iterator[pa.RecordBatch]

_BEFORE_1970 = "its event time is before 1970, which its source rules out"
_TIME = pa.timestamp("us", tz="UTC")
_TYPES = {FieldType.BOOL: "boolean", FieldType.INT64: "long", FieldType.STR: "string"}
_ARROW = {"boolean": pa.bool_(), "long": pa.int64(), "string": pa.string()}
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
        self.values = {
            f"v{number}": spec.selector.field
            for number, spec in enumerate(self.fields.values())
            if spec.selector.field is not None
        }
        counted = {f"v{n}" for n, s in enumerate(self.fields.values()) if type(s.mergeable) is Count}
        self.columns = {
            name: "boolean" if name in counted else _TYPES[types[field]]
            for name, field in self.values.items()
        }
        self.counted = counted

    def added(self) -> list[Column]:
        """One column for each aggregate, in their order."""
        found = []
        for number, spec in enumerate(self.fields.values()):
            name = f"v{number}"
            kind = type(spec.mergeable)
            if kind is CountAll:
                added = F.count(F.lit(1))
            elif kind is Count:
                added = F.count(name)
            elif kind is Total:
                # Of 28 digits, so that their sum has 38 and cannot overflow.
                added = F.sum(F.col(name).cast("long").cast("decimal(28,0)"))
            else:
                added = (F.min if kind is Minimum else F.max)(name)
            found.append(added.alias(f"a{number}"))
        return found


def window_rows(query: Query) -> Callable[[RecordBatches], RecordBatches]:
    """`SOURCE_SCHEMA` to one row for each record and window of it, in the columns of `window_layout`."""

    def run(batches: RecordBatches) -> RecordBatches:
        plan, chains = _Windows(query), Chains(query, 1)
        for batch in batches:
            names = ("channel", "clock", "packed")
            for channel, clock, packed in zip(*(batch.column(n).to_pylist() for n in names), strict=True):
                if packed is None:
                    yield _passing(plan, clock, [Routed(0, 0, "", b"")])
                    continue
                yield from _window_rows(plan, chains, channel.partition("/")[0], ipc_to_table(packed), clock)

    return run


def _window_rows(plan: _Windows, chains: Chains, channel: str, table: pa.Table, clock: int) -> RecordBatches:
    chains.check(channel, table)
    times = table.column("_event_time").to_numpy()
    overtaken = table.column("_overtaken").to_numpy()
    early, far = ~overtaken & (times < 0), ~overtaken & (times > TIME_US_MAX)
    passing: list[Routed] = []
    for refused, step, reason in (
        (overtaken, channel, ""),
        (early, channel, _BEFORE_1970),
        (far, plan.step.id, TOO_FAR),
    ):
        if refused.any():
            passing += chains.refuse(channel, step, table.filter(pa.array(refused)), reason)
    if passing:
        yield _passing(plan, clock, passing)
        table = table.filter(pa.array(~(overtaken | early | far)))
    if table.num_rows:
        yield _taken(plan, table.combine_chunks(), clock)


def _taken(plan: _Windows, table: pa.Table, clock: int) -> pa.RecordBatch:
    """A row for each record and each of its windows."""
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
    ends = np.minimum(start + size, END_OF_TIME)
    taken = pa.array(index)
    keys = _flat(table.column(plan.key)).dictionary_encode()
    encoded = pa.array([encode_key(key) for key in keys.dictionary.to_pylist()], pa.binary())
    columns: list[Any] = [
        _same(_clamped(clock), len(index), _TIME),
        pa.array(ends, pa.int64()).cast(_TIME),
        pa.array(start, pa.int64()),
        encoded.take(keys.indices.take(taken)),
        _nulls(len(index), pa.string()),
        _nulls(len(index), pa.binary()),
    ]
    for name, field in plan.values.items():
        column: Any = table.column(field)
        if name in plan.counted:  # whatever is there
            known = column.is_valid().to_numpy()
            column = pa.chunked_array([pa.array(known, mask=~known)])
        columns.append(column.take(taken))
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
    return pa.array([value] * count, pa.int64()).cast(kind)


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
        self._window, self._step = plan.window, step.id
        self._fragment = Fragment(graph, query.prefix)
        self._router = Router(query, 0, 1, self._fragment.reject)
        inputs = tuple(graph[i.step].out for i in step.inputs)
        services = Services(step.id, step.out, self._fragment.reject, KeyedState(DictBackend()), inputs)
        content = Aggregating(services, plan.fields, operator.key_fields, plan.window)  # type: ignore[attr-defined]
        self._windowing = Windowing(services, plan.window, content, None)
        self._specs = list(plan.fields.values())

    def rows(self, batch: pa.RecordBatch) -> Iterator[Routed]:
        """Those of one batch."""
        windows = []
        for row in batch.to_pylist():
            if row["sink"] is None:
                start, held = row["start"], tuple(self._held(row))
                windows.append((row["key"], start, start + self._window.size_us, held))
            elif row["sink"]:
                yield Routed(0, 0, row["sink"], row["letter"])
        if windows:
            self._fragment.feed(self._step, self._windowing.give(windows))
        yield from self._router.drain(self._fragment)

    def _held(self, row: Mapping[str, Any]) -> Iterator[Any]:
        """The accumulators of a window."""
        for number, spec in enumerate(self._specs):
            value, mergeable = row[f"a{number}"], spec.mergeable
            if isinstance(mergeable, Count):
                yield value
            elif value is None:
                yield None
            else:
                whole = int(value) if isinstance(value, Decimal) else value
                yield mergeable.add_all(mergeable.create(), [whole], (), ())
