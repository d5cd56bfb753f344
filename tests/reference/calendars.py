"""Calendar windows of the random flows, whose times are a few microseconds around 1970: the days of zones
whose clocks leap, stand still and go back within these.
"""

from __future__ import annotations

from geartrain.declarations.calendars import DAY_US, Calendar
from geartrain.declarations.zones import ZoneRules


def _zone(name: str, days: int) -> str:
    """Days begin at 0, 4, 22 and 45; from 15 to 18 it is the day before once more; at 22 time leaps."""
    leap = days * DAY_US
    times = (4, 15, 22, 40)
    return ZoneRules(name, "1", times, (0, leap, leap - 18, 3 * leap, 4 * leap - 45)).to_text()


DAYS, MONTHS = _zone("Test/Days", 1), _zone("Test/Months", 31)
CALENDARS = [
    Calendar("Test/Days", "day", 0, DAYS),
    Calendar("Test/Days", "week", 6, DAYS),
    Calendar("Test/Months", "month", 0, MONTHS),
]
