"""Folders of Parquet files: each micro-batch is one file, and a manifest says which ones count.

A store beside the flow's own tables; pyarrow.dataset, Spark and pandas can read it while it grows.

Guarantees: a file appears whole. A micro-batch that is run again makes the same file under the same name. A
file that a kill left and that the manifest does not name is removed when the query starts again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from geartrain.adapters.files import fsync_path, make_private_folder
from geartrain.declarations.cloud_sink import ParquetTable
from geartrain.declarations.sink import Sink
from geartrain.schema import ColumnBatch, Field, Schema
from geartrain_cloud.log.arrow import SYSTEM_FIELDS, arrow_type
from geartrain_cloud.sinks.binding import Binding, Mark
from geartrain_cloud.sinks.layout import TableError
from geartrain_cloud.sinks.rows import plain_rows
from geartrain_cloud.sinks.store import Rows, is_reached

MANIFEST = "_manifest.json"
"""Readers of Parquet pass over names that begin with `_`."""


@dataclass
class _Dataset:
    """One sink's folder and what its manifest says: by query its checkpoint, last micro-batch and files."""

    sink: str
    folder: Path
    schema: Schema
    queries: dict[str, dict[str, Any]] = field(default_factory=dict)

    def load(self) -> None:
        path = self.folder / MANIFEST
        try:
            make_private_folder(self.folder)
            if path.exists():
                held = json.loads(path.read_bytes())
                self.queries = held["queries"]
                if held["schema"] != self.schema.to_json():
                    raise TableError(
                        f"sink {self.sink!r}: {self.folder} holds records with other fields: rename the "
                        "sink, or remove that folder"
                    )
        except (OSError, ValueError, KeyError) as error:
            raise TableError(f"sink {self.sink!r}: {path} cannot be read ({error})") from error

    def mark(self, query: str) -> Mark | None:
        held = self.queries.get(query)
        if held is None:
            return None
        return Mark(held["checkpoint"], held["batch_id"], held.get("positions", {}))

    def binding(self, query: str) -> Binding:
        return Binding(f"query {query!r}", str(self.folder), "folder")

    def save(self) -> None:
        content = json.dumps({"schema": self.schema.to_json(), "queries": self.queries}, indent=1)
        draft = self.folder / f".{MANIFEST}.draft"
        _write_durably(draft, content.encode())
        draft.replace(self.folder / MANIFEST)
        fsync_path(self.folder)

    def remove_orphans(self) -> None:
        named = {name for held in self.queries.values() for name in held["files"]}
        for path in self.folder.glob("*.parquet"):
            if path.name not in named:
                path.unlink()


class ParquetTables:
    """The Parquet folders of one flow, by default beside the file `tables`."""

    def __init__(self, beside: Path) -> None:
        """beside: the folder in which a sink's folder is made where it does not say where."""
        self._beside = beside
        self._datasets: dict[str, _Dataset] = {}

    def declare(self, sink_id: str, sink: Sink, schema: Schema) -> None:
        """Make the folder; raises `TableError` where it holds something else, or the sink has a key."""
        if sink.key:
            raise TableError(
                f"sink {sink_id!r}: Parquet files are only added to, so there is no key: leave it away, or "
                "use a Table or PostgresTable"
            )
        folder = sink.folder if isinstance(sink, ParquetTable) else ""
        dataset = _Dataset(sink_id, Path(folder or self._beside) / f"{sink.name}.parquet", schema)
        dataset.load()
        self._datasets[sink_id] = dataset

    def attach(self, query: str, checkpoint: str, *, has_run: bool) -> None:
        """Bind a query to its checkpoint; raises `TableError` where a folder is of another one."""
        for dataset in self._datasets.values():
            dataset.binding(query).check_checkpoint(dataset.mark(query), checkpoint, has_run=has_run)
            self._change(dataset, query, checkpoint)

    def _change(self, dataset: _Dataset, query: str, checkpoint: str) -> None:
        try:
            dataset.remove_orphans()
            if query not in dataset.queries or dataset.queries[query]["checkpoint"] != checkpoint:
                dataset.queries[query] = {"checkpoint": checkpoint, "batch_id": -1, "files": []}
                dataset.save()
        except OSError as error:
            raise _failed(dataset, error) from error

    def stands(self, query: str) -> list[Mapping[str, int]]:
        """The positions at which the folders hold what a query has written; none where that is nothing."""
        found = (dataset.queries.get(query, {}).get("positions") for dataset in self._datasets.values())
        return [positions for positions in found if positions]

    def adopt(self, query: str, checkpoint: str, positions: Mapping[str, int] | None = None) -> None:
        """Bind a query to a checkpoint that was made again; what the folders hold of it stays, at `positions`
        where these are given.
        """
        for dataset in self._datasets.values():
            held = dataset.queries.setdefault(query, {"files": []})
            held["checkpoint"], held["batch_id"] = checkpoint, -1
            if positions is not None and held.get("positions"):
                held["positions"] = dict(positions)
            held["life"] = held.get("life", 0) + 1  # micro-batches are numbered anew, files are not replaced
            try:
                dataset.save()
            except OSError as error:
                raise _failed(dataset, error) from error

    def catch_up(self, query: str, batch_id: int, positions: Mapping[str, int], rows: Rows) -> None:
        """As `write`, but a folder that stands at `positions` or beyond is left as it is."""
        for sink, dataset in self._datasets.items():
            held = dataset.mark(query)
            if held is None or not is_reached(held.positions, positions):
                self._write(sink, query, batch_id, positions, rows)
            elif batch_id > held.batch_id:
                dataset.queries[query]["batch_id"] = batch_id
                self._save(dataset)

    def _save(self, dataset: _Dataset) -> None:
        try:
            dataset.save()
        except OSError as error:
            raise _failed(dataset, error) from error

    def refused(self, sink_id: str, rows: ColumnBatch) -> Mapping[int, str]:
        """Parquet holds every record."""
        return {}

    def write(self, query: str, batch_id: int, positions: Mapping[str, int], rows: Rows) -> None:
        """Write a micro-batch, one file a sink that has rows; raises `TableError`."""
        for sink in self._datasets:
            self._write(sink, query, batch_id, positions, rows)

    def _write(self, sink: str, query: str, batch_id: int, positions: Mapping[str, int], rows: Rows) -> None:
        dataset = self._datasets[sink]
        mark = dataset.mark(query)
        if mark is None:
            raise TableError(f"sink {sink!r}: query {query!r} was never bound to {dataset.folder}")
        if dataset.binding(query).holds(mark, batch_id, positions):
            return
        held = dataset.queries[query]
        try:
            batches = [batch for batch in rows.get(sink, ()) if len(batch)]
            if batches:
                life = f"-{held['life']}" if held.get("life") else ""
                name = f"{query}{life}-{batch_id:010d}.parquet"
                self._write_file(dataset, name, batches)
                held["files"].append(name)
            held["batch_id"], held["positions"] = batch_id, dict(positions)
            dataset.save()
        except (OSError, pa.ArrowException) as error:
            raise _failed(dataset, error) from error

    def _write_file(self, dataset: _Dataset, name: str, batches: Sequence[ColumnBatch]) -> None:
        table = pa.concat_tables([_table(dataset.schema, batch) for batch in batches])
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        draft = dataset.folder / f".{name}.draft"
        _write_durably(draft, sink.getvalue().to_pybytes())
        draft.replace(dataset.folder / name)

    def reset(self) -> None:
        """Remove every file of every folder."""
        for dataset in self._datasets.values():
            try:
                dataset.queries = {}
                dataset.save()
                dataset.remove_orphans()
            except OSError as error:
                raise _failed(dataset, error) from error

    def close(self) -> None:
        """Nothing stays open."""


def _table(schema: Schema, rows: ColumnBatch) -> pa.Table:
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
        layout.append(pa.field(one.name, kind, nullable=one.optional))
    paths = rows.paths if rows.paths is not None else [b""] * len(rows)
    places: list[list[Any]] = [rows.times, rows.names, rows.numbers, paths]
    for place, system in zip(places, SYSTEM_FIELDS[:4], strict=True):
        arrays.append(pa.array(place, system.type))
        layout.append(system)
    return pa.Table.from_arrays(arrays, schema=pa.schema(layout))


def _arrow_type(one: Field) -> pa.DataType:
    if one.logical.startswith("decimal("):
        precision, scale = map(int, one.logical[len("decimal(") : -1].split(","))
        return pa.decimal128(precision, scale)
    return pa.string() if one.logical.startswith("nested(") else arrow_type(one.type)


def _write_durably(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _failed(dataset: _Dataset, error: Exception) -> TableError:
    said = getattr(error, "strerror", None) or str(error)
    return TableError(f"sink {dataset.sink!r}: {dataset.folder} cannot be written ({said})")
