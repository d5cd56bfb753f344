"""Segments in a plain form, in place of Arrow: what simulated ingest writes and the checkers read back.

Handed to ingest as its encoder. Guarantees: every row comes back with its origin, its device and its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from geartrain.schema import Schema
from geartrain_cloud.log.part import SegmentPart, UnlikeError


@dataclass(frozen=True, slots=True)
class Row:
    """A record where it left its device: event time in microseconds, origin and fields."""

    time: int
    name: str
    number: int
    path: bytes
    fields: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class LoggedRow:
    """A row of the log, the batch that it came in, and what ingest says of it."""

    row: Row
    device: str
    seq: int
    late: bool
    overtaken: bool


def encode_plain(schema: Schema, parts: Sequence[SegmentPart]) -> bytes:
    """The rows of the parts, one after the other, as msgpack."""
    rows = []
    for part in parts:
        columns = part.rows
        for index in range(len(columns)):
            path = columns.paths[index] if columns.paths is not None else b""
            place = (columns.times[index], columns.names[index], columns.numbers[index], path)
            fields = tuple(values[index] for values in columns.fields)
            overtaken = part.overtaken is not None and part.overtaken[index]
            rows.append(LoggedRow(Row(*place, fields), part.device, part.seq, part.late, overtaken))
    return msgspec.msgpack.encode((schema.schema_id, rows))


def merge_plain(segments: Sequence[bytes]) -> bytes:
    """Several segments of one channel as one: their rows follow one another; raises `UnlikeError`."""
    parts = [msgspec.msgpack.decode(data, type=tuple[str, list[LoggedRow]]) for data in segments]
    for at, (schema_id, _) in enumerate(parts):
        if schema_id != parts[0][0]:
            raise UnlikeError(at)
    return msgspec.msgpack.encode((parts[0][0], [row for _, rows in parts for row in rows]))


def decode_plain(data: bytes) -> list[LoggedRow]:
    """The rows of a segment; raises `msgspec.MsgspecError` for one that is not whole."""
    _, rows = msgspec.msgpack.decode(data, type=tuple[str, list[LoggedRow]])
    return rows
