"""Spark's reader of one channel of the log as a plain table, for Spark code that a user writes.

It stands beside the queries of a flow, which read packed rows. Spark gets the Arrow columns of a segment as
they lie on disk: many rows at a time, and no Python value for each row.

Guarantees: those of `LogStreamReader`, which it extends. A channel that has no schema yet, or that lacks a
column that was asked for, is an error of one sentence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from geartrain.errors import LedgerError
from geartrain_cloud.log.arrow import arrow_schema
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.spark.source import LogStreamReader, Span

COLUMNS_NAME = "geartrain_log_columns"

BATCH_ROWS = 65_536
"""Rows that are handed to Spark together, at the most."""

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
    is all of them: the record's fields, then those of docs/data_files.md that begin with `_`. rows_max and
    readers are as for `LogStreamReader`; their defaults are 1,000,000 and 2.
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


class ColumnsReader(LogStreamReader):
    """Reads the chosen columns of one channel."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        own = {"channels": json.dumps([options["channel"]])}
        super().__init__({"rows_max": "1000000", "readers": "2"} | dict(options) | own)
        self._layout = _chosen(options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a span; raises `LedgerError` where they cannot all be read."""
        for key, after, upto in cast(Span, partition).parts:
            for run in self._runs(key, after, upto, BATCH_ROWS):
                for _, table in self._tables(run, self._layout.names):
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
