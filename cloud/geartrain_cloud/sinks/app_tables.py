"""Where the tables of an instance are, run by run: an SQLite file each, or a schema of PostgreSQL; and files.

Between the Spark host, which writes them, and control, which reads and purges them. A run that begins while
the platform has a PostgreSQL gets a schema there, and a note of it beside where its file would lie.

Guarantees: a run's tables stay where they began. The note is durable before the schema is made, and goes
after it. So a kill at any moment leaves no schema that nobody knows. A schema of somebody else is left alone.
Files of other sinks come after the run's tables and go before them, so none stays of a run that has gone.
"""

from __future__ import annotations

import re
import secrets
import shutil
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from geartrain.adapters.files import fsync_path, write_durable
from geartrain_cloud.platform.runs import (
    files_of_run,
    folders_of_files,
    note_of_run,
    served_run,
    tables_of_run,
)
from geartrain_cloud.sinks.layout import TableError
from geartrain_cloud.sinks.own import OwnTables, SqliteReader, TablesReader
from geartrain_cloud.sinks.refused_state import Refused, refused_state
from geartrain_cloud.sinks.retention import FileSweep, Sweep, removed_rows
from geartrain_cloud.sinks.sqlite import SqliteTables

if TYPE_CHECKING:
    from types import ModuleType

SCHEMA_BYTES_MAX = 63
"""PostgreSQL cuts a longer name."""
_PLAIN = re.compile(r"(?!pg_)[a-z][a-z0-9_]*\.[1-9][0-9]*")
_DROP_WAIT_S = 1.0


class _Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """schema: its name; owner: a random name, by which the schema is known to be this platform's."""

    schema: str
    owner: str


def schema_name(instance: str, run: int) -> str:
    """The schema of a run, such as `traffic_3_run_1`; no two instances have one name."""
    end = f"_run_{run}"
    name = instance.replace(".", "_")
    if _PLAIN.fullmatch(instance) and len(name + end) <= SCHEMA_BYTES_MAX:
        return name + end
    end = f"_{sha256(instance.encode()).hexdigest()[:16]}{end}"
    readable = "app_" + re.sub(r"[^a-z0-9]+", "_", instance.lower())
    return readable[: SCHEMA_BYTES_MAX - len(end)] + end


@dataclass(frozen=True, slots=True)
class AppTables:
    """The tables of one instance.

    first: where the SQLite file of its first run lies, or would; store: the platform's PostgreSQL, as libpq
    has it and without a password, "" for none.
    """

    first: Path
    store: str = ""

    @property
    def served(self) -> int:
        """The run that is served."""
        return served_run(self.first)

    def open(self, instance: str, run: int, busy_s: float) -> OwnTables:
        """Open the tables of a run, made now where there are none; raises `TableError`.

        busy_s: how long a write waits for whoever else writes them.
        """
        path = tables_of_run(self.first, run)
        note = self._note(run)
        if note is None and (path.exists() or not self.store):
            return SqliteTables(path, busy_s)
        postgres = self._postgres(run)
        if note is None:
            note = _Note(schema_name(instance, run), secrets.token_hex(16))
            try:
                write_durable(note_of_run(self.first, run), msgspec.json.encode(note))
            except OSError as error:
                raise TableError(f"{path.parent} cannot be written ({error.strerror or error})") from error
        own: OwnTables = postgres.PostgresSchema(self.store, note.schema, note.owner, busy_s)
        return own

    def reader(self, run: int) -> TablesReader | None:
        """How the tables of a run are read, None where there are none yet; raises `TableError`."""
        note = self._note(run)
        if note is None:
            path = tables_of_run(self.first, run)
            return SqliteReader(path) if path.is_file() else None
        self._postgres(run)
        from geartrain_cloud.sinks.postgres_reading import PostgresReader

        return PostgresReader(self.store, note.schema)

    def place(self, run: int) -> str:
        """Where the tables of a run are, for people; "" where there are none yet."""
        note = self._note(run)
        if note is not None:
            return f"PostgreSQL, schema {note.schema}"
        path = tables_of_run(self.first, run)
        return str(path) if path.is_file() else ""

    def files(self, run: int) -> Path:
        """The folder in which sinks of a run make files, where they do not say where."""
        return files_of_run(self.first, run)

    def folders(self) -> list[Path]:
        """The folders of files that the run which is served has there, a table each."""
        return folders_of_files(self.files(self.served))

    def remove(self, run: int) -> None:
        """Remove the tables of a run that nobody writes any more; raises `TableError` and `OSError`."""
        self._remove_files(run)
        note = self._note(run)
        if note is not None:
            self._postgres(run).drop_schema(self.store, note.schema, note.owner, _DROP_WAIT_S)
            note_of_run(self.first, run).unlink(missing_ok=True)
            fsync_path(self.first.parent)
        path = tables_of_run(self.first, run)
        for ending in ("-wal", "-shm", ""):
            path.with_name(path.name + ending).unlink(missing_ok=True)

    def _remove_files(self, run: int) -> None:
        files = files_of_run(self.first, run)
        going = folders_of_files(files)
        if files != self.first.parent and files.is_dir():
            going = [files]
        for folder in going:
            shutil.rmtree(folder)
        if going:
            fsync_path(self.first.parent)

    def sweep(self, run: int, before_us: int) -> Sweep | None:
        """What takes rows out of a run whose event time lies before `before_us`, microseconds since 1970 UTC;
        None where there are no tables. Raises `TableError`.
        """
        note, path = self._note(run), tables_of_run(self.first, run)
        if note is None:
            return FileSweep(path, before_us) if path.is_file() else None
        self._postgres(run)
        from geartrain_cloud.sinks.postgres_retention import SchemaSweep

        return SchemaSweep(self.store, note.schema, note.owner, before_us)

    def removed_rows(self, run: int) -> int:
        """How many rows of a run have gone by age; raises `TableError`."""
        note, path = self._note(run), tables_of_run(self.first, run)
        if note is None:
            return removed_rows(path) if path.is_file() else 0
        self._postgres(run)
        from geartrain_cloud.sinks import postgres_retention

        return postgres_retention.removed_rows(self.store, note.schema)

    def refused_state(self, run: int) -> Refused:
        """The cells of state that could not be taken in, by step and reason; raises `TableError`."""
        note, path = self._note(run), tables_of_run(self.first, run)
        if note is None:
            return refused_state(path) if path.is_file() else []
        self._postgres(run)
        from geartrain_cloud.sinks import postgres_retention

        return postgres_retention.refused_state(self.store, note.schema)

    def _note(self, run: int) -> _Note | None:
        path = note_of_run(self.first, run)
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Note)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise TableError(f"{path} cannot be read ({error}): bring it back from a copy") from None

    def _postgres(self, run: int) -> ModuleType:
        if not self.store:
            raise TableError(
                f"the tables of run {run} are in PostgreSQL, as {note_of_run(self.first, run)} says: name it "
                "in [tables] store of platform.toml"
            )
        try:
            from geartrain_cloud.sinks import postgres_schema
        except ImportError:
            raise TableError(
                "[tables] store names a PostgreSQL, for which a library is missing here: install "
                "geartrain-cloud[postgres]"
            ) from None
        return postgres_schema
