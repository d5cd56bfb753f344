"""What the files of a Parquet table look like: their columns, its manifest, and how all of them are read.

Under `ParquetTables`, which writes them; people read them here, or by any reader of Parquet.

Guarantees: files that were written before the columns changed are read with the columns of today. Where a
file lacks a column, that is the field's default, or null.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from geartrain.adapters.layouts import FileLayout
from geartrain.errors import SchemaError
from geartrain.schema import ColumnBatch, Field, Schema
from geartrain.schema.plain import plain_rows
from geartrain_cloud.log.arrow import SYSTEM_FIELDS, arrow_type
from geartrain_cloud.sinks.evolution import Evolution, digits
from geartrain_cloud.sinks.layout import Layout, TableError

MANIFEST = "_manifest.json"
"""Readers of Parquet pass over names that begin with `_`."""
LAYOUT = FileLayout("geartrain-parquet", 1, TableError, "move the folder away, or rename the sink")
"""Of the manifest, and of the origins of rows."""
_PLACES = SYSTEM_FIELDS[:4]


@dataclass(frozen=True)
class Form:
    """The columns of all files of a folder.

    Args:
        schema: of the newest file.
        version: how often the columns have changed, and 1.
        dropped: names of columns that older files have, and that no file will have again.
        defaults: by field, what older files without it are read with, where that is not null.
    """

    schema: Schema
    version: int = 1
    dropped: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def head(self) -> str:
        """A file without rows. It is the first by its name, so that readers which take the columns from the
        first file take those of today. "" for none.
        """
        return f"0-columns-{self.version:010d}.parquet" if self.version > 1 else ""

    def after(self, change: Evolution, new: Layout) -> Form:
        """The form once a table has changed so, to `new`."""
        gone = {one.name for one in change.dropped}
        kept = {name: value for name, value in self.defaults.items() if name not in gone}
        added = {f.name: new.defaults[f.name] for f in change.added if f.name in new.defaults}
        return Form(new.schema, self.version + 1, self.dropped | gone, kept | added)

    def empty(self) -> pa.Table:
        """No rows, with the columns of today; those that older files lack may be null there."""
        return pa.schema(
            [_arrow_field(f, nullable=True) for f in self.schema.fields] + list(_PLACES)
        ).empty_table()

    def presented(self, table: pa.Table) -> pa.Table:
        """The rows of any file of the folder with the columns of today."""
        own = [(one, _arrow_type(one)) for one in self.schema.fields]
        found = [
            table.column(one.name).cast(kind)
            if one.name in table.column_names
            else self._filled(one, len(table))
            for one, kind in own
        ]
        fields = [_arrow_field(one, nullable=one.optional) for one in self.schema.fields]
        return pa.Table.from_arrays(
            found + [table.column(place.name) for place in _PLACES], schema=pa.schema(fields + list(_PLACES))
        )

    def _filled(self, one: Field, count: int) -> pa.Array[Any]:
        value = self.defaults.get(one.name)
        column = ColumnBatch([[value]], [0], [""], [0])
        alone = table_of(Schema("default", (Field(one.name, one.type, True, one.logical),)), column)
        filled: pa.Array[Any] = pa.repeat(alone.column(one.name)[0], count)
        return filled


@dataclass(frozen=True)
class Manifest:
    """The form of a folder's files; by query its checkpoint, last micro-batch, positions and files."""

    form: Form
    queries: dict[str, dict[str, Any]]

    def encoded(self) -> bytes:
        """As it is in its file."""
        whole: dict[str, Any] = {
            "layout": LAYOUT.text,
            "schema": self.form.schema.to_json(noted=True),
            "queries": self.queries,
        }
        if self.form.version > 1:
            packed = {name: msgspec.msgpack.encode(v).hex() for name, v in self.form.defaults.items()}
            whole |= {
                "version": self.form.version,
                "dropped": sorted(self.form.dropped),
                "defaults": packed,
            }
        return json.dumps(whole, indent=1).encode()


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder, None where there is none; raises `TableError` for one that cannot be read."""
    path = folder / MANIFEST
    try:
        held = json.loads(path.read_bytes())
        LAYOUT.check(held.get("layout"), f"the Parquet table {folder}")
        defaults = {
            name: msgspec.msgpack.decode(bytes.fromhex(packed))
            for name, packed in held.get("defaults", {}).items()
        }
        form = Form(
            Schema.from_json(held["schema"]),
            int(held.get("version", 1)),
            frozenset(held.get("dropped", [])),
            defaults,
        )
        return Manifest(form, held["queries"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, SchemaError) as error:
        raise TableError(f"{path} cannot be read ({error}): bring it back from a copy") from error


def read_batches(folder: str | Path) -> Iterator[pa.Table]:
    """The rows of a Parquet table, one file after the other, all with the columns of today.

    Only files that count are read: what a micro-batch under way has written is not among them.

    Args:
        folder: `NAME.parquet`, which a `ParquetTable` has written.

    Raises:
        TableError: there is no such folder, or a file cannot be read.
    """
    held = _held(folder)
    for query in held.queries.values():
        for name in query["files"]:
            try:
                yield held.form.presented(pq.ParquetFile(Path(folder) / name).read())
            except (OSError, pa.ArrowException) as error:
                raise TableError(f"{Path(folder) / name} cannot be read ({error})") from error


def read_table(folder: str | Path) -> pa.Table:
    """All of `read_batches` in one table; raises `TableError`."""
    held = _held(folder)
    return pa.concat_tables([held.form.presented(held.form.empty()), *read_batches(folder)])


def _held(folder: str | Path) -> Manifest:
    held = read_manifest(Path(folder))
    if held is None:
        raise TableError(f"there is no Parquet table in {folder}: name a folder that a ParquetTable wrote")
    return held


def table_of(schema: Schema, rows: ColumnBatch) -> pa.Table:
    """Rows with the record's fields in their own types, then their place in canonical order."""
    texts = list(plain_rows(schema, rows)) if any(one.logical for one in schema.fields) else []
    arrays, layout = [], []
    for one, column in zip(schema.fields, rows.fields, strict=True):
        kind = _arrow_type(one)
        values: list[Any] = column
        if one.logical.startswith("decimal("):
            values = [None if row[one.name] is None else Decimal(row[one.name]) for row in texts]
        elif one.logical.startswith("nested("):
            values = [None if row[one.name] is None else json.dumps(row[one.name]) for row in texts]
        arrays.append(pa.array(values, kind))
        layout.append(_arrow_field(one, nullable=one.optional))
    paths = rows.paths if rows.paths is not None else [b""] * len(rows)
    places: list[list[Any]] = [rows.times, rows.names, rows.numbers, paths]
    for place, system in zip(places, _PLACES, strict=True):
        arrays.append(pa.array(place, system.type))
        layout.append(system)
    return pa.Table.from_arrays(arrays, schema=pa.schema(layout))


def _arrow_field(one: Field, *, nullable: bool) -> pa.Field[Any]:
    """A column, with the unit and description of its field as metadata."""
    notes: dict[str | bytes, str | bytes] = msgspec.to_builtins(one.note)
    return pa.field(one.name, _arrow_type(one), nullable=nullable, metadata=notes or None)


def _arrow_type(one: Field) -> pa.DataType:
    if one.logical.startswith("decimal("):
        return pa.decimal128(*digits(one))
    return pa.string() if one.logical.startswith("nested(") else arrow_type(one.type)
