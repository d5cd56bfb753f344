"""Times in other forms than ISO 8601: what `time_format` names, and years that a text leaves out.

Under every source that reads times. The directives are those of `strptime` as far as no locale and no
calendar of weeks is asked: names of months and days are English. Guarantees: a text means the same under
every Python and every locale. Digits that directly follow other digits are counted, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from geartrain.records.event_time import (
    DAY_US,
    OFFSET,
    ToUtc,
    civil_us,
    clock_us,
    to_datetime,
    utc_of,
)

_MONTHS: Final = (
    *("january", "february", "march", "april", "may", "june", "july"),
    *("august", "september", "october", "november", "december"),
)
_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NUMBERS: Final = {"m": "month", "d": "day", "H": "hour", "I": "hour_12", "M": "minute", "S": "second"}
_NUMBERS_LIKE: Final = {"e": "d", "k": "H", "l": "I"}
_WHOLE: Final = {"F": "%Y-%m-%d", "T": "%H:%M:%S", "R": "%H:%M", "D": "%m/%d/%y", "h": "%b"}
_OTHERS: Final = {
    "Y": r"(?P<year>[0-9]{4})",
    "y": r"(?P<year_2>[0-9]{2})",
    "j": r"(?P<day_of_year>[0-9]{3})",
    "f": r"(?P<fraction>[0-9]{1,18})",
    "p": r"(?P<half>[AaPp])\.?[Mm]\.?",
    "b": f"(?P<month_name>{'|'.join(name[:3] for name in _MONTHS)})",
    "B": f"(?P<month_name>{'|'.join(_MONTHS)})",
    "a": f"(?:{'|'.join(name[:3] for name in _DAYS)})",
    "A": f"(?:{'|'.join(_DAYS)})",
    "z": f"(?P<offset>{OFFSET})",
    "Z": r"(?P<offset>Z|UTC|GMT)",
    "%": "%",
    "n": r"\s+",
    "t": r"\s+",
}
DIRECTIVES: Final = " ".join(f"%{one}" for one in sorted({*_NUMBERS, *_NUMBERS_LIKE, *_WHOLE, *_OTHERS}))
_PIECE = re.compile(r"%(.?)|\s+|[^%\s]+", re.DOTALL)
_CENTURY_TURN: Final = 69
"""Years of two digits from here on are 19.., those below 20.., as POSIX has it."""
_FEBRUARY_29_YEARS: Final = 8
"""The most years from one 29 February to the next, around 1900 and 2100."""
_CLOCK_FLOOR_US: Final = 1_735_689_600_000_000
"""2025-01-01: a device's clock that shows less does not know the year."""


YearTime = Callable[[int], int]
"""The time that a text without a year means in a year, microseconds since 1970 UTC."""


class NeverShownError(ValueError):
    """A time of the calendar that a zone's clock never showed: half a sentence.

    Args:
        text: the half of the sentence.
        local_us: what the clock would have shown, as if it were UTC, microseconds since 1970.
    """

    def __init__(self, text: str, local_us: int) -> None:
        super().__init__(text)
        self.local_us = local_us


class TimeFormat(msgspec.Struct, frozen=True):
    """How times are written.

    Args:
        text: the format.
        pattern: the expression of a whole text.
        has_year: whether a text says of which year it is.
        has_offset: whether a text says how far its clock is from UTC.
    """

    text: str
    pattern: re.Pattern[str]
    has_year: bool
    has_offset: bool

    @staticmethod
    def of(text: str) -> TimeFormat:
        """The format that a user wrote; raises `ValueError` with half a sentence, such as `has no day`."""
        pieces = _pieces(text)
        try:
            pattern = re.compile("".join(pieces), re.IGNORECASE | re.ASCII)
        except re.error:
            raise ValueError("names a part of the time twice") from None
        has = pattern.groupindex
        if not ("day_of_year" in has or ("day" in has and ("month" in has or "month_name" in has))):
            raise ValueError("has no day: it needs a month and a day (%m or %b, and %d), or %j")
        if ("hour_12" in has) != ("half" in has) or ("hour_12" in has and "hour" in has):
            raise ValueError("needs %p with %I, or %H in place of both")
        return TimeFormat(text, pattern, "year" in has or "year_2" in has, "offset" in has)

    def read(self, text: str, to_utc: ToUtc | None, now_us: int | None, year: int = 0) -> int | None:
        """The time of a text.

        Args:
            text: as it was written; spaces around it do not count.
            to_utc: the clock of times that name no offset; None for UTC.
            now_us: the clock by which a year is set where the text names none, microseconds since 1970 UTC.
            year: the year of such a text, 0 where `now_us` decides.

        Returns:
            Microseconds since 1970 UTC; None for a text that is not written so.

        Raises:
            ValueError: with half a sentence, for a time that cannot be.
        """
        found = self.pattern.fullmatch(text.strip(" \t\r\n"))
        if found is None:
            return None
        parts = {name: value for name, value in found.groupdict().items() if value is not None}
        us, is_leap = _clock(parts)
        offset = parts.get("offset")
        offset = "Z" if offset is not None and offset.strip().upper() in ("Z", "UTC", "GMT") else offset

        def at(year: int) -> int:
            return utc_of(_midnight(parts, year) + us, offset, to_utc, is_leap=is_leap)

        if "year" in parts:
            return at(int(parts["year"]))
        if "year_2" in parts:
            short = int(parts["year_2"])
            return at(short + (1900 if short >= _CENTURY_TURN else 2000))
        if year:
            return at(year)
        return latest(at, now_us)


def latest(at: YearTime, now_us: int | None) -> int:
    """The time in the latest year in which it is not in the future, with a day of tolerance.

    Args:
        at: the time in a year, microseconds since 1970 UTC; raises `ValueError` for a year that lacks the
            day.
        now_us: the device's clock, microseconds since 1970 UTC.

    Returns:
        Microseconds since 1970 UTC.

    Raises:
        ValueError: with half a sentence, where the clock is not set, or no year has the day.
        NeverShownError: the zone's clock never showed it in that year. No earlier year is taken in its place.
    """
    if now_us is None or now_us < _CLOCK_FLOOR_US:
        raise ValueError("it names no year, and the clock of this device is not set yet")
    end_us = now_us + DAY_US
    newest = to_datetime(end_us).year + 1  # a zone may be a year ahead
    problem = ValueError("no year has this day")
    for year in range(newest, newest - _FEBRUARY_29_YEARS - 2, -1):
        try:
            time_us = at(year)
        except NeverShownError as error:
            if error.local_us <= end_us:
                raise
            continue
        except ValueError as error:
            problem = error
            continue
        if time_us <= end_us:
            return time_us
    raise problem


def _pieces(text: str) -> list[str]:
    """The expressions of a format's parts; raises `ValueError` with half a sentence."""
    for short, whole in _WHOLE.items():
        text = re.sub(f"(?<!%)((?:%%)*)%{short}", rf"\1{whole}", text)
    found = list(_PIECE.finditer(text))
    pieces: list[str] = []
    for number, piece in enumerate(found):
        name = piece[1]
        if name is None:
            pieces.append(r"\s+" if piece[0].isspace() else re.escape(piece[0]))
            continue
        name = _NUMBERS_LIKE.get(name, name)
        if name in _NUMBERS:
            beside = [other[1] for other in found[max(number - 1, 0) : number + 2] if other is not piece]
            is_counted = any(one is not None and (one in _NUMBERS or one in "YyjfekI") for one in beside)
            digits = "[0-9]{2}" if is_counted else "[0-9]{1,2}"
            pieces.append(f"(?P<{_NUMBERS[name]}>{digits})")
        elif name in _OTHERS:
            pieces.append(_OTHERS[name])
        else:
            raise ValueError(f"has %{name}, which is not read: it may have {DIRECTIVES}")
    return pieces


def _clock(parts: dict[str, str]) -> tuple[int, bool]:
    hour = int(parts.get("hour", "0"))
    if "hour_12" in parts:
        hour = int(parts["hour_12"])
        if not 1 <= hour <= 12:
            raise ValueError(f"there is no hour {hour} of 12")
        hour = hour % 12 + (12 if parts["half"] in "Pp" else 0)
    minute, second = int(parts.get("minute", "0")), int(parts.get("second", "0"))
    return clock_us(hour, minute, second, parts.get("fraction"))


def _midnight(parts: dict[str, str], year: int) -> int:
    if "day_of_year" in parts:
        number = int(parts["day_of_year"])
        first = civil_us(year, 1, 1)
        if not 1 <= number <= 365 and not (
            number == 366 and civil_us(year + 1, 1, 1) - first == 366 * DAY_US
        ):
            raise ValueError(f"there is no day {number} in the year {year}")
        return first + (number - 1) * DAY_US
    name = parts.get("month_name", "")[:3].lower()
    month = int(parts["month"]) if not name else [one[:3] for one in _MONTHS].index(name) + 1
    return civil_us(year, month, int(parts["day"]))
