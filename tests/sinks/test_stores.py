"""Stores beside the flow's own tables: Parquet, PostgreSQL, console, MQTT, and the set that drives them."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import threading
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import psycopg
import pyarrow.dataset as ds
import pytest

from geartrain import Digits, Flow, Record, Table
from geartrain.adapters.mqtt import AiomqttNet
from geartrain.errors import ConfigError, NetError
from geartrain.graph.graph import DEAD_LETTERS
from geartrain.schema import ColumnBatch, RowCodec, derive
from geartrain.sinks import ConsoleSink, MqttSink, ParquetTable, PostgresTable, Sink
from geartrain.testing import TestingSource
from geartrain_cloud.broker.choice import choose_broker
from geartrain_cloud.sinks.layout import TableError
from geartrain_cloud.sinks.opening import open_tables
from geartrain_cloud.sinks.parquet import ParquetTables
from geartrain_cloud.sinks.store import Tables
from geartrain_cloud.sinks.tables import rows
from tests.ports import free_port
from tests.postgres_server import Postgres
from tests.waiting import WAIT_S, Wait, wait_for


class Side(Enum):
    BUY = 1
    SELL = 2


class Trade(Record):
    symbol: str
    price: float
    count: int = 0
    fee: Annotated[Decimal, Digits(9, 2)] = Decimal("0.00")
    side: Side = Side.BUY
    tags: list[str] = msgspec.field(default_factory=list)
    raw: bytes = b""
    seen: datetime | None = None
    good: bool | None = None


class Pair(Record):
    symbol: str
    value: float


def columns(kind: Any, *timed: tuple[int, Any]) -> ColumnBatch:
    """Records as they leave Spark: their number is their time."""
    codec = RowCodec(kind)
    values, wrong = codec.conform([value for _, value in timed])
    assert not wrong
    times = [time_us for time_us, _ in timed]
    return ColumnBatch(codec.to_columns(values), times, ["s"] * len(times), times, [b"\x01"] * len(times))


def tables_of(path: Path, *sinks: Sink, kind: type[Any] = Trade) -> Tables:
    flow = Flow("trades")
    source = flow.source("source", TestingSource[Any](), out=kind)
    for number, sink in enumerate(sinks):
        source.sink(f"sink{number}", sink)
    return open_tables(flow.graph(), path / "tables.sqlite")


FIRST = Trade(
    "A", 1.5, 2**62, Decimal("-1.50"), Side.SELL, ["x", "y"], b"\x00\xff", datetime(1960, 1, 2, tzinfo=UTC)
)
SECOND = Trade("B", -math.inf, -5, good=True)


def parquet_rows(folder: Path) -> list[dict[str, Any]]:
    found = ds.dataset(folder / "trades.parquet", format="parquet").to_table().to_pylist()
    return sorted(found, key=lambda row: row["_event_time"])


def test_parquet_is_read_by_pyarrow_while_it_grows(tmp_path: Path) -> None:
    tables = tables_of(tmp_path, ParquetTable("trades"), Table("own"))
    tables.attach("q", "c", has_run=False)
    batch = columns(Trade, (1, FIRST), (2, SECOND))
    assert tables.write("q", 0, {"c": 1}, {"sink0": [batch], "sink1": [batch]})
    assert tables.write("q", 1, {"c": 2}, {"sink0": [columns(Trade, (3, SECOND))]})
    assert tables.write("q", 2, {"c": 3}, {})
    first, second, third = parquet_rows(tmp_path)
    assert (first["symbol"], first["count"], first["fee"], first["side"]) == (
        "A",
        2**62,
        Decimal("-1.50"),
        "SELL",
    )
    assert (json.loads(first["tags"]), first["raw"], first["seen"]) == (["x", "y"], b"\x00\xff", FIRST.seen)
    assert (second["price"], second["good"], second["seen"]) == (-math.inf, True, None)
    assert (third["_event_time"], third["_origin_name"], third["_origin_path"]) == (3, "s", b"\x01")
    assert len(rows(tmp_path / "tables.sqlite", "own")) == 2
    tables.close()


def test_a_micro_batch_that_is_run_again_is_in_every_store_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tables_of(tmp_path, ParquetTable("trades"), Table("own"))
    tables.attach("q", "c", has_run=False)
    batch = {"sink0": [columns(Trade, (1, FIRST))], "sink1": [columns(Trade, (1, FIRST))]}

    def killed(*_: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tables.own, "write", killed)  # between Parquet's manifest and the flow's own file
        with pytest.raises(KeyboardInterrupt):
            tables.write("q", 0, {"c": 1}, batch)
    tables.close()
    again = tables_of(tmp_path, ParquetTable("trades"), Table("own"))
    again.attach("q", "c", has_run=False)
    assert again.write("q", 0, {"c": 1}, batch)
    assert not again.write("q", 0, {"c": 1}, batch)
    assert len(parquet_rows(tmp_path)) == len(rows(tmp_path / "tables.sqlite", "own")) == 1
    again.close()


def test_a_file_that_the_manifest_does_not_name_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tables_of(tmp_path, ParquetTable("trades"))
    tables.attach("q", "c", has_run=False)
    tables.write("q", 0, {"c": 1}, {"sink0": [columns(Trade, (1, FIRST))]})

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("geartrain_cloud.sinks.parquet._Dataset.save", killed)
        with pytest.raises(KeyboardInterrupt):
            tables.write("q", 1, {"c": 2}, {"sink0": [columns(Trade, (2, SECOND))]})
    assert len(list((tmp_path / "trades.parquet").glob("*.parquet"))) == 2
    again = tables_of(tmp_path, ParquetTable("trades"))
    again.attach("q", "c", has_run=True) if again.progress("q") is None else again.attach(
        "q", "c", has_run=False
    )
    assert [row["_event_time"] for row in parquet_rows(tmp_path)] == [1]


def test_a_folder_of_another_checkpoint_or_with_other_fields_is_refused(tmp_path: Path) -> None:
    tables = tables_of(tmp_path, ParquetTable("trades"))
    tables.attach("q", "c", has_run=False)
    tables.write("q", 0, {"c": 1}, {"sink0": [columns(Trade, (1, FIRST))]})
    store = ParquetTables(tmp_path)
    store.declare("sink0", ParquetTable("trades"), derive(Trade))
    with pytest.raises(TableError, match=r"its checkpoint is not there: .* name a new"):
        store.attach("q", "other", has_run=False)
    with pytest.raises(TableError, match="holds records with other fields"):
        store.declare("sink0", ParquetTable("trades"), derive(Pair))
    with pytest.raises(TableError, match="only added to, so there is no key"):
        store.declare("sink1", ParquetTable("last", key=("symbol",)), derive(Trade))


def test_options_of_a_sink_are_set_by_step(tmp_path: Path) -> None:
    flow = Flow("trades")
    flow.source("source", TestingSource[Trade](), out=Trade).sink("out", ParquetTable("trades"))
    moved = flow.graph().with_options({"out": {"folder": str(tmp_path / "else")}})
    tables = open_tables(moved, tmp_path / "tables.sqlite")
    assert (tmp_path / "else" / "trades.parquet").is_dir()
    tables.close()
    with pytest.raises(ConfigError, match="no option 'path'; options of ParquetTable: folder"):
        flow.graph().with_options({"out": {"path": "x"}})


# --- PostgreSQL ---


@pytest.fixture
def database(postgres: Postgres) -> str:
    """An empty database, dropped again."""
    return postgres.database("trades")


def fetch(dsn: str, statement: str) -> list[Any]:
    with psycopg.connect(dsn) as db:
        return db.execute(statement.encode()).fetchall()


def test_postgres_keeps_every_type_and_only_the_canonically_last_of_a_key(
    tmp_path: Path, database: str
) -> None:
    every, last = (
        PostgresTable("trades", dsn=database),
        PostgresTable("latest", key=("symbol",), dsn=database),
    )
    tables = tables_of(tmp_path, every, last)
    tables.attach("q", "c", has_run=False)
    batch = columns(Trade, (5, FIRST), (6, SECOND))
    assert tables.write("q", 0, {"c": 1}, {"sink0": [batch], "sink1": [batch]})
    older = columns(Trade, (4, Trade("A", 9.0)), (7, Trade("B", math.nan)))
    assert tables.write("q", 1, {"c": 2}, {"sink0": [older], "sink1": [older]})
    found = fetch(database, "SELECT * FROM trades ORDER BY _event_time")
    assert found[1] == (
        "A", 1.5, 2**62, Decimal("-1.50"), "SELL", ["x", "y"], b"\x00\xff", FIRST.seen, None,
        5, "s", 5, b"\x01",
    )  # fmt: skip
    assert [row[1] for row in found[2:3]] == [-math.inf]
    latest = fetch(database, "SELECT symbol, price, _event_time FROM latest ORDER BY symbol")
    assert latest[0] == ("A", 1.5, 5)
    assert (latest[1][2], math.isnan(latest[1][1])) == (7, True)
    tables.close()


def test_a_text_that_postgres_cannot_hold_is_a_dead_letter(tmp_path: Path, database: str) -> None:
    tables = tables_of(tmp_path, PostgresTable("trades", dsn=database))
    tables.attach("q", "c", has_run=False)
    tables.write("q", 0, {"c": 1}, {"sink0": [columns(Trade, (1, Trade("A\0B", 1.0)), (2, SECOND))]})
    assert fetch(database, "SELECT symbol FROM trades") == [("B",)]
    (letter,) = rows(tmp_path / "tables.sqlite", "dead_letters")
    assert (letter["step"], letter["reason"]) == (
        "sink0",
        "PostgreSQL cannot hold the NUL character in field symbol: take NUL out in a step before",
    )
    assert json.loads(bytes.fromhex(letter["raw"]))["symbol"] == "A\0B"
    assert tables.records()[DEAD_LETTERS] == 1
    tables.close()


def test_a_commit_that_was_not_heard_of_is_not_written_twice(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tables_of(tmp_path, PostgresTable("trades", dsn=database))
    tables.attach("q", "c", has_run=False)
    store = next(iter(tables._opened.values()))
    write = store._write  # type: ignore[attr-defined]
    calls: list[int] = []

    def breaks(db: Any, **arguments: Any) -> bool:
        is_new = bool(write(db, **arguments))
        calls.append(1)
        if len(calls) == 1:
            db.execute("COMMIT")  # it arrives, and then the connection breaks
            raise psycopg.OperationalError("the connection was lost")
        return is_new

    monkeypatch.setattr(store, "_write", breaks)
    tables.write("q", 0, {"c": 1}, {"sink0": [columns(Trade, (1, FIRST))]})
    assert len(calls) == 2
    assert fetch(database, "SELECT count(*) FROM trades") == [(1,)]
    tables.close()


def test_a_server_that_restarts_in_mid_batch_is_waited_for(
    tmp_path: Path, database: str, postgres: Postgres
) -> None:
    tables = tables_of(tmp_path, PostgresTable("trades", dsn=database))
    tables.attach("q", "c", has_run=False)
    tables.write("q", 0, {"c": 1}, {"sink0": [columns(Trade, (1, FIRST))]})
    postgres.stop("immediate")  # as kill -9 does
    back = threading.Timer(1.0, postgres.start)
    back.start()
    tables.write("q", 1, {"c": 2}, {"sink0": [columns(Trade, (2, SECOND))]})
    back.join()
    assert fetch(database, "SELECT _event_time FROM trades ORDER BY 1") == [(1,), (2,)]
    tables.close()


def test_mistakes_with_a_database_are_one_sentence(tmp_path: Path, database: str) -> None:
    with pytest.raises(TableError, match=r"its dsn holds a password, .* use PGPASSWORD"):
        tables_of(tmp_path / "1", PostgresTable("trades", dsn="host=x password=secret"))
    with pytest.raises(TableError, match="its dsn cannot be read"):
        tables_of(tmp_path / "2", PostgresTable("trades", dsn="nonsense"))
    with pytest.raises(
        TableError, match=r"cannot be used \(.* database \"nowhere\" does not exist.*\): start"
    ):
        tables_of(
            tmp_path / "3", PostgresTable("trades", dsn=database.replace("dbname=trades", "dbname=nowhere"))
        )
    with psycopg.connect(database) as db:
        db.execute("CREATE TABLE trades (x int)")
    with pytest.raises(TableError, match="has a table 'trades' with other columns"):
        tables_of(tmp_path / "4", PostgresTable("trades", dsn=database))


def test_a_database_that_nobody_answers_for_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("geartrain_cloud.sinks.postgres._AWAY_S_MAX", 1.2)  # three tries
    port = free_port()
    with pytest.raises(TableError) as raised:
        tables_of(tmp_path, PostgresTable("trades", dsn=f"host=127.0.0.1 port={port} dbname=trades"))
    said = str(raised.value)
    assert said.startswith(f"the database (host=127.0.0.1 port={port} dbname=trades) cannot be used (")
    assert "Connection refused" in said
    assert said.endswith("): start it, or correct the sink's dsn or PGHOST, PGPORT, PGUSER and PGDATABASE")
    assert "\n" not in said
    assert [one.getMessage().partition(":")[0] for one in caplog.records] == [
        "the database is away, trying for up to 1.2 s"
    ]


def test_a_database_that_lost_what_the_checkpoint_knows_is_refused(tmp_path: Path, database: str) -> None:
    tables = tables_of(tmp_path, PostgresTable("trades", dsn=database))
    with pytest.raises(TableError, match="the database trades holds nothing of it"):
        tables.attach("q", "c", has_run=True)
    tables.attach("q", "c", has_run=False)
    tables.write("q", 0, {"c": 1}, {"sink0": [columns(Trade, (1, FIRST))]})
    with pytest.raises(TableError, match="its checkpoint is not there"):
        tables.attach("q", "other", has_run=False)
    tables.close()


# --- console and MQTT ---


def test_the_console_shows_the_first_records_and_escapes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = tables_of(tmp_path, ConsoleSink("trades", rows_max=1), kind=Pair)
    tables.attach("q", "c", has_run=False)
    batch = columns(Pair, (1, Pair("\x1b[31mA\u202e", 1.0)), (2, Pair("B", 2.0)), (3, Pair("C", 3.0)))
    tables.write("q", 0, {"c": 1}, {"sink0": [batch]})
    assert capsys.readouterr().out.splitlines() == [
        'trades 1970-01-01T00:00:00.000001Z {"symbol": "\\u001b[31mA\\u202e", "value": 1.0}',
        "trades and 2 more in micro-batch 0",
    ]
    tables.close()


def test_messages_go_to_their_topics_and_can_be_known_again(tmp_path: Path) -> None:
    choice = choose_broker("auto", tmp_path)
    broker = subprocess.Popen(choice.command, stderr=subprocess.DEVNULL)
    got: list[tuple[str, Any]] = []
    ready = threading.Event()

    async def listen() -> None:
        wait = Wait("a connection to the broker")
        while True:
            try:
                async with AiomqttNet(choice.host, choice.port).connect("listener") as connection:
                    await connection.subscribe("alerts/#")
                    ready.set()
                    async for message in connection.incoming():
                        got.append((message.topic, json.loads(message.payload)))
                        if len(got) == 3:
                            return
            except NetError:
                wait.check()
                await asyncio.sleep(0.05)

    listener = threading.Thread(target=lambda: asyncio.run(listen()))
    listener.start()
    try:
        wait_for("the listener to have subscribed", ready.is_set)
        sink = MqttSink("alerts", topic="alerts/{symbol}", port=choice.port)
        tables = tables_of(tmp_path, sink, kind=Pair)
        tables.attach("q", "c", has_run=False)
        tables.write(
            "q", 0, {"c": 1}, {"sink0": [columns(Pair, (1, Pair("a/#", 1.0)), (2, Pair("", math.nan)))]}
        )
        tables.write("q", 1, {"c": 2}, {"sink0": [columns(Pair, (3, Pair("b", 2.0)))]})
        listener.join(WAIT_S)
    finally:
        broker.kill()
        broker.wait()
    assert got[0] == (
        "alerts/a__",
        {"symbol": "a/#", "value": 1.0, "_id": "s/1/01", "_time": "1970-01-01T00:00:00.000001Z"},
    )
    assert [(topic, message["value"]) for topic, message in got[1:]] == [
        ("alerts/_", None),
        ("alerts/b", 2.0),
    ]
    tables.close()


@pytest.mark.parametrize(
    ("topic", "why"),
    [("", "has no topic: set topic"), ("a/+", "must be a topic"), ("a/{no}", "names 'no', which is not")],
)
def test_a_topic_that_cannot_be_is_refused(tmp_path: Path, topic: str, why: str) -> None:
    with pytest.raises(TableError, match=why):
        tables_of(tmp_path, MqttSink("alerts", topic=topic))
