"""Rows of the log for queries that tests run without Spark, whole logs, and the records that come of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from geartrain.schema import ColumnBatch, RowCodec
from geartrain_cloud.log.arrow import to_table
from geartrain_cloud.spark.compile import Query
from geartrain_simulation.fleet.stage_run import StageRun
from tests.spark.case_log import Logged

Sinks = dict[str, list[ColumnBatch]]
"""Rows by sink."""


def log_table(
    records: Sequence[tuple[Any, int, str, int]],
    kind: Any,
    overtaken: Sequence[bool] | None = None,
    device: str = "d",
) -> pa.Table:
    """(record, time, split, number) as rows of the log."""
    values, times, names, numbers = (list(c) for c in zip(*records, strict=True))
    return columns_table(
        ColumnBatch(RowCodec(kind).to_columns(values), times, names, numbers), kind, overtaken, device
    )


def columns_table(
    rows: ColumnBatch, kind: Any, overtaken: Sequence[bool] | None = None, device: str = "d"
) -> pa.Table:
    count = len(rows)
    flags = [False] * count if overtaken is None else overtaken
    return to_table(RowCodec(kind).schema, rows, [device] * count, [1] * count, [False] * count, flags)


def records_of(batches: Iterable[ColumnBatch]) -> list[tuple[Any, ...]]:
    """The records of several batches as tuples of their columns."""
    return [row for batch in batches for row in zip(*batch.fields, strict=True)]


def run_query(query: Query, log: Sequence[Logged], rng: random.Random) -> Sinks:
    """What a query gives of a log in micro-batches of random length."""
    run, found = StageRun(query, rng), Sinks()
    length, end = rng.choice([1, 5, 40]), 0
    while end < len(log):
        start, end = end, min(len(log), end + rng.randrange(1, length + 1))
        rows = [
            (entry.channel, position, columns_table(entry.rows, query.channels[entry.channel]))
            for position, entry in enumerate(log[start:end], start + 1)
            if entry.rows is not None
        ]
        for sink, batches in run.micro_batch(rows, log[end - 1].clocks).items():
            found.setdefault(sink, []).extend(batches)
    return found
