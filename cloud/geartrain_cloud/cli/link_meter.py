"""What the links of a demo's devices carry, before and after a step has moved.

Beside a run. Guarantees: all figures are differences of the devices' own counters, and what these do not say
is not told.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

SPAN_S = 6.0
"""Rates are over the last so many seconds."""
FLOWS = 0.3
"""After a move records flow again once there are so many of those before it."""
SIDE_S = 60.0
"""So long before the move is compared with so long after it: over a whole run, the input may change."""


@dataclass(frozen=True, slots=True)
class Look:
    """Totals of all devices: sealed: bytes of batches; read: records; waiting: bytes without an ack; crossed:
    devices that run the step; left: those that neither do so nor have ended; at_s: monotonic seconds.
    """

    at_s: float
    sealed: int
    read: int
    waiting: int
    crossed: int
    left: int

    @property
    def has_moved(self) -> bool:
        """Whether the step runs on the devices, but for those that have ended before."""
        return self.crossed > 0 and not self.left


@dataclass(frozen=True, slots=True)
class Rate:
    """Over a span of the run: bytes and records a second; seconds: its length."""

    bytes_per_s: float
    records_per_s: float
    seconds: float = field(default=0.0, compare=False)

    @staticmethod
    def between(first: Look, last: Look) -> Rate:
        """From one look to a later one."""
        seconds = max(last.at_s - first.at_s, 0.001)
        return Rate((last.sealed - first.sealed) / seconds, (last.read - first.read) / seconds, seconds)

    @property
    def record_bytes(self) -> float:
        """The bytes that a record takes on the link; 0 where none was read."""
        return self.bytes_per_s / self.records_per_s if self.records_per_s > 0 else 0.0

    def __str__(self) -> str:
        each = f"{self.record_bytes:,.2f} bytes each"
        return f"{self.bytes_per_s / 1_000:,.1f} kB/s for {self.records_per_s:,.0f} records/s, {each}"


class LinkMeter:
    """What the link carries before and after the move, from looks at the devices' counters."""

    def __init__(self) -> None:
        self._recent = deque[Look]()
        self._first: Look | None = None
        self._before = deque[Look]()
        self._moved: Look | None = None
        """The last look by which the step had moved: an input that waited for it may come at once then."""
        self._first_after: Look | None = None
        self._last_after: Look | None = None
        self._last: Look | None = None

    def add(self, look: Look, *, asked: bool) -> None:
        """Take a look; asked: whether the step was told to move by then."""
        if self._last is not None and (look.read < self._last.read or look.sealed < self._last.sealed):
            return  # an agent begins again and has not said yet where it is
        is_news = self._last is None or look.read > self._last.read
        self._recent.append(look)
        while look.at_s - self._recent[0].at_s > SPAN_S:
            self._recent.popleft()
        if is_news and self._last is not None and self._last.read and self._first is None:
            self._first = look  # what was read first may have waited until ingest answered
        if not asked and self.has_begun and is_news:  # the input may stand still until the step moves
            self._before.append(look)
            while look.at_s - self._before[0].at_s > SIDE_S:
                self._before.popleft()
        elif asked and look.has_moved and is_news and (self._first_after or self._flows_again()):
            self._first_after = self._first_after or self._moved or look
            if look.at_s - self._first_after.at_s <= SIDE_S:
                self._last_after = look
        if is_news:  # what comes behind the last record is no rate
            self._last = look
        if look.has_moved:
            self._moved = look

    def _flows_again(self) -> bool:
        """Whether sources are past the start of a process, in which they find their places."""
        now, before = self.now, self.before
        return now is not None and (before is None or now.records_per_s >= FLOWS * before.records_per_s)

    @property
    def now(self) -> Rate | None:
        """The rate of late."""
        return Rate.between(self._recent[0], self._recent[-1]) if len(self._recent) > 1 else None

    @property
    def has_begun(self) -> bool:
        """Whether records come one after the other by now."""
        return self._first is not None

    @property
    def before(self) -> Rate | None:
        """Over the last `SIDE_S` in which records came before the step was told to move."""
        return _rate(self._before[0], self._before[-1]) if self._before else None

    @property
    def after(self) -> Rate | None:
        """Over the first `SIDE_S` in which all devices ran the step and records flowed again."""
        return _rate(self._first_after, self._last_after)

    @property
    def is_settled(self) -> bool:
        """Whether what is told of after the move stays so: it is of `SIDE_S`."""
        first, last = self._first_after, self._last
        return first is not None and last is not None and last.at_s - first.at_s > SIDE_S


def _rate(first: Look | None, last: Look | None) -> Rate | None:
    if first is None or last is None or last.at_s <= first.at_s or last.read <= first.read:
        return None
    return Rate.between(first, last)
