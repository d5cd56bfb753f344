"""The file of the control store: one SQLite connection, its schema, and one transaction for each change.

Under all that control keeps. Guarantees: what is changed within `change` is durable together when the
outermost one returns, and leaves no trace when it raises. An error of SQLite or the system is a `StoreError`.
One process holds it, by a lock beside it; a backup may read it meanwhile.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from geartrain.adapters.file_lock import take_lock
from geartrain.adapters.layouts import SqliteLayout
from geartrain.adapters.sqlite import Fault, open_to_read, open_to_write, transaction, translated
from geartrain_cloud.control_store.errors import StoreError
from geartrain_cloud.control_store.model import Device, Instance, Planned

BUSY_S = 10.0

_CREATE = """
CREATE TABLE apps (name TEXT PRIMARY KEY, numbers INTEGER NOT NULL, instance TEXT NOT NULL);
CREATE TABLE instances (instance TEXT PRIMARY KEY, name TEXT NOT NULL, flow TEXT NOT NULL, cut TEXT NOT NULL,
    selector TEXT NOT NULL, options TEXT NOT NULL, device_options TEXT NOT NULL, outline TEXT NOT NULL,
    wanted TEXT NOT NULL, state TEXT NOT NULL, mode TEXT NOT NULL, purge INTEGER NOT NULL, why TEXT NOT NULL,
    run INTEGER NOT NULL, attempt INTEGER NOT NULL, submitted_us INTEGER NOT NULL,
    changed_us INTEGER NOT NULL, isolation TEXT NOT NULL, revision INTEGER NOT NULL, drops TEXT NOT NULL,
    made_us INTEGER NOT NULL, cut_rules TEXT NOT NULL, slots INTEGER NOT NULL, retain_s REAL NOT NULL,
    retain_bytes INTEGER NOT NULL, retain_tables_s REAL NOT NULL);
CREATE TABLE devices (device TEXT PRIMARY KEY, labels TEXT NOT NULL, local INTEGER NOT NULL,
    retired INTEGER NOT NULL, serial INTEGER NOT NULL, applied INTEGER NOT NULL, seen_us INTEGER NOT NULL);
CREATE TABLE assignments (instance TEXT NOT NULL, device TEXT NOT NULL, state TEXT NOT NULL,
    lacks TEXT NOT NULL, cut TEXT NOT NULL, PRIMARY KEY (instance, device)) WITHOUT ROWID;
CREATE INDEX assignments_of ON assignments (device, instance);
CREATE TABLE reports (device TEXT NOT NULL, instance TEXT NOT NULL, state TEXT NOT NULL, why TEXT NOT NULL,
    version TEXT NOT NULL, serial INTEGER NOT NULL, lacks TEXT NOT NULL, cut TEXT NOT NULL,
    revision TEXT NOT NULL, reasons TEXT NOT NULL, PRIMARY KEY (instance, device)) WITHOUT ROWID;
CREATE TABLE lanes (device TEXT PRIMARY KEY, report BLOB NOT NULL, refused TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE answers (number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE,
    request TEXT NOT NULL, status INTEGER NOT NULL, body TEXT NOT NULL);
CREATE TABLE purges (number INTEGER PRIMARY KEY AUTOINCREMENT, device TEXT NOT NULL, instance TEXT NOT NULL,
    serial INTEGER NOT NULL);
CREATE INDEX purges_of ON purges (device, number);
CREATE TABLE programs (device TEXT PRIMARY KEY, wanted TEXT NOT NULL, version TEXT NOT NULL,
    former TEXT NOT NULL, runs TEXT NOT NULL, serial INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE revisions (instance TEXT NOT NULL, number INTEGER NOT NULL, flow TEXT NOT NULL,
    cut TEXT NOT NULL, options TEXT NOT NULL, device_options TEXT NOT NULL, outline TEXT NOT NULL,
    drops TEXT NOT NULL, made_us INTEGER NOT NULL, PRIMARY KEY (instance, number)) WITHOUT ROWID;
CREATE TABLE cut_changes (instance TEXT PRIMARY KEY, number INTEGER NOT NULL, cuts TEXT NOT NULL,
    rules TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE bearers (name TEXT PRIMARY KEY, role TEXT NOT NULL, app TEXT NOT NULL, made_us INTEGER NOT NULL,
    expires_us INTEGER NOT NULL, made_by TEXT NOT NULL, digest BLOB NOT NULL UNIQUE,
    request TEXT NOT NULL, used_us INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE secrets (app TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL,
    set_us INTEGER NOT NULL, value BLOB NOT NULL, PRIMARY KEY (app, name)) WITHOUT ROWID;
CREATE TABLE sealed_secrets (device TEXT NOT NULL, app TEXT NOT NULL, name TEXT NOT NULL,
    version INTEGER NOT NULL, certificate BLOB NOT NULL, sealed BLOB NOT NULL,
    PRIMARY KEY (device, app, name)) WITHOUT ROWID;
CREATE TABLE certificates (device TEXT PRIMARY KEY, certificate BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE events (number INTEGER PRIMARY KEY AUTOINCREMENT, at_us INTEGER NOT NULL, kind TEXT NOT NULL,
    app TEXT NOT NULL, device TEXT NOT NULL, said TEXT NOT NULL);
CREATE TABLE told (kind TEXT NOT NULL, name TEXT NOT NULL, value INTEGER NOT NULL,
    PRIMARY KEY (kind, name)) WITHOUT ROWID;
CREATE TABLE device_purges (device TEXT PRIMARY KEY, step TEXT NOT NULL, asked_us INTEGER NOT NULL,
    done_us INTEGER NOT NULL, asked_by TEXT NOT NULL, runs TEXT NOT NULL, kept TEXT NOT NULL,
    rows INTEGER NOT NULL, quarantined INTEGER NOT NULL, why TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE canaries (instance TEXT PRIMARY KEY, number INTEGER NOT NULL, stage TEXT NOT NULL,
    selector TEXT NOT NULL, devices TEXT NOT NULL, for_s REAL NOT NULL, began_us INTEGER NOT NULL,
    positions TEXT NOT NULL, why TEXT NOT NULL, stay INTEGER NOT NULL, runs TEXT NOT NULL) WITHOUT ROWID;
"""
"""purges: the serial is that of the device's desired state which names the instance first; 0 while none does.
assignments: the sources that are not for the device, and the device's own cut, empty for the app's.
reports: the sources that it does not have, the cut that runs, the hash of the revision that it runs, and as
JSON why an app does not run as it is to, for programs.
secrets: the value is encrypted, empty for a secret that was removed. sealed_secrets: what devices are told;
the certificate is a digest of the one that a secret is sealed for. certificates: as devices report them.
canaries: the positions of the log by partition as the canary began, as JSON; whether the other devices stay
with the number before; what its devices run.
"""
LAYOUT = SqliteLayout(b"GTcs", 1, StoreError, "begin with another state folder of the platform")
_JSON = ("options", "device_options", "outline", "labels", "drops", "cut_rules")

T = TypeVar("T", Instance, Device, Planned)


def check_store(path: Path) -> None:
    """Raise `StoreError` where the control store at `path` is of another layout. What else may be wrong with
    it is left to who opens it.
    """
    if not path.is_file():
        return
    with suppress(sqlite3.Error), closing(open_to_read(path, busy_s=BUSY_S)) as database:
        LAYOUT.is_made(database, f"the control store {path}")


class ControlDatabase:
    """The file at `path`, held by one process. The columns of instances, revisions and devices are the fields
    of these, in their order.
    """

    def __init__(self, path: Path) -> None:
        """Open or make it; raises `StoreError`."""
        self._subject = f"the control store {path}"
        self.listeners: list[Callable[[], None]] = []
        """Called after each change that is durable."""
        self._lock = take_lock(
            path.with_suffix(".lock"),
            StoreError,
            unusable=f"{self._subject} cannot be used",
            taken=f"{self._subject} {Fault.IN_USE.value}",
        )
        try:
            self._open(path)
        except BaseException:
            os.close(self._lock)
            raise

    def _open(self, path: Path) -> None:
        with translated(StoreError, self._subject):
            self._database = open_to_write(path, busy_s=BUSY_S, one_thread=True)
            with transaction(self._database):
                LAYOUT.prepare(self._database, self._subject, _create)

    def close(self) -> None:
        """Let the file go."""
        self._database.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def add_triggers(self, functions: Mapping[str, Callable[[], int]], triggers: Iterable[str]) -> None:
        """Have statements run with changes as long as the file is open; functions: that these may call.
        Raises `StoreError`.
        """
        with translated(StoreError, self._subject):
            for name, function in functions.items():
                self._database.create_function(name, 0, function)
            for one in triggers:
                self._database.execute(one)

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """One transaction; a change within another is a part of it."""
        with translated(StoreError, self._subject):
            if self._database.in_transaction:
                yield self._database
                return
            with transaction(self._database):
                yield self._database
        for tell in self.listeners:
            tell()

    def rows(self, question: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What the question gives; raises `StoreError`."""
        with translated(StoreError, self._subject):
            return self._database.execute(question, values).fetchall()

    def read(self, kind: type[T], question: str, values: Sequence[Any] = ()) -> list[T]:
        """The instances, revisions or devices whose columns the question gives; raises `StoreError`."""
        return [from_row(kind, row) for row in self.rows(question, values)]

    def compact(self) -> None:
        """Leave nothing in the file of what was deleted, nor in its write-ahead log; raises `StoreError`."""
        with translated(StoreError, self._subject):
            self._database.execute("VACUUM")
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @property
    def changes(self) -> int:
        """Goes up with each change of anything, as long as the file is open."""
        return self._database.total_changes


def _create(database: sqlite3.Connection) -> None:
    for statement in _CREATE.split(";\n"):
        database.execute(statement)


def as_text(value: Any) -> str:
    """The JSON that a column holds."""
    return msgspec.json.encode(value).decode()


def to_row(value: Instance | Planned) -> list[Any]:
    """The columns of an instance, or of a revision."""
    fields = msgspec.to_builtins(value)
    return [as_text(fields[f]) if f in _JSON else fields[f] for f in value.__struct_fields__]


def from_row(kind: type[T], row: Sequence[Any]) -> T:
    """The instance, the revision or the device that the columns hold."""
    fields = dict(zip(kind.__struct_fields__, row, strict=True))
    for name in _JSON:
        if name in fields:
            fields[name] = msgspec.json.decode(fields[name])
    return msgspec.convert(fields, kind, strict=False)
