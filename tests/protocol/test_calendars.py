"""Calendar windows: days of 23 and 25 hours, days that were left out, months and weeks, beside Python's own
zones; rules that come from elsewhere.
"""

from __future__ import annotations

import random
import sys
from base64 import b64encode
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from importlib.resources import files
from zlib import compress
from zoneinfo import ZoneInfo

import pytest

from geartrain import Flow, KeyedStream, Record, agg, calendar_day, calendar_month, calendar_week
from geartrain.declarations.calendars import Calendar, with_rules
from geartrain.declarations.zone_data import rules_of
from geartrain.declarations.zones import TEXT_CHARS_MAX, ZoneRules
from geartrain.errors import ConfigError, FlowError
from geartrain.graph.graph import Graph
from geartrain.operators.windowed import pinned
from geartrain.planning import make_plan
from geartrain.records.event_time import from_datetime, to_datetime
from geartrain.revision import revision_of
from geartrain.testing import TestingSink, TestingSource, run_flow
from tests.reference.calendars import CALENDARS, DAYS
from tests.reference.windows import windows_of

HOUR_US = 3_600_000_000
DAYS_OF_CHANGE = [
    ("Europe/Berlin", "2024-03-31", 23.0),
    ("Europe/Berlin", "2024-10-27", 25.0),
    ("Europe/Berlin", "2150-03-29", 23.0),
    ("America/New_York", "2024-11-03", 25.0),
    ("Australia/Sydney", "2024-10-06", 23.0),
    ("Australia/Sydney", "2024-04-07", 25.0),
    ("Australia/Lord_Howe", "2024-10-06", 23.5),
    ("Australia/Lord_Howe", "2024-04-07", 24.5),
    ("America/Sao_Paulo", "2018-11-04", 23.0),  # midnight itself is left out
    ("America/Sao_Paulo", "2018-02-17", 25.0),  # put back at midnight
    ("America/St_Johns", "2010-11-06", 24.0),  # put back a minute after midnight: a day begins once
    ("America/St_Johns", "2010-11-07", 25.0),
    ("America/Havana", "2024-11-03", 25.0),
    ("Asia/Kathmandu", "1985-12-31", 24.0),
    ("Pacific/Apia", "2011-12-29", 24.0),
    ("Pacific/Apia", "2011-12-31", 24.0),
    ("Africa/Casablanca", "2024-03-10", 25.0),
    ("Asia/Kolkata", "2024-03-31", 24.0),
    ("UTC", "2024-02-29", 24.0),
]
ZONES = sorted({zone for zone, _, _ in DAYS_OF_CHANGE} | {"Pacific/Kwajalein", "Europe/Dublin", "Asia/Gaza"})


@lru_cache
def python_zone(zone: str) -> ZoneInfo:
    with (files("tzdata") / "zoneinfo" / zone).open("rb") as file:  # the machine may have older zones
        return ZoneInfo.from_file(file)


def at(zone: str, text: str) -> int:
    return from_datetime(datetime.fromisoformat(text).replace(tzinfo=python_zone(zone)))


@pytest.mark.parametrize(("zone", "day", "hours"), DAYS_OF_CHANGE)
def test_a_day_is_as_long_as_the_clocks_make_it(zone: str, day: str, hours: float) -> None:
    [(start, end)] = calendar_day(zone).assign(at(zone, f"{day}T12:00"))
    assert (end - start) / HOUR_US == pytest.approx(hours)
    for window, other in ((calendar_day(zone), start), (calendar_day(zone), end - 1)):
        assert window.assign(other) == ((start, end),)
    assert calendar_day(zone).assign(end)[0][0] == end
    assert calendar_day(zone).assign(start - 1)[0][1] == start


def test_a_day_that_a_zone_left_out_has_no_window() -> None:
    for zone, before, after in (
        ("Pacific/Apia", "2011-12-29", "2011-12-31"),
        ("Pacific/Kwajalein", "1993-08-20", "1993-08-22"),
    ):
        [(_, end)] = calendar_day(zone).assign(at(zone, f"{before}T12:00"))
        assert calendar_day(zone).assign(end)[0] == calendar_day(zone).assign(at(zone, f"{after}T12:00"))[0]
        assert to_datetime(end).astimezone(python_zone(zone)).date() == date.fromisoformat(after)


def first_shown(zone: str, day: date) -> int:
    """The first minute at which a zone's clock shows `day` or later, minute by minute, microseconds."""
    moment = datetime(day.year, day.month, day.day, tzinfo=UTC) - timedelta(hours=40)
    known = python_zone(zone)
    while moment.astimezone(known).date() < day:
        step = 60 if moment.astimezone(known).date() + timedelta(days=1) < day else 1
        ahead = moment + timedelta(minutes=step)
        moment = ahead if ahead.astimezone(known).date() < day or step == 1 else moment + timedelta(minutes=1)
    return from_datetime(moment)


def test_days_weeks_and_months_begin_when_python_s_own_zones_say_so() -> None:
    rng = random.Random(7)
    for zone in ZONES:
        for _ in range(6):
            day = date(1975, 1, 1) + timedelta(days=rng.randrange(200 * 365))
            noon = at(zone, f"{day}T12:00")
            week = day - timedelta(days=day.weekday())
            sunday = day - timedelta(days=(day.weekday() + 1) % 7)
            following = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
            for window, begin, end in (
                (calendar_day(zone), day, day + timedelta(days=1)),
                (calendar_week(zone), week, week + timedelta(days=7)),
                (calendar_week(zone, begins="sunday"), sunday, sunday + timedelta(days=7)),
                (calendar_month(zone), day.replace(day=1), following),
            ):
                assert window.assign(noon) == ((first_shown(zone, begin), first_shown(zone, end)),), (
                    zone,
                    day,
                )


def test_each_moment_lies_in_one_window_through_all_years() -> None:
    for window in (*map(calendar_day, ZONES), calendar_month("Asia/Gaza"), calendar_week("Europe/Dublin")):
        for begin in ("1890-01-01", "1945-01-01", "1993-08-01", "2011-12-01", "2197-12-01", "9990-01-01"):
            time = from_datetime(datetime.fromisoformat(begin))
            for _ in range(70):
                [(start, end)] = window.assign(time)
                assert start <= time < end
                assert window.end(start) == end
                assert window.end(start + 1) is None
                assert window.assign(end - 1) == ((start, end),)
                time = end


def test_zones_that_leap_within_microseconds_are_as_the_reference_has_them() -> None:
    for window in CALENDARS:
        assert len({window.assign(time) for time in range(-30, 80)}) > 1
        for time in range(-30, 80):
            assert list(window.assign(time)) == windows_of(window, time)
    far = 2**61
    for window in (*CALENDARS, calendar_month("Europe/Berlin")):
        for time in (-far, far):
            [(start, end)] = window.assign(time)
            assert start <= time < end


class Reading(Record):
    sensor: str
    celsius: float


class Day(Record):
    sensor: str
    window_start: datetime
    n: int
    mean: float


def daily(window: Calendar, hours: int = 72) -> Flow:
    begin = at("Europe/Berlin", "2024-03-30T00:00")
    items = [(begin + hour * HOUR_US, Reading("a", float(hour))) for hour in range(hours)]
    flow = Flow("heat")
    keyed: KeyedStream[str, Reading] = flow.source(
        "readings", TestingSource(items=items), out=Reading
    ).key_by("sensor")
    days = keyed.window(window).aggregate("days", out=Day, n=agg.count(), mean=agg.mean("celsius"))
    days.sink("out", TestingSink("days"))
    return flow


def test_an_aggregate_of_days_counts_their_hours() -> None:
    rows = [row for _, row in run_flow(daily(calendar_day("Europe/Berlin"))).tables["out"]]
    assert [row.n for row in rows] == [24, 23, 24, 1]
    assert str(rows[1].window_start) == "2024-03-30 23:00:00+00:00"


def graph_of(zone: str) -> Graph:
    return daily(calendar_day(zone)).graph()


def test_the_rules_of_a_zone_are_options_of_its_steps_and_part_of_the_revision() -> None:
    graph = graph_of("Europe/Berlin")
    options = pinned(graph, {"readings": {}})
    assert options["days"] == {"zone_rules": rules_of("Europe/Berlin")}
    assert pinned(graph, options) == options
    older = {"days": {"zone_rules": rules_of("Europe/Berlin").replace(" 20", " 19", 1)}}
    assert pinned(graph, older) == older  # an app keeps those that it began with
    assert pinned(graph_of("Asia/Gaza"), options)["days"] == {"zone_rules": rules_of("Asia/Gaza")}
    ruled = graph.with_options(pinned(graph, {}))
    revisions = [revision_of("", make_plan(one)) for one in (ruled, ruled, graph, graph_of("Asia/Gaza"))]
    assert revisions[0].hash == revisions[1].hash
    assert len({revision.hash for revision in revisions}) == 3
    [window] = [step.options["whole"]["window"] for step in revisions[0].steps if step.id == "days"]
    assert window["zone"] == "Europe/Berlin"
    assert window["rules"].startswith("sha256:")


def test_a_step_with_rules_asks_no_data_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of("Europe/Berlin")
    ruled = graph.with_options(pinned(graph, {}))
    rules_of.cache_clear()
    monkeypatch.setattr("geartrain.declarations.zone_data.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "tzdata", None)
    window = ruled["days"].operator.window  # type: ignore[attr-defined]
    assert window.assign(0) == ((-HOUR_US, 23 * HOUR_US),)
    with pytest.raises(ConfigError, match=r"zone Europe/Berlin: its rules did not come .*pip install tzdata"):
        run_flow(daily(calendar_day("Europe/Berlin")))


def test_mistakes_are_said() -> None:
    for wrong in ("", "Europe/../Berlin", "/etc/passwd", "Berlin; DROP", 7, "a" * 200):
        with pytest.raises(FlowError, match=r"calendar_day\(.*write the name of a time zone"):
            calendar_day(wrong)  # type: ignore[arg-type]
    with pytest.raises(FlowError, match="begins='someday' must be one of monday, tuesday"):
        calendar_week("UTC", begins="someday")  # type: ignore[arg-type]
    for missing in ("Europe/Berln", "Europe", "Mars/Olympus"):
        with pytest.raises(FlowError, match=f"no zone '{missing}': write one of its names"):
            daily(calendar_month(missing))
    graph = graph_of("Europe/Berlin")
    with pytest.raises(ConfigError, match=r"there is no option 'zone'; a calendar window has zone_rules"):
        graph.with_options({"days": {"zone": "UTC"}})
    with pytest.raises(
        ConfigError, match=r"days.zone_rules: they are rules of the zone 'UTC', and Europe/Be"
    ):
        graph.with_options({"days": {"zone_rules": rules_of("UTC")}})


def text_of(numbers: str) -> str:
    return f"Europe/Berlin 1 {b64encode(compress(numbers.encode())).decode()}"


def test_rules_that_come_from_elsewhere_are_bounded_and_checked() -> None:
    for zone in ZONES:
        assert ZoneRules.from_text(rules_of(zone)).to_text() == rules_of(zone)
        assert len(rules_of(zone)) < 1_500
    good = rules_of("Europe/Berlin")
    wrong = ["", "x", good[:-9], good[:40], f"{good} x", "Europe/Berlin 1 !", "a" * (TEXT_CHARS_MAX + 1)]
    wrong += [text_of(one) for one in ("", "1,2", "x", "5,-9,0,0,0", f"{2**62},0,0", f"0,0,{2**60}")]
    wrong += [text_of(one) for one in ("9" * 50, ",".join("1" * 9_999), "0," * 200_000)]
    for text in wrong:
        with pytest.raises((ConfigError, FlowError), match="rules"):
            with_rules(calendar_day("Europe/Berlin"), text)
    assert with_rules(calendar_day("Test/Days"), DAYS).assign(5) == ((4, 22),)
