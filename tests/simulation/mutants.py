"""Planted faults: agent and ingest, each with one mistake that does harm only in a bad moment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from geartrain.ports import Connection, SpoolCommit, SpoolImage
from geartrain.wire.codec import decode_envelope, decode_header
from geartrain_cloud.ingest.ingest import Ingest
from geartrain_edge.agent import Agent
from geartrain_edge.uplink import Uplink
from geartrain_simulation.disk import SimDisk
from geartrain_simulation.fleet import Programs


class _TrimsOnPuback:
    """A connection that takes a publish which returned for one that is durable, and trims."""

    def __init__(self, connection: Connection, uplink: Uplink) -> None:
        self._connection, self._uplink = connection, uplink

    async def publish(self, topic: str, payload: bytes) -> None:
        await self._connection.publish(topic, payload)
        uplink, seq = self._uplink, decode_header(decode_envelope(payload).header).seq
        if seq > uplink._window.acked:
            uplink._freed_bytes += await uplink._window.ack(seq)
            uplink._acked.set()


class _PubackUplink(Uplink):
    async def _send(self, connection: Any) -> None:
        await super()._send(_TrimsOnPuback(connection, self))  # type: ignore[arg-type]


class TrimsOnPuback(Agent):
    """Trims its spool when a publish has returned, not when ingest has acked."""

    def _begin(self, intake: Any, image: SpoolImage) -> Any:
        life = super()._begin(intake, image)
        right = life.uplink
        life.uplink = _PubackUplink(
            right._settings, right._who, right._effects, right._backlog, right._counters
        )
        return life


class CommitsPositionsFirst(Agent):
    """Commits positions and state, then the batches: a kill between the two loses what was read."""

    async def _commit(self, life: Any) -> bool:
        store = self._effects.store
        self._effects = replace(self._effects, store=_Halved(store))  # type: ignore[arg-type]
        try:
            return await super()._commit(life)
        finally:
            self._effects = replace(self._effects, store=store)


@dataclass(frozen=True, slots=True)
class _Halved:
    store: Any

    async def commit(self, change: SpoolCommit) -> None:
        await self.store.commit(replace(change, batches=()))
        await self.store.commit(SpoolCommit(change.batches))


class ForgetsState(Agent):
    """Commits positions and batches, but not what the tasks keep for each key."""

    async def _commit(self, life: Any) -> bool:
        life.fragment.changes()
        return await super()._commit(life)


class AcksBeforeFsync(Ingest):
    """Acks a group as soon as it is sealed, and makes it durable after that."""

    async def _commit(self, core: Any) -> None:
        sealed = core.group.seal(core.known.partitions, core.counters.take_changed())
        core.settle(sealed)
        for draft in sealed.segments:
            await self._disk.write(draft.name, self._encode_segment(draft.schema, draft.parts))
            await self._disk.fsync(draft.name)
        await self._ledger.commit(core.known.term, sealed.change)


class CommitsBeforeFsync(Ingest):
    """Names segments in the ledger, and makes them durable after that; the ack comes last, as it should."""

    async def _commit(self, core: Any) -> None:
        sealed = core.group.seal(core.known.partitions, core.counters.take_changed())
        for draft in sealed.segments:
            await self._disk.write(draft.name, self._encode_segment(draft.schema, draft.parts))
        await self._ledger.commit(core.known.term, sealed.change)
        for draft in sealed.segments:
            await self._disk.fsync(draft.name)
        core.settle(sealed)


class NeverSyncs(SimDisk):
    """A disk on which fsync does nothing: what a forgotten call would be like."""

    async def fsync(self, name: str) -> None:
        self._process.point("disk.fsync", name)


MUTANTS = {
    "trim on puback": Programs(agent=TrimsOnPuback),
    "ack before fsync": Programs(ingest=AcksBeforeFsync),
    "ledger before fsync": Programs(ingest=CommitsBeforeFsync),
    "no fsync": Programs(disk=NeverSyncs),
    "positions before batches": Programs(agent=CommitsPositionsFirst),
    "state not saved": Programs(agent=ForgetsState),
}
