"""The clock of a time zone as plain numbers: when its offset from UTC changes, and when a local time is first
reached.

Under the calendar windows. The numbers are read once from the IANA data, where a flow is submitted. They
travel with the options of its steps, so that no device asks data of its own. Guarantees: whole
numbers alone, so every process gives the same windows; a text that comes from elsewhere is bounded and
checked.
"""

from __future__ import annotations

import binascii
import re
import zlib
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

import msgspec

from geartrain.errors import ConfigError

SECOND_US = 1_000_000
TEXT_CHARS_MAX = 16_384
"""Of the rules of a zone as text."""
CHANGES_MAX = 4_096
"""Of the offset of one zone."""
_BYTES_MAX = 1 << 17
_OFFSET_US_MAX = 1_000 * 86_400 * SECOND_US
_TIME_US_MAX = 2**61
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]{0,31}(/[A-Za-z0-9][A-Za-z0-9_+-]{0,31}){0,2}\Z")


def is_zone_name(name: object) -> bool:
    """Whether it has the form of a name of the IANA data, such as `Europe/Berlin`."""
    return isinstance(name, str) and _NAME.match(name) is not None


class ZoneRules(msgspec.Struct, frozen=True):
    """The offsets of a zone from UTC, microseconds: the first one, and from each of `times` on the next.

    version: that of the IANA data, such as `2025b`.
    """

    zone: str
    version: str
    times: tuple[int, ...]
    offsets: tuple[int, ...]

    def to_text(self) -> str:
        """Zone, version and numbers in one line of ASCII."""
        numbers = (*_differences(self.times), *_differences(self.offsets))
        packed = zlib.compress(",".join(map(str, numbers)).encode(), 9)
        return f"{self.zone} {self.version} {b64encode(packed).decode()}"

    @staticmethod
    def from_text(text: str) -> ZoneRules:
        """Read what `to_text` wrote; raises `ConfigError` for anything else."""
        try:
            return _read(text)
        except (ValueError, binascii.Error, zlib.error) as error:
            raise ConfigError(f"the rules of a time zone cannot be read: {error}") from None


def zone_of(text: str) -> str:
    """The zone that rules as text are for, "" for what is none."""
    return text[:TEXT_CHARS_MAX].partition(" ")[0]


def _read(text: str) -> ZoneRules:
    if len(text) > TEXT_CHARS_MAX:
        raise ValueError(f"they have {len(text)} characters, and may have {TEXT_CHARS_MAX}")
    zone, version, packed = text.split(" ")
    if not is_zone_name(zone) or not version.isalnum() or len(version) > 16:
        raise ValueError("they begin with no zone and version")
    unpacker = zlib.decompressobj()
    raw = unpacker.decompress(b64decode(packed, validate=True), _BYTES_MAX)
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("they are too long, or cut short")
    numbers = [int(one) for one in raw.decode("ascii").split(",") if len(one) <= 20]
    count = len(numbers) // 2
    if len(numbers) != 2 * count + 1 or count > CHANGES_MAX:
        raise ValueError(f"they have {len(numbers)} numbers")
    times, offsets = tuple(accumulate(numbers[:count])), tuple(accumulate(numbers[count:]))
    if any(left >= right for left, right in pairwise(times)):
        raise ValueError("their times do not rise")
    if any(abs(one) > _TIME_US_MAX for one in times) or any(abs(one) > _OFFSET_US_MAX for one in offsets):
        raise ValueError("their numbers are too large")
    return ZoneRules(zone, version, times, offsets)


def _differences(numbers: Sequence[int]) -> list[int]:
    return [one - before for one, before in zip(numbers, (0, *numbers), strict=False)]


class LocalClock:
    """The wall clock of a zone."""

    def __init__(self, rules: ZoneRules) -> None:
        self._times, self._offsets = rules.times, rules.offsets
        ends = [time + offset for time, offset in zip(rules.times, rules.offsets, strict=False)]
        self._shown_before = list(accumulate(ends, max))
        self._farthest = max(map(abs, rules.offsets))

    def local(self, time: int) -> int:
        """What the clock shows at `time`, as if it were UTC; microseconds since 1970, both."""
        return time + self._offsets[bisect_right(self._times, time)]

    def moments(self, local: int) -> list[int]:
        """The moments at which the clock shows `local`, rising: two where it is put back over it, none where
        it is put forward over it.
        """
        first = bisect_right(self._times, local - self._farthest)
        last = bisect_right(self._times, local + self._farthest)
        found = []
        for stretch in range(first, last + 1):
            time = local - self._offsets[stretch]
            if bisect_right(self._times, time) == stretch:
                found.append(time)
        return found

    def reached(self, local: int) -> int:
        """The first moment at which the clock shows `local` or later. A clock that is put back shows some
        times twice, and the first counts; one that is put forward reaches what it leaps over at the leap.
        """
        stretch = bisect_right(self._shown_before, local)
        time = local - self._offsets[stretch]
        return max(time, self._times[stretch - 1]) if stretch else time


@lru_cache(maxsize=64)
def clock_of(rules: str) -> LocalClock:
    """The clock that rules as text describe; raises `ConfigError`."""
    return LocalClock(ZoneRules.from_text(rules))
