"""Ingest takes rows of the types that a flow's records had before, where the roster names them, and no other.
With two ingests over one log, with merges and with restarts.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from geartrain.errors import ConfigError
from geartrain.records.record import Record
from geartrain.schema import ColumnBatch, RowCodec, Schema
from geartrain.wire.envelope import NackReason
from geartrain_cloud.ingest.counters import Counter
from geartrain_cloud.ingest.roster import Followed
from geartrain_cloud.log.part import partition_of
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.log.roster import RosterChannel, RosterDocument, RosterReader, RosterWriter
from geartrain_cloud.log.segment import SCHEMA_KEY
from geartrain_cloud.ports import EntryKind
from tests.cloud.fleet import QUOTE, TestDevice
from tests.cloud.test_living_roster import FLOW, device_of, document, entries, following, logged


class Priced(Record):
    """What quotes have become."""

    price: float
    unit: str


class Bare(Record):
    """What they never were."""

    price: float


PRICED, BARE = RowCodec(Priced), RowCodec(Bare)
DEVICES = ("device-1", "device-2", "device-3")


def later(number: int = 2, former: tuple[Schema, ...] = (QUOTE.schema,)) -> RosterDocument:
    texts = tuple(schema.to_json() for schema in former)
    channels = {"quotes": RosterChannel(("quotes",), PRICED.schema.schema_id, texts)}
    return structs.replace(document(*DEVICES), channels=channels, revision=number)


def priced(device: TestDevice, price: float, codec: RowCodec = PRICED) -> bytes:
    """A DATA batch of the later type, or of another."""
    value = codec.kind(*(price, "EUR")[: len(codec.schema.fields)])
    device.number, device.time = device.number + 1, device.time + 10
    place: list[Any] = [[device.time], [device.name], [device.number - 1]]
    return device.rows("quotes", codec.schema, ColumnBatch(codec.to_columns([value]), *place))


def found_rows(folder: Path) -> list[tuple[str, float]]:
    """The name of the type and the price of each row, in the log's order."""
    log, found = LogReader(folder), list[tuple[str, float]]()
    for entry in entries(folder):
        if entry.channel == "quotes" and entry.segment:
            table = log.table(entry)
            name = Schema.from_json((table.schema.metadata or {})[SCHEMA_KEY].decode()).name
            prices: list[Any] = table.column("price").to_pylist()
            found += [(name, price) for price in prices]
    return found


def test_devices_that_have_not_gone_over_send_the_former_type_and_others_the_later_one(
    tmp_path: Path,
) -> None:
    old, new, away = (device_of(name) for name in DEVICES)

    async def story() -> None:
        async with following(tmp_path) as (found, roster):
            roster.put(FLOW, document(*DEVICES))
            await logged(tmp_path, EntryKind.ASSIGNED, 3)
            found.net.deliver(old.topic, old.schemas(), old.quotes(1.0))
            await found.net.acked(old)
            roster.put(FLOW, later())
            await logged(tmp_path, EntryKind.REVISION)
            found.net.deliver(new.topic, new.schemas({"quotes": PRICED.schema}), priced(new, 2.0))
            found.net.deliver(old.topic, old.quotes(3.0))
            found.net.deliver(away.topic, away.schemas(), away.quotes(4.0))  # begins after the update
            for one in (old, new, away):
                await found.net.acked(one)
        async with following(tmp_path) as (found, _):
            for one, batch in ((old, old.quotes(5.0)), (new, priced(new, 6.0))):
                found.net.deliver(one.topic, batch)
                await found.net.acked(one)

    asyncio.run(story())
    wanted = {("Quote", 1.0), ("Priced", 2.0), ("Quote", 3.0), ("Quote", 4.0), ("Quote", 5.0)}
    assert set(found_rows(tmp_path)) == {*wanted, ("Priced", 6.0)}
    assert LogReader(tmp_path).counters().get("quarantined_batches", 0) == 0


def test_rows_of_a_former_type_are_taken_though_no_device_has_announced_it(tmp_path: Path) -> None:
    device = device_of("device-1")

    async def story() -> None:
        async with following(tmp_path) as (found, roster):
            roster.put(FLOW, later())
            await logged(tmp_path, EntryKind.ASSIGNED, 3)
            announced = device.schemas({"quotes": PRICED.schema})  # of an epoch that was renewed
            found.net.deliver(device.topic, announced, device.quotes(1.0), priced(device, 2.0))
            await found.net.acked(device)

    asyncio.run(story())
    assert found_rows(tmp_path) == [("Quote", 1.0), ("Priced", 2.0)]
    assert LogReader(tmp_path).counters().get("schemas_asked", 0) == 0


def test_a_type_that_the_flow_never_had_stays_with_its_device(tmp_path: Path) -> None:
    wrong = device_of("device-1")

    async def story() -> None:
        async with following(tmp_path, nack_interval_ms=1) as (found, roster):
            roster.put(FLOW, later())
            await logged(tmp_path, EntryKind.ASSIGNED, 3)
            found.net.deliver(wrong.topic, wrong.schemas({"quotes": BARE.schema}), priced(wrong, 1.0, BARE))
            await found.counted(Counter.HELD_BATCHES, 1)
            await found.net.until(lambda: bool(found.net.nacks(wrong)))
            assert found.net.nacks(wrong)[0].reason is NackReason.HOLD

    asyncio.run(story())
    assert found_rows(tmp_path) == []


def test_two_ingests_over_one_log_take_both_types(tmp_path: Path) -> None:
    own = [next(name for name in DEVICES if partition_of(name, 2) == index) for index in (0, 1)]
    new, old = (device_of(name) for name in own)

    async def story() -> None:
        RosterWriter(tmp_path).put(FLOW, later())
        first, second = ({"partitions": 2, "buckets": buckets} for buckets in ((0, 31), (32, 63)))
        async with following(tmp_path, **first) as (one, _), following(tmp_path, **second) as (other, _):
            await logged(tmp_path, EntryKind.ASSIGNED, 3)
            one.net.deliver(new.topic, new.schemas({"quotes": PRICED.schema}), priced(new, 1.0))
            await one.net.acked(new)
            other.net.deliver(old.topic, old.schemas(), old.quotes(2.0))
            await other.net.acked(old)

    asyncio.run(story())
    assert sorted(found_rows(tmp_path)) == [("Priced", 1.0), ("Quote", 2.0)]


def test_segments_of_one_type_are_merged_and_those_of_two_are_not(tmp_path: Path) -> None:
    old, new = device_of("device-1"), device_of("device-2")

    async def story() -> None:
        async with following(tmp_path, group_commit_ms=0) as (found, roster):
            roster.put(FLOW, later())
            await logged(tmp_path, EntryKind.ASSIGNED, 3)
            found.net.deliver(new.topic, new.schemas({"quotes": PRICED.schema}))
            found.net.deliver(old.topic, old.schemas())
            for price in range(40):
                one, batch = (old, old.quotes(price)) if price < 3 else (new, priced(new, price))
                found.net.deliver(one.topic, batch)
                await found.net.acked(one)
            await found.counted(Counter.SEGMENTS_MERGED, 2)

    asyncio.run(story())
    wanted = [("Quote", float(price)) for price in range(3)]
    assert found_rows(tmp_path) == wanted + [("Priced", float(price)) for price in range(3, 40)]
    assert LogReader(tmp_path).counters().get("segments_damaged", 0) == 0


def test_the_roster_may_give_a_channel_another_type_with_another_revision_that_takes_those_of_before(
    tmp_path: Path,
) -> None:
    followed, roster = Followed(), RosterWriter(tmp_path)

    def told(document: RosterDocument) -> tuple[str, int]:
        roster.put(FLOW, document)
        followed.take(RosterReader(tmp_path).after(followed.serial))
        return followed.flows[FLOW].schemas["quotes"], len(followed.take_unusable())

    first, second = QUOTE.schema.schema_id, PRICED.schema.schema_id
    assert told(document(*DEVICES)) == (first, 0)
    assert told(later(1)) == (first, 1)
    assert told(later(2, ())) == (first, 1)
    assert told(later(2)) == (second, 0)
    assert told(structs.replace(document(*DEVICES), revision=3)) == (first, 0)  # passes over one not in force
    wrong = structs.replace(later(), channels={"quotes": RosterChannel(("quotes",), second, ("{",))})
    with pytest.raises(ConfigError, match="channel quotes: a schema that was announced cannot be read"):
        wrong.checked(FLOW)
