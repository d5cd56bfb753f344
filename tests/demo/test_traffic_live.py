"""The sources of a live run follow their files byte by byte; without SUMO the option says what to install."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import msgspec
import pytest

from geartrain.adapters.files import write_private
from geartrain.errors import ConfigError
from geartrain.flow.loading import load_flow
from geartrain.planning import choose_cut
from geartrain.source import Batch, Split
from geartrain_examples.traffic import demo, simulate
from geartrain_examples.traffic.demo import DEMO, TrafficOptions, check
from geartrain_examples.traffic.live import FollowedPasses, FollowedReadings
from geartrain_examples.traffic.records import Pass, Reading

LIVE = TrafficOptions(live=True)


def line(time_us: int, edge: str, vehicle: str = "x") -> bytes:
    return msgspec.json.encode((time_us, Pass(f"cam_{edge}_0", edge, 0, vehicle, 9.5))) + b"\n"


def read(split: Split, position: int, limit: int = 100) -> Batch:
    return asyncio.run(split.read(position, limit))


def test_lines_are_read_once_they_are_whole_and_from_any_position(tmp_path: Path) -> None:
    path = tmp_path / "passes.jsonl"
    (split,) = FollowedPasses(path=str(path), select=["A", "Ö"]).open("device-1", "passes", Pass)
    assert split.name == "device-1"
    assert read(split, 0) == Batch([], [], [], 0, [])
    lines = [line(10, "A"), line(20, "B"), line(20, "Ö", "y"), b"[30, 7]\n", line(40, "A")]
    path.write_bytes(b"".join(lines)[:-3])
    places = [sum(map(len, lines[:n])) for n in range(6)]
    poll = read(split, 0)
    assert [(time, one.vehicle) for time, one in zip(poll.times, poll.values, strict=True)] == [
        (10, "x"),
        (20, "y"),
    ]
    assert poll.numbers == [places[0], places[2]]
    assert [(one.number, one.raw) for one in poll.rejects] == [(places[3], lines[3])]
    assert (poll.position, poll.ended) == (places[4], False)
    path.write_bytes(b"".join(lines))
    assert read(split, places[4]).times == [40]
    assert read(split, places[1], 1).position == places[3]  # what is another device's takes no room
    assert read(split, places[5]) == Batch([], [], [], places[5], [])


def test_a_reading_comes_when_its_minute_is_over(tmp_path: Path) -> None:
    path = tmp_path / "readings.jsonl"
    path.write_bytes(msgspec.json.encode((5, Reading("loop_A_0", "A", 0, -1.0, 0.0))) + b"\n")
    (split,) = FollowedReadings(path=str(path)).open("d", "loops", Reading)
    assert split.out_of_orderness_us > 60_000_000
    assert read(split, 0).values == [Reading("loop_A_0", "A", 0, -1.0, 0.0)]


def test_the_live_flow_is_the_same_flow_from_other_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = tmp_path / "checkpoints.csv"
    write_private(checkpoints, "detector,x_m,y_m\ncam_A0A1_0,0,5\ncam_A0A1_1,0,5\ncam_B0left0_0,2,2\n")
    monkeypatch.setattr(demo, "prepare", lambda folder: checkpoints)
    setup = DEMO.set_up(tmp_path, LIVE, 2)
    assert setup.parts == {"device-1": ["A0A1"], "device-2": ["B0left0"]}
    assert (setup.steps["streets"], list(setup.paced), list(setup.said)) == ({"end": ""}, [], [])
    graph, file_graph = (load_flow(DEMO.flow(options)).graph() for options in (LIVE, TrafficOptions()))
    assert [step.id for step in graph.steps] == [step.id for step in file_graph.steps]
    assert choose_cut(graph, "auto") == choose_cut(file_graph, "auto")
    graph = graph.with_options(setup.steps)
    for options in (*setup.devices.values(), setup.whole):
        graph.with_options(options)
    assert list(DEMO.beside(tmp_path, LIVE)) == ["simulation"]
    assert DEMO.beside(tmp_path, TrafficOptions()) == {}


def test_without_sumo_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = importlib.util.find_spec
    monkeypatch.setattr(simulate, "find_spec", lambda name: None if name == "traci" else found("json"))
    with pytest.raises(
        ConfigError, match=r"traci is not installed: run pip install geartrain-examples\[sumo\]"
    ):
        DEMO.set_up(tmp_path, LIVE, 2)


@pytest.mark.parametrize(
    ("settings", "given", "said"),
    [
        ({"city": 3}, {}, "leave out --city, or --live"),
        ({"start": "2026-02-01"}, {}, "leave out --start, or --live"),
        ({}, {"loops": Path("l")}, "leave out --loops, or --live"),
    ],
)
def test_a_live_run_has_no_input(settings: dict[str, Any], given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check(TrafficOptions(live=True, **settings, **given))
