"""Packed rows: what goes in comes out, bit for bit."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.schema import ColumnBatch
from geartrain_cloud.log.pack import pack, take, unpack

VALUE = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8) | st.binary(max_size=8)
)
ROW = st.tuples(VALUE, st.floats(), st.integers(-(2**63), 2**63 - 1), st.sampled_from(["a", "b/ö"]))


def _bits(value: Any) -> Any:
    return struct.pack(">d", value) if isinstance(value, float) else (type(value), value)


def _rows(batch: ColumnBatch) -> list[Any]:
    columns = [*batch.fields, batch.times, batch.names, batch.numbers]
    columns += [] if batch.paths is None else [batch.paths]
    return [tuple(map(_bits, row)) for row in zip(*columns, strict=True)]


@given(st.lists(ROW), st.booleans())
def test_rows_come_back(rows: list[tuple[Any, ...]], with_paths: bool) -> None:
    values, floats, times, names = ([row[i] for row in rows] for i in range(4))
    paths = [bytes([n % 256]) for n in range(len(rows))] if with_paths else None
    batch = ColumnBatch([values, floats], times, names, list(range(len(rows))), paths)
    again = unpack(pack(batch))
    assert _rows(again) == _rows(batch)
    assert (again.paths is None) is not with_paths


def test_rows_are_taken_in_the_order_asked_for() -> None:
    batch = ColumnBatch([[1, 2, 3]], [4, 5, 6], ["a", "b", "c"], [7, 8, 9], [b"", b"x", b"y"])
    assert take(batch, [2, 0]) == ColumnBatch([[3, 1]], [6, 4], ["c", "a"], [9, 7], [b"y", b""])


def test_a_name_of_one_split_is_written_once() -> None:
    name = "a-long-name-of-a-device/readings"
    batch = ColumnBatch([[0.5] * 1_000], [0] * 1_000, [name] * 1_000, list(range(1_000)))
    assert len(pack(batch)) < 1_000 * (9 + 1 + 3) + 200


@pytest.mark.parametrize("raw", [b"", b"\xc0", b"\x95\x90\x90\xa1a"])
def test_other_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"truncated|Expected"):
        unpack(raw)
