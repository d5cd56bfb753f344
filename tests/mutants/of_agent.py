"""Faults planted in the agent: what it commits, sends, resends, drops, and believes of acks."""


# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from geartrain.delivery.sender import Sender
from geartrain.ports import SpoolCommit, SpooledBatch
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.wire.codec import decode_envelope, decode_header, encode_envelope, encode_header
from geartrain.wire.digest import next_digest
from geartrain.wire.envelope import Ack, Envelope
from geartrain_edge.agent.agent import Agent
from geartrain_edge.settings import Policy
from geartrain_edge.sources.intake import Intake
from geartrain_edge.spool.sealing import Sealer
from geartrain_edge.uplink.uplink import Uplink
from geartrain_simulation.campaign.planting import Mutant, Patches
from geartrain_simulation.fleet.devices import Device
from geartrain_simulation.fleet.fleet import Fleet
from geartrain_simulation.machine.journal import Journal
from geartrain_simulation.stores.stores import SpoolBook


class _Connection:
    """A connection whose publishes go through `publish`."""

    def __init__(self, connection: Any, publish: Callable[[Any, str, bytes], Any]) -> None:
        self._connection, self._publish = connection, publish

    async def publish(self, topic: str, payload: bytes) -> None:
        await self._publish(self._connection, topic, payload)


class _Store:
    """A store whose commits go through `commit`."""

    def __init__(self, store: Any, commit: Callable[[Any, SpoolCommit], Any]) -> None:
        self._store, self._commit = store, commit

    async def commit(self, change: SpoolCommit) -> None:
        await self._commit(self._store, change)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _on_publish(patches: Patches, publish: Callable[[Uplink, Any, str, bytes], Any]) -> None:
    """Have every publish of the uplink go through `publish`."""

    def make(right: Any) -> Any:
        async def _send(uplink: Uplink, connection: Any) -> None:
            async def through(live: Any, topic: str, payload: bytes) -> None:
                await publish(uplink, live, topic, payload)

            await right(uplink, _Connection(connection, through))

        return _send

    patches.replace(Uplink, "_send", make)


def _on_commit(patches: Patches, commit: Callable[[Agent, Any, SpoolCommit], Any]) -> None:
    """Have every commit of what was read go through `commit`."""

    def make(right: Any) -> Any:
        async def _commit(agent: Agent, life: Any, opening: Any = None, records: int = 0) -> bool:
            effects = agent._effects

            async def through(store: Any, change: SpoolCommit) -> None:
                await commit(agent, store, change)

            agent._effects = replace(effects, store=_Store(effects.store, through))
            try:
                return bool(await right(agent, life, opening, records))
            finally:
                agent._effects = effects

        return _commit

    patches.replace(Agent, "_commit", make)


def _trim_on_puback(patches: Patches) -> None:
    async def publish(uplink: Uplink, connection: Any, topic: str, payload: bytes) -> None:
        await connection.publish(topic, payload)
        seq, sender = decode_header(decode_envelope(payload).header).seq, uplink._sender
        if seq > sender.acked_seq:
            ack = Ack(uplink._who.flow, sender.epoch, seq, sender.digest_at(seq), 0)
            sender._take_ack(ack, uplink._effects.clock.monotonic_s())
            await uplink._let_go()

    _on_publish(patches, publish)


def _positions_before_batches(patches: Patches) -> None:
    async def commit(agent: Agent, store: Any, change: SpoolCommit) -> None:
        await store.commit(replace(change, batches=()))
        await store.commit(SpoolCommit(change.batches))

    _on_commit(patches, commit)


def _position_without_snapshot(patches: Patches) -> None:
    async def commit(agent: Agent, store: Any, change: SpoolCommit) -> None:
        own = {at: value for at, value in change.state.items() if at[0] == "_agent"}
        await store.commit(replace(change, state=own))

    _on_commit(patches, commit)


def _snapshot_without_position(patches: Patches) -> None:
    async def commit(agent: Agent, store: Any, change: SpoolCommit) -> None:
        await store.commit(replace(change, positions={}))

    _on_commit(patches, commit)


def _send_before_commit(patches: Patches) -> None:
    live: dict[Uplink, Any] = {}

    def note(right: Any) -> Any:
        async def _send(uplink: Uplink, connection: Any) -> None:
            live[uplink] = connection
            await right(uplink, connection)

        return _send

    async def commit(agent: Agent, store: Any, change: SpoolCommit) -> None:
        uplink = None if agent._session is None else agent._session.uplink
        if uplink is not None and uplink in live and uplink.connected:
            for batch in change.batches:
                sent = Envelope(batch.header, batch.body, batch.digest, uplink.acked_seq + 1)
                await live[uplink].publish(uplink._topic, encode_envelope(sent))
        await store.commit(change)

    patches.replace(Uplink, "_send", note)
    _on_commit(patches, commit)


def _seq_from_file_length(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def image(book: SpoolBook) -> Any:
            book.last_seq = len(book.batches)
            return right(book)

        return image

    patches.replace(SpoolBook, "image", make)


def _resend_with_a_new_seq(patches: Patches) -> None:
    sent: dict[Uplink, int] = {}

    async def publish(uplink: Uplink, connection: Any, topic: str, payload: bytes) -> None:
        envelope = decode_envelope(payload)
        header = decode_header(envelope.header)
        if 0 < header.seq <= sent.get(uplink, 0):
            data = encode_header(replace(header, seq=sent[uplink] + 1))
            digest = next_digest(uplink.acked_digest, data, envelope.body)
            payload = encode_envelope(Envelope(data, envelope.body, digest, envelope.oldest_seq))
            header = decode_header(data)
        sent[uplink] = max(sent.get(uplink, 0), header.seq)
        await connection.publish(topic, payload)

    _on_publish(patches, publish)


def _watermark_ahead_of_data(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def number(sealer: Sealer, parts: Any, before: Any, after: Any, *rest: Any) -> Any:
            return right(sealer, parts, after if parts else before, after, *rest)

        return number

    patches.replace(Sealer, "number", make)


def _header_watermark_of_one_channel(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def _seal(sealer: Sealer, kind: Any, part: Any, progress: Any, *rest: Any) -> SpooledBatch:
            if part.channel:
                above = sealer._plan.channel(part.channel).sources
                own = {s: mark for s, mark in progress.source_watermarks.items() if s in above}
                marks = {part.channel: progress.watermarks[part.channel]}
                progress = replace(progress, watermarks=marks, source_watermarks=own)
            sealed: SpooledBatch = right(sealer, kind, part, progress, *rest)
            return sealed

        return _seal

    patches.replace(Sealer, "_seal", make)


def _end_of_a_source_that_it_lacks(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def progress(intake: Intake) -> Any:
            said = right(intake)
            sources = {step.id: END_OF_TIME for step in intake._plan.graph.sources()}
            return replace(said, source_watermarks={**sources, **said.source_watermarks})

        return progress

    patches.replace(Intake, "progress", make)


def _split_maximum_not_in_snapshot(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def moved(intake: Intake) -> Any:
            return {at: replace(one, max_time=START_OF_TIME) for at, one in right(intake).items()}

        return moved

    patches.replace(Intake, "moved", make)


def _position_before_the_durable_commit(patches: Patches) -> None:
    def make(right: Any) -> Any:
        async def _gather(agent: Agent, session: Any) -> int:
            rows: int = await right(agent, session)
            intake = session.intake
            moved = {split: intake._positions[split] for split in sorted(intake._moved)}
            if rows and moved:
                await agent._effects.store.commit(SpoolCommit(positions=moved))
            return rows

        return _gather

    patches.replace(Agent, "_gather", make)


def _synced_once_a_second(patches: Patches) -> None:
    synced_s: dict[Any, float] = {}

    def make(right: Any) -> Any:
        def _sync(journal: Any, name: str) -> None:
            now_s = journal._process.world.loop.time()
            if journal._what == "spool" and now_s < synced_s.get(journal, -1.0) + 1.0:
                return
            synced_s[journal] = now_s
            right(journal, name)

        return _sync

    patches.replace(Journal, "_sync", make)


def _gap_around_an_ack_waits_for_the_window(patches: Patches) -> None:
    def make(right: Any) -> Any:
        def compared(sender: Sender, *said: Any) -> None:
            right(sender, *said)
            sender._inside_seq = 0

        return compared

    patches.replace(Sender, "compared", make)


def crash_before_a_trim(seed: int) -> None:
    """A run in which a device crashes between acks and their trim. It forgets more of them than its window
    holds. Behind these batches stands a gap, and ingest inside it.
    """
    device = Device("device-1", 40, policy=Policy.DROP_OLDEST, spool_bytes_max=3_000)

    def count_read(fleet: Fleet) -> int:
        return sum(at.position for at in fleet.spools[device.name].positions.values())

    def plot(fleet: Fleet) -> None:
        wait_until_heard(fleet, fleet.world.random("heard").randint(3, 18))

    def wait_until_heard(fleet: Fleet, records: int) -> None:
        if count_read(fleet) < records:
            fleet.world.later(0.01, wait_until_heard, fleet, records)
            return
        fleet.broker.silence(device.name, 12.0, ("down",))
        # Ingest is not to hear of the gap as this grows: each end that it has can be compared.
        fleet.world.later(0.1, fleet.broker.silence, device.name, 12.0, ("up",))
        fleet.world.later(0.01, wait_until_read, fleet)

    def wait_until_read(fleet: Fleet) -> None:
        # A record that is read after the crash would have the batches before the gap dropped, too.
        if count_read(fleet) < device.records:
            fleet.world.later(0.01, wait_until_read, fleet)
        else:
            fleet.world.nodes[device.name].crash()

    fleet = Fleet(seed, devices=[device], plot=plot)
    settings = fleet._settings[device.name]
    uplink = replace(settings.uplink, window=2, trim_ms=60_000)
    fleet._settings[device.name] = replace(settings, records_max=1, uplink=uplink)
    fleet.run()


OF_AGENT = (
    Mutant("trim on puback", _trim_on_puback),
    Mutant(
        "gap around an ack waits for the window", _gap_around_an_ack_waits_for_the_window, crash_before_a_trim
    ),
    Mutant("send before commit", _send_before_commit),
    Mutant("positions before batches", _positions_before_batches),
    Mutant("position without snapshot", _position_without_snapshot),
    Mutant("snapshot without position", _snapshot_without_position),
    Mutant("split maximum not in the snapshot", _split_maximum_not_in_snapshot),
    Mutant("position before the durable commit", _position_before_the_durable_commit),
    Mutant("synced once a second, sent at once", _synced_once_a_second),
    Mutant("seq from file length", _seq_from_file_length),
    Mutant("resend with a new seq", _resend_with_a_new_seq),
    Mutant("watermark ahead of data", _watermark_ahead_of_data),
    Mutant("end of a source that it lacks", _end_of_a_source_that_it_lacks),
    Mutant("header watermark of one channel's sources only", _header_watermark_of_one_channel),
)
