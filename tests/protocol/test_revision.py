"""Revisions: one hash for one flow wherever it is made, and a sentence for each thing that differs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from geartrain import Context, Flow, Record, State, Table, Task, agg, tumbling
from geartrain.declarations.options import FilePath
from geartrain.errors import ConfigError
from geartrain.flow.loading import load_flow
from geartrain.planning import make_plan
from geartrain.revision import Revision, code_of, differences, in_short, revision_of
from geartrain.revision.revision import BYTES_MAX
from geartrain.testing import TestingSource
from tests.waiting import WAIT_S

EXAMPLES = [
    f"geartrain_examples.{name}:flow"
    for name in (
        "stocks.flow",
        "traffic.flow",
        "control_loop.flow",
        "complexdag.flow",
        "nexmark.q5",
        "sol.flow",
    )
]
ROOT = Path(__file__).parents[2]


class Reading(Record):
    sensor: str
    celsius: float


class WiderReading(Record, tag=False):
    sensor: str
    celsius: float | None


class Warmest(Record):
    key: str
    window_start: datetime
    celsius: float


class Seen(State):
    count: int = 0


class SeenMore(State):
    count: int = 0
    last: float = 0.0


class Alarms(Task[Reading, Reading]):
    state: ClassVar[type] = Seen
    above: float = 30.0
    calibration: FilePath = "table.csv"

    def on_next(self, value: Reading, ctx: Context[Reading, Seen]) -> None:
        ctx.emit(value)


class OtherAlarms(Alarms):
    state: ClassVar[type] = SeenMore


def is_warm(reading: Reading) -> bool:
    return reading.celsius > 20


def is_hot(reading: Reading) -> bool:
    return reading.celsius > 30


def heat(
    *,
    keep: Callable[[Reading], bool] = is_warm,
    key: str | Callable[[Reading], str] = "sensor",
    alarms: Task[Reading, Reading] | None = None,
    minutes: int = 1,
    partitioned_by: str | None = "sensor",
    out: Any = Reading,
    more: bool = False,
) -> Revision:
    """The revision of a small flow with some of it changed, cut at the filter."""
    flow = Flow("heat")
    source: Any = TestingSource(items=[(1, Reading("a", 20.5))])
    readings: Any = flow.source("readings", source, out=out, partitioned_by=partitioned_by)
    keyed = readings.filter(keep, name="kept").key_by(key, name="by_sensor")
    keyed.process("alarms", alarms or Alarms(), out=out).sink("alarm_table", Table("alarms", key=("sensor",)))
    window = keyed.window(tumbling(timedelta(minutes=minutes)))
    warmest = window.aggregate("warmest", celsius=agg.max("celsius"), out=Warmest)
    warmest.sink("warmest_table", Table("warmest"))
    if more:
        readings.sink("all", Table("all"))
    return revision_of("heat:flow", make_plan(flow.graph(), ["kept"]))


@pytest.mark.parametrize("spec", EXAMPLES)
def test_a_revision_is_the_same_in_every_process_and_under_every_instance(spec: str, tmp_path: Path) -> None:
    def made(instance: str = "") -> Revision:
        return revision_of(spec, make_plan(load_flow(spec).graph().named(instance)), code=code_of(spec))

    ours = made()
    assert made("some.3").hash == ours.hash
    assert Revision.from_json(ours.to_json()) == ours
    assert differences(ours, made()) == []
    program = (
        "from geartrain.flow.loading import load_flow; from geartrain.planning import make_plan\n"
        "from geartrain.revision import code_of, revision_of\n"
        f"print(revision_of({spec!r}, make_plan(load_flow({spec!r}).graph()), code=code_of({spec!r})).hash)"
    )
    command = [sys.executable, "-c", program]
    environment = {"PYTHONHASHSEED": "7", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    assert done.stdout.strip() == ours.hash


def test_a_revision_has_no_address_no_path_and_no_name_of_an_instance() -> None:
    for spec in EXAMPLES:
        text = revision_of(
            spec, make_plan(load_flow(spec).graph().named("here.7")), code=code_of(spec)
        ).to_json()
        assert " at 0x" not in text
        assert str(ROOT) not in text
        assert "here" not in text
        assert text.isascii()


def window_of(seconds: int) -> str:
    return f'{{"":"Tumbling","size_us":{seconds * 1_000_000}}}'


CHANGES: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"keep": is_hot},
        ["step kept: its option predicate was {module}.is_warm, is now {module}.is_hot"],
    ),
    (
        {"alarms": Alarms(above=35.0)},
        ["step alarms: its option above was not set, is now 35.0"],
    ),
    ({"alarms": Alarms(calibration="/other/table.csv")}, []),
    (
        {"alarms": OtherAlarms()},
        [
            "step alarms: its state type was {count:int}, is now {count:int,last:float}",
            "step alarms: its option task was {module}.Alarms, is now {module}.OtherAlarms",
        ],
    ),
    (
        {"minutes": 5},
        [f"step warmest: its option window was {window_of(60)}, is now {window_of(300)}"],
    ),
    ({"partitioned_by": None}, ["source readings: it was partitioned by sensor, is now by none"]),
    ({"more": True}, ["step all is new"]),
]


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_each_change_is_said_in_the_words_of_the_flow(change: dict[str, Any], said: list[str]) -> None:
    old, new = heat(), heat(**change)
    # A domain that is lost needs an `order` step, a new reader lets a stream cross: said as well.
    found = [clause for clause in differences(old, new) if "order" not in clause and "channel" not in clause]
    assert found == [clause.replace("{module}", __name__) for clause in said]
    assert (old.hash == new.hash) is (not said)
    assert differences(new, old) != [] or not said


def test_a_key_and_a_record_that_change_are_said() -> None:
    by_first = differences(heat(), heat(key=lambda reading: reading.sensor[:1]))
    assert any(clause.startswith("step by_sensor: its key was sensor, is now ") for clause in by_first)
    wider = differences(heat(), heat(out=WiderReading))
    assert "step kept: its records had celsius as float64, now have it as float64 or None" in wider
    assert "channel kept: its records had celsius as float64, now have it as float64 or None" in wider


def test_another_cut_is_said_and_each_tier_has_its_own_steps() -> None:
    graph = load_flow("geartrain_examples.traffic.flow:flow").graph()
    edge, cloud = (revision_of("", make_plan(graph, cut)) for cut in ("edge", "cloud"))
    found = differences(edge, cloud)
    assert any(clause.endswith("it stood on the devices, stands now in the cloud") for clause in found)
    assert any(clause.startswith("channel passes is new") for clause in found)
    for one in (edge, cloud):
        parts = [{step.id for step in one.on(tier).steps} for tier in ("edge", "cloud")]
        assert parts[0] == set(one.cut)
        assert parts[0] | parts[1] == {step.id for step in one.steps}


def test_a_sentence_tells_three_differences_and_counts_the_others() -> None:
    assert in_short(["a", "b"]) == "a; b"
    assert in_short(list("abcde")) == "a; b; c; and 2 more"


def test_what_is_no_revision_is_refused_in_one_sentence() -> None:
    good = json.loads(heat().to_json())
    wrong: list[str | bytes] = [
        b"",
        b"{",
        b"[]",
        b"\xff",
        json.dumps(good | {"format": 9}),
        json.dumps(good | {"more": 1}),
    ]
    wrong += [json.dumps(good | {"steps": [{"id": "a"}]}), "[" * 100_000, " " * (BYTES_MAX + 1)]
    for text in wrong:
        with pytest.raises(ConfigError, match=r"a revision .*read") as caught:
            Revision.from_json(text)
        assert "\n" not in str(caught.value)
