"""The rules of the traffic tables on rows chosen for them, each worked out by hand; and what is refused."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from geartrain.errors import ConfigError, SourceError
from geartrain.flow.loading import load_flow
from geartrain.planning import choose_cut
from geartrain_cloud.cli.inprocess import run_in_process
from geartrain_examples.traffic.demo import TrafficOptions, check
from geartrain_examples.traffic.files import microseconds, street_of
from tests.demo.traffic_reference import TABLES
from tests.demo.traffic_world import FLOW, cut_tables, dealt_world, expected_of, prepared, whole

PASSES = "time_s,detector,edge,lane,vehicle,speed_mps\n"
LOOPS = "begin_s,detector,n,speed_mps,occupancy_pct\n"


def written(folder: Path, passes: str, loops: str = "", checkpoints: str = "") -> dict[str, Path]:
    """Files of these rows, each with its header."""
    found = {"passes": folder / "passes.csv"}
    found["passes"].write_text(PASSES + passes)
    if loops:
        found["loops"] = folder / "loops.csv"
        found["loops"].write_text(LOOPS + loops)
    if checkpoints:
        found["checkpoints"] = folder / "checkpoints.csv"
        found["checkpoints"].write_text("detector,x_m,y_m\n" + checkpoints)
    return found


def tables(inputs: dict[str, Path], folder: Path, **given: Any) -> dict[str, Any]:
    run_in_process(whole(inputs, **given), folder / "out")
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (folder / "out").glob("*.json")
    }


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("8.58", 8_580_000),
        ("0.0000005", 0),
        ("0.0000015", 2),
        ("0.0000025", 2),
        ("0.00000250000000000000000000000000001", 3),
        ("-1.5", -1_500_000),
        (" 3 ", 3_000_000),
        ("1e-6", 1),
        ("1E3", 1_000_000_000),
        ("4503599627.370497", 4_503_599_627_370_497),
    ],
)
def test_seconds_are_exact_and_half_goes_to_even(text: str, us: int) -> None:
    assert microseconds(text) == us


@pytest.mark.parametrize(
    "text", ["", "nan", "inf", "1_000", "0x1", "1e9999", "1e300", "12:00", "٣", "9" * 2_000]
)
def test_what_is_no_number_of_seconds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="seconds"):
        microseconds(text)


def test_street_of_a_loop() -> None:
    assert street_of("loop_A0A1_0") == "A0A1"
    assert street_of("loop_top_3_D3_12") == "top_3_D3"
    assert street_of("ring_2") == "ring"
    for name in ("loop_", "loop_A0A1", "_1", "loop_A0A1_x", ""):
        with pytest.raises(ValueError, match="is no loop of a street"):
            street_of(name)


def test_over_the_limit_is_strictly_over(tmp_path: Path) -> None:
    rows = "1,c_0,S,0,a,13.89\n2,c_0,S,0,b,13.890000000000002\n2,c_0,S,0,b,14\n"
    found = tables(written(tmp_path, rows), tmp_path)["overspeed"]
    assert [(row["time"][17:], row["speed_mps"]) for row in found] == [
        ("02Z", 13.890000000000002),
        ("02Z", 14.0),
    ]
    assert tables(written(tmp_path, rows), tmp_path, limit_mps=14.0)["overspeed"] == []


def test_sections_are_compared_exactly(tmp_path: Path) -> None:
    places = "p_0,0,0\nq_0,600,400\nr_0,600.0000000001,400\n"
    # 1,000 m in 60 s are 60 km/h to the last digit; in 18 s they are 200 km/h.
    rows = "0,p_0,S,0,just,10\n60,q_0,T,0,just,10\n0,p_0,S,0,over,10\n60,r_0,T,0,over,10\n"
    rows += "0,p_0,S,0,mark,10\n18,q_0,T,0,mark,10\n0,p_0,S,0,fake,10\n17.999999,q_0,T,0,fake,10\n"
    found = tables(written(tmp_path, rows, checkpoints=places), tmp_path)
    assert [row["vehicle"] for row in found["section_overspeed"]] == ["fake", "mark", "over"]
    assert [row["vehicle"] for row in found["fake_plates"]] == ["fake"]
    (fake,) = found["fake_plates"]
    assert fake == {
        "time": "2026-01-01T00:00:17.999999Z",
        "vehicle": "fake",
        "from_detector": "p_0",
        "to_detector": "q_0",
        "from_time": "2026-01-01T00:00:00Z",
        "distance_m": 1000.0,
        "speed_mps": 1_000 / 17.999999,
    }


def test_places_are_the_decimals_that_were_written(tmp_path: Path) -> None:
    # 0.7 m in 0.07 s are 36 km/h; the floats nearest to 0.8 and 0.1 are further apart than that.
    inputs = written(tmp_path, "0,p_0,S,0,x,9\n0.07,q_0,T,0,x,9\n", checkpoints="p_0,0.1,0\nq_0,0.8,0\n")
    assert tables(inputs, tmp_path, section_limit_kmh=36.0)["section_overspeed"] == []
    (row,) = tables(inputs, tmp_path, section_limit_kmh=35.999)["section_overspeed"]
    assert (row["distance_m"], row["speed_mps"]) == (0.7, 10.0)


def test_a_limit_above_what_is_possible_leaves_fakes_alone(tmp_path: Path) -> None:
    inputs = written(tmp_path, "0,p_0,S,0,x,9\n10,q_0,T,0,x,9\n", checkpoints="p_0,0,0\nq_0,1000,0\n")
    found = tables(inputs, tmp_path, section_limit_kmh=400.0)
    assert found["section_overspeed"] == []
    assert [row["vehicle"] for row in found["fake_plates"]] == ["x"]


def test_passes_of_one_moment_go_by_detector_on_any_number_of_devices(tmp_path: Path) -> None:
    # The streets are named so that dealing puts the first detector on the last device.
    places = "a_0,0,0\nb_0,100,0\nc_0,100,50\n"
    rows = "5,c_0,S1,0,x,9\n5,a_0,S3,0,x,8\n5,b_0,S2,0,x,7\n1000,b_0,S2,0,x,7\n5,c_0,S1,0,x,6\n"
    inputs = written(tmp_path, rows, checkpoints=places)
    found = tables(inputs, tmp_path)
    assert [(r["from_detector"], r["to_detector"], r["speed_mps"]) for r in found["fake_plates"]] == [
        ("a_0", "b_0", None),
        ("b_0", "c_0", None),
    ]
    assert found["section_overspeed"] == found["fake_plates"]
    seen = [(one["detector"], one["speed_mps"]) for one in found["traces"][0]["passes"]]
    assert seen == [("a_0", 8.0), ("b_0", 7.0), ("c_0", 9.0), ("c_0", 6.0), ("b_0", 7.0)]
    wanted = expected_of(inputs)
    for devices in (1, 2, 3):
        graph, world = dealt_world(inputs, devices)
        for seed, cut in enumerate(("edge", "cloud") * 3):
            assert cut_tables(graph, choose_cut(graph, cut), world, seed, tmp_path) == wanted


def test_a_pass_nobody_can_place_parts_two_sections(tmp_path: Path) -> None:
    rows = "0,p_0,S,0,x,9\n1,lost_0,S,0,x,9\n2,q_0,T,0,x,9\n"
    found = tables(written(tmp_path, rows, checkpoints="p_0,0,0\nq_0,5000,0\n"), tmp_path)
    assert found["section_overspeed"] == found["fake_plates"] == []


def test_a_trace_keeps_the_last_twenty(tmp_path: Path) -> None:
    rows = "".join(f"{t},d{t}_0,S,0,x,9\n" for t in range(25))
    (trace,) = tables(written(tmp_path, rows), tmp_path)["traces"]
    assert [one["detector"] for one in trace["passes"]] == [f"d{t}_0" for t in range(5, 25)]


def test_levels_of_a_street(tmp_path: Path) -> None:
    minutes = {0: [9.0] * 3, 1: [9.0] * 3, 2: [9.0] * 3, 3: [], 4: [], 5: [4.9, 5.0, 5.1], 6: [4, 4.9, 5.9]}
    minutes |= {7: [1.0, 1.0], 8: []}
    rows = "".join(
        f"{60 * m + i},c_0,S,0,v{m}{i},{v}\n" for m, speeds in minutes.items() for i, v in enumerate(speeds)
    )
    loops = "420,loop_S_0,0,-1.0,20\n420,loop_S_1,0,-1.0,30\n480,loop_S_0,0,-1,24.99\n600,loop_T_0,0,-1,0\n"
    found = tables(written(tmp_path, rows, loops), tmp_path)["streets"]
    street = [row for row in found if row["edge"] == "S"]
    assert [row["level"] for row in street] == [
        *("free", "free", "free"),
        *("silent", "free"),
        *("free", "congested"),  # a mean of exactly 5, and one below
        *("congested", "free"),  # two passes are too few, but 25 % are enough; less is not
        *("free", "free"),  # to the last minute of any file
    ]
    assert street[5]["mean_speed_mps"] == 5.0
    assert (street[7]["passes"], street[7]["occupancy_pct"]) == (2, 25.0)
    assert street[3] == {
        "edge": "S",
        "minute": "2026-01-01T00:03:00Z",
        "passes": 0,
        "mean_speed_mps": None,
        "occupancy_pct": None,
        "level": "silent",
    }
    assert [row["minute"] for row in found if row["edge"] == "T"] == ["2026-01-01T00:10:00Z"]


def test_without_an_end_a_street_rests_after_an_hour(tmp_path: Path) -> None:
    inputs = written(tmp_path, "0,c_0,S,0,x,9\n36000,c_0,S,0,x,9\n")
    graph = load_flow(FLOW).graph().with_options({"passes": {"path": str(inputs["passes"])}})
    run_in_process(graph, tmp_path)
    minutes = [row["minute"][11:16] for row in json.loads((tmp_path / "streets.json").read_text())]
    assert minutes == [f"{m // 60:02}:{m % 60:02}" for m in (*range(60), *range(600, 660))]


def test_files_may_be_gzip_in_any_order_and_name_the_street_of_a_loop(tmp_path: Path) -> None:
    inputs = written(tmp_path, "70.5,c_0,Ö-1,1,x,9\n9.25,c_0,Ö-1,0,y,30\n")
    inputs["loops"] = tmp_path / "loops.csv.gz"
    rows = "edge,occupancy_pct,begin_s,n,speed_mps,detector\nÖ-1,1.5,60,2,9,any name\n"
    inputs["loops"].write_bytes(gzip.compress(rows.encode()))
    inputs["passes"] = inputs["passes"].rename(tmp_path / "p.csv")
    run_in_process(whole(inputs), tmp_path / "out")
    wanted = expected_of(inputs)
    assert {name: (tmp_path / "out" / f"{name}.json").read_bytes() for name in TABLES} == wanted
    assert '"Ö-1"' in wanted["streets"].decode()


def test_rows_that_are_none_are_letters_and_change_nothing(tmp_path: Path) -> None:
    good = "1,c_0,S,0,x,9\n"
    bad = [
        "soon,c_0,S,0,x,9",
        "2,c_0,S,0,,9",
        "2,c_0,,0,x,9",
        "2,c_0,S,0,x,nan",
        "9999,c_0,S,zero,x,9",
        "2,c_0",
    ]
    inputs = written(
        tmp_path, good + "\n".join(bad) + "\n", "0,no street,0,-1,0\n0,loop_S_0,0,-1,\n0,loop_S_0,0,-1,0\n"
    )
    graph, world = dealt_world(inputs, 2)
    assert len(world.devices) == 1  # a street that nobody can read is nobody's part
    result = run_in_process(whole(inputs), tmp_path / "out")
    assert result.dead_letters == len(bad) + 2
    reasons = " ".join(letter["reason"] for letter in result.refused)
    assert "passes.csv, line 3: column time_s: 'soon' is not a number of seconds, such as 8.58" in reasons
    assert (
        "loops.csv, line 2: column edge: 'no street' is no loop of a street, such as loop_A0A1_0" in reasons
    )
    found = json.loads((tmp_path / "out" / "streets.json").read_text())
    assert [row["minute"] for row in found] == ["2026-01-01T00:00:00Z"]  # a refused row has no last minute
    assert graph.name == "traffic"


def test_start_moves_all(tmp_path: Path) -> None:
    inputs = written(tmp_path, "61.5,c_0,S,0,x,30\n")
    found = tables(inputs, tmp_path, start="2024-02-29T23:58:59.5+01:00")
    assert found["overspeed"][0]["time"] == "2024-02-29T23:00:01Z"
    assert found["city"] == [{"minute": "2024-02-29T23:00:00Z", "passes": 1, "mean_speed_mps": 30.0}]


@pytest.mark.parametrize(
    ("given", "inputs", "said"),
    [
        ({"vehicles": 5}, {}, "--vehicles is for a made-up city: add --city N"),
        ({"fake_share": 0.5}, {}, "--fake-share is for a made-up city"),
        ({"city": 3}, {"loops": Path("l.csv")}, "--city makes its own traffic: leave out --loops l.csv"),
        ({}, {"loops": Path("l.csv")}, "--loops l.csv comes without passes: add --passes FILE"),
    ],
)
def test_options_that_do_not_go_together(given: dict[str, Any], inputs: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check(TrafficOptions(**given, **inputs))


def test_a_wrong_setting_is_a_sentence(tmp_path: Path) -> None:
    for given, said in (
        ({"start": "noon"}, "--start: 'noon' is not an ISO 8601 date or time"),
        ({"limit_mps": math.nan}, "--limit-mps nan: write a number from 0 on"),
        ({"section_limit_kmh": -1.0}, "--section-limit-kmh -1.0: write a number from 0 on"),
    ):
        with pytest.raises(ConfigError, match=said):
            check(msgspec.convert(given, TrafficOptions))
    with pytest.raises(SourceError, match="has no street in it"):
        prepared(written(tmp_path, ""))
    path = tmp_path / "other.csv"
    path.write_text("time_s\n1\n")
    with pytest.raises(SourceError, match="has no column 'detector'"):
        prepared({"passes": path})


def test_missing_places_are_said_once(tmp_path: Path) -> None:
    (sentence,) = prepared(written(tmp_path, "1,c_0,S,0,x,9\n"))[1].said
    assert sentence.startswith("no --checkpoints FILE says where the cameras stand, so the tables section_")
    inputs = written(tmp_path, "1,c_0,S,0,x,9\n", checkpoints="c_0,0,0\n")
    assert prepared(inputs)[1].said == []
