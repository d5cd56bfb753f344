"""Sources of recorded JSON, of directories and of simulated sensors: order, positions and bad input."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import re
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pytest

from geartrain import Digits, Flow, Record, Source, Table
from geartrain.errors import ConfigError, SourceError
from geartrain.records.event_time import parse_time
from geartrain.source import Batch, Split
from geartrain.testing import run_flow
from geartrain_devices.csv_replay import CsvReplay
from geartrain_devices.directory import CsvDirectory, JsonLinesDirectory
from geartrain_devices.json_lines import HEAD_DOCUMENTS, JsonLines
from geartrain_devices.simulated import SimulatedSensor
from tests.devices.prices import replay, write


class Mode(Enum):
    ON = "on"
    OFF = "off"


class Reading(Record):
    sensor: str
    celsius: float
    mode: Mode = Mode.ON
    cost: Annotated[Decimal, Digits(8, 2)] | None = None
    tags: list[str] | None = None


class Plain(Record):
    n: int


def opened(source: Source[Any], kind: type[Any]) -> Split:
    (split,) = source.open("d1", "readings", kind)
    return split


def lines(*documents: Any) -> str:
    return "".join(d if isinstance(d, str) else json.dumps(d) + "\n" for d in documents)


AT = {"time": 1}


@pytest.mark.parametrize(
    ("documents", "paths", "lacking"),
    [
        ([{"time": 1, "sensor": "a"}], {}, "celsius"),
        ([{"sensor": "a", "celsius": 1}, {"at": 1, "sensor": "b", "celsius": 2}], {}, "time"),
        ([{**AT, "sensor": "a", "was": {"n": 1}}], {"celsius": "was.celsius"}, "was.celsius"),
        ([{**AT, "sensor": "a", "was": [1]}], {"celsius": "was[1]"}, "was[1]"),
        ([{**AT, "sensor": "a"}] * HEAD_DOCUMENTS + [{**AT, "sensor": "a", "celsius": 1}], {}, "celsius"),
        (["[1, 2]\n", "no JSON\n", {**AT, "sensor": "a"}], {}, "celsius"),
    ],
)
def test_a_file_without_a_column_is_refused_as_it_is_opened(
    tmp_path: Path, documents: list[Any], paths: dict[str, str], lacking: str
) -> None:
    file = write(tmp_path / "a.jsonl", lines(*documents))
    said = f"a.jsonl has no '{re.escape(lacking)}', which a record needs, in its first documents; they have '"
    with pytest.raises(SourceError, match=said):
        opened(JsonLines(path=file, fields=paths), Reading)


@pytest.mark.parametrize(
    ("documents", "count", "rejects"),
    [
        ([{**AT, "sensor": "a", "celsius": 1}], 1, 0),  # the others have defaults
        ([{**AT, "sensor": "a"}, {"sensor": "a", "celsius": 1}, {**AT, "sensor": "a", "celsius": 1}], 1, 2),
        ([{**AT, "sensor": "a", "celsius": None}], 0, 1),
        (["[1, 2]\n", "no JSON\n", "\n"], 0, 2),
        ([], 0, 0),
    ],
)
def test_a_file_of_which_a_document_has_each_column_is_read(
    tmp_path: Path, documents: list[Any], count: int, rejects: int
) -> None:
    batch = replay(opened(JsonLines(path=write(tmp_path / "a.jsonl", lines(*documents))), Reading))
    assert (len(batch.values), len(batch.rejects)) == (count, rejects)


def test_lines_are_replayed_in_order_of_time(tmp_path: Path) -> None:
    text = lines(
        {"time": "2026-01-01T00:00:02Z", "sensor": "b", "celsius": 2, "mode": "off"},
        "\n",
        {
            "time": "2026-01-01T00:00:01Z",
            "sensor": "a",
            "celsius": 1.5,
            "mode": "on",
            "cost": "0.5",
            "tags": ["x"],
        },
    )
    got = replay(opened(JsonLines(path=write(tmp_path / "r.jsonl", text)), Reading))
    assert got.values == [
        Reading("a", 1.5, Mode.ON, Decimal("0.50"), ["x"]),
        Reading("b", 2.0, Mode.OFF, None, None),
    ]
    assert got.times == [parse_time("2026-01-01T00:00:01Z"), parse_time("2026-01-01T00:00:02Z")]
    assert got.numbers == [0, 1]


def test_fields_and_times_are_found_by_their_paths(tmp_path: Path) -> None:
    text = lines({"meta": {"at": 1.000001, "id": "a"}, "data": [{"t": 20.5}], "mode": "off"})
    zipped = tmp_path / "r.jsonl.gz"
    zipped.write_bytes(gzip.compress(text.encode()))
    paths = {"sensor": "meta.id", "celsius": "data[0].t"}
    source: JsonLines[Reading] = JsonLines(path=str(zipped), time="meta.at", fields=paths)
    got = replay(opened(source, Reading))
    assert (got.values, got.times) == ([Reading("a", 20.5, Mode.OFF)], [1_000_001])


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ("{", "it is not JSON"),
        ('{"time": 1, "sensor": "a", "mode": "on"}', "it has no celsius: say in fields"),
        ('{"time": true, "sensor": "a", "celsius": 1, "mode": "on"}', "it has no time at time"),
        ('{"time": "soon", "sensor": "a", "celsius": 1, "mode": "on"}', "'soon' is not an ISO 8601"),
        ('{"time": 1e300, "sensor": "a", "celsius": 1, "mode": "on"}', "is not before 2200-01-01"),
        (
            '{"time": 1, "sensor": "a", "celsius": 1, "mode": "up"}',
            "field mode is the text 'up', and must be one of 'on', 'off'",
        ),
        ('{"time": 1, "sensor": "a", "celsius": 1, "mode": "on", "cost": "0.001"}', r"0.001, which does not"),
        ("[]", "it has no time"),
        ("x" * (1 << 21), "longer than"),
    ],
)
def test_a_bad_line_is_a_dead_letter_and_the_rest_goes_on(tmp_path: Path, raw: str, why: str) -> None:
    good = {"time": 1, "sensor": "a", "celsius": 1, "mode": "on"}
    got = replay(opened(JsonLines(path=write(tmp_path / "r.jsonl", lines(good, raw + "\n", good))), Reading))
    assert len(got.values) == 2
    (reject,) = got.rejects
    assert reject.reason.startswith("r.jsonl, line 2: ")
    assert why in reject.reason


def test_mistakes_in_options_are_one_sentence(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", "")
    wrong: list[tuple[Source[Any], str]] = [
        (JsonLines(), "source readings has no file"),
        (JsonLines(path="/no/such"), "file /no/such cannot be read: there is no such file"),
        (JsonLines(path=path, time_unit="h"), "time_unit = 'h' must be one of s, ms, us"),
        (JsonLines(path=path, fields={"celsius": "a["}), r"'a\[' is not a path"),
        (JsonLines(path=path, fields={"kelvin": "a"}), "there is no field 'kelvin'; its fields: sensor"),
        (JsonLinesDirectory(path="/no/such"), "path = '/no/such' is not a directory"),
    ]
    for source, why in wrong:
        with pytest.raises(SourceError, match=why):
            opened(source, Reading)


def test_as_recorded_keeps_the_order_of_the_file_and_its_late_rows(tmp_path: Path) -> None:
    text = "at,n\n1970-01-01T00:00:05Z,1\n1970-01-01T00:00:01Z,2\n1970-01-01T00:00:04Z,3\n"
    source: CsvReplay[Plain] = CsvReplay(
        path=write(tmp_path / "r.csv", text), time_column="at", as_recorded=True, out_of_orderness_ms=2_000
    )
    assert not source.keeps_order
    assert replay(opened(source, Plain)).values == [Plain(1), Plain(2), Plain(3)]
    flow = Flow("f")
    flow.source("rows", source, out=Plain).sink("all", Table("t"))
    results = run_flow(flow)
    assert [v for _, v in results.tables["all"]] == [Plain(1), Plain(3)]
    assert [letter.step for letter in results.late] == ["rows"]
    with pytest.raises(ConfigError, match="would change whether records come in the order of time"):
        flow.graph().with_options({"rows": {"as_recorded": False}})


async def read_all(split: Split, position: int = 0, limit: int = 3) -> tuple[list[Any], Batch]:
    values: list[Any] = []
    while True:
        poll = await split.read(position, limit)
        values += zip(poll.values, poll.numbers, strict=True)
        moved, position = poll.position > position, poll.position
        if poll.ended or not moved:
            return values, poll


def test_a_directory_gives_every_file_once_and_goes_on_behind_a_restart(tmp_path: Path) -> None:
    def put(name: str, *numbers: int) -> None:
        documents = [{"time": n, "n": n} for n in numbers]
        (tmp_path / f"{name}.tmp").write_text(lines(*documents))
        (tmp_path / f"{name}.tmp").rename(tmp_path / name)

    source: JsonLinesDirectory[Plain] = JsonLinesDirectory(path=str(tmp_path), last="_DONE", settle_ms=0)

    async def run() -> None:
        split = opened(source, Plain)
        put("a.jsonl", 1, 2)
        (tmp_path / "x.jsonl.tmp").write_text("{")
        values, poll = await read_all(split)
        assert ([v.n for v, _ in values], poll.ended) == ([1, 2], False)
        put("b.jsonl", 3, 4, 5, 6)
        put("c.jsonl")
        put("d.jsonl", 7)
        middle = await split.read(poll.position, 2)
        assert [v.n for v in middle.values] == [3, 4]
        again = opened(source, Plain)  # as after a restart
        rest, _ = await read_all(again, middle.position)
        assert [v.n for v, _ in rest] == [5, 6, 7]
        every, _ = await read_all(opened(source, Plain))
        assert rest == every[-3:]
        (tmp_path / "_DONE").touch()
        _, poll = await read_all(again, rest[-1][1] + 1)
        assert poll.ended

    asyncio.run(run())


def test_a_file_that_comes_too_late_or_goes_is_named(tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "b.csv").write_text("time,n\n1970-01-01,1\n1970-01-01,2\n")
        source: CsvDirectory[Plain] = CsvDirectory(path=str(tmp_path), settle_ms=0)
        split = opened(source, Plain)
        poll = await split.read(0, 1)
        (tmp_path / "a.csv").write_text("time,n\n")
        with pytest.raises(SourceError, match=r"b\.csv is being read, and now a\.csv sorts before it"):
            await split.read(poll.position, 1)
        (tmp_path / "a.csv").unlink()
        (tmp_path / "b.csv").unlink()
        with pytest.raises(SourceError, match=r"b\.csv is being read, and now a file before it is gone"):
            await split.read(poll.position, 1)

    asyncio.run(run())


class Thermometer(SimulatedSensor[Plain]):
    def make(self, random: random.Random, number: int, device: str) -> Plain:
        if number == 3:
            raise ValueError("the sensor is off")
        return Plain(random.randrange(1_000_000))


def test_a_simulated_sensor_gives_the_same_at_every_reading() -> None:
    source = Thermometer(records=10, seed=7, period_ms=500)
    whole = replay(opened(source, Plain))
    assert whole.times[:2] == [parse_time("2026-01-01"), parse_time("2026-01-01") + 500_000]
    assert [r.number for r in whole.rejects] == [3]
    assert replay(opened(source, Plain), start=5, limit=1).rows == whole.rows[4:]
    assert replay(opened(Thermometer(records=10, seed=8), Plain)).values != whole.values


def test_a_simulated_sensor_keeps_its_pace() -> None:
    clock = [0.0]

    class Paced(Thermometer):
        def monotonic_s(self) -> float:
            return clock[0]

    async def run() -> None:
        split = opened(Paced(speed=2, period_ms=1_000), Plain)
        assert len((await split.read(0, 100)).values) == 1
        clock[0] = 1.0
        assert len((await split.read(1, 100)).values) == 2
        assert len((await split.read(3, 100)).values) == 0

    asyncio.run(run())
