"""Every store carries a mark and a layout number. Any other file, and any other number, is refused in one
sentence that says what it is and what to do, and is left as it is.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from geartrain.adapters.layouts import FileLayout, SqliteLayout
from geartrain.adapters.sqlite import open_to_write, transaction
from geartrain.declarations.cloud_sink import ParquetTable
from geartrain.errors import GeartrainError, LedgerError
from geartrain.schema import Field, FieldType, Schema
from geartrain_cloud.backup.restoring import restore
from geartrain_cloud.backup.writing import back_up
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.control_store.tokens import Tokens
from geartrain_cloud.downlink.outbox_file import open_outbox
from geartrain_cloud.hosting.group_file import open_group
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.log.opening import ledger_of, take_ledger
from geartrain_cloud.log.roster import RosterDocument, RosterReader, RosterWriter
from geartrain_cloud.rest.audit import AuditLog
from geartrain_cloud.sinks.parquet import ParquetTables
from geartrain_cloud.sinks.sqlite import SqliteTables
from geartrain_edge.spool.spool import SqliteSpool

SCHEMA = Schema("Reading", (Field("celsius", FieldType.FLOAT64),))


def control_store(folder: Path) -> None:
    ControlStore(folder / "control.sqlite", lambda: 1).close()


def tokens(folder: Path) -> None:
    Tokens(folder / "joins.sqlite", lambda: 1).close()


def audit(folder: Path) -> None:
    AuditLog(folder / "audit.sqlite", lambda: 1).close()


def ledger(folder: Path) -> None:
    take_ledger(folder / "ledger.sqlite", 1, (0,))[0].close()


def ledger_read(folder: Path) -> None:
    with ledger_of(folder):
        pass


def roster(folder: Path) -> None:
    RosterWriter(folder).put("heat.1", RosterDocument({}, (), {}))


def roster_read(folder: Path) -> None:
    RosterReader(folder).after()


def tables(folder: Path) -> None:
    SqliteTables(folder / "tables.sqlite").close()


def outbox(folder: Path) -> None:
    open_outbox(folder / "outbox.sqlite", "heat.1").close()


def spool(folder: Path) -> None:
    async def opened() -> None:
        one = SqliteSpool(folder / "spool.sqlite")
        try:
            await one.open("d1", "heat.1", b"12345678")
        finally:
            await one.close()

    asyncio.run(opened())


def group(folder: Path) -> None:
    open_group(HostPlaces(folder).group("shared"), "shared", 2, 2)


def parquet(folder: Path) -> None:
    store = ParquetTables(folder)
    store.declare("out", ParquetTable("out"), SCHEMA)
    store.attach("hosted", "one", has_run=False)
    store.close()


def backup(folder: Path) -> None:
    state, output = folder / "state", folder / "copy"
    if not output.exists():
        control_store(state)
        back_up(state, output, lambda: 1)
    restore(output, folder / "new")


@dataclass(frozen=True)
class Kind:
    """A store: opens makes it in a folder, and opens it again; file: which has the mark and the number;
    way_out: how the sentence ends that refuses it; key: in JSON, "" for a file of SQLite; readers: what else
    opens it.
    """

    opens: Callable[[Path], None]
    file: str
    way_out: str
    key: str = ""
    readers: tuple[Callable[[Path], None], ...] = ()


STORES = {
    "control store": Kind(control_store, "control.sqlite", "begin with another state folder of the platform"),
    "join tokens": Kind(tokens, "joins.sqlite", "move it away, and make new tokens"),
    "audit log": Kind(audit, "audit.sqlite", "move it away to begin a new one"),
    "ledger": Kind(ledger, "ledger.sqlite", "begin with another log folder", readers=(ledger_read,)),
    "roster": Kind(roster, "roster.sqlite", "begin with another log folder", readers=(roster_read,)),
    "tables": Kind(tables, "tables.sqlite", "use another file"),
    "outbox": Kind(outbox, "outbox.sqlite", "give the outbox another path"),
    "spool": Kind(spool, "spool.sqlite", "give the device's agent an empty state folder"),
}
FORMER = {
    "control store": (0, range(1, 15)),
    "join tokens": (0, range(2)),
    "audit log": (0, range(1, 2)),
    "ledger": (0, range(1, 8)),
    "roster": (0, range(1, 2)),
    "tables": (0, range(1, 5)),
    "outbox": (0x47454F42, range(1, 3)),
    "spool": (0x47454152, range(1, 5)),
}
"""By store, the mark and the numbers that it had before marks were made anew."""


def number(path: Path) -> tuple[int, int]:
    """The mark and the layout that a file of SQLite carries."""
    with closing(sqlite3.connect(path)) as database:
        (mark,), (version,) = (
            database.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
        )
    return mark, version


def set_number(path: Path, mark: int, version: int) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA application_id = {mark}")
        database.execute(f"PRAGMA user_version = {version}")


def dump(path: Path) -> str:
    with closing(sqlite3.connect(path)) as database:
        return f"{number(path)}" + "\n".join(database.iterdump())


def refusals(kind: Kind, folder: Path) -> list[str]:
    """What each that opens a store says, which leaves it as it is."""
    file = folder / kind.file
    before, said = dump(file), list[str]()
    for opens in (kind.opens, *kind.readers):
        with pytest.raises(GeartrainError) as refused:
            opens(folder)
        said.append(str(refused.value))
    assert dump(file) == before
    assert all(str(folder) in one and "\n" not in one for one in said)
    return said


def test_each_store_has_a_mark_of_its_own_and_begins_at_layout_1(tmp_path: Path) -> None:
    marks = set()
    for kind in STORES.values():
        kind.opens(tmp_path)
        mark, version = number(tmp_path / kind.file)
        assert version == 1
        marks.add(mark)
    assert len(marks) == len(STORES)
    assert not marks & {0, *(mark for mark, _ in FORMER.values())}


@pytest.mark.parametrize("name", STORES)
def test_a_later_layout_is_refused_in_one_sentence_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    kind = STORES[name]
    kind.opens(tmp_path)
    mark, version = number(tmp_path / kind.file)
    set_number(tmp_path / kind.file, mark, version + 1)
    for said in refusals(kind, tmp_path):
        assert said.endswith(
            f"has layout {version + 1}, and this version of Geartrain knows {version}: start the version "
            "that wrote it or a later one, or bring back a copy from before it"
        )
    set_number(tmp_path / kind.file, mark, version)
    kind.opens(tmp_path)


@pytest.mark.parametrize("name", STORES)
def test_each_former_layout_is_refused_in_one_sentence_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    kind, (mark, versions) = STORES[name], FORMER[name]
    kind.opens(tmp_path)
    for version in versions:
        set_number(tmp_path / kind.file, mark, version)
        for said in refusals(kind, tmp_path):
            assert said.endswith(
                "was written by another program, or by an early version of Geartrain that this one does not "
                f"follow: {kind.way_out}"
            )


@pytest.mark.parametrize("name", STORES)
def test_a_file_of_another_program_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    kind = STORES[name]
    with closing(sqlite3.connect(tmp_path / kind.file)) as database:
        database.execute("CREATE TABLE notes (text)")
    for said in refusals(kind, tmp_path):
        assert "was written by another program, or by an early version of Geartrain" in said
        assert said.endswith(kind.way_out)


LINES = SqliteLayout(b"TEST", 1, LedgerError, "use another file")


def lines(database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE lines (line TEXT NOT NULL)")


def numbered(database: sqlite3.Connection) -> None:
    database.execute("ALTER TABLE lines ADD COLUMN number INTEGER NOT NULL DEFAULT 0")


def broken(database: sqlite3.Connection) -> None:
    numbered(database)
    raise LedgerError("cut")


def prepared(path: Path, layout: SqliteLayout) -> bool:
    with closing(open_to_write(path, busy_s=1)) as database, transaction(database):
        return layout.prepare(database, f"the test {path}", lines)


def test_a_layout_is_brought_one_step_forward_in_one_transaction(tmp_path: Path) -> None:
    path = tmp_path / "lines.sqlite"
    second = SqliteLayout(b"TEST", 2, LedgerError, "use another file", numbered)
    assert prepared(path, LINES)
    assert not prepared(path, LINES)
    before = dump(path)
    with closing(sqlite3.connect(path)) as database, pytest.raises(LedgerError) as refused:
        second.is_made(database, f"the test {path}")
    assert str(refused.value) == (
        f"the test {path} has layout 1 of a former version, and this version of Geartrain goes on with 2 "
        "only: start the program that writes it, which brings it forward"
    )
    with pytest.raises(LedgerError, match="cut"):
        prepared(path, SqliteLayout(b"TEST", 2, LedgerError, "use another file", broken))
    assert dump(path) == before
    assert not prepared(path, second)
    assert number(path) == (int.from_bytes(b"TEST", "big"), 2)
    with closing(sqlite3.connect(path)) as database:
        assert second.is_made(database, "the test")
        assert [row[1] for row in database.execute("PRAGMA table_info(lines)")] == ["line", "number"]
    third = SqliteLayout(b"TEST", 4, LedgerError, "use another file", numbered)
    with pytest.raises(LedgerError, match=r"has layout 2 of a former version, .* only: use another file$"):
        prepared(path, third)
    with pytest.raises(LedgerError, match="has layout 2, and this version of Geartrain knows 1"):
        prepared(path, LINES)


# Files of JSON


@dataclass(frozen=True)
class JsonKind:
    """As `Kind`; former: what its `layout` or other key was before marks were made."""

    opens: Callable[[Path], None]
    file: str
    way_out: str
    former: tuple[Mapping[str, object], ...]


def numbers(last: int) -> tuple[Mapping[str, object], ...]:
    """Layouts up to the last one, and none."""
    return ({}, *({"layout": number} for number in range(1, last + 1)))


JSON_STORES = {
    "group": JsonKind(
        group, "groups/shared/group.json", "begin with another state folder of the platform", numbers(3)
    ),
    "Parquet table": JsonKind(
        parquet, "out.parquet/_manifest.json", "move the folder away, or rename the sink", numbers(2)
    ),
    "backup": JsonKind(backup, "copy/backup.json", "restore another one", ({"geartrain_backup": 1},)),
}


def refused(kind: JsonKind, folder: Path) -> str:
    """What is said of a file, which is left as it is."""
    before = (folder / kind.file).read_bytes()
    with pytest.raises(GeartrainError) as error:
        kind.opens(folder)
    assert (folder / kind.file).read_bytes() == before
    said = str(error.value)
    assert str(folder) in said
    assert "\n" not in said
    return said


@pytest.mark.parametrize("name", JSON_STORES)
def test_another_layout_of_a_file_is_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    kind = JSON_STORES[name]
    kind.opens(tmp_path)
    file = tmp_path / kind.file
    held = json.loads(file.read_bytes())
    mark, number = held.pop("layout").split("/")
    assert number == "1"
    file.write_text(json.dumps(held | {"layout": f"{mark}/2"}), encoding="utf-8")
    assert refused(kind, tmp_path).endswith(
        "has layout 2, and this version of Geartrain knows 1: start the version that wrote it or a later "
        "one, or bring back a copy from before it"
    )
    for other in (*kind.former, {"layout": "another/1"}, {"layout": f"{mark}/one"}):
        file.write_text(json.dumps(held | other), encoding="utf-8")
        assert refused(kind, tmp_path).endswith(
            "was written by another program, or by an early version of Geartrain that this one does not "
            f"follow: {kind.way_out}"
        )


def test_a_former_layout_of_a_file_is_refused() -> None:
    layout = FileLayout("test", 2, LedgerError, "use another file")
    layout.check(layout.text, "the test")
    with pytest.raises(LedgerError, match=r"the test has layout 1 of a former version, .* use another file$"):
        layout.check("test/1", "the test")
