"""A log of several partitions: each device has one, each partition its own entries and clock, and the flow's
clock is the least of them.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from geartrain.errors import ConfigError, FencedError, LedgerError
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.wire.topics import BUCKETS, bucket
from geartrain_cloud.ingest.config import IngestConfig, read_config
from geartrain_cloud.ingest.counters import Counter
from geartrain_cloud.log.entry_reasons import EntryCode
from geartrain_cloud.log.ledger import SqliteLedger
from geartrain_cloud.log.part import buckets_of, partition_of
from geartrain_cloud.log.reader import LogReader, Room
from geartrain_cloud.log.verify import verify_log
from geartrain_cloud.ports import EntryKind, LedgerChange, StoredSchema
from tests.cloud.fleet import FLOW, LoopNet, TestDevice, make_config, running
from tests.rosters import document, put_flow
from tests.waiting import WAIT_S

NAMES = [f"device-{n}" for n in range(400)]


def named(partition: int, partitions: int, number: int = 0) -> str:
    """A device whose batches go to a partition."""
    return [name for name in NAMES if partition_of(name, partitions) == partition][number]


def config_of(folder: Path, partitions: int, devices: tuple[str, ...], **changes: object) -> IngestConfig:
    return make_config(folder, devices, partitions=partitions, **changes)


def flow_clock(reader: LogReader) -> int:
    positions = reader.positions(FLOW)
    clocks = [reader.clocks(FLOW, key, positions.get(key, 0)) for key in reader.keys()]  # noqa: SIM118
    return min(clock.get("quotes", START_OF_TIME) for clock in clocks)


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 64])
def test_partitions_divide_the_buckets_in_runs(partitions: int) -> None:
    runs = [buckets_of(partition, partitions) for partition in range(partitions)]
    assert [number for run in runs for number in run] == list(range(BUCKETS))
    assert max(map(len, runs)) - min(map(len, runs)) <= 1
    assert all(int(bucket(n), 16) in buckets_of(partition_of(n, partitions), partitions) for n in NAMES)


def test_rows_of_each_device_lie_in_its_partition(tmp_path: Path) -> None:
    first, second = TestDevice(named(0, 2)), TestDevice(named(1, 2))

    async def run() -> LogReader:
        async with running(config_of(tmp_path, 2, (first.name, second.name))) as world:
            for device in (first, second):
                world.net.deliver(device.topic, device.schemas())
            world.net.deliver(first.topic, first.quotes(1.0, 2.0), first.quotes(3.0))
            await world.net.acked(first)
            assert flow_clock(world.reader) == START_OF_TIME  # the second has not spoken
            world.net.deliver(second.topic, second.quotes(4.0))
            await world.net.acked(second)
            assert flow_clock(world.reader) == 10
        return world.reader

    reader = asyncio.run(run())
    assert reader.keys() == ["0", "1"]
    newest = reader.positions(FLOW)
    found = {}
    for key in reader.keys():  # noqa: SIM118 (no mapping)
        entries = reader.entries(FLOW, key, 0, newest[key])
        assert [e.number for e in entries] == list(range(1, newest[key] + 1))
        found[key] = [p for e in entries if e.count for p in reader.table(e).column("price").to_pylist()]
        assert all(f"/p{e.partition}/" in e.segment for e in entries if e.count)
    assert found == {"0": [1.0, 2.0, 3.0], "1": [4.0]}
    assert reader.limit(FLOW, "1", 0, Room(1)) == newest["1"]
    assert reader.clocks(FLOW, "0", newest["0"]) == {"quotes": 30}
    assert verify_log(tmp_path).damages == []


def test_partition_without_a_device_follows_the_others(tmp_path: Path) -> None:
    device = TestDevice(named(2, 4))

    async def run() -> LogReader:
        async with running(config_of(tmp_path, 4, (device.name,))) as world:
            world.net.deliver(device.topic, device.schemas())
            for price in range(5):
                world.net.deliver(device.topic, device.quotes(float(price)))
                await world.net.acked(device)
                assert flow_clock(world.reader) <= device.time
            async with asyncio.timeout(WAIT_S):
                while flow_clock(world.reader) < device.time:  # noqa: ASYNC110 (nothing tells of a clock)
                    await asyncio.sleep(0.01)
            world.net.deliver(device.topic, device.end())
            await world.net.acked(device)
        return world.reader

    reader = asyncio.run(run())
    assert flow_clock(reader) == END_OF_TIME
    own, other = (
        [e for e in reader.entries(FLOW, key, 0, 99) if e.kind is EntryKind.ADVANCE] for key in ("2", "0")
    )
    assert own == []
    clocks = [entry.clocks["quotes"] for entry in other]
    assert clocks == sorted(set(clocks))
    assert clocks[-1] == END_OF_TIME
    assert all(entry.device == "" and entry.reason.code == EntryCode.OTHERS_FOLLOWED for entry in other)


def test_partition_whose_devices_are_all_excluded_follows_and_its_records_are_overtaken(
    tmp_path: Path,
) -> None:
    steady, silent = TestDevice(named(0, 2)), TestDevice(named(1, 2))
    devices = (steady.name, silent.name)
    config = config_of(tmp_path, 2, devices)
    told = document({"quotes": devices}, bounded=False, join_timeout_s=0.5, idle_after_s=0.5)
    put_flow(tmp_path, FLOW, told)

    async def run() -> LogReader:
        async with running(config) as world:
            world.net.deliver(steady.topic, steady.schemas())
            async with asyncio.timeout(WAIT_S):
                while flow_clock(world.reader) == START_OF_TIME:
                    world.net.deliver(steady.topic, steady.quotes(1.0))
                    await asyncio.sleep(0.05)
            assert world.ingest.counter(Counter.DEVICES_EXCLUDED) == 1
            before = flow_clock(world.reader)
            world.net.deliver(silent.topic, silent.schemas(), silent.quotes(2.0, 3.0, watermark=before - 1))
            await world.net.acked(silent)
            assert flow_clock(world.reader) >= before
        return world.reader

    reader = asyncio.run(run())
    (entry,) = [e for e in reader.entries(FLOW, "1", 0, 99) if e.kind is EntryKind.ROWS]
    assert any(reader.table(entry).column("_overtaken").to_pylist())
    kinds = [e.kind for e in reader.entries(FLOW, "1", 0, 99)]
    assert (
        kinds.index(EntryKind.EXCLUDED) < kinds.index(EntryKind.ADVANCE) < kinds.index(EntryKind.READMITTED)
    )


def test_log_begins_again_with_its_partitions_and_refuses_others(tmp_path: Path) -> None:
    first, second = TestDevice(named(0, 2)), TestDevice(named(1, 2))
    config = config_of(tmp_path, 2, (first.name, second.name))

    async def life(price: float) -> None:
        net = LoopNet()
        async with running(config, net) as world:
            for device in (first, second):
                known = device.seq > 0
                payloads = [device.quotes(price)] if known else [device.schemas(), device.quotes(price)]
                world.net.deliver(device.topic, *payloads)
                await net.acked(device)

    for price in (1.0, 2.0):
        asyncio.run(life(price))
    reader = LogReader(tmp_path)
    assert flow_clock(reader) == 20
    kinds = [e.kind for e in reader.entries(FLOW, "1", 0, 99)]
    assert kinds.count(EntryKind.ASSIGNED) == kinds.count(EntryKind.JOINED) == 1

    async def other() -> None:
        ledger = SqliteLedger(tmp_path)
        try:
            await ledger.open(3)
        finally:
            await ledger.close()

    with pytest.raises(ConfigError, match=r"made with 2 partitions.*set partitions = 2"):
        asyncio.run(other())


def test_two_ingests_share_a_ledger_and_neither_fences_the_other(tmp_path: Path) -> None:
    async def run() -> None:
        ledgers = [SqliteLedger(tmp_path) for _ in range(3)]
        low, high, again = ledgers
        try:
            low_term, high_term = await low.open(4, (0, 1)), await high.open(4, (2, 3))
            assert (low_term, high_term) == (1, 2)
            await low.commit(low_term, LedgerChange(counters={"n": 1}))
            await high.commit(high_term, LedgerChange(counters={"n": 2}))
            assert await low.counters() == {"n": 1}
            term = await again.open(4, (1, 2))
            assert await again.counters() == {"n": 2}
            for ledger, old, partition in ((low, low_term, 1), (high, high_term, 2)):
                with pytest.raises(FencedError, match=f"partition {partition} "):
                    await ledger.commit(old, LedgerChange())
                with pytest.raises(FencedError):
                    await ledger.check(old)
            await again.check(term)
            assert await again.open_as_is() == 4
            assert await again.counters() == {"n": 3}
        finally:
            for ledger in ledgers:
                await ledger.close()
        assert LogReader(tmp_path).counters() == {"n": 3}

    asyncio.run(run())


def test_channel_has_one_schema_whichever_ingest_learns_it(tmp_path: Path) -> None:
    async def run() -> None:
        low, high = SqliteLedger(tmp_path), SqliteLedger(tmp_path)
        try:
            low_term, high_term = await low.open(2, (0,)), await high.open(2, (1,))
            schemas = [StoredSchema("f", "c", name, "{}") for name in ("one", "two")]
            await low.commit(low_term, LedgerChange(schemas=schemas[:1]))
            await high.commit(high_term, LedgerChange(schemas=schemas[:1]))
            with pytest.raises(LedgerError, match=r"is one, by another ingest.*announces two"):
                await high.commit(high_term, LedgerChange(schemas=schemas[1:]))
        finally:
            await low.close()
            await high.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("buckets", "owned"), [("00-3f", (0, 1, 2, 3)), ("00-1f", (0, 1)), ("10-1f", (1,)), ("30-3f", (3,))]
)
def test_buckets_make_up_whole_partitions(tmp_path: Path, buckets: str, owned: tuple[int, ...]) -> None:
    config = _read(tmp_path, buckets)
    assert (config.owned, config.is_whole) == (owned, len(owned) == 4)


@pytest.mark.parametrize(
    ("buckets", "sentence"),
    [
        (
            "00-10",
            r"buckets: 00-10 do not make up whole partitions of this log, which are 00-0f, 10-1f, 20-2f",
        ),
        ("1f-00", 'give the first and the last of 00 to 3f, such as "00-1f"'),
        ("00-40", "give the first and the last"),
        ("all", "give the first and the last"),
    ],
)
def test_other_buckets_are_refused(tmp_path: Path, buckets: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        _read(tmp_path, buckets)


def _read(folder: Path, buckets: str) -> IngestConfig:
    path = folder / "ingest.toml"
    path.write_text(f'buckets = "{buckets}"\n[log]\nfolder = "log"\npartitions = 4\n')
    return read_config(path)


def test_a_member_without_a_source_holds_no_clock_of_another_ingest_back(tmp_path: Path) -> None:
    """What ingest hears of others' partitions is of sources alone."""
    here, there = named(0, 2), named(1, 2)
    told = document({"quotes": (here,), "trades": ()}, {"quotes": ("quotes",)}, devices=(there,))
    put_flow(tmp_path, FLOW, told)
    config = IngestConfig(log=tmp_path, partitions=2, group_commit_ms=5)
    device = TestDevice(here)

    async def run() -> LogReader:
        low, high = replace(config, buckets=(0, 31)), replace(config, buckets=(32, 63))
        async with running(low) as world, running(high):
            world.net.deliver(device.topic, device.schemas())
            async with asyncio.timeout(WAIT_S):
                for price in range(3):
                    world.net.deliver(device.topic, device.quotes(float(price)))
                    await world.net.acked(device)
                    for key in ("0", "1"):  # nobody has trades: it follows quotes in both
                        while trades_clock(world.reader, key) < device.time:  # noqa: ASYNC110
                            await asyncio.sleep(0.01)
        return world.reader

    assert asyncio.run(run()).assigned(FLOW) == sorted((here, there))


def trades_clock(reader: LogReader, key: str) -> int:
    """The clock of the source trades in a partition."""
    position = reader.positions(FLOW).get(key, 0)
    return reader.clocks(FLOW, key, position).get("trades", START_OF_TIME) if position else START_OF_TIME
