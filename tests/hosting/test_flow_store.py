"""A flow's tables that are locked: its rows are parked durably, in order, and each is written once."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import closing
from pathlib import Path

import pytest

from geartrain import Table
from geartrain.errors import GeartrainError
from geartrain.records.codes import Code
from geartrain.schema import ColumnBatch, derive
from geartrain.sinks import ParquetTable, Sink, WebhookSink
from geartrain_cloud.hosting import flow_store
from geartrain_cloud.hosting.errors import NotYetError, ParkedError
from geartrain_cloud.hosting.flow_store import FlowStore, Portion
from geartrain_cloud.hosting.steering import Stop
from geartrain_cloud.log.pack import pack, unpack
from geartrain_cloud.sinks import webhook
from geartrain_cloud.sinks.opening import SinkPlace, open_places
from geartrain_cloud.sinks.sqlite import SqliteTables
from geartrain_cloud.sinks.tables import rows
from geartrain_cloud.spark.compile import HOSTED
from tests.sinks.hooked import receiving
from tests.spark.flows import Reading
from tests.waiting import wait_for


def portion(count: int, letters: int = 0, code: Code = Code.USER_ERROR) -> Portion:
    columns = ColumnBatch([[f"s{count}"], [float(count)]], [count], ["split"], [count])
    found = {"readings": [pack(columns)]}
    if letters:
        numbers = list(range(count * 10_000, count * 10_000 + letters))
        fields: list[list[object]] = [
            ["step"] * letters,
            [str(code)] * letters,
            ["refused"] * letters,
            [b"{}"] * letters,
        ]
        found["_dead_letters"] = [pack(ColumnBatch(fields, numbers, ["split"] * letters, numbers))]
    return Portion(count, {"0": count + 1}, found, 1, max(1, letters), 0)


class Kept:
    """A store on a file of its own, and the moments at which it may be held or not."""

    def __init__(self, folder: Path, sink: Sink | None = None) -> None:
        self.sink = sink or Table("readings")
        self.folder, self.changed = folder, threading.Event()
        self.store = self.open()

    def open(self, attach: bool = True) -> FlowStore:
        place = SinkPlace("readings", self.sink, derive(Reading))
        tables = open_places("f.1", [place], SqliteTables(self.folder / "t.sqlite", 0.05), self.folder)
        tables.attach(HOSTED, "identity", has_run=False) if attach else None
        return FlowStore(
            "f.1~1",
            tables,
            self.folder / "own",
            1.0,
            self.changed.set,
            parked=self.folder / "parked",
            retry_s=0.02,
        )

    def give(self, one: Portion) -> None:
        future = self.store.offer(one)
        wait([future], 5)
        self.store.settle(one, future)

    def until(self, done: Callable[[], bool]) -> None:
        while not done():
            wait_for("a change of the flows", self.changed.is_set)
            self.changed.clear()

    def held(self) -> list[str]:
        return [row["sensor"] for row in rows(self.folder / "t.sqlite", "readings", canonical=True)]


def wait_until_said(store: FlowStore) -> None:
    """Ask until the tables have answered."""
    while True:
        try:
            return store.check([])
        except NotYetError:
            continue


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_what_a_locked_table_does_not_take_is_parked_and_written_once(kept: Kept) -> None:
    kept.give(portion(0))
    with closing(sqlite3.connect(kept.folder / "t.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for count in (1, 2, 3):
            kept.give(portion(count))
        assert "in use" in kept.store.held or "parked" in kept.store.held
        assert kept.store.count() == 3
        assert kept.store.stand() == {"0": 4}
        assert kept.held() == ["s0"]
        with pytest.raises(GeartrainError, match=r"in use|parked"):  # at once: its thread is busy
            kept.store.check([])
        other.execute("ROLLBACK")
    kept.until(lambda: not kept.store.held)
    assert kept.held() == ["s0", "s1", "s2", "s3"]
    assert list((kept.folder / "parked").iterdir()) == []
    kept.give(portion(3))  # Spark runs it again
    assert kept.store.repeated == 1
    assert kept.held() == ["s0", "s1", "s2", "s3"]
    kept.store.close()


def test_a_webhook_whose_receiver_is_away_holds_the_flow_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "AWAY_S_MAX", 0.0)
    with receiving() as hooks:
        kept = Kept(tmp_path, WebhookSink("readings", url=hooks.url))
        hooks.judge = lambda _: (503, "full")
        kept.give(portion(0))
        kept.until(lambda: "sink 'readings': http" in kept.store.held)
        assert "answers 503 (full): it is asked again, no record is lost" in kept.store.held
        kept.give(portion(1))
        hooks.judge = lambda _: None
        kept.until(lambda: not kept.store.held)
        kept.store.close()
        assert [body["sensor"] for body in hooks.held.values()] == ["s0", "s1"]


def test_tables_that_are_slow_to_say_whether_they_can_change_are_asked_once(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, asked = threading.Event(), list[object]()

    def planned(layouts: object) -> None:
        asked.append(layouts)
        wait_for("the other to go", go.is_set)
        if len(asked) > 1:
            raise GeartrainError("no column can be dropped")

    monkeypatch.setattr(kept.store._tables, "planned", planned)
    for _ in range(2):
        with pytest.raises(NotYetError, match="have not said yet"):
            kept.store.check([])
    go.set()
    wait_until_said(kept.store)
    assert asked == [[]]
    with pytest.raises(GeartrainError, match="no column can be dropped"):
        wait_until_said(kept.store)
    kept.store.close()


def test_what_is_parked_outlives_the_process(kept: Kept) -> None:
    with closing(sqlite3.connect(kept.folder / "t.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        kept.give(portion(0))
        kept.give(portion(1))
        kept.store.close()
        files = sorted((kept.folder / "parked").iterdir())
        assert [path.name for path in files] == ["0", "1"]
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
        other.execute("ROLLBACK")
    kept.changed.clear()
    kept.store = kept.open()
    kept.until(lambda: not kept.store.held)
    assert kept.held() == ["s0", "s1"]
    kept.store.close()


def test_dead_letters_stop_a_flow_after_they_are_in_its_tables(kept: Kept) -> None:
    kept.give(portion(0, letters=400))
    assert "400 dead letters of 400 records" in kept.store.tripped
    assert kept.store.held == kept.store.tripped
    assert len(rows(kept.folder / "t.sqlite", "dead_letters")) == 400
    kept.store.close()
    again = kept.open()
    assert again.tripped
    again.close()


def test_dead_letters_that_a_person_has_asked_for_stop_nothing(kept: Kept) -> None:
    kept.give(portion(0, letters=400, code=Code.GIVEN_UP))
    assert not kept.store.tripped
    assert len(rows(kept.folder / "t.sqlite", "dead_letters")) == 400
    kept.give(portion(1, letters=400))
    assert "400 dead letters of 800 records" in kept.store.tripped
    kept.store.close()


def test_it_says_where_its_micro_batches_end(tmp_path: Path) -> None:
    """The newest one, and one that another store has ahead of it."""
    kept = Kept(tmp_path, ParquetTable("readings"))
    assert kept.store.stops() == ()
    kept.give(portion(0))
    assert kept.store.stops() == (Stop(0, {"0": 1}),)
    (folder,) = kept.store._tables._opened.values()  # the flow's own file does not come to this one
    folder.write(HOSTED, 1, {"0": 5}, {"readings": [unpack(portion(1).rows["readings"][0])]})
    kept.store.close()
    kept.store = kept.open()
    assert kept.store.stops() == (Stop(0, {"0": 1}), Stop(1, {"0": 5}, undivided=True))
    kept.store.close()


def test_where_a_micro_batch_ends_is_kept_for_a_receiver_that_does_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request may have come through, though neither the flow's own file nor what is parked has it."""
    monkeypatch.setattr(webhook, "AWAY_S_MAX", 0.0)
    with receiving() as hooks:
        kept = Kept(tmp_path, WebhookSink("readings", url=hooks.url))
        kept.give(portion(0))
        hooks.judge = lambda _: (503, "full")
        wait([kept.store.offer(portion(1))])
        kept.store.close()
    kept.store = kept.open()
    assert kept.store.stops() == (Stop(0, {"0": 1}), Stop(1, {"0": 2}, undivided=True))
    kept.store.close()


def test_where_a_micro_batch_of_the_log_of_before_ends_is_kept(tmp_path: Path) -> None:
    """Its tables stand where the flow goes on meanwhile."""
    kept = Kept(tmp_path)
    for count in range(3):
        one = portion(count)
        kept.give(Portion(one.count, {"0": 9}, one.rows, 1, 1, 0, {"0": count + 2}))
    kept.store.close()
    kept.store = kept.open()
    assert kept.store.stops() == (Stop(2, {"0": 4}),)
    kept.store.close()


def test_what_is_parked_counts_as_held(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.give(portion(0))
    with closing(sqlite3.connect(tmp_path / "t.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        kept.give(portion(1))
        kept.give(portion(2))
        assert kept.store.stops() == (Stop(2, {"0": 3}),)
        other.execute("ROLLBACK")
    kept.until(lambda: not kept.store.held)
    assert kept.store.stops() == (Stop(2, {"0": 3}),)
    kept.store.close()


def test_what_is_parked_once_more_does_not_hide_where_the_tables_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power took Spark's newest files, and a micro-batch that the tables hold is run again."""
    kept = Kept(tmp_path)
    for count in range(5):
        kept.give(portion(count))
    with closing(sqlite3.connect(tmp_path / "t.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        kept.give(portion(2))
        assert (kept.store.count(), kept.store.stand()) == (4, {"0": 5})
        assert kept.store.stops() == (Stop(4, {"0": 5}),)
        kept.store.close()
        other.execute("ROLLBACK")
    with monkeypatch.context() as patched:
        patched.setattr(FlowStore, "_drain", lambda _: None)
        kept.store = kept.open()
        assert kept.store.stops() == (Stop(4, {"0": 5}),)
        kept.store.close()
    kept.changed.clear()
    kept.store = kept.open()
    kept.until(lambda: not kept.store.held)
    assert kept.held() == [f"s{count}" for count in range(5)]
    kept.store.close()


def test_what_is_made_again_does_not_hide_where_stores_that_do_not_say_it_stand(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    past = [
        Portion(one.count, {"0": 9}, one.rows, 1, 1, 0, {"0": one.count + 1})
        for one in map(portion, range(4))
    ]
    for one in (*past, past[1]):
        kept.give(one)
    kept.store.close()
    kept.store = kept.open()
    assert kept.store.stops() == (Stop(3, {"0": 4}),)
    kept.store.close()


def test_it_says_where_it_stands_while_what_is_parked_is_written(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a host starts: the file is gone, and its thread has not come further yet."""
    with closing(sqlite3.connect(kept.folder / "t.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        kept.give(portion(0))
        kept.store.close()
        other.execute("ROLLBACK")
    gone, go = threading.Event(), threading.Event()

    def sync(_: Path) -> None:
        gone.set()
        wait_for("the store to be asked", go.is_set)

    monkeypatch.setattr(flow_store, "fsync_path", sync)
    kept.changed.clear()
    kept.store = kept.open()
    wait_for("the parked file to go", gone.is_set)
    assert kept.store.stops() == (Stop(0, {"0": 1}),)
    go.set()
    kept.until(lambda: not kept.store.held)
    kept.store.close()


def spoiled(raw: bytes) -> bytes:
    return raw[:-3] + bytes([raw[-3] ^ 1]) + raw[-2:]


@pytest.mark.parametrize("damage", [lambda raw: raw[: len(raw) // 2], lambda _: b"", spoiled])
def test_a_damaged_parked_file_is_said(kept: Kept, damage: Callable[[bytes], bytes]) -> None:
    with closing(sqlite3.connect(kept.folder / "t.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        kept.give(portion(0))
        kept.store.close()
        other.execute("ROLLBACK")
    path = kept.folder / "parked" / "0"
    raw = path.read_bytes()
    path.write_bytes(damage(raw))
    with pytest.raises(ParkedError, match=r"parked/0, which cannot be read .* gear replay"):
        kept.open()
    path.write_bytes(raw)
    kept.changed.clear()
    kept.store = kept.open()
    kept.until(lambda: not kept.store.held)
    assert kept.held() == ["s0"]
    kept.store.close()
