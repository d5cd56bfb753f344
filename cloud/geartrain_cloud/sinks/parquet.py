"""Folders of Parquet files: each micro-batch is one file, and a manifest says which ones count.

A store beside the flow's own tables; pyarrow.dataset, Spark and pandas can read it while it grows.

Guarantees: a file appears whole. A micro-batch that is run again makes the same file under the same name. A
file that a kill left and that the manifest does not name is removed when the query starts again. Files are
never changed: where the columns change, so does what the manifest says of all files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from geartrain.adapters.files import make_private_folder, write_durable
from geartrain.declarations.cloud_sink import ParquetTable
from geartrain.declarations.sink import Sink
from geartrain.records.codes import Refusal
from geartrain.schema import ColumnBatch, Schema
from geartrain_cloud.sinks.binding import Binding, Mark
from geartrain_cloud.sinks.evolution import Evolution, evolution
from geartrain_cloud.sinks.layout import Layout, TableError
from geartrain_cloud.sinks.parquet_form import (
    MANIFEST,
    Form,
    Manifest,
    read_manifest,
    table_of,
)
from geartrain_cloud.sinks.store import Rows


@dataclass
class _Dataset:
    """One sink's folder and what its manifest says.

    layout: what is written from now on; form: of the files; queries: by query its checkpoint, last
    micro-batch and files; joins: whether it came with a revision, while the query was under way.
    """

    layout: Layout
    folder: Path
    form: Form
    queries: dict[str, dict[str, Any]] = field(default_factory=dict)
    joins: bool = False

    @property
    def sink(self) -> str:
        return self.layout.sink

    @staticmethod
    def load(layout: Layout, folder: Path) -> _Dataset:
        """What the manifest holds, or will; raises `TableError`."""
        held = read_manifest(folder)
        if held is None:
            return _Dataset(layout, folder, Form(layout.schema))
        return _Dataset(layout, folder, held.form, held.queries)

    def make(self) -> None:
        """Make the folder where there is none; raises `TableError`."""
        try:
            make_private_folder(self.folder)
        except OSError as error:
            raise _failed(self, error) from error

    def change(self) -> Evolution:
        """What the files are to become; raises `TableError`."""
        was = Layout(self.sink, self.layout.table, self.form.schema)
        return evolution(was, self.layout, self.form.dropped)

    def mark(self, query: str) -> Mark | None:
        held = self.queries.get(query)
        if held is None:
            return None
        return Mark(held["checkpoint"], held["batch_id"], held.get("positions", {}))

    def binding(self, query: str) -> Binding:
        return Binding(f"query {query!r}", str(self.folder), "folder")

    def save(self, queries: dict[str, dict[str, Any]], form: Form | None = None) -> None:
        """Make this the state of the folder, in one step; raises `OSError`, and nothing has changed then."""
        form = form or self.form
        write_durable(self.folder / MANIFEST, Manifest(form, queries).encoded())
        self.queries, self.form = queries, form

    def set(self, query: str, **values: Any) -> None:
        """Save changed values of one query."""
        self.save(self.queries | {query: self.queries.get(query, {"files": []}) | values})

    def remove_orphans(self) -> None:
        named = {name for held in self.queries.values() for name in held["files"]} | {self.form.head}
        for path in self.folder.glob("*.parquet"):
            if path.name not in named:
                path.unlink()


class ParquetTables:
    """The Parquet folders of one flow, by default beside the file `tables`."""

    def __init__(self, beside: Path) -> None:
        """beside: the folder in which a sink's folder is made where it does not say where."""
        self._beside = beside
        self._datasets: dict[str, _Dataset] = {}
        self._bound: dict[str, str] = {}

    def check(self, layout: Layout) -> None:
        """Raise `TableError` for a name, and for a key."""
        layout.check()

    def declare(self, sink_id: str, sink: Sink, schema: Schema) -> None:
        """Make the folder; raises `TableError` where it holds something else, or the sink has a key."""
        dataset = self._load(Layout(sink_id, sink, schema))
        if dataset.form.schema != schema:
            raise TableError(
                f"sink {sink_id!r}: {dataset.folder} holds records with other fields: rename the sink, or "
                "remove that folder"
            )
        dataset.make()
        self._datasets[sink_id] = dataset

    def _load(self, layout: Layout) -> _Dataset:
        sink = layout.table
        layout.check()
        folder = sink.folder if isinstance(sink, ParquetTable) else ""
        return _Dataset.load(layout, Path(folder or self._beside) / f"{sink.name}.parquet")

    def planned(self, layouts: Sequence[Layout]) -> list[Evolution]:
        """What `evolve` would change, and nothing is changed; raises `TableError` where that is refused."""
        return [self._load(layout).change() for layout in layouts]

    def evolve(self, layouts: Sequence[Layout]) -> None:
        """Have the folders be these from the next micro-batch on that is written.

        Each folder changes together with it, by its manifest. Raises `TableError` for a folder that cannot be
        read, `write` for one that cannot be evolved.
        """
        known = {dataset.folder for dataset in self._datasets.values()}
        loaded = {layout.sink: self._load(layout) for layout in layouts}
        for dataset in loaded.values():
            dataset.make()
            dataset.joins = dataset.folder not in known
        self._datasets = loaded

    def attach(self, query: str, checkpoint: str, *, has_run: bool) -> None:
        """Bind a query to its checkpoint; raises `TableError` where a folder is of another one."""
        for dataset in self._datasets.values():
            mark = dataset.mark(query)
            if mark is not None or not dataset.joins:
                dataset.binding(query).check_checkpoint(mark, checkpoint, has_run=has_run)
                self._change(dataset, query, checkpoint)
        self._bound[query] = checkpoint

    def _change(self, dataset: _Dataset, query: str, checkpoint: str) -> None:
        try:
            dataset.remove_orphans()
            if query not in dataset.queries or dataset.queries[query]["checkpoint"] != checkpoint:
                fresh = {"checkpoint": checkpoint, "batch_id": -1, "files": []}
                dataset.save(dataset.queries | {query: fresh})
        except OSError as error:
            raise _failed(dataset, error) from error

    def stands(self, query: str) -> list[Mapping[str, int]]:
        """The positions at which the folders hold what a query has written; none where that is nothing."""
        found = (dataset.queries.get(query, {}).get("positions") for dataset in self._datasets.values())
        return [positions for positions in found if positions]

    def _set(self, dataset: _Dataset, query: str, **values: Any) -> None:
        try:
            dataset.set(query, **values)
        except OSError as error:
            raise _failed(dataset, error) from error

    def refused(self, sink_id: str, rows: ColumnBatch) -> Mapping[int, Refusal]:
        """Parquet holds every record."""
        return {}

    def write(self, query: str, batch_id: int, positions: Mapping[str, int], rows: Rows) -> None:
        """Write a micro-batch, one file a sink that has rows; raises `TableError`."""
        for sink in self._datasets:
            self._write(sink, query, batch_id, positions, rows)

    def _write(self, sink: str, query: str, batch_id: int, positions: Mapping[str, int], rows: Rows) -> None:
        dataset = self._datasets[sink]
        try:
            mark = self._joined(dataset, query, batch_id)
            if mark is None:
                raise TableError(f"sink {sink!r}: query {query!r} was never bound to {dataset.folder}")
            if dataset.binding(query).holds(mark, batch_id, positions):
                return
            head, form = dataset.form.head, self._evolved(dataset)
            held = dataset.queries[query]
            files = list(held["files"])
            batches = [batch for batch in rows.get(sink, ()) if len(batch)]
            if batches:
                name = f"{query}-{batch_id:010d}.parquet"
                self._write_file(dataset, name, batches)
                files.append(name)
            held = held | {"files": files, "batch_id": batch_id, "positions": dict(positions)}
            dataset.save(dataset.queries | {query: held}, form)
            if form.head != head:
                dataset.remove_orphans()
        except (OSError, pa.ArrowException) as error:
            raise _failed(dataset, error) from error

    def _joined(self, dataset: _Dataset, query: str, batch_id: int) -> Mark | None:
        """What a folder holds of a query; one that came with a revision is at the micro-batch before."""
        mark, checkpoint = dataset.mark(query), self._bound.get(query)
        if dataset.joins and checkpoint is not None and (mark is None or mark.batch_id < batch_id - 1):
            dataset.binding(query).check_checkpoint(mark, checkpoint, has_run=False)
            dataset.set(query, checkpoint=checkpoint, batch_id=batch_id - 1)
        dataset.joins = False
        return dataset.mark(query)

    def _evolved(self, dataset: _Dataset) -> Form:
        """The form of the folder's files from this micro-batch on; its head is written where it differs."""
        change = dataset.change()
        if not change.changes:  # but perhaps the order of fields, or what is noted of them
            return replace(dataset.form, schema=dataset.layout.schema)
        form = dataset.form.after(change, dataset.layout)
        self._put(dataset, form.head, form.empty())
        return form

    def _write_file(self, dataset: _Dataset, name: str, batches: Sequence[ColumnBatch]) -> None:
        self._put(
            dataset, name, pa.concat_tables([table_of(dataset.layout.schema, batch) for batch in batches])
        )

    def _put(self, dataset: _Dataset, name: str, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        write_durable(dataset.folder / name, sink.getvalue().to_pybytes())

    def close(self) -> None:
        """Nothing stays open."""


def _failed(dataset: _Dataset, error: Exception) -> TableError:
    said = getattr(error, "strerror", None) or str(error)
    return TableError(f"sink {dataset.sink!r}: {dataset.folder} cannot be written ({said})")
