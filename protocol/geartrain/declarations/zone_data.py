"""The rules of time zones, as the package tzdata has them.

Asked where a flow is planned, and where one runs without a platform. Guarantees: the zone files of the
machine are never asked, since they differ from one to the next. All changes up to the end of time are told.
"""

from __future__ import annotations

import pkgutil
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from zoneinfo import ZoneInfo

from geartrain.declarations.zones import SECOND_US, ZoneRules
from geartrain.errors import ConfigError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_FIRST_S, _LAST_S = -59_011_459_200, 7_289_654_400
"""From the year 100 to the year 2201."""
_WEEK_S = 7 * 86_400
_HEADER = struct.Struct(">4sc15x6l")


@lru_cache(maxsize=64)
def rules_of(zone: str) -> str:
    """The rules of a zone as text.

    Args:
        zone: a name that has the form of one.

    Returns:
        What `ZoneRules.to_text` gives.

    Raises:
        ConfigError: where the package is missing, or has no such zone.
    """
    try:
        tzdata = import_module("tzdata")
    except ModuleNotFoundError:
        raise ConfigError(
            f"zone {zone}: its rules did not come with the flow, and the package tzdata is not installed "
            "here: install it (pip install tzdata)"
        ) from None
    version = str(tzdata.IANA_VERSION)
    raw = check_zone_name(zone)
    listed = _listed(raw)
    known = ZoneInfo.from_file(BytesIO(raw))

    def offset(second: int) -> int:
        found = (_EPOCH + timedelta(seconds=second)).astimezone(known).utcoffset() or timedelta()
        return found // _SECOND

    times: list[int] = []
    offsets = [offset(_FIRST_S)]
    begin = listed[-1] if listed else _FIRST_S
    has_rule = b"," in raw.splitlines()[-1]  # of summer time for all years to come
    for second in [*listed, *(_by_rule(begin, offset) if has_rule else ())]:
        if (now := offset(second)) != offsets[-1]:
            times.append(second * SECOND_US)
            offsets.append(now)
    return ZoneRules(zone, version, tuple(times), tuple(one * SECOND_US for one in offsets)).to_text()


def check_zone_name(zone: str) -> bytes:
    """The file of a zone, nothing where the package tzdata is not installed; raises `ConfigError` where it is
    and has no such zone.
    """
    if find_spec("tzdata") is None:
        return b""
    try:
        raw = pkgutil.get_data("tzdata", f"zoneinfo/{zone}") or b""
        _listed(raw)
    except (OSError, ValueError, struct.error):
        raise ConfigError(
            f"the time zone database has no zone {zone!r}: write one of its names, such as Europe/Berlin"
        ) from None
    return raw


def _listed(raw: bytes) -> list[int]:
    """The seconds at which something changes, as a file of RFC 8536 lists them; raises `ValueError` or
    `struct.error` for another file.
    """
    magic, _, utc, standard, leaps, times, types, chars = _HEADER.unpack_from(raw)
    if magic != b"TZif":
        raise ValueError("no file of a time zone")
    # The first block has 32 bits for a time. The second one has 64, and the same header.
    second = _HEADER.size + times * 5 + types * 6 + chars + leaps * 8 + standard + utc
    count = _HEADER.unpack_from(raw, second)[5]
    found = struct.unpack_from(f">{count}q", raw, second + _HEADER.size)
    return [one for one in found if _FIRST_S < one < _LAST_S]


def _by_rule(last: int, offset: Callable[[int], int]) -> Iterator[int]:
    """The seconds after `last`, the last listed one, at which the rule for all later years changes the
    offset, which stays for more than a week each time.
    """
    before = offset(last)
    for week in range(last + _WEEK_S, _LAST_S, _WEEK_S):
        after = offset(week)
        if after != before:
            low, high = week - _WEEK_S, week
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset(middle) == before else (low, middle)
            yield high
            before = after
