"""The outbox in memory, as a disk holds it: what its one transaction wrote is there after every crash.

`OutboxBook` is what lies there; `SimOutboxStore` is the sender's way to it. A model of a driver writes to the
book. Guarantees of each transaction: all of it or nothing; a kill may strike before it, or after it before
its caller hears.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from geartrain.schema import ColumnBatch, Schema
from geartrain.wire.digest import FIRST_DIGEST
from geartrain_cloud.downlink.errors import OutboxError
from geartrain_cloud.downlink.sealing import parts_of, rewriter, seal
from geartrain_cloud.downlink.store import Lane, OutBatch
from geartrain_simulation.machine.faults import Faults
from geartrain_simulation.machine.violation import tell
from geartrain_simulation.machine.world import Process


class OutboxBook:
    """What the outbox of a flow has committed. `on_trim` is told of (device, epoch, seq) before a trim."""

    def __init__(self, flow: str) -> None:
        self.flow = flow
        self.lanes: dict[str, Lane] = {}
        self.held: dict[str, dict[int, OutBatch]] = {}
        self.staged: dict[str, list[OutBatch]] = {}
        """What a driver has made and not committed."""
        self.ever: set[tuple[str, bytes]] = set()
        """(device, header) of every batch that was ever committed."""
        self.written = 0
        self.version = 0
        self.on_trim: Callable[[str, bytes, int], None] = lambda device, epoch, seq: None

    def stage(
        self,
        channel: str,
        schema: Schema,
        rows: Mapping[str, ColumnBatch],
        marks: tuple[Mapping[str, int], Mapping[str, int]],
        fresh: Callable[[], bytes],
    ) -> None:
        """Seal a micro-batch: the rows of each device, and the watermarks before and after it."""
        self.staged = {}
        for device, columns in rows.items():
            lane = self.lanes.get(device)
            if lane is None:
                lane = Lane(device, fresh(), 1, 0, FIRST_DIGEST, 0, FIRST_DIGEST)
                self.lanes[device], self.held[device] = lane, {}
            parts = list(parts_of(channel, schema, columns)) if len(columns) else []
            self.staged[device] = seal(self.flow, lane, parts, *marks)
        self.version += 1

    def commit(self) -> None:
        """What was staged is there now."""
        for device, batches in self.staged.items():
            # The lane may have begun a new epoch since: then it is sealed anew, as a transaction would have.
            lane = self.lanes[device]
            self.held[device].update({batch.seq: batch for batch in batches})
            self.lanes[device] = replace(lane, last_seq=batches[-1].seq, last_digest=batches[-1].digest)
            self.ever.update((device, batch.header) for batch in batches)
        self.staged = {}
        self.written += 1
        self.version += 1

    def reset(self) -> None:
        """It is gone, and there is an empty one; what has written to it must have ended before."""
        self.lanes, self.held, self.staged = {}, {}, {}
        self.version += 1

    def visible(self, device: str) -> list[OutBatch]:
        """The batches that a sender sees, in order."""
        return [batch for _, batch in sorted(self.held[device].items())]

    def lane(self, device: str) -> Lane:
        """A device's lane as a sender sees it."""
        return self.lanes[device]


class SimOutboxStore:
    """`geartrain_cloud.downlink.store.OutboxStore` of one process."""

    def __init__(self, process: Process, book: OutboxBook) -> None:
        self._process, self._book, self._version = process, book, -1
        self._random = process.random("outbox")

    async def _effect(self, what: str, detail: str = "") -> None:
        self._process.point(f"outbox.{what}", detail)
        await self._process.pause(self._random, self._faults)

    @property
    def _faults(self) -> Faults:
        return self._process.node.faults

    async def open(self) -> None:
        """Nothing is to be opened."""
        await self._effect("open")

    async def changed(self) -> Sequence[Lane]:
        """The lanes with something to send, where anything was written since the last call."""
        await self._effect("changed")
        if self._version == self._book.version:
            return []
        self._version = self._book.version
        lanes = (self._book.lane(device) for device in sorted(self._book.lanes))
        return [lane for lane in lanes if lane.last_seq > lane.acked_seq]

    async def read(self, device: str, after_seq: int, limit: int) -> Sequence[OutBatch]:
        """Up to `limit` batches behind a seq."""
        await self._effect("read", f"{device} {after_seq}")
        return [batch for batch in self._book.visible(device) if batch.seq > after_seq][:limit]

    async def replace(self, device: str, batch: OutBatch) -> None:
        """Have a gap stand for a batch."""
        await self._effect("replace", device)
        self._book.held[device][batch.seq] = batch

    async def trim(self, device: str, epoch: bytes, through_seq: int, digest: bytes) -> None:
        """Let go of the batches up to a seq."""
        await self._effect("trim", f"{device} {through_seq}")
        lane = self._book.lanes[device]
        if lane.epoch == epoch and through_seq > lane.acked_seq:
            tell(self._book.on_trim, device, epoch, through_seq)
            self._book.lanes[device] = replace(lane, acked_seq=through_seq, acked_digest=digest)
            held = self._book.held[device]
            self._book.held[device] = {seq: batch for seq, batch in held.items() if seq > through_seq}
        self._process.point("outbox.trim done", device)

    async def announce(self, device: str, ordinal: int) -> Lane:
        """Give an epoch another ordinal."""
        await self._effect("announce", f"{device} {ordinal}")
        lane = self._book.lanes[device] = replace(self._book.lanes[device], ordinal=ordinal)
        self._process.point("outbox.announce done", device)
        return lane

    async def renew(self, device: str, epoch: bytes, ordinal: int) -> Lane:
        """Begin a new epoch."""
        await self._effect("renew", device)
        if self._book.staged:
            raise OutboxError("a driver is writing: the sender waits for its transaction")
        old = self._book.lanes[device]
        lane = Lane(device, epoch, ordinal, 0, FIRST_DIGEST, 0, FIRST_DIGEST)
        rewrite, before, made = rewriter(self._book.flow, lane), old.acked_digest, list[OutBatch]()
        for batch in self._book.visible(device):
            made.append(rewrite(batch, before))
            before = batch.digest
        if made:
            lane = replace(lane, last_seq=made[-1].seq, last_digest=made[-1].digest)
        self._book.lanes[device], self._book.held[device] = lane, {batch.seq: batch for batch in made}
        self._book.ever.update((device, batch.header) for batch in made)
        self._process.point("outbox.renew done", device)
        return lane

    async def count(self, counters: dict[str, int]) -> None:
        """Counters are not looked at."""

    async def totals(self) -> dict[str, int]:
        """None were kept."""
        return {}

    async def close(self) -> None:
        """Nothing is open."""
