"""Rows of the log for queries that tests run without Spark, and the records that come of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from geartrain.schema import ColumnBatch, RowCodec
from geartrain_cloud.log.arrow import to_table


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
