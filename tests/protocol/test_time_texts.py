"""Texts of times: every form of the grammar gives the time that plain arithmetic gives, and nothing else is
taken.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain.records.event_time import END_OF_TIME, format_time, from_datetime, parse_time

OFFSETS = {
    "": 0,
    "Z": 0,
    "z": 0,
    " UTC": 0,
    "UTC": 0,
    "+00:00": 0,
    "-00:00": 0,
    "+02": 7_200,
    " +0530": 19_800,
    "-03:30": -12_600,
    "+23:59": 86_340,
    "+00:53:28": 3_208,
}
"""Seconds east of UTC by the text of an offset."""

moments = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29))  # noqa: DTZ001 - UTC is put in below


@st.composite
def written(draw: st.DrawFn) -> tuple[str, int]:
    """(a text of the grammar, microseconds since 1970 UTC)."""
    moment = draw(moments).replace(tzinfo=UTC)
    offset = draw(st.sampled_from(sorted(OFFSETS)))
    is_basic = draw(st.booleans())
    date = f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d}"
    clock = f"{moment.hour:02d}:{moment.minute:02d}"
    if is_basic:
        date, clock = date.replace("-", ""), clock.replace(":", "")
    separator = draw(st.sampled_from("Tt" if is_basic else "Tt "))
    moment = moment.replace(microsecond=moment.microsecond)
    if draw(st.booleans()):
        clock += f"{'' if is_basic else ':'}{moment.second:02d}"
        digits = draw(st.integers(0, 18))
        micros = f"{moment.microsecond:06d}"
        kept = micros[:digits]
        if digits:
            finer = draw(st.text("0123456789", min_size=max(digits - 6, 0), max_size=max(digits - 6, 0)))
            clock += draw(st.sampled_from(".,")) + kept + finer
        moment = moment.replace(microsecond=int(kept.ljust(6, "0")))
    else:
        moment = moment.replace(second=0, microsecond=0)
    blank = draw(st.sampled_from(["", " ", "\t", "\n"]))
    return f"{blank}{date}{separator}{clock}{offset}{blank}", from_datetime(
        moment - timedelta(seconds=OFFSETS[offset])
    )


@given(written())
def test_each_form_gives_the_time_that_arithmetic_gives(case: tuple[str, int]) -> None:
    text, time_us = case
    assert parse_time(text) == time_us


@given(moments, st.booleans())
def test_a_day_alone_is_its_midnight(moment: datetime, is_next: bool) -> None:
    day = datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
    text = f"{day.year:04d}-{day.month:02d}-{day.day:02d}"
    assert parse_time(text) == from_datetime(day)
    for clock in ("24:00", "24:00:00", "24:00:00.000"):
        assert parse_time(f"{text}T{clock}") == from_datetime(day + timedelta(days=1))
    leap = from_datetime(day + timedelta(days=1))
    assert parse_time(f"{text}T23:59:60Z") == leap
    assert parse_time(f"{text}T23:59:60.25") == leap + 250_000
    shown = day + timedelta(hours=5, minutes=29) - timedelta(days=1)
    assert parse_time(f"{shown.year:04d}-{shown:%m-%d}T05:29:60+05:30") == from_datetime(day) - 86_400_000_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2008",
        "2008-10",
        "1764121231530",
        "1764121231",
        "202401011230005",
        "20240101123000",
        "20240101",
        "2024-W01-1",
        "2024W011",
        "2024-001",
        "2024-1-1",
        "10/10/2008",
        "2024-02-30",
        "2023-02-29",
        "0000-01-01",
        "2024-13-01",
        "2024-01-01T12",
        "2024-01-01T1230",
        "20240101T12:30",
        "2024-01-01T12:3",
        "2024-01-01T12:30:0",
        "2024-01-01T12:30:00.",
        "2024-01-01T12:30.5",
        "2024-01-01X12:30:00",
        "2024-01-01  12:30:00",
        "2024-01-01T24:00:01",
        "2024-01-01T24:00:00.000001",
        "2024-01-01T24:01",
        "2024-01-01T25:00:00",
        "2024-01-01T12:60:00",
        "2024-01-01T12:59:60Z",
        "2024-01-01T23:59:60+01:00",
        "2024-01-01T23:59:61Z",
        "2024-01-01T12:30:00+24:00",
        "2024-01-01T12:30:00+2:00",
        "2024-01-01T12:30:00+02:60",
        "2024-01-01T12:30:00+020000",
        "2024-01-01T12:30:00ZZ",
        "2024-01-01T12:30:00+02:00Z",
        "2024-01-01T12:30:00.5+02:00Z",
        "2024-01-01T12:30:00 CET",
        "2024-01-01Z",
        "2024-01-01T1\uff12:30:00Z",
        "\u0662\u0660\u0662\u0664-01-01",
        "2024-01-01T12:30:00.\u00b2Z",
        "+2024-01-01",
        "9999-12-31T24:00:00Z",
        "0001-01-01T00:00:00+01:00",
    ],
)
def test_what_is_outside_of_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an ISO 8601 date or time") as refused:
        parse_time(text)
    assert str(refused.value).startswith(repr(text))


@given(st.text("0123456789-:.,TZ +UTCz", max_size=32))
@settings(max_examples=300)
def test_any_text_is_a_time_of_these_years_or_refused_with_a_sentence(text: str) -> None:
    try:
        time_us = parse_time(text)
    except ValueError as error:
        said = str(error)
    else:
        said = f"{text!r} is not an ISO 8601 date or time"
        assert parse_time(format_time(time_us)) == time_us
    assert said.startswith(f"{text!r} is not an ISO 8601 date or time")


def test_a_clock_is_asked_for_times_without_an_offset_alone() -> None:
    def east(local_us: int) -> int:
        return local_us - 3_600_000_000

    day = parse_time("2024-07-01")
    assert parse_time("2024-07-01", east) == day - 3_600_000_000
    assert parse_time("2024-07-01T12:00:00.5", east) == day + 11 * 3_600_000_000 + 500_000
    assert parse_time("20240701T1200", east) == day + 11 * 3_600_000_000
    assert parse_time("2024-07-01T00:59:60", east) == day
    for text in ("2024-07-01T12:00:00Z", "2024-07-01T12:00Z", "2024-07-01T14:00:00+02:00"):
        assert parse_time(text, east) == day + 12 * 3_600_000_000

    def skipping(local_us: int) -> int:
        raise ValueError(f"the clock never shows {format_time(local_us)}")

    for text in ("2024-07-01", "2024-07-01T00:00:00", "2024-07-01T00:00"):
        with pytest.raises(ValueError, match="the clock never shows 2024-07-01T00:00:00Z"):
            parse_time(text, skipping)


def test_the_last_of_times_is_read_as_it_is_printed() -> None:
    assert parse_time("2200-01-01T00:00:00Z") == parse_time("2200-01-01T01:00:00+01:00") == END_OF_TIME
    assert format_time(parse_time("9999-12-31T23:59:59.999999Z")) == "9999-12-31T23:59:59.999999Z"


PAGE = Path(__file__).parents[2] / "docs" / "sources" / "times.md"


def test_the_page_of_times_says_what_is_read() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (?:`([^`]+)`|refused) \|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) > 15
    for text, meant in rows:
        if meant:
            assert format_time(parse_time(text)) == meant
        else:
            with pytest.raises(ValueError, match="is not an ISO 8601 date or time"):
                parse_time(text)
