"""The order of batches: which epoch and seq a batch is, whether its turn has come, and the answer if not.

Between a checked header and the content. Guarantees: in each epoch, batches are appended strictly in seq
order, each once. A new epoch takes over only by a hello that knows how many epochs came before it. The
epoch before is then closed for good. What was made before a crossing that the log has opens no epoch, and is
never appended behind it. A gap is passed only when the device has said twice that it cannot fill it.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from geartrain.delivery.receiver import (
    Arrival,
    Beyond,
    DigestRefused,
    Missing,
    Next,
    Receiver,
    Repeated,
    WaitingBudget,
)
from geartrain.errors import WireError
from geartrain.errors.reason import make_reason
from geartrain.wire.codec import decode_gap
from geartrain.wire.digest import FIRST_DIGEST
from geartrain.wire.envelope import BatchKind, Header, NackReason
from geartrain_cloud.ingest.alarm import Alarm
from geartrain_cloud.ingest.content import Content, first_epoch_reason
from geartrain_cloud.ingest.counters import Counter
from geartrain_cloud.ingest.group import Group
from geartrain_cloud.ingest.outbox import Outbox
from geartrain_cloud.ingest.quarantine import Quarantine
from geartrain_cloud.ingest.recovery import Recovered
from geartrain_cloud.ingest.streams import DeviceStream, HeldBatch
from geartrain_cloud.log.entry_reasons import EntryCode, entry_sentence
from geartrain_cloud.ports import AckCursor, ClosedEpoch, EntryKind, LedgerStore

_LOG = logging.getLogger("geartrain.ingest")

SCHEMA_ASKS_MAX = 3
"""How often a device is asked for a schema before the batch that needs it is quarantined."""


class Sequencer:
    """Puts the batches of each stream in order. `closed` grows as epochs are replaced."""

    def __init__(
        self,
        known: Recovered,
        ledger: LedgerStore,
        budget: WaitingBudget,
        content: Content,
        group: Group,
        quarantine: Quarantine,
        outbox: Outbox,
        alarm: Alarm,
    ) -> None:
        """`known`: what stands in the ledger, which is asked for the digests of appended batches."""
        self._streams, self._closed, self._counters = known.streams, known.closed, known.counters
        self._budget, self._content, self._digest_at = budget, content, ledger.digest_at
        self._group, self._quarantine, self._outbox, self._alarm = group, quarantine, outbox, alarm

    async def take(self, stream: DeviceStream, arrival: Arrival) -> None:
        """Take a batch of `stream`; raises `LedgerError` when the ledger cannot be asked."""
        epoch = arrival.header.epoch
        closed = self._closed.get(stream.device, stream.flow, epoch)
        if closed is not None:
            self._refuse_closed(stream, closed, arrival)
            return
        if not arrival.header.seq:
            self._take_unsequenced(stream, arrival)
            return
        if stream.current is None:
            receiver = self._candidate(stream, epoch)
        elif epoch == stream.current.epoch:
            receiver = stream.current
        else:
            self._refuse_unopened(stream, arrival)
            return
        receiver.receive_batch(arrival)
        while (event := receiver.next_event()) is not None:
            if isinstance(event, Next):
                self._take_next(stream, receiver, event)
            elif isinstance(event, Repeated):
                await self._answer_repeated(stream, event)
            elif isinstance(event, Beyond):
                self._counters.add(Counter.REORDERED_BATCHES if event.waits else Counter.WAITING_DROPPED)
            elif isinstance(event, Missing):
                self._nack(stream, receiver, NackReason.GAP)
            elif isinstance(event, DigestRefused):
                self._refuse_digest(stream, receiver)

    def hint(self, stream: DeviceStream) -> None:
        """Ask at once for what is expected, after something of the stream arrived that cannot be read."""
        if stream.current is not None:
            self._nack(stream, stream.current, NackReason.GAP)

    def _candidate(self, stream: DeviceStream, epoch: bytes) -> Receiver:
        if stream.candidate is None or stream.candidate.epoch != epoch:
            if stream.candidate is not None:
                self._counters.add(Counter.WAITING_DROPPED, stream.candidate.clear())
            stream.candidate = Receiver(epoch, self._budget, passes_loss=True)
        return stream.candidate

    def _take_unsequenced(self, stream: DeviceStream, arrival: Arrival) -> None:
        """A HELLO, or the SCHEMA batch that answers a NACK."""
        if not arrival.has_own_digest:
            self._counters.add(Counter.DIGEST_MISMATCHES)
            self._alarm.warn(Counter.DIGEST_MISMATCHES, stream.name, "what it said of itself came damaged")
        elif arrival.header.kind is BatchKind.SCHEMA:
            self._counters.add(Counter.SCHEMAS_ANSWERED)
            self._content.learn(arrival)
        else:
            self._counters.add(Counter.HELLOS)
            self._greet(stream, arrival)

    def _greet(self, stream: DeviceStream, arrival: Arrival) -> None:
        """Open the epoch, so that nothing of the one before is appended behind the answer, and answer once
        that is durable.

        Which of two epochs is the later one, their random names do not say, nor does the order in which they
        are first heard of: the network may have held one up. So it is the ledger that numbers them. A hello
        says which ordinal it takes itself for, and opens its epoch only if that is beyond the one that is
        open; else it is offered the next, which only an agent that still lives can answer. Of an older epoch
        that was never opened nobody does: its spool was gone before the newer one was made. Of two that were
        offered the same ordinal the first to answer has it, and the other, if it lives, is offered one more.
        """
        epoch, ordinal = arrival.header.epoch, arrival.header.ordinal
        if stream.current is None or stream.current.epoch != epoch:
            known = 0 if stream.cursor is None else stream.cursor.ordinal
            if known and ordinal <= known:
                self._outbox.offer(stream.device, stream.flow, epoch, known + 1)
                return
            if self._is_set_back(stream, arrival.header) or self._is_ahead(stream, arrival):
                return
            before = stream.cursor
            opened = self._open_epoch(stream, self._candidate(stream, epoch), 1, arrival)
            stream.cursor = replace(opened, crossing=self._content.begin(stream, before, arrival))
            self._group.open_epoch(stream.cursor)
        elif self._is_set_back(stream, arrival.header):
            return
        if stream.durable is not None and stream.durable.epoch == epoch:
            self._outbox.welcome(stream.durable)
        else:
            stream.greeted = epoch

    def _is_set_back(self, stream: DeviceStream, header: Header) -> bool:
        """Whether an epoch would begin before a crossing that is in the log: then it is not opened. Or the
        epoch is open, and its spool does not know so, though it has gone over in it.

        Such a spool was restored from a copy, or is one that was copied before the device went over. What its
        steps keep is no longer true, and its rows are of another cut than those that the log has.
        """
        known = 0 if stream.cursor is None else stream.cursor.crossing
        if stream.current is not None and stream.current.epoch == header.epoch:
            is_set_back = header.fresh and known > 0 and not stream.is_fresh
        else:
            is_set_back = not header.fresh and header.crossing < known
        if not is_set_back:
            return False
        self._counters.add(Counter.SET_BACK_HELLOS)
        reason = f"the spool of epoch {header.epoch.hex()} is of a time before crossing {known} of the device"
        self._alarm.warn(Counter.SET_BACK_HELLOS, stream.name, reason)
        durable = 0 if stream.durable is None else stream.durable.crossing
        if durable > header.crossing:  # else it asks again
            place = (stream.device, stream.flow, header.epoch, durable)
            self._outbox.nack(*place, NackReason.SET_BACK)
        return True

    def _is_ahead(self, stream: DeviceStream, arrival: Arrival) -> bool:
        """Whether a fresh spool runs a revision that the log has not brought: its epoch waits for that."""
        why = self._content.ahead(stream, arrival)
        if not why:
            return False
        stream.held = HeldBatch(0, "", 0, 0, why)
        self._counters.add(Counter.HELD_HELLOS)
        self._alarm.warn(Counter.HELD_HELLOS, stream.name, f"its fresh spool is not opened: {why}")
        self._outbox.nack(stream.device, stream.flow, arrival.header.epoch, 1, NackReason.HOLD)
        return True

    def _is_over(self, stream: DeviceStream, receiver: Receiver, event: Next) -> bool:
        """Whether the epoch of a batch cannot go on, as the batch shows: its device begins another one."""
        if receiver is not stream.current or stream.cursor is None:
            return False
        header, known, reason = event.arrival.header, stream.cursor.crossing, ""
        if _is_of_former_cut(header, known, is_fresh=stream.is_fresh):
            reason = f"was made before crossing {known} of the device"
        elif not event.lost and _is_of_another_history(event.arrival, receiver.seq, known):
            reason = f"stands behind crossing {header.crossing} of a spool that was set back before"
        if not reason:
            return False
        self._counters.add(Counter.SET_BACK_BATCHES)
        reason = f"batch {header.seq} {reason}: its epoch is over"
        self._alarm.warn(Counter.SET_BACK_BATCHES, stream.name, reason)
        place = (stream.device, stream.flow, header.epoch, max(header.seq, 1))
        self._outbox.nack(*place, NackReason.CLOSED)
        return True

    def _refuse_unopened(self, stream: DeviceStream, arrival: Arrival) -> None:
        """Refuse a batch of an epoch that is not open while another is.

        An agent sends batches only once its epoch was opened, so the ledger knew this one and forgot it, or
        was exchanged for an older one. A living agent then begins a new epoch, and says hello.
        """
        header = arrival.header
        self._counters.add(Counter.UNOPENED_BATCHES)
        reason = f"batch {header.seq} is of epoch {header.epoch.hex()}, which no hello has opened"
        self._alarm.warn(Counter.UNOPENED_BATCHES, stream.name, reason)
        self._outbox.nack(stream.device, stream.flow, header.epoch, max(header.seq, 1), NackReason.CLOSED)

    def _refuse_closed(self, stream: DeviceStream, closed: ClosedEpoch, arrival: Arrival) -> None:
        if stream.durable is None or stream.durable.ordinal <= closed.ordinal:
            # What the answer says of the epoch's end is not durable yet; the device sends again.
            self._counters.add(Counter.WAITING_DROPPED)
            return
        header = arrival.header
        reason = f"batch {header.seq} is of epoch {header.epoch.hex()}, which a later one has replaced"
        if not header.seq:
            self._counters.add(Counter.CLOSED_EPOCH_BATCHES)
        elif header.seq <= closed.seq:
            self._counters.add(Counter.STALE_BATCHES)
        else:
            self._quarantine.keep(arrival, Counter.CLOSED_EPOCH_BATCHES, reason)
        self._outbox.close(closed, header.seq)

    async def _answer_repeated(self, stream: DeviceStream, event: Repeated) -> None:
        arrival, known = event.arrival, event.digest
        header = arrival.header
        if known is None:
            known = await self._digest_at(stream.device, stream.flow, header.epoch, header.seq)
        if known is None:
            self._counters.add(Counter.STALE_BATCHES)
        elif known == arrival.digest_after:
            self._counters.add(Counter.DUPLICATES)
        else:
            reason = f"batch {header.seq} was appended before with another digest; the first stands"
            self._quarantine.keep(arrival, Counter.DIGEST_CONFLICTS, reason)
        # The digest in the ack tells a device whose spool was cloned that another was heard first.
        # An epoch that a hello has opened is durable before its first batch is: nothing is to be acked then.
        durable = stream.durable
        if durable is not None and durable.epoch == header.epoch and durable.seq:
            self._outbox.ack(durable)

    def _take_next(self, stream: DeviceStream, receiver: Receiver, event: Next) -> None:
        """Append a batch whose turn has come, unless the device is to keep it or to send its schema."""
        arrival = event.arrival
        if (
            self._is_over(stream, receiver, event)
            or self._is_held(stream, receiver, arrival)
            or self._asks_schema(stream, receiver, arrival)
        ):
            receiver.decline()
            self._counters.add(Counter.WAITING_DROPPED, event.was_waiting)
            return
        first = arrival.first_seq if event.lost else receiver.expected
        cursor = self._cursor(stream, receiver, first)
        if event.lost:
            self._note_loss(stream, receiver, first)
        self._counters.add(Counter.WAITING_DROPPED, receiver.accept())
        self._content.append(stream, cursor, arrival, first)

    def _refuse_digest(self, stream: DeviceStream, receiver: Receiver) -> None:
        self._counters.add(Counter.DIGEST_MISMATCHES)
        reason = f"batch {receiver.expected} came with a digest that does not fit; it is asked for again"
        self._alarm.warn(Counter.DIGEST_MISMATCHES, stream.name, reason)
        self._nack(stream, receiver, NackReason.DIGEST)

    def _nack(self, stream: DeviceStream, receiver: Receiver, reason: NackReason) -> None:
        held = stream.held
        if reason is NackReason.GAP and held is not None and held.expected == receiver.expected:
            # What is missing is what the device was told to keep: it must not send all behind it meanwhile.
            self._outbox.nack(stream.device, stream.flow, receiver.epoch, held.seq, NackReason.HOLD)
            return
        self._outbox.nack(stream.device, stream.flow, receiver.epoch, receiver.expected, reason)

    def _is_held(self, stream: DeviceStream, receiver: Receiver, arrival: Arrival) -> bool:
        """Leave with its device what is of another flow than ingest was told of, and all behind it.

        Only a person can tell which of the two is right. An ack would have the device let go of the rows.
        """
        stranger = self._content.stranger(stream, arrival)
        if stranger is None:
            stream.held = None
            return False
        header, (channel, why) = arrival.header, stranger
        stream.held = HeldBatch(header.seq, channel, header.count, receiver.expected, why)
        self._counters.add(Counter.HELD_BATCHES)
        rows = f" with {header.count} rows" if header.count else ""
        sentence = f"batch {header.seq}{rows} stays with the device, and all behind it: {why}"
        self._alarm.warn(Counter.HELD_BATCHES, stream.name, sentence)
        self._outbox.nack(stream.device, stream.flow, receiver.epoch, header.seq, NackReason.HOLD)
        return True

    def _asks_schema(self, stream: DeviceStream, receiver: Receiver, arrival: Arrival) -> bool:
        """Ask for the schema that a batch lacks, unless that was in vain; whether the batch must wait."""
        if receiver.asks >= SCHEMA_ASKS_MAX or not self._content.lacks_schema(stream, arrival):
            return False
        place = (stream.device, stream.flow, receiver.epoch, arrival.header.seq)
        if self._outbox.nack(*place, NackReason.NEED_SCHEMA):
            receiver.asks += 1
            self._counters.add(Counter.SCHEMAS_ASKED)
        return True

    def _cursor(self, stream: DeviceStream, receiver: Receiver, first_seq: int) -> AckCursor:
        if receiver is stream.current and stream.cursor is not None:
            return stream.cursor
        return self._open_epoch(stream, receiver, first_seq)

    def _open_epoch(
        self, stream: DeviceStream, receiver: Receiver, first_seq: int, hello: Arrival | None = None
    ) -> AckCursor:
        """Log that an epoch is open; hello: the one that opens it, None where a batch does."""
        before = stream.cursor
        ordinal, kind, reason = 1, EntryKind.JOINED, first_epoch_reason(hello)
        if before is not None:
            ordinal, kind = before.ordinal + 1, EntryKind.EPOCH
            reason = make_reason(EntryCode.LATER_EPOCH, ordinal=ordinal, ended_at=before.seq)
            closed = ClosedEpoch(
                stream.device, stream.flow, before.epoch, before.ordinal, before.seq, before.digest
            )
            self._closed.add(closed)
            self._group.close_epoch(closed)
            _LOG.warning("%s: %s", stream.name, entry_sentence(reason))
        if stream.current is not None:
            self._counters.add(Counter.WAITING_DROPPED, stream.current.clear())
        stream.current, stream.candidate, stream.held = receiver, None, None
        self._counters.add(Counter.EPOCHS_OPENED)
        place = (stream.device, stream.flow, receiver.epoch)
        cursor = AckCursor(*place, ordinal, first_seq - 1, FIRST_DIGEST)
        if before is not None:
            cursor = replace(
                cursor,
                positions=before.positions,
                watermarks=before.watermarks,
                source_watermarks=before.source_watermarks,
                crossing=before.crossing,
            )
        stream.cursor = cursor
        self._content.note(stream, kind, receiver.epoch, first_seq, reason)
        return cursor

    def _note_loss(self, stream: DeviceStream, receiver: Receiver, seq: int) -> None:
        """Note that the batches before `seq` will never come."""
        first = receiver.expected
        reason = make_reason(EntryCode.BATCHES_LOST, first=first, last=seq - 1)
        _LOG.error("%s: %s", stream.name, entry_sentence(reason))
        self._counters.add(Counter.LOSSES)
        self._counters.add(Counter.BATCHES_LOST, seq - first)
        self._content.note(stream, EntryKind.LOSS, receiver.epoch, seq, reason)


def _is_of_former_cut(header: Header, known: int, *, is_fresh: bool) -> bool:
    """Whether a batch was made before a crossing that is in the log; known: its number.

    Without a number are those that a fresh spool has made before it heard of one, and the gaps that stand for
    what cannot be read any more.
    """
    made = header.crossing - (header.kind is BatchKind.CROSSING)
    is_unsaid = not header.crossing and (is_fresh or header.kind is BatchKind.GAP)
    return made < known and not is_unsaid


def _is_of_another_history(arrival: Arrival, seq: int, known: int) -> bool:
    """Whether a gap stands behind a crossing under a seq that the log has of another batch.

    That is so where the log knows of fewer crossings, and all that the gap stands for behind `seq` had rows,
    which a crossing has not. Its spool was set back to before `seq`, and has gone over since. A gap has a
    digest of its own, so that nothing else shows it.
    """
    header = arrival.header
    if header.kind is not BatchKind.GAP or header.crossing <= known:
        return False
    try:
        counted = {at for at, _, _ in decode_gap(header, arrival.envelope.body) if at > seq}
    except WireError:
        return False  # it is quarantined for that
    return header.crossing - known > header.seq - seq - len(counted)
