"""A flow's own tables in a schema of PostgreSQL: as those of a file, and on a real server."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Annotated, Any

import psycopg
import pytest

from geartrain import Digits, Record, Table
from geartrain.graph.graph import DEAD_LETTERS
from geartrain.schema import ColumnBatch, RowCodec, Schema, derive
from geartrain.sinks import PostgresTable
from geartrain_cloud.sinks.app_tables import AppTables, schema_name
from geartrain_cloud.sinks.layout import AwayError, TableError
from geartrain_cloud.sinks.opening import SinkPlace, open_places
from geartrain_cloud.sinks.own import OwnTables, SqliteReader, TablesReader
from geartrain_cloud.sinks.postgres_reading import PostgresReader
from geartrain_cloud.sinks.postgres_schema import PostgresSchema
from geartrain_cloud.sinks.sqlite import SqliteTables
from tests.postgres_server import Postgres
from tests.spark.flows import Reading

BUSY_S = 0.1
SCHEMA = derive(Reading)


class Part(Record):
    """A nested one."""

    name: str
    weights: list[float]


class Every(Record):
    """A field of each kind."""

    text: str
    number: int
    share: float
    yes: bool
    raw: bytes
    at: datetime
    price: Annotated[Decimal, Digits(12, 2)]
    part: Part
    maybe: int | None


@pytest.fixture
def dsn(postgres: Postgres) -> str:
    return postgres.database("geartrain_schema")


def batch(values: list[tuple[str, float]], first: int = 0, split: str = "a") -> ColumnBatch:
    columns: list[list[Any]] = [[sensor for sensor, _ in values], [value for _, value in values]]
    return ColumnBatch(columns, [*range(first, first + len(values))], [split] * len(values), [
        *range(first, first + len(values))
    ])  # fmt: skip


def opened(own: OwnTables) -> OwnTables:
    own.declare("each", Table("each"), SCHEMA)
    own.declare("latest", Table("latest", key=("sensor",)), SCHEMA)
    own.attach("hosted", "c", has_run=False)
    return own


def both(tmp_path: Path, dsn: str) -> list[tuple[OwnTables, TablesReader]]:
    file = tmp_path / "t.sqlite"
    return [
        (opened(SqliteTables(file)), SqliteReader(file)),
        (opened(PostgresSchema(dsn, "heat_1_run_1", "me", BUSY_S)), PostgresReader(dsn, "heat_1_run_1")),
    ]


def test_a_schema_holds_and_says_what_a_file_does(tmp_path: Path, dsn: str) -> None:
    said: list[tuple[Any, ...]] = []
    for own, reader in both(tmp_path, dsn):
        late = batch([("b", 9.0)], first=1)
        rows = {
            "each": [batch([("b", 1.0), ("a", -0.0), ("b", float("nan"))])],
            "latest": [batch([("b", 5.0)], 7)],
        }
        assert own.write("hosted", 0, {"0": 3}, rows, 3)
        assert not own.write("hosted", 0, {"0": 3}, rows, 3)  # run again after a crash
        assert own.write(
            "hosted", 1, {"0": 4}, {"latest": [late]}, 1
        )  # canonically earlier than what is held
        with pytest.raises(TableError, match="other positions"):
            own.write("hosted", 1, {"0": 5}, {})
        with pytest.raises(TableError, match="brings micro-batch 7"):
            own.write("hosted", 7, {"0": 9}, {})
        first, place = reader.rows_after("each", 0, 2)
        said.append(
            (
                reader.names(),
                reader.columns("each"),
                reader.row_count("each"),
                reader.page("each", 0, 10),
                reader.page("each", 1, 1),
                reader.page("latest", 0, 10),
                first,
                reader.rows_after("each", place, 5)[0],
                reader.rows_after("each", None, 1)[0],
                own.positions("hosted"),
                own.progress("hosted"),
                own.records(),
            )
        )
        with pytest.raises(TableError, match="has a key"):
            reader.rows_after("latest", 0, 1)
        with pytest.raises(TableError, match="there is no table 'none'"):
            reader.columns("none")
        own.close()
    assert said[0] == said[1]
    assert said[0][5] == [{"sensor": "b", "value": 5.0}]


def test_values_of_every_type_are_read_as_from_a_file(tmp_path: Path, dsn: str) -> None:
    schema: Schema = derive(Every)
    moment = datetime(2026, 5, 4, 3, 2, 1, 7, UTC)
    values = [
        Every("é😀", -(2**63), 0.1, True, b"\0\xff", moment, Decimal("1.50"), Part("p", [1.0, 2.5]), None),
        Every(
            "",
            2**63 - 1,
            -1e-300,
            False,
            b"",
            moment - timedelta(days=20_000),
            Decimal("-0.01"),
            Part("", []),
            4,
        ),
    ]
    shown = []
    for own, reader in both(tmp_path, dsn):
        own.declare("every", Table("every"), schema)
        columns = [list(column) for column in RowCodec(Every).to_columns(values)]
        own.write("hosted", 0, {"0": 2}, {"every": [ColumnBatch(columns, [1, 2], ["a", "a"], [1, 2])]})
        shown.append(reader.page("every", 0, 10))
        own.close()
    assert shown[0] == shown[1]
    assert shown[0][1]["at"] == "2026-05-04T03:02:01.000007Z"


def test_a_lock_is_waited_for_no_longer_than_told_and_nothing_is_written_twice(dsn: str) -> None:
    own = opened(PostgresSchema(dsn, "heat_1_run_1", "me", BUSY_S))
    reader = PostgresReader(dsn, "heat_1_run_1")
    rows = {"each": [batch([("a", 1.0)])]}
    with psycopg.connect(dsn) as other:
        other.execute("LOCK TABLE heat_1_run_1.each")
        began = time.monotonic()
        with pytest.raises(AwayError, match="is in use by another program"):
            own.write("hosted", 0, {"0": 1}, rows)
        assert time.monotonic() - began < 2.0
        assert own.positions("hosted") == {}
    assert own.write("hosted", 0, {"0": 1}, rows)
    assert reader.row_count("each") == 1
    own.close()


def test_a_server_that_is_killed_holds_a_micro_batch_once(postgres: Postgres, dsn: str) -> None:
    own = opened(PostgresSchema(dsn, "heat_1_run_1", "me", BUSY_S))
    own.write("hosted", 0, {"0": 1}, {"each": [batch([("a", 1.0)])]})
    postgres.stop("immediate")
    with pytest.raises(AwayError, match="cannot be reached"):
        own.write("hosted", 1, {"0": 2}, {"each": [batch([("b", 2.0)], 1)]})
    assert own.positions("hosted") == {"0": 1}  # answered without the server
    postgres.start()
    assert own.write("hosted", 1, {"0": 2}, {"each": [batch([("b", 2.0)], 1)]})
    assert PostgresReader(dsn, "heat_1_run_1").row_count("each") == 2
    own.close()


def test_a_commit_that_broke_is_found_by_the_next_attempt(dsn: str) -> None:
    """Another connection of the same writer has committed it, of which this one never heard."""
    own = opened(PostgresSchema(dsn, "heat_1_run_1", "me", BUSY_S))
    unheard = opened(PostgresSchema(dsn, "heat_1_run_1", "me", BUSY_S))
    rows = {"each": [batch([("a", 1.0)])]}
    assert unheard.write("hosted", 0, {"0": 1}, rows)
    assert own.positions("hosted") == {}
    assert not own.write("hosted", 0, {"0": 1}, rows)
    assert own.positions("hosted") == {"0": 1}
    assert own.records()["each"] == 1
    assert own.write("hosted", 1, {"0": 2}, {"each": [batch([("b", 2.0)], 1)]})
    assert PostgresReader(dsn, "heat_1_run_1").row_count("each") == 2
    own.close()
    unheard.close()


def test_what_postgresql_cannot_hold_is_a_dead_letter(tmp_path: Path, dsn: str) -> None:
    own = PostgresSchema(dsn, "heat_1_run_1", "me", BUSY_S)
    place = SinkPlace("each", Table("each"), SCHEMA)
    tables = open_places("heat.1", [place], own, tmp_path)
    tables.attach("hosted", "c", has_run=False)
    rows = {"each": [batch([("good", 1.0), ("b\0d", 2.0)]), batch([("also bad", 3.0)], 5, split="x\0y")]}
    letters = ColumnBatch([["step"], ["user_error"], ["why\0not"], [b"\0"]], [1], ["a\0b"], [9])
    assert tables.write("hosted", 0, {"0": 1}, rows | {DEAD_LETTERS: [letters]})
    reader = PostgresReader(dsn, "heat_1_run_1")
    assert reader.page("each", 0, 10) == [{"sensor": "good", "value": 1.0}]
    reasons = sorted((row["reason"], row["code"]) for row in reader.page("dead_letters", 0, 10))
    assert reasons == [
        (
            "PostgreSQL cannot hold the NUL character in field sensor: take NUL out in a step before",
            "not_storable",
        ),
        ("PostgreSQL cannot hold the NUL character in the name of its split", "not_storable"),
        ("why\N{REPLACEMENT CHARACTER}not", "user_error"),
    ]
    tables.close()


def test_a_key_that_no_index_takes_is_a_dead_letter(tmp_path: Path, dsn: str) -> None:
    own, rng = PostgresSchema(dsn, "heat_1_run_1", "me", BUSY_S), Random(1)
    places = [
        SinkPlace("each", Table("each", key=("sensor",)), SCHEMA),
        SinkPlace("beside", PostgresTable("beside", key=("sensor",), dsn=dsn), SCHEMA),
    ]
    tables = open_places("heat.1", places, own, tmp_path)
    tables.attach("hosted", "c", has_run=False)
    texts = [
        "".join(chr(rng.randrange(33, 0x3000)) for _ in range(size)) for size in (850, 1_000, 20_000)
    ] + ["ok"]
    rows = batch([(text, 1.0) for text in texts])
    # A result of a window begins with its key, which may be as long.
    letters = ColumnBatch(
        [["step"] * 3, ["user_error"] * 3, ["why"] * 3, [b""] * 3],
        [1, 2, 2],
        ["a" * 4_000, "step", "step"],
        [1, 0, 0],
        [b"", rng.randbytes(5_000), rng.randbytes(5_000)],
    )
    assert tables.write("hosted", 0, {"0": 1}, {"each": [rows], "beside": [rows], DEAD_LETTERS: [letters]})
    reader = PostgresReader(dsn, "heat_1_run_1")
    assert {row["sensor"] for row in reader.page("each", 0, 10)} == {texts[0], "ok"}
    with psycopg.connect(dsn) as db:
        assert {row[0] for row in db.execute("SELECT sensor FROM beside").fetchall()} == {texts[0], "ok"}
    found = reader.page("dead_letters", 0, 10)
    assert sorted(row["step"] for row in found) == ["beside"] * 2 + ["each"] * 2 + ["step"] * 3
    reasons = {row["reason"] for row in found if row["code"] == "too_large"}
    size = len(texts[1].encode()) + 16
    assert (
        f"its key (sensor) takes {size} bytes, and a key of PostgreSQL may take 2600: key the table by "
        "shorter fields" in reasons
    )
    assert len(reasons) == 2
    tables.close()


def test_a_schema_of_a_former_layout_is_refused_and_left_as_it_is(dsn: str) -> None:
    opened(PostgresSchema(dsn, "heat_1_run_1", "me", BUSY_S)).close()
    for former in ("1", "2", "3"):
        with psycopg.connect(dsn, options="-csearch_path=heat_1_run_1") as file:
            file.execute("UPDATE _owner SET layout = %s", (former,))
        with pytest.raises(TableError, match="was written by another program, or by an early version"):
            PostgresSchema(dsn, "heat_1_run_1", "me", BUSY_S)
        with psycopg.connect(dsn, options="-csearch_path=heat_1_run_1") as file:
            assert file.execute("SELECT layout FROM _owner").fetchone() == (former,)


def test_a_schema_of_somebody_else_is_neither_written_nor_removed(tmp_path: Path, dsn: str) -> None:
    with psycopg.connect(dsn) as other:
        other.execute("CREATE SCHEMA stone_1_run_1")
        other.execute("CREATE TABLE stone_1_run_1.precious (a text)")
    opened(PostgresSchema(dsn, "heat_1_run_1", "another platform", BUSY_S)).close()
    for instance in ("stone.1", "heat.1"):
        app = AppTables(tmp_path / instance / "tables.sqlite", dsn)
        with pytest.raises(TableError, match="was made by somebody else: give this platform a database"):
            app.open(instance, 1, BUSY_S)
        with pytest.raises(TableError, match="was made by somebody else"):
            app.remove(1)
    with psycopg.connect(dsn) as other:
        assert other.execute("SELECT count(*) FROM stone_1_run_1.precious").fetchone() == (0,)


def test_tables_stay_where_a_run_began(tmp_path: Path, dsn: str) -> None:
    first = tmp_path / "heat.1" / "tables.sqlite"
    AppTables(first).open("heat.1", 1, BUSY_S).close()
    app = AppTables(first, dsn)
    for run in (1, 2, 2):
        app.open("heat.1", run, BUSY_S).close()
    assert first.exists()
    assert (first.with_name("tables.run-2.postgresql").stat().st_mode & 0o777) == 0o600
    assert (app.place(1), app.place(2)) == (str(first), "PostgreSQL, schema heat_1_run_2")
    reader = app.reader(2)
    assert reader is not None
    assert reader.names() == ["dead_letters", "late", "overtaken"]
    assert app.reader(3) is None
    with pytest.raises(TableError, match=r"name it in \[tables\] store of platform.toml"):
        AppTables(first).open("heat.1", 2, BUSY_S)
    app.remove(2)
    app.remove(2)
    app.remove(1)
    assert list(first.parent.iterdir()) == []
    with psycopg.connect(dsn) as other:
        found = other.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'heat%'").fetchall()
    assert found == []


def test_names_are_short_plain_and_never_equal() -> None:
    assert schema_name("traffic.3", 2) == "traffic_3_run_2"
    assert schema_name("my_app.3", 1) == "my_app_3_run_1"
    instances = ["a-b.1", "a_b.1", "A_b.1", "pg_a.1", "x" * 60 + ".1", "x" * 61 + ".1", "a.b.1", "a_b_1"]
    names = [schema_name(one, run) for one in instances for run in (1, 10**9)]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 and not name.startswith("pg_") for name in names)


def test_a_wrong_user_is_refused_and_an_absent_server_waited_for(postgres: Postgres, tmp_path: Path) -> None:
    wrong = postgres.dsn.replace("dbname=postgres", "dbname=nowhere")
    with pytest.raises(TableError, match=r"refuses this program.*correct \[tables\] store") as refused:
        PostgresSchema(wrong, "heat_1_run_1", "me", BUSY_S)
    assert not isinstance(refused.value, AwayError)
    with pytest.raises(AwayError, match="cannot be reached"):
        PostgresSchema(f"host={tmp_path} dbname=x", "heat_1_run_1", "me", BUSY_S)
