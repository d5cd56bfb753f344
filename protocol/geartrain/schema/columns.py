"""Records of one channel as plain columns: the form between Python objects, the wire and Arrow."""

from __future__ import annotations

from typing import Any

import msgspec


class ColumnBatch(msgspec.Struct):
    """Rows of one schema as lists of one length.

    fields: one list a field in schema order, None where a value is null, DATETIME as int microseconds;
    times: event times in microseconds; names, numbers, paths: origins (`paths` None while all are empty).
    """

    fields: list[list[Any]]
    times: list[int]
    names: list[str]
    numbers: list[int]
    paths: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self.times)
