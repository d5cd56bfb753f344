"""The stores: what was committed survives every crash, what was not leaves no trace; misuse is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from geartrain.errors import LedgerError, SpoolError
from geartrain.ports import SplitProgress, SpoolCommit, SpooledBatch
from geartrain_cloud.ports import (
    AckCursor,
    BatchDigest,
    ClosedEpoch,
    Entry,
    EntryKind,
    LedgerChange,
    StoredSchema,
)
from geartrain_simulation.machine.faults import Faults
from geartrain_simulation.machine.platter import Platter
from geartrain_simulation.machine.world import Process, World
from geartrain_simulation.stores.ledger_book import DIGESTS_KEPT, LedgerBook
from geartrain_simulation.stores.ledgers import SimLedgerStore
from geartrain_simulation.stores.spools import SimSpoolStore, SpoolBook

EPOCH = b"epoch..1"
SPLIT = ("quotes", "a/quotes")


def batch(seq: int) -> SpooledBatch:
    return SpooledBatch(seq, b"header", b"body", bytes([seq]) * 16, 1)


def change(seq: int) -> SpoolCommit:
    progress = {SPLIT: SplitProgress(seq, seq)}
    return SpoolCommit([batch(seq)], progress, {("worst", b"k"): str(seq).encode()}, {"read": seq})


def in_world(world: World, main: Callable[[Process], Awaitable[None]]) -> None:
    async def program(process: Process) -> None:
        await main(process)

    async def story() -> None:
        node = world.node("n", program)
        node.start()
        await node.finished

    world.run(story())


@pytest.mark.parametrize("seed", range(40))
def test_a_spool_commit_is_all_or_nothing_wherever_the_kill_strikes(seed: int) -> None:
    world = World(seed)
    platter = Platter(world.random("platter"), sector_bytes=16)
    book = SpoolBook(platter)
    returned = [0]

    async def main(process: Process) -> None:
        store = SimSpoolStore(process, book, Faults(slow=0.5))
        image = await store.open("a", "stocks", EPOCH)
        assert image.last_seq >= returned[0]
        assert image.positions.get(SPLIT, SplitProgress(0, 0)).position == image.last_seq
        assert image.counters.get("read", 0) == image.last_seq
        if image.last_seq:
            assert image.state == {("worst", b"k"): str(image.last_seq).encode()}
            assert image.digest == bytes([image.last_seq]) * 16
        for seq in range(image.last_seq + 1, 10):
            await store.commit(change(seq))
            returned[0] = seq

    async def story() -> None:
        node = world.node("n", main)
        node.on_power_loss(platter.power_loss)
        for number in world.random("kills").sample(range(1, 50), 6):
            node.kill_at_point(number, power=number % 2 == 0)
        node.start()
        await node.finished
        assert node.crashes >= 2

    world.run(story())
    world.close()
    assert (book.last_seq, list(book.batches)) == (9, list(range(1, 10)))


def test_a_spool_gives_back_what_was_committed(world: World) -> None:
    book = SpoolBook()
    trims: list[tuple[bytes, int]] = []
    book.on_trim = lambda epoch, through_seq: trims.append((epoch, through_seq))

    async def main(process: Process) -> None:
        store = SimSpoolStore(process, book)
        fresh = await store.open("a", "stocks", EPOCH)
        assert (fresh.epoch, fresh.last_seq, fresh.acked_seq, fresh.digest) == (EPOCH, 0, 0, bytes(16))
        for seq in range(1, 6):
            await store.commit(change(seq))
        assert [one.seq for one in await store.read(1, 3)] == [2, 3, 4]
        await store.trim(3)
        with pytest.raises(SpoolError, match="cannot trim 6, the last batch is 5"):
            await store.trim(6)
        await store.commit(SpoolCommit(state={("worst", b"k"): None}))
        with pytest.raises(SpoolError, match="batch 9 does not follow on 5"):
            await store.commit(change(9))
        await store.close()
        with pytest.raises(SpoolError, match="not open"):
            await store.read(0, 10)
        image = await SimSpoolStore(process, book).open("a", "stocks", b"another.")
        assert (image.epoch, image.last_seq, image.acked_seq) == (EPOCH, 5, 3)
        assert (image.spooled_bytes, image.state) == (2 * batch(1).size, {})
        with pytest.raises(SpoolError, match="belongs to device a, flow stocks"):
            await SimSpoolStore(process, book).open("b", "stocks", EPOCH)

    in_world(world, main)
    assert trims == [(EPOCH, 3)]


def test_a_spool_in_use_is_refused_until_its_owner_is_dead(world: World) -> None:
    book = SpoolBook()

    async def owner(process: Process) -> None:
        await SimSpoolStore(process, book).open("a", "stocks", EPOCH)
        await asyncio.sleep(1_000)

    async def other(process: Process) -> None:
        await asyncio.sleep(1)
        with pytest.raises(SpoolError, match=r"in use by owner\.1"):
            await SimSpoolStore(process, book).open("a", "stocks", EPOCH)
        world.nodes["owner"].crash()
        await SimSpoolStore(process, book).open("a", "stocks", EPOCH)

    async def story() -> None:
        world.node("owner", owner, restart_s=(100, 100)).start()
        node = world.node("other", other)
        node.start()
        await node.finished

    world.run(story())


def test_transactions_are_carried_out_in_the_order_of_the_calls(world: World) -> None:
    book = SpoolBook()

    async def main(process: Process) -> None:
        store = SimSpoolStore(process, book, Faults(slow=0.5))
        await store.open("a", "stocks", EPOCH)
        pending = []
        for seq in range(1, 20):
            pending.append(asyncio.create_task(store.commit(change(seq))))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.gather(*pending)

    in_world(world, main)
    assert book.last_seq == 19


def entry(number: int, kind: EntryKind = EntryKind.ROWS, channel: str = "quotes") -> Entry:
    segment, clocks = f"{number}.arrow", {"quotes": number}
    return Entry("stocks", 0, number, kind, channel, "a", EPOCH, number, segment, 0, 1, clocks=clocks)


def assigned(number: int) -> Entry:
    return Entry("stocks", 0, number, EntryKind.ASSIGNED, device="a", source="quotes")


def test_a_ledger_gives_back_what_was_committed(world: World) -> None:
    async def main(process: Process) -> None:
        store = SimLedgerStore(process, LedgerBook())
        term = await store.open()
        cursor = AckCursor("a", "stocks", EPOCH, 1, 2, bytes(16))
        schema = StoredSchema("stocks", "quotes", "id", "{}")
        await store.commit(
            term,
            LedgerChange(
                entries=[assigned(1), entry(2), entry(3, channel="late")],
                cursors=[cursor],
                schemas=[schema, schema],
                digests=[
                    BatchDigest("a", "stocks", EPOCH, seq, bytes([seq % 256]) * 16) for seq in range(1, 1_030)
                ],
                counters={"rows": 2},
            ),
        )
        assert await store.cursors() == [cursor]
        assert await store.schemas() == [schema]
        assert await store.last_entries() == [entry(3, channel="late")]
        assert await store.devices() == [("stocks", "quotes", "a")]
        assert await store.segments() == {"2.arrow", "3.arrow"}
        assert await store.counters() == {"rows": 2}
        assert await store.digest_at("a", "stocks", EPOCH, 1_029 - DIGESTS_KEPT) is None
        assert await store.digest_at("a", "stocks", EPOCH, 1_030 - DIGESTS_KEPT) is not None
        closed = ClosedEpoch("a", "stocks", EPOCH, 1, 2, bytes(16))
        await store.commit(term, LedgerChange(closed_epochs=[closed]))
        assert await store.closed_epochs() == [closed]
        assert await store.digest_at("a", "stocks", EPOCH, 1_029) is None
        for wrong in (3, 5):
            with pytest.raises(LedgerError, match=f"entry {wrong} of .* does not follow on 3"):
                await store.commit(term, LedgerChange(entries=[entry(wrong)], counters={"rows": 9}))
        assert await store.counters() == {"rows": 2}
        await store.close()
        with pytest.raises(LedgerError, match="not open"):
            await store.counters()

    in_world(world, main)


def test_a_ledger_refuses_an_old_term(world: World) -> None:
    async def main(process: Process) -> None:
        book = LedgerBook()
        old, new = SimLedgerStore(process, book), SimLedgerStore(process, book)
        term = await old.open()
        assert await new.open() == term + 1
        with pytest.raises(LedgerError, match="another ingest has taken the ledger"):
            await old.commit(term, LedgerChange(entries=[entry(1)]))
        assert await new.last_entries() == []

    in_world(world, main)


def test_a_fault_of_the_disk_is_the_stores_error_and_leaves_nothing_behind(world: World) -> None:
    async def main(process: Process) -> None:
        spool, ledger = SpoolBook(), LedgerBook()
        store = SimSpoolStore(process, spool)
        await store.open("a", "stocks", EPOCH)
        log = SimLedgerStore(process, ledger)
        term = await log.open()
        for faults, why in (
            (Faults(no_space=1), "no space is left"),
            (Faults(write_error=1), "the disk reports an error"),
            (Faults(sync_error=1), "fsync reports an error"),
        ):
            process.node.faults = faults
            with pytest.raises(SpoolError, match=why):
                await store.commit(change(1))
            with pytest.raises(LedgerError, match=why):
                await log.commit(term, LedgerChange(entries=[entry(1)]))
            process.node.faults = Faults()
            assert (spool.last_seq, ledger.all_entries()) == (0, [])
        await store.commit(SpoolCommit(counters={"read": 7}))  # over what was not finished
        await store.close()
        assert (await SimSpoolStore(process, spool).open("a", "stocks", EPOCH)).counters == {"read": 7}

    in_world(world, main)


def test_a_commit_that_a_kill_cut_off_behind_its_write_is_told_of_at_the_next_opening(world: World) -> None:
    book = SpoolBook()
    told: list[tuple[int, int]] = []

    async def main(process: Process) -> None:
        book.on_commit = lambda change: told.append((process.generation, len(change.batches)))
        store = SimSpoolStore(process, book)
        image = await store.open("a", "stocks", EPOCH)
        if process.generation == 1:
            await store.commit(change(1))
        assert image.last_seq == (0 if process.generation == 1 else 1)

    async def story() -> None:
        node = world.node("n", main)
        node.kill_at_point(2, "spool.write done")  # the first is that of the opening
        node.start()
        await node.finished

    world.run(story())
    assert told == [(2, 1)]


def test_an_epoch_stays_from_the_first_commit_on(world: World) -> None:
    book = SpoolBook()

    async def main(process: Process) -> None:
        for epoch, kept in ((EPOCH, EPOCH), (b"epoch..2", b"epoch..2"), (b"epoch..3", b"epoch..2")):
            store = SimSpoolStore(process, book)
            assert (await store.open("a", "stocks", epoch)).epoch == kept
            if epoch == b"epoch..2":
                await store.commit(change(1))
            await store.close()

    in_world(world, main)


def test_a_new_epoch_outlives_its_process(world: World) -> None:
    book = SpoolBook()

    async def main(process: Process) -> None:
        store = SimSpoolStore(process, book)
        await store.open("a", "stocks", EPOCH)
        for seq in (1, 2, 3):
            await store.commit(change(seq))
        first = iter([batch(1)])
        tip = await store.renew(
            b"epoch..2", lambda one: next(first, None) if one is None else None, SpoolCommit()
        )
        assert (tip.last_seq, tip.spooled_bytes) == (1, batch(1).size)
        await store.close()
        image = await SimSpoolStore(process, book).open("a", "stocks", EPOCH)
        assert (image.epoch, image.last_seq, image.acked_seq) == (b"epoch..2", 1, 0)

    in_world(world, main)


def test_a_transaction_that_is_cancelled_stays_so_when_it_fails_on_the_disk() -> None:
    ends = set[bool | str]()
    for seed in range(20):
        world = World(seed)

        async def main(process: Process, world: World = world) -> None:
            store = SimSpoolStore(process, SpoolBook(Platter(world.random("platter"))))
            await store.open("a", "stocks", EPOCH)
            process.node.faults = Faults(write_error=1.0, slow=1.0)
            task = asyncio.create_task(store.commit(change(1)))
            await asyncio.sleep(0.0001)
            task.cancel()
            await asyncio.wait([task])
            ends.add(task.cancelled())

        in_world(world, main)
        if any("disk.error" in line for line in world.trace.tail()):
            ends.add("failed unheard")
    assert ends == {True, "failed unheard"}
