"""Event time: int64 microseconds since 1970-01-01 UTC, its two ends, and its text form.

Stands beside every record from its birth. Guarantees exact integer arithmetic: text is parsed and printed
without floats, so no time is ever rounded by a binary fraction.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

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


def parse_time(text: str) -> int:
    """Parse an ISO 8601 date or date-time (no zone means UTC) to microseconds since 1970 UTC.

    Raises `ValueError` with a sentence for anything else.
    """
    try:
        return from_datetime(datetime.fromisoformat(text.strip()))
    except ValueError:
        raise ValueError(
            f"{text!r} is not an ISO 8601 date or time, such as 2008-10-10 or 2008-10-10T09:30:00Z"
        ) from None


def format_time(time_us: int) -> str:
    """Print as `YYYY-MM-DDTHH:MM:SS[.ffffff]Z`, the fraction only where it is not zero."""
    moment = to_datetime(time_us)
    fraction = f".{moment.microsecond:06d}" if moment.microsecond else ""
    return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%S}{fraction}Z"
