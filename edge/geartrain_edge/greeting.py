"""Greeting: the question that opens an epoch, asked until ingest has answered it.

Under the uplink, which sends nothing else before. Guarantees: asked again with growing pauses, as long as the
answer is not there; with a higher ordinal as soon as ingest says that another epoch has ours.
"""

from __future__ import annotations

import asyncio

from geartrain.ports import Connection
from geartrain.wire.codec import encode_envelope
from geartrain.wire.envelope import Offer, Welcome
from geartrain_edge.link import Hooks, Link


class Greeting:
    """Whether the epoch of one flow is known to be open, and the way to it."""

    def __init__(self, link: Link) -> None:
        self._settings, self._clock = link.settings, link.effects.clock
        self._counters, self._turn = link.counters, link.turn
        self.is_due = False
        """Whether the epoch is not known to be open: a welcome has to come before anything else is sent."""
        self._ordinal = 1
        self._answered = asyncio.Event()

    async def say(self, connection: Connection, topic: str, hooks: Hooks) -> None:
        """Ask again and again until the epoch is known to be open; returns at once where it is."""
        pause_s = self._settings.resend_ms / 1_000
        if self.is_due:
            self._turn.release()
        while self.is_due:
            self._answered.clear()
            await connection.publish(topic, encode_envelope(hooks.hello(self._ordinal)))
            self._counters.add("hellos_sent")
            async with asyncio.TaskGroup() as group:
                waits = group.create_task(self._answered.wait())
                pauses = group.create_task(self._clock.sleep(pause_s))
                await asyncio.wait((waits, pauses), return_when=asyncio.FIRST_COMPLETED)
                waits.cancel()
                pauses.cancel()
            pause_s = min(pause_s * 2, self._settings.resend_ms_max / 1_000)

    def welcomed(self, welcome: Welcome, hooks: Hooks) -> bool:
        """Take the answer; False where nothing was asked."""
        if not self.is_due:
            self._counters.add("acks_stale")
            return False
        self.is_due = False
        hooks.hear(welcome)
        self._answered.set()
        return True

    def offered(self, offer: Offer) -> None:
        """Another epoch has the ordinal: ask again with a higher one, at once."""
        if not self.is_due or offer.ordinal <= self._ordinal:
            self._counters.add("acks_stale")
            return
        self._ordinal = offer.ordinal
        self._answered.set()
