"""Every store carries a layout number: a later one is refused in one sentence, and so is a former one of what
keeps records in their order. Any other is brought up whole.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from geartrain.declarations.cloud_sink import ParquetTable
from geartrain.errors import GeartrainError
from geartrain.schema import Field, FieldType, Schema
from geartrain_cloud.backup.restoring import restore
from geartrain_cloud.backup.writing import back_up
from geartrain_cloud.control_store import database as control
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
    """A store: opens makes it in a folder, and opens it again; file: which has the number; key: in JSON, ""
    for SQLite's `user_version`; readers: what else opens it.
    """

    opens: Callable[[Path], None]
    file: str
    known: int
    key: str = ""
    readers: tuple[Callable[[Path], None], ...] = ()


STORES = {
    "control store": Kind(control_store, "control.sqlite", 14),
    "join tokens": Kind(tokens, "joins.sqlite", 1),
    "audit log": Kind(audit, "audit.sqlite", 1),
    "ledger": Kind(ledger, "ledger.sqlite", 7, readers=(ledger_read,)),
    "roster": Kind(roster, "roster.sqlite", 1, readers=(roster_read,)),
    "tables": Kind(tables, "tables.sqlite", 4),
    "outbox": Kind(outbox, "outbox.sqlite", 2),
    "spool": Kind(spool, "spool.sqlite", 4),
    "group": Kind(group, "groups/shared/group.json", 3, "layout"),
    "Parquet table": Kind(parquet, "out.parquet/_manifest.json", 2, "layout"),
    "backup": Kind(backup, "copy/backup.json", 1, "geartrain_backup"),
}


def number(path: Path, key: str) -> int:
    """The layout that a store carries."""
    if key:
        return int(json.loads(path.read_bytes())[key])
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute("PRAGMA user_version").fetchone()[0])


def set_number(path: Path, key: str, value: int) -> None:
    if key:
        path.write_text(json.dumps(json.loads(path.read_bytes()) | {key: value}), encoding="utf-8")
        return
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {value}")


def dump(path: Path) -> str:
    with closing(sqlite3.connect(path)) as database:
        return "\n".join(database.iterdump())


@pytest.mark.parametrize("name", STORES)
def test_a_later_layout_is_refused_in_one_sentence_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    kind = STORES[name]
    kind.opens(tmp_path)
    file = tmp_path / kind.file
    assert number(file, kind.key) == kind.known
    set_number(file, kind.key, kind.known + 1)
    before = file.read_bytes() if kind.key else dump(file)
    for opens in (kind.opens, *kind.readers):
        with pytest.raises(GeartrainError) as refused:
            opens(tmp_path)
        assert re.search(
            rf"has layout {kind.known + 1}, and this version of Geartrain knows {kind.known}: start the "
            r"version that wrote it or a later one, or bring back a copy from before it$",
            str(refused.value),
        )
        assert str(tmp_path) in str(refused.value)
    assert number(file, kind.key) == kind.known + 1
    assert (file.read_bytes() if kind.key else dump(file)) == before
    set_number(file, kind.key, kind.known)
    if name != "backup":  # which goes to a folder that is empty
        kind.opens(tmp_path)


ORDERED = ("spool", "ledger", "tables", "group", "Parquet table")
"""Stores with the origins of records, which had other names and another order before."""


@pytest.mark.parametrize("name", ORDERED)
def test_a_former_layout_with_another_order_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    kind = STORES[name]
    kind.opens(tmp_path)
    file = tmp_path / kind.file
    for former in range(1, kind.known):
        set_number(file, kind.key, former)
        before = file.read_bytes() if kind.key else dump(file)
        for opens in (kind.opens, *kind.readers):
            with pytest.raises(GeartrainError) as refused:
                opens(tmp_path)
            said = str(refused.value)
            assert f"has layout {former} of a former version, and this version of Geartrain" in said
            assert str(tmp_path) in said
        assert number(file, kind.key) == former
        assert (file.read_bytes() if kind.key else dump(file)) == before
    set_number(file, kind.key, kind.known)
    kind.opens(tmp_path)


def test_join_tokens_of_before_there_was_a_number_are_of_the_first_layout(tmp_path: Path) -> None:
    kind = STORES["join tokens"]
    kind.opens(tmp_path)
    set_number(tmp_path / kind.file, "", 0)
    kind.opens(tmp_path)
    assert number(tmp_path / kind.file, "") == kind.known


@pytest.mark.parametrize("name", ["group", "Parquet table"])
def test_what_was_written_before_there_was_a_number_is_refused_as_the_first(
    tmp_path: Path, name: str
) -> None:
    kind = STORES[name]
    kind.opens(tmp_path)
    file = tmp_path / kind.file
    held = json.loads(file.read_bytes())
    del held[kind.key]
    file.write_text(json.dumps(held), encoding="utf-8")
    with pytest.raises(GeartrainError, match="has layout 1 of a former version"):
        kind.opens(tmp_path)


@pytest.mark.parametrize("former", range(1, control.VERSION))
def test_each_former_control_store_is_brought_up_in_one_transaction(
    tmp_path: Path, former: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, whole = tmp_path / "control.sqlite", tmp_path / "new"
    with closing(sqlite3.connect(file)) as database:
        database.executescript("".join(control._STEPS[:former]) + f"PRAGMA user_version = {former};")
    before = dump(file)
    with monkeypatch.context() as broken:
        broken.setattr(control, "_STEPS", (*control._STEPS[:-1], control._STEPS[-1] + "BROKEN;\n"))
        with pytest.raises(GeartrainError, match=r"control store .* cannot be used: .*BROKEN"):
            control_store(tmp_path)
    assert (number(file, ""), dump(file)) == (former, before)
    control_store(tmp_path)
    control_store(whole)
    assert number(file, "") == control.VERSION
    assert dump(file) == dump(whole / "control.sqlite")
