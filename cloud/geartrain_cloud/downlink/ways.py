"""The ways down: how far each device was sent, and what all of them have in common.

Between the outbox and the sender. Guarantees: a device that stands elsewhere (its spool was lost, or the
outbox was) gets a new epoch with all that it has not acked; what is under way is bounded by the settings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from geartrain.ports import Clock, Randomness
from geartrain.wire.envelope import EPOCH_BYTES
from geartrain_cloud.downlink.store import Lane, OutboxStore
from geartrain_cloud.ingest.alarm import plain

_LOG = logging.getLogger("geartrain.down")


@dataclass(frozen=True, slots=True)
class SenderSettings:
    """How batches are sent.

    window, window_bytes: of one device, batches without an ack; resend_ms: after so long without an answer a
    device is asked again where it stands, doubling up to resend_ms_max; poll_ms: how often the outbox is
    looked into; backoff_ms_max: the longest pause before connecting again; silence_ms: after so long without
    an answer of anybody it subscribes again; digest_retries_max: times that a
    device may refuse the digest of one batch before a new epoch begins.
    """

    window: int = 16
    window_bytes: int = 1 << 20
    resend_ms: int = 2_000
    resend_ms_max: int = 30_000
    poll_ms: int = 50
    backoff_ms_max: int = 10_000
    silence_ms: int = 30_000
    digest_retries_max: int = 3


class Way:
    """One device: its lane, and how far it was sent."""

    def __init__(self, lane: Lane, resend_s: float) -> None:
        self.lane = lane
        self.is_open = False
        """Whether the device is known to stand in this epoch: nothing but a hello is sent before."""
        self.sent, self.sent_digest = lane.acked_seq, lane.acked_digest
        self.under_way: list[tuple[int, int, bytes]] = []
        """(seq, bytes, digest) of what was sent and not acked, oldest first."""
        self.due_s = self.rewound_s = -1.0
        self.pause_s = resend_s
        self.refusals = (0, 0)

    def rewind(self, seq: int) -> None:
        """Send again from behind `seq` on."""
        self.under_way = [one for one in self.under_way if one[0] <= seq]
        self.sent = seq
        self.sent_digest = self.under_way[-1][2] if self.under_way else self.lane.acked_digest

    def take(self, lane: Lane) -> None:
        """Stand in a new epoch, or in one that is announced anew."""
        if lane.epoch != self.lane.epoch:
            self.under_way, self.sent, self.sent_digest = [], lane.acked_seq, lane.acked_digest
        self.lane, self.is_open = lane, False


class Ways:
    """The ways of one flow by device, its counters, and which of them have something to send."""

    def __init__(
        self,
        flow: str,
        store: OutboxStore,
        clock: Clock,
        randomness: Randomness,
        settings: SenderSettings,
        totals: Mapping[str, int],
    ) -> None:
        """`totals`: the counters of former lives."""
        self.flow, self.store, self.clock = flow, store, clock
        self.randomness, self.settings = randomness, settings
        self.by_device: dict[str, Way] = {}
        self.counters: dict[str, int] = dict(totals)
        self._counted = dict(totals)
        self._ready: dict[str, None] = {}
        self._work = asyncio.Event()

    async def ready(self) -> Iterator[Way]:
        """Wait until there are devices to look at; gives each, with those that come up meanwhile."""
        await self._work.wait()
        self._work.clear()
        return self._next()

    def _next(self) -> Iterator[Way]:
        while self._ready:
            device = next(iter(self._ready))
            del self._ready[device]
            yield self.by_device[device]

    def wake(self, device: str) -> None:
        """Have the sender look at a device."""
        self._ready[device] = None
        self._work.set()

    def look_at(self, lane: Lane) -> None:
        """Take what the outbox now says of a device."""
        way = self.by_device.get(lane.device)
        if way is None:
            way = self.by_device[lane.device] = Way(lane, self.settings.resend_ms / 1_000)
        elif lane.epoch != way.lane.epoch:  # the outbox was emptied under us
            way.take(lane)
        else:
            way.lane = replace(way.lane, last_seq=lane.last_seq, last_digest=lane.last_digest)
        self.wake(lane.device)

    def connected(self) -> None:
        """A connection was made: where each device stands is asked for."""
        for device, way in self.by_device.items():
            way.is_open, way.due_s = False, -1.0
            way.pause_s = self.settings.resend_ms / 1_000
            self.wake(device)

    async def begin_anew(self, way: Way, ordinal: int) -> None:
        """Begin a new epoch with all that a device has not acked."""
        self.count("epochs_minted")
        lane = await self.store.renew(way.lane.device, self.randomness.token(EPOCH_BYTES), ordinal)
        way.take(lane)
        way.due_s = -1.0
        self.wake(lane.device)

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        self.counters[name] = self.counters.get(name, 0) + amount

    async def keep_counters(self) -> None:
        """Keep what was counted since the last call."""
        changed = {n: t for n, t in self.counters.items() if self._counted.get(n) != t}
        if changed:
            self._counted |= changed
            await self.store.count(changed)

    def alarm(self, sentence: str) -> None:
        """Say what somebody has to see to."""
        self.count("alarms")
        _LOG.critical("ALARM: %s", plain(sentence))
