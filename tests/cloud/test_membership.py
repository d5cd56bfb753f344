"""Flows of live sources: who is excluded, who is readmitted, what is overtaken; and the log alone says so."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as msgspec_replace

from geartrain.errors.reason import make_reason
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.ingest.counters import Counter
from geartrain_cloud.inspecting.devices import describe_devices
from geartrain_cloud.log.entry_reasons import EntryCode
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.ports import EntryKind
from tests.cloud.fleet import FLOW, LoopNet, Running, TestDevice, recovered, running
from tests.rosters import document, put_flow
from tests.waiting import WAIT_S

NAMES = ("device-1", "device-2")


def live_config(folder: Path, join_timeout_s: float = 60.0, idle_after_s: float = 60.0) -> IngestConfig:
    told = document(
        {"quotes": NAMES}, bounded=False, join_timeout_s=join_timeout_s, idle_after_s=idle_after_s
    )
    put_flow(folder, FLOW, told)
    return IngestConfig(log=folder, group_commit_ms=1, nack_interval_ms=1)


def kinds(folder: Path, *wanted: EntryKind) -> list[tuple[EntryKind, str, int]]:
    found = LogReader(folder).entries(FLOW, "0", 0, 999)
    return [(entry.kind, entry.device, entry.clock(["quotes"])) for entry in found if entry.kind in wanted]


def overtaken(folder: Path) -> list[tuple[int, bool]]:
    reader = LogReader(folder)
    tables = [reader.table(entry) for entry in reader.entries(FLOW, "0", 0, 999) if entry.count]
    return [(r["_event_time"], r["_overtaken"]) for table in tables for r in table.to_pylist()]


async def until_excluded(world: Running, devices: int) -> None:
    async with asyncio.timeout(WAIT_S):
        # The log tells nobody that it grew, so it is looked at again and again.
        while len(kinds(world.reader.folder, EntryKind.EXCLUDED)) < devices:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def test_a_source_that_a_device_has_no_longer_is_released_once_and_comes_back_when_it_does(
    tmp_path: Path,
) -> None:
    sources = {"quotes": NAMES, "doors": NAMES}
    put_flow(tmp_path, FLOW, document(sources, bounded=False, join_timeout_s=60.0, idle_after_s=60.0))
    device, other = TestDevice(), TestDevice("device-2", b"epoch--2")
    device.sources = other.sources = ("quotes", "doors")

    def moved(one: TestDevice, **marks: int) -> bytes:
        return one.batch(msgspec_replace(one.header(), source_watermarks=marks), b"")

    async def run() -> None:
        config = IngestConfig(log=tmp_path, group_commit_ms=1, nack_interval_ms=1)
        async with running(config) as world:
            world.net.deliver(other.topic, other.schemas(), moved(other, quotes=90, doors=90))
            world.net.deliver(device.topic, device.schemas(), moved(device, quotes=10, doors=10))
            for time in (20, 30, 40):  # its own file says by now that it has no doors
                world.net.deliver(device.topic, moved(device, quotes=time))
            await world.net.acked(device)
            assert clock(tmp_path, "doors") == 90
            world.net.deliver(
                device.topic, moved(device, quotes=50, doors=50), moved(device, quotes=60, doors=60)
            )
            world.net.deliver(other.topic, moved(other, quotes=95, doors=95))
            await world.net.acked(device)
            await world.net.acked(other)

    asyncio.run(run())
    changes = kinds(tmp_path, EntryKind.LACKS, EntryKind.READMITTED)
    assert [kind for kind, _, _ in changes] == [EntryKind.LACKS, EntryKind.READMITTED]
    assert (clock(tmp_path), clock(tmp_path, "doors")) == (60, 90)


def test_device_that_never_joins_is_excluded_and_the_clock_goes_on(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(live_config(tmp_path, join_timeout_s=0.3)) as world:
            device = TestDevice()
            world.net.deliver(device.topic, device.schemas(), device.quotes(1.0, 2.0))
            await world.net.acked(device)
            assert clock(tmp_path) == START_OF_TIME
            await until_excluded(world, 1)
            assert clock(tmp_path) == 20

    asyncio.run(run())
    assert kinds(tmp_path, EntryKind.EXCLUDED) == [(EntryKind.EXCLUDED, "device-2", 20)]
    status: dict[str, Any] = json.loads((tmp_path / "status.json").read_bytes())
    quotes = status["flows"][FLOW]["sources"]["quotes"]
    assert (quotes["excluded"], quotes["missing"]) == (["device-2"], [])
    one, two = describe_devices(tmp_path)
    assert (one["excluded"], two["excluded"]) == ([], ["quotes"])
    assert two["holds"] == []


def test_silent_device_is_excluded_and_on_contact_readmitted_with_older_records_overtaken(
    tmp_path: Path,
) -> None:
    one, two = TestDevice(), TestDevice("device-2", b"epoch--2")

    async def first() -> None:
        async with running(live_config(tmp_path, idle_after_s=0.6)) as world:
            world.net.deliver(two.topic, two.schemas(), two.quotes(1.0))
            await world.net.acked(two)
            world.net.deliver(one.topic, one.schemas(), one.quotes(*([1.0] * 5)))
            await world.net.acked(one)
            assert clock(tmp_path) == 10
            while not kinds(tmp_path, EntryKind.EXCLUDED):
                world.net.deliver(one.topic, one.advance(50))
                await asyncio.sleep(0.05)
            assert clock(tmp_path) == 50

    async def second() -> None:
        async with running(live_config(tmp_path)) as world:
            partition = world.ingest._started().known.partitions[FLOW, 0]
            assert partition.clocks["quotes"].excluded == ["device-2"]
            world.net.deliver(one.topic, one.advance(60))
            await world.net.acked(one)
            assert clock(tmp_path) == 60
            world.net.deliver(two.topic, two.quotes(2.0), two.quotes(3.0, step=50))
            await world.net.acked(two)
            world.net.deliver(one.topic, one.advance(100))
            await world.net.acked(one)

    asyncio.run(first())
    asyncio.run(second())
    moves = kinds(tmp_path, EntryKind.EXCLUDED, EntryKind.READMITTED)
    assert moves == [(EntryKind.EXCLUDED, "device-2", 50), (EntryKind.READMITTED, "device-2", 60)]
    assert overtaken(tmp_path)[-2:] == [(20, True), (70, False)]
    assert clock(tmp_path) == 70
    counters = LogReader(tmp_path).counters()
    assert (counters["devices_excluded"], counters["devices_readmitted"]) == (1, 1)
    assert counters["records_overtaken"] == 1


def test_nobody_is_excluded_while_ingest_is_deaf_or_the_device_has_ended(tmp_path: Path) -> None:
    async def run() -> None:
        net = LoopNet()
        async with running(live_config(tmp_path, idle_after_s=0.2, join_timeout_s=0.2), net) as world:
            device = TestDevice()
            world.net.deliver(device.topic, device.schemas(), device.end())
            await world.net.acked(device)
            net.refusals = 10**6
            net.cut()
            await asyncio.sleep(0.6)
            assert kinds(tmp_path, EntryKind.EXCLUDED) == []
            net.refusals = 0
            await until_excluded(world, 1)
            await asyncio.sleep(0.3)

    asyncio.run(run())
    assert kinds(tmp_path, EntryKind.EXCLUDED) == [(EntryKind.EXCLUDED, "device-2", END_OF_TIME)]


MOVES = st.lists(
    st.tuples(
        st.sampled_from(NAMES), st.sampled_from(["rows", "advance", "exclude", "restart"]), st.integers(0, 30)
    ),
    min_size=1,
    max_size=10,
)


@dataclass
class Model:
    """What the clock must be: the minimum over the live, never back."""

    clock: int = START_OF_TIME
    marks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NAMES, START_OF_TIME))
    away: set[str] = field(default_factory=set)

    def settle(self) -> None:
        live = [mark for name, mark in self.marks.items() if name not in self.away]
        self.clock = max(self.clock, min(live, default=START_OF_TIME))


@settings(max_examples=25, deadline=None)
@given(MOVES)
@example(
    [("device-1", "rows", 0), ("device-1", "exclude", 0), ("device-2", "exclude", 0), ("device-1", "rows", 0)]
)
def test_log_alone_gives_clock_and_members_back(moves: list[tuple[str, str, int]]) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(check_replay(Path(folder), moves))


async def check_replay(folder: Path, moves: list[tuple[str, str, int]]) -> None:
    config, model, left = live_config(folder), Model(), list(moves)
    devices = {name: TestDevice(name, f"ep{name}"[-8:].encode()) for name in NAMES}
    while left:
        async with running(config) as world:
            core = world.ingest._started()
            while left:
                name, move, amount = left.pop(0)
                device = devices[name]
                if move == "restart":
                    break
                if move == "exclude":
                    core.membership._exclude(
                        core.known.streams[name, FLOW], make_reason(EntryCode.SILENT, limit_s=1.0)
                    )
                    world.ingest._work.set()
                    model.away.add(name)
                else:
                    payloads = [] if device.seq else [device.schemas()]
                    device.time += 0 if move == "rows" else amount
                    rows = move == "rows"
                    payloads.append(device.quotes(1.0, step=amount) if rows else device.advance(device.time))
                    world.net.deliver(device.topic, *payloads)
                    await world.net.acked(device)
                    model.away.discard(name)
                    model.marks[name] = device.time
                model.settle()
        await check_recovered(folder, config, model)


async def check_recovered(folder: Path, config: IngestConfig, model: Model) -> None:
    known = await recovered(config)
    partition = known.partitions[FLOW, 0]
    assert partition.clocks["quotes"].value == partition.logged_clock(["quotes"]) == model.clock
    assert partition.clocks["quotes"].excluded == sorted(model.away)
    reader, before = LogReader(folder), START_OF_TIME
    for entry in reader.entries(FLOW, "0", 0, partition.number):
        assert entry.clock(["quotes"]) >= before
        for row in reader.table(entry).to_pylist() if entry.count else ():
            # A row that is not overtaken is never below the clock that a reader has seen before it.
            assert row["_overtaken"] == (row["_event_time"] < before)
        before = entry.clock(["quotes"])


def clock(folder: Path, source: str = "quotes") -> int:
    reader = LogReader(folder)
    return reader.clocks(FLOW, "0", reader.positions(FLOW)["0"]).get(source, START_OF_TIME)


def test_while_nothing_comes_from_anybody_ingest_subscribes_again_and_then_counts_the_silence(
    tmp_path: Path,
) -> None:
    """The broker may have forgotten what ingest had subscribed to: until then no device was silent."""

    async def run() -> float:
        config = replace(live_config(tmp_path, join_timeout_s=0.5), resubscribe_ms=400)
        async with running(config) as world:
            began_s = asyncio.get_running_loop().time()
            (first,) = world.net.filters
            await until_excluded(world, 2)
            took_s = asyncio.get_running_loop().time() - began_s
            await world.counted(Counter.SUBSCRIPTIONS_RENEWED, 2)
            assert set(world.net.filters) == {first}
            assert len(world.net.filters) >= 3
            assert world.net.connections == 1
            return took_s

    assert asyncio.run(run()) > 0.8  # the first renewal, and the time to join from there on
