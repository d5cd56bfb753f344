"""Patience: how long nothing was heard on a connection, and when all that is unacked is due to be sent again.

Under the uplink. Guarantees: each resend without an ack in between waits twice as long as the one before, up
to `resend_ms_max`; a connection on which ingest says nothing for `silence_ms`, though an answer is due, is
given up.
"""

from __future__ import annotations

from geartrain.errors import NetError
from geartrain.ports import Clock
from geartrain_edge.settings import UplinkSettings


class Patience:
    """The timers of one connection after the other."""

    def __init__(self, settings: UplinkSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._resend_s = settings.resend_ms / 1_000
        self._progress_s = self._heard_s = 0.0

    def begin(self) -> None:
        """A connection begins."""
        self.rest()
        self._resend_s = self._settings.resend_ms / 1_000

    def rest(self) -> None:
        """No answer is due."""
        self._progress_s = self._heard_s = self._clock.monotonic_s()

    def heard(self) -> None:
        """Ingest has said something."""
        self._heard_s = self._clock.monotonic_s()

    def opened(self) -> None:
        """The epoch is open."""
        self._progress_s = self._clock.monotonic_s()

    def acked(self) -> None:
        """Batches were acked."""
        self._progress_s = self._clock.monotonic_s()
        self._resend_s = self._settings.resend_ms / 1_000

    def resent(self) -> None:
        """All that is unacked is sent again."""
        self._progress_s = self._clock.monotonic_s()
        self._resend_s = min(self._resend_s * 2, self._settings.resend_ms_max / 1_000)

    @property
    def is_resend_due(self) -> bool:
        """Whether no batch was acked for so long."""
        return self._clock.monotonic_s() - self._progress_s >= self._resend_s

    def check(self) -> None:
        """Raise `NetError` where ingest has been silent for too long."""
        silence_s = self._settings.silence_ms / 1_000
        if self._clock.monotonic_s() - self._heard_s >= silence_s:
            raise NetError(f"ingest has said nothing for {silence_s:g} s: connecting anew")
