"""Ingest with a living roster: devices and flows come and go while it runs, and the log says from where."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from geartrain.errors import LedgerError
from geartrain.errors.reason import make_reason
from geartrain.graph.graph import CLAIMS
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.records.record import Record
from geartrain.schema import RowCodec
from geartrain.wire.envelope import BatchKind, Header, NackReason
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.ingest.counters import Counter
from geartrain_cloud.ingest.flow import SYSTEM_CHANNELS
from geartrain_cloud.ingest.roster import Followed
from geartrain_cloud.inspecting.devices import describe_devices
from geartrain_cloud.log.entry_reasons import EntryCode
from geartrain_cloud.log.queries import commit
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.log.roster import RosterChannel, RosterDocument, RosterReader, RosterWriter
from geartrain_cloud.ports import NO_SOURCE, Entry, EntryKind, LedgerChange
from tests.cloud.fleet import QUOTE, LoopNet, Running, TestDevice, running
from tests.waiting import WAIT_S

FLOW = "stocks.1"
MOVES = (EntryKind.ASSIGNED, EntryKind.RETIRED, EntryKind.ENDED)


def config_of(folder: Path, **changes: Any) -> IngestConfig:
    settings: dict[str, Any] = {
        "group_commit_ms": 5,
        "nack_interval_ms": 50,
        **changes,
    }
    return IngestConfig(log=folder, **settings)


def document(*devices: str, **changes: Any) -> RosterDocument:
    """A flow of one source, whose stream is its channel."""
    channels = {"quotes": RosterChannel(("quotes",), QUOTE.schema.schema_id)}
    return RosterDocument(channels, ("quotes",), dict.fromkeys(devices, ("quotes",)), **changes)


def device_of(name: str, epoch: bytes = b"epoch--1", flow: str = FLOW) -> TestDevice:
    return TestDevice(name, epoch, flow)


def entries(folder: Path, flow: str = FLOW) -> list[Entry]:
    reader = LogReader(folder)
    upto = reader.positions(flow)
    return [entry for key in sorted(upto) for entry in reader.entries(flow, key, 0, upto[key])]


def moves_of(folder: Path, flow: str = FLOW) -> list[tuple[EntryKind, str]]:
    return [(entry.kind, entry.device) for entry in entries(folder, flow) if entry.kind in MOVES]


def prices(folder: Path, flow: str = FLOW) -> list[float | None]:
    reader = LogReader(folder)
    rows = [entry for entry in entries(folder, flow) if entry.channel == "quotes" and entry.segment]
    return [price for entry in rows for price in reader.table(entry).column("price").to_pylist()]


async def logged(folder: Path, kind: EntryKind, count: int = 1, flow: str = FLOW) -> None:
    """Wait for so many entries of a kind."""
    async with asyncio.timeout(WAIT_S):
        while sum(entry.kind is kind for entry in entries(folder, flow)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@asynccontextmanager
async def following(folder: Path, **changes: Any) -> AsyncIterator[tuple[Running, RosterWriter]]:
    async with running(config_of(folder, **changes), LoopNet()) as found:
        yield found, RosterWriter(folder)


def test_a_device_is_assigned_while_ingest_runs(tmp_path: Path) -> None:
    device = device_of("device-1")

    async def story() -> None:
        async with following(tmp_path) as (found, roster):
            assert found.net.filters == ["geartrain/v1/+/+/+/up"]
            found.net.deliver(device.topic, device.schemas(), device.quotes(1.0))
            await found.counted(Counter.UNASSIGNED_BATCHES, 2)
            roster.put(FLOW, document("device-1"))
            await logged(tmp_path, EntryKind.ASSIGNED)
            assert found.ingest.counter(Counter.QUARANTINED_BATCHES) == 0
            found.net.deliver(device.topic, device.payload(1), device.payload(2))
            await found.net.acked(device)
            roster.put_device(FLOW, "device-2")
            await logged(tmp_path, EntryKind.ASSIGNED, 2)
            other = device_of("device-2")
            found.net.deliver(other.topic, other.schemas(), other.quotes(2.0))
            await found.net.acked(other)

    asyncio.run(story())
    assert prices(tmp_path) == [1.0, 2.0]
    assert moves_of(tmp_path) == [(EntryKind.ASSIGNED, "device-1"), (EntryKind.ASSIGNED, "device-2")]
    status = json.loads((tmp_path / "status.json").read_text())
    assert set(status["flows"][FLOW]["devices"]) == {"device-1", "device-2"}
    assert status["flows"][FLOW]["channels"]["quotes"]["rows"] == 2


def test_a_retired_device_holds_no_clock_and_is_acked_by_declaration(tmp_path: Path) -> None:
    first, second = device_of("device-1"), device_of("device-2")

    async def story() -> None:
        async with following(tmp_path) as (found, roster):
            roster.put(FLOW, document("device-1", "device-2"))
            await logged(tmp_path, EntryKind.ASSIGNED, 2)
            for one in (first, second):
                found.net.deliver(one.topic, one.schemas(), one.quotes(1.0))
                await found.net.acked(one)
            found.net.deliver(first.topic, first.quotes(2.0, 3.0))
            await found.net.acked(first)
            assert entries(tmp_path)[-1].clocks["quotes"] == 10  # the second holds it
            roster.remove_device(FLOW, "device-2")
            await logged(tmp_path, EntryKind.RETIRED)
            (retired,) = [entry for entry in entries(tmp_path) if entry.kind is EntryKind.RETIRED]
            assert (retired.device, retired.source, retired.clocks) == ("device-2", "quotes", {"quotes": 30})
            found.net.deliver(second.topic, second.quotes(7.0, 8.0), second.quotes(9.0))
            await found.net.acked(second)
            assert found.ingest.counter(Counter.RECORDS_DISOWNED) == 3
            assert found.ingest.counter(Counter.RECORDS_DROPPED) == 3
            assert found.ingest.counter(Counter.QUARANTINED_BATCHES) == 0
            roster.put_device(FLOW, "device-2")
            await logged(tmp_path, EntryKind.ASSIGNED, 3)
            found.net.deliver(second.topic, second.quotes(4.0, watermark=50))
            found.net.deliver(first.topic, first.quotes(5.0, watermark=100))
            await found.net.acked(first)
            await found.net.acked(second)

    asyncio.run(story())
    assert sorted(map(float, map(str, prices(tmp_path)))) == [1.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    dropped = [entry.reason for entry in entries(tmp_path) if entry.kind is EntryKind.DROPPED]
    assert dropped == [make_reason(EntryCode.RETIRED_DEVICE, count=count) for count in (2, 1)]
    assert entries(tmp_path)[-1].clocks["quotes"] == 50  # it holds the clock again


def test_replaced_hardware_goes_on_under_the_same_name(tmp_path: Path) -> None:
    old, new = device_of("device-1"), device_of("device-1", b"epoch--2")

    async def story() -> None:
        async with following(tmp_path) as (found, roster):
            roster.put(FLOW, document("device-1"))
            await logged(tmp_path, EntryKind.ASSIGNED)
            found.net.deliver(old.topic, old.schemas(), old.quotes(1.0))
            await found.net.acked(old)
            found.net.deliver(new.topic, new.hello(2))
            await found.net.until(lambda: bool(found.net.welcomes(new)))
            (welcome,) = found.net.welcomes(new)
            assert welcome.positions[("quotes", "device-1")].position == 1
            found.net.deliver(new.topic, new.schemas(), new.quotes(2.0))
            await found.net.acked(new)

    asyncio.run(story())
    assert prices(tmp_path) == [1.0, 2.0]
    kinds = [entry.kind for entry in entries(tmp_path) if not entry.count]
    assert kinds.count(EntryKind.ASSIGNED) == kinds.count(EntryKind.EPOCH) == 1


def test_a_retired_device_with_other_hardware_is_welcomed_again_after_a_restart(tmp_path: Path) -> None:
    """It was taken for one whose spool had been copied, and stopped for good."""
    old, new = device_of("device-1"), device_of("device-1", b"epoch--2")

    async def story() -> None:
        async with following(tmp_path) as (found, roster):
            roster.put(FLOW, document("device-1"))
            await logged(tmp_path, EntryKind.ASSIGNED)
            found.net.deliver(old.topic, old.schemas(), old.quotes(1.0))
            await found.net.acked(old)
            roster.remove_device(FLOW, "device-1")
            await logged(tmp_path, EntryKind.RETIRED)
            found.net.deliver(new.topic, new.hello(2, "quotes"))
            await found.net.until(lambda: bool(found.net.welcomes(new)))
        async with following(tmp_path) as (found, roster):
            found.net.deliver(new.topic, new.hello(2, "quotes"), new.schemas(), new.quotes(2.0))
            await found.net.acked(new)
            assert {welcome.crossing for welcome in found.net.welcomes(new)} == {1}
            assert NackReason.SET_BACK not in {nack.reason for nack in found.net.nacks(new)}
            assert found.ingest.counter(Counter.RECORDS_DISOWNED) == 1

    asyncio.run(story())
    assert prices(tmp_path) == [1.0]


def test_the_spools_of_an_ended_flow_are_acked_and_counted(tmp_path: Path) -> None:
    first, late = device_of("device-1"), device_of("device-9")

    async def story() -> None:
        async with following(tmp_path) as (found, roster):
            roster.put(FLOW, document("device-1"))
            roster.put("other.1", document("device-1"))
            await logged(tmp_path, EntryKind.ASSIGNED)
            found.net.deliver(first.topic, first.schemas(), first.quotes(1.0))
            await found.net.acked(first)
            roster.end(FLOW)
            await logged(tmp_path, EntryKind.ENDED)
            found.net.deliver(first.topic, first.quotes(2.0, 3.0))
            await found.net.acked(first)
            assert found.ingest.counter(Counter.RECORDS_DISOWNED) == 2
            other = device_of("device-1", flow="other.1")
            found.net.deliver(other.topic, other.schemas(), other.quotes(4.0))
            await found.net.until(
                lambda: any(ack.flow == "other.1" and ack.seq == 2 for ack in found.net.acks(other))
            )
        async with following(tmp_path) as (found, roster):  # as after a restart
            found.net.deliver(first.topic, first.quotes(5.0))
            await found.net.acked(first)
            found.net.deliver(late.topic, late.hello(), late.schemas(), late.quotes(6.0))
            await found.net.acked(late)
            assert found.ingest.counter(Counter.RECORDS_DISOWNED) == 4

    asyncio.run(story())
    assert entries(tmp_path)[-1].kind is EntryKind.ENDED
    assert [e.kind for e in entries(tmp_path)].count(EntryKind.ENDED) == 1
    assert prices(tmp_path) == [1.0]
    assert prices(tmp_path, "other.1") == [4.0]
    assert set(json.loads((tmp_path / "status.json").read_text())["flows"]) == {"other.1"}


@pytest.mark.parametrize("kind", MOVES)
def test_a_crash_between_the_roster_and_the_entry_costs_nothing(kind: EntryKind, tmp_path: Path) -> None:
    def refuse(change: LedgerChange) -> None:
        if any(entry.kind is kind for entry in change.entries):
            raise LedgerError("the process is killed")

    async def change(roster: RosterWriter) -> None:
        if kind is EntryKind.ASSIGNED:
            roster.put_device(FLOW, "device-2")
        elif kind is EntryKind.RETIRED:
            roster.remove_device(FLOW, "device-1")
        else:
            roster.end(FLOW)

    async def dies() -> None:
        async with following(tmp_path) as (found, roster):
            found.ledger.refuse = refuse
            await change(roster)
            await asyncio.sleep(30)  # cut short by the error

    async def story() -> None:
        async with following(tmp_path) as (_, roster):
            roster.put(FLOW, document("device-1"))
            await logged(tmp_path, EntryKind.ASSIGNED)
        before = moves_of(tmp_path)
        with pytest.raises((LedgerError, ExceptionGroup)):
            await dies()
        assert moves_of(tmp_path) == before
        for _ in range(2):
            async with following(tmp_path):
                await logged(tmp_path, kind, 1 + (kind is EntryKind.ASSIGNED))

    asyncio.run(story())
    after = {
        EntryKind.ASSIGNED: (EntryKind.ASSIGNED, "device-2"),
        EntryKind.RETIRED: (EntryKind.RETIRED, "device-1"),
        EntryKind.ENDED: (EntryKind.ENDED, ""),
    }
    assert moves_of(tmp_path) == [(EntryKind.ASSIGNED, "device-1"), after[kind]]


def damage(folder: Path) -> None:
    (folder / "roster.sqlite").write_bytes(b"no roster" * 100)
    for path in folder.glob("roster.sqlite-*"):
        path.unlink()


def test_a_roster_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    device = device_of("device-1")

    async def story() -> None:
        async with following(tmp_path) as (found, roster):
            roster.put(FLOW, document("device-1"))
            await logged(tmp_path, EntryKind.ASSIGNED)
            roster.put(FLOW, RosterDocument({}, ("other",), {"device-1": ("other",), "device-2": ("other",)}))
            await found.counted(Counter.ROSTER_REFUSED, 1)
            damage(tmp_path)
            await found.counted(Counter.ROSTER_REFUSED, 2)

        async with following(tmp_path) as (found, _):
            found.net.deliver(device.topic, device.schemas())
            await found.counted(Counter.UNASSIGNED_BATCHES, 1)

    asyncio.run(story())
    kinds = [kind for kind, _ in moves_of(tmp_path)]
    assert EntryKind.ENDED not in kinds


@pytest.mark.parametrize("seed", range(4))
def test_the_log_waits_for_just_those_of_the_roster_whatever_happens(seed: int, tmp_path: Path) -> None:
    chance, names = random.Random(seed), [f"device-{n}" for n in range(4)]
    devices = {name: device_of(name) for name in names}
    wanted: dict[str, set[str]] = {}
    sent = 0

    async def sends(found: Running, device: TestDevice) -> None:
        nonlocal sent
        fresh = [] if device.seq else [device.schemas()]
        found.net.deliver(device.topic, *fresh, device.quotes(float(device.seq)))
        sent += 1
        await found.net.acked(device)

    async def story() -> None:
        for life in range(3):
            async with following(tmp_path, partitions=2) as (found, roster):
                if not life:
                    roster.put(FLOW, document())
                    wanted[FLOW] = set()
                for _ in range(6):
                    name = chance.choice(names)
                    if name in wanted[FLOW]:
                        wanted[FLOW].discard(name)
                        roster.remove_device(FLOW, name)
                    else:
                        wanted[FLOW].add(name)
                        roster.put_device(FLOW, name)
                    await until_members(tmp_path, wanted[FLOW])
                    if devices[name].seq or name in wanted[FLOW]:
                        await sends(found, devices[name])
            name = chance.choice(names)  # while ingest is down
            wanted[FLOW] ^= {name}
            (roster.put_device if name in wanted[FLOW] else roster.remove_device)(FLOW, name)
        async with following(tmp_path, partitions=2) as (found, roster):
            await until_members(tmp_path, wanted[FLOW])
            disowned = found.ingest.counter(Counter.RECORDS_DISOWNED)
            assert len(prices(tmp_path)) + disowned == sent
            roster.end(FLOW)
            await logged(tmp_path, EntryKind.ENDED)

    asyncio.run(story())
    before: dict[int, dict[str, int]] = {}
    for entry in entries(tmp_path):
        clocks = before.setdefault(entry.partition, {})
        assert entry.clocks.get("quotes", START_OF_TIME) >= clocks.get("quotes", START_OF_TIME)
        before[entry.partition] = dict(entry.clocks)


def members(folder: Path) -> set[str]:
    """Whom the log waits for, by its entries alone."""
    found: set[str] = set()
    for kind, device in moves_of(folder):
        assert (device in found) is (kind is EntryKind.RETIRED)  # nobody comes or goes twice
        found ^= {device}
    return found


async def until_members(folder: Path, wanted: set[str]) -> None:
    async with asyncio.timeout(WAIT_S):
        while members(folder) != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def test_a_device_with_another_schema_than_was_submitted_is_held_until_it_sends_the_right_one(
    tmp_path: Path,
) -> None:
    other = RowCodec(Priced)
    wrong, right = device_of("device-1"), device_of("device-1", b"epoch--2")

    async def story() -> None:
        async with following(tmp_path, nack_interval_ms=1) as (found, roster):
            roster.put(FLOW, document("device-1"))
            await logged(tmp_path, EntryKind.ASSIGNED)
            found.net.deliver(wrong.topic, wrong.schemas({"quotes": other.schema}))
            await found.counted(Counter.HELD_BATCHES, 1)
            await found.net.until(lambda: bool(found.net.nacks(wrong)))
            assert found.net.nacks(wrong)[0].reason is NackReason.HOLD
            found.net.deliver(right.topic, right.hello(ordinal=2), right.schemas(), right.quotes(1.0))
            await found.net.acked(right)

    asyncio.run(story())
    assert prices(tmp_path) == [1.0]
    assert LogReader(tmp_path).schema(FLOW, "quotes") == QUOTE.schema
    assert LogReader(tmp_path).counters().get("quarantined_batches", 0) == 0


def test_a_retired_device_gives_back_what_it_has_claimed_before_clocks_go_on(tmp_path: Path) -> None:
    first, second = device_of("device-1"), device_of("device-2")
    claiming = document("device-1", "device-2")
    claiming.channels[CLAIMS] = RosterChannel(("quotes",))

    async def story() -> None:
        async with following(tmp_path) as (found, roster):
            roster.put(FLOW, claiming)
            await logged(tmp_path, EntryKind.ASSIGNED, 2)
            for one, prices in ((first, (1.0, 2.0, 3.0)), (second, (1.0,))):
                found.net.deliver(one.topic, one.schemas(), one.quotes(*prices))
                await found.net.acked(one)
            roster.remove_device(FLOW, "device-2")
            await logged(tmp_path, EntryKind.RETIRED)
        async with following(tmp_path) as (found, roster):
            roster.put_device(FLOW, "device-2")
            await logged(tmp_path, EntryKind.ASSIGNED, 3)
            found.net.deliver(second.topic, second.quotes(4.0, watermark=50))
            await found.net.acked(second)

    asyncio.run(story())
    kinds = [entry.kind for entry in entries(tmp_path)]
    at = kinds.index(EntryKind.CROSSING)
    assert kinds.count(EntryKind.CROSSING) == 1
    back, retired = entries(tmp_path)[at : at + 2]
    assert (back.channel, back.device, back.seq, back.clocks) == (CLAIMS, "device-2", 0, {"quotes": 10})
    assert (retired.kind, retired.device, retired.clocks) == (EntryKind.RETIRED, "device-2", {"quotes": 30})
    assert sorted(prices(tmp_path), key=str) == [1.0, 1.0, 2.0, 3.0, 4.0]


def test_what_a_device_has_read_of_a_source_that_is_taken_from_it_is_logged(tmp_path: Path) -> None:
    device, other = device_of("device-1"), device_of("device-2")
    two = RosterDocument(
        {name: RosterChannel((name,), QUOTE.schema.schema_id) for name in ("quotes", "more")},
        ("quotes", "more"),
        {"device-1": ("quotes", "more"), "device-2": ("quotes", "more")},
    )
    two.channels[CLAIMS] = RosterChannel(("quotes", "more"))

    async def story() -> None:
        async with following(tmp_path) as (found, roster):
            roster.put(FLOW, two)
            await logged(tmp_path, EntryKind.ASSIGNED, 4)
            schemas = {"quotes": QUOTE.schema, "more": QUOTE.schema}
            for one in (device, other):
                found.net.deliver(one.topic, one.schemas(schemas), one.quotes(1.0))
                await found.net.acked(one)
            spooled = device.quotes(2.0)
            roster.put_device(FLOW, "device-1", ("more",))
            await logged(tmp_path, EntryKind.RETIRED)
            found.net.deliver(device.topic, spooled)
            await found.net.acked(device)

    asyncio.run(story())
    assert sorted(prices(tmp_path), key=str) == [1.0, 1.0, 2.0]
    assert LogReader(tmp_path).counters().get("held_batches", 0) == 0
    assert EntryKind.CROSSING not in [entry.kind for entry in entries(tmp_path)]  # it goes on


class Priced(Record):
    """As a quote, without its symbol."""

    price: float


def test_a_later_revision_brings_channels_and_takes_none_away(tmp_path: Path) -> None:
    followed, roster = Followed(), RosterWriter(tmp_path)

    def told(**changes: Any) -> tuple[set[str], int, list[str]]:
        roster.put(FLOW, structs.replace(document("device-1"), **changes))
        followed.take(RosterReader(tmp_path).after(followed.serial))
        flow = followed.flows[FLOW]
        return set(flow.channels) - set(SYSTEM_CHANNELS), flow.revision, followed.take_unusable()

    two = {
        "quotes": RosterChannel(("quotes",), QUOTE.schema.schema_id),
        "quotes-high": RosterChannel(("quotes",)),
    }
    assert told() == ({"quotes"}, 1, [])
    (named, number, (why,)) = told(channels=two)
    assert (named, number) == ({"quotes"}, 1)
    assert "which only a new instance may" in why
    assert told(channels=two, revision=2) == ({"quotes", "quotes-high"}, 2, [])
    (named, number, (why,)) = told(revision=3)
    assert (named, number) == ({"quotes", "quotes-high"}, 2)
    assert "which only a new instance may" in why


def test_a_fresh_spool_waits_until_the_log_has_brought_its_revision(tmp_path: Path) -> None:
    device = device_of("device-1")

    async def story() -> None:
        async with following(tmp_path) as (found, roster):
            roster.put(FLOW, document("device-1"))
            await logged(tmp_path, EntryKind.ASSIGNED)
            hello = device.hello(1, "quotes", revision=2)
            found.net.deliver(device.topic, hello)
            await found.counted(Counter.HELD_HELLOS, 1)
            (nack,) = found.net.nacks(device)
            assert (nack.reason, nack.seq) == (NackReason.HOLD, 1)
            assert not found.net.welcomes(device)
            roster.put(FLOW, document("device-1", revision=2))
            await logged(tmp_path, EntryKind.REVISION)
            found.net.deliver(device.topic, hello, device.schemas(), device.quotes(1.0))
            await found.net.acked(device)

    asyncio.run(story())
    ways = (EntryKind.REVISION, EntryKind.JOINED, EntryKind.ROWS)
    assert [entry.kind for entry in entries(tmp_path) if entry.kind in ways] == list(ways)


def test_a_device_keeps_what_it_sends_by_a_revision_that_the_log_has_not_brought(tmp_path: Path) -> None:
    device = device_of("device-1")

    async def story() -> None:
        async with following(tmp_path) as (found, roster):
            roster.put(FLOW, document("device-1"))
            await logged(tmp_path, EntryKind.ASSIGNED)
            found.net.deliver(device.topic, device.schemas(), device.quotes(1.0))
            await found.net.acked(device)
            early = (device.cross("quotes", revision=2), device.quotes(2.0))
            found.net.deliver(device.topic, *early)
            await found.counted(Counter.HELD_BATCHES, 1)
            (nack, *_) = found.net.nacks(device)
            assert (nack.reason, nack.seq) == (NackReason.HOLD, 3)
            roster.put(FLOW, document("device-1", revision=2))
            await logged(tmp_path, EntryKind.REVISION)
            found.net.deliver(device.topic, *early)
            await found.net.acked(device)
            assert found.ingest.counter(Counter.QUARANTINED_BATCHES) == 0

    asyncio.run(story())
    assert prices(tmp_path) == [1.0, 2.0]
    ways = (EntryKind.ROWS, EntryKind.REVISION, EntryKind.CROSSING)
    kinds = [entry.kind for entry in entries(tmp_path) if entry.kind in ways]
    assert kinds == [EntryKind.ROWS, EntryKind.REVISION, EntryKind.CROSSING, EntryKind.ROWS]


def test_limits_of_one_flow_let_go_of_its_rows_while_ingest_runs(tmp_path: Path) -> None:
    device, other = device_of("device-1"), device_of("device-1", flow="others.1")

    async def story() -> None:
        async with following(tmp_path) as (found, roster):
            for flow, one in ((FLOW, device), ("others.1", other)):
                roster.put(flow, document("device-1"))
                await logged(tmp_path, EntryKind.ASSIGNED, flow=flow)
                found.net.deliver(one.topic, one.schemas(), one.quotes(1.0))
                await found.net.acked(one)
                commit(tmp_path, "tables", flow, {"0": 99})
            roster.put(FLOW, document("device-1", retain_bytes=1))
            await logged(tmp_path, EntryKind.REMOVED)
            found.net.deliver(device.topic, device.quotes(2.0))
            await found.net.acked(device)

    asyncio.run(story())
    assert entries(tmp_path)[-1].clocks["quotes"] > entries(tmp_path)[0].clocks.get("quotes", START_OF_TIME)
    assert prices(tmp_path, "others.1") == [1.0]


class Saying(TestDevice):
    """A device that says how far its sources are; those of `stands` stand where that is."""

    stands: dict[str, int] = {}  # noqa: RUF012

    def header(self, kind: BatchKind = BatchKind.DATA, watermark: int | None = None) -> Header:
        """The header of the next batch."""
        said = super().header(kind, watermark)
        marks = {"quotes": said.watermarks.get("quotes", START_OF_TIME), **self.stands}
        return structs.replace(said, source_watermarks=marks)


@pytest.mark.parametrize("has", [True, False])
def test_the_clock_of_a_source_that_comes_waits_until_a_device_has_gone_over(
    tmp_path: Path, has: bool
) -> None:
    one = Saying("device-1", b"epoch--1", FLOW)
    channels = {name: RosterChannel((name,), QUOTE.schema.schema_id) for name in ("quotes", "trades")}
    names = ("quotes", "trades")
    later = RosterDocument(channels, names, {"device-1": names}, revision=2, since={"trades": 2})

    async def story() -> None:
        async with following(tmp_path) as (found, roster):
            roster.put(FLOW, document("device-1"))
            await logged(tmp_path, EntryKind.ASSIGNED)
            found.net.deliver(one.topic, one.schemas(), one.quotes(1.0))
            await found.net.acked(one)
            roster.put(FLOW, structs.replace(later, revision=1))
            await found.counted(Counter.ROSTER_REFUSED, 1)
            roster.put(FLOW, later)
            await logged(tmp_path, EntryKind.REVISION)
            found.net.deliver(one.topic, one.quotes(2.0))
            await found.net.acked(one)
        told = json.loads((tmp_path / "status.json").read_text())["flows"][FLOW]["channels"]
        assert {channel: told[channel]["rows"] for channel in names} == {"quotes": 2, "trades": 0}
        async with following(tmp_path) as (found, _):  # as after a restart
            found.net.deliver(one.topic, one.quotes(3.0))
            await found.net.acked(one)
            await asyncio.sleep(0.5)  # time for a clock to move that nobody is waited for
            one.stands = {"trades": 3} if has else {}
            found.net.deliver(one.topic, one.cross("quotes", "trades", revision=2), one.quotes(4.0))
            await found.net.acked(one)
        async with following(tmp_path) as (found, _):
            one.stands = {"trades": 5} if has else {}
            found.net.deliver(one.topic, one.quotes(5.0))
            await found.net.acked(one)
            await logged(tmp_path, EntryKind.ROWS if has else EntryKind.ADVANCE)

    asyncio.run(story())
    said = [(entry.kind, entry.source) for entry in entries(tmp_path) if entry.source]
    begins = [(EntryKind.ASSIGNED, "quotes"), (EntryKind.ASSIGNED, "trades")]
    assert said == begins + ([] if has else [(EntryKind.LACKS, "trades")])
    assert prices(tmp_path) == [1.0, 2.0, 3.0, 4.0, 5.0]
    kinds, clocks = ([getattr(e, name) for e in entries(tmp_path)] for name in ("kind", "clocks"))
    assert kinds.index(EntryKind.REVISION) < (crossed := kinds.index(EntryKind.CROSSING))
    assert not any("trades" in one for one in clocks[:crossed])
    assert not has or [one.get("trades") for one in clocks[-2:]] == [3, 5]


def test_the_clock_of_a_source_that_comes_waits_for_no_device_that_is_to_lack_it(tmp_path: Path) -> None:
    one, behind = Saying("device-1", b"epoch--1", FLOW), Saying("device-2", b"epoch--2", FLOW)
    channels = {name: RosterChannel((name,), QUOTE.schema.schema_id) for name in ("quotes", "trades")}
    devices = {"device-1": ("quotes", "trades"), "device-2": ("quotes",)}
    later = RosterDocument(channels, ("quotes", "trades"), devices, revision=2, since={"trades": 2})

    async def story() -> None:
        async with following(tmp_path) as (found, roster):
            roster.put(FLOW, document("device-1", "device-2"))
            await logged(tmp_path, EntryKind.ASSIGNED, 2)
            for device in (one, behind):
                found.net.deliver(device.topic, device.schemas(), device.quotes(1.0))
                await found.net.acked(device)
            roster.put(FLOW, later)
            await logged(tmp_path, EntryKind.REVISION)
            one.stands = {"trades": 3}
            found.net.deliver(one.topic, one.cross("quotes", "trades", revision=2), one.quotes(2.0))
            await found.net.acked(one)
            found.net.deliver(behind.topic, behind.quotes(2.0))  # it has not gone over yet
            await found.net.acked(behind)

    asyncio.run(story())
    assert entries(tmp_path)[-1].clocks == {"quotes": 20, "trades": 3}
    assert not any(entry.kind is EntryKind.EXCLUDED for entry in entries(tmp_path))


def test_the_clock_of_a_source_that_goes_waits_for_each_device_until_it_has_gone_over(tmp_path: Path) -> None:
    one, away = Saying("device-1", b"epoch--1", FLOW), Saying("device-2", b"epoch--2", FLOW)
    names = ("quotes", "trades")
    channels = {name: RosterChannel((name,), QUOTE.schema.schema_id) for name in names}
    devices: dict[str, tuple[str, ...]] = dict.fromkeys(("device-1", "device-2"), names)
    before = RosterDocument(channels, names, devices, bounded=False, join_timeout_s=600, idle_after_s=600)
    schemas = dict.fromkeys(names, QUOTE.schema)

    async def story() -> None:
        async with following(tmp_path) as (found, roster):
            roster.put(FLOW, before)
            await logged(tmp_path, EntryKind.ASSIGNED, 4)
            for device, mark in ((one, 40), (away, 3)):
                device.stands = {"trades": mark}
                found.net.deliver(device.topic, device.schemas(schemas), device.quotes(1.0))
                await found.net.acked(device)
            away.stands = {"trades": 5}
            spooled = away.quotes(2.0)  # read before it goes over, and sent long behind the revision
            roster.put(FLOW, structs.replace(before, revision=2))
            await logged(tmp_path, EntryKind.REVISION)
            one.stands = {}
            found.net.deliver(one.topic, one.cross("quotes", revision=2), one.quotes(2.0, watermark=90))
            await found.net.acked(one)
        async with following(tmp_path) as (found, roster):  # as after a restart
            found.net.deliver(away.topic, spooled)
            await found.net.acked(away)
            assert entries(tmp_path)[-1].clocks["trades"] == 5
            away.stands = {}
            found.net.deliver(away.topic, away.cross("quotes", revision=2), away.quotes(3.0, watermark=95))
            await found.net.acked(away)
            assert found.ingest.counter(Counter.QUARANTINED_BATCHES) == 0
            await logged(tmp_path, EntryKind.ADVANCE)
            roster.put_device(FLOW, "device-3", names)  # one that never had it holds up no other source
            await logged(tmp_path, EntryKind.ASSIGNED, 6)

    asyncio.run(story())
    assert prices(tmp_path) == [1.0, 1.0, 2.0, 2.0, 3.0]
    assert LogReader(tmp_path).counters().get("records_overtaken", 0) == 0
    kinds = (EntryKind.REVISION, EntryKind.CROSSING, EntryKind.LACKS)
    told = [(e.kind, e.device, e.source) for e in entries(tmp_path) if e.kind in kinds]
    assert told[0] == (EntryKind.REVISION, "", "")
    for name, two in (("device-1", told[1:3]), ("device-2", told[3:])):
        assert set(two) == {(EntryKind.CROSSING, name, ""), (EntryKind.LACKS, name, "trades")}
    clocks = [entry.clocks.get("trades", START_OF_TIME) for entry in entries(tmp_path)]
    assert clocks == sorted(clocks)
    assert clocks[-1] == 90, "it follows the others"


def test_a_device_without_a_source_is_a_member_for_which_no_clock_waits(tmp_path: Path) -> None:
    """Over two lives of ingest it is assigned once, it gets a source and loses it again, and leaves."""
    device = device_of("device-1")
    without = structs.replace(document("device-1"), devices={"device-1": ("quotes",), "device-2": ()})

    async def first_life() -> None:
        async with following(tmp_path) as (found, roster):
            roster.put(FLOW, without)
            await logged(tmp_path, EntryKind.ASSIGNED, 2)
            found.net.deliver(device.topic, device.schemas(), device.quotes(1.0))
            await found.net.acked(device)
            assert entries(tmp_path)[-1].clocks["quotes"] == 10  # the other one holds no clock
            assert found.ingest.missing(FLOW, "quotes") == []
            other = device_of("device-2")
            found.net.deliver(
                other.topic, other.schemas()
            )  # what it sends is taken: it may have dead letters
            await found.net.acked(other)

    async def second_life() -> None:
        async with following(tmp_path) as (found, roster):
            found.net.deliver(device.topic, device.quotes(2.0))
            await found.net.acked(device)
            roster.put_device(FLOW, "device-2", ("quotes",))
            await logged(tmp_path, EntryKind.RETIRED, 1)
            roster.put_device(FLOW, "device-2", ())
            await logged(tmp_path, EntryKind.RETIRED, 2)
            roster.remove_device(FLOW, "device-2")
            await logged(tmp_path, EntryKind.RETIRED, 3)

    asyncio.run(first_life())
    asyncio.run(second_life())
    found = [(e.kind, e.source) for e in entries(tmp_path) if e.device == "device-2" and e.kind in MOVES]
    assert found == [
        (EntryKind.ASSIGNED, NO_SOURCE),
        (EntryKind.ASSIGNED, "quotes"),
        (EntryKind.RETIRED, NO_SOURCE),
        (EntryKind.ASSIGNED, NO_SOURCE),
        (EntryKind.RETIRED, "quotes"),
        (EntryKind.RETIRED, NO_SOURCE),
    ]
    assert LogReader(tmp_path).assigned(FLOW) == ["device-1", "device-2"]
    assert prices(tmp_path) == [1.0, 2.0]


def test_a_flow_whose_devices_have_no_source_knows_them_all(tmp_path: Path) -> None:
    """With its only source on the platform's own device, it ends as that ends."""
    own = device_of("cloud-1")
    wanted = structs.replace(document("cloud-1"), devices={"cloud-1": ("quotes",), "a": (), "b": ()})

    async def story() -> None:
        async with following(tmp_path, partitions=3) as (found, roster):
            roster.put(FLOW, wanted)
            await logged(tmp_path, EntryKind.ASSIGNED, 3)
            found.net.deliver(own.topic, own.schemas(), own.quotes(1.0), own.end())
            await found.net.acked(own)
            async with asyncio.timeout(WAIT_S):
                while not all(e.clocks.get("quotes") == END_OF_TIME for e in newest(tmp_path)):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    asyncio.run(story())
    assert LogReader(tmp_path).assigned(FLOW) == ["a", "b", "cloud-1"]
    devices = describe_devices(tmp_path)
    assert {one["device"]: (one["holds"], one["excluded"]) for one in devices} == dict.fromkeys(
        ("a", "b", "cloud-1"), ([], [])
    )


def newest(folder: Path) -> list[Entry]:
    """The last entry of each of three partitions, as far as they have one."""
    last = {entry.partition: entry for entry in entries(folder)}
    return [last.get(partition, Entry(FLOW, partition, 0, EntryKind.WATERMARK)) for partition in range(3)]
