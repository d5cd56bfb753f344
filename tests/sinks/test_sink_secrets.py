"""Secrets of sinks in the data centre: read right before they are used, and nowhere kept or said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import psycopg
import pytest

from geartrain import Flow
from geartrain.control.sealed import SPARK_PROCESS
from geartrain.declarations.options import Text
from geartrain.errors import ConfigError
from geartrain.schema import derive
from geartrain.sinks import KafkaSink, PostgresTable, WebhookSink
from geartrain.testing import TestingSource
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.platform.places import PlatformPlaces
from geartrain_cloud.sinks import kafka, webhook
from geartrain_cloud.sinks.kafka import KafkaTopics
from geartrain_cloud.sinks.layout import AwayError, TableError
from geartrain_cloud.sinks.opening import SinkPlace, open_places
from geartrain_cloud.sinks.postgres import PostgresTables
from geartrain_cloud.sinks.secrets import NONE, SinkSecrets
from geartrain_cloud.sinks.sqlite import SqliteTables
from geartrain_cloud.sinks.store import Tables
from geartrain_cloud.sinks.tables import rows
from tests.postgres_server import Postgres
from tests.sinks.hooked import Hooks, receiving
from tests.sinks.sasl_listener import listening
from tests.sinks.test_stores import Pair, columns
from tests.waiting import WAIT_S

VALUE, OTHER = "planted-6Hy1-value", "planted-2Pd9-other"
REFUSED = "refuses the user: correct sasl.username, sasl.password or sasl.mechanism"
SCHEMA = derive(Pair)


@pytest.fixture
def places(tmp_path: Path) -> PlatformPlaces:
    return PlatformPlaces(tmp_path / "state")


@pytest.fixture
def secrets(places: PlatformPlaces) -> SinkSecrets:
    """As a group of the Spark host finds them."""
    return SinkSecrets(HostPlaces(places.spark).group("shared").secrets / "heat")


def put(places: PlatformPlaces, value: str, version: int = 1, name: str = "hook") -> None:
    """As control brings one."""
    assert not places.secrets_of(SPARK_PROCESS).put("heat", name, version, value.encode())


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    with receiving() as found:
        yield found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "_PAUSE_S", 0.005)


def opened(folder: Path, sink: WebhookSink, secrets: SinkSecrets) -> Tables:
    own = SqliteTables(folder / "tables.sqlite")
    tables = open_places("heat.1", [SinkPlace("hook", sink, SCHEMA)], own, folder, secrets=secrets)
    tables.attach("q", "c", has_run=False)
    return tables


def write(tables: Tables, count: int) -> None:
    tables.write("q", count, {"x": count + 1}, {"hook": [columns(Pair, (count, Pair("a", float(count))))]})


def hook_to(hooks: Hooks, reference: str = "secret:hook") -> WebhookSink:
    return WebhookSink("alerts", url=hooks.url, headers={"Authorization": reference, "X-Site": "north"})


def test_a_header_is_waited_for_by_name_and_a_new_value_counts_from_the_next_request_on(
    hooks: Hooks, tmp_path: Path, places: PlatformPlaces, secrets: SinkSecrets
) -> None:
    tables = opened(tmp_path, hook_to(hooks), secrets)
    with pytest.raises(AwayError, match="sink 'hook' waits for secret hook: set it with gear secret set"):
        write(tables, 0)
    assert hooks.asked == []
    put(places, VALUE)
    write(tables, 0)
    put(places, OTHER, 2)
    write(tables, 1)
    sent = [headers["Authorization"] for _, headers, _ in hooks.asked]
    assert sent == [VALUE, OTHER]
    assert {headers["X-Site"] for _, headers, _ in hooks.asked} == {"north"}
    tables.close()
    for path in tmp_path.rglob("*"):
        if path.is_file() and places.spark not in path.parents:
            assert VALUE.encode() not in path.read_bytes()


def test_an_address_that_is_a_secret_is_waited_for_and_never_said(
    hooks: Hooks,
    tmp_path: Path,
    places: PlatformPlaces,
    secrets: SinkSecrets,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = WebhookSink("alerts", url="secret:address")
    tables = opened(tmp_path, sink, secrets)
    with pytest.raises(AwayError, match="sink 'hook' waits for secret address: set it with gear secret set"):
        write(tables, 0)
    for version, (value, why) in enumerate(
        ((VALUE, "is no address"), (f"http://me:{VALUE}@127.0.0.1/", "holds a name or a password")), 1
    ):
        put(places, value, version, "address")
        with pytest.raises(AwayError, match=f"waits for secret address, whose value {why}") as refused:
            write(tables, 0)
        assert VALUE not in str(refused.value)
    monkeypatch.setattr(webhook, "AWAY_S_MAX", 0.0)
    put(places, f"http://127.0.0.1:1/{VALUE}", 3, "address")  # where nobody listens
    with pytest.raises(AwayError, match="secret address does not answer") as refused:
        write(tables, 0)
    assert not any(part in str(refused.value) for part in (VALUE, "127.0.0.1"))
    monkeypatch.setattr(webhook, "AWAY_S_MAX", 60.0)
    put(places, f"{hooks.url}&{VALUE}", 4, "address")
    hooks.judge = lambda body: (422, f"{VALUE} is full, says 127.0.0.1") if body["value"] == 1.0 else None
    write(tables, 0)
    write(tables, 1)
    tables.close()
    assert hooks.values == [0.0]
    (letter,) = rows(tmp_path / "tables.sqlite", "dead_letters")
    assert letter["reason"] == "secret address answers 422 (… is full, says …)"
    with pytest.raises(TableError, match="the name of a secret has 1 to 64"):
        opened(tmp_path, WebhookSink("alerts", url="secret:a/b"), NONE)


def test_an_address_that_is_a_secret_is_set_from_outside_as_any_other() -> None:
    flow = Flow("heat")
    readings = flow.source("readings", TestingSource(items=[]), out=Pair)
    readings.sink("hook", WebhookSink("alerts"))
    graph = flow.graph().with_options({"hook": {"url": Text("secret:address")}})
    assert graph["hook"].operator.table.url == "secret:address"  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="only an option of a source, or a sink's url, can be a secret"):
        flow.graph().with_options({"hook": {"ca": Text("secret:address")}})


def test_what_a_receiver_says_of_a_value_is_not_said_on(
    hooks: Hooks, tmp_path: Path, places: PlatformPlaces, secrets: SinkSecrets
) -> None:
    put(places, VALUE)
    hooks.judge = lambda body: (422, f"bad token {VALUE}")
    tables = opened(tmp_path, hook_to(hooks), secrets)
    write(tables, 0)
    tables.close()
    (letter,) = rows(tmp_path / "tables.sqlite", "dead_letters")
    assert "bad token …" in letter["reason"]
    assert VALUE not in str(letter)


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (b"", 0o600, "holds no value"),
        (b"\n", 0o600, "holds no value"),
        (b"\xff\xfe", 0o600, "is no text"),
        (b"secret:other", 0o600, "holds no value"),
        (b"x" * 70_000, 0o600, "holds no value"),
        (VALUE.encode(), 0o644, "others may read its file"),
    ],
)
def test_a_file_that_is_no_secret_is_not_taken_nor_told(
    places: PlatformPlaces, secrets: SinkSecrets, content: bytes, mode: int, said: str
) -> None:
    path = places.spark / "secrets" / "heat" / "hook"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(AwayError, match=said) as refused:
        secrets.value("alerts", "hook")
    assert VALUE not in str(refused.value)
    path.unlink()
    path.symlink_to(places.folder / "elsewhere")
    with pytest.raises(AwayError, match="cannot be read"):
        secrets.value("alerts", "hook")


def test_where_nobody_brings_secrets_it_says_so(hooks: Hooks, tmp_path: Path) -> None:
    tables = opened(tmp_path, hook_to(hooks), NONE)
    with pytest.raises(TableError, match="there are none here: a platform brings them") as refused:
        write(tables, 0)
    assert not isinstance(refused.value, AwayError)
    tables.close()


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".x", "x" * 65])
def test_a_name_that_cannot_be_one_is_refused_at_the_start(hooks: Hooks, tmp_path: Path, name: str) -> None:
    with pytest.raises(TableError, match="the name of a secret has 1 to 64"):
        opened(tmp_path, hook_to(hooks, f"secret:{name}"), NONE)


def test_kafka_gets_the_value_and_its_place_keeps_the_reference(
    places: PlatformPlaces, secrets: SinkSecrets
) -> None:
    sink = KafkaSink(
        "out",
        brokers="127.0.0.1:1",
        topic="t",
        properties={"sasl.password": "secret:pw", "sasl.username": "secret:user", "linger.ms": "5"},
    )
    topics = KafkaTopics("heat.1", secrets)
    topics.declare("out", sink, SCHEMA)
    (way,) = topics._places()
    assert dict(way.properties)["sasl.password"] == "secret:pw"
    with pytest.raises(AwayError, match="sink 'out' waits for secret pw"):
        topics._filled("out", way)
    put(places, "ann", name="user")
    put(places, VALUE, name="pw")
    assert topics._filled("out", way) == {
        "sasl.password": VALUE,
        "sasl.username": "ann",
        "linger.ms": "5",
    }
    put(places, OTHER, 2, name="pw")
    assert topics._filled("out", way)["sasl.password"] == OTHER
    for properties in ({"linger.ms": "secret:x"}, {"sasl.password": VALUE}):
        with pytest.raises(TableError, match=r"is no secret|write it to a file") as refused:
            topics.declare("other", KafkaSink("o", brokers="b:1", topic="t", properties=properties), SCHEMA)
        assert VALUE not in str(refused.value)


def test_postgres_connects_with_the_value_and_names_the_reference(
    places: PlatformPlaces, secrets: SinkSecrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, object]] = []

    def connect(dsn: str, **given: object) -> None:
        asked.append({"dsn": dsn, **given})
        raise psycopg.errors.InvalidPassword(f"no: {given.get('password', '')[:0]}")  # type: ignore[index]

    monkeypatch.setattr(psycopg, "connect", connect)
    dsn = "host=127.0.0.1 user=x password=secret:pw"
    tables = PostgresTables("heat.1", secrets)
    with pytest.raises(AwayError, match="sink 'out' waits for secret pw"):
        tables.declare("out", PostgresTable("out", dsn=dsn), SCHEMA)
    put(places, VALUE, name="pw")
    with pytest.raises(TableError) as refused:
        tables.declare("out", PostgresTable("out", dsn=dsn), SCHEMA)
    assert VALUE not in str(refused.value)
    assert [(one["dsn"], one["password"]) for one in asked] == [(dsn, VALUE)]
    with pytest.raises(TableError, match="write password=secret:NAME"):
        tables.declare("out", PostgresTable("out", dsn=f"host=x password={VALUE}"), SCHEMA)


def test_a_postgresql_that_asks_for_a_password_gets_the_value(
    postgres: Postgres, places: PlatformPlaces, secrets: SinkSecrets
) -> None:
    owner = postgres.database("geartrain_asks")
    dsn = postgres.asks("asker", VALUE).replace("dbname=postgres", "dbname=geartrain_asks")
    with psycopg.connect(owner, autocommit=True) as db:
        db.execute("GRANT CREATE ON SCHEMA public TO asker")
    tables = PostgresTables("heat.1", secrets)
    put(places, OTHER, name="pw")
    sink = PostgresTable("asked", dsn=f"{dsn} password=secret:pw")
    with pytest.raises(TableError, match="password authentication failed") as refused:
        tables.declare("out", sink, SCHEMA)
    assert OTHER not in str(refused.value)
    put(places, VALUE, 2, name="pw")
    tables.declare("out", sink, SCHEMA)
    tables.attach("q", "c", has_run=False)
    tables.write("q", 0, {"x": 1}, {"out": [columns(Pair, (0, Pair("a", 1.0)))]})
    postgres.asks("asker", OTHER)
    put(places, OTHER, 3, name="pw")
    with psycopg.connect(owner, autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'asker'")
    tables.write("q", 1, {"x": 2}, {"out": [columns(Pair, (1, Pair("a", 2.0)))]})
    tables.close()
    with psycopg.connect(owner) as db:
        assert db.execute("SELECT value FROM asked ORDER BY value").fetchall() == [(1.0,), (2.0,)]
    assert VALUE not in (postgres.folder / "log").read_text()


def test_kafka_is_shown_the_value_and_a_new_one_once_it_has_refused_it_and_that_is_said(
    places: PlatformPlaces, secrets: SinkSecrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said as soon as a broker has refused it, and not when the time for an answer is over."""
    monkeypatch.setattr(kafka, "_AWAY_S_MAX", WAIT_S)
    with listening() as broker:
        asked = {"sasl.username": "secret:user", "sasl.password": "secret:pw"}
        plain = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        sink = KafkaSink("out", brokers=broker.brokers, topic="t", properties=asked | plain)
        topics = KafkaTopics("heat.1", secrets)
        topics.declare("out", sink, SCHEMA)
        put(places, "ann", name="user")
        for version, value in enumerate((VALUE, OTHER), 1):
            put(places, value, version, name="pw")
            with pytest.raises(TableError, match="refuses") as refused:
                topics.attach("q", "c", has_run=False)
            said = str(refused.value)
            assert VALUE not in said
            assert OTHER not in said
            assert broker.shown[-1] == ("ann", value)
            assert said == f"Kafka at {broker.brokers} {REFUSED}"
        topics.close()


def test_each_client_of_kafka_whose_user_is_refused_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that looks for the topic of marks, the one that reads it, and the one that makes it."""
    monkeypatch.setattr(kafka, "_AWAY_S_MAX", WAIT_S)
    plain = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    with listening() as broker:
        way = kafka.Way(broker.brokers, "marks", ())
        shown = {**plain, "sasl.username": "ann", "sasl.password": VALUE}
        cluster = kafka.Cluster(way, "heat.1", lambda: shown)
        lacking = kafka.Cluster(way, "heat.1", lambda: shown)
        monkeypatch.setattr(lacking, "_has_marks", lambda: False)
        for ask in (partial(cluster.mark, "q"), partial(cluster._read_mark, "q"), lacking._make_marks):
            cluster._is_refused = False
            with pytest.raises(TableError, match="refuses") as refused:
                ask()
            assert str(refused.value) == f"Kafka at {broker.brokers} {REFUSED}"


def test_no_sink_as_data_holds_a_value(hooks: Hooks, places: PlatformPlaces, secrets: SinkSecrets) -> None:
    put(places, VALUE)
    sink = hook_to(hooks)
    assert VALUE not in str(asdict(sink))
    assert secrets.value("hook", "hook") == VALUE
