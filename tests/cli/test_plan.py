"""`gear plan` as a person meets it: the tree, what was measured, the cuts compared, and mistakes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from geartrain.errors import ConfigError
from geartrain_client.cli import main
from geartrain_client.cli.submitting import SubmitWishes, body_of
from geartrain_examples.stocks.data import write_sample

STOCKS = "geartrain_examples.stocks.flow:flow"
DAG = "geartrain_examples.complexdag.flow:flow"

Capture = pytest.CaptureFixture[str]


def gear(arguments: Sequence[str], capsys: Capture) -> tuple[int, str, str]:
    code = main(arguments)
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


def planned(arguments: Sequence[str], capsys: Capture) -> dict[str, Any]:
    code, out, err = gear(["plan", *arguments, "--json"], capsys)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.fixture
def prices(tmp_path: Path) -> str:
    write_sample(tmp_path / "prices.csv")
    return f"quotes.path={tmp_path / 'prices.csv'}"


def test_the_dag_is_a_tree_in_which_every_step_stands_once(capsys: Capture) -> None:
    code, out, _ = gear(["plan", DAG, "--cut", "edge"], capsys)
    assert code == 0
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0] == "Flow complexdag: cut edge, 11 of 16 steps on the devices"
    tree = [line.split("  ")[1] for line in lines[4:25]]
    assert tree[:5] == ["a", "├─── c", "│", "│", "│"]
    names = [line.strip("│├└═╪─ ").split("  ")[0] for line in lines[4:25]]
    steps = {*"abcdefg", "into_d", "into_f", "into_g", "ends", "early", "right", "left", "all", "both"}
    assert len(names) == len(steps) + 5
    assert {n for n in names if not n.startswith("(")} == steps
    assert [n for n in names if n.startswith("(")] == [
        "(into_g, below d)",
        "(into_f, below c)",
        "(ends, below f)",
        "(into_d, below a)",
        "(into_g, below d)",
    ]
    crossing = [line for line in lines if "═╪═ " in line and "marks the cut" not in line]
    assert len(crossing) == 5
    assert all("sink" in line for line in crossing)


def test_types_and_channels_are_shown_without_a_measurement(capsys: Capture) -> None:
    code, out, _ = gear(["plan", STOCKS], capsys)
    assert code == 0
    assert "Quote    symbol: str, date: datetime, price: float64" in out
    assert "measured" not in out
    assert "µs a record" not in out
    found = planned([STOCKS], capsys)
    assert found["warnings"] == []
    assert (found["asked"], found["cut"]) == ("auto", "cloud")
    assert "measured" not in found
    estimated = found["estimated"]
    assert estimated["bytes"] == estimated["cloud_bytes"] < estimated["edge_bytes"]
    assert {s["rule"] for s in found["steps"] if s["kind"] == "process"} == {"estimated_cost"}
    assert "estimated: this cut sends 8 B for one record of each source, edge " in out
    assert "estimated" not in planned([STOCKS, "--cut", "edge"], capsys)


def test_units_and_descriptions_are_shown(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert gear(["new", "warm"], capsys)[0] == 0
    found = planned(["warm"], capsys)
    minutes = next(step["fields"] for step in found["steps"] if step["out"] == "Minute")
    assert [(one["name"], one.get("unit", "")) for one in minutes] == [
        ("sensor", ""), ("window_start", ""), ("readings", ""), ("mean", "degC"), ("highest", "degC"),
    ]  # fmt: skip
    out = gear(["plan", "warm"], capsys)[1]
    assert "Minute    mean      degC   of the readings, not weighted by time" in out


def test_a_measured_plan_says_what_everything_costs(capsys: Capture, prices: str, tmp_path: Path) -> None:
    drawing = tmp_path / "plan.svg"
    asked = [STOCKS, "--set", prices, "--compare", "--measure", "30", "--svg", str(drawing)]
    found = planned(asked, capsys)
    steps = {step["id"]: step for step in found["steps"]}
    assert steps["quotes"]["records"] == 12_154
    assert steps["drawdown"]["cpu_us_per_record"] > 0
    assert (found["cuts"][0]["cut"], found["cuts"][0]["chosen"]) == ("cloud", True)
    assert len(found["cuts"]) == found["measured"]["legal_cuts"] == 4
    assert [one["bytes"] for one in found["cuts"]] == sorted(one["bytes"] for one in found["cuts"])
    assert sum(one["chosen"] for one in found["cuts"]) == 1
    (quotes,) = [one for one in found["channels"] if one["id"] == "quotes"]
    assert quotes["records"] == 12_154
    assert quotes["bytes"] == found["measured"]["bytes"] == found["measured"]["cloud_bytes"]
    assert found["measured"]["ended"] is True
    assert steps["drawdown"]["reason"].startswith("cost: cloud ")
    root = ElementTree.parse(drawing).getroot()  # noqa: S314 - our own
    assert root.tag.endswith("svg")
    assert oct(drawing.stat().st_mode & 0o777) == "0o600"

    code, out, err = gear(["plan", *asked], capsys)
    assert code == 0
    assert f"drawn to {drawing}" in err
    assert "measured: " in out
    assert ", to the end of its input; rates are by event time" in out
    assert "Legal cuts: 4, fewest bytes first" in out
    (chosen,) = [line for line in out.splitlines() if "▶" in line]
    assert "97,241" in chosen
    assert chosen.rstrip().endswith("cloud")


def test_a_cut_that_is_asked_for_is_kept_and_compared(capsys: Capture, prices: str) -> None:
    found = planned([STOCKS, "--set", prices, "--cut", "drawdown,whole", "--measure", "30"], capsys)
    assert (found["asked"], found["cut"]) == ("drawdown,whole", "drawdown,whole")
    assert found["measured"]["bytes"] > found["measured"]["cloud_bytes"]
    assert "cuts" not in found
    assert {step["reason"] for step in found["steps"]} == {
        "rule 1: a source stands on its devices",
        "rule 2: legal on the edge",
        "rule 1: a table is a store of the cloud",
    }
    assert {step["rule"] for step in found["steps"]} == {
        "source_on_devices",
        "legal_on_edge",
        "store_in_cloud",
    }
    _, out, _ = gear(["plan", STOCKS, "--set", prices, "--cut", "drawdown,whole", "--measure", "30"], capsys)
    assert "93.2 % more than with only sources on the devices" in out


def test_only_some_of_many_cuts_are_listed_and_the_rest_is_a_sentence(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("geartrain_client.cli.plan_text.CUTS_MAX", 3)
    asked = [DAG, "--set", "a.records=50", "--set", "b.records=50"]
    _, out, _ = gear(["plan", *asked, "--compare", "--cut", "ends"], capsys)
    table = out[out.index("Legal cuts: 19") :].splitlines()
    listed = [line for line in table if line.strip() and line.split()[-1] in {"cloud", "c", "e", "ends"}]
    assert len(listed) == 4, "three, and the chosen one"
    assert "▶" in listed[-1]
    assert table[-1].startswith("and 15 more, from ")
    assert table[-1].endswith("B/s: --json lists them all")
    assert len(planned([*asked, "--compare"], capsys)["cuts"]) == 19


LIVE = """
import random
from geartrain import Flow, Record, Table
from geartrain_devices.simulated import SimulatedSensor

class Beat(Record):
    n: int

class Heart(SimulatedSensor[Beat]):
    def make(self, random: random.Random, number: int, device: str) -> Beat:
        return Beat(number)

def slow(beat: Beat) -> Beat:
    total = sum(range(20_000))
    return Beat(beat.n + 0 * total)

def mend(beat: Beat) -> Beat:
    return Beat(10 // (beat.n % 20))

flow = Flow("hearts")
beats = flow.source("beats", Heart(period_ms=10), out=Beat)
tenth = beats.map(slow).filter(lambda b: b.n % 10 == 0, name="tenth")
tenth.map(mend).sink("mended", Table("mended"))
"""

PINS = """
from datetime import timedelta
from geartrain import Flow, Record, Table, agg
from geartrain.sinks import JsonLinesFile
from geartrain.testing import TestingSource
from geartrain.declarations.windows import global_window, session, tumbling

class Row(Record):
    name: str
    n: int

def same(row: Row) -> Row:
    return row

def more(row: Row) -> Row:
    return row

class Sum(Record):
    n: int
    many: int

def as_row(total: Sum) -> Row:
    return Row("", total.many)

def larger(one: Row, other: Row) -> Row:
    return one if one.n >= other.n else other

def first_letter(row: Row) -> str:
    return row.name[0]

below, keyed, table = Flow("below"), Flow("keyed"), Flow("tables")
rows = below.source("rows", TestingSource[Row](), out=Row)
rows.map(same).at("cloud").map(more).at("edge").sink("s", Table("t"))

rows = keyed.source("rows", TestingSource[Row](), out=Row)
rows.key_by("name").reduce("largest", larger).at("edge").sink("s", Table("t"))

far_source = Flow("far_source")
rows = far_source.source("rows", TestingSource[Row](), out=Row).at("cloud")
rows.map(more).at("edge").sink("s", Table("t"))

split = Flow("split")
rows = split.source("rows", TestingSource[Row](), out=Row)
hourly = rows.key_by("n").window(tumbling(timedelta(hours=1)))
hours = hourly.aggregate("hours", out=Sum, early=None, many=agg.count())
hours.map(as_row).at("edge").sink("s", Table("t"))

seldom = Flow("seldom")
rows = seldom.source("rows", TestingSource[Row](), out=Row)
near = rows.key_by("n").window(session(timedelta(hours=1)))
visits = near.aggregate("visits", out=Sum, early=None, many=agg.count())
visits.at("edge").sink("s", Table("t"))

valve = Flow("valve")
rows = valve.source("rows", TestingSource[Row](), out=Row)
rows.map(same).at("cloud").sink("open", JsonLinesFile("valve"))

lost = Flow("lost")
rows = lost.source("rows", TestingSource[Row](), out=Row, partitioned_by="name")
rows.map(same).key_by("name").reduce("largest", larger).at("edge").sink("s", Table("t"))

computed = Flow("computed")
rows = computed.source("rows", TestingSource[Row](), out=Row, partitioned_by="name")
rows.key_by(first_letter).reduce("largest", larger).at("edge").sink("s", Table("t"))

far = Flow("far")
rows = far.source("rows", TestingSource[Row](), out=Row, partitioned_by="name")
rows.map(same, keeps=("name",)).at("cloud").filter(lambda r: r.n > 0, name="some").map(more).at("edge").sink(
    "s", Table("t")
)

apart = Flow("apart")
rows = apart.source("rows", TestingSource[Row](), out=Row, partitioned_by="name")
others = apart.source("others", TestingSource[Row](), out=Row, partitioned_by="n")
joined = rows.key_by("name").join("pairs", others.key_by("n"), larger, within=global_window())
joined.at("edge").sink("s", Table("t"))

rows = table.source("rows", TestingSource[Row](), out=Row)
rows.map(same).sink("s", Table("t"))
table.pin("s", "edge")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "hearts_flow.py").write_text(LIVE, encoding="utf-8")
    (tmp_path / "pins_flow.py").write_text(PINS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_endless_source_is_measured_at_its_pace_and_a_slow_step_leaves_the_device(
    module: Path, capsys: Capture
) -> None:
    asked = ["hearts_flow:flow", "--set", "beats.speed=1", "--measure", "1.5"]
    found = planned(asked, capsys)
    measured = found["measured"]
    assert (measured["paced"], measured["ended"], measured["span"]) == (True, False, "s")
    assert 1.5 <= measured["wall_s"] < 10
    steps = {step["id"]: step for step in found["steps"]}
    assert 20 < steps["beats"]["records_per_s"] <= 110
    assert steps["tenth"]["tier"] == "edge"
    assert "step 'mend' refused " in found["warnings"][0]
    slow = planned([*asked, "--capacity", "0.001"], capsys)
    steps = {step["id"]: step for step in slow["steps"]}
    assert steps["slow"]["tier"] == "cloud"
    assert "above the capacity of 0.001" in steps["slow"]["reason"]
    _, out, _ = gear(["plan", *asked], capsys)
    assert "not to the end of its input; at the pace of its sources" in out


def test_measuring_writes_no_table(module: Path, capsys: Capture) -> None:
    before = sorted(path.name for path in module.iterdir())
    planned(["hearts_flow:flow", "--set", "beats.records=100", "--measure", "5"], capsys)
    after = sorted(path.name for path in module.iterdir() if path.name != "__pycache__")
    assert after == [name for name in before if name != "__pycache__"]


@pytest.mark.parametrize(
    ("flow", "sentence"),
    [
        (
            "below",
            """step 'more' cannot be on the edge (rule 2: its input 'same' is in the cloud): 'same' is pinned
            to the cloud, so take .at("cloud") off 'same', or let 'more' run in the cloud""",
        ),
        (
            "far",
            """step 'more' cannot be on the edge (rule 2: its input 'some' is in the cloud): 'same' is pinned
            to the cloud, so take .at("cloud") off 'same', or let 'more' run in the cloud""",
        ),
        (
            "keyed",
            """step 'largest' cannot be on the edge (rule 2: the keys of 'rows_by_name' are not local to
            a device): declare partitioned_by="name" on 'rows', if each name lives on one
            device, or let 'largest' run in the cloud""",
        ),
        (
            "lost",
            """step 'largest' cannot be on the edge (rule 2: the keys of 'same_by_name' are not local to
            a device): say keeps=("name",) at 'same', where
            partitioned_by="name" is lost, if it keeps it, or let 'largest' run in the cloud""",
        ),
        (
            "computed",
            """step 'largest' cannot be on the edge (rule 2: the keys of 'first_letter' are not local to
            a device): key its input by the field that its
            source is partitioned_by, by name, or let 'largest' run in the cloud""",
        ),
        (
            "apart",
            """step 'pairs' cannot be on the edge (rule 2: its inputs are partitioned by different fields):
            partition all of them by the field that is their key, or let 'pairs' run in the cloud""",
        ),
        (
            "far_source",
            """step 'more' cannot be on the edge (rule 2: its input 'rows' is in the cloud): take .at("cloud")
            off 'rows', deal its records with device=..., or let 'more' run in the cloud""",
        ),
        (
            "split",
            """step 'as_row' cannot be on the edge (rule 2: its input 'hours' is in the cloud): it merges the
            partial aggregates of all devices, so its part that can be there is 'hours_partial': name that, or
            let 'as_row' run in the cloud""",
        ),
        (
            "seldom",
            """step 'visits' cannot be on the edge (rule 2: the keys of 'rows_by_n' are not local to a
            device): declare partitioned_by="n" on 'rows', if each n lives on one device, or let 'visits' run
            in the cloud""",
        ),
        (
            "valve",
            """step 'open' cannot be on the edge (rule 2: its input 'same' is in the cloud): end a stream of
            the devices in it: pin the step before it with .at("edge", device=...)""",
        ),
        (
            "table",
            """step 's' cannot be on the edge (rule 1: a table is a store of the cloud): leave the tier of 's'
            to the planner, or end the stream in a sink of the device""",
        ),
    ],
)
def test_an_illegal_pin_names_step_rule_and_fix_before_anything_runs(
    flow: str, sentence: str, module: Path, capsys: Capture
) -> None:
    for more in ([], ["--compare"], ["--measure", "5"], ["--cut", "cloud"]):
        code, out, err = gear(["plan", f"pins_flow:{flow}", *more], capsys)
        assert (code, out) == (2, "")
        assert " ".join(err.split()) == f"gear: {' '.join(sentence.split())}"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([STOCKS, "--measure", "5"], "source quotes has no file"),
        ([STOCKS, "--measure", "0"], "plan: --measure must be greater than or equal to 0.1"),
        ([STOCKS, "--capacity", "0"], "plan: --capacity must be greater than or equal to 0.001"),
        ([DAG, "--svg", "hearts_flow.py/plan.svg"], "--svg hearts_flow.py/plan.svg: the file cannot be writ"),
        (["hearts_flow:flow", "--cut", "beats,dance"], "flow hearts has no step 'dance'; its steps: beats, "),
    ],
)
def test_a_mistake_is_one_sentence_with_the_fix(
    arguments: list[str], sentence: str, module: Path, capsys: Capture
) -> None:
    code, out, err = gear(["plan", *arguments], capsys)
    assert (code, out) == (2, "")
    assert sentence in " ".join(err.split())


def test_a_source_that_gives_nothing_cannot_be_measured(module: Path, capsys: Capture) -> None:
    (module / "nothing.py").write_text(PINS.replace("table.pin", "# table.pin"), encoding="utf-8")
    code, _, err = gear(["plan", "nothing:table", "--measure", "1"], capsys)
    assert code == 2
    assert "rows gave no record within 0.0 s, so nothing is known: give it more time" in err


BOXES = """
from geartrain import Flow, Record, Table
from geartrain.sinks import KafkaSink
from geartrain_devices.csv_replay import CsvReplay


class Box(Record):
    camera: str
    xmin: float


flow = Flow("boxes")
boxes = flow.source("b", CsvReplay(path="", time_column="time"), out=Box)
boxes.sink("table", Table("boxes"))
boxes.sink("topic", KafkaSink("topic", topic="boxes"))
"""


def test_a_plan_asks_what_stores_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "boxes_to_plan.py").write_text(BOXES)
    monkeypatch.syspath_prepend(str(tmp_path))
    flow = "boxes_to_plan:flow"
    (warning,) = planned([flow], capsys)["warnings"]
    assert warning.startswith("sink 'table': table 'boxes' has a field 'xmin', a name that PostgreSQL keeps")
    assert warning.endswith("where [tables] store of the platform is a PostgreSQL")
    code, _, err = gear(["plan", flow, "--set", "topic.brokers=b:none"], capsys)
    assert code == 2
    assert "sink 'topic': brokers = 'b:none': 'b:none' is no address of a broker" in err
    with pytest.raises(
        ConfigError, match=r"sink 'topic' has no brokers: set brokers .*--set topic\.brokers=…"
    ):
        body_of(flow, SubmitWishes())


def test_a_plan_says_what_runs_each_step_in_spark(capsys: Capture) -> None:
    steps = {one["id"]: one for one in planned([STOCKS, "--cut", "cloud"], capsys)["steps"]}
    assert (steps["quotes"]["stage"], steps["quotes"]["engine"]) == (None, None)
    assert (steps["drawdown"]["stage"], steps["drawdown"]["engine"]) == (1, "embedded")
    assert "stage 1, embedded" in gear(["plan", STOCKS, "--cut", "cloud"], capsys)[1]
