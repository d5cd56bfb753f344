"""Warnings about what devices send, limited in number and in plain characters.

Used wherever ingest refuses something. The counters count every refusal. The program's log names the first
of a kind, and then at most one in `REPEAT_S`. Guarantees: a device's text reaches the program's log and the
ledger's texts without control characters.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from geartrain.ports import Clock
from geartrain.printable import TEXT_CHARS_MAX, printable

_LOG = logging.getLogger("geartrain.ingest")

REPEAT_S = 10.0
"""The same warning about the same device is not repeated within this time."""

_SUBJECTS_MAX = 1_024


class Alarm:
    """Logs warnings, each (kind, subject) at most once in `REPEAT_S`, and says how many it left out."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def warn(self, kind: str, subject: str, text: str) -> None:
        """Log `text`; kind: what happened; subject: to whom, such as `device/flow`."""
        now, key = self._clock.monotonic_s(), (kind, subject)
        last = self._last.get(key)
        if last is not None and now - last[0] < REPEAT_S:
            self._last[key] = (last[0], last[1] + 1)
            return
        left_out = last[1] if last is not None else 0
        self._last[key] = (now, 0)
        self._last.move_to_end(key)
        if len(self._last) > _SUBJECTS_MAX:
            self._last.popitem(last=False)
        more = f" ({left_out} more like it since the last time)" if left_out else ""
        _LOG.warning("%s: %s%s", printable(subject, TEXT_CHARS_MAX), printable(text, TEXT_CHARS_MAX), more)
