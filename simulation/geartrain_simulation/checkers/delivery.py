"""The rules of delivery, at every publish, trim and commit: what is sent, acked, trimmed and named.

They check I3 and the protocol of acks: nothing is trimmed that was not acked, nothing is acked that is not
durable, and a batch has one content for ever.
"""

from __future__ import annotations

from collections.abc import Mapping

from geartrain.errors import WireError
from geartrain.wire.codec import decode_control, decode_envelope, decode_header
from geartrain.wire.envelope import Ack, Envelope, Header
from geartrain_cloud.ingest.group import SEGMENTS
from geartrain_cloud.ports import AckCursor, ClosedEpoch, LedgerChange
from geartrain_simulation.machine.platter import Platter
from geartrain_simulation.machine.violation import Breach
from geartrain_simulation.stores.stores import LedgerBook, SpoolBook

Epoch = tuple[str, str, bytes]
"""(device, flow, epoch)."""


class Delivery:
    """What was sent, acked and made durable of every epoch. `spools`: by (device, flow)."""

    def __init__(
        self,
        breach: Breach,
        spools: Mapping[tuple[str, str], SpoolBook],
        platter: Platter,
        ledger: LedgerBook,
    ) -> None:
        self._breach, self._spools, self._platter, self._ledger = breach, spools, platter, ledger
        self._contents: dict[Epoch, dict[int, Envelope]] = {}
        self._headers: dict[bytes, Header] = {}
        self._durable: dict[Epoch, int] = {}
        self._acked: dict[Epoch, int] = {}
        self._term = 0
        self.shares_the_log = False
        """Whether a former ingest may still write while the next one begins."""
        self.doubles: set[str] = set()
        """Devices of which two spools may send under one epoch: one was copied, or restored."""

    def durable(self, device: str, flow: str, epoch: bytes) -> int:
        """The last seq of an epoch that the ledger holds."""
        return self._durable.get((device, flow, epoch), 0)

    def published(self, topic: str, payload: bytes) -> None:
        """Check what is handed to the broker."""
        *_, device, flow, kind = topic.split("/")
        try:
            if kind == "up":
                self._sent(device, flow, decode_envelope(payload))
            elif kind == "ack" and isinstance(control := decode_control(payload), Ack):
                self._acknowledged((device, flow, control.epoch), control)
        except WireError as error:
            self._breach("wire", f"what is sent on {topic} cannot be read: {error}")

    def _sent(self, device: str, flow: str, envelope: Envelope) -> None:
        header = self._headers.get(envelope.header)
        if header is None:
            header = self._headers[envelope.header] = decode_header(envelope.header)
        batch = f"{device} {header.epoch.hex()} {header.seq}"
        if (header.device, header.flow) != (device, flow):
            self._breach("identity", f"{batch} is sent on the topic of {device} {flow}")
        if not header.seq or device in self.doubles:
            return
        if (spool := self._spools.get((device, flow))) is None:
            self._breach("identity", f"{batch} is sent, and {device} runs no agent of {flow}")
        if header.epoch == spool.epoch and header.seq > spool.last_seq:
            self._breach("sent <= committed", f"{batch} is sent, the spool ends at {spool.last_seq}")
        if header.first_seq:
            return  # a gap may grow: it says of other seqs, too, that they are gone
        first = self._contents.setdefault((device, flow, header.epoch), {}).setdefault(header.seq, envelope)
        if (first.header, first.body, first.digest) != (envelope.header, envelope.body, envelope.digest):
            self._breach("one content", f"{batch} is sent with two contents")

    def _acknowledged(self, epoch: Epoch, ack: Ack) -> None:
        durable = self._durable.get(epoch, 0)
        if ack.seq > durable:
            self._breach("acked <= durable", f"{epoch[0]} is told {ack.seq}, durable is {durable}")
        sent = self._contents.get(epoch, {}).get(ack.seq)
        if sent is not None and sent.digest != ack.digest and epoch[0] not in self.doubles:
            self._breach("one content", f"{epoch[0]} is acked {ack.seq} with a digest that is not its own")
        self._acked[epoch] = max(self._acked.get(epoch, 0), ack.seq)

    def trimmed(self, epoch: Epoch, through_seq: int) -> None:
        """Check a trim, before it is made."""
        acked = self._acked.get(epoch, 0)
        if through_seq > acked:
            self._breach("trimmed <= acked", f"{epoch[0]} trims up to {through_seq}, acked is {acked}")

    def committed(self, change: LedgerChange) -> None:
        """Check what the ledger has just made durable.

        A group may hold the last batches of an epoch and the hello that replaces it. The ledger then says
        what it has of the former in the row of the closed epoch, and has no cursor of it any more.
        """
        for entry in change.entries:
            if entry.segment and self._platter.durable(entry.segment) is None:
                place = f"{entry.flow} {entry.channel} {entry.partition}"
                self._breach("named => durable", f"entry {entry.number} of {place} names {entry.segment}")
        places: list[ClosedEpoch | AckCursor] = [*change.closed_epochs, *change.cursors]
        for at in places:
            epoch = (at.device, at.flow, at.epoch)
            if at.seq < self._durable.get(epoch, 0):
                self._breach("cursor", f"{at.device} goes back to {at.seq} from {self._durable[epoch]}")
            self._durable[epoch] = at.seq
        self._cleared()

    def _cleared(self) -> None:
        """Before it takes anything, an ingest removes what a former one has left and no entry names.

        Of a commit that is heard of only after a crash this cannot be said any more: the loss of power may
        have taken the removal back, which nothing needs to be durable.
        """
        if self._term == self._ledger.term or self.shares_the_log or self._ledger.is_loading:
            return
        self._term = self._ledger.term
        named = {entry.segment for entry in self._ledger.all_entries()} | self._ledger.replaced.keys()
        for name in self._platter.matching(SEGMENTS):
            term = name.rpartition("-")[2].partition(".")[0].partition("m")[0]
            if not term.isdecimal():
                self._breach("segments", f"{name} is no name of a segment")
            if int(term) < self._term and name not in named:
                self._breach("no orphans", f"ingest begins its term {self._term}, and {name} is still there")
