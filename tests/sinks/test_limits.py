"""What a store will refuse is known before anything is read, by table, field, and what can be changed."""

from __future__ import annotations

import pytest

from geartrain.declarations.sink import Sink, Table
from geartrain.schema import Field, FieldType, Schema
from geartrain.sinks import DeltaTable, ParquetTable, PostgresTable
from geartrain_cloud.sinks.layout import Layout, TableError
from geartrain_cloud.sinks.limits import check_tables


def layout(sink: Sink, *fields: str) -> Layout:
    return Layout("out", sink, Schema("Box", tuple(Field(name, FieldType.INT64) for name in fields)))


MANY = tuple(f"f{number}" for number in range(1_596))
LONG = "n" * 64


@pytest.mark.parametrize(
    ("sink", "fields", "in_postgres", "says"),
    [
        (Table("boxes"), ("xmin", "ymin"), True, "table .boxes. has a field .xmin., .* rename .* of Box, or"),
        (PostgresTable("boxes"), ("a", "ctid"), False, "has a field 'ctid', .* rename the field of Box$"),
        (
            Table(LONG),
            ("a",),
            True,
            "longer than the 63 bytes that PostgreSQL keeps: give the sink a",
        ),
        (
            Table("boxes"),
            ("a", "ü" * 32),
            True,
            "longer than the 63 bytes .*: give the field a shorter",
        ),
        (Table("boxes"), MANY, True, "has 1,596 fields, and PostgreSQL holds 1,595"),
        (Table("boxes"), (*MANY, *(f"g{n}" for n in range(401))), False, "has 1,997 fields, .* holds 1,996"),
        (Table("sqlite_boxes"), ("a",), False, "SQLite reserves names"),
        (Table("boxes"), ("a", "A"), False, "differ only in upper and lower case"),
        (DeltaTable("n" * 250), ("a",), False, "longer than a folder's name may be"),
        (ParquetTable("n" * 250), ("a",), False, "longer than a folder's name may be"),
    ],
)
def test_what_a_store_will_refuse_is_said(
    sink: Sink, fields: tuple[str, ...], in_postgres: bool, says: str
) -> None:
    with pytest.raises(TableError, match=says):
        check_tables([layout(sink, *fields)], in_postgres=in_postgres)


@pytest.mark.parametrize(
    ("sink", "fields", "in_postgres"),
    [
        (Table("boxes"), ("xmin", "ctid"), False),
        (Table("boxes"), ("Xmin", "oid", "user", "select", *MANY[:-5]), True),
        (Table(LONG), (LONG,), False),
        (ParquetTable("boxes"), ("xmin", "a", "A"), True),
    ],
)
def test_what_a_store_holds_passes(sink: Sink, fields: tuple[str, ...], in_postgres: bool) -> None:
    check_tables([layout(sink, *fields)], in_postgres=in_postgres)
