"""Whether the device's clock can be right: before that, no metadata of a bundle are believed.

Metadata expire, so a clock that stands in the past would take what is long withdrawn. A clock is not believed
if it stands before this program was made, before the device's certificate begins, or before a time at which
metadata were found good earlier. It cannot run ahead of the truth for longer than a timestamp lasts: what it
found good then was not expired. Wall clock, seconds since 1970 UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from geartrain_edge.bundles.errors import FetchError

MADE = int(datetime(2026, 11, 20, tzinfo=UTC).timestamp())
"""No copy of this program is older."""


class TimeBounds(msgspec.Struct, frozen=True):
    """What the clock cannot be before, seconds. certificate: its begin; seen: the newest time of good
    metadata, 0 for none.
    """

    certificate: int = 0
    seen: int = 0
    made: int = MADE


def check_time(now_s: float, bounds: TimeBounds) -> None:
    """Raise `FetchError` unless the clock can be right."""
    reasons = (
        (bounds.made, "when this program was made"),
        (bounds.certificate, "when the device's certificate begins"),
        (bounds.seen, "when metadata of bundles were found good"),
    )
    bound, what = max(reasons)
    if now_s < bound:
        raise FetchError(
            f"the device's clock is not trusted: it says {_text(now_s)}, before {_text(bound)}, {what}: "
            "set it, or wait until it is synchronised"
        )


def _text(seconds: float) -> str:
    return f"{datetime.fromtimestamp(int(seconds), UTC):%Y-%m-%d %H:%M}"
