"""Stage 0 of a query inside the reader of the log: the process that maps a segment runs the steps on it.

It stands in the place of the reader and of a Python function behind it. So rows of the log do not go to Java
and back before the steps have seen them, and a task has one Python worker instead of two. Guarantees: those
of `LogStreamReader`. The function gets what the reader alone would have put out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from geartrain_cloud.spark.sealed import Sealed
from geartrain_cloud.spark.source import SOURCE_NAME, LogStreamReader

Reading = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""From batches of `SOURCE_SCHEMA` to what the query goes on with."""


class QueryReader(LogStreamReader):
    """Reads the log for one query."""

    def __init__(self, options: Mapping[str, Any], reading: Sealed[Reading]) -> None:
        super().__init__(options)
        self._reading = reading

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What becomes of a span's rows; raises as the reader and the function do."""
        return self._reading.open()(super().read(partition))


def source_of(query: str, reading: Reading, layout: str) -> type[DataSource]:
    """The source of one query: what `reading` puts out, in columns `layout`; the options are those of
    `LogStreamReader`.

    It is a class of its own, so that Spark sends the function with it to its workers.
    """

    sealed = Sealed(reading)  # the process that asks for the log's end does not run it

    class QuerySource(DataSource):
        """The log as one query reads it."""

        @classmethod
        def name(cls) -> str:
            return f"{SOURCE_NAME}_{query}"

        def schema(self) -> str:
            return layout

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
            return QueryReader(self.options, sealed)

    return QuerySource
