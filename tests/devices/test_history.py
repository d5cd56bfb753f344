"""History before what a source gives from now on, or alone: one split, exact over restarts."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from geartrain import Flow, Record, Table
from geartrain.declarations.options import Text
from geartrain.errors import ConfigError, SourceError
from geartrain.operators.source import SourceOperator
from geartrain.planning import make_plan
from geartrain.revision import revision_of
from geartrain.source import Batch, Source, Split
from geartrain_devices.csv_replay import CsvReplay
from geartrain_devices.history import LIVE, History


class Reading(Record):
    sensor: str
    celsius: float


class _Live:
    """A split that goes on: the records `n` from 0, at 100 s and later."""

    out_of_orderness_us = 0
    live_clock = True

    def __init__(self, name: str) -> None:
        self.name, self.closed = name, False

    async def read(self, position: int, limit: int) -> Batch:
        numbers = range(position, min(position + limit, 3))
        values = [Reading("live", float(n)) for n in numbers]
        return Batch(values, [(100 + n) * 1_000_000 for n in numbers], numbers, position + len(numbers))

    async def close(self) -> None:
        self.closed = True


class _Sensors(Source[Reading]):
    in_order: ClassVar[bool] = True
    splits: int = 1

    def open(self, device: str, step: str, out: type[Reading]) -> Sequence[Split]:
        return [_Live(f"{device}/{number}") for number in range(self.splits)]


def _operator(source: Source[Any], **history: Any) -> SourceOperator:
    return SourceOperator(source).with_options({"history": history}, "--set readings")


def _csv(path: Path, *rows: str) -> str:
    path.write_text("\n".join(["time,sensor,celsius", *rows, ""]), encoding="utf-8")
    return str(path)


def _read(split: Split, position: int = 0, limit: int = 2, reads: int = 10) -> list[Batch]:
    async def work() -> list[Batch]:
        found, at = [], position
        for _ in range(reads):
            found.append(await split.read(at, limit))
            at = found[-1].position
            if found[-1].ended:
                break
        await split.close()
        return found

    return asyncio.run(work())


def _rows(batches: list[Batch]) -> list[tuple[int, str, float]]:
    return [(n, v.sensor, v.celsius) for one in batches for n, v in zip(one.numbers, one.values, strict=True)]


def test_history_comes_first_by_time_and_what_happens_now_behind_it(tmp_path: Path) -> None:
    first = _csv(tmp_path / "a.csv", "1970-01-01T00:00:03Z,a,3", "1970-01-01T00:00:01Z,a,1", "x,a,9")
    with gzip.open(tmp_path / "b.csv.gz", "wt") as file:
        file.write("time,sensor,celsius\n1970-01-01T00:00:02Z,b,2\n1970-01-01T00:00:03Z,b,4\n")
    operator = _operator(_Sensors(), files=[first, str(tmp_path / "b.csv.gz")])
    (split,) = operator.source.open("d1", "readings", Reading)
    batches = _read(split)
    live = [(LIVE + n, "live", float(n)) for n in range(3)]
    assert _rows(batches) == [(1, "a", 1.0), (2, "b", 2.0), (3, "a", 3.0), (4, "b", 4.0), *live]
    (reject,) = (one for batch in batches for one in batch.rejects)
    assert reject.reason.startswith("a.csv, line 4: ")
    assert not any(one.ended for one in batches)
    assert split.name == "d1/0"


def test_options_say_how_the_files_are_written(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("when;sensor;celsius\n01.02.2024 10:00;a;1,5\n01.02.2024 10:01;b;NA\n")
    options = {"delimiter": ";", "decimal": ",", "null_values": ["NA"], "time_format": "%d.%m.%Y %H:%M"}
    operator = _operator(_Sensors(), files=[str(tmp_path / "a.csv")], time="when", options=options)
    batches = _read(operator.source.open("d1", "readings", Reading)[0])
    assert _rows(batches)[0] == (1, "a", 1.5)
    assert [one.code for batch in batches for one in batch.rejects] == ["missing_value"]
    (tmp_path / "b.jsonl").write_bytes('{"t": 5, "s": "K\u00f6ln", "celsius": 1}\n'.encode("cp1252"))
    lines = {"encoding": "cp1252", "fields": {"sensor": "s"}, "time_unit": "ms"}
    operator = _operator(_Sensors(), files=[str(tmp_path / "b.jsonl")], time="t", options=lines)
    (split,) = operator.source.open("d1", "readings", Reading)
    found = _read(split)
    assert (_rows(found)[0], found[0].times) == ((0, "K\u00f6ln", 1.0), [5_000])


LOG = ["1970-01-01T00:00:02Z boiler at 61.5", "1970-01-01T00:00:01Z hall at 20"]
OF_LOG = {"pattern": "(?P<at>[^ ]+) (?P<sensor>[^ ]+) at (?P<celsius>[0-9.]+)"}


@pytest.mark.parametrize(
    ("name", "lines", "time", "options"),
    [
        (
            "a.tsv",
            ["time\tsensor\tcelsius", *(line.replace(" ", "\t").replace("at\t", "") for line in LOG)],
            "time",
            {},
        ),
        ("app.log", LOG, "at", OF_LOG),
        ("app.log.1", LOG, "at", OF_LOG),
        ("app.log-20240131", LOG, "at", OF_LOG),
        ("old.txt.gz", LOG, "at", OF_LOG),
        (
            "a.ndjson",
            [
                '{"time": 2, "sensor": "boiler", "celsius": 61.5}',
                '{"time": 1, "sensor": "hall", "celsius": 20}',
            ],
            "time",
            {},
        ),
        (
            "a.log",
            ['{"t": 2, "sensor": "boiler", "celsius": 61.5}', '{"t": 1, "sensor": "hall", "celsius": 20}'],
            "t",
            {"json": True},
        ),
    ],
)
def test_files_of_other_names_are_read_by_their_form(
    tmp_path: Path, name: str, lines: list[str], time: str, options: dict[str, Any]
) -> None:
    content = "\n".join([*lines, ""]).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    source = _operator(_Sensors(), files=[str(path)], time=time, options=options, alone=True).source
    assert isinstance(source, History)
    source.check_files("readings", Reading)
    batches = _read(source.open("d1", "readings", Reading)[0], limit=5)
    assert [row[1:] for row in _rows(batches)] == [("hall", 20.0), ("boiler", 61.5)]
    assert batches[0].times == [1_000_000, 2_000_000]


def test_a_log_of_which_no_line_is_a_record_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_text("INFO it began\n" * 200, encoding="utf-8")
    source = _operator(_Sensors(), files=[str(path)], time="at", options=OF_LOG).source
    assert isinstance(source, History)
    with pytest.raises(
        SourceError, match=r"no line of file .*app\.log is a record: app\.log, line 1: it does"
    ):
        source.check_files("readings", Reading)


def test_texts_of_a_person_become_what_options_are(tmp_path: Path) -> None:
    written = {
        "delimiter": ";",
        "skip_lines": "1",
        "null_values": "NA,-",
        "header": "false",
        "names": "time,sensor",
    }
    history = {"files": ["a.csv"], "options": {name: Text(value) for name, value in written.items()}}
    operator = SourceOperator(_Sensors()).with_options({"history": history}, "--set readings")
    assert operator.history is not None
    typed = {"delimiter": ";", "skip_lines": 1, "null_values": ["NA", "-"], "header": False}
    assert operator.history.options == typed | {"names": ["time", "sensor"]}
    history = {"files": ["a.csv"], "options": {"skip_lines": Text("one")}}
    with pytest.raises(ConfigError, match=r"--set readings\.history\.options\.skip_lines = 'one'"):
        SourceOperator(_Sensors()).with_options({"history": history}, "--set readings")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delimeter": ";"}, "source readings.history.options: there is no option 'delimeter'; options of"),
        ({"delimiter": ";;"}, "source readings.history.options: delimiter = ';;' must be one character"),
        ({"skip_lines": "1"}, "source readings.history.options.skip_lines = '1': "),
    ],
)
def test_an_option_of_the_files_that_cannot_be_is_one_sentence(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    operator = _operator(_Sensors(), files=[_csv(tmp_path / "a.csv")], options=options)
    with pytest.raises(SourceError) as error:
        operator.source.open("d1", "readings", Reading)
    assert str(error.value).startswith(said)


@pytest.mark.parametrize("position", [0, 1, 2, LIVE, LIVE + 1])
def test_each_position_gives_the_same_rest(tmp_path: Path, position: int) -> None:
    path = _csv(tmp_path / "a.csv", *(f"1970-01-01T00:00:0{n}Z,a,{n}" for n in range(3)))
    operator = _operator(_Sensors(), files=[path])
    whole = _rows(_read(operator.source.open("d1", "readings", Reading)[0]))
    rest = _rows(_read(operator.source.open("d1", "readings", Reading)[0], position, limit=1))
    assert rest == [row for row in whole if row[0] >= position]


def test_other_splits_wait_until_the_files_have_been_read(tmp_path: Path) -> None:
    path = _csv(tmp_path / "a.csv", "1970-01-01T00:00:00Z,a,0", "1970-01-01T00:00:01Z,a,1")
    operator = _operator(_Sensors(splits=2), files=[path])
    first, second = operator.source.open("d1", "readings", Reading)
    assert _rows(_read(second, reads=2)) == []
    assert second.is_behind  # type: ignore[attr-defined]
    assert len(_rows(_read(first, limit=1, reads=1))) == 1
    assert _rows(_read(second, reads=2)) == []
    _read(first, limit=5, reads=1)
    assert [row[2] for row in _rows(_read(second))] == [0.0, 1.0, 2.0]
    (again,) = operator.source.open("d1", "readings", Reading)[1:]
    assert [row[2] for row in _rows(_read(again, 1))] == [1.0, 2.0], "it had begun"


def test_alone_it_ends_and_is_read_in_the_cloud_in_the_name_of_its_device(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"time": 1, "sensor": "a", "celsius": 1.5}\n{"time": 2}\n', encoding="utf-8")
    operator = _operator(_Sensors(), files=[str(path)], device="d1", alone=True)
    assert operator.in_cloud
    assert operator.source.bounded
    assert operator.source.replayable
    (split,) = operator.source.open("cloud-1", "readings", Reading)
    batches = _read(split, limit=5)
    assert (split.name, _rows(batches), batches[-1].ended) == ("d1", [(1, "a", 1.5)], True)
    assert [one.raw for one in batches[0].rejects] == [b'{"time": 2}']
    (empty,) = _operator(_Sensors(), alone=True).source.open("cloud-1", "other", Reading)
    assert [(one.values, one.ended) for one in _read(empty)] == [([], True)]


def test_options_of_the_source_may_be_set_before_and_after(tmp_path: Path) -> None:
    operator = _operator(_Sensors(), files=["x.csv"]).with_options({"splits": 2}, "--set readings")
    assert isinstance(operator.source, History)
    assert operator.source.original.splits == 2
    assert operator.source.files == ["x.csv"]
    assert isinstance(operator.goes_on, _Sensors)


def test_the_revision_of_a_flow_is_the_same_with_history_before_it(tmp_path: Path) -> None:
    flow = Flow("heat")
    readings = flow.source("readings", CsvReplay(time_column="time"), out=Reading, partitioned_by="sensor")
    readings.sink("out", Table("readings"))
    graph = flow.graph()
    after = graph.with_options({"readings": {"history": {"files": ["x.csv"]}}})
    plans = [make_plan(one, "cloud") for one in (graph, after)]
    plain, with_history = (revision_of("heat:flow", plan).hash for plan in plans)
    assert plain == with_history


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--set readings\.history: object contains unknown field file"):
        _operator(_Sensors(), file="x.csv")
    for path, said in (
        (_csv(tmp_path / "a.txt"), "holds lines of text: set options = {pattern = "),
        (_csv(tmp_path / "a.dat"), "is of no form that is read: call it .csv or .tsv"),
        (_csv(tmp_path / "a.csv.zst"), "is packed in a form that is not read: pack it as .gz, or unpack it"),
        (
            _csv(tmp_path / "a.parquet"),
            "is Parquet, which devices do not read: bring it in with gear backfill",
        ),
        (_csv(tmp_path / "a.csv"), "has no column 'at'"),
        (str(tmp_path / "none.jsonl"), "none.jsonl cannot be read"),
    ):
        operator = _operator(_Sensors(), files=[path], time="at")
        with pytest.raises(SourceError, match=re.escape(said)):
            _read(operator.source.open("d1", "readings", Reading)[0])
    both = [_csv(tmp_path / "a.csv"), str(tmp_path / "b.jsonl")]
    with pytest.raises(SourceError, match=r"a\.csv and .*b\.jsonl are of two forms"):
        _operator(_Sensors(), files=both).source.open("d1", "readings", Reading)
