"""Rows of a query in a real PostgreSQL: pages, ties, rows that are none, and a server that goes away."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from geartrain import Flow, Record, Table
from geartrain.declarations.options import Text
from geartrain.errors import ConfigError, FlowError, SourceError
from geartrain.graph.graph import Graph
from geartrain.runtime.secrets import secrets_of, with_secrets
from geartrain_devices.postgres_query import SAME_TIME_MAX, PostgresQuery
from tests.devices.reading import until
from tests.postgres_server import Postgres
from tests.waiting import Wait

KEYED = "SELECT id, at, sensor, celsius FROM readings"


class Reading(Record):
    sensor: str
    celsius: float


def made(postgres: Postgres, *rows: str, name: str = "asked") -> str:
    """A database with a table of readings."""
    dsn = postgres.database(name)
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE TABLE readings (id bigint, at timestamptz, sensor text, celsius float8)")
    add(dsn, *rows)
    return dsn


def add(dsn: str, *rows: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as db:
        for row in rows:
            db.execute(f"INSERT INTO readings VALUES ({row})")


def opened(dsn: str, **options: Any) -> Any:
    source = PostgresQuery[Reading](**{"query": KEYED, "every_s": 0.01, "dsn": dsn, **options})
    (split,) = source.open("cloud-1", "readings", Reading)
    return split


def test_rows_come_by_their_key_in_pages_and_go_on_where_they_were(postgres: Postgres) -> None:
    async def story() -> None:
        rows = [f"{n}, '2026-01-01T00:00:{n:02}Z', 's%{n % 3}', {n}.5" for n in range(1, 30, 2)]
        dsn = made(postgres, *rows, "31, '2026-01-01T00:01:00Z', NULL, 1")
        split = opened(dsn, time="at", query=f"{KEYED} WHERE sensor IS NULL OR sensor LIKE 's%';")
        first = await until(split, 16, limit=4)
        assert first.numbers == list(range(1, 30, 2))
        assert first.values[1] == Reading("s%0", 3.5)
        assert first.times[0] == 1_767_225_601_000_000
        assert (first.rejects[0].number, first.position) == (31, 32)
        assert "field sensor is null: give it a default" in first.rejects[0].reason
        assert b'"celsius":1}' in first.rejects[0].raw
        add(dsn, "40, '2026-01-01T00:02:00Z', 's', 'NaN'", "41, '2026-01-01T00:02:00Z', 's', 2")
        more = await until(split, 2, first.position)
        assert (more.numbers, [one.number for one in more.rejects]) == ([41], [40])
        await split.close()
        again = opened(dsn, time="at")
        assert (await until(again, 1, 41)).numbers == [41]
        await again.close()

    asyncio.run(story())


def test_rows_of_one_time_have_their_places_and_young_ones_wait(postgres: Postgres) -> None:
    async def story() -> None:
        at = "2026-03-01T00:00:00.123457Z"
        same = [f"{n}, '{at}', 's{n}', {n}" for n in range(7)]
        dsn = made(postgres, *same, "9, now() + interval '1 hour', 'young', 9", name="tied")
        split = opened(dsn, key="at", time="at")
        found = await until(split, 7, limit=3)
        begin = 1_772_323_200_123_457 * SAME_TIME_MAX
        assert found.numbers == list(range(begin, begin + 7))
        assert set(found.times) == {1_772_323_200_123_457}
        rest = await until(split, 3, begin + 4, limit=2)
        assert (rest.numbers, rest.values) == (list(found.numbers)[4:], list(found.values)[4:])
        assert PostgresQuery(key="at", time="at").keeps_order
        await split.close()

    asyncio.run(story())


def test_more_rows_of_one_time_than_have_a_place_are_refused(postgres: Postgres) -> None:
    async def story() -> None:
        dsn = made(postgres, name="crowded")
        with psycopg.connect(dsn, autocommit=True) as db:
            one = "SELECT n, '2026-03-01'::timestamptz, 's', n FROM generate_series(0, 1024) n"
            db.execute(f"INSERT INTO readings {one}")
        split = opened(dsn, key="at")
        with pytest.raises(
            SourceError, match=r"more than 1,024 rows have the at .*name a key that is unique"
        ):
            await until(split, 1_025, limit=2_000)
        await split.close()

    asyncio.run(story())


def test_a_server_that_goes_away_loses_no_row(postgres: Postgres) -> None:
    async def story() -> None:
        rows = [f"{n}, now(), 's', {n}" for n in range(10)]
        dsn = made(postgres, *rows, name="away")
        split = opened(dsn)
        found = await until(split, 4, limit=4)
        postgres.stop("immediate")
        try:
            position, was_behind = found.position, False
            wait = Wait("the source to be behind")
            while not was_behind:
                wait.check()
                read = await split.read(position, 4)
                position, was_behind = read.position, split._again_s > time.monotonic() + 0.5
                assert split.is_behind
                await asyncio.sleep(0.01)
        finally:
            postgres.start()
        add(dsn, "10, now(), 's', 10")
        rest = await until(split, 11 - position, position, limit=4)
        assert rest.numbers == list(range(position, 11))
        await split.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"query": " "}, "has no query"),
        ({"dsn": "host=a password=b"}, "dsn holds a password: set password = secret:NAME"),
        ({"dsn": "nothing"}, "dsn cannot be read: write it as host="),
        ({"time_unit": "h"}, "time_unit = 'h' must be one of"),
    ],
)
def test_what_cannot_be_is_said_when_it_is_opened(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        opened(**{"dsn": "", **options})


def _open(graph: Graph) -> Any:
    source: Any = graph["readings"].operator
    (split,) = source.source.open("d", "readings", Reading)
    return split


def test_its_password_is_a_secret(postgres: Postgres, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        dsn = made(postgres, "1, now(), 's', 1", name="locked").replace("user=geartrain", "user=reader")
        flow = Flow("locked")
        source = PostgresQuery[Reading](query=KEYED, dsn=dsn, every_s=0.01, password="secret:db")
        flow.source("readings", source, out=Reading).sink("all", Table("all"))
        split = _open(with_secrets(flow.graph(), {"db": "wrongly planted"}))
        wait = Wait("the refusal of a user")
        while 'password authentication failed for user "reader"' not in caplog.text:
            wait.check()
            assert not (await split.read(0, 1)).values
            await asyncio.sleep(0.01)
        await split.close()
        split = _open(with_secrets(flow.graph(), {"db": "rightly planted"}))
        assert (await until(split, 1)).numbers == [1]
        await split.close()
        assert "planted" not in caplog.text

    with psycopg.connect(postgres.dsn, autocommit=True) as db:
        db.execute("CREATE ROLE reader LOGIN PASSWORD 'rightly planted' IN ROLE pg_read_all_data")
        shown = db.execute("SHOW hba_file").fetchone()
        assert shown is not None
        file = Path(shown[0])
        before = file.read_text()
        file.write_text(f"local all reader scram-sha-256\n{before}")
        db.execute("SELECT pg_reload_conf()")
        try:
            asyncio.run(story())
        finally:
            file.write_text(before)
            db.execute("SELECT pg_reload_conf()")


def test_a_password_itself_is_refused_and_not_shown() -> None:
    flow = Flow("locked")
    flow.source("readings", PostgresQuery[Reading](), out=Reading).sink("all", Table("all"))
    for given in ({"readings": {"password": "planted"}}, {"readings": {"password": Text("planted")}}):
        with pytest.raises(ConfigError, match="write secret:NAME") as caught:
            flow.graph().with_options(given)
        assert "planted" not in str(caught.value)
    with pytest.raises(FlowError, match="write secret:NAME") as refused:
        Flow("open").source("readings", PostgresQuery[Reading](password="planted"), out=Reading)
    assert "planted" not in str(refused.value)
    assert secrets_of(flow.graph().with_options({"readings": {"password": "secret:db"}})) == ("db",)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"query": "SELECT nothing FROM nowhere"},
            'cannot be run .relation "nowhere" does not exist.*: correct query or key',
        ),
        ({"key": "sensor"}, "neither a column of whole numbers nor of times"),
        ({"key": "missing"}, "column q.missing does not exist"),
        ({"query": "DELETE FROM readings RETURNING id"}, r"query cannot be run \(.*\): correct query or key"),
        ({}, "two rows have the id 1: name a key that is unique"),
    ],
)
def test_what_the_database_refuses_is_a_sentence(
    postgres: Postgres, options: dict[str, Any], sentence: str
) -> None:
    async def story() -> None:
        split = opened(made(postgres, "1, now(), 's', 1", "1, now(), 't', 2", name="wrong"), **options)
        with pytest.raises(SourceError, match=sentence):
            await until(split, 9)
        await split.close()

    asyncio.run(story())


def test_without_its_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(SourceError, match=r'pip install "geartrain-devices\[postgres\]"'):
        opened("")
