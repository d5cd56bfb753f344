"""The times of a source: what its texts and numbers mean, by the options that all sources share.

Under every source that reads times, for event times and for fields of type datetime. Guarantees: a text or a
number means the same on every device, under every Python. What is no time raises `NoTimeError`: a sentence
that names the option to set, and a code.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation, localcontext
from typing import Any, Final, Literal

from geartrain.declarations.options import Options
from geartrain.declarations.zones import LocalClock, clock_of, is_zone_name, zone_of
from geartrain.errors import GeartrainError, SourceError
from geartrain.printable import shortened
from geartrain.records.event_time import EARLIEST_TIME, END_OF_TIME, SECOND_US, ToUtc, format_time, parse_time
from geartrain_devices.no_record import BAD_TIME, NoRecordError
from geartrain_devices.time_formats import NeverShownError, TimeFormat, YearTime, latest

UNITS_US: Final[Mapping[str, Decimal]] = {
    "s": Decimal(1_000_000),
    "ms": Decimal(1_000),
    "us": Decimal(1),
    "ns": Decimal("0.001"),
}
"""Units of a number that is a time, in microseconds."""

_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")
_UNITS_BY_DIGITS: Final = {9: "s", 10: "s", 12: "ms", 13: "ms", 15: "us", 16: "us", 18: "ns", 19: "ns"}
_FORMATS_BY_DIGITS: Final = {
    8: "%Y%m%d",
    12: "%Y%m%d%H%M",
    14: "%Y%m%d%H%M%S",
    **dict.fromkeys((15, 16, 17), "%Y%m%d%H%M%S%f"),
}
_DATE = re.compile(r"(19|20)[0-9]{2}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])")
_YEAR_MAX = 2199
_ISO = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?(?P<zone>Z|[+-][0-9]{2}:[0-9]{2}|)"
)
_SECOND_END: Final = 19
"""Where the seconds of such a text end."""


class NoTimeError(NoRecordError):
    """A text or a number that is no time: half a sentence, of which it is the subject."""

    def __init__(self, text: str) -> None:
        super().__init__(text, BAD_TIME)


class TimeOptions(Options):
    """The options of every source that reads times.

    Args:
        time_unit: what a number counts since 1970 UTC: `s`, `ms`, `us` or `ns`. Empty: numbers of JSON count
            seconds, and a text is no number.
        time_format: how texts are written that are not ISO 8601, such as `%d.%m.%Y %H:%M`.
        time_zone: the zone of texts that name no offset, such as `Europe/Berlin`; empty for UTC.
        repeated_hour: which of two moments a text of `time_zone` means, where the clock was put back.
        time_year: of texts whose `time_format` has no year. 0: the latest in which the time is not in the
            future, with a day of tolerance.
        zone_rules: the rules of `time_zone`, which the platform sets.
    """

    time_unit: str = ""
    time_format: str = ""
    time_zone: str = ""
    repeated_hour: Literal["first", "second"] = "first"
    time_year: int = 0
    zone_rules: str = ""


class Times:
    """How the times of one source are read."""

    def __init__(self, where: str, options: TimeOptions, *, by_clock: bool = False) -> None:
        """by_clock: whether the device's clock may set a year, since no line is read a second time. Raises
        `SourceError`, which begins with `where`, for options that cannot be.
        """
        unit = options.time_unit
        if unit and unit not in UNITS_US:
            raise SourceError(f"{where}: time_unit = {unit!r} must be one of {', '.join(UNITS_US)}")
        self._unit = unit
        self._unit_us = UNITS_US[unit or "s"]
        zone = options.time_zone
        self.clock = _clock_of(where, zone, options.zone_rules) if zone else None
        """That of texts that name no offset, None where the options name no zone."""
        is_second = options.repeated_hour == "second"
        self.to_utc = _to_utc(zone, self.clock, is_second) if self.clock is not None else None
        """From that clock to UTC."""
        self._year, self._by_clock = options.time_year, by_clock
        if self._year and not 1 <= self._year <= _YEAR_MAX:
            raise SourceError(f"{where}: time_year = {self._year} must be a year from 1 to {_YEAR_MAX}")
        self._format = _format_of(where, options.time_format) if options.time_format else None
        if self._format is not None and not (self._format.has_year or self._year or by_clock):
            raise SourceError(
                f"{where}: time_format = {options.time_format!r} has no year, and what is read again must "
                "get the same time: set time_year to the year of these times"
            )

    @property
    def whole_us(self) -> int | None:
        """Microseconds of one count of a whole number, None where numbers are read otherwise."""
        if self._unit_us < 1 or (self._format is not None and not self._unit):
            return None
        return int(self._unit_us)

    @property
    def names_offset(self) -> bool:
        """Whether texts in `time_format` say how far their clock is from UTC."""
        return self._format is not None and self._format.has_offset

    @property
    def takes_numbers(self) -> bool:
        """Whether an option says what a number counts, or which digits it has."""
        return bool(self._unit or self._format)

    def of_text(self, text: str) -> int:
        """What a text means, microseconds since 1970 UTC; raises `NoTimeError`."""
        try:
            if self._unit and _NUMBER.fullmatch(text.strip(" ")):
                return self._counted(Decimal(text.strip(" ")))
            if self._format is not None and (found := self._formatted(self._format, text)) is not None:
                return found
            return parse_time(text, self.to_utc)
        except NoTimeError:
            raise
        except ValueError as error:
            raise NoTimeError(self._refused(text, error)) from None

    def in_year(self, at: YearTime) -> int:
        """What a text means that names no year: in `time_year`, else in the latest year in which it is not in
        the future; raises `ValueError` with half a sentence.
        """
        return at(self._year) if self._year else latest(at, now_us() if self._by_clock else None)

    def length_at_start(self, text: str) -> int:
        """Characters of a time at the start of a text, 0 where there is none. Such a time is written in
        `time_format`, or is a number of `time_unit` with as many digits as those of these years.
        """
        if self._format is not None and (found := self._format.pattern.match(text)) is not None:
            return found.end()
        if self._unit and (found := _NUMBER.match(text)) is not None:
            digits = found[0].partition(".")[0]
            return found.end() if _UNITS_BY_DIGITS.get(len(digits)) == self._unit else 0
        return 0

    def of_number(self, number: float | Decimal) -> int:
        """The same of a number; one without a fraction has the digits of a `time_format` where no unit is
        set.
        """
        if self._format is not None and not self._unit and isinstance(number, int):
            return self.of_text(str(number))
        # The shortest text of a float is the number as it was written.
        return self._counted(number if isinstance(number, Decimal) else Decimal(repr(number)))

    def event_time(self, found: Any) -> int:
        """The same of a text or a number, as the event time of a record."""
        time_us = self.of_text(found) if isinstance(found, str) else self.of_number(found)
        if EARLIEST_TIME <= time_us < END_OF_TIME:
            return time_us
        side, end = ("before", EARLIEST_TIME) if time_us < EARLIEST_TIME else ("not before", END_OF_TIME)
        shown = shortened(found) if isinstance(found, str) else str(found)
        raise NoTimeError(f"{shown} is {side} {format_time(end)}{self._other_unit(str(found))}")

    def alike_times(self, found: list[Any]) -> list[int] | None:
        """The same of many that are written alike: whole numbers, or texts such as `2026-01-01T00:00:00.5Z`
        of one length. None where one of them is not so, or is no event time.
        """
        kinds = set(map(type, found))
        times = None
        if kinds == {int} and (unit_us := self.whole_us) is not None:
            times = found if unit_us == 1 else [number * unit_us for number in found]
        elif kinds == {str} and self._format is None and not self._unit:
            times = _alike_texts(found, self.to_utc)
        return times if times and min(times) >= EARLIEST_TIME and max(times) < END_OF_TIME else None

    def _counted(self, number: Decimal) -> int:
        try:
            with localcontext(prec=80):
                return int((number * self._unit_us).to_integral_value(ROUND_HALF_EVEN))
        except (InvalidOperation, OverflowError, ValueError):
            raise NoTimeError(f"{number} is no time") from None

    def _formatted(self, form: TimeFormat, text: str) -> int | None:
        try:
            now = now_us() if self._by_clock else None
            return form.read(text, self.to_utc, now, self._year)
        except ValueError as error:
            raise NoTimeError(f"{shortened(text)} is no time: {error}") from None

    def _refused(self, text: str, error: ValueError) -> str:
        """Why a text is no time, and which option would read it."""
        plain = text.strip(" ")
        if self._format is not None:
            return f"{shortened(text)} is not written as {self._format.text!r}, nor as ISO 8601"
        if plain.isascii() and plain.isdigit() and not self._unit:
            form = _FORMATS_BY_DIGITS.get(len(plain))
            if form is not None and _DATE.match(plain):
                return f'{shortened(text)} is a number: set time_format = "{form}" where it is a date'
            unit = _UNITS_BY_DIGITS.get(len(plain), "s")
            return f'{shortened(text)} is a number: set time_unit = "{unit}" where it counts from 1970'
        return f"{error}; for other forms set time_format"

    def _other_unit(self, number: str) -> str:
        """Advice where another unit would have given a time of these years."""
        unit = _UNITS_BY_DIGITS.get(len(number.partition(".")[0]))
        if unit is None or unit == (self._unit or "s") or not number.partition(".")[0].isdigit():
            return ""
        return f': set time_unit = "{unit}" where it counts so from 1970'


def _alike_texts(texts: list[str], to_utc: ToUtc | None) -> list[int] | None:
    """What texts mean that are written as the first one, None where that is not `_ISO` or one is otherwise.

    Each minute is read once, and of each text the digits behind.
    """
    shape = _ISO.fullmatch(texts[0])
    length, rows = len(texts[0]), len(texts)
    if shape is None or (to_utc is not None and not shape["zone"]) or set(map(len, texts)) != {length}:
        return None
    joined, zone = "".join(texts), shape["zone"]
    digits = length - len(zone)
    same = [(19, ".")] if digits > _SECOND_END else []
    same += list(enumerate(zone, digits))
    if any(joined[place::length] != sign * rows for place, sign in same) or max(joined[17::length]) > "5":
        return None
    behind = [text[17:19] + text[20:digits] for text in texts]
    if not ("".join(behind).isascii() and "".join(behind).isdecimal()):
        return None
    minutes = [text[:17] for text in texts]
    try:
        # Each with its last second: of the hour 24 there is only the first.
        starts = {one: parse_time(f"{one}59{zone}", to_utc) - 59 * SECOND_US for one in set(minutes)}
    except ValueError:
        return None
    unit_us = 10 ** (6 - max(0, digits - _SECOND_END - 1))
    return [starts[minute] + int(part) * unit_us for minute, part in zip(minutes, behind, strict=True)]


def now_us() -> int:
    """The device's clock, microseconds since 1970 UTC."""
    return time.time_ns() // 1_000


def _format_of(where: str, text: str) -> TimeFormat:
    try:
        return TimeFormat.of(text)
    except ValueError as error:
        raise SourceError(f"{where}: time_format = {text!r} {error}") from None


def _to_utc(zone: str, clock: LocalClock, takes_second: bool) -> ToUtc:
    """From the clock of a zone to UTC; takes_second: whether a repeated hour is meant when it comes again."""

    def to_utc(local_us: int) -> int:
        moments = clock.moments(local_us)
        if not moments:
            shown = format_time(local_us).removesuffix("Z")
            why = f"the clocks of {zone} never showed {shown}, since they were put forward"
            raise NeverShownError(why, local_us)
        return moments[-1 if takes_second else 0]

    return to_utc


def _clock_of(where: str, zone: str, rules: str) -> LocalClock:
    """The clock of a zone, by the rules that came with the flow, or by those of this machine."""
    if not is_zone_name(zone):
        raise SourceError(f"{where}: time_zone = {zone!r} is no name of a zone, such as Europe/Berlin")
    try:
        if zone_of(rules) == zone:
            return clock_of(rules)
        from geartrain.declarations.zone_data import rules_of  # a device that was told them has no use for it

        return clock_of(rules_of(zone))
    except GeartrainError as error:
        raise SourceError(f"{where}: {error}") from None
