"""Event time: int64 microseconds since 1970-01-01 UTC, its two ends, and its text form.

Stands beside every record from its birth. Guarantees exact integer arithmetic: text is parsed and printed
without floats, so no time is ever rounded by a binary fraction. The grammar is the project's own, so that a
text means the same under every Python. From top to bottom: the numbers, the grammar of texts, printing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from geartrain.printable import shortened

SECOND_US = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

END_OF_TIME = 7_258_118_400_000_000
"""2200-01-01T00:00:00Z: the watermark of a bounded source that has ended (pandas' nanoseconds end in
2262).
"""

EARLIEST_TIME = -59_011_459_200_000_000
"""0100-01-01T00:00:00Z: no record is earlier, so that its windows of up to 99 years begin in a year that a
datetime can name.
"""

START_OF_TIME = -(2**63)
"""Minus infinity: the watermark of a split that has shown nothing yet."""


def to_datetime(time_us: int) -> datetime:
    """Return the aware UTC `datetime` of an event time in microseconds; raises `OverflowError` beyond year
    9999.
    """
    return _EPOCH + timedelta(microseconds=time_us)


def from_datetime(moment: datetime) -> int:
    """Return microseconds since 1970 UTC; a naive `moment` is taken as UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _MICROSECOND


ToUtc = Callable[[int], int]
"""From the time that a zone's clock shows, as if it were UTC, to UTC: microseconds since 1970, both. It
raises `ValueError` with a sentence for a time that the clock never shows.
"""

_MINUTE_US, _HOUR_US, DAY_US = 60 * SECOND_US, 3_600 * SECOND_US, 86_400 * SECOND_US
_EPOCH_DAY = _EPOCH.toordinal()
_YEAR_1_US = (1 - _EPOCH_DAY) * DAY_US
_YEAR_10000_US = _YEAR_1_US + 3_652_059 * DAY_US

_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_DATE_CHARS, _MICRO_DIGITS = 10, 6
OFFSET = r" ?UTC|[Zz]| ?[+-][0-9]{2}(?::?[0-9]{2}|:[0-9]{2}:[0-9]{2})?"
"""The offset of a time from UTC, as an expression."""
_OFFSET = re.compile(OFFSET)
_FRACTION = r"(?:[.,](?P<fraction>[0-9]{1,18}))?"
_EXTENDED = re.compile(
    r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})(?:[Tt ]"
    rf"(?P<hour>[0-9]{{2}}):(?P<minute>[0-9]{{2}})(?::(?P<second>[0-9]{{2}}){_FRACTION})?(?P<offset>{OFFSET})?)?"
)
_BASIC = re.compile(
    r"(?P<year>[0-9]{4})(?P<month>[0-9]{2})(?P<day>[0-9]{2})[Tt]"
    rf"(?P<hour>[0-9]{{2}})(?P<minute>[0-9]{{2}})(?:(?P<second>[0-9]{{2}}){_FRACTION})?(?P<offset>{OFFSET})?"
)
"""The whole grammar; docs/sources/times.md tells it."""

_CLOCK_US = {
    f"{mark}{hour:02d}:{minute:02d}:": hour * _HOUR_US + minute * _MINUTE_US
    for mark in "T "
    for hour in range(24)
    for minute in range(60)
}
_SECONDS_US = {f"{second:02d}": second * SECOND_US for second in range(60)}


def parse_time(text: str, to_utc: ToUtc | None = None) -> int:
    """Parse an ISO 8601 date or date-time to microseconds since 1970 UTC.

    A day has the hours 00:00 to 24:00:00, which is the next midnight. 23:59:60 of UTC, a leap second, is the
    next second. What is finer than a microsecond is cut off. Spaces around the text do not count.

    Args:
        text: in the grammar of docs/sources/times.md.
        to_utc: the clock of times that name no offset; None for UTC.

    Returns:
        Microseconds since 1970 UTC, of the years 1 to 9999.

    Raises:
        ValueError: with a sentence, for anything else.
    """
    try:  # the common forms: 2024-01-01 and 2024-01-01T12:30:00, with a fraction or not, of UTC or not
        local_us = _day_us(text[:10])
        if len(text) == _DATE_CHARS:
            return local_us if to_utc is None else utc_of(local_us, None, to_utc)
        local_us += _CLOCK_US[text[10:17]] + _SECONDS_US[text[17:19]]
        rest = text[19:]
        if rest[-1:] == "Z":
            rest, to_utc = rest[:-1], None
        elif rest and rest[0] not in ".,":
            utc_us = local_us - _offset_us(rest)
            return utc_us if 0 < utc_us < END_OF_TIME else _parse_any(text, to_utc)
        if rest:
            digits = rest[1:]
            if not (rest[0] in ".," and digits.isdigit() and digits.isascii()):
                return _parse_any(text, to_utc)
            local_us += fraction_us(digits)
        return local_us if to_utc is None else utc_of(local_us, None, to_utc)
    except (KeyError, ValueError):
        pass
    return _parse_any(text, to_utc)


@lru_cache(maxsize=4_096)  # days repeat
def _day_us(text: str) -> int:
    """Microseconds from 1970 to a day; raises `KeyError` for what is none."""
    found = _DATE.fullmatch(text)
    if found is None:
        raise KeyError(text)
    try:
        return civil_us(int(found[1]), int(found[2]), int(found[3]))
    except ValueError:
        raise KeyError(text) from None


def civil_us(year: int, month: int, day: int) -> int:
    """Microseconds from 1970 to the midnight with which a day begins; raises `ValueError` with a sentence."""
    try:
        return (datetime(year, month, day, tzinfo=UTC).toordinal() - _EPOCH_DAY) * DAY_US
    except ValueError:
        raise ValueError(f"there is no day {year:04d}-{month:02d}-{day:02d}") from None


def clock_us(hour: int, minute: int, second: int, fraction: str | None) -> tuple[int, bool]:
    """(microseconds from midnight, whether it is a leap second) of a time of day; raises `ValueError` with a
    sentence.
    """
    us = hour * _HOUR_US + minute * _MINUTE_US + second * SECOND_US
    us += 0 if fraction is None else fraction_us(fraction)
    is_next_midnight = us == DAY_US and hour == 24
    if not (hour <= 23 or is_next_midnight) or minute > 59 or second > 60:
        raise ValueError(f"there is no time of day {hour:02d}:{minute:02d}:{second:02d}")
    return us, second == 60


def fraction_us(digits: str) -> int:
    """Whole microseconds of the digits behind the point of a second."""
    return int(digits[:_MICRO_DIGITS].ljust(_MICRO_DIGITS, "0"))


@lru_cache(maxsize=1_024)
def _offset_us(text: str) -> int:
    """Microseconds of an offset such as `Z`, `+02`, `+0530`, `-03:30` or `+00:53:28`; raises `ValueError`
    with a sentence.
    """
    if _OFFSET.fullmatch(text) is None:
        raise ValueError(f"{shortened(text)} is no offset from UTC")
    plain = text.strip().replace(":", "")
    if plain in ("Z", "z", "UTC"):
        return 0
    hours, minutes, seconds = (int(plain[at : at + 2] or 0) for at in (1, 3, 5))
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError(f"there is no offset {text.strip()} from UTC")
    total = hours * _HOUR_US + minutes * _MINUTE_US + seconds * SECOND_US
    return -total if plain[0] == "-" else total


def utc_of(local_us: int, offset: str | None, to_utc: ToUtc | None, *, is_leap: bool = False) -> int:
    """UTC of what a clock shows: by its `offset`, else by `to_utc`, else as UTC; microseconds since 1970.

    is_leap: whether the clock shows second 60, so that `local_us` is in the second behind it. Raises
    `ValueError` with a sentence for a time that no clock shows.
    """
    shown_us = local_us - SECOND_US if is_leap else local_us
    if offset is not None:
        utc_us = shown_us - _offset_us(offset)
    else:
        utc_us = shown_us if to_utc is None else to_utc(shown_us)
    if is_leap:
        utc_us += SECOND_US
        if utc_us % DAY_US >= SECOND_US:
            raise ValueError("second 60 is a leap second, which stands only at 23:59:60 of UTC")
    if not _YEAR_1_US <= utc_us < _YEAR_10000_US:
        raise ValueError("it lies outside of the years 1 to 9999 of UTC")
    return utc_us


def _parse_any(text: str, to_utc: ToUtc | None) -> int:
    """A time in any form of the grammar."""
    plain = text.strip(" \t\r\n")
    found = _EXTENDED.fullmatch(plain) or _BASIC.fullmatch(plain)
    if found is None:
        raise ValueError(
            f"{shortened(text)} is not an ISO 8601 date or time, such as 2008-10-10 or 2008-10-10T09:30:00Z"
        )
    hour, minute, second = (int(found[name] or 0) for name in ("hour", "minute", "second"))
    try:
        midnight_us = civil_us(int(found["year"]), int(found["month"]), int(found["day"]))
        us, is_leap = clock_us(hour, minute, second, found["fraction"])
        return utc_of(midnight_us + us, found["offset"], to_utc, is_leap=is_leap)
    except ValueError as error:
        raise ValueError(f"{shortened(text)} is not an ISO 8601 date or time: {error}") from None


def format_time(time_us: int) -> str:
    """Print as `YYYY-MM-DDTHH:MM:SS[.ffffff]Z`, the fraction only where it is not zero."""
    moment = to_datetime(time_us)
    fraction = f".{moment.microsecond:06d}" if moment.microsecond else ""
    return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%S}{fraction}Z"
