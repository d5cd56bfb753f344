"""Ingest on real SQLite and real files: what it takes, in what order, and what it answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain.errors.reason import make_reason
from geartrain.records.event_time import END_OF_TIME
from geartrain.wire.envelope import Nack, NackReason
from geartrain_cloud.ingest.counters import Counter
from geartrain_cloud.log.entry_reasons import EntryCode
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.ports import Entry, EntryKind
from tests.cloud.fleet import FLOW, LoopNet, Running, TestDevice, make_config, prices, running

Scenario = Callable[[Running, TestDevice], Awaitable[None]]


def entries(reader: LogReader) -> list[Entry]:
    return reader.entries(FLOW, "0", 0, reader.positions(FLOW)["0"])


def kinds(reader: LogReader) -> list[EntryKind]:
    return [entry.kind for entry in entries(reader)]


def play(folder: Path, scenario: Scenario, **settings: Any) -> LogReader:
    """Run a scenario with one device whose schema is in the log; returns the log after a clean stop."""

    async def run() -> LogReader:
        async with running(make_config(folder, **settings)) as world:
            device = TestDevice()
            world.net.deliver(device.topic, device.schemas())
            await world.net.acked(device)
            await scenario(world, device)
        return world.reader

    return asyncio.run(run())


def test_rows_reach_the_log_in_order(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, device.quotes(1.0, 2.0), device.quotes(3.0), device.end())
        await world.net.acked(device)
        assert world.net.acks(device)[-1].digest == device.digest

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0, 2.0, 3.0]
    rows = [entry for entry in entries(reader) if entry.kind is EntryKind.ROWS]
    assert [(entry.channel, entry.seq, entry.count, entry.clocks) for entry in rows] == [
        ("quotes", 2, 2, {"quotes": 20}),
        ("quotes", 3, 1, {"quotes": 30}),
    ]
    table = reader.table(rows[0])
    assert table.column("_event_time").to_pylist() == [10, 20]
    assert table.column("_origin_number").to_pylist() == [0, 1]
    assert table.column("_device").to_pylist() == ["device-1"] * 2
    assert table.column("_seq").to_pylist() == [2, 2]
    assert table.column("_late").to_pylist() == table.column("_overtaken").to_pylist() == [False, False]
    assert reader.clocks(FLOW, "0", reader.positions(FLOW)["0"]) == {"quotes": END_OF_TIME}
    (cursor,) = reader.cursors(FLOW)
    assert cursor.seq == 4
    assert cursor.watermarks["quotes"] == cursor.source_watermarks["quotes"] == END_OF_TIME
    assert cursor.positions["quotes", "device-1"].position == 3


def test_entries_have_no_gap_and_begin_with_the_assigned(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, device.quotes(1.0))
        await world.net.acked(device)

    reader = play(tmp_path, scenario)
    assert kinds(reader) == [EntryKind.ASSIGNED, EntryKind.JOINED, EntryKind.ROWS]
    assert [entry.number for entry in entries(reader)] == [1, 2, 3]
    assert entries(reader)[0].clocks == {}
    assert reader.assigned(FLOW) == ["device-1"]


def test_batches_committed_together_share_a_segment(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, device.quotes(1.0, 2.0), device.quotes(3.0), device.quotes(4.0))
        await world.net.acked(device)

    rows = [entry for entry in entries(play(tmp_path, scenario, group_commit_ms=100)) if entry.count]
    assert len({entry.segment for entry in rows}) == 1
    assert [(entry.first_row, entry.count) for entry in rows] == [(0, 2), (2, 1), (3, 1)]


def test_segment_is_durable_before_ledger_and_ledger_before_ack(tmp_path: Path) -> None:
    journals: list[list[str]] = []

    async def scenario(world: Running, device: TestDevice) -> None:
        for price in (1.0, 2.0):
            world.journal.clear()
            world.net.deliver(device.topic, device.quotes(price))
            await world.net.acked(device)
            journals.append(list(world.journal))

    play(tmp_path, scenario)
    assert journals == [["write", "fsync", f"ledger {seq}", f"ack {seq}"] for seq in (2, 3)]


def test_duplicate_is_acked_again_and_logged_once(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, device.quotes(1.0))
        await world.net.acked(device)
        acks = len(world.net.acks(device))
        world.net.deliver(device.topic, device.payload(2))
        await world.net.until(lambda: len(world.net.acks(device)) > acks)
        assert world.net.acks(device)[-1].seq == 2
        sizes.extend(len(device.payload(seq)) for seq in (1, 2))

    sizes: list[int] = []
    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0]
    assert reader.counters()["duplicates"] == 1
    assert reader.counters()[f"bytes:{FLOW}"] == sum(sizes)


def test_duplicate_of_what_is_not_yet_durable_is_not_acked(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        gate = asyncio.Event()

        async def closed() -> None:
            await gate.wait()

        world.ledger.gate = closed
        world.net.deliver(device.topic, device.quotes(1.0), device.payload(2))
        await world.counted(Counter.DUPLICATES, 1)
        await asyncio.sleep(0.02)
        assert [ack.seq for ack in world.net.acks(device) if ack.seq == 2] == []
        gate.set()
        await world.net.acked(device)

    assert prices(play(tmp_path, scenario)) == [1.0]


def test_batch_older_than_the_remembered_digests_is_acked_as_stale(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, *(device.advance(n) for n in range(1, 1_100)))
        await world.net.acked(device)
        acks = len(world.net.acks(device))
        world.net.deliver(device.topic, device.payload(2))
        await world.net.until(lambda: len(world.net.acks(device)) > acks)
        assert world.net.acks(device)[-1].seq == device.seq

    counters = play(tmp_path, scenario).counters()
    assert counters["stale_batches"] == 1
    assert "duplicates" not in counters


def test_reordered_batches_are_asked_for_and_put_in_order(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        first, second, third = device.quotes(1.0), device.quotes(2.0), device.quotes(3.0)
        world.net.deliver(device.topic, third, second)
        await world.net.until(lambda: bool(world.net.nacks(device)))
        nacks = [(nack.seq, nack.reason) for nack in world.net.nacks(device)]
        assert nacks == [(2, NackReason.GAP)]
        world.net.deliver(device.topic, first)
        await world.net.acked(device)

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0, 2.0, 3.0]
    assert reader.counters()["reordered_batches"] == 2
    assert reader.counters()["nacks_suppressed"] == 1


def test_second_gap_is_asked_for_as_soon_as_the_first_is_filled(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        payloads = [device.quotes(float(n)) for n in range(5)]
        world.net.deliver(device.topic, payloads[1], payloads[4])
        await world.net.until(lambda: [nack.seq for nack in world.net.nacks(device)] == [2])
        world.net.deliver(device.topic, payloads[0])
        await world.net.until(lambda: [nack.seq for nack in world.net.nacks(device)] == [2, 4])
        world.net.deliver(device.topic, payloads[3], payloads[2])
        await world.net.acked(device)

    assert prices(play(tmp_path, scenario)) == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_what_finds_no_room_to_wait_is_dropped_and_counted(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        payloads = [device.quotes(float(n)) for n in range(5)]
        world.net.deliver(device.topic, *payloads[1:], payloads[0])
        await world.net.acked(device, 4)
        world.net.deliver(device.topic, *payloads[3:])
        await world.net.acked(device)

    reader = play(tmp_path, scenario, waiting_batches_max=2)
    assert prices(reader) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert reader.counters()["waiting_dropped"] == 2


@pytest.mark.parametrize("part", ["header", "body", "digest"])
def test_corrupted_batch_is_refused_and_taken_when_it_comes_again(tmp_path: Path, part: str) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        good = device.quotes(1.0, 2.0)
        raw = bytearray(getattr(device.batches[2], part))
        raw[-1] ^= 1
        world.net.deliver(device.topic, device.payload(2, **{part: bytes(raw)}))
        await world.net.until(lambda: bool(world.net.nacks(device)))
        (nack,) = world.net.nacks(device)
        assert (nack.seq, nack.reason, nack.epoch) == (2, NackReason.DIGEST, device.epoch)
        world.net.deliver(device.topic, good)
        await world.net.acked(device)

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0, 2.0]
    assert reader.counters()["digest_mismatches"] == 1


def test_corrupted_batch_that_waited_is_asked_for_again(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        first, second = device.quotes(1.0), device.quotes(2.0)
        world.net.deliver(device.topic, device.payload(3, body=b"spoilt"), first)
        await world.net.until(lambda: any(n.reason is NackReason.DIGEST for n in world.net.nacks(device)))
        assert world.net.nacks(device)[-1].seq == 3
        world.net.deliver(device.topic, second)
        await world.net.acked(device)

    assert prices(play(tmp_path, scenario)) == [1.0, 2.0]


def test_digest_conflict_keeps_the_first_and_quarantines_the_second(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        clone = TestDevice()
        clone.schemas()
        world.net.deliver(device.topic, device.quotes(1.0))
        await world.net.acked(device)
        acks = len(world.net.acks(device))
        world.net.deliver(device.topic, clone.quotes(666.0))
        await world.net.until(lambda: len(world.net.acks(device)) > acks)
        assert world.net.acks(device)[-1].digest == device.digest != clone.digest

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0]
    assert reader.counters()["digest_conflicts"] == reader.counters()["quarantined_batches"] == 1


def test_new_epoch_closes_the_old_one(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, device.quotes(1.0))
        await world.net.acked(device)
        second = TestDevice(epoch=b"epoch--2")
        second.time = device.time
        world.net.deliver(device.topic, second.hello(2), second.schemas(), second.quotes(2.0))
        await world.net.acked(second)
        world.net.deliver(device.topic, device.quotes(3.0))
        await world.net.until(lambda: bool(world.net.nacks(device)))
        nack = world.net.nacks(device)[-1]
        assert (nack.reason, nack.epoch, nack.seq) == (NackReason.CLOSED, device.epoch, 3)

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0, 2.0]
    epochs = [entry for entry in entries(reader) if entry.kind in (EntryKind.JOINED, EntryKind.EPOCH)]
    assert [entry.epoch for entry in epochs] == [b"epoch--1", b"epoch--2"]
    assert epochs[1].reason == make_reason(EntryCode.LATER_EPOCH, ordinal=2, ended_at=2)
    assert reader.cursors(FLOW)[0].ordinal == 2
    counters = reader.counters()
    assert (counters["epochs_opened"], counters["closed_epoch_batches"]) == (2, 1)
    assert counters["quarantined_batches"] == 1


def test_epoch_is_not_taken_over_by_a_batch(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        other = TestDevice(epoch=b"epoch--2")
        other.schemas()
        late = [other.payload(1), other.payload(1, body=b"spoilt"), other.quotes(9.0)]
        world.net.deliver(device.topic, *late)
        await world.counted(Counter.UNOPENED_BATCHES, 3)
        await world.net.until(lambda: bool(world.net.nacks(device)))
        assert {(n.reason, n.epoch) for n in world.net.nacks(device)} == {(NackReason.CLOSED, other.epoch)}
        world.net.deliver(device.topic, device.quotes(1.0))
        await world.net.acked(device)

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0]
    assert [cursor.epoch for cursor in reader.cursors(FLOW)] == [b"epoch--1"]


def test_gap_that_the_device_cannot_fill_is_passed_as_a_loss(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        device.quotes(1.0)
        device.quotes(2.0)
        device.quotes(3.0)
        device.trim(3)
        world.net.deliver(device.topic, device.payload(4))
        await world.net.until(lambda: bool(world.net.nacks(device)))
        assert len(world.net.acks(device)) == 1
        world.net.deliver(device.topic, device.payload(4), device.quotes(4.0))
        await world.net.acked(device)

    reader = play(tmp_path, scenario)
    assert prices(reader) == [3.0, 4.0]
    (loss,) = [entry for entry in entries(reader) if entry.kind is EntryKind.LOSS]
    assert loss.reason == make_reason(EntryCode.BATCHES_LOST, first=2, last=3)
    assert (reader.counters()["losses"], reader.counters()["batches_lost"]) == (1, 2)


def test_epoch_of_which_the_beginning_is_gone_opens_with_a_loss(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        second = TestDevice(epoch=b"epoch--2")
        second.schemas()
        second.quotes(1.0)
        second.trim(1)
        world.net.deliver(device.topic, second.hello(2), second.payload(2), second.payload(2))
        await world.net.acked(second)

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0]
    assert [k for k in kinds(reader) if k is not EntryKind.WATERMARK] == [
        EntryKind.ASSIGNED,
        EntryKind.JOINED,
        EntryKind.EPOCH,
        EntryKind.LOSS,
        EntryKind.ROWS,
    ]


def test_one_flipped_oldest_seq_passes_nothing(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        first, _ = device.quotes(1.0), device.quotes(2.0)
        world.net.deliver(device.topic, device.payload(3, oldest_seq=3), device.payload(3), first)
        await world.net.acked(device)

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0, 2.0]
    assert "losses" not in reader.counters()


def test_connection_that_breaks_is_made_anew(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.refusals = 2
        world.net.cut()
        await world.net.until(lambda: world.net.connections == 2)
        world.net.deliver(device.topic, device.quotes(1.0))
        await world.net.acked(device)

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0]
    assert reader.counters()["connections_lost"] == 3


def test_devices_are_told_where_to_go_on_when_ingest_is_connected_again(tmp_path: Path) -> None:
    """What they sent meanwhile is gone, and an ack may be: the last durable batch is asked for, too."""

    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, device.quotes(1.0))
        await world.net.acked(device)
        assert not world.net.nacks(device)
        world.net.cut()
        await world.net.until(lambda: bool(world.net.nacks(device)))
        (nack,) = world.net.nacks(device)
        assert (nack.epoch, nack.seq, nack.reason) == (device.epoch, device.seq, NackReason.GAP)
        world.net.deliver(device.topic, device.payload(device.seq))
        await world.net.until(lambda: world.net.acks(device)[-1].seq == device.seq)

    assert prices(play(tmp_path, scenario)) == [1.0]


def test_what_comes_alone_does_not_wait_for_others(tmp_path: Path) -> None:
    pause_s = 1.5

    async def scenario(world: Running, device: TestDevice) -> None:
        await asyncio.sleep(pause_s)  # since the commit of its schema
        began_s = time.monotonic()
        world.net.deliver(device.topic, device.quotes(1.0))
        await world.net.acked(device)
        assert time.monotonic() - began_s < pause_s

    play(tmp_path, scenario, group_commit_ms=int(pause_s * 1_000))


def test_full_group_is_committed_before_its_time_and_holds_back_the_rest(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        world.net.deliver(device.topic, *(device.quotes(1.0, 2.0, 3.0) for _ in range(10)))
        await world.net.acked(device)

    reader = play(tmp_path, scenario, group_commit_ms=50, group_rows_max=6)
    assert len(prices(reader)) == 30
    counts: dict[str, int] = {}
    for entry in entries(reader):
        if entry.segment:
            counts[entry.segment] = counts.get(entry.segment, 0) + entry.count
    assert set(counts.values()) == {6}


def test_stop_commits_and_acks_what_was_taken(tmp_path: Path) -> None:
    async def run() -> LoopNet:
        async with running(make_config(tmp_path, group_commit_ms=60_000)) as world:
            world.net.deliver(device.topic, device.schemas(), device.quotes(1.0))
            await world.counted(Counter.BATCHES_APPENDED, 2)
            assert world.net.sent == []
        assert prices(world.reader) == [1.0]
        return world.net

    device = TestDevice()
    net = asyncio.run(run())
    assert [ack.seq for ack in net.acks(device)] == [2]
    assert not any(isinstance(control, Nack) for _, control in net.sent)


DELIVERIES = st.lists(
    st.tuples(st.integers(1, 8), st.sampled_from(["whole", "whole", "body", "digest", "oldest", "torn"])),
    max_size=30,
)


def spoilt(device: TestDevice, seq: int, how: str) -> bytes:
    """Batch `seq` as it might arrive."""
    batch = device.batches[seq]
    if how == "body":
        return device.payload(seq, body=batch.body + b"\0")
    if how == "digest":
        return device.payload(seq, digest=bytes(16))
    if how == "oldest":
        return device.payload(seq, oldest_seq=seq)
    return device.payload(seq)[: -9 if how == "torn" else None]


@settings(max_examples=25, deadline=None)
@given(DELIVERIES, st.integers(1, 4))
def test_whatever_arrives_in_whatever_order_is_logged_once_and_in_order(
    deliveries: list[tuple[int, str]], waiting_batches_max: int
) -> None:
    # Two equal claims of a loss are believed, so each batch makes one at most.
    claims: set[int] = set()

    async def run(folder: Path) -> LogReader:
        device = TestDevice()
        payloads = [device.schemas(), *(device.quotes(float(n)) for n in range(7))]
        async with running(make_config(folder, waiting_batches_max=waiting_batches_max)) as world:
            for seq, how in deliveries:
                if how != "oldest" or seq not in claims:
                    world.net.deliver(device.topic, spoilt(device, seq, how))
                claims.update({seq} if how == "oldest" else ())
            for payload in payloads:
                world.net.deliver(device.topic, payload)
            await world.net.acked(device)
            assert {ack.digest for ack in world.net.acks(device) if ack.seq == device.seq} == {device.digest}
        return world.reader

    with TemporaryDirectory() as folder:
        reader = asyncio.run(run(Path(folder)))
        assert prices(reader) == [float(n) for n in range(7)]
        assert reader.counters()["batches_appended"] == 8
        assert "losses" not in reader.counters()
        assert entries(reader)[-1].clocks == {"quotes": 70}
