"""What the traffic demo offers its launcher: sample, made-up city, options, cut, figures, and the summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from geartrain.errors import PlacementError
from geartrain.flow.loading import load_flow
from geartrain.planning import choose_cut, make_plan
from geartrain.planning.splitting import with_partials
from geartrain_client.cli.plan import measure
from geartrain_cloud.cli.demos import Demo, load_demo
from geartrain_cloud.cli.inprocess import run_in_process
from geartrain_cloud.pages.reader import TableReader
from geartrain_examples.traffic import flow
from geartrain_examples.traffic.city import City, write_city
from geartrain_examples.traffic.demo import DEMO, TrafficOptions, files
from tests.demo.traffic_world import FLOW, SAMPLE_INPUTS, prepared, whole


def test_demo_is_found_by_its_entry_point_and_is_all_that_is_asked() -> None:
    found: Demo = load_demo("traffic")
    typed: Demo = DEMO  # checked by mypy
    assert found is typed


def test_flow_is_short_and_says_nothing_of_where_it_runs() -> None:
    text = Path(flow.__file__).read_text(encoding="utf-8")
    assert text.count("\n") < 150
    assert not [word for word in (".at(", "cloud", "mqtt", "spark") if word in text.lower()]


def test_the_sample_is_used_where_nothing_is_given(tmp_path: Path) -> None:
    assert files(tmp_path, TrafficOptions()) == SAMPLE_INPUTS
    assert files(tmp_path, TrafficOptions(passes=Path("p"))) == {"passes": Path("p")}
    others = files(tmp_path, TrafficOptions(checkpoints=Path("c")))
    assert others == SAMPLE_INPUTS | {"checkpoints": Path("c")}
    assert list(tmp_path.iterdir()) == []


def test_a_street_is_on_one_device_and_checkpoints_on_the_first() -> None:
    graph, setup = prepared(SAMPLE_INPUTS, 8)
    assert setup.steps["streets"]["end"] == "2026-01-01T00:19:00Z"
    taken = [street for one in setup.devices.values() for street in one["passes"]["select"]]
    assert len(taken) == len(set(taken)) == 80
    assert set(setup.paced) == {"passes", "loops"}
    for device, one in setup.devices.items():
        graph.with_options(one)
        assert one["loops"]["select"] == one["passes"]["select"]
        assert ("checkpoints" in one) is one["passes"]["others"] is (device == "device-1")


def test_edge_is_all_that_is_legal_and_steps_can_be_named() -> None:
    graph = load_flow(FLOW).graph()
    assert choose_cut(graph, "edge").edge >= choose_cut(graph, "auto").edge
    named = choose_cut(graph, "overspeed,streets").edge
    assert {"overspeed", "streets", "passes", "loops"} <= named
    assert "city_partial" not in named
    assert choose_cut(graph, "cloud").edge == {"passes", "loops", "checkpoints"}
    with pytest.raises(PlacementError, match="step 'traces"):
        choose_cut(graph, "traces")


def test_what_auto_sends_is_within_5_percent_of_the_least() -> None:
    graph = with_partials(whole(SAMPLE_INPUTS))
    costs = measure(graph, 60.0)
    assert costs.ended
    chosen, best, all_cloud = (make_plan(graph, cut, costs) for cut in ("auto", "streets", "cloud"))
    sent, least, raw = (costs.of_cut(one.graph, one.cut).bytes for one in (chosen, best, all_cloud))
    assert sent <= 1.05 * least
    assert sent < raw
    for plan in (chosen, make_plan(graph, "edge")):
        assert {"overspeed", "streets", "city_partial"} <= set(plan.edge)
        assert {"legs", "traces", "city"} <= set(plan.cloud)
    # The streets alone: what they need of the raw rows, against their own.
    streets = costs.streams["streets"].bytes
    assert streets < 0.25 * (costs.streams["passes"].bytes + costs.streams["loops"].bytes)


def test_a_made_up_city_is_the_same_each_time(tmp_path: Path) -> None:
    city = City(4, 50, 0.1)
    for name in ("a", "b"):
        write_city(city, tmp_path / name)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
        assert path.stat().st_mode & 0o777 == 0o600
    places = (tmp_path / "a" / "checkpoints.csv").read_text().splitlines()
    assert len(places) == 1 + 16
    assert places[-1] == "cam_D3_0,15000,15000"


def test_a_made_up_city_has_streets_along_and_across_each_way() -> None:
    assert len(set(City(40, 1, 0).streets())) == 4 * 40 * 39
    city = City(4, 300, 0.1)
    streets = set(city.streets())
    assert {"A0B0", "B0A0", "A0A1", "A1A0", "D3C3", "D3D2"} <= streets
    assert len(streets) == 48
    edges = set()
    for _, detector, edge, _, _, _ in city.passes():
        at = detector.removeprefix("cam_").removesuffix("_0")
        assert at in (edge[:2], edge[2:])  # each camera stands at an end of the street
        edges.add(edge)
    assert edges == streets


@pytest.mark.parametrize(("size", "vehicles", "share"), [(2, 40, 0.5), (6, 150, 0.1), (3, 30, 0.0)])
def test_fake_plates_of_a_city_are_those_used_twice(
    size: int, vehicles: int, share: float, tmp_path: Path
) -> None:
    city = City(size, vehicles, share)
    run_in_process(whole(write_city(city, tmp_path / "in")), tmp_path)
    found = {row["vehicle"] for row in json.loads((tmp_path / "fake_plates.json").read_text())}
    assert found == set(city.fakes())
    assert len(found) == round(vehicles * share)


def test_summary_counts_what_was_found(tmp_path: Path) -> None:
    run_in_process(whole(SAMPLE_INPUTS), tmp_path)
    title, heads, lines = DEMO.summary(TableReader(tmp_path / "tables.sqlite"))
    assert (title, heads) == ("Traffic", ["what", "how many"])
    found = {line[0]: line[1] for line in lines}
    assert found["passes"] == "6,138"
    assert found["of these above the limit"] == "301"
    assert found["vehicles"] == "1,286"
    assert found["streets"] == "80"
    assert found["plates used twice"] == "0"
    assert int(found["of these congested at some minute"]) > 0
