"""Spark's reader of one channel of the log as a plain table, for Spark code that a user writes.

It stands beside the queries of hosts, which run the steps of flows. Spark gets the Arrow columns of a segment
as they lie on disk: many rows at a time, and no Python value for each row.

Guarantees: those of `FlowLog`. Offsets are {key: position}, where a key is a partition. A channel that has no
schema yet, or that lacks a column that was asked for, is an error of one sentence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from geartrain.errors import LedgerError
from geartrain_cloud.log.arrow import arrow_schema
from geartrain_cloud.log.reader import LogReader, Room
from geartrain_cloud.ports import Entry, position_key
from geartrain_cloud.spark.flow_log import SOURCE_NAME, FlowLog

COLUMNS_NAME = f"{SOURCE_NAME}_columns"

BATCH_ROWS = 65_536
"""Rows that are handed to Spark together, at the most."""

SPAN_ROWS = 8_192
"""A task for each so many rows of a micro-batch, at the most."""

_SQL = {
    pa.bool_(): "boolean",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


class LogColumns(DataSource):
    """`spark.readStream.format("geartrain_log_columns")`: the rows of one channel.

    Options: log (folder), flow, channel, columns, rows_max and readers. columns is a JSON list. Its default
    is all of them: the record's fields, then those of docs/data_files.md that begin with `_`. rows_max is how
    many rows of each partition one micro-batch has, those of other channels counted; an entry is never
    divided. readers is how many tasks read a large micro-batch. Their defaults are 1,000,000 and 2.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return COLUMNS_NAME

    def schema(self) -> str:
        """The chosen columns; raises `LedgerError`."""
        return ", ".join(f"`{field.name}` {_SQL[field.type]}" for field in _chosen(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The reader of one query."""
        return ColumnsReader(self.options)


@dataclass
class Span(InputPartition):
    """Entries (after, upto] of each key, read by one task: parts of (key, after, upto)."""

    parts: tuple[tuple[str, int, int], ...]


class ColumnsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the chosen columns of one channel: in a Python process of Spark's driver, and `read` in its
    workers.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._log, self._flow = LogReader(options["log"]), str(options["flow"])
        self._channel = FlowLog(self._log, self._flow, [options["channel"]])
        self._keys = self._log.keys()
        self._rows_max = int(options.get("rows_max", 1_000_000))
        self._readers = int(options.get("readers", 2))
        self._layout = _chosen(options)
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Before the first entry of every partition."""
        return dict.fromkeys(self._keys, 0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """At most `rows_max` rows of each partition."""
        return ReadMaxRows(self._rows_max)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Where the micro-batch that begins at `start` ends; `start` itself where nothing is new."""
        newest = self._log.positions(self._flow) if self._target is None else self._target
        end = dict(start)
        for key in self._keys:
            after, last = start[key], newest.get(key, 0)
            if last < after:
                raise LedgerError(
                    f"{self._flow}/{key}: the checkpoint stands at position {after}, but the log ends at "
                    f"{last}: it is another or an older one; bring the right one back, or begin with another "
                    "checkpoint"
                )
            if isinstance(limit, ReadMaxRows):
                last = min(last, self._log.limit(self._flow, key, after, Room(limit.max_rows)))
            elif not isinstance(limit, ReadAllAvailable):
                raise LedgerError(f"the log cannot be read by {type(limit).__name__}: use rows_max")
            end[key] = last
        return end

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take the log's present end as the end of the query."""
        self._target = self._log.positions(self._flow)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One span for a small micro-batch, up to `readers` of about equal rows for a large one."""
        entries: list[Entry] = []
        for key in self._keys:
            entries += self._channel.entries(key, start[key], end[key])
        rows = sum(e.count for e in entries)
        readers = max(1, min(self._readers, rows // SPAN_ROWS))
        parts: list[list[tuple[str, int, int]]] = [[] for _ in range(readers)]
        seen = 0
        for entry in entries:
            reader = min(readers - 1, seen * readers // rows) if rows else 0
            seen += entry.count
            part, key = parts[reader], position_key(entry.partition)
            after = part.pop()[1] if part and part[-1][0] == key else entry.number - 1
            part.append((key, after, entry.number))
        return [Span(tuple(part)) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a span; raises `LedgerError` where they cannot all be read."""
        for key, after, upto in cast(Span, partition).parts:
            for run in self._channel.runs(key, after, upto, BATCH_ROWS):
                for _, table in self._channel.tables(run, self._layout.names):
                    yield from table.cast(self._layout).to_batches(BATCH_ROWS)


def _chosen(options: Mapping[str, Any]) -> pa.Schema:
    flow, channel = options["flow"], options["channel"]
    stored = LogReader(options["log"]).schema(flow, channel)
    if stored is None:
        raise LedgerError(f"{flow}/{channel} has no schema yet: read it once a device has sent rows")
    layout = arrow_schema(stored)
    names = json.loads(options["columns"]) if "columns" in options else layout.names
    if unknown := [name for name in names if name not in layout.names]:
        has = ", ".join(layout.names)
        raise LedgerError(f"{flow}/{channel} has no column {', '.join(unknown)}: choose among {has}")
    return pa.schema([pa.field(name, layout.field(name).type) for name in names])
