"""Gaps, hellos, schemas asked for, epochs that are over: what a device and ingest tell each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from msgspec.structs import replace

from geartrain.ports import SplitProgress
from geartrain.records.event_time import START_OF_TIME
from geartrain.wire.codec import decode_header, encode_header
from geartrain.wire.envelope import NackReason
from geartrain_cloud.ingest.closed import CLOSED_KEPT, ClosedEpochs
from geartrain_cloud.log import tables
from geartrain_cloud.log.ledger import SqliteLedger
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.ports import AckCursor, ClosedEpoch, EntryKind, LedgerChange
from tests.cloud.fleet import FLOW, PATIENCE_S, QUOTE, Running, TestDevice, make_config, prices, running

Scenario = Callable[[Running, TestDevice], Awaitable[None]]


def play(folder: Path, scenario: Scenario, *, nack_interval_ms: int = 1) -> LogReader:
    async def run() -> LogReader:
        config = make_config(folder, nack_interval_ms=nack_interval_ms)
        async with running(config) as world, asyncio.timeout(PATIENCE_S):
            await scenario(world, TestDevice())
        return world.reader

    return asyncio.run(run())


def dropped(reader: LogReader, channel: str = "quotes") -> list[dict[str, int]]:
    found = [e for e in reader.entries(FLOW, "0", 0, 99) if e.kind is EntryKind.DROPPED]
    return [dict(entry.reason.details) for entry in found if entry.channel == channel]


def test_gap_counts_only_what_never_came_and_the_chain_goes_on_behind_it(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, device.schemas(), device.quotes(1.0))
        await world.net.acked(device)
        device.quotes(2.0, 2.5)
        device.quotes(3.0, channel="_late")
        gap = device.drop(2, 4, [(2, "quotes", 1), (3, "quotes", 2), (4, "_late", 1)])
        world.net.deliver(device.topic, gap, gap, device.quotes(5.0))
        await world.net.acked(device)
        assert world.net.acks(device)[-1].digest == device.digest

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0, 5.0]
    assert dropped(reader) == [{"count": 2, "first": 3, "last": 4}]
    assert dropped(reader, "_late") == [{"count": 1, "first": 3, "last": 4}]
    counters = reader.counters()
    assert (counters["gaps"], counters["batches_dropped"], counters["records_dropped"]) == (1, 2, 3)
    assert (counters["dropped:stocks/quotes"], counters["dropped:stocks/_late"]) == (2, 1)
    assert counters["duplicates"] == 1
    assert reader.clocks(FLOW, "0", reader.positions(FLOW)["0"])["quotes"] == 50


def test_gap_is_acked_with_the_digest_behind_it_and_moves_the_clock(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, device.schemas())
        device.quotes(1.0, 2.0)
        world.net.deliver(device.topic, device.drop(2, 2, [(2, "quotes", 2)]))
        await world.net.acked(device)
        assert world.net.acks(device)[-1].digest == device.digest

    reader = play(tmp_path, scenario)
    assert reader.clocks(FLOW, "0", reader.positions(FLOW)["0"])["quotes"] == 20
    assert dropped(reader) == [{"count": 2, "first": 2, "last": 2}]


def test_gap_swallows_what_waits_in_it(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, device.schemas())
        await world.net.acked(device)
        device.quotes(1.0)
        waits = device.quotes(2.0)
        behind = device.quotes(4.0)
        world.net.deliver(device.topic, waits, behind)
        await world.net.until(lambda: bool(world.net.nacks(device)))
        world.net.deliver(device.topic, device.drop(2, 3, [(2, "quotes", 1), (3, "quotes", 1)]))
        await world.net.acked(device)

    reader = play(tmp_path, scenario)
    assert prices(reader) == [4.0]
    assert reader.counters()["records_dropped"] == 2


def test_damaged_gap_and_gap_beyond_a_gap_are_asked_for_again(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, device.schemas())
        await world.net.acked(device)
        one = device.quotes(1.0)
        device.quotes(2.0)
        gap = device.drop(3, 3, [(3, "quotes", 1)])
        world.net.deliver(device.topic, gap)
        await world.net.until(lambda: bool(world.net.nacks(device)))
        assert (world.net.nacks(device)[-1].reason, world.net.nacks(device)[-1].seq) == (NackReason.GAP, 2)
        world.net.deliver(device.topic, one, device.payload(3, body=b""))
        await world.net.until(lambda: world.net.nacks(device)[-1].reason is NackReason.DIGEST)
        world.net.deliver(device.topic, gap)
        await world.net.acked(device)

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0]
    assert reader.counters()["records_dropped"] == 1


def test_gap_in_the_place_of_the_beginning_is_taken_after_what_was_lost(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, device.schemas())
        await world.net.acked(device)
        for price in (1.0, 2.0, 3.0):
            device.quotes(price)
        gap = device.drop(3, 4, [(3, "quotes", 1), (4, "quotes", 1)])
        world.net.deliver(device.topic, gap)
        await world.net.until(lambda: bool(world.net.nacks(device)))
        world.net.deliver(device.topic, gap)
        await world.net.acked(device)

    counters = play(tmp_path, scenario).counters()
    assert (counters["batches_lost"], counters["batches_dropped"], counters["records_dropped"]) == (1, 2, 2)


def test_rows_dropped_before_they_had_a_seq_are_counted_once(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, device.schemas())
        header = replace(device.header(), dropped={"quotes": 7, "_dead_letters": 2})
        batch = device.batch(header, b"")
        world.net.deliver(device.topic, batch, batch)
        await world.net.acked(device)

    reader = play(tmp_path, scenario)
    assert dropped(reader) == [{"count": 7, "before": 2}]
    assert dropped(reader, "_dead_letters") == [{"count": 2, "before": 2}]
    assert reader.counters()["records_dropped"] == 9


def test_unknown_schema_is_asked_for_and_its_batch_logged(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        one, two = device.quotes(1.0), device.quotes(2.0)
        world.net.deliver(device.topic, one, two)
        await world.net.until(lambda: bool(world.net.nacks(device)))
        nack = world.net.nacks(device)[0]
        assert (nack.reason, nack.seq, nack.epoch) == (NackReason.NEED_SCHEMA, 1, device.epoch)
        world.net.deliver(device.topic, device.answer_schemas({"quotes": QUOTE.schema}), one, two)
        await world.net.acked(device)

    reader = play(tmp_path, scenario, nack_interval_ms=1_000)
    assert prices(reader) == [1.0, 2.0]
    counters = reader.counters()
    assert (counters["schemas_asked"], counters["schemas_answered"]) == (1, 1)
    assert counters.get("quarantined_batches", 0) == 0
    assert reader.schema(FLOW, "quotes") == QUOTE.schema


def test_hello_of_a_stranger_is_welcomed_with_nothing(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, device.hello(), device.hello())
        await world.net.until(lambda: bool(world.net.welcomes(device)))
        said = world.net.welcomes(device)[0]
        assert (said.epoch, said.positions, said.watermarks, said.term) == (device.epoch, {}, {}, 1)
        world.net.deliver(device.topic, device.schemas(), device.quotes(1.0))
        await world.net.acked(device)

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0]
    assert reader.counters()["epochs_opened"] == 1
    joined = [entry for entry in reader.entries(FLOW, "0", 0, 9) if entry.kind is EntryKind.JOINED]
    assert len(joined) == 1


def test_fresh_epoch_is_told_where_its_device_stands_and_the_old_one_is_over(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, device.schemas(), device.quotes(1.0, 2.0))
        fresh = TestDevice(epoch=b"epoch--2")
        # All in one group: the answer waits until the old epoch's last batch is durable.
        world.net.deliver(device.topic, fresh.hello(2), device.quotes(3.0))
        await world.net.until(lambda: bool(world.net.welcomes(fresh)))
        said = world.net.welcomes(fresh)[0]
        assert said.epoch == fresh.epoch
        assert said.positions == {("quotes", "device-1"): SplitProgress(2, 20)}
        assert said.watermarks["quotes"] == 20
        world.net.deliver(device.topic, device.payload(3))
        await world.net.until(lambda: bool(world.net.nacks(device)))
        assert (world.net.nacks(device)[-1].reason, world.net.nacks(device)[-1].seq) == (NackReason.CLOSED, 3)
        last = [ack for ack in world.net.acks(device) if ack.epoch == device.epoch][-1]
        assert (last.seq, last.digest) == (2, device.batches[2].digest)
        fresh.time, fresh.number = 20, 2
        world.net.deliver(fresh.topic, fresh.schemas(), fresh.quotes(3.0))
        await world.net.acked(fresh)

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0, 2.0, 3.0]
    assert reader.cursors(FLOW)[0].ordinal == 2


def test_hello_is_answered_after_a_restart_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    fresh = TestDevice(epoch=b"epoch--2")

    async def first(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, device.schemas(), device.quotes(1.0))
        await world.net.acked(device)
        damaged = bytearray(fresh.hello(2))
        damaged[-10] ^= 1
        world.net.deliver(device.topic, bytes(damaged), fresh.hello(2))
        await world.net.until(lambda: bool(world.net.welcomes(fresh)))

    async def second(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, fresh.hello(2))
        await world.net.until(lambda: bool(world.net.welcomes(fresh)))
        assert world.net.welcomes(fresh)[0].positions == {("quotes", "device-1"): SplitProgress(1, 10)}
        world.net.deliver(device.topic, fresh.schemas())
        await world.net.acked(fresh)

    play(tmp_path, first)
    reader = play(tmp_path, second)
    assert reader.cursors(FLOW)[0].seq == 1
    assert reader.counters()["epochs_opened"] == 2


def test_closed_epochs_are_bounded_in_memory_and_in_the_ledger(tmp_path: Path) -> None:
    def closed(ordinal: int) -> ClosedEpoch:
        return ClosedEpoch("d", "f", ordinal.to_bytes(8, "big"), ordinal, 1, bytes(16))

    async def run() -> list[ClosedEpoch]:
        ledger = SqliteLedger(tmp_path)
        term = await ledger.open()
        cursor = AckCursor("d", "f", b"epoch--1", CLOSED_KEPT + 6, 1, bytes(16))
        for first in range(1, CLOSED_KEPT + 6, 5):
            change = LedgerChange(
                cursors=[cursor], closed_epochs=[closed(n) for n in range(first, first + 5)]
            )
            await ledger.commit(term, change)
        try:
            return await ledger.closed_epochs()
        finally:
            await ledger.close()

    assert tables.CLOSED_KEPT == CLOSED_KEPT
    kept = asyncio.run(run())
    assert [one.ordinal for one in kept] == list(range(6, CLOSED_KEPT + 6))
    memory = ClosedEpochs(closed(n) for n in range(1, CLOSED_KEPT + 6))
    assert memory.get("d", "f", closed(5).epoch) is None
    assert memory.get("d", "f", closed(6).epoch) == closed(6)


def test_headers_of_these_tests_are_what_the_codec_makes(tmp_path: Path) -> None:
    device = TestDevice()
    device.schemas()
    device.quotes(1.0)
    device.drop(2, 2, [(2, "quotes", 1)])
    raw = device.batches[2].header
    assert encode_header(decode_header(raw)) == raw
    assert decode_header(raw).watermarks["quotes"] > START_OF_TIME
