"""The traffic page in a real browser: map, minutes, traces, fake plates, hostile ones; by pointer and key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from geartrain.flow.loading import load_flow
from geartrain.planning import make_plan
from geartrain_client.planning.drawing import draw
from geartrain_cloud.platform.places import read_report, write_report
from geartrain_examples.traffic.page import TrafficPage
from geartrain_examples.traffic.records import Overspeed, StreetMinute
from tests.pages.conftest import HOSTILE, served
from tests.pages.traffic_tables import LIMIT_MPS, MINUTES, City, at, build, edges, jump, trace

COLOUR = """(edge) => {
  const shape = document.querySelector(`.street[data-edge="${edge}"]`);
  const style = getComputedStyle(shape);
  return [shape.getAttribute("class").split(" ")[1], style.stroke, style.strokeDasharray, style.strokeWidth];
}"""
WALK = """async () => {
  const places = new Set();
  document.querySelector("#again").click();
  for (const end = performance.now() + 1500; performance.now() < end;) {
    places.add(document.querySelector(".walker .walker").getAttribute("transform"));
    await new Promise(requestAnimationFrame);
  }
  return [...places];
}"""
"""Where the walker is in the first second and a half of its walk."""
CONTRASTS = """() => {
  const light = (css) => {
    const part = css.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
  };
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const style = (selector) => getComputedStyle(document.querySelector(selector));
  const paper = style("figure").backgroundColor;
  const text = [".reading", ".key", "th", ".flag", ".over", ".trace .soft"].map((one) => style(one).color);
  const lines = [".street.free", ".street.congested", ".street.silent"].map((one) => style(one).stroke);
  return [[...text, style(".crossing-name").fill], lines].map((all) => all.map((one) => ratio(one, paper)));
}"""
"""The contrast of texts, and of the streets' lines, with what is behind them, by the formula of WCAG 2."""


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that fails the test on any error in its scripts, and on any request to elsewhere."""
    wrong: list[str] = []
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    opened.on("request", lambda r: None if r.url.startswith("http://127.0.0.1:") else wrong.append(r.url))
    yield opened
    opened.close()
    assert [one for one in wrong if "404 (Not Found)" not in one] == []


@pytest.fixture(scope="module")
def city(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with closing(build(tmp_path_factory.mktemp("city"))) as built:
        plan = make_plan(load_flow("geartrain_examples.stocks.flow:flow").graph(), "edge")
        with served(built.path, TrafficPage(plan, LIMIT_MPS, 60.0, draw(plan))) as address:
            yield address


def to_minute(page: Page, minute: int) -> None:
    page.get_by_label("Minute").fill(str(minute))
    expect(page.locator("#clock")).to_have_text(f"00:{minute:02}")


def test_map_is_drawn_and_the_slider_changes_its_colours(page: Page, city: str) -> None:
    page.goto(city)
    expect(page.locator(".lane .street")).to_have_count(len(edges()))
    expect(page.get_by_role("status")).to_contain_text("2026-01-01 00:11: 0 of 80 streets were congested;")
    expect(page.locator('.street.free[data-edge="C3B3"]')).to_have_count(1)
    to_minute(page, 7)
    expect(page.get_by_role("status")).to_contain_text("3 of 80 streets were congested and 1 fell silent;")
    expect(page.locator(".symbols .symbol.congested")).to_have_count(3)
    expect(page.locator(".symbols .symbol.silent")).to_have_count(1)
    page.wait_for_timeout(400)  # colours fade into each other
    looks = [page.evaluate(COLOUR, edge) for edge in ("A0A1", "C3B3", "B3A3")]
    assert [look[0] for look in looks] == ["free", "congested", "silent"]
    assert len({look[1] for look in looks}) == 3
    assert len({tuple(look[2:]) for look in looks}) == 3  # without its colour, too, each is another line
    assert page.locator("#legend").inner_text().split("\n") == [
        "free",
        "congested",
        "silent",
        "not known yet",
    ]
    to_minute(page, 0)
    expect(page.locator(".symbols .symbol")).to_have_count(0)


def test_play_goes_on_by_itself_until_the_last_minute(page: Page, city: str) -> None:
    page.goto(city)
    expect(page.locator("#clock")).to_have_text("00:11")
    to_minute(page, MINUTES - 3)
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(page.locator("#clock")).to_have_text("00:11")
    expect(page.get_by_role("button", name="Play")).to_be_visible()


def test_search_walks_a_trace_over_the_map(page: Page, city: str) -> None:
    page.goto(city)
    page.get_by_label("Plate").fill("100")
    page.keyboard.press("Enter")
    expect(page.locator("#trace .vehicle")).to_have_text("100")
    expect(page.locator("#trace li")).to_have_count(7)
    last = page.locator("#trace li").last
    expect(last).to_have_attribute("aria-current", "step")
    assert len(page.evaluate(WALK)) > 2
    expect(last).to_have_attribute("aria-current", "step")
    expect(page.locator(".leg.seen[visibility=visible]")).to_have_count(6)
    expect(page.locator("#trace .over")).to_have_count(1)
    page.locator("#trace li").nth(3).get_by_role("button").click()
    expect(page.locator("#clock")).to_have_text("00:02")
    expect(page.locator(".leg.seen[visibility=visible]")).to_have_count(3)
    assert page.url.endswith("#plate=100")
    page.get_by_label("Plate").fill("nobody")
    page.keyboard.press("Enter")
    expect(page.locator("#trace")).to_have_text(
        "No camera has seen the plate 'nobody': there are, for example, 100, 7, FAKE 1."
    )
    expect(page.locator(".leg")).to_have_count(0)


def test_fake_plates_are_flagged(page: Page, city: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    page.goto(city)
    tab = page.get_by_role("tab", name="Fake plates")
    expect(tab).to_contain_text("2")
    tab.click()
    expect(page.locator("#list tbody tr")).to_have_count(2)
    expect(page.locator("#list .flag")).to_have_count(2)
    expect(page.locator("#list tbody tr").first).to_contain_text("in both at once")
    page.get_by_role("button", name="FAKE 1").click()
    expect(page.locator("#trace .fake")).to_have_text(
        "⚑ Fake plate. Seen at A1B1 and, 20 seconds later, at D3D2, 1.5 km away, which would be 270 km/h."
    )
    expect(page.locator(".leg.fake")).to_have_count(1)
    to_minute(page, 4)
    expect(page.locator(".flags .pin")).to_have_count(1)


def test_lists_and_minutes_grow_while_the_flow_runs(page: Page, tmp_path: Path) -> None:
    with closing(City(tmp_path)) as running, served(running.path, TrafficPage()) as address:
        page.goto(address)
        expect(page.get_by_role("status")).to_contain_text("There is no whole minute yet")
        running.add(
            {
                "overspeed": [Overspeed(at(s), "cam_A0A1_0", f"V{s}", "A0A1", 20.0) for s in (5, 9)],
                "streets": [StreetMinute("A0A1", at(0), 2, 20.0, None, "free")],
            }
        )
        expect(page.locator("#list tbody tr")).to_have_count(2)
        expect(page.locator(".street.free")).to_have_count(2)  # on the map and in its legend
        running.add(
            {
                "overspeed": [Overspeed(at(7), "cam_A0A1_0", "between", "A0A1", 20.0)],
                "streets": [StreetMinute("A0A1", at(60), 3, 2.0, None, "congested")],
            }
        )
        expect(page.locator(".plate")).to_have_text(["V9", "between", "V5"])
        expect(page.locator("#clock")).to_have_text("00:01")
        expect(page.locator('.street.congested[data-edge="A0A1"]')).to_have_count(1)
        expect(page.locator("#plan")).to_contain_text("nobody said how the flow is cut")


def test_keyboard_alone_reaches_everything(page: Page, city: str) -> None:
    page.goto(city)
    expect(page.locator("#map svg")).to_be_visible()
    expect(page.locator("#plan svg")).to_be_visible()
    expect(page.locator("#list .plate").first).to_be_visible()
    seen = []
    for _ in range(7):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.parentElement.id"))
    assert seen == ["map", "play", "minute", "plate", "search", "tab-overspeed", "list"]
    page.locator("#map svg").focus()
    page.keyboard.press("Home")
    expect(page.locator("#reading")).to_contain_text("A0A1, from A0 to A1: free, ")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#reading")).to_contain_text("A0B0, from A0 to B0: free, ")
    expect(page.locator(".lane.chosen")).to_have_count(1)
    page.get_by_label("Minute").focus()
    page.keyboard.press("Home")
    expect(page.locator("#clock")).to_have_text("00:00")
    page.locator("#tab-overspeed").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tab-sections")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#list tbody tr")).to_have_count(3)


def test_plan_is_drawn_with_its_cut(page: Page, city: str) -> None:
    page.goto(city)
    drawing = page.locator("#plan svg")
    expect(drawing.locator(".cut")).to_have_count(1)
    expect(drawing.locator("rect.edge").first).to_be_visible()
    assert "drawdown" in (drawing.get_attribute("aria-label") or "")
    assert drawing.locator("style, script, [style]").count() == 0


def test_hostile_plates_and_streets_stay_text(page: Page, tmp_path: Path) -> None:
    hostile = HOSTILE + '"]<img src=x onerror=alert(1)>'
    with closing(City(tmp_path)) as made, served(made.path, TrafficPage()) as address:
        made.add(
            {
                "streets": [StreetMinute(hostile, at(0), 1, 20.0, None, "congested")],
                "overspeed": [Overspeed(at(3), hostile, hostile, hostile, 20.0)],
                "fake_plates": [jump(hostile, hostile, "A0", 3, 1, 900.0)],
                "traces": [trace(hostile, [hostile, "A0"], 3)],
            }
        )
        page.goto(address)
        expect(page.locator(".plate")).to_have_text([hostile])
        page.locator(".plate").click()
        expect(page.locator("#trace .vehicle")).to_have_text(hostile)
        page.goto(f"{page.url}")
        page.reload()
        expect(page.locator("#trace .vehicle")).to_have_text(hostile)
        page.locator("#map svg").focus()
        page.keyboard.press("Home")
        expect(page.locator("#reading")).to_contain_text(hostile)
        assert (page.title(), page.locator("script").count()) == ("City traffic", 1)
        assert page.locator("main img").count() == 0


def move_of(moved_at_s: float | None, device: str) -> dict[str, Any]:
    """What a run tells of its step that moves, asked to at 10 s."""
    before = {"bytes_per_s": 40_000.0, "records_per_s": 10_000.0, "record_bytes": 4.0, "seconds": 60.0}
    after = {"bytes_per_s": 9_000.0, "records_per_s": 18_000.0, "record_bytes": 0.5, "seconds": 12.4}
    is_there = moved_at_s is not None
    one = {"device": device, "runs_step": is_there, "awaits_state": not is_there, "finished": False}
    return {
        "step": "streets",
        "steps": ["by_street", "streets"],
        "at_s": 20.0,
        "asked_at_s": 10.0,
        "moved_at_s": moved_at_s,
        "devices": [{**one, "waiting_bytes": 0, "kept": {"cells": 60, "bytes": 14_200}, "cells_taken": 60}],
        "cloud": {"cells": 120, "bytes": 28_300},
        "link": {
            "most_bytes_per_s": 40_000,
            "now": after if is_there else before,
            "before": before,
            "after": after if is_there else None,
            "is_settled": False,
            "waiting_bytes": 800,
        },
        "behind_entries": 3,
        "points": [{"at_s": float(at), **(before if at < 12 else after)} for at in range(1, 21)],
    }


def test_a_step_that_moves_is_shown_on_its_way_and_where_it_has_come(page: Page, tmp_path: Path) -> None:
    report, hostile = tmp_path / "move.json", HOSTILE + '"]<img src=x onerror=alert(1)>'
    plan = make_plan(load_flow("geartrain_examples.traffic.flow:flow").graph(), "cloud")
    shown, reports = TrafficPage(plan, drawing=draw(plan)), {"move": partial(read_report, report)}
    with (
        closing(City(tmp_path)) as made,
        served(made.path, shown, reports) as address,
    ):
        made.add({"streets": [StreetMinute("A0A1", at(0), 1, 20.0, None, "free")]})
        write_report(report, move_of(None, hostile))
        page.goto(address)
        expect(page.locator("#move-sentence")).to_contain_text(
            "is on its way to the devices, for 10 s by now"
        )
        expect(page.locator("#move-devices")).to_have_text(f"{hostile} waits for the state of streets")
        expect(page.locator("#move-cloud .moves")).to_have_text(["by_street", "streets"])
        expect(page.locator("#move-edge .step")).to_have_text(["passes", "loops", "checkpoints"])
        write_report(report, move_of(13.0, hostile))
        said = (
            "Step streets runs on the devices, 3 s after it was told to move. A record takes 88 % fewer bytes"
            " of the link: the first 12 s after that, against the last 60 s before. The figure still changes."
        )
        expect(page.locator("#move-sentence")).to_contain_text(said)
        expect(page.locator("#move-edge .moves")).to_have_text(["by_street", "streets"])
        expect(page.locator("#move-cloud .moves")).to_have_count(0)
        expect(page.locator("#move-devices")).to_contain_text("runs streets and keeps 60 cells, 14.2 kB")
        expect(page.locator("#move-rates td")).to_have_text(
            ["40.0 kB/s", "10,000/s", "4.00", "9.0 kB/s", "18,000/s", "0.50"]
        )
        assert page.locator("#move-charts .rate").count() == page.locator("#move-charts .way").count() == 2
        assert (page.locator("main img").count(), page.locator("script").count()) == (0, 1)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_slots_and_keys_with_most_rows_are_shown_once_they_are_told(page: Page, tmp_path: Path) -> None:
    hostile, told = HOSTILE + '"]<img src=x onerror=alert(1)>', dict[str, Any](streams=[])
    page.set_viewport_size({"width": 420, "height": 740})
    with closing(City(tmp_path)) as made, served(made.path, TrafficPage(), {"skew": lambda: told}) as address:
        made.add({"streets": [StreetMinute("A0A1", at(0), 1, 20.0, None, "free")]})
        page.goto(address)
        expect(page.locator("#sentence")).to_contain_text("0 of 1 street")
        expect(page.locator("#skew")).to_be_hidden()
        hot = {"step": "by_street", "slots": 4, "slot": 2, "share": 0.613}
        told["streams"] = [
            hot | {"keys": [{"key": "A0A1", "share": 0.5}, {"key": hostile, "share": 0.012}]},
            {"step": hostile, "slots": 1, "slot": 0, "share": 1.0, "keys": []},
        ]
        expect(page.locator("#skew-rows td")).to_have_text(
            ["2 of 4", "61 %", f"A0A1 50 %, {hostile} 1 %", "0 of 1", "100 %", "none above 1 %"]
        )
        expect(page.locator("#skew-rows th")).to_have_text(["by_street", hostile])
        assert (page.locator("main img").count(), page.locator("script").count()) == (0, 1)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_streets_can_be_told_from_what_is_behind(browser: Browser, city: str, scheme: str) -> None:
    page = browser.new_page(color_scheme="dark" if scheme == "dark" else "light", reduced_motion="reduce")
    page.goto(f"{city}#plate=100")
    expect(page.locator(".over")).to_be_visible()
    page.locator("#tab-fakes").click()
    to_minute(page, 7)
    expect(page.locator(".symbols .symbol.silent")).to_be_visible()
    text, lines = page.evaluate(CONTRASTS)
    page.close()
    assert min(text) >= 4.5, text
    assert min(lines) >= 3, lines


def test_phone_needs_no_sideways_scrolling(page: Page, city: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"{city}#plate=FAKE%201")
    expect(page.locator("#trace .fake")).to_be_visible()
    expect(page.locator("#plan svg")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.locator("#map svg").evaluate("(map) => map.clientWidth") > 280
