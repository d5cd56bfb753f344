"""What control tells of an app: rates, clocks and what it waits for, from the files that processes write."""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from geartrain import Description, Flow, Record, Table, Unit
from geartrain.planning import make_plan
from geartrain.records.event_time import END_OF_TIME
from geartrain.revision import revision_of
from geartrain.schema import ColumnBatch
from geartrain.testing import TestingSource
from geartrain_cloud.control import cost
from geartrain_cloud.control.observing import LETTERS_S, Observer
from geartrain_cloud.control.rates import AGENTS_MAX, LOOK_S, SPAN_S
from geartrain_cloud.control.reconciler import Reconciler
from geartrain_cloud.control_store.model import Channel, Mode, Outline, SourceOutline, State, Submission
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.platform.config import PlatformConfig
from geartrain_cloud.platform.places import write_report
from geartrain_cloud.sinks.sqlite import SqliteTables

NOW_US = 10**15


class Platform:
    """A store and an observer, and the reports of processes, which the test writes."""

    def __init__(self, folder: Path) -> None:
        config = PlatformConfig(folder)
        self.now_s, self.places = 100.0, config.places
        self.store = ControlStore(self.places.control, lambda: NOW_US)
        reconciler = Reconciler(self.store, config, lambda: NOW_US)
        self.observer = Observer(self.store, config, reconciler, str, lambda: self.now_s)

    def submit(
        self, *sources: SourceOutline, options: dict[str, Any] | None = None, document: str = ""
    ) -> None:
        ids = [source.id for source in sources]
        outline = Outline("heat", [Channel("records", ids)], list(sources), "ab" * 32, document=document)
        self.store.apps.submit(Submission("heat", "heat:flow", "auto", "all", options or {}), outline)

    def ingest(self, rows: int, **clocks: int) -> None:
        sources = {name: {"clock": clock, "holding": ["d1"]} for name, clock in clocks.items()}
        flow = {"channels": {"records": {"rows": rows - 3}, "_late": {"rows": 3}}, "sources": sources}
        self.places.log.mkdir(exist_ok=True)
        write_report(self.places.ingest_status, {"flows": {"heat.1": flow}})

    def host(self, rows: int) -> None:
        self.places.spark.mkdir(exist_ok=True)
        keys = [{"key": "a\x1b[2J", "share": 0.5}]
        skew = [{"step": "by_sensor", "slots": 2, "slot": 1, "share": 0.75, "keys": keys}]
        report = {"state": "running", "rows": rows, "slots": 2, "skew": skew, "unread": {"means": 3}}
        write_report(self.places.spark_status, {"serial": 1, "flows": {"heat.1": report}})

    def agent(self, device: str, records: int, sealed: int) -> None:
        folder = self.places.agent(device, "heat.1")
        folder.mkdir(parents=True, exist_ok=True)
        counters = {"records_read": records, "bytes_sealed": sealed}
        write_report(folder / "status.json", {"counters": counters})

    def info(self) -> dict[str, Any]:
        return self.observer.info(self.store.apps.newest("heat"))


class Reading(Record):
    sensor: str
    celsius: Annotated[float, Unit("degC"), Description("air")]


READINGS, DOORS = SourceOutline("readings", True), SourceOutline("doors", True)


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    one = Platform(tmp_path)
    yield one
    one.store.close()


def test_the_hottest_slot_and_keys_are_told_and_steer_no_terminal(platform: Platform) -> None:
    platform.submit(READINGS)
    platform.host(3)
    info = platform.info()
    assert (info["slots"], info["slots_now"]) == (2, 2)
    assert info["unread_rows"] == {"means": 3}
    assert info["skew"] == [
        {
            "step": "by_sensor",
            "slots": 2,
            "slot": 1,
            "share": 0.75,
            "keys": [{"key": "a\\x1b[2J", "share": 0.5}],
        }
    ]


def test_state_that_was_refused_is_told_with_its_reason(platform: Platform) -> None:
    platform.submit(READINGS)
    assert platform.info()["refused_state"] == []
    path = platform.places.tables("heat.1")
    path.parent.mkdir(parents=True)
    tables = SqliteTables(path)
    tables.attach("keyed", "identity", has_run=False)
    letter = ColumnBatch(
        [["sums"], ["state_not_taken"], ["held\x1b[2J"], [b"cell"]], [9], ["d1/_state"], [0], [b""]
    )
    tables.write("keyed", 0, {"0": 1}, {"_dead_letters": [letter]})
    tables.close()
    info = platform.info()  # a look is good for some seconds
    assert (info["refused_state"], info["dead_letters"]) == ([], None)
    platform.now_s += LETTERS_S
    info = platform.info()
    assert info["refused_state"] == [{"step": "sums", "reason": "held\\x1b[2J", "cells": 1}]
    assert info["dead_letters"] == 1


def test_units_and_descriptions_of_the_tables_fields_are_those_of_the_revision(platform: Platform) -> None:
    flow = Flow("heat")
    readings = flow.source("readings", TestingSource(items=[]), out=Reading)
    readings.sink("kept", Table("readings"))
    platform.submit(READINGS, document=revision_of("heat:flow", make_plan(flow.graph(), "auto")).to_json())
    told = platform.info()["notes"]
    assert told == [{"table": "readings", "field": "celsius", "unit": "degC", "description": "air"}]


def test_rates_are_the_growth_of_totals_over_at_most_a_minute(platform: Platform) -> None:
    platform.store.devices.add("d1", {}, local=True)
    platform.store.devices.add("d2", {}, local=True)
    platform.submit(READINGS)
    chance = random.Random(5)
    totals, history = [0, 0, 3, 0], list[tuple[float, list[int]]]()
    for _ in range(30):
        totals = [total + chance.randrange(1, 1_000) for total in totals]
        read, sealed, logged, rows = totals
        platform.agent("d1", read // 3, sealed // 5)
        platform.agent("d2", read - read // 3, sealed - sealed // 5)
        platform.ingest(logged)
        platform.host(rows)
        rates = platform.info()["rates"]
        if history:
            then_s, then = next(one for one in history if history[-1][0] - one[0] <= SPAN_S)
            span_s = platform.now_s - then_s
            per_s = [(new - old) / span_s for new, old in zip(totals, then, strict=True)]
            assert rates["read"]["records_per_s"] == pytest.approx(per_s[0], abs=0.001)
            assert rates["link"]["bytes_per_day"] == pytest.approx(per_s[1] * 86_400, abs=1)
            assert rates["log"]["records_per_s"] == pytest.approx(per_s[2], abs=0.001)
            assert rates["tables"]["records_per_s"] == pytest.approx(per_s[3], abs=0.001)
        else:
            assert rates == {}
        platform.observer.look()
        history.append((platform.now_s, totals))
        platform.now_s += LOOK_S + chance.random()


def test_what_an_app_takes_is_told_by_what_was_seen_to_grow(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [10_000_000]
    monkeypatch.setattr("shutil.disk_usage", lambda _: Namespace(free=free[0]))
    platform.submit(READINGS)

    def takes(link: int, tables: int, left: int) -> dict[str, Any]:
        write_report(platform.places.ingest_status, {"counters": {"bytes:heat.1": link}})
        platform.places.tables("heat.1").parent.mkdir(parents=True, exist_ok=True)
        platform.places.tables("heat.1").write_bytes(bytes(tables))
        free[0] = left
        found: dict[str, Any] = platform.info()["cost"]
        return found

    platform.places.log.mkdir()
    nothing = takes(1_000, 500, 9_000_000)
    assert (nothing["span_s"], nothing["link_bytes_per_day"], nothing["days_to_full"]) == (None, None, None)
    assert (nothing["disk_bytes"], nothing["disk_free_bytes"]) == (500, 9_000_000)
    platform.observer.look()
    platform.now_s += cost.LEAST_S - 1
    assert takes(2_000, 600, 8_000_000)["span_s"] is None
    platform.now_s += 3_600 - cost.LEAST_S + 1
    found = takes(3_000, 400, 6_000_000)
    assert found == {
        "span_s": 3_600.0,
        "link_bytes_per_day": 2_000 * 24,
        "disk_bytes": 400,
        "disk_bytes_per_day": -100 * 24,
        "disk_free_bytes": 6_000_000,
        "days_to_full": pytest.approx(2 / 24),
    }
    assert takes(10, 400, 9_500_000)["days_to_full"] is None
    assert takes(10, 400, 9_500_000)["link_bytes_per_day"] is None
    for _ in range(30):  # a day later the first hour counts no longer
        platform.observer.look()
        platform.now_s += 3_600
    assert takes(2_000, 400, 9_500_000)["span_s"] == pytest.approx(86_400, abs=3_600)


def test_a_rate_that_nobody_reports_or_whose_total_went_back_is_left_out(platform: Platform) -> None:
    platform.store.devices.add("d1", {}, local=True)
    platform.submit(READINGS)
    platform.agent("d1", 5, 50)
    platform.ingest(10)
    platform.host(10)
    platform.observer.look()
    platform.now_s += 1
    assert platform.info()["rates"] == {}  # it is too early
    platform.now_s += 3
    platform.host(4)  # a new run
    platform.ingest(18)
    assert platform.info()["rates"] == {
        "read": {"records_per_s": 0.0},
        "link": {"bytes_per_day": 0},
        "log": {"records_per_s": 2.0},
    }
    platform.store.devices.add("far", {})  # its agent reports elsewhere
    assert platform.info()["rates"] == {"log": {"records_per_s": 2.0}}
    platform.store.devices.retire("far")
    for number in range(AGENTS_MAX):
        platform.store.devices.add(f"more{number}", {}, local=True)
    assert list(platform.info()["rates"]) == ["log"]
    platform.places.ingest_status.write_text('{"flows": {"heat.1": {"channels": [1]}}}')
    assert platform.info()["rates"] == {}


def test_a_look_forgets_apps_that_have_ended(platform: Platform) -> None:
    platform.submit(READINGS)
    platform.ingest(10)
    platform.observer.look()
    platform.now_s += LOOK_S
    assert list(platform.info()["rates"]) == ["log"]
    platform.store.apps.enter("heat.1", State.ENDED)
    platform.observer.look()
    assert platform.info()["rates"] == {}


def test_nobody_holds_the_clock_of_a_source_that_has_ended(platform: Platform) -> None:
    platform.store.devices.add("d1", {})
    platform.submit(READINGS, DOORS)
    platform.ingest(10, readings=END_OF_TIME, doors=1_000)
    assert platform.info()["clocks"] == [
        {"source": "readings", "clock_us": END_OF_TIME, "held_by": []},
        {"source": "doors", "clock_us": 1_000, "held_by": ["d1"]},
    ]


def test_a_bounded_flow_waits_for_a_source_that_no_device_has(platform: Platform) -> None:
    said = (
        "no device of the app has source doors, so it never ends: add a device that has it, or kill the app "
        "and submit it with doors.enabled=true"
    )
    platform.submit(READINGS, DOORS, options={"doors": {"enabled": False}})
    assert platform.info()["waits_for"] == ["no device matches all: add one, or label one"]
    platform.store.devices.add("d1", {})
    assert said in platform.info()["waits_for"]
    platform.ingest(10, doors=END_OF_TIME)  # a device that had it has come to its end, and was retired
    assert said not in platform.info()["waits_for"]


def test_a_device_that_is_labelled_otherwise_keeps_its_apps_and_they_are_named(platform: Platform) -> None:
    store, outline = platform.store, Outline("heat", [], [READINGS], "ab" * 32)
    store.devices.add("d1", {"kind": "truck"})
    for name, selector in (("one", "kind=truck"), ("two", "all"), ("three", "kind=truck"), ("four", "d1")):
        store.apps.submit(Submission(name, "heat:flow", "auto", selector), outline)
    store.apps.kill("three", Mode.DRAIN, purge=False)
    assert platform.observer.labelled(store.devices.get("d1"))["kept"] == []
    device = store.devices.label("d1", {"kind": "ship"})
    assert platform.observer.labelled(device)["kept"] == [{"name": "one", "selector": "kind=truck"}]


def test_a_device_says_why_it_is_refused(platform: Platform) -> None:
    platform.store.devices.add("d1", {})
    assert platform.observer.device_info(platform.store.devices.get("d1"))["refused"] == ""
    platform.store.reports.refuse("d1", "it knows\x1b more")
    assert platform.observer.device_info(platform.store.devices.get("d1"))["refused"] == r"it knows\x1b more"


def test_a_retired_device_is_not_waited_for(platform: Platform) -> None:
    platform.store.devices.add("d1", {})
    platform.submit(READINGS)
    assert "d1 is offline" in platform.info()["waits_for"]
    platform.store.devices.retire("d1")
    waits = platform.info()["waits_for"]
    assert not any("offline" in sentence for sentence in waits)
    assert any("no device of the app has source readings" in sentence for sentence in waits)


@pytest.mark.parametrize(
    ("doors", "options"),
    [(DOORS, {}), (SourceOutline("doors", False), {"doors": {"enabled": False}})],
    ids=["a device has it", "the flow is not to end"],
)
def test_a_flow_that_misses_no_source_or_is_not_to_end_does_not_wait(
    platform: Platform, doors: SourceOutline, options: dict[str, Any]
) -> None:
    platform.store.devices.add("d1", {})
    platform.submit(READINGS, doors, options=options)
    assert not any("source" in sentence for sentence in platform.info()["waits_for"])


def test_an_outbox_that_cannot_be_sent_is_said(platform: Platform) -> None:
    platform.store.devices.add("d1", {})
    platform.submit(READINGS)
    why = "the outbox /o.sqlite is damaged"
    for state, is_said in (("sending", False), ("missing", False), ("failed", True)):
        flow = {"state": state, "why": why}
        write_report(platform.places.downlink_status, {"serial": 1, "flows": {"heat.1": flow}})
        assert (why in platform.info()["waits_for"]) is is_said
    write_report(platform.places.downlink_status, {"serial": 1, "flows": [1]})
    assert why not in platform.info()["waits_for"]
