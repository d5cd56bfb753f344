"""What is on its way: when each unacked batch was last sent, how long acks take, and which one is overdue.

Under the uplink. A batch that is lost behind others is missed by ingest, which asks for it; of the last one
only the agent can tell. Guarantees: the timeout follows what was measured (smoothing and deviation are those
of RFC 6298), of batches that were sent once only; after one that was sent again it stays doubled until
another was measured (Karn's algorithm), so that a link which has become slower is not asked twice for ever.
Between two acks at most `PROBES_MAX` batches are sent again by it, and each that proves needless, because the
ack came sooner than an answer could, widens its margin: of acks that come in time few see their batch sent
twice, however much they vary. What it does not mend is left to the resend timer, which sends all of it again.
"""

from __future__ import annotations

import asyncio
import math

PROBES_MAX = 2
"""The second one waits twice as long."""

MARGIN_S_MIN = 0.005
"""Added to the mean at least: what a machine takes now and then."""

DEVIATIONS_MIN, DEVIATIONS_MAX = 2.0, 16.0
"""Deviations that are added to it: doubled by each needless probe, and less again by a part with each ack."""
_LESS = 0.98


class Flights:
    """The batches sent on this connection that no ack has named yet, in seq order."""

    def __init__(self, timeout_ms_min: int, resend_ms: int) -> None:
        """`resend_ms`: a timeout of so long is none, because the resend timer comes first."""
        self._timeout_s_min, self._resend_s = timeout_ms_min / 1_000, resend_ms / 1_000
        self._sent: dict[int, tuple[float, float]] = {}
        self._mean_s = self._deviation_s = 0.0
        self._deviations = DEVIATIONS_MIN
        self._probes = self._doublings = 0
        self._probed = (0, 0.0)
        self.moved = asyncio.Event()
        """Set when `due_s` may have come to be something else."""

    def sent(self, seq: int, now_s: float, *, again: bool) -> None:
        """Note that a batch was sent; again: not for the first time, so that its ack measures nothing."""
        first_s = self._sent[seq][1] if again and seq in self._sent else -math.inf if again else now_s
        self._sent[seq] = (now_s, first_s)
        self.moved.set()

    def acked(self, seq: int, now_s: float) -> bool:
        """Note an ack for all up to `seq`; it measures the one of them that has waited for the longest.

        Returns whether a batch was sent again without need, as far as can be told: half of what acks take has
        not passed since. Of such a one the ack measures the first time, unless that is long ago.
        """
        (probed, probed_s), measured_s = self._probed, 0.0
        is_needless = 0 < probed <= seq and now_s - probed_s < self._mean_s / 2
        for one in list(self._sent):
            if one > seq:
                break
            last_s, first_s = self._sent.pop(one)
            is_measured = last_s == first_s or (
                is_needless and one == probed and now_s - first_s <= 2 * self._mean_s
            )
            measured_s = max(measured_s, now_s - first_s if is_measured else 0.0)
        if measured_s:
            self._measure(measured_s)
            self._doublings = 0
        less = 2.0 if is_needless else _LESS
        self._deviations = min(max(self._deviations * less, DEVIATIONS_MIN), DEVIATIONS_MAX)
        self._probes, self._probed = 0, (0, 0.0)
        self.moved.set()
        return is_needless

    def _measure(self, seconds: float) -> None:
        if not self._mean_s:
            self._mean_s, self._deviation_s = seconds, seconds / 2
            return
        self._deviation_s += (abs(seconds - self._mean_s) - self._deviation_s) / 4
        self._mean_s += (seconds - self._mean_s) / 8

    def clear(self) -> None:
        """Forget them, because all are about to be sent again; what was measured stays."""
        self._sent.clear()
        self._probes, self._doublings, self._probed = 0, 0, (0, 0.0)
        self.moved.set()

    @property
    def due_s(self) -> float | None:
        """When the oldest of them is overdue; None while nothing is, or nothing has been measured."""
        if not self._sent or not self._mean_s or self._probes >= PROBES_MAX:
            return None
        overdue_s = self._mean_s + max(self._deviations * self._deviation_s, MARGIN_S_MIN)
        timeout_s = max(overdue_s, self._timeout_s_min) * 2**self._doublings
        return None if timeout_s >= self._resend_s else next(iter(self._sent.values()))[0] + timeout_s

    def probed(self, now_s: float) -> None:
        """Note that the oldest is sent again because it is overdue."""
        self._probes += 1
        self._doublings = min(self._doublings + 1, PROBES_MAX)
        self._probed = (next(iter(self._sent), 0), now_s)
