"""Delta tables: each micro-batch is one commit of its file and its mark, for Spark and others to read.

A store beside the flow's own tables. Guarantees: a reader sees a micro-batch wholly or not at all. One that
the table holds is not written again: its number is an application's transaction in the same commit, as the
protocol of Delta has it. A file is durable before the commit that names it, and the commit before the flow's
own tables go on: delta-rs syncs nothing itself. Where a micro-batch ends stands in a file beside the log,
which is durable before the commit that makes it count.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from geartrain.adapters.files import fsync_path, make_private_folder, write_durable
from geartrain.adapters.layouts import FileLayout
from geartrain.declarations.cloud_sink import DeltaTable
from geartrain.declarations.sink import Sink
from geartrain.records.codes import Refusal
from geartrain.schema import ColumnBatch, Schema
from geartrain_cloud.sinks.binding import Mark
from geartrain_cloud.sinks.evolution import Evolution
from geartrain_cloud.sinks.layout import Layout, TableError
from geartrain_cloud.sinks.marked import MarkedStore
from geartrain_cloud.sinks.parquet_form import table_of
from geartrain_cloud.sinks.store import Rows

if TYPE_CHECKING:
    import deltalake

_MARKS = "_geartrain"
"""Readers of Delta, and what cleans its folders up, pass over names that begin with `_`."""
_LOG = "_delta_log"
_CHECKPOINT_EVERY = 100
_LAYOUT = FileLayout("geartrain-delta", 1, TableError, "move the folder away, or rename the sink")


class _Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a table holds of a query of a flow; layout: of the origins of its rows."""

    flow: str
    query: str
    mark: Mark
    layout: str


class DeltaTables(MarkedStore[Path]):
    """The Delta tables of one flow, by default beside the file `tables`."""

    def __init__(self, flow: str, beside: Path) -> None:
        """beside: the folder in which a table is made where its sink does not say where."""
        super().__init__(flow)
        self._beside = beside
        self._tables: dict[Path, Delta] = {}

    def declare(self, sink_id: str, sink: Sink, schema: Schema) -> None:
        """Make the table; raises `TableError` where it has other columns, or the sink has a key."""
        if isinstance(sink, DeltaTable):
            table = self._checked(sink_id, sink, schema)
            if table.folder in self._tables:
                other = self._tables[table.folder].sink
                raise TableError(
                    f"sink {sink_id!r}: sink {other!r} writes {table.folder}: rename one of both"
                )
            table.make()
            self._tables[table.folder] = table

    def check(self, layout: Layout) -> None:
        """Raise `TableError` for a table that cannot be; one beside the flow's own file is not looked at."""
        if isinstance(layout.table, DeltaTable):
            self._checked(layout.sink, layout.table, layout.schema, is_there=bool(layout.table.folder))

    def _checked(self, sink_id: str, sink: DeltaTable, schema: Schema, *, is_there: bool = True) -> Delta:
        """is_there: whether its folder is known by now."""
        Layout(sink_id, sink, schema).check()
        try:
            import deltalake  # noqa: F401 - an extra: only who uses it has it
        except ImportError:
            raise TableError(
                f'sink {sink_id!r}: Delta needs deltalake: pip install "geartrain-cloud[delta]"'
            ) from None
        table = Delta(self._flow, sink_id, schema, Path(sink.folder or self._beside) / f"{sink.name}.delta")
        if is_there:
            table.check()
        return table

    def planned(self, layouts: Sequence[Layout]) -> list[Evolution]:
        """Its columns do not change; raises `TableError` where they would."""
        for layout in layouts:
            if isinstance(layout.table, DeltaTable):
                self._checked(layout.sink, layout.table, layout.schema)
        return []

    def evolve(self, layouts: Sequence[Layout]) -> None:
        """Have the tables be these; one that is new begins with the next micro-batch."""
        known = set(self._tables)
        self._tables = {}
        for layout in layouts:
            self.declare(layout.sink, layout.table, layout.schema)
        self._replace(known)

    def _places(self) -> Iterable[Path]:
        return self._tables

    def _named(self, place: Path) -> tuple[str, str]:
        return str(place), "folder"

    def _mark(self, place: Path, query: str) -> Mark | None:
        return self._tables[place].mark(query)

    def _put(self, place: Path, query: str, mark: Mark, rows: Rows) -> None:
        table = self._tables[place]
        table.commit(query, mark, [batch for batch in rows.get(table.sink, ()) if len(batch)])

    def refused(self, sink_id: str, rows: ColumnBatch) -> Mapping[int, Refusal]:
        """A Delta table holds every record."""
        return {}

    def close(self) -> None:
        """Nothing stays open."""


class Delta:
    """One table: its folder, and the newest version that was seen."""

    def __init__(self, flow: str, sink: str, schema: Schema, folder: Path) -> None:
        self.sink, self.folder = sink, folder
        self._flow, self._schema = flow, schema
        self._table: deltalake.DeltaTable | None = None

    def check(self) -> None:
        """Raise `TableError` where what is there is no table with these columns."""
        import deltalake

        if not deltalake.DeltaTable.is_deltatable(str(self.folder)):
            if self.folder.is_dir() and any(self.folder.iterdir()):
                raise TableError(f"sink {self.sink!r}: {self.folder} is no Delta table: rename the sink")
            return
        held: Any = self._newest().schema().to_arrow()
        there, wanted = _columns(pa.schema(held)), _columns(self._arrow)
        if there != wanted:
            raise TableError(
                f"sink {self.sink!r}: {self.folder} has other columns ({', '.join(sorted(there ^ wanted))}): "
                "rename the sink, since a Delta table's columns stay as they are"
            )

    @property
    def _arrow(self) -> pa.Schema:
        return table_of(self._schema, ColumnBatch([[] for _ in self._schema.fields], [], [], [])).schema

    def make(self) -> None:
        """Make the table where there is none; raises `TableError`."""
        import deltalake
        from deltalake.exceptions import DeltaError

        if deltalake.DeltaTable.is_deltatable(str(self.folder)):
            return
        try:
            make_private_folder(self.folder)
            self._table = deltalake.DeltaTable.create(str(self.folder), self._arrow, mode="error")
            self._sync(-1)
        except (OSError, DeltaError) as error:
            raise self._failed(error) from error

    def _newest(self) -> deltalake.DeltaTable:
        import deltalake
        from deltalake.exceptions import DeltaError

        try:
            if self._table is not None:
                self._table.update_incremental()
                return self._table
            table = self._table = deltalake.DeltaTable(str(self.folder))
            self._sync(table.version() - 2 * _CHECKPOINT_EVERY)  # what was killed had perhaps not done so
            return table
        except (OSError, DeltaError) as error:
            self._table = None
            raise TableError(f"sink {self.sink!r}: {self.folder} cannot be read ({_said(error)})") from None

    def mark(self, query: str) -> Mark | None:
        """What the table holds of a query, None for nothing; raises `TableError`."""
        number = self._newest().transaction_version(self._app(query))
        path = self._mark_path(query, -1 if number is None else number)
        try:
            return None if number is None else self._read(path).mark
        except FileNotFoundError:
            if number == -1:  # it was emptied
                return None
            raise TableError(
                f"{path} is not there, by which {self.folder} goes on: bring it back, or rename the sink"
            ) from None
        except (OSError, ValueError) as error:
            raise TableError(f"{path} cannot be read ({error}): bring it back from a copy") from None

    def _read(self, path: Path) -> _Kept:
        raw = path.read_bytes()
        _LAYOUT.check_json(raw, f"the Delta table {self.folder}")
        return msgspec.json.decode(raw, type=_Kept)

    def commit(self, query: str, mark: Mark, batches: Sequence[ColumnBatch]) -> None:
        """Add rows, and set the mark of a query, in one commit; raises `TableError`."""
        from deltalake.exceptions import DeltaError

        try:
            added = [self._file(query, mark, batches)] if batches else []
            path = self._mark_path(query, mark.batch_id)
            write_durable(path, msgspec.json.encode(_Kept(self._flow, query, mark, _LAYOUT.text)))
            self._commit(query, mark.batch_id, added)
            self._clean(query, path)
        except (OSError, pa.ArrowException, DeltaError) as error:
            self._table = None
            raise self._failed(error) from error

    def _file(self, query: str, mark: Mark, batches: Sequence[ColumnBatch]) -> Any:
        from deltalake.transaction import AddAction

        sink = pa.BufferOutputStream()
        rows = pa.concat_tables([table_of(self._schema, batch) for batch in batches])
        pq.write_table(rows, sink, compression="zstd")
        content = sink.getvalue().to_pybytes()
        name = f"{query}-{mark.checkpoint}-{mark.batch_id:010d}.parquet"
        write_durable(self.folder / name, content)
        stats = json.dumps({"numRecords": len(rows)})
        return AddAction(name, len(content), {}, int(time.time() * 1_000), True, stats)

    def _commit(self, query: str, number: int, added: list[Any]) -> None:
        from deltalake.transaction import CommitProperties, PostCommitHookProperties, Transaction

        table = self._newest()
        before = table.version()
        table.create_write_transaction(
            added,
            "append",
            table.schema(),
            commit_properties=CommitProperties(app_transactions=[Transaction(self._app(query), number)]),
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=False),
        )
        self._sync(before)

    def _sync(self, before: int) -> None:
        """Make durable what was committed after version `before`, and now and then the log short."""
        log = self.folder / _LOG
        newest = self._newest().version()
        for version in range(before + 1, newest + 1):
            if (path := log / f"{version:020d}.json").exists():  # it may have been cleaned up
                fsync_path(path)
        if newest // _CHECKPOINT_EVERY > max(before, 0) // _CHECKPOINT_EVERY:
            self._shorten(log)
        for folder in (log, self.folder):
            fsync_path(folder)

    def _shorten(self, log: Path) -> None:
        """Have the log begin with a checkpoint for who reads it, and let go what is older than it keeps."""
        table = self._newest()
        table.create_checkpoint()
        for path in (*log.glob(f"{table.version():020d}.checkpoint*"), log / "_last_checkpoint"):
            fsync_path(path)
        table.cleanup_metadata()

    def _clean(self, query: str, newest: Path) -> None:
        for path in newest.parent.glob(f"{self._mark_name(query)}.*.json"):
            if path != newest:
                path.unlink(missing_ok=True)

    def _app(self, query: str) -> str:
        return f"geartrain/{self._flow}/{query}"

    def _mark_name(self, query: str) -> str:
        return hashlib.blake2b(self._app(query).encode(), digest_size=8).hexdigest()

    def _mark_path(self, query: str, number: int) -> Path:
        return self.folder / _MARKS / f"{self._mark_name(query)}.{number}.json"

    def _failed(self, error: Exception) -> TableError:
        return TableError(f"sink {self.sink!r}: {self.folder} cannot be written ({_said(error)})")


def _said(error: Exception) -> str:
    return getattr(error, "strerror", None) or " ".join(str(error).split())


def _columns(schema: pa.Schema) -> set[str]:
    return {f"{one.name} {one.type}{' or null' if one.nullable else ''}" for one in schema}
