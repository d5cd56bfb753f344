"""Devices of which there are two: copies of one card, with one key and one name.

Told by the control lane, and asked by REST. Guarantees: a finding is said for as long as both report, and for
some minutes more. Nothing is done to either: only a person knows which of them is the right one.
"""

from __future__ import annotations

from collections.abc import Callable

SAID_S = 600.0
"""How long after the last sign of it a finding is said."""


class Clones:
    """`now_s`: a clock that never goes back, seconds."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._seen_s: dict[str, float] = {}

    def note(self, device: str) -> bool:
        """Two devices report under the name; whether that is news."""
        is_news = not self.sentence(device)
        self._seen_s[device] = self._now_s()
        return is_news

    def sentence(self, device: str) -> str:
        """What to say of a device; empty for nothing."""
        seen_s = self._seen_s.get(device)
        if seen_s is None or self._now_s() - seen_s > SAID_S:
            self._seen_s.pop(device, None)
            return ""
        return (
            f"two devices are {device}, one with a copy of the other's disk: stop one of them; gear device "
            f"revoke {device} locks both out, and gear device token {device} lets the right one join anew"
        )
