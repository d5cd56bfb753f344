"""What the traffic page's server answers from tables: streets, growing lists, traces, and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from geartrain.flow.loading import load_flow
from geartrain.planning import make_plan
from geartrain_client.planning.drawing import draw
from geartrain_cloud.cli.inprocess import run_in_process
from geartrain_cloud.pages.reader import TableReader
from geartrain_cloud.sinks.layout import TableError
from geartrain_cloud.sinks.tables import counts, rows, rows_after
from geartrain_examples.traffic.city import City as MadeUp
from geartrain_examples.traffic.city import write_city
from geartrain_examples.traffic.demo import DEMO, TrafficOptions
from geartrain_examples.traffic.page import LISTS, TrafficPage
from geartrain_examples.traffic.records import Checkpoint, Overspeed
from tests.pages.conftest import HOSTILE, served
from tests.pages.test_server import get
from tests.pages.traffic_tables import LIMIT_MPS, MINUTES, City, at, build, edges, trace


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    city = build(tmp_path_factory.mktemp("city"))
    city.close()
    return city.path


@pytest.fixture(scope="module")
def address(tables: Path) -> Iterator[str]:
    plan = make_plan(load_flow("geartrain_examples.stocks.flow:flow").graph(), "edge")
    with served(tables, TrafficPage(plan, LIMIT_MPS, 60.0, draw(plan))) as found:
        yield found


def ask(address: str, path: str) -> tuple[int, Any]:
    status, headers, body = get(address, path)
    assert headers["content-type"].startswith("application/json")
    return status, json.loads(body)


def test_streets_of_a_minute_are_the_rows_of_the_table(address: str, tables: Path) -> None:
    status, found = ask(address, "/api/streets?minute=2026-01-01T00:07:00Z")
    assert (status, found["minute"], len(found["streets"])) == (200, "2026-01-01T00:07:00Z", 80)
    held = [row for row in rows(tables, "streets") if row.pop("minute") == "2026-01-01T00:07:00Z"]
    assert found["streets"] == held
    levels = {row["edge"]: row["level"] for row in found["streets"] if row["level"] != "free"}
    assert levels == {"B3A3": "silent", "C2C3": "congested", "C3B3": "congested", "D3C3": "congested"}
    _, last = ask(address, "/api/streets")
    assert last["minute"] == f"2026-01-01T00:{MINUTES - 1:02}:00Z"


def test_minutes_count_levels_and_passes(address: str, tables: Path) -> None:
    _, found = ask(address, "/api/minutes")
    assert len(found["minutes"]) == MINUTES
    seventh, city = found["minutes"][7], rows(tables, "city")[7]
    assert {k: seventh[k] for k in ("free", "congested", "silent")} == {
        "free": 76,
        "congested": 3,
        "silent": 1,
    }
    assert (seventh["passes"], seventh["mean_speed_mps"]) == (city["passes"], city["mean_speed_mps"])


def test_map_has_every_street_and_the_limits(address: str) -> None:
    _, found = ask(address, "/api/map")
    assert [street["edge"] for street in found["streets"]] == edges()
    assert next(s for s in found["streets"] if s["edge"] == "C3B3") == {
        "edge": "C3B3",
        "from": "C3",
        "to": "B3",
        "at": [2, 3, 1, 3],
    }
    assert (found["layout"], found["limit_mps"], found["section_limit_kmh"]) == ("grid", LIMIT_MPS, 60.0)


def test_list_since_a_time_or_since_the_last_answer(tmp_path: Path) -> None:
    with closing(City(tmp_path)) as city, served(city.path, TrafficPage()) as address:
        city.add({"overspeed": [Overspeed(at(s), "cam_A0A1_0", f"{s}", "A0A1", 20.0) for s in (30, 60, 90)]})
        _, first = ask(address, "/api/overspeed")
        assert [row["vehicle"] for row in first["rows"]] == ["30", "60", "90"]
        assert first["rows"] == rows(city.path, "overspeed")
        assert (first["count"], first["more"]) == (3, False)
        city.add({"overspeed": [Overspeed(at(0.5), "cam_A0A1_0", "late to come", "A0A1", 20.0)]})
        _, since = ask(address, f"/api/overspeed?since={first['next']}")
        assert [row["vehicle"] for row in since["rows"]] == ["late to come"]
        _, none = ask(address, f"/api/overspeed?since={since['next']}")
        assert (none["rows"], none["next"], none["count"]) == ([], since["next"], 4)
        _, again = ask(address, f"/api/overspeed?since={first['next']}")
        assert again == since  # to read clears nothing
        _, timed = ask(address, "/api/overspeed?since=2026-01-01T00:01:00Z")
        assert [row["vehicle"] for row in timed["rows"]] == ["60", "90"]
        _, last = ask(address, "/api/overspeed?last=2")
        assert ([row["vehicle"] for row in last["rows"]], last["next"]) == (["90", "late to come"], "r4")


def test_long_list_comes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geartrain_examples.traffic.page.ROWS_MAX", 2)
    with closing(City(tmp_path)) as city:
        city.add({"overspeed": [Overspeed(at(s), "c", f"{s}", "A0A1", 20.0) for s in (4, 0, 1, 2, 3)]})
        reader, page = TableReader(city.path), TrafficPage()
        for first in ({}, {"since": "r0"}, {"since": "2026-01-01"}):
            seen, query, more = [], dict(first), True
            while more:
                status, part = page.answer(reader, ["overspeed"], query)
                assert (status, len(part["rows"]) <= 2) == (200, True)
                seen += [row["vehicle"] for row in part["rows"]]
                query, more = {"since": part["next"]}, part["more"]
            assert sorted(seen) == ["0", "1", "2", "3", "4"]
        _, part = page.answer(reader, ["overspeed"], {"since": "2026-01-01T00:00:02Z"})
        assert ([row["vehicle"] for row in part["rows"]], part["next"], part["more"]) == (
            ["2", "4"],
            "r4",
            True,
        )


def test_trace_says_where_a_plate_was_and_what_is_wrong(address: str, tables: Path) -> None:
    _, found = ask(address, "/api/trace/FAKE%201")
    assert found["passes"] == rows(tables, "traces", {"vehicle": "FAKE 1"})[0]["passes"]
    assert [one["edge"] for one in found["passes"]] == ["left0A0", "A0A1", "A1B1", "D3D2", "D2D1"]
    assert found["fakes"] == rows(tables, "fake_plates", {"vehicle": "FAKE 1"})
    assert found["overspeed"] == []
    _, both = ask(address, "/api/fakes")
    assert [(row["vehicle"], row["speed_mps"]) for row in both["rows"]] == [
        ("FAKE 1", 75.0),
        ("FAKE 2", None),
    ]


def test_plan_has_its_cut_and_nothing_that_a_browser_would_run(address: str) -> None:
    _, plan = ask(address, "/api/plan")
    assert (plan["flow"], "quotes" in plan["edge"], "worst" in plan["cloud"]) == ("stocks", True, True)
    assert plan["svg"].startswith("<svg ")
    assert 'class="cut"' in plan["svg"]
    assert "style" not in plan["svg"].replace("xmlns", "")


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        (
            "trace/nobody",
            404,
            "no camera has seen the plate 'nobody': there are, for example, 100, 7, FAKE 1",
        ),
        (
            "streets?minute=2026-01-01T05:00:00Z",
            404,
            "nothing is known of the streets in the minute 2026-01-01T05:",
        ),
        (
            "streets?minute=2026-01-01T00:07:09Z",
            400,
            "'2026-01-01T00:07:09Z' is not the start of a minute: ask for ",
        ),
        ("streets?minute=noon", 400, "'noon' is not an ISO 8601 date or time"),
        ("streets?minute=", 400, "'' is not an ISO 8601 date or time"),
        ("overspeed?since=yesterday", 400, "since='yesterday' is neither a time, such as "),
        ("overspeed?since=", 400, "since='' is neither a time"),
        ("fakes?last=0", 400, "last='0' is not a number from 1 to 5000"),
        ("fakes?last=9999999999", 400, "last='9999999999' is not a number from 1 to 5000"),
        ("trace", 404, "there is no such page: ask for /api/map, "),
        ("nothing", 404, "there is no such page: ask for /api/map, "),
    ],
)
def test_what_is_unknown_or_wrong_is_a_sentence(address: str, path: str, status: int, sentence: str) -> None:
    answer = ask(address, f"/api/{path}")
    assert answer[0] == status
    assert answer[1]["error"].startswith(sentence)


def test_nothing_there_yet_is_a_sentence(tmp_path: Path) -> None:
    with served(tmp_path / "tables.sqlite", TrafficPage()) as address:
        assert ask(address, "/api/minutes")[0] == 503
        with closing(City(tmp_path)):
            assert ask(address, "/api/minutes") == (200, {"minutes": []})
            assert ask(address, "/api/map")[1]["streets"] == []
            assert ask(address, "/api/streets") == (404, {"error": "no minute is over yet: ask again"})
            assert ask(address, "/api/trace/1")[1]["error"].endswith("none has passed yet")
            assert ask(address, "/api/plan")[0] == 404


def test_hostile_plate_is_found_by_its_own_name(tmp_path: Path) -> None:
    with closing(City(tmp_path)) as city, served(city.path, TrafficPage()) as address:
        city.add({"traces": [trace(HOSTILE, ["A0A1"], 3)]})
        status, found = ask(address, f"/api/trace/{quote(HOSTILE, safe='')}")
    assert (status, found["vehicle"]) == (200, HOSTILE)


def test_files_of_the_page_load_nothing_from_elsewhere(address: str) -> None:
    where = urlsplit(address)
    for path in sorted(TrafficPage.static.iterdir()):
        status, headers, body = get(
            f"http://{where.netloc}", "/" if path.name == "index.html" else f"/{path.name}"
        )
        assert status == 200
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert b"://" not in body.replace(b"http://www.w3.org/2000/svg", b"")


def test_tables_of_the_flow_are_those_of_the_page(tmp_path: Path) -> None:
    files: dict[str, Any] = write_city(MadeUp(3, 30, 0.1), tmp_path / "input")
    options = TrafficOptions(**files)
    setup = DEMO.set_up(tmp_path, options, 1)
    run_in_process(
        load_flow(DEMO.flow(options)).graph().with_options({**setup.steps, **setup.whole}), tmp_path
    )
    reader, page = TableReader(tmp_path / "tables.sqlite"), TrafficPage()
    found = {name: page.answer(reader, [name], {}) for name in ("map", "minutes", "streets", *LISTS)}
    assert {status for status, _ in found.values()} == {200}
    assert found["map"][1]["layout"] == "checkpoints"
    assert {"name": "B2", "x": 5_000.0, "y": 10_000.0} in found["map"][1]["crossings"]
    assert (
        found["streets"][1]["minute"]
        == found["minutes"][1]["minutes"][-1]["minute"]
        == setup.steps["streets"]["end"]
    )
    plates = {row["vehicle"] for row in found["fakes"][1]["rows"]}
    assert plates
    for plate in plates:
        status, trace_of = page.answer(reader, ["trace", plate], {})
        assert (status, len(trace_of["fakes"]) > 0, len(trace_of["passes"]) > 1) == (200, True, True)


def test_reader_pages_through_a_table_and_counts(tmp_path: Path) -> None:
    with closing(City(tmp_path)) as city:
        city.add({"overspeed": [Overspeed(at(s), "c", f"{s % 2}", "A0A1", 20.0) for s in range(5)]})
        city.add({"checkpoints": [Checkpoint("c", 1.0, 2.0)]})
        reader = TableReader(city.path)
        seen, place = reader.after("overspeed", 0, 2)
        assert (len(seen), place) == (2, 2)
        assert [row["time"][-3:] for row in reader.after("overspeed", place, 9)[0]] == ["02Z", "03Z", "04Z"]
        assert reader.after("overspeed", 5, 9) == ([], 5)
        assert reader.after("section_overspeed", None, 9) == ([], 0)
        assert counts(city.path, "overspeed", ["vehicle"]) == [
            {"vehicle": "0", "count": 3},
            {"vehicle": "1", "count": 2},
        ]
        with pytest.raises(TableError, match="table 'checkpoints' has a key: its rows are replaced"):
            rows_after(city.path, "checkpoints", 0, 9)
        with pytest.raises(TableError, match="table 'city' has no field 'hour'; its fields: minute, passes"):
            counts(city.path, "city", ["hour"])
