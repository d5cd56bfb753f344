"""The roster: which instances, channels and devices ingest is to follow, and what changed since it looked.

Beside the ledger, in the log's folder. Control writes it, ingest reads it again while it runs. It is wanted
state: what of it holds from which entry on, the log says. Guarantees: a write is one durable transaction that
raises the serial. A reader never holds a writer up, and never sees half a change. An instance that has ended
never lives again. What stands in it is bounded.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec.structs import replace

from geartrain.adapters.layouts import SqliteLayout
from geartrain.adapters.sqlite import open_to_read, open_to_write, transaction, translated
from geartrain.errors import ConfigError, GeartrainError, LedgerError
from geartrain.graph.graph import CHANNEL_ID, DEAD_LETTERS, LATE
from geartrain.schema import Schema
from geartrain.wire.topics import check_name
from geartrain_cloud.log.checksums import sealed, whole

ROSTER_FILE = "roster.sqlite"
"""In the log's folder."""
INSTANCES_MAX = 20_000
"""Ended ones too."""
DEVICES_MAX = 100_000
"""Of one instance."""
BYTES_MAX = 32 << 20
"""Of one document."""
REVISIONS_MAX = 100_000
"""Of one instance."""

_LAYOUT = SqliteLayout(b"GTro", 1, LedgerError, "begin with another log folder")
_BUSY_S = 10.0
_CREATE = """
CREATE TABLE roster (
    instance TEXT PRIMARY KEY,
    serial INTEGER NOT NULL,
    document TEXT NOT NULL,
    checksum BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX by_serial ON roster (serial);
"""

Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class RosterChannel(msgspec.Struct, frozen=True):
    """A channel: the sources above it, and its schema's id, "" where nobody has said; former: the schemas, as
    their texts, of records that devices send which have not gone over to the revision that has this one.
    """

    sources: tuple[str, ...]
    schema: str = ""
    former: tuple[str, ...] = ()

    @property
    def former_schemas(self) -> dict[str, Schema]:
        """The former schemas by id; raises `SchemaError`."""
        return {one.schema_id: one for one in map(Schema.from_json, self.former)}


class RosterDocument(msgspec.Struct, frozen=True):
    """What ingest follows of one instance.

    channels: those that go up, without the two of the system; sources: all that the flow has or had; bounded:
    all of them come to an end, so no device is ever excluded; join_timeout_s, idle_after_s: after how long
    without a sign a device of a flow with live sources holds no clock; partitioned_by: of some channels the
    field of whose values each is said to live on one device; devices: those assigned, with the sources that
    each has; revision: the number of the one that every partition is to bring; since: of sources that came
    with a later revision its number; retain_s, retain_bytes: how long its rows stay in the log, None: as
    long as those of all.
    """

    channels: dict[str, RosterChannel]
    sources: tuple[str, ...]
    devices: dict[str, tuple[str, ...]] = {}
    bounded: bool = True
    join_timeout_s: Seconds = 60.0
    idle_after_s: Seconds = 30.0
    partitioned_by: dict[str, str] = {}
    ended: bool = False
    revision: Annotated[int, msgspec.Meta(ge=1, le=REVISIONS_MAX)] = 1
    since: dict[str, int] = {}
    retain_s: Seconds | None = None
    retain_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**62)] | None = None

    def checked(self, instance: str) -> RosterDocument:
        """This document, if its names can be those of topics and files, and fit each other.

        Raises `ConfigError`.
        """
        where = f"roster of {instance}"
        _check(lambda: check_name("flow", instance), where)
        for name in (*self.channels, *self.sources):
            if not CHANNEL_ID.fullmatch(name):
                raise ConfigError(f"{where}: {name[:80]!r} is the id of no step: use letters, digits and _")
        for channel, row in self.channels.items():
            _known(f"{where}: channel {channel}", row.sources, self.sources)
            if channel in (DEAD_LETTERS, LATE):
                raise ConfigError(f"{where}: channel {channel} is one of the system: leave it out")
            _check(lambda row=row: row.former_schemas, f"{where}: channel {channel}")  # type: ignore[misc]
        if len(self.devices) > DEVICES_MAX:
            raise ConfigError(f"{where}: {len(self.devices)} devices are more than {DEVICES_MAX:,}")
        for device, sources in self.devices.items():
            _check(lambda device=device: check_name("device", device), where)  # type: ignore[misc]
            _known(f"{where}: device {device}", sources, self.sources)
        _known(f"{where}: partitioned_by", tuple(self.partitioned_by), tuple(self.channels))
        if not instance.strip(".") or not all(device.strip(".") for device in self.devices):
            raise ConfigError(f"{where}: a name of dots only cannot name a file")
        return self


def _check(check: Callable[[], object], where: str) -> None:
    try:
        check()
    except GeartrainError as error:
        raise ConfigError(f"{where}: {error}") from None


def _known(where: str, names: Sequence[str], known: Sequence[str]) -> None:
    if strangers := sorted(set(names) - set(known)):
        raise ConfigError(f"{where}: {strangers[0][:80]!r} is not among {', '.join(known)[:200] or 'none'}")


@dataclass(frozen=True, slots=True)
class RosterRow:
    """What stands of one instance since `serial`; document: None where it cannot be used, for the reason
    `why`.
    """

    instance: str
    serial: int
    document: RosterDocument | None
    why: str = ""


class RosterReader:
    """Reads the roster of the log in a folder; a connection a call, as the readers of the ledger have."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ROSTER_FILE

    def serial(self) -> int:
        """That of the newest change, 0 where there is no roster yet; raises `LedgerError`."""
        with self._reading() as roster:
            return 0 if roster is None else _serial(roster)

    def after(self, serial: int = 0) -> list[RosterRow]:
        """What changed after `serial`, the oldest change first; raises `LedgerError`."""
        with self._reading() as roster:
            if roster is None:
                return []
            asked = "SELECT instance, serial, document, checksum FROM roster WHERE serial > ? ORDER BY serial"
            rows = roster.execute(asked, (serial,)).fetchall()
        return [_row(row) for row in rows]

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """A connection, None while nobody has made the roster."""
        if not self._path.is_file():
            yield None
            return
        subject = f"the roster {self._path}"
        with translated(LedgerError, subject), closing(open_to_read(self._path, busy_s=_BUSY_S)) as roster:
            yield roster if _LAYOUT.is_made(roster, subject) else None


class FollowedRoster:
    """The roster as ingest follows it: each look is one read in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self._reader = RosterReader(folder)

    async def after(self, serial: int) -> list[RosterRow]:
        """As `RosterReader.after`."""
        return await asyncio.to_thread(self._reader.after, serial)


class RosterWriter:
    """Writes the roster of the log in a folder, which is made where it is missing. Each call is one durable
    transaction; one that changes nothing leaves the serial as it is. All raise `LedgerError`.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / ROSTER_FILE

    def put(self, instance: str, document: RosterDocument) -> int:
        """Have ingest follow an instance so; returns the serial. Raises `ConfigError` for a document that
        cannot be, and for an instance that has ended.
        """
        return self._change(instance, lambda held: document)

    def put_device(self, instance: str, device: str, sources: Sequence[str] | None = None) -> int:
        """Assign a device, with some of the flow's sources or (None) all; raises `ConfigError`."""

        def assigned(held: RosterDocument | None) -> RosterDocument:
            known = _there(instance, held)
            has = known.sources if sources is None else tuple(sources)
            return replace(known, devices={**known.devices, device: has})

        return self._change(instance, assigned)

    def remove_device(self, instance: str, device: str) -> int:
        """Retire a device from an instance: its clocks are released; raises `ConfigError`."""

        def retired(held: RosterDocument | None) -> RosterDocument:
            known = _there(instance, held)
            return replace(known, devices={d: has for d, has in known.devices.items() if d != device})

        return self._change(instance, retired)

    def end(self, instance: str) -> int:
        """End an instance: what its devices still have spooled is declared dropped. Raises `ConfigError`."""
        return self._change(instance, lambda held: replace(_there(instance, held), devices={}, ended=True))

    def _change(self, instance: str, change: Callable[[RosterDocument | None], RosterDocument]) -> int:
        with (
            translated(LedgerError, f"the roster {self._path}"),
            closing(open_to_write(self._path, busy_s=_BUSY_S)) as roster,
            transaction(roster),
        ):
            _LAYOUT.prepare(roster, f"the roster {self._path}", _create)
            return self._write(roster, instance, change)

    def _write(
        self,
        roster: sqlite3.Connection,
        instance: str,
        change: Callable[[RosterDocument | None], RosterDocument],
    ) -> int:
        held, serial = _held(roster, instance), _serial(roster)
        document = change(held).checked(instance)
        if held is not None and held.ended and not document.ended:
            raise ConfigError(f"roster of {instance}: it has ended: take the next number for a new life")
        if held == document:
            return serial
        text = msgspec.json.encode(document, order="sorted").decode()
        if len(text) > BYTES_MAX:
            raise ConfigError(f"roster of {instance}: its document has more than {BYTES_MAX:,} bytes")
        if held is None:
            (count,) = roster.execute("SELECT count(*) FROM roster").fetchone()
            if count >= INSTANCES_MAX:
                raise ConfigError(f"roster of {instance}: there are {INSTANCES_MAX:,} instances already")
        statement = "INSERT OR REPLACE INTO roster VALUES (?, ?, ?, ?)"
        roster.execute(statement, sealed((instance, serial + 1, text)))
        return serial + 1


def _there(instance: str, held: RosterDocument | None) -> RosterDocument:
    if held is None:
        raise ConfigError(f"roster of {instance}: there is no such instance: put it there first")
    return held


def _create(roster: sqlite3.Connection) -> None:
    for statement in _CREATE.split(";"):
        roster.execute(statement)


def _serial(roster: sqlite3.Connection) -> int:
    (newest,) = roster.execute("SELECT coalesce(max(serial), 0) FROM roster").fetchone()
    return int(newest)


def _held(roster: sqlite3.Connection, instance: str) -> RosterDocument | None:
    asked = "SELECT instance, serial, document, checksum FROM roster WHERE instance = ?"
    row = roster.execute(asked, (instance,)).fetchone()
    if row is None:
        return None
    read = _row(row)
    if read.document is None:
        raise LedgerError(f"the roster cannot be used: {read.why}")
    return read.document


def _row(row: tuple[str, int, str, bytes]) -> RosterRow:
    """A row as data; one that cannot be used says why, so that the others can be followed."""
    try:
        instance, serial, text = whole(row, f"the roster's row of {row[0]}")
        document = msgspec.json.decode(text, type=RosterDocument).checked(instance)
    except (LedgerError, ConfigError, msgspec.MsgspecError, RecursionError) as error:
        return RosterRow(str(row[0]), int(row[1]), None, str(error))
    return RosterRow(instance, serial, document)


def changed(rows: Sequence[RosterRow]) -> Mapping[str, RosterDocument]:
    """The documents that can be used, by instance."""
    return {row.instance: row.document for row in rows if row.document is not None}
