"""The option `speed`: how fast event time goes while recorded or simulated records are given out."""

from __future__ import annotations

import math

from geartrain.errors import SourceError


def speed_of(step: str, speed: str | float) -> float:
    """Event seconds per wall second, infinite for `max`.

    step: the source's, for the `SourceError` that says that `speed` is neither `max` nor a number above 0.
    """
    if speed == "max":
        return math.inf
    try:
        found = float(speed)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise SourceError(f'source {step}: speed = {speed!r} must be a number above 0 or "max"')
    return found
