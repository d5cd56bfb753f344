"""Devices that go over to another cut: the log numbers it, and takes nothing that was made before."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from geartrain.graph.graph import CLAIMS
from geartrain.schema import RowCodec
from geartrain.state.claims import Claim
from geartrain.wire.envelope import NackReason
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.log.entry_reasons import entry_sentence
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.ports import EntryKind
from geartrain_cloud.spark.claims import claims_lost
from tests.cloud.fleet import FLOW, PATIENCE_S, QUOTE, Running, TestDevice, make_config, prices, running
from tests.cloud.test_protocol import dropped, play
from tests.rosters import document, put_flow


def crossings(reader: LogReader) -> list[tuple[int, str]]:
    """The crossings in the log: number and what it says."""
    found = [e for e in reader.entries(FLOW, "0", 0, 99) if e.kind is EntryKind.CROSSING]
    return [(entry.seq, entry_sentence(entry.reason)) for entry in found]


async def begin(world: Running, device: TestDevice) -> None:
    """The first epoch of a device, in which it goes over once."""
    world.net.deliver(device.topic, device.hello(1, "quotes"), device.schemas(), device.quotes(1.0))
    world.net.deliver(device.topic, device.cross("quotes", "high"), device.quotes(2.0))
    await world.net.acked(device)


def test_a_crossing_is_logged_in_its_place_and_known_after_a_restart(tmp_path: Path) -> None:
    device, later = TestDevice(), TestDevice(epoch=b"epoch--2")

    async def story() -> LogReader:
        async with running(make_config(tmp_path)) as world, asyncio.timeout(PATIENCE_S):
            await begin(world, device)
        async with running(make_config(tmp_path)) as world, asyncio.timeout(PATIENCE_S):
            world.net.deliver(device.topic, device.cross("quotes"), device.quotes(3.0))
            await world.net.acked(device)
            later.crossing = 2
            world.net.deliver(later.topic, later.hello(2))
            await world.net.until(lambda: later.epoch in (w.epoch for w in world.net.welcomes(later)))
            assert world.net.welcomes(later)[-1].crossing == 2
        return world.reader

    reader = asyncio.run(story())
    assert prices(reader) == [1.0, 2.0, 3.0]
    said = [
        (1, "cut high, quotes of base cut quotes, revision not said"),
        (2, "cut quotes of base cut quotes, revision not said"),
    ]
    assert crossings(reader) == said
    kinds = [
        e.kind for e in reader.entries(FLOW, "0", 0, 99) if e.kind in (EntryKind.ROWS, EntryKind.CROSSING)
    ]
    assert [kind.value for kind in kinds] == ["rows", "crossing", "rows", "crossing", "rows"]
    assert reader.counters()["crossings"] == 2


def test_an_epoch_from_before_a_crossing_is_not_opened(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        await begin(world, device)
        restored = TestDevice(epoch=b"restored")
        world.net.deliver(restored.topic, restored.hello(2))
        await world.net.until(lambda: bool(world.net.nacks(restored)))
        nack = world.net.nacks(restored)[-1]
        assert (nack.reason, nack.epoch, nack.seq) == (NackReason.SET_BACK, restored.epoch, 1)
        world.net.deliver(restored.topic, restored.schemas(), restored.quotes(9.0))
        world.net.deliver(device.topic, device.quotes(3.0))
        await world.net.acked(device)

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0, 2.0, 3.0]
    counters = reader.counters()
    assert (counters["set_back_hellos"], counters["epochs_opened"], counters["unopened_batches"]) == (1, 1, 2)


def test_a_fresh_spool_is_a_crossing_of_its_own(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        await begin(world, device)
        fresh = TestDevice(epoch=b"epoch--2")
        fresh.number, fresh.time = 2, 20
        world.net.deliver(fresh.topic, fresh.hello(2, "quotes"), fresh.hello(2, "quotes"))
        await world.net.until(lambda: fresh.epoch in (w.epoch for w in world.net.welcomes(fresh)))
        assert {w.crossing for w in world.net.welcomes(fresh) if w.epoch == fresh.epoch} == {2}
        world.net.deliver(fresh.topic, fresh.schemas())  # made before it heard that
        fresh.crossing = 2
        world.net.deliver(fresh.topic, fresh.quotes(3.0))
        await world.net.acked(fresh)

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0, 2.0, 3.0]
    assert crossings(reader)[1:] == [(2, "a fresh spool: cut quotes, revision not said")]


def test_the_log_says_what_each_spool_runs_of_a_device_that_never_went_over(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        fresh, former = TestDevice(epoch=b"epoch--2"), TestDevice(epoch=b"former--")
        world.net.deliver(device.topic, device.hello(1, "quotes", revision=1), device.schemas())
        await world.net.acked(device)
        world.net.deliver(fresh.topic, fresh.hello(2, "quotes", revision=1), fresh.schemas())
        await world.net.acked(fresh)
        assert {w.crossing for w in world.net.welcomes(fresh) if w.epoch == fresh.epoch} == {1}
        world.net.deliver(former.topic, former.hello(3))  # of the first spool, which was found again
        await world.net.until(lambda: bool(world.net.nacks(former)))
        assert world.net.nacks(former)[-1].reason is NackReason.SET_BACK

    reader = play(tmp_path, scenario)
    (joined,) = [
        entry_sentence(e.reason) for e in reader.entries(FLOW, "0", 0, 99) if e.kind is EntryKind.JOINED
    ]
    assert joined == "the first epoch of the device: cut quotes, revision 1, not said"
    assert crossings(reader) == [(1, "a fresh spool: cut quotes, revision 1, not said")]


def test_a_spool_from_before_its_first_welcome_is_not_taken_for_one_that_has_gone_over(
    tmp_path: Path,
) -> None:
    device = TestDevice()

    async def story() -> None:
        async with running(make_config(tmp_path)) as world, asyncio.timeout(PATIENCE_S):
            hello = device.hello(1, "quotes")
            world.net.deliver(device.topic, hello, device.schemas(), hello)
            await world.net.acked(device)
            assert not world.net.nacks(device)
            world.net.deliver(device.topic, device.cross("quotes", "high"))
            await world.net.acked(device)
        async with running(make_config(tmp_path)) as world, asyncio.timeout(PATIENCE_S):
            world.net.deliver(device.topic, hello)
            said = (NackReason.SET_BACK, device.epoch, 1)
            nacks = world.net.nacks
            await world.net.until(lambda: said in [(n.reason, n.epoch, n.seq) for n in nacks(device)])
            assert not world.net.welcomes(device)

    asyncio.run(story())


def test_a_fresh_spool_that_has_not_gone_over_is_welcomed_again_after_a_restart(tmp_path: Path) -> None:
    device, fresh = TestDevice(), TestDevice(epoch=b"epoch--2")

    async def story() -> None:
        async with running(make_config(tmp_path)) as world, asyncio.timeout(PATIENCE_S):
            await begin(world, device)
            world.net.deliver(fresh.topic, fresh.hello(2, "quotes"))
            await world.net.until(lambda: fresh.epoch in (w.epoch for w in world.net.welcomes(fresh)))
        async with running(make_config(tmp_path)) as world, asyncio.timeout(PATIENCE_S):
            world.net.deliver(fresh.topic, fresh.hello(2, "quotes"), fresh.schemas())
            await world.net.acked(fresh)
            assert {w.crossing for w in world.net.welcomes(fresh)} == {2}
            assert NackReason.SET_BACK not in {nack.reason for nack in world.net.nacks(fresh)}

    asyncio.run(story())


def test_a_batch_from_before_a_crossing_closes_its_epoch_and_a_lost_crossing_is_said(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        await begin(world, device)
        device.cross("quotes")
        world.net.deliver(device.topic, device.drop(device.seq, device.seq, []), device.quotes(3.0))
        await world.net.acked(device)
        device.crossing = 1
        world.net.deliver(device.topic, device.quotes(4.0))
        await world.net.until(lambda: bool(world.net.nacks(device)))
        assert world.net.nacks(device)[-1].reason is NackReason.CLOSED

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0, 2.0, 3.0]
    assert crossings(reader)[1:] == [(2, "crossings 2 to 2 never came: what the device kept may be lost")]
    counters = reader.counters()
    assert (counters["crossings_lost"], counters["set_back_batches"]) == (1, 1)


def test_a_gap_hides_no_crossing_of_a_spool_that_was_set_back(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        await begin(world, device)
        seq, digest = device.seq, device.digest
        world.net.deliver(device.topic, device.quotes(3.0), device.quotes(4.0))
        await world.net.acked(device)
        device.seq, device.digest = seq, digest
        device.cross("quotes")
        device.quotes(5.0)
        device.quotes(6.0)
        counts = [(seq + 2, "quotes", 1), (seq + 3, "quotes", 1)]
        world.net.deliver(device.topic, device.drop(seq + 2, seq + 3, counts), device.quotes(7.0))
        await world.net.until(lambda: NackReason.CLOSED in [n.reason for n in world.net.nacks(device)])
        later = TestDevice(epoch=b"epoch--2")
        later.number, later.time, later.crossing = device.number, device.time, 1
        world.net.deliver(later.topic, later.hello(2), later.schemas(), later.cross("quotes"))
        later.quotes(5.0)
        later.quotes(6.0)
        gap = later.drop(3, 4, [(3, "quotes", 1), (4, "quotes", 1)])
        world.net.deliver(later.topic, gap, later.quotes(7.0))
        await world.net.acked(later)

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0, 2.0, 3.0, 4.0, 7.0]
    assert crossings(reader)[1:] == [(2, "cut quotes of base cut quotes, revision not said")]
    assert dropped(reader) == [{"count": 2, "first": 3, "last": 4}]
    counters = reader.counters()
    assert (counters.get("crossings_lost", 0), counters["set_back_batches"]) == (0, 1)


def test_a_gap_in_which_a_damaged_crossing_may_stand_is_taken(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        await begin(world, device)
        seq = device.seq
        world.net.deliver(device.topic, device.quotes(3.0))
        await world.net.acked(device)
        device.cross("quotes")
        device.quotes(4.0)
        gap = device.drop(seq + 1, seq + 3, [(seq + 1, "quotes", 1), (seq + 3, "quotes", 1)])
        world.net.deliver(device.topic, gap, device.quotes(5.0))
        await world.net.acked(device)

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0, 2.0, 3.0, 5.0]
    assert crossings(reader)[1:] == [(2, "crossings 2 to 2 never came: what the device kept may be lost")]
    assert dropped(reader) == [{"count": 1, "first": 6, "last": 7}]


def test_a_gap_lets_no_batch_from_before_the_first_crossing_in(tmp_path: Path) -> None:
    async def scenario(world: Running, device: TestDevice) -> None:
        await begin(world, device)
        device.crossing = 0  # a copy of its spool from before, which has dropped what it held since
        lost = device.header().seq
        for price in (7.0, 8.0):
            device.quotes(price)
        world.net.deliver(device.topic, device.drop(lost, lost + 1, []), device.quotes(9.0))
        await world.net.until(lambda: bool(world.net.nacks(device)))
        assert world.net.nacks(device)[-1].reason is NackReason.CLOSED

    reader = play(tmp_path, scenario)
    assert prices(reader) == [1.0, 2.0]
    assert reader.counters()["set_back_batches"] == 1


def claiming(folder: Path) -> IngestConfig:
    """A flow whose devices claim state."""
    config, devices = make_config(folder), ("device-1",)
    channels = dict.fromkeys(("quotes", CLAIMS), ("quotes",))
    put_flow(folder, FLOW, document({"quotes": devices}, channels))
    return config


@pytest.mark.parametrize("claimed", [False, True])
def test_a_new_epoch_of_a_spool_that_has_never_claimed_says_so_where_devices_claim(
    tmp_path: Path, *, claimed: bool
) -> None:
    known = {CLAIMS: RowCodec(Claim).schema} if claimed else {}
    config = claiming(tmp_path)

    async def story() -> LogReader:
        async with running(config) as world, asyncio.timeout(PATIENCE_S):
            first, later = TestDevice(), TestDevice(epoch=b"epoch--2")
            world.net.deliver(first.topic, first.hello(1, "quotes"), first.schemas(), first.quotes(1.0))
            await world.net.acked(first)
            later.number, later.time = 1, 10
            schemas = later.schemas({"quotes": QUOTE.schema, **known})
            world.net.deliver(later.topic, later.hello(2), schemas, later.quotes(2.0), later.schemas())
            await world.net.acked(later)
        return world.reader

    reader = asyncio.run(story())
    found = [e for e in reader.entries(FLOW, "0", 0, 99) if e.kind in (EntryKind.LOSS, EntryKind.ROWS)]
    assert prices(reader) == [1.0, 2.0]
    rows, unsaid = (EntryKind.ROWS, "quotes"), (EntryKind.LOSS, CLAIMS)
    assert [(e.kind, e.channel) for e in found] == [rows, *([] if claimed else [unsaid]), rows]
    assert (claims_lost(found) is None) == claimed
    assert reader.counters().get("losses", 0) == 0


def test_it_says_so_after_a_restart_behind_a_fresh_spool_as_well(tmp_path: Path) -> None:
    config = claiming(tmp_path)
    first, fresh, later = (TestDevice(epoch=f"epoch--{number}".encode()) for number in (1, 2, 3))
    later.crossing = 1

    async def story() -> LogReader:
        async with running(config) as world, asyncio.timeout(PATIENCE_S):
            world.net.deliver(first.topic, first.hello(1, "quotes"), first.schemas())
            await world.net.acked(first)
            world.net.deliver(fresh.topic, fresh.hello(2, "quotes"), fresh.schemas())
            await world.net.acked(fresh)
            world.net.deliver(later.topic, later.hello(3))
            await world.net.until(lambda: later.epoch in (w.epoch for w in world.net.welcomes(later)))
        async with running(config) as world, asyncio.timeout(PATIENCE_S):
            world.net.deliver(later.topic, later.schemas())
            await world.net.acked(later)
        return world.reader

    found = asyncio.run(story()).entries(FLOW, "0", 0, 99)
    assert [e.epoch for e in found if e.kind is EntryKind.LOSS][-1:] == [later.epoch]
