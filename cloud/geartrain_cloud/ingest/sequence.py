"""The order of batches: which epoch and seq a batch is, whether its turn has come, and what to answer if not.

Stands between a checked header and the content. Guarantees: of each epoch, batches are appended strictly in
seq order and each once; an epoch takes over only by a batch whose digest proves it, and the one before is
then closed for good; a gap is passed only when the device has said twice that it cannot fill it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from geartrain.ports import AckCursor, EntryKind
from geartrain.wire.digest import FIRST_DIGEST
from geartrain.wire.envelope import NackReason
from geartrain_cloud.ingest.alarm import Alarm
from geartrain_cloud.ingest.content import Content
from geartrain_cloud.ingest.counters import Counter, Counters
from geartrain_cloud.ingest.group import Group
from geartrain_cloud.ingest.lineage import Arrival, Lineage, Place, WaitingBudget
from geartrain_cloud.ingest.outbox import Outbox
from geartrain_cloud.ingest.quarantine import Quarantine
from geartrain_cloud.ingest.streams import DeviceStream

_LOG = logging.getLogger("geartrain.ingest")

DigestAt = Callable[[str, str, bytes, int], Awaitable[bytes | None]]


class Sequencer:
    """Puts the batches of each stream in order. `closed` grows as epochs are replaced."""

    def __init__(
        self,
        streams: Mapping[tuple[str, str], DeviceStream],
        closed: set[tuple[str, str, bytes]],
        budget: WaitingBudget,
        content: Content,
        group: Group,
        quarantine: Quarantine,
        outbox: Outbox,
        counters: Counters,
        alarm: Alarm,
        digest_at: DigestAt,
    ) -> None:
        """`digest_at`: the ledger's memory of the digests of appended batches."""
        self._streams, self._closed, self._budget, self._content = streams, closed, budget, content
        self._group, self._quarantine, self._outbox = group, quarantine, outbox
        self._counters, self._alarm, self._digest_at = counters, alarm, digest_at

    async def take(self, stream: DeviceStream, arrival: Arrival) -> None:
        """Take a batch of `stream`; raises `LedgerError` when the ledger cannot be asked."""
        epoch = arrival.header.epoch
        if stream.current is not None and epoch == stream.current.epoch:
            lineage = stream.current
        elif (stream.device, stream.flow, epoch) in self._closed:
            self._refuse_closed(stream, arrival)
            return
        else:
            lineage = self._candidate(stream, epoch)
        place = lineage.place(arrival)
        if place is Place.PAST:
            await self._answer_past(stream, lineage, arrival)
        elif place is Place.NEXT:
            self._take_next(stream, lineage, arrival)
        else:
            self._take_beyond(stream, lineage, arrival)

    def hint(self, stream: DeviceStream) -> None:
        """Ask at once for what is expected, after something of the stream arrived that cannot be read."""
        if stream.current is not None:
            self._nack(stream, stream.current, NackReason.GAP)

    def _candidate(self, stream: DeviceStream, epoch: bytes) -> Lineage:
        if stream.candidate is None or stream.candidate.epoch != epoch:
            if stream.candidate is not None:
                self._counters.add(Counter.WAITING_DROPPED, stream.candidate.clear())
            stream.candidate = Lineage(epoch, self._budget)
        return stream.candidate

    def _refuse_closed(self, stream: DeviceStream, arrival: Arrival) -> None:
        header = arrival.header
        reason = f"batch {header.seq} is of epoch {header.epoch.hex()}, which a later one has replaced"
        self._quarantine.keep(arrival, Counter.CLOSED_EPOCH_BATCHES, reason)
        self._outbox.nack(stream.device, stream.flow, header.epoch, header.seq, NackReason.CLOSED)

    async def _answer_past(self, stream: DeviceStream, lineage: Lineage, arrival: Arrival) -> None:
        header = arrival.header
        known = lineage.recent_digest(header.seq)
        if known is None:
            known = await self._digest_at(stream.device, stream.flow, header.epoch, header.seq)
        if known is None:
            self._counters.add(Counter.STALE_BATCHES)
        elif known == arrival.envelope.digest:
            self._counters.add(Counter.DUPLICATES)
        else:
            reason = f"batch {header.seq} was appended before with another digest; the first stands"
            self._quarantine.keep(arrival, Counter.DIGEST_CONFLICTS, reason)
        # The digest in the ack tells a device whose spool was cloned that another was heard first.
        if stream.durable is not None and stream.durable.epoch == header.epoch:
            self._outbox.ack(stream.durable)

    def _take_next(self, stream: DeviceStream, lineage: Lineage, arrival: Arrival) -> None:
        if not lineage.fits(arrival):
            self._refuse_digest(stream, lineage)
            return
        self._append(stream, lineage, arrival)
        self._take_waiting(stream, lineage)

    def _take_beyond(self, stream: DeviceStream, lineage: Lineage, arrival: Arrival) -> None:
        if lineage.claims_loss(arrival):
            self._pass_loss(stream, lineage, arrival)
            self._take_waiting(stream, lineage)
            return
        waits = lineage.wait(arrival)
        self._counters.add(Counter.REORDERED_BATCHES if waits else Counter.WAITING_DROPPED)
        self._nack(stream, lineage, NackReason.GAP)

    def _take_waiting(self, stream: DeviceStream, lineage: Lineage) -> None:
        while (arrival := lineage.take(lineage.expected)) is not None:
            if not lineage.fits(arrival):
                self._refuse_digest(stream, lineage)
                return
            self._append(stream, lineage, arrival)
        if lineage.has_waiting:
            self._nack(stream, lineage, NackReason.GAP)

    def _refuse_digest(self, stream: DeviceStream, lineage: Lineage) -> None:
        self._counters.add(Counter.DIGEST_MISMATCHES)
        reason = f"batch {lineage.expected} came with a digest that does not fit; it is asked for again"
        self._alarm.warn(Counter.DIGEST_MISMATCHES, stream.name, reason)
        self._nack(stream, lineage, NackReason.DIGEST)

    def _nack(self, stream: DeviceStream, lineage: Lineage, reason: NackReason) -> None:
        self._outbox.nack(stream.device, stream.flow, lineage.epoch, lineage.expected, reason)

    def _append(self, stream: DeviceStream, lineage: Lineage, arrival: Arrival) -> None:
        cursor = self._cursor(stream, lineage)
        lineage.advance(arrival)
        self._content.append(stream, cursor, arrival)

    def _cursor(self, stream: DeviceStream, lineage: Lineage) -> AckCursor:
        if lineage is stream.current and stream.cursor is not None:
            return stream.cursor
        return self._open_epoch(stream, lineage)

    def _open_epoch(self, stream: DeviceStream, lineage: Lineage) -> AckCursor:
        before = stream.cursor
        ordinal, kind, detail = 1, EntryKind.JOINED, "the first epoch of the device"
        if before is not None:
            ordinal, kind = before.ordinal + 1, EntryKind.EPOCH
            detail = f"epoch {ordinal}; epoch {before.ordinal} ended at {before.seq}, loss unknown"
            self._closed.add((stream.device, stream.flow, before.epoch))
            self._group.close_epoch(stream.device, stream.flow, before.epoch)
            _LOG.warning("%s: %s", stream.name, detail)
        if stream.current is not None:
            self._counters.add(Counter.WAITING_DROPPED, stream.current.clear())
        stream.current, stream.candidate = lineage, None
        self._counters.add(Counter.EPOCHS_OPENED)
        watermarks = {} if before is None else before.watermarks
        cursor = AckCursor(
            stream.device, stream.flow, lineage.epoch, ordinal, lineage.seq, FIRST_DIGEST, {}, watermarks
        )
        stream.cursor = cursor
        self._content.note(stream, kind, lineage.epoch, lineage.expected, detail)
        return cursor

    def _pass_loss(self, stream: DeviceStream, lineage: Lineage, arrival: Arrival) -> None:
        first, seq = lineage.expected, arrival.header.seq
        detail = (
            f"batches {first} to {seq - 1} are lost: they never came, and the device no longer holds them"
        )
        _LOG.error("%s: %s", stream.name, detail)
        self._counters.add(Counter.LOSSES)
        self._counters.add(Counter.BATCHES_LOST, seq - first)
        self._counters.add(Counter.WAITING_DROPPED, lineage.skip_to(seq))
        cursor = self._cursor(stream, lineage)
        self._content.note(stream, EntryKind.LOSS, lineage.epoch, seq, detail)
        lineage.advance(arrival)
        self._content.append(stream, cursor, arrival)
