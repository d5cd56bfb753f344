"""Round-trip times: how long acks take, and when the oldest unacked batch is overdue.

Inside the sender. The receiver sees a batch that is lost among others, and asks for it. Only the sender can
miss the last one. Guarantees: the timeout follows the smoothed time and deviation of RFC 6298, measured on
batches that were sent once. After a repeated batch the timeout stays doubled until another time was measured
(Karn's algorithm). Between two acks at most `PROBES_MAX` batches are repeated. Each needless probe widens the
margin, so that few batches are sent twice however much the times vary.
"""

from __future__ import annotations

import math

PROBES_MAX = 2
"""Probes between two acks; the second one waits twice as long."""

MARGIN_S_MIN = 0.005
"""Seconds added to the mean at least: what a machine takes now and then."""

DEVIATIONS_MIN, DEVIATIONS_MAX = 2.0, 16.0
"""Deviations added to the mean: doubled by each needless probe, and reduced a little by each ack."""
_LESS = 0.98


class RoundTrips:
    """The batches sent on this connection that no ack has named yet, in seq order."""

    def __init__(self, timeout_s_min: float, resend_s: float) -> None:
        """`resend_s`: with a timeout as long as this there is no probe, because the resend timer comes
        first.
        """
        self._timeout_s_min, self._resend_s = timeout_s_min, resend_s
        self._sent: dict[int, tuple[float, float]] = {}
        self._mean_s = self._deviation_s = 0.0
        self._deviations = DEVIATIONS_MIN
        self._probes = self._doublings = 0
        self._probed = (0, 0.0)

    def sent(self, seq: int, now_s: float, *, again: bool) -> None:
        """Note that a batch was sent; again: not for the first time, so that its ack measures nothing."""
        first_s = self._sent[seq][1] if again and seq in self._sent else -math.inf if again else now_s
        self._sent[seq] = (now_s, first_s)

    def acked(self, seq: int, now_s: float) -> bool:
        """Note an ack for all up to `seq`; it measures the batch that has waited longest.

        Returns whether the last probe was needless: the ack came sooner than half a round trip after it. Such
        an ack measures the first sending, unless that was long ago.
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
        return is_needless

    def _measure(self, seconds: float) -> None:
        if not self._mean_s:
            self._mean_s, self._deviation_s = seconds, seconds / 2
            return
        self._deviation_s += (abs(seconds - self._mean_s) - self._deviation_s) / 4
        self._mean_s += (seconds - self._mean_s) / 8

    def clear(self) -> None:
        """Forget the batches, because all are about to be sent again; what was measured stays."""
        self._sent.clear()
        self._probes, self._doublings, self._probed = 0, 0, (0, 0.0)

    @property
    def due_s(self) -> float | None:
        """When the oldest batch is overdue; None while nothing is, or nothing has been measured."""
        if not self._sent or not self._mean_s or self._probes >= PROBES_MAX:
            return None
        overdue_s = self._mean_s + max(self._deviations * self._deviation_s, MARGIN_S_MIN)
        timeout_s = max(overdue_s, self._timeout_s_min) * 2**self._doublings
        return None if timeout_s >= self._resend_s else next(iter(self._sent.values()))[0] + timeout_s

    def probed(self, now_s: float) -> None:
        """Note that the oldest batch is sent again because it is overdue."""
        self._probes += 1
        self._doublings = min(self._doublings + 1, PROBES_MAX)
        self._probed = (next(iter(self._sent), 0), now_s)
