"""The times of a source by its options: zones, units, formats, and years that a text leaves out."""

from __future__ import annotations

import pkgutil
import re
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from geartrain.declarations.zone_data import rules_of
from geartrain.errors import SourceError
from geartrain.records.event_time import format_time, from_datetime, parse_time
from geartrain_devices import written_times
from geartrain_devices.time_formats import TimeFormat
from geartrain_devices.written_times import NoTimeError, TimeOptions, Times

PAGE = Path(__file__).parents[2] / "docs" / "sources" / "times.md"
NOW = "2026-11-27T14:00:00Z"


def times(*, by_clock: bool = False, **options: Any) -> Times:
    return Times("source s", TimeOptions(**options), by_clock=by_clock)


def read(text: str, *, by_clock: bool = False, **options: Any) -> str:
    return format_time(times(by_clock=by_clock, **options).of_text(text))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_times, "now_us", lambda: parse_time(NOW))


def test_the_page_says_what_options_make_of_texts(clock: None) -> None:
    rows = re.findall(
        r"^\| `([^`]+)` \| `([^`]+ = [^`]+)` \| (?:`([^`]+)`|refused) \|$", PAGE.read_text(), re.MULTILINE
    )
    assert len(rows) > 15
    for text, written, meant in rows:
        options = dict(re.findall(r'(\w+) = "?([^",]+)"?', written))
        if "time_year" in options:
            options["time_year"] = int(options["time_year"])
        if meant:
            assert read(text, by_clock=True, **options) == meant, (text, written)
        else:
            with pytest.raises(NoTimeError):
                read(text, by_clock=True, **options)


@pytest.mark.parametrize(
    ("unit", "number", "meant"),
    [
        ("s", "1764121231", "2025-11-26T01:40:31Z"),
        ("s", "1764121231.53", "2025-11-26T01:40:31.530000Z"),
        ("ms", "1764121231530", "2025-11-26T01:40:31.530000Z"),
        ("us", "1764121231530123", "2025-11-26T01:40:31.530123Z"),
        ("ns", "1764121231530123456", "2025-11-26T01:40:31.530123Z"),
        ("s", "-0.5", "1969-12-31T23:59:59.500000Z"),
        ("s", "1.764121231e9", "2025-11-26T01:40:31Z"),
    ],
)
def test_a_text_is_a_number_where_an_option_says_what_it_counts(unit: str, number: str, meant: str) -> None:
    assert read(number, time_unit=unit) == meant
    assert read("2024-01-01", time_unit=unit) == "2024-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("1764121231", 'set time_unit = "s"'),
        ("1764121231530", 'set time_unit = "ms"'),
        ("1764121231530123", 'set time_unit = "us"'),
        ("1764121231530123456", 'set time_unit = "ns"'),
        ("20240101", 'set time_format = "%Y%m%d"'),
        ("202401011230", 'set time_format = "%Y%m%d%H%M"'),
        ("20240101123000", 'set time_format = "%Y%m%d%H%M%S"'),
        ("202401011230005", 'set time_format = "%Y%m%d%H%M%S%f"'),
        ("10.10.2008 09:30", "for other forms set time_format"),
    ],
)
def test_the_reason_names_the_option_that_would_read_a_text(text: str, advice: str) -> None:
    with pytest.raises(NoTimeError, match=re.escape(advice)) as refused:
        read(text)
    assert refused.value.code == "bad_time"


def test_a_unit_that_gives_no_time_of_these_years_names_the_other() -> None:
    with pytest.raises(NoTimeError, match=r'1764121231530 is not before .*: set time_unit = "ms"'):
        times().event_time(1764121231530)
    assert times(time_unit="ms").event_time(1764121231530) == 1764121231530000


ZONES = ["Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca"]


@given(
    st.datetimes(datetime(1900, 1, 1), datetime(2150, 1, 1)),  # noqa: DTZ001 - a zone is put in below
    st.sampled_from(ZONES),
    st.sampled_from(["first", "second"]),
)
@example(datetime(2024, 10, 27, 2, 30), "Europe/Berlin", "first")  # noqa: DTZ001
@example(datetime(2024, 10, 27, 2, 30), "Europe/Berlin", "second")  # noqa: DTZ001
@example(datetime(2024, 3, 31, 2, 30), "Europe/Berlin", "first")  # noqa: DTZ001
@example(datetime(2024, 4, 7, 1, 45), "Australia/Lord_Howe", "second")  # noqa: DTZ001
def test_a_zone_gives_what_zoneinfo_gives(shown: datetime, zone: str, which: Any) -> None:
    text = shown.isoformat()
    # Those of the machine may be of another version.
    known = ZoneInfo.from_file(BytesIO(pkgutil.get_data("tzdata", f"zoneinfo/{zone}") or b""))
    aware = shown.replace(tzinfo=known, fold=int(which == "second"))
    reader = times(time_zone=zone, repeated_hour=which)
    if aware.astimezone(UTC).astimezone(known).replace(tzinfo=None, fold=0) == shown:
        assert reader.of_text(text) == from_datetime(aware)
    else:
        with pytest.raises(NoTimeError, match=f"the clocks of {zone} never showed"):
            reader.of_text(text)
    assert reader.of_text(f"{text}Z") == from_datetime(shown)


def test_a_zone_is_taken_from_the_rules_that_came_with_the_flow(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = rules_of("Europe/Berlin")
    monkeypatch.setattr(
        "geartrain.declarations.zone_data.rules_of", lambda zone: pytest.fail("asked for data")
    )
    there = times(time_zone="Europe/Berlin", zone_rules=rules)
    assert format_time(there.of_text("2024-07-01T12:00")) == "2024-07-01T10:00:00Z"
    with pytest.raises(SourceError, match="time_zone = 'Berlin Time' is no name of a zone"):
        times(time_zone="Berlin Time")


@given(
    st.datetimes(datetime(1970, 1, 1), datetime(2068, 12, 31)),  # noqa: DTZ001 - UTC is put in below
    st.sampled_from(
        [
            *("%Y-%m-%d %H:%M:%S.%f", "%d.%m.%Y %H:%M:%S", "%d/%b/%Y:%H:%M:%S", "%a %b %d %H:%M:%S %Y"),
            *(
                "%Y%m%d%H%M%S",
                "%y%m%d%H%M%S%f",
                "%I:%M:%S %p, %d %B %Y",
                "%j of %Y",
                "%Y%j",
                "%m/%d/%y %H:%M",
            ),
        ]
    ),
)
def test_formats_read_what_strftime_writes(moment: datetime, form: str) -> None:
    """`strftime` of the C locale is the independent writer."""
    text = moment.strftime(form)
    meant = datetime.strptime(text, form).replace(tzinfo=UTC)
    assert TimeFormat.of(form).read(text, None, None) == from_datetime(meant)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("%Y%m%d%H%M", "202401011230005"),
        ("%Y%m%d", "2024111"),
        ("%Y%m%d%H%M%S", "2024010112300"),
        ("%d.%m.%Y", "1.1.24"),
        ("%d.%m.%Y", "\u0661.1.2024"),
        ("%b %d %Y", "Maerz 1 2024"),
    ],
)
def test_digits_are_counted_and_never_guessed(form: str, text: str) -> None:
    assert TimeFormat.of(form).read(text, None, None) is None


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ("%H:%M", "has no day"),
        ("%Y-%m", "has no day"),
        ("%c", "has %c, which is not read: it may have"),
        ("%G-W%V-%u", "has %G, which is not read"),
        ("%Y-%m-%d %I:%M", "needs %p with %I"),
        ("%Y-%m-%d %d", "names a part of the time twice"),
        ("%Y-%m-%d %", "has %, which is not read"),
    ],
)
def test_a_format_that_cannot_be_is_refused_at_the_start(form: str, why: str) -> None:
    with pytest.raises(SourceError, match=re.escape(f"source s: time_format = {form!r} {why}")):
        times(time_format=form)


def test_a_year_that_is_left_out_is_the_latest_that_is_not_in_the_future(
    clock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at(text: str, **options: Any) -> str:
        return read(text, by_clock=True, time_format="%b %d %H:%M:%S", **options)

    assert at("Nov 27 11:00:00") == "2026-11-27T11:00:00Z"
    assert at("Nov 28 13:59:59") == "2026-11-28T13:59:59Z", "a clock may be a day behind"
    assert at("Nov 28 14:00:01") == "2025-11-28T14:00:01Z"
    assert at("Feb 29 10:00:00") == "2024-02-29T10:00:00Z"
    assert at("Dec  1 00:00:00", time_zone="America/New_York") == "2025-12-01T05:00:00Z"
    assert at("Nov 27 11:00:00", time_year=2020) == "2020-11-27T11:00:00Z"
    with pytest.raises(NoTimeError, match="is no time: there is no day"):
        at("Feb 30 10:00:00")
    monkeypatch.setattr(written_times, "now_us", lambda: parse_time("2027-01-01T00:00:00Z"))
    assert at("Dec 31 23:59:60") == "2027-01-01T00:00:00Z"
    assert at("Dec 31 23:59:59") == "2026-12-31T23:59:59Z"
    assert at("Jan  1 20:00:00") == "2027-01-01T20:00:00Z"
    monkeypatch.setattr(written_times, "now_us", lambda: parse_time("2104-02-28"))
    assert at("Feb 29 10:00:00", time_zone="UTC") == "2096-02-29T10:00:00Z"
    monkeypatch.setattr(written_times, "now_us", lambda: parse_time("1970-01-01T00:05:00Z"))
    with pytest.raises(NoTimeError, match="the clock of this device is not set yet"):
        at("Nov 27 11:00:00")


def test_what_is_read_again_must_have_a_year() -> None:
    with pytest.raises(
        SourceError, match="has no year, and what is read again must get the same time: set time_year"
    ):
        times(time_format="%b %d %H:%M:%S")
    assert read("Feb 29 10:00:00", time_format="%b %d %H:%M:%S", time_year=2024) == "2024-02-29T10:00:00Z"
    with pytest.raises(SourceError, match="time_year = 24000 must be a year"):
        times(time_year=24000)


@given(st.text("0123456789 :/.-%AaPpMmJanFebDc", max_size=24), st.sampled_from(["s", "ns", ""]))
def test_any_text_is_a_time_or_refused_with_a_sentence(text: str, unit: str) -> None:
    reader = times(time_unit=unit, time_format="%d/%b/%Y %H:%M", time_zone="Europe/Berlin")
    try:
        outcome = format_time(reader.event_time(text))
    except NoTimeError as error:
        outcome = str(error)
    assert outcome.isprintable()
    assert len(outcome) >= len("2024-01-01T00:00:00Z")
