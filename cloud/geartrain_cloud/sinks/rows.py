"""Rows of a micro-batch as other stores take them: chosen ones, and as values of JSON.

It stands between the columns that leave Spark and the stores beside the flow's own file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from geartrain.records.event_time import format_time
from geartrain.schema import ColumnBatch, Schema
from geartrain.schema.plain import plain_rows


def take_rows(rows: ColumnBatch, indexes: Sequence[int]) -> ColumnBatch:
    """The rows at `indexes`, in that order."""
    return ColumnBatch(
        [[column[i] for i in indexes] for column in rows.fields],
        [rows.times[i] for i in indexes],
        [rows.names[i] for i in indexes],
        [rows.numbers[i] for i in indexes],
        None if rows.paths is None else [rows.paths[i] for i in indexes],
    )


def message_rows(schema: Schema, rows: ColumnBatch) -> Iterator[dict[str, Any]]:
    """Each row as what is sent to others: its values, its origin as `_id`, and its event time as `_time`."""
    for number, row in enumerate(plain_rows(schema, rows)):
        yield row | {"_id": row_id(rows, number), "_time": format_time(rows.times[number])}


def json_row(schema: Schema, rows: ColumnBatch, row: int) -> bytes:
    """One row as JSON."""
    return msgspec.json.encode(next(plain_rows(schema, take_rows(rows, [row]))))


def row_id(rows: ColumnBatch, row: int) -> str:
    """A record's origin as one text: split/number, and /path in hexadecimal where it has one."""
    path = rows.paths[row].hex() if rows.paths is not None else ""
    return f"{rows.names[row]}/{rows.numbers[row]}" + (f"/{path}" if path else "")
