"""Noticing that a broker ends our sessions because another client connects with our id.

Beside `geartrain.concurrency.connecting`, which asks after each session. MQTT 3.1.1 has no word for it: the
broker closes the connection. So a takeover shows by its pattern alone: the broker accepts each session at
once and ends it soon after, again and again. Guarantees: a broker that is away between two sessions is no
takeover, nor is a single break.
"""

from __future__ import annotations

SHORT_S = 60.0
"""A session that lasts longer was not taken over: who shares an id comes back within the longest pause."""
IN_ROW = 3
"""So many short sessions, one after the other, are a takeover."""
TAKEN_OVER = "session_taken_over"
"""The code of the warning."""


class Takeovers:
    """The sessions of one client, as far as they were taken over."""

    def __init__(self) -> None:
        self._short = 0
        self.count = 0
        """How many sessions were taken over."""

    def ended(self, lasted_s: float | None) -> bool:
        """Note how long a session was of use before the other side ended it, in seconds; None for an attempt
        that gave no session. Returns whether it counts as taken over.
        """
        self._short = self._short + 1 if lasted_s is not None and lasted_s < SHORT_S else 0
        if self._short < IN_ROW:
            return False
        self.count += 1
        return True


def taken_over(client_id: str, broker_said: str) -> str:
    """The sentence for a takeover. client_id: of the client; broker_said: how the last session ended."""
    return (
        f"{TAKEN_OVER}: each of the last {IN_ROW} sessions was ended within {SHORT_S:.0f} s, though the "
        f"broker accepts them at once; another client probably connects with the same id, {client_id}: see "
        f"the broker's log for that id, and end the other client or give it an id of its own ({broker_said})"
    )
