"""Calendar windows: the days, weeks and months of a time zone, as long as its clocks make them.

Declared in a flow beside the windows of one size. Guarantees: every moment lies in exactly one window. A day
begins at the first moment at which the zone's clock shows its midnight or later. So it has 23 or 25 hours
where summer time begins or ends, and a day that a zone left out has no window. Which moment that is follows
from the rules of the zone alone, which travel with the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from geartrain.declarations.zones import clock_of, is_zone_name, zone_of
from geartrain.errors import FlowError

DAY_US = 86_400_000_000
Unit: TypeAlias = Literal["day", "week", "month"]
Weekday: TypeAlias = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_FIRST_MONDAY = 4  # 1970-01-05, in days since 1970-01-01


class Calendar(msgspec.Struct, frozen=True, dict=True):
    """The days, weeks or months of a zone.

    begins: the day of the week with which a week begins, 0 for Monday; rules: those of the zone as text, ""
    for those of the package tzdata where the step runs.
    """

    zone: str
    unit: Unit
    begins: int = 0
    rules: str = ""

    def assign(self, time: int) -> tuple[tuple[int, int], ...]:
        """The one window (start, end) that `time` lies in."""
        found: tuple[int, int] | None = self.__dict__.get("_last")
        if found is None or not found[0] <= time < found[1]:
            found = self.__dict__["_last"] = self._window(time)
        return (found,)

    def end(self, start: int) -> int | None:
        """The end of the window that begins at `start`, None where none does."""
        window = self._window(start)
        return window[1] if window[0] == start else None

    def check(self) -> None:
        """Raise `GeartrainError` where the rules of the zone cannot be had."""
        clock_of(self._rules())

    def _rules(self) -> str:
        if self.rules:
            return self.rules
        from geartrain.declarations.zone_data import rules_of  # a device that was told them has no use for it

        return rules_of(self.zone)

    def _window(self, time: int) -> tuple[int, int]:
        clock = clock_of(self._rules())
        first_day, number_of = _UNITS[self.unit]
        number = number_of(clock.local(time) // DAY_US, self.begins)

        def start(number: int) -> int:
            return clock.reached(first_day(number, self.begins) * DAY_US)

        while start(number) > time:  # the clock was put back over midnight
            number -= 1
        while (end := start(number + 1)) <= time:
            number += 1
        return start(number), end


def _week_of(day: int, begins: int) -> int:
    return (day - _FIRST_MONDAY - begins) // 7


def _first_of_week(week: int, begins: int) -> int:
    return week * 7 + _FIRST_MONDAY + begins


def _month_of(day: int, begins: int) -> int:
    """Months since January 1970 of a day since 1970-01-01, by the Gregorian calendar; of any year."""
    cycle, of_cycle = divmod(day + 719_468, 146_097)  # 400 years, from a first of March
    year = (of_cycle - of_cycle // 1_460 + of_cycle // 36_524 - of_cycle // 146_096) // 365
    of_year = of_cycle - (365 * year + year // 4 - year // 100)
    return (400 * cycle + year - 1970) * 12 + (5 * of_year + 2) // 153 + 2


def _first_of_month(month: int, begins: int) -> int:
    """The day since 1970-01-01 with which a month since January 1970 begins."""
    years, since_march = divmod(month - 2, 12)
    year = years + 1970
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * since_march + 2) // 5 - 719_468


_UNITS: dict[str, tuple[Callable[[int, int], int], Callable[[int, int], int]]] = {
    "day": (lambda number, begins: number, lambda day, begins: day),
    "week": (_first_of_week, _week_of),
    "month": (_first_of_month, _month_of),
}
"""Of each unit the first day of the one with a number, and the number of the one that a day lies in."""


def calendar_day(zone: str) -> Calendar:
    """The days of a time zone, from midnight to midnight by its clocks: 23 or 25 hours where summer time
    begins or ends.

    Args:
        zone: a name of the IANA time zone database, such as `Europe/Berlin`.

    Returns:
        The window, for `KeyedStream.window` and `join`.

    Raises:
        FlowError: for what is no name of a zone.

    >>> from datetime import datetime
    >>> from geartrain.records.event_time import from_datetime, to_datetime
    >>> noon = from_datetime(datetime(2024, 3, 31, 12))
    >>> for start, end in calendar_day("Europe/Berlin").assign(noon):
    ...     print(to_datetime(start), (end - start) // 3_600_000_000, "hours")
    2024-03-30 23:00:00+00:00 23 hours
    """
    return Calendar(_checked("calendar_day", zone), "day")


def calendar_week(zone: str, *, begins: Weekday = "monday") -> Calendar:
    """The weeks of a time zone, by its clocks.

    Args:
        zone: a name of the IANA time zone database, such as `Europe/Berlin`.
        begins: the day with which a week begins.

    Returns:
        The window, for `KeyedStream.window` and `join`.

    Raises:
        FlowError: for what is no name of a zone, or of a day.

    >>> from geartrain.records.event_time import to_datetime
    >>> [(start, end)] = calendar_week("America/New_York").assign(0)
    >>> print(to_datetime(start), to_datetime(end))
    1969-12-29 05:00:00+00:00 1970-01-05 05:00:00+00:00
    """
    if begins not in _WEEKDAYS:
        raise FlowError(f"calendar_week: begins={begins!r} must be one of {', '.join(_WEEKDAYS)}")
    return Calendar(_checked("calendar_week", zone), "week", _WEEKDAYS.index(begins))


def calendar_month(zone: str) -> Calendar:
    """The months of a time zone, by its clocks.

    Args:
        zone: a name of the IANA time zone database, such as `Europe/Berlin`.

    Returns:
        The window, for `KeyedStream.window` and `join`.

    Raises:
        FlowError: for what is no name of a zone.

    >>> from geartrain.records.event_time import to_datetime
    >>> [(start, end)] = calendar_month("Australia/Lord_Howe").assign(1_709_300_000_000_000)
    >>> print(to_datetime(start), to_datetime(end))
    2024-02-29 13:00:00+00:00 2024-03-31 13:00:00+00:00
    """
    return Calendar(_checked("calendar_month", zone), "month")


def with_rules(window: Calendar, rules: str) -> Calendar:
    """The window by the given rules; raises `FlowError` for those of another zone or of none."""
    if zone_of(rules) != window.zone:
        raise FlowError(f"they are rules of the zone {zone_of(rules)!r}, and {window.zone} is meant")
    clock_of(rules)
    return Calendar(window.zone, window.unit, window.begins, rules)


def _checked(verb: str, zone: str) -> str:
    if not is_zone_name(zone):
        raise FlowError(f"{verb}({zone!r}): write the name of a time zone, such as {verb}('Europe/Berlin')")
    return zone
