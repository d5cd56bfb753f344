"""The receiver: takes batches of the cloud's outbox as they come, in order and each once.

Between the broker and the fragment, on the way down. `geartrain.delivery.Receiver` decides the order within
an epoch; here are the epochs, the queue to the fragment and the answers. Guarantees: only a hello with a
higher ordinal than all before it opens an epoch. An ack says only what a commit of the spool holds. All that
waits is bounded. What is not taken is counted; the outbox keeps it and sends it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from geartrain.delivery.receiver import (
    Arrival,
    Beyond,
    DigestRefused,
    NackPace,
    Next,
    Receiver,
    Repeated,
    WaitingBudget,
)
from geartrain.errors import WireError
from geartrain.planning import Plan
from geartrain.ports import Clock, Connection
from geartrain.runtime.fragment import Fragment
from geartrain.state.claims import GivenCell
from geartrain.wire.codec import decode_envelope, decode_header, encode_control
from geartrain.wire.envelope import (
    EPOCH_BYTES,
    Ack,
    BatchKind,
    Control,
    Nack,
    NackReason,
    Offer,
)
from geartrain.wire.limits import Limits
from geartrain.wire.topics import downack_topic, flow_down_topic
from geartrain_edge.downlink.applying import Applied
from geartrain_edge.spool.backlog import Counters

_LOG = logging.getLogger("geartrain.down")

QUEUE_BATCHES_MAX = 64
QUEUE_BYTES_MAX = 4 << 20
"""Of batches that are in order and not applied yet, and again of those beyond a gap."""
NACK_INTERVAL_S = 0.1
_ANSWERS_MAX = 16


class DownReceiver:
    """The receiving end of one (device, flow)."""

    def __init__(
        self,
        plan: Plan,
        device: str,
        stored: bytes | None,
        limits: Limits,
        counters: Counters,
        clock: Clock,
        silence_ms: int = 120_000,
    ) -> None:
        """`stored`: what a former life kept under `PLACE`; silence_ms: after so long without a publish the
        topic is subscribed to again.
        """
        self._device, self._flow = device, plan.graph.name
        self._limits, self._counters, self._clock = limits, counters, clock
        self._silence_s, self._heard = silence_ms / 1_000, 0
        self.topic = flow_down_topic(device, self._flow)
        self._answer_topic = downack_topic(device, self._flow)
        self._applied = Applied(plan, device, stored, limits, counters)
        place = self._applied.place
        self._budget = WaitingBudget(QUEUE_BATCHES_MAX, QUEUE_BYTES_MAX)
        self._order, self._ordinal = (
            Receiver(place.epoch, self._budget, place.seq, place.digest),
            place.ordinal,
        )
        self._queue: deque[Arrival] = deque()
        self._answers: deque[Control] = deque(maxlen=_ANSWERS_MAX)
        self._speaks = asyncio.Event()
        self._pace = NackPace(NACK_INTERVAL_S)
        self.arrived = asyncio.Event()
        """Set when there is something to apply."""

    @property
    def given(self) -> Callable[[GivenCell], None] | None:
        """Who gets the cells that come down."""
        return self._applied.given

    @given.setter
    def given(self, given: Callable[[GivenCell], None] | None) -> None:
        self._applied.given = given

    @property
    def ended(self) -> bool:
        """Whether every down channel has come to its end, and a commit holds all of it."""
        return not self._queue and self._applied.ended

    # What comes

    def hear(self, payload: bytes) -> None:
        """Take one publish on the `down` topic, whatever it is."""
        self._counters.add("down_received")
        self._heard += 1
        try:
            envelope = decode_envelope(payload, self._limits)
            header = decode_header(envelope.header, self._limits)
        except WireError as error:
            self._counters.add("down_not_decoded")
            _LOG.warning("device %s: what came down cannot be read: %r", self._device, str(error))
            return
        if (header.device, header.flow) != (self._device, self._flow):
            self._counters.add("down_of_others")
        elif header.kind is BatchKind.HELLO:
            self._on_hello(Arrival(header, envelope, payload))
        elif header.kind is BatchKind.SCHEMA:
            self._counters.add("down_not_decoded")
        elif header.epoch != self._order.epoch:
            self._counters.add("down_closed_epochs")
            self._answer(Nack(self._flow, header.epoch, header.seq, NackReason.CLOSED, 0))
        else:
            self._on_batch(Arrival(header, envelope, payload))

    def _on_hello(self, arrival: Arrival) -> None:
        header, order = arrival.header, self._order
        if not arrival.has_own_digest:
            self._counters.add("down_not_decoded")
            return
        is_open = header.epoch == order.epoch
        if header.first_seq > (order.seq if is_open else 0) + 1 or (
            not is_open and header.ordinal <= self._ordinal
        ):
            # What we lack is not there any more, or another epoch came later: a new one has to begin.
            self._counters.add("down_epochs_refused")
            ordinal = max(self._ordinal, header.ordinal) + 1
            self._answer(Offer(self._flow, header.epoch, ordinal, 0))
        elif is_open:
            self._say_where()
        else:
            self._counters.add("down_batches_dropped", len(self._queue) + order.clear())
            self._queue.clear()
            self._order, self._ordinal = Receiver(header.epoch, self._budget), header.ordinal
            self._queue.append(arrival)
            self.arrived.set()

    def _on_batch(self, arrival: Arrival) -> None:
        self._order.receive_batch(arrival)
        while (event := self._order.next_event()) is not None:
            if isinstance(event, Next):
                self._take(event.arrival)
            elif isinstance(event, Repeated):
                self._counters.add("down_doubles")
                self._say_where()
            elif isinstance(event, Beyond):
                self._counters.add("down_batches_dropped", not event.waits)
            elif isinstance(event, DigestRefused):
                self._counters.add("down_digests_refused")
                self._nack(event.seq, NackReason.DIGEST)
            else:
                self._nack(event.seq, NackReason.GAP)

    def _take(self, arrival: Arrival) -> None:
        """Put the batch that is next in the queue, unless it is of another flow, or there is no room."""
        header = arrival.header
        codec = self._applied.codecs.get(header.channel)
        if header.count and (codec is None or codec.schema.schema_id != header.schema_id):
            self._counters.add("down_schemas_refused")
            _LOG.warning(
                "device %s: batch %d of channel %r is not of the flow that runs here: run one version of it",
                self._device,
                header.seq,
                header.channel,
            )
            self._nack(header.seq, NackReason.NEED_SCHEMA)
            self._order.decline()
            return
        queued_bytes = sum(len(one.payload) for one in self._queue)
        if len(self._queue) >= QUEUE_BATCHES_MAX or queued_bytes >= QUEUE_BYTES_MAX:
            self._counters.add("down_batches_dropped")
            self._order.decline()
            return
        self._queue.append(arrival)
        self._order.accept()
        self.arrived.set()

    # What is applied

    def pop(self) -> Arrival | None:
        """The next to apply."""
        return self._queue.popleft() if self._queue else None

    def apply(self, arrival: Arrival, fragment: Fragment) -> int:
        """Run a batch through the fragment, and let time pass as it says; returns its rows."""
        return self._applied.apply(arrival, fragment)

    def advance(self, fragment: Fragment) -> None:
        """Tell the fragment how far each down channel is."""
        self._applied.advance(fragment)

    def changes(self) -> dict[tuple[str, bytes], bytes | None]:
        """What a commit has to write of what was applied since the last call."""
        return self._applied.changes()

    def committed(self) -> None:
        """A commit holds what `changes` gave: it may be acked."""
        if self._applied.committed():
            self._say_where()

    # What is answered

    def _say_where(self) -> None:
        where, flow = self._applied.durable, self._flow
        if where.epoch != self._order.epoch or not where.epoch:
            return  # a new epoch is on its way into the spool
        if where.seq:
            self._answer(Ack(flow, where.epoch, where.seq, where.digest, 0))
        else:
            self._answer(Nack(flow, where.epoch, 1, NackReason.GAP, 0))

    def _nack(self, seq: int, reason: NackReason) -> None:
        epoch = self._order.epoch
        if self._pace.is_due((), epoch, seq, reason, self._clock.monotonic_s()):
            self._counters.add("down_nacks")
            self._answer(Nack(self._flow, epoch, seq, reason, 0))

    def _answer(self, control: Control) -> None:
        if isinstance(control, Ack):  # the last one says it all
            self._answers = deque((one for one in self._answers if not isinstance(one, Ack)), _ANSWERS_MAX)
        self._answers.append(control)
        self._speaks.set()

    async def speak(self, connection: Connection) -> None:
        """Say where this device is, then publish what there is to answer, forever; raises `NetError`."""
        if not self._applied.durable.epoch:
            self._answer(Nack(self._flow, bytes(EPOCH_BYTES), 1, NackReason.GAP, 0))
        self._say_where()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._answer_all(connection))
            group.create_task(self._listen_again(connection))

    async def _listen_again(self, connection: Connection) -> None:
        """Subscribe again after a long silence: a broker may forget what it was asked for, and nothing else
        would show that here, where nobody knows whether there is something to come.
        """
        while True:
            heard = self._heard
            await self._clock.sleep(self._silence_s)
            if self._heard == heard:
                await connection.subscribe(self.topic)
                self._counters.add("down_subscribed_again")
                self._say_where()

    async def _answer_all(self, connection: Connection) -> None:
        while True:
            await self._speaks.wait()
            self._speaks.clear()
            while self._answers:
                await connection.publish(self._answer_topic, encode_control(self._answers.popleft()))
