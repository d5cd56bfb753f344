"""What a store will refuse is known before anything is read, by table, field or option."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import psycopg
import pytest

from geartrain.declarations.limits import RESERVED_NAMES
from geartrain.declarations.sink import Sink, Table
from geartrain.schema import Field, FieldType, Schema
from geartrain.sinks import (
    ConsoleSink,
    DeltaTable,
    KafkaSink,
    MqttSink,
    ParquetTable,
    PostgresTable,
    WebhookSink,
)
from geartrain_cloud.sinks.layout import SYSTEM_TABLES, Layout, TableError
from geartrain_cloud.sinks.limits import check_postgres
from geartrain_cloud.sinks.opening import SinkPlace, check_places
from geartrain_cloud.sinks.postgres_columns import create_of, insert_of
from tests.postgres_server import Postgres


def schema_of(*fields: str, kind: FieldType = FieldType.INT64) -> Schema:
    return Schema("Box", tuple(Field(name, kind) for name in fields))


def check(sink: Sink, *fields: str, in_postgres: bool = False, kind: FieldType = FieldType.INT64) -> None:
    check_places("boxes", [SinkPlace("out", sink, schema_of(*fields, kind=kind))], in_postgres=in_postgres)


MANY = tuple(f"f{number}" for number in range(1_596))
LONG = "n" * 64
KAFKA: dict[str, Any] = {"brokers": "kafka-1:9092", "topic": "boxes"}


@pytest.mark.parametrize(
    ("sink", "fields", "in_postgres", "says"),
    [
        (Table("boxes"), ("xmin", "ymin"), True, "table .boxes. has a field .xmin., .* rename .* of Box, or"),
        (PostgresTable("boxes"), ("a", "ctid"), False, "has a field 'ctid', .* rename the field of Box$"),
        (Table(LONG), ("a",), True, "longer than the 63 bytes that PostgreSQL keeps: give the sink a"),
        (Table("boxes"), ("a", "ü" * 32), True, "longer than the 63 bytes .*: give the field a shorter"),
        (Table("boxes"), MANY, True, "has 1,596 fields, and PostgreSQL holds 1,595"),
        (
            Table("boxes"),
            MANY[:1_014],
            True,
            r"takes at least 8,161 bytes, and PostgreSQL holds 8,160 of a row: make several tables, .* or le",
        ),
        (PostgresTable("boxes", key=MANY[:33]), MANY[:33], False, "has 33 fields, and PostgreSQL takes 32"),
        (Table("boxes", key=("a", "a")), ("a",), False, "its key names 'a' more than once"),
        (Table("boxes"), (*MANY, *(f"g{n}" for n in range(401))), False, "has 1,997 fields, .* holds 1,996"),
        (Table("sqlite_boxes"), ("a",), False, "SQLite reserves names"),
        (Table("late"), ("a",), False, "belongs to Geartrain"),
        (Table("boxes"), ("a", "A"), False, "differ only in upper and lower case"),
        (DeltaTable("boxes"), ("a", "A"), False, "differ only in upper and lower case"),
        (DeltaTable("n" * 250), ("a",), False, "longer than a folder's name may be"),
        (ParquetTable("n" * 250), ("a",), False, "longer than a folder's name may be"),
        (ParquetTable("boxes", key=("a",)), ("a",), False, "only added to, so there is no key"),
        (DeltaTable("boxes", key=("a",)), ("a",), False, "only added to, so there is no key"),
    ],
)
def test_what_a_store_will_refuse_is_said(
    sink: Sink, fields: tuple[str, ...], in_postgres: bool, says: str
) -> None:
    with pytest.raises(TableError, match=says):
        check(sink, *fields, in_postgres=in_postgres)


@pytest.mark.parametrize(
    ("sink", "says"),
    [
        (PostgresTable("t", dsn="host=db password=open"), "sink 'out': its dsn holds a password"),
        (PostgresTable("t", dsn="postgresql://me:open@db/x"), "sink 'out': its dsn holds a password"),
        (PostgresTable("t", dsn="nonsense"), "sink 'out': its dsn cannot be read"),
        (KafkaSink("k", topic="t"), r"sink 'out' has no brokers: set brokers .*--set out\.brokers=…"),
        (KafkaSink("k", brokers="b:1"), "sink 'out' has no topic: set topic"),
        (KafkaSink("k", brokers="b:0", topic="t"), "brokers = 'b:0': 'b:0' is no address of a broker: write"),
        (KafkaSink("k", brokers="b:1,,c:1", topic="t"), "'' is no address of a broker"),
        (KafkaSink("k", brokers="b:1", topic="a b"), "topic = 'a b' cannot be a topic of Kafka"),
        (KafkaSink("k", brokers="b:1", topic="t", marks=".."), "marks = '..' cannot be a topic of Kafka"),
        (KafkaSink("k", **KAFKA, marks="boxes"), "marks cannot be the topic itself"),
        (KafkaSink("k", **KAFKA, properties={"acks": "0"}), "acks is for the sink to say: leave it out"),
        (KafkaSink("k", **KAFKA, properties={"sasl.password": "x"}), "properties hold sasl.password"),
        (
            KafkaSink("k", **KAFKA, properties={"linger.ms": "secret:x"}),
            "properties: linger.ms is no secret: write its value",
        ),
        (KafkaSink("k", **KAFKA, properties_file="/no/file"), "properties_file /no/file cannot be read"),
        (
            KafkaSink("k", **KAFKA, properties={"linger.ms": "soon", "sasl.password": "secret:pw"}),
            r"sink 'out': properties: linger\.ms: Kafka at kafka-1:9092 cannot be asked .*: correct prop",
        ),
        (MqttSink("m"), "sink 'out' has no topic: set topic"),
        (MqttSink("m", topic="a", host=""), "sink 'out' has no host: set host"),
        (MqttSink("m", topic="a", host="a b"), "host = 'a b' must be the name or the address of a broker"),
        (MqttSink("m", topic="a/+"), "topic = 'a/\\+' must be a topic such as"),
        (MqttSink("m", topic="a/{no}"), "names 'no', which is not a field; its fields: a"),
        (MqttSink("m", topic="a", ca="ca.pem"), "steps.out.ca is for TLS: write tls = true beside it"),
        (MqttSink("m", topic="a", tls=True, ca="/no.pem"), "steps.out.ca: /no.pem cannot be read"),
        (WebhookSink("w"), "sink 'out' has no url: set url"),
        (WebhookSink("w", url="hooks"), "its url is no address, such as https://hooks.example/alerts"),
        (WebhookSink("w", url="secret:a/b"), "the name of a secret has 1 to 64"),
        (WebhookSink("w", url="http://a", ca="x"), "ca, certificate and private_key are for a url with htt"),
        (WebhookSink("w", url="https://a", certificate="x"), "steps.out.certificate and .* belong together"),
        (WebhookSink("w", url="http://a", headers={"Token": "x"}), "headers hold Token: write secret:NAME"),
        (WebhookSink("w", url="http://a", headers_file="/no"), "headers_file: /no cannot be read"),
    ],
)
def test_options_that_cannot_be_are_said_before_anything_connects(sink: Sink, says: str) -> None:
    with pytest.raises(TableError, match=says):
        check(sink, "a")


@pytest.mark.parametrize(
    ("sink", "fields", "in_postgres"),
    [
        (Table("boxes"), ("xmin", "ctid"), False),
        (Table("boxes"), ("Xmin", "oid", "user", "select", *MANY[:1_000]), True),
        (Table(LONG), (LONG,), False),
        (ParquetTable("boxes"), ("xmin", "a", "A"), True),
        (PostgresTable("boxes", dsn="host=db password=secret:pw"), ("a",), False),
        (PostgresTable("boxes", dsn="postgresql://me:secret%3Apw@db/x"), ("a",), False),
        (KafkaSink("k", brokers="b, SSL://[::1]:9093,10.0.0.1", topic="t"), ("a",), False),
        (KafkaSink("k", **KAFKA, properties={"sasl.password": "secret:pw"}), ("a",), False),
        (MqttSink("m", topic="boxes/{a}", host="broker.example"), ("a",), False),
        (WebhookSink("w", url="secret:address", headers={"Token": "secret:t"}), ("a",), False),
        (ConsoleSink("c"), ("a",), False),
    ],
)
def test_what_a_store_holds_passes(sink: Sink, fields: tuple[str, ...], in_postgres: bool) -> None:
    check(sink, *fields, in_postgres=in_postgres)


def test_the_names_that_are_reserved_are_those_of_the_tables_of_every_flow() -> None:
    assert {table.name for table in SYSTEM_TABLES.values()} == RESERVED_NAMES


@pytest.mark.parametrize(("count", "passes"), [(1_013, True), (1_014, False)])
def test_postgres_refuses_the_rows_that_the_check_refuses(
    postgres: Postgres, count: int, passes: bool
) -> None:
    layout = Layout("out", PostgresTable("wide"), schema_of(*MANY[:count]))
    row: list[Any] = [1] * count + [1, "", 1, b""]
    with psycopg.connect(postgres.database("wide")) as db:
        db.execute(create_of(layout))
        with nullcontext() if passes else pytest.raises(psycopg.Error, match="row is too big"):
            db.execute(insert_of(layout), row)
    with nullcontext() if passes else pytest.raises(TableError, match="takes at least 8,161 bytes"):
        check_postgres(layout)
