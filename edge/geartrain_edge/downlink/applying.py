"""Apply batches of the cloud's outbox: run each through the fragment, and track how far the device is.

Between the receiver, which puts batches in order, and the fragment. Guarantees: a batch, its place in the
outbox and what it changes belong to one commit. What a commit holds is kept apart from what is only applied.
Rows that cannot be read become one dead letter, which contains the batch. Rows that the outbox lost are
counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from geartrain.delivery.receiver import Arrival
from geartrain.errors import GeartrainError, WireError
from geartrain.graph.conform import describe
from geartrain.graph.graph import GIVEN
from geartrain.planning import Plan
from geartrain.planning.plan import given_channel
from geartrain.records.batch import Batch, DeadLetter, Origin
from geartrain.records.codes import Code
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.runtime.fragment import Fragment
from geartrain.schema import RowCodec
from geartrain.state.claims import GivenCell
from geartrain.wire.body import decode_rows
from geartrain.wire.codec import decode_gap
from geartrain.wire.digest import FIRST_DIGEST
from geartrain.wire.envelope import BatchKind
from geartrain.wire.limits import Limits
from geartrain_edge.spool.backlog import Counters

_LOG = logging.getLogger("geartrain.down")

PLACE = ("_down", b"place")
"""Where the spool keeps how far this device is in the outbox."""


class Place(msgspec.Struct, frozen=True):
    """How far a device is in the outbox: the last batch that it has applied, and the down channels' times."""

    epoch: bytes = b""
    ordinal: int = 0
    seq: int = 0
    digest: bytes = FIRST_DIGEST
    watermarks: dict[str, int] = {}


class Applied:
    """What one device has applied of the batches of one flow."""

    def __init__(
        self, plan: Plan, device: str, stored: bytes | None, limits: Limits, counters: Counters
    ) -> None:
        """`stored`: what a former life kept under `PLACE`."""
        self._device, self._limits, self._counters = device, limits, counters
        self._channels = [channel.id for channel in plan.down]
        self.codecs = {
            channel.id: RowCodec(channel.kind) for channel in (*plan.down, given_channel(plan.graph))
        }
        """By down channel."""
        self.given: Callable[[GivenCell], None] | None = None
        """Who gets the cells that come down, None where nobody wants any."""
        self.place = Place() if stored is None else msgspec.json.decode(stored, type=Place)
        """With what was applied, which may not be committed yet."""
        self.durable = self._told = self.place
        """As a commit holds it."""

    @property
    def ended(self) -> bool:
        """Whether a commit holds the end of every down channel."""
        marks = self.durable.watermarks
        return all(marks.get(channel) == END_OF_TIME for channel in self._channels)

    def apply(self, arrival: Arrival, fragment: Fragment) -> int:
        """Run a batch through the fragment, and let time pass as it says; returns its rows."""
        header = arrival.header
        if header.kind is BatchKind.HELLO:
            if self.place.epoch:
                _LOG.warning(
                    "device %s: epoch %s of the outbox ended at %d, loss unknown",
                    self._device,
                    self.place.epoch.hex(),
                    self.place.seq,
                )
            self._counters.add("down_epochs")
            self.place = Place(header.epoch, header.ordinal, 0, FIRST_DIGEST, self.place.watermarks)
            return 0
        if header.kind is BatchKind.GAP:
            self._count_lost(arrival)
        elif header.count:
            self._feed(arrival, fragment)
        marks = dict(self.place.watermarks)
        for channel, mark in header.watermarks.items():
            if channel in self._channels and mark > marks.get(channel, START_OF_TIME):
                marks[channel] = mark
        self.place = Place(header.epoch, self.place.ordinal, header.seq, arrival.digest_after, marks)
        self.advance(fragment)
        return header.count

    def advance(self, fragment: Fragment) -> None:
        """Tell the fragment how far each down channel is."""
        for channel, mark in sorted(self.place.watermarks.items()):
            fragment.advance(channel, mark)

    def _feed(self, arrival: Arrival, fragment: Fragment) -> None:
        header, codec = arrival.header, self.codecs[arrival.header.channel]
        origin = Origin(header.channel, header.seq, header.epoch)
        try:
            rows = decode_rows(codec.schema, header, arrival.envelope.body, self._limits)
            batch = Batch(codec.from_columns(rows.fields), rows.times, rows.names, rows.numbers, rows.paths)
        except GeartrainError as error:
            self._counters.add("down_rows_not_decoded", header.count)
            reason = f"a batch of {header.count} rows that came down cannot be read: {describe(error)}"
            body = arrival.envelope.body
            fragment.reject(DeadLetter(header.channel, origin, None, Code.UNREADABLE, reason, body))
            return
        self._counters.add(f"rows_down.{header.channel}", len(batch))
        if header.channel == GIVEN:
            if self.given is not None:
                for one in batch.values:
                    self.given(one)
            return
        fragment.feed(header.channel, batch)

    def _count_lost(self, arrival: Arrival) -> None:
        try:
            lost = sum(
                count for _, _, count in decode_gap(arrival.header, arrival.envelope.body, self._limits)
            )
        except WireError:
            self._counters.add("down_not_decoded")
            return
        self._counters.add("down_rows_lost", lost)
        _LOG.critical("ALARM: device %s: %d rows for it were lost in the outbox", self._device, lost)

    # What a commit has of it

    def changes(self) -> dict[tuple[str, bytes], bytes | None]:
        """What a commit has to write of what was applied since the last call."""
        if self.place == self._told:
            return {}
        self._told = self.place
        return {PLACE: msgspec.json.encode(self.place)}

    def committed(self) -> bool:
        """A commit holds what `changes` gave; False where that is nothing new."""
        if self.durable == self._told:
            return False
        self.durable = self._told
        return True
