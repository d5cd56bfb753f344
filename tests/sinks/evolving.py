"""Random chains of layouts, and what their rows must be: a model in plain Python, rows as dictionaries."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
from hypothesis import strategies as st

from geartrain.declarations.sink import Sink
from geartrain.schema import ColumnBatch, Field, FieldType, Schema
from geartrain_cloud.sinks.layout import Layout

Place = tuple[int, str, int, bytes]
KEY = Field("sensor", FieldType.STR)
KINDS: dict[str, Field] = {
    "int": Field("", FieldType.INT64),
    "float": Field("", FieldType.FLOAT64),
    "str": Field("", FieldType.STR),
    "bytes": Field("", FieldType.BYTES),
    "bool": Field("", FieldType.BOOL),
    "time": Field("", FieldType.DATETIME),
    "decimal": Field("", FieldType.INT64, False, "decimal(6,2)"),
    "wider decimal": Field("", FieldType.INT64, False, "decimal(12,2)"),
    "enum": Field("", FieldType.STR, False, "enum(A,B)"),
    "wider enum": Field("", FieldType.STR, False, "enum(C,B,A)"),
    "list": Field("", FieldType.BYTES, False, "nested(list[int])"),
}
WIDER = {"decimal": "wider decimal", "enum": "wider enum", "wider enum": "str"}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False, allow_infinity=False) | st.just(-0.0),
    "str": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=4)
    | st.just("it's"),
    "bytes": st.binary(max_size=4),
    "bool": st.booleans(),
    "time": st.integers(-(10**15), 10**15),
    "decimal": st.integers(-999_999, 999_999),
    "wider decimal": st.integers(-(10**12) + 1, 10**12 - 1),
    "enum": st.sampled_from("AB"),
    "wider enum": st.sampled_from("ABC"),
    "list": st.lists(st.integers(0, 9), max_size=2).map(msgspec.msgpack.encode),
}


@dataclass(frozen=True)
class Column:
    """One field: its kind, whether None is a value, and what older rows have in it."""

    name: str
    kind: str
    optional: bool = False
    default: Any = None

    @property
    def field(self) -> Field:
        return msgspec.structs.replace(KINDS[self.kind], name=self.name, optional=self.optional)

    def shown(self, value: Any) -> Any:
        """A value as JSON shows it."""
        if value is None:
            return None
        if self.kind == "bytes":
            return value.hex()
        if self.kind == "list":
            return msgspec.msgpack.decode(value)
        if self.kind == "time":
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)
            return moment.isoformat().replace("+00:00", "Z")
        if "decimal" in self.kind:
            sign, digits = "-" if value < 0 else "", f"{abs(value):03d}"
            return f"{sign}{digits[:-2]}.{digits[-2:]}"
        return value

    def in_parquet(self, value: Any) -> Any:
        """A value as pyarrow gives it."""
        if value is None or self.kind == "bytes":
            return value
        if self.kind == "time":
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)
        if "decimal" in self.kind:
            return Decimal(str(self.shown(value)))
        return json.dumps(self.shown(value)) if self.kind == "list" else value


@dataclass
class Model:
    """What a table must hold: of each row its values by name, and its place in canonical order."""

    key: bool
    columns: list[Column] = field(default_factory=list)
    rows: list[tuple[dict[str, Any], Place]] = field(default_factory=list)

    def become(self, columns: list[Column]) -> None:
        had = {column.name for column in self.columns}
        self.rows = [
            ({c.name: row[c.name] if c.name in had else c.default for c in columns}, place)
            for row, place in self.rows
        ]
        self.columns = columns

    def write(self, row: dict[str, Any], place: Place) -> None:
        if self.key:
            for number, (held, at) in enumerate(self.rows):
                if held["sensor"] == row["sensor"]:
                    self.rows[number] = (row, place) if place > at else (held, at)
                    return
        self.rows.append((row, place))

    def shown(self) -> list[dict[str, Any]]:
        """As readers of tables show it, in any order."""
        return [{c.name: c.shown(row[c.name]) for c in self.columns} for row, _ in self.rows]

    def in_parquet(self) -> list[dict[str, Any]]:
        """As pyarrow gives the fields."""
        return [{c.name: c.in_parquet(row[c.name]) for c in self.columns} for row, _ in self.rows]


def layout_of(sink: str, table: Sink, columns: list[Column]) -> Layout:
    schema = Schema("Reading", tuple(column.field for column in columns))
    return Layout(sink, table, schema, {c.name: c.default for c in columns if c.default is not None})


@st.composite
def chains(draw: st.DrawFn, *, again: bool, length_max: int = 5) -> list[list[Column]]:
    """Revisions of a record, each of which a table can be evolved to from the one before.

    again: whether a name may come back after it was dropped.
    """
    key = Column("sensor", "str")
    columns = [key]
    columns += [Column(f"f{n}", draw(st.sampled_from(sorted(KINDS))), draw(st.booleans())) for n in range(3)]
    found, number = [columns], 3
    for _ in range(draw(st.integers(1, length_max))):
        following, gone = [key], []
        for column in columns:
            if column == key:
                continue
            what = draw(st.sampled_from(["keep", "keep", "drop", "loosen", "widen"]))
            if what == "drop":
                gone.append(column)
                continue
            kind = WIDER.get(column.kind, column.kind) if what == "widen" else column.kind
            following.append(Column(column.name, kind, column.optional or what == "loosen"))
        types = {(c.field.type, c.field.logical) for c in gone}
        kinds = sorted(k for k, one in KINDS.items() if (one.type, one.logical) not in types)
        names = {column.name for column in columns}
        for _ in range(draw(st.integers(0, 2))):
            kind, optional = draw(st.sampled_from(kinds)), draw(st.booleans())
            default = draw(VALUES[kind]) if not optional or draw(st.booleans()) else None
            name = draw(st.sampled_from(["f0", "f1", "f2"])) if again else ""
            if not name or name in names:
                name, number = f"f{number}", number + 1
            names.add(name)
            following.append(Column(name, kind, optional, default))
        columns = draw(st.permutations(following))
        found.append(columns)
    return found


@st.composite
def batches(draw: st.DrawFn, columns: list[Column], first: int) -> list[tuple[dict[str, Any], Place]]:
    """Rows of a micro-batch with their places, of few keys and in no order."""
    rows = []
    for number in range(draw(st.integers(0, 4))):
        row = {
            c.name: draw(st.none() | VALUES[c.kind]) if c.optional else draw(VALUES[c.kind]) for c in columns
        }
        row["sensor"] = draw(st.sampled_from("abc"))
        rows.append((row, (draw(st.integers(0, 9)), "s", first + number, b"")))
    return rows


def column_batch(columns: list[Column], rows: list[tuple[dict[str, Any], Place]]) -> ColumnBatch:
    fields = [[row[c.name] for row, _ in rows] for c in columns]
    places = [place for _, place in rows]
    return ColumnBatch(fields, [p[0] for p in places], [p[1] for p in places], [p[2] for p in places])


def ordered(rows: list[dict[str, Any]]) -> list[str]:
    """Rows that can be compared whatever their order, bit for bit."""
    return sorted(repr(sorted((n, _text_of_time(v)) for n, v in row.items())) for row in rows)


def _text_of_time(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value  # zones have several names
