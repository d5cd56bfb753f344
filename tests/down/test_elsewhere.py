"""What happens when one end is not where the other takes it to be: lost, restored or unknown."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from geartrain.ports import Incoming
from geartrain.wire.codec import decode_envelope, encode_envelope
from geartrain.wire.envelope import Envelope
from geartrain_cloud.downlink.errors import OutboxError
from geartrain_cloud.downlink.outbox import SqliteOutbox
from geartrain_cloud.downlink.store import Lane
from geartrain_cloud.sinks.opening import open_tables
from geartrain_cloud.sinks.tables import rows as stored
from geartrain_edge.spool.spool import SqliteSpool
from tests.down.broker import MemoryBroker
from tests.down.world import Valve, World, columns, letters, plan_of
from tests.edge.agents import KilledError, run, until
from tests.edge.network import NaiveIngest


def broker_for(world: World) -> MemoryBroker:
    return MemoryBroker({"d1": NaiveIngest(world.plan)})


async def while_(world: World, broker: MemoryBroker, spool: Path, done: Any, seed: int = 1) -> dict[str, int]:
    """Run sender and agent until `done()`, or the agent's end; the sender's counters."""
    store, sender = world.sender(broker, seed=seed)
    await store.open()
    agent = world.agent(SqliteSpool(spool), broker)
    async with asyncio.TaskGroup() as group:
        sending, working = group.create_task(sender.run_alone()), group.create_task(agent.run())
        try:
            await until(lambda: done() or working.done())
            await until(lambda: working.done() or not sender.waiting)
        finally:
            agent.stop()
            await working
            sender.stop()
            await sending
            await store.close()
    return sender.counters | agent.status().counters


def never() -> bool:
    return False


def test_an_outbox_that_is_lost_begins_a_new_epoch_and_the_device_goes_on(tmp_path: Path) -> None:
    world, spool = World(tmp_path, plan_of()), tmp_path / "spool.sqlite"
    world.write([("d1", 0), ("d1", 1)], 2_000_000)
    broker = broker_for(world)
    run(while_(world, broker, spool, lambda: len(world.lines()) == 2))
    shutil.rmtree(world.outbox.parent)
    world.written = 0
    world.write([("d1", 2)], 3_000_000)
    world.end()
    counters = run(while_(world, broker, spool, never, seed=2))
    assert world.numbers() == [0, 1, 2]
    assert counters["down_epochs"] == 2
    assert counters["down_epochs_refused"] >= 1


def test_a_spool_that_is_lost_gets_what_was_not_acked_in_a_new_epoch(tmp_path: Path) -> None:
    world, spool = World(tmp_path, plan_of()), tmp_path / "spool.sqlite"
    world.write([("d1", 0), ("d1", 1)], 2_000_000)
    broker = broker_for(world)
    run(while_(world, broker, spool, lambda: len(world.lines()) == 2))
    for path in tmp_path.glob("spool.sqlite*"):
        path.unlink()
    shutil.rmtree(world.state)
    world.write([("d1", 2)], 3_000_000)
    world.end()
    counters = run(while_(world, broker_for(world), spool, never))
    assert world.numbers() == [2]
    assert counters["epochs_minted"] == 1
    assert counters["alarms"] == 1


def test_an_outbox_restored_from_a_backup_is_found_out(tmp_path: Path) -> None:
    world, spool = World(tmp_path, plan_of()), tmp_path / "spool.sqlite"
    world.write([("d1", 0)], 1_000_000)
    broker = broker_for(world)
    run(while_(world, broker, spool, lambda: len(world.lines()) == 1))
    backup = tmp_path / "backup.sqlite"
    with sqlite3.connect(world.outbox) as database, sqlite3.connect(backup) as copy:
        database.backup(copy)
    world.write([("d1", 1)], 2_000_000)
    run(while_(world, broker, spool, lambda: len(world.lines()) == 2))
    for path in world.outbox.parent.glob("outbox.sqlite*"):
        path.unlink()
    shutil.copy(backup, world.outbox)
    world.written = 1
    world.write([("d1", 7)], 3_000_000)
    world.end()
    counters = run(while_(world, broker, spool, never))
    assert world.numbers() == [0, 1, 7]
    assert counters["acks_refused"] + counters.get("digests_refused", 0) >= 1


class MortalOutbox(SqliteOutbox):
    """An outbox whose sender dies before or right after its n-th change."""

    def __init__(self, path: Path, writes: int, *, after: bool) -> None:
        super().__init__(path, "loop")
        self._left, self._after = writes, after

    async def _dies(self, work: Any) -> Any:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise KilledError
        found = await work()
        if self._left == 0:
            raise KilledError
        return found

    async def trim(self, device: str, epoch: bytes, through_seq: int, digest: bytes) -> None:
        await self._dies(partial(super().trim, device, epoch, through_seq, digest))

    async def announce(self, device: str, ordinal: int) -> Lane:
        lane: Lane = await self._dies(partial(super().announce, device, ordinal))
        return lane

    async def renew(self, device: str, epoch: bytes, ordinal: int) -> Lane:
        lane: Lane = await self._dies(partial(super().renew, device, epoch, ordinal))
        return lane

    async def count(self, counters: dict[str, int]) -> None:
        await self._dies(partial(super().count, counters))


@pytest.mark.parametrize("after", [False, True])
def test_a_sender_that_dies_at_any_change_of_the_outbox_loses_and_doubles_nothing(
    tmp_path: Path, after: bool
) -> None:
    for writes in range(1, 60):
        folder = tmp_path / str(writes)
        world = World(folder, plan_of())
        for number in range(4):
            world.write([("d1", 2 * number), ("d1", 2 * number + 1)], (2 * number + 2) * 1_000_000)
        world.end()
        mortal = MortalOutbox(world.outbox, writes, after=after)
        died = run(_with_a_death(world, folder / "spool.sqlite", mortal))
        assert world.numbers() == list(range(8)), writes
        if not died:
            return
    raise AssertionError("it never came to its end")


async def _with_a_death(world: World, spool: Path, mortal: MortalOutbox) -> bool:
    broker, died = broker_for(world), False
    agent = world.agent(SqliteSpool(spool), broker)
    working = asyncio.create_task(agent.run())
    store, sender = world.sender(broker, mortal)
    while not working.done():
        await store.open()
        sending = asyncio.create_task(sender.run_alone())
        await asyncio.wait([sending, working], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            sender.stop()
        try:
            await sending
        except* KilledError:
            died = True
        await store.close()
        store, sender = world.sender(broker, seed=2)
    assert await working
    return died


def test_rows_for_nobody_and_for_a_full_lane_are_given_back_in_every_repetition(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of(), devices=("d1", "d2"))
    sink = world.plan.down[0].id
    writer = world.writer(lane_bytes_max=20)
    rows = columns([("d1", 1), ("nobody", 2), ("not a name", 3), ("d2", 4)])
    assert {row: one.code for row, one in writer.refused(sink, rows).items()} == {2: "bad_device_name"}
    assert "use a name of 1 to 64 letters" in letters(writer.refused(sink, rows))
    batches = [[("d1", n) for n in range(50)], [("d1", 50), ("nobody", 51), ("d2", 52)]]
    for number, batch in enumerate(batches):
        writer.write("keyed", number, {}, {sink: [columns(batch)]})
    assert _held(world) == 51
    writer.close()
    world.devices, again = ("d1", "d2", "nobody"), world.writer()  # it is known by now, and there is room
    again.write("keyed", 1, {}, {sink: [columns(batches[1])]})
    assert _held(world) == 51
    found = {refusal: rows.fields[1] for _, refusal, rows in again.returned("keyed", 1)}
    assert found == {
        ("device_full", "device 'd1' does not ack what waits for it, 20 bytes at most"): [50],
        (
            "no_device",
            "no device 'nobody' is assigned to the flow: mend what device= says, or assign it",
        ): [51],
    }
    assert again.returned("keyed", 0) == []
    with pytest.raises(OutboxError, match="repeats micro-batch 1 with other positions"):
        again.write("keyed", 1, {"readings": 3}, {})
    again.close()


def test_what_is_given_back_is_a_dead_letter_of_the_flows_own_tables(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of())
    sink = world.plan.down[0].id
    tables = open_tables(world.plan.graph, tmp_path / "tables.sqlite", world.writer)
    tables.own.attach("keyed", "checkpoint", has_run=False)
    rows = {sink: [columns([("d1", 1), ("nobody", 2), ("not a name", 3)])]}
    assert tables.write("keyed", 0, {}, rows)
    assert not tables.write("keyed", 0, {}, rows)
    tables.close()
    found = stored(tmp_path / "tables.sqlite", "dead_letters")
    assert [letter["step"] for letter in found] == [sink, sink]
    assert ["nobody" in letter["reason"] for letter in found].count(True) == 1
    assert _held(world) == 1


def test_a_micro_batch_is_written_once_and_in_its_turn(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of())
    world.write([("d1", 1)], 1)
    world.write([("d1", 1)], 1, batch_id=0)
    assert _held(world) == 1
    with pytest.raises(OutboxError, match=r"brings micro-batch 5, but the outbox .* only up to 0"):
        world.write([("d1", 1)], 1, batch_id=5)
    writer = world.writer()
    with pytest.raises(OutboxError, match="its checkpoint is not there"):
        writer.attach("keyed", "another", has_run=False)
    writer.reset()
    with pytest.raises(OutboxError, match="holds nothing of it"):
        writer.attach("keyed", "checkpoint", has_run=True)
    writer.close()
    assert world.outbox.stat().st_mode & 0o777 == 0o600


def _held(world: World) -> int:
    with sqlite3.connect(world.outbox) as database:
        return int(database.execute("SELECT sum(count) FROM batches").fetchone()[0])


def test_a_batch_that_the_disk_has_damaged_is_declared_as_lost(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of())
    for number in range(3):
        world.write([("d1", number)], (number + 1) * 1_000_000)
    world.end()
    with sqlite3.connect(world.outbox) as database:
        (body,) = database.execute("SELECT body FROM batches WHERE seq = 2").fetchone()
        database.execute("UPDATE batches SET body = ? WHERE seq = 2", (b"\0" + body,))
    counters = run(while_(world, broker_for(world), tmp_path / "spool.sqlite", never))
    assert world.numbers() == [0, 2]
    assert counters["rows_damaged"] == 1
    assert counters["down_rows_lost"] == 1


def test_what_is_damaged_or_foreign_on_its_way_is_counted_and_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, plan_of())
    for number in range(3):
        world.write([("d1", number)], (number + 1) * 1_000_000)
    world.end()
    broker, spoiled = broker_for(world), list[int]()

    def spoil(incoming: Incoming) -> bool:
        if not incoming.topic.endswith("/down") or len(spoiled) >= 6:
            return False
        spoiled.append(len(broker.published))
        envelope = decode_envelope(incoming.payload)
        wrong = Envelope(envelope.header, envelope.body + b"x", envelope.digest, envelope.oldest_seq)
        for payload in (b"\xff" * 40, encode_envelope(wrong), b""):
            for connection in broker.live:
                connection.deliver(Incoming(incoming.topic, payload))
        for connection in broker.live:
            connection.deliver(Incoming(incoming.topic + "ack", b"\x00\xff"))
        return len(spoiled) % 2 == 0

    broker.swallow = spoil
    counters = run(while_(world, broker, tmp_path / "spool.sqlite", never))
    assert world.numbers() == [0, 1, 2]
    assert counters["down_not_decoded"] >= 6
    assert counters["answers_not_decoded"] >= 6


@pytest.mark.parametrize("failure", [OSError("the valve is stuck"), SystemExit("the valve is stuck")])
def test_an_actuator_is_called_again_after_a_failure_and_a_record_that_fails_for_good_is_a_letter(
    tmp_path: Path, failure: BaseException
) -> None:
    valve = Valve("valve", attempts=3, pause_ms=1, failures={1: 2, 3: 99}, failure=failure)
    world = World(tmp_path, plan_of(actuator=valve))
    world.write([("d1", n) for n in range(5)], 6_000_000)
    world.end()
    broker = broker_for(world)
    counters = run(while_(world, broker, tmp_path / "spool.sqlite", never))
    assert [number for _, number in valve.calls] == [0, 1, 2, 4]
    assert [at.rpartition("/")[2] for at, _ in valve.calls] == ["0", "1", "2", "4"]
    assert counters["actuations_failed"] == 5
    (row,) = broker.ingests["d1"].rows["_dead_letters"]
    assert row[0].step == "valve"
    assert row[0].reason == f"the actuator failed 3 times: {type(failure).__name__}: the valve is stuck"


def test_a_file_that_somebody_made_shorter_stops_the_agent(tmp_path: Path) -> None:
    world, spool = World(tmp_path, plan_of()), tmp_path / "spool.sqlite"
    world.write([("d1", 0)], 1_000_000)
    broker, looks = broker_for(world), count()
    # A while after the line, so that the spool knows of it.
    run(while_(world, broker, spool, lambda: len(world.lines()) == 1 and next(looks) > 100))
    (world.state / "valve.jsonl").write_text("")
    world.write([("d1", 1)], 2_000_000)
    with pytest.raises(ExceptionGroup) as raised:
        run(while_(world, broker, spool, never))
    assert raised.group_contains(Exception, match="only the agent may change it")
