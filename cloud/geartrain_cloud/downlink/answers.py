"""What devices answer on the way down: acks, nacks, and offers of another epoch.

Between the broker and the outbox. Guarantees: a batch is trimmed only on the device's own ack for this epoch
with this digest; an answer that cannot be read, or is of another flow or epoch, changes nothing and is
counted.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from geartrain.errors import WireError
from geartrain.ports import Incoming
from geartrain.printable import printable
from geartrain.wire.codec import decode_control
from geartrain.wire.envelope import Ack, Control, Nack, NackReason, Offer, Welcome
from geartrain.wire.limits import LIMITS
from geartrain.wire.topics import parse_downack
from geartrain_cloud.downlink.ways import Way, Ways

_LOG = logging.getLogger("geartrain.down")


class Answers:
    """Takes the answers of all devices of one flow."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        self._flow, self._store = ways.flow, ways.store
        self._clock, self._settings = ways.clock, ways.settings

    def decoded(self, incoming: Incoming) -> tuple[Way, Control] | None:
        """What an answer says and of whom, None for one that is counted and left."""
        try:
            device, flow = parse_downack(incoming.topic)
            if len(incoming.payload) > LIMITS.payload_bytes_max:
                raise WireError(f"an answer has {len(incoming.payload)} bytes")
            control = decode_control(incoming.payload)
        except WireError as error:
            self._ways.count("answers_not_decoded")
            _LOG.warning("the way down of flow %s: %s", self._flow, printable(str(error)))
            return None
        way = self._ways.by_device.get(device)
        if way is None or flow != self._flow or control.flow != flow or isinstance(control, Welcome):
            self._ways.count("answers_of_others")
            return None
        return way, control

    async def take(self, way: Way, control: Control) -> None:
        """Take one answer of a device."""
        way.pause_s = self._settings.resend_ms / 1_000
        if control.epoch != way.lane.epoch:
            self._ways.count("answers_of_other_epochs")
            if not any(control.epoch):
                self._ask(way)  # a device that has just come, and has nothing yet
        elif isinstance(control, Ack):
            await self._on_ack(way, control)
        elif isinstance(control, Nack):
            await self._on_nack(way, control)
        elif isinstance(control, Offer) and control.ordinal > way.lane.ordinal:
            await self._on_offer(way, control)
        self._ways.wake(way.lane.device)

    def _ask(self, way: Way) -> None:
        """Say hello, at once, but not more often than a resend's quarter."""
        now_s = self._clock.monotonic_s()
        if now_s - way.rewound_s >= self._settings.resend_ms / 4_000:
            way.rewound_s, way.is_open, way.due_s = now_s, False, -1.0

    async def _on_ack(self, way: Way, ack: Ack) -> None:
        lane = way.lane
        if ack.seq < lane.acked_seq:
            self._ways.count("answers_stale")
            return
        if ack.seq == lane.acked_seq:
            self._stand_at(way, ack.seq)
            return
        digest = await self._digest_at(way, ack.seq)
        if digest != ack.digest:
            self._ways.count("acks_refused")
            self._ways.alarm(
                f"device {lane.device} acks another batch {ack.seq} than the outbox holds, which was lost or "
                "restored from a backup: it goes on in a new epoch"
            )
            await self._ways.begin_anew(way, lane.ordinal + 1)
            return
        await self._store.trim(lane.device, lane.epoch, ack.seq, ack.digest)
        way.lane = replace(lane, acked_seq=ack.seq, acked_digest=ack.digest)
        way.under_way = [one for one in way.under_way if one[0] > ack.seq]
        if way.sent < ack.seq:
            way.sent, way.sent_digest = ack.seq, ack.digest
        way.is_open, way.refusals = True, (0, 0)
        way.due_s = self._clock.monotonic_s() + way.pause_s

    async def _digest_at(self, way: Way, seq: int) -> bytes:
        """The running digest at a seq that is not trimmed, empty where there is none."""
        for sent, _, digest in way.under_way:
            if sent == seq:
                return digest
        found = await self._store.read(way.lane.device, seq - 1, 1)
        return found[0].digest if found and found[0].seq == seq else b""

    def _stand_at(self, way: Way, seq: int) -> None:
        """The device has all up to `seq` and lacks what follows."""
        now_s = self._clock.monotonic_s()
        if not way.is_open or now_s - way.rewound_s >= self._settings.resend_ms / 4_000:
            way.is_open, way.rewound_s = True, now_s
            way.rewind(seq)
            way.due_s = now_s + way.pause_s

    async def _on_nack(self, way: Way, nack: Nack) -> None:
        lane = way.lane
        self._ways.count("nacks")
        if nack.reason is NackReason.CLOSED or nack.seq - 1 < lane.acked_seq:
            self._ask(way)
        elif nack.reason is NackReason.GAP:
            # What lies between the ack and this was received, and comes again if it is not acked.
            self._stand_at(
                way, min(nack.seq - 1, lane.last_seq) if self._was_sent(way, nack.seq - 1) else lane.acked_seq
            )
        elif nack.reason is NackReason.NEED_SCHEMA:
            self._ways.count("schemas_refused")
            self._ways.alarm(
                f"device {lane.device} runs another version of flow {self._flow}: run the same on both"
            )
            way.is_open, way.due_s = False, self._clock.monotonic_s() + self._settings.resend_ms_max / 1_000
        else:
            await self._on_digest_refused(way, nack)

    @staticmethod
    def _was_sent(way: Way, seq: int) -> bool:
        return seq == way.lane.acked_seq or any(sent == seq for sent, _, _ in way.under_way)

    async def _on_digest_refused(self, way: Way, nack: Nack) -> None:
        self._ways.count("digests_refused")
        seq, times = way.refusals
        way.refusals = (nack.seq, times + 1 if seq == nack.seq else 1)
        if way.refusals[1] <= self._settings.digest_retries_max:
            way.rewind(way.lane.acked_seq)
            return
        way.refusals = (0, 0)
        self._ways.alarm(
            f"device {way.lane.device} refuses the digest of batch {nack.seq}: it knows another history of "
            "this outbox, and goes on in a new epoch"
        )
        await self._ways.begin_anew(way, way.lane.ordinal + 1)

    async def _on_offer(self, way: Way, offer: Offer) -> None:
        """The device cannot go on in this epoch."""
        if way.lane.acked_seq == 0:  # it has never begun it: another ordinal will do
            way.take(await self._store.announce(way.lane.device, offer.ordinal))
            way.due_s = -1.0
            return
        self._ways.alarm(
            f"device {way.lane.device} has lost what it had acked up to {way.lane.acked_seq}: its spool is "
            "gone or was restored from a backup; it goes on in a new epoch"
        )
        await self._ways.begin_anew(way, offer.ordinal)
