"""A file of values of every type through `gear run`: its JSON, its SQLite file and its Parquet have each."""

from __future__ import annotations

import csv
import json
import math
import sqlite3
import struct
from contextlib import closing
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Annotated, Any

import pyarrow.dataset as ds
import pytest

from geartrain import Digits, Flow, Record, Table
from geartrain.records.event_time import from_datetime
from geartrain.sinks import ParquetTable
from geartrain_cloud.cli.inprocess import run_in_process
from geartrain_devices.csv_replay import CsvReplay
from geartrain_devices.json_lines import JsonLines
from geartrain_devices.no_record import NAN
from tests.sinks.test_any_values import a_price, a_real, a_text, a_time, a_whole, in_json

ROWS = 150
SPOILED = [
    ("whole", "9223372036854775808", "bad_value"),
    ("whole", "1" * 5_000, "bad_value"),
    ("real", "1e400", "bad_value"),
    ("price", "1000000000", "bad_value"),
    ("price", "0." + "1" * 38, "bad_value"),
    ("price", "NaN", "bad_value"),
    ("price", "1e-999999999", "bad_value"),
    ("price", "1e-999", "bad_value"),
    ("at", "10000-01-01T00:00:00Z", "bad_value"),
    ("at", "0000-01-01", "bad_value"),
    ("text", "a\0b", "not_text"),
]


class Every(Record):
    number: int
    text: str
    whole: int
    real: float
    price: Annotated[Decimal, Digits(18, 9)]
    at: datetime
    maybe: float | None


def a_row(number: int) -> Every:
    rng = Random(number)
    real = rng.choice([math.nan, a_real(rng), a_real(rng), a_real(rng)])
    maybe = rng.choice([None, a_real(rng)])
    return Every(number, a_text(rng) + "x", a_whole(rng), real, a_price(rng), a_time(rng), maybe)


def cells(row: Every) -> dict[str, str]:
    """A row as its source is meant to write it."""
    rng = Random(row.number)
    return {
        "time": "2024-01-01",
        "number": str(row.number),
        "text": row.text,
        "whole": str(row.whole),
        "real": repr(row.real),
        "price": rng.choice([format(row.price, "f"), f"{row.price.scaleb(9):f}E-9"]),
        "at": row.at.isoformat(),
        "maybe": "" if row.maybe is None else repr(row.maybe),
    }


def as_json(cell: dict[str, str]) -> str:
    """The same cells as a line of JSON, numbers as they stand."""
    names = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity", "": "null"}
    parts = [
        f'"{name}": {json.dumps(text) if name in ("time", "text", "at") else names.get(text, text)}'
        for name, text in cell.items()
    ]
    return f"{{{', '.join(parts)}}}"


def a_file(folder: Path, kind: str, spoiled: list[tuple[str, str, str]], *, nan: bool = True) -> Any:
    """Writes the rows, and a spoiled one behind each of the first; gives the source that reads them."""
    lines = []
    for number in range(ROWS):
        lines.append(cells(a_row(number)))
        if number < len(spoiled):
            lines.append(cells(a_row(number)) | {spoiled[number][0]: spoiled[number][1]})
    path = folder / f"rows.{kind}"
    with path.open("w", encoding="utf-8", newline="") as file:
        if kind == "csv":
            writer = csv.DictWriter(file, list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)
            return CsvReplay[Every](path=str(path), time_column="time", nan=nan)
        file.writelines(f"{as_json(line)}\n" for line in lines)
    return JsonLines[Every](path=str(path), time="time", nan=nan)


def bits(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("<d", value)
    return value


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_each_output_has_every_value_of_a_file(tmp_path: Path, kind: str) -> None:
    # In JSON a text may have a NUL, a Decimal field has a code for NaN, and a decoder gives up earlier.
    spoiled = [
        one for one in SPOILED if kind == "csv" or (one[0] in ("whole", "real", "at") and len(one[1]) < 99)
    ]
    flow = Flow("values")
    read = flow.source("rows", a_file(tmp_path, kind, spoiled), out=Every)
    read.sink("kept", Table("kept"))
    read.sink("files", ParquetTable("files"))
    out = tmp_path / "out"
    run_in_process(flow.graph(), out)
    meant = [a_row(number) for number in range(ROWS)]

    shown = sorted(json.loads((out / "kept.json").read_text("utf-8")), key=lambda row: row["number"])
    assert [{name: bits(value) for name, value in row.items()} for row in shown] == [
        {name: bits(in_json(getattr(row, name))) for name in Every.__struct_fields__} for row in meant
    ]
    with closing(sqlite3.connect(out / "tables.sqlite")) as db:
        held = db.execute("SELECT number, text, whole, real, price, at, maybe FROM kept ORDER BY number")
        for found, row in zip(held.fetchall(), meant, strict=True):
            real = None if math.isnan(row.real) else row.real  # of which SQLite makes NULL
            first = [row.number, row.text, row.whole, real, int(row.price.scaleb(9))]
            wanted = [*first, from_datetime(row.at), row.maybe]
            assert [*map(bits, found)] == [*map(bits, wanted)]
    files: Any = ds.dataset(out / "files.parquet", format="parquet").to_table().to_pylist()
    for found, row in zip(sorted(files, key=lambda one: one["number"]), meant, strict=True):
        for name in Every.__struct_fields__:
            assert bits(found[name]) == bits(getattr(row, name)), name

    letters = json.loads((out / "dead_letters.json").read_text("utf-8"))
    assert sorted(one["code"] for one in letters) == sorted(code for _, _, code in spoiled)
    for field, text, _ in spoiled:
        those = [one for one in letters if text[:60].encode() in bytes.fromhex(one["raw"])]
        assert any(field in one["reason"] or one["code"] == "not_text" for one in those), (field, text)
    assert all(len(one["reason"]) < 400 for one in letters)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_nan_is_told_alike_where_it_is_not_read(tmp_path: Path, kind: str) -> None:
    source = a_file(tmp_path, kind, [])
    flow = Flow("values")
    flow.source("rows", source.with_options({"nan": False}, "sources.rows"), out=Every).sink(
        "kept", Table("kept")
    )
    result = run_in_process(flow.graph(), tmp_path / "out", refused_max=ROWS)
    meant = [a_row(number) for number in range(ROWS)]
    wrong = [row for row in meant if not math.isfinite(row.real) or not math.isfinite(row.maybe or 0.0)]
    assert result.dead_letters == len(wrong) > 10
    assert {letter["code"] for letter in result.refused} == {NAN}
    assert all("set nan = true" in letter["reason"] for letter in result.refused)
