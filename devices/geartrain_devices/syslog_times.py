"""The times in the headers of syslog messages, by the options that all sources share.

Below `geartrain_devices.syslog_headers` and `geartrain_devices.syslog_messages`. RFC 3164 writes the clock of
the sender, without a year and a zone, and many write ISO 8601 without an offset. Guarantees: what such a time
leaves out is never guessed. Without the option that says it, the time has no value. Where a zone is named by
a word, such as CEST, the clock of `time_zone` must have shown the time under that word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Final

import msgspec

from geartrain.errors import SourceError
from geartrain.records.event_time import civil_us, clock_us, parse_time, utc_of
from geartrain_devices.time_formats import NeverShownError
from geartrain_devices.written_times import NoTimeError, TimeOptions, Times

_WORDS: Final[Mapping[int, str]] = {
    0: "UTC GMT WET",
    60: "WEST CET BST IST",
    120: "CEST EET SAST IST",
    180: "EEST MSK",
    330: "IST",
    480: "CST SGT HKT AWST",
    540: "JST KST",
    570: "ACST",
    600: "AEST",
    630: "ACDT",
    660: "AEDT",
    720: "NZST",
    780: "NZDT",
    -240: "EDT",
    -300: "EST CDT",
    -360: "CST MDT",
    -420: "MST PDT",
    -480: "PST AKDT",
    -540: "AKST",
    -600: "HST",
}
"""Words that name a zone, by the offset from UTC that they mean, in minutes; some mean several."""
_EVERY_WORD = "|".join(sorted({word for words in _WORDS.values() for word in words.split()}))
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = r"(?P<hour>\d?\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
_OLD_TIME = re.compile(
    rf"(?:(?P<year_first>\d{{4}}) )?(?P<name>{'|'.join(_MONTHS)}) {{1,2}}(?P<day>\d?\d)"
    rf"(?: (?P<year>\d{{4}}))? {{1,2}}{_CLOCK}"
    rf"(?: (?P<year_last>\d{{4}})(?= ))?"
    rf"(?: ?(?P<offset>Z|[+-]\d\d:?\d\d)(?= )| (?P<word>{_EVERY_WORD})(?= ))?",
    re.ASCII,
)
_ISO_TIME = re.compile(
    rf"(?P<year>\d{{4}})-(?P<month>\d\d)-(?P<day>\d\d)[T ]{_CLOCK}(?P<offset>Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_STANDARD = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(?P<offset>Z|[+-]\d\d:\d\d)?", re.ASCII)
_CHARS_MAX = 256
"""Of a time in a header."""
_LEAP_YEAR = 2000
"""The year in which a day is checked whose year is not known."""
_MINUTE_US = 60_000_000


class SentTime(msgspec.Struct, frozen=True):
    """A time as it stands in a message.

    Args:
        text: as it is written.
        time: microseconds since 1970 UTC, None where the time has no value.
        problem: why it has none: half a sentence, of which it is the subject. Empty where neither it nor an
            option says its year or its offset.
    """

    text: str
    time: int | None = None
    problem: str = ""


def begins_old_time(raw: bytes, at: int) -> bool:
    """Whether a time of RFC 3164 begins at an index of the bytes."""
    return _OLD_TIME.match(raw[at : at + _CHARS_MAX].decode("latin-1")) is not None


class SentTimes:
    """How the times of messages are read."""

    def __init__(self, where: str, options: TimeOptions) -> None:
        """Raises `SourceError`, which begins with `where`, for options that cannot be."""
        self._times = Times(where, options, by_clock=True)
        self._zone = options.time_zone
        self._settles_year = bool(options.time_year or self._zone)
        lacking = f"set time_zone to the zone of the senders, such as {'UTC'!r}"
        if options.time_format and not (self._zone or self._times.names_offset):
            raise SourceError(f"{where}: time_format = {options.time_format!r} has no offset (%z): {lacking}")
        if options.time_year and not (self._zone or self._times.names_offset):
            raise SourceError(f"{where}: times without a year name no offset from UTC, either: {lacking}")

    def begins_own(self, raw: bytes, at: int) -> bool:
        """Whether a time in a form that an option names begins at an index of the bytes."""
        return self._times.length_at_start(raw[at : at + _CHARS_MAX].decode("latin-1")) > 0

    def find(self, raw: bytes, at: int) -> tuple[int, SentTime] | None:
        """The time of a header in an older form.

        Args:
            raw: the message.
            at: where the time would begin, an index of the bytes.

        Returns:
            Where the time ends, and the time; None where none stands there with a space or the end behind it.
        """
        text = raw[at : at + _CHARS_MAX].decode("latin-1")  # a character each, so that indexes stay
        size = self._times.length_at_start(text)
        if size and text[size : size + 1] in (" ", ""):
            return at + size, self._own(text[:size])
        found = _ISO_TIME.match(text) or _OLD_TIME.match(text)
        if found is None or text[found.end() : found.end() + 1] not in (" ", ""):
            return None
        written = _Written.of(found)
        if not written.is_possible():
            return None
        return at + found.end(), self._known(written)

    def read_standard(self, text: str) -> SentTime:
        """The time of a message in the form of RFC 5424; raises `NoTimeError` for what is none there, and not
        one of the options, either.
        """
        found = _STANDARD.fullmatch(text)
        if found is not None and (found["offset"] or self._zone):
            try:
                return SentTime(text, parse_time(text, self._times.to_utc))
            except ValueError as error:
                raise NoTimeError(f"its time {error}") from None
        if self._times.length_at_start(text) == len(text):
            return self._own(text)
        advice = ": set time_zone to the zone of its sender, since it names no offset" if found else ""
        raise NoTimeError(f"its time {text!r} is not one of RFC 5424{advice}")

    def _own(self, text: str) -> SentTime:
        """A time in a form that an option names."""
        try:
            return SentTime(text, self._times.of_text(text))
        except NoTimeError as error:
            return SentTime(text, problem=str(error))

    def _known(self, written: _Written) -> SentTime:
        """A time of RFC 3164 or of ISO 8601."""
        text, word = written.text, written.word
        has_zone = written.offset is not None or word in ("UTC", "GMT") or bool(self._zone)
        if not has_zone or (written.year is None and not self._settles_year):
            return SentTime(text)
        at = partial(self._moment, written)
        try:
            return SentTime(text, self._times.in_year(at) if written.year is None else at(written.year))
        except ValueError as error:
            return SentTime(text, problem=f"{text!r} is no time: {error}")

    def _moment(self, written: _Written, year: int) -> int:
        """Its value in a year; raises `ValueError` with half a sentence."""
        us, is_leap = written.local_us(year)
        word = written.word
        if not word or word in ("UTC", "GMT"):
            offset = written.offset if not word else "Z"
            return utc_of(us, offset, self._times.to_utc, is_leap=is_leap)
        clock = self._times.clock
        moments = clock.moments(us) if clock is not None else []
        offsets = [minutes for minutes, words in _WORDS.items() if word in words.split()]
        named = [one for minutes in offsets if (one := us - minutes * _MINUTE_US) in moments]
        if not named:
            raise NeverShownError(f"it is not {word} then in time_zone = {self._zone!r}", us)
        return named[0]


class _Written(msgspec.Struct, frozen=True):
    """The parts of a time; None for a year or an offset that is not written."""

    text: str
    year: int | None
    month: int
    day: int
    clock: tuple[int, int, int, str | None]
    offset: str | None
    word: str

    @staticmethod
    def of(found: re.Match[str]) -> _Written:
        """Those of a match."""
        parts = found.groupdict()
        year = parts["year"] or parts.get("year_first") or parts.get("year_last")
        month = int(parts["month"]) if "month" in parts else _MONTHS.index(parts["name"]) + 1
        clock = (int(parts["hour"]), int(parts["minute"]), int(parts["second"]), parts["fraction"])
        has_year = int(year) if year else None
        return _Written(
            found[0], has_year, month, int(parts["day"]), clock, parts["offset"], parts.get("word") or ""
        )

    def local_us(self, year: int) -> tuple[int, bool]:
        """(what the clock shows as if it were UTC, whether it is a leap second); raises `ValueError`."""
        us, is_leap = clock_us(*self.clock)
        return civil_us(year, self.month, self.day) + us, is_leap

    def is_possible(self) -> bool:
        """Whether a calendar has the day, a day the clock, and UTC the offset."""
        try:
            us, is_leap = self.local_us(_LEAP_YEAR if self.year is None else self.year)
            utc_of(us, self.offset, None, is_leap=is_leap and self.offset is not None)
        except ValueError:
            return False
        return True
