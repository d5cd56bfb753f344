"""Ingest that ends badly and starts again: the log is whole, nothing is lost, doubled or acked too early."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from geartrain.errors import DiskError, LedgerError
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.wire.envelope import NackReason
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.log.ledger import SqliteLedger
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.ports import LedgerChange
from tests.cloud.fleet import FLOW, LoopNet, TestDevice, make_config, prices, running
from tests.rosters import document, put_flow


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "segments").rglob("*.arrow"))


async def send(
    config: IngestConfig, device: TestDevice, *payloads: bytes, net: LoopNet | None = None
) -> LogReader:
    """One life of ingest: it takes the payloads, and is stopped once the last is acked."""
    async with running(config, net) as world:
        world.net.deliver(device.topic, *payloads)
        await world.net.acked(device)
    return world.reader


def start_fails(config: IngestConfig) -> Exception:
    """The error that a start ends with."""

    async def run() -> None:
        async with running(config):
            pytest.fail("ingest has started")

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(run())
    return caught.value.exceptions[0]


def test_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    async def run() -> LogReader:
        config, device = make_config(tmp_path), TestDevice()
        await send(config, device, device.schemas(), device.quotes(1.0))
        await send(config, device, device.payload(1), device.payload(2), device.quotes(2.0))
        return await send(config, device, device.payload(3), device.quotes(3.0))

    reader = asyncio.run(run())
    assert prices(reader) == [1.0, 2.0, 3.0]
    assert reader.counters()["duplicates"] == 3
    numbers = [entry.number for entry in reader.entries(FLOW, "0", 0, 99)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(reader.assigned(FLOW)) == 1


def test_terms_grow_and_stand_in_acks(tmp_path: Path) -> None:
    async def run() -> list[int]:
        config, device, terms = make_config(tmp_path), TestDevice(), []
        for price in (1.0, 2.0):
            net = LoopNet()
            payloads = [device.quotes(price)] if device.seq else [device.schemas(), device.quotes(price)]
            await send(config, device, *payloads, net=net)
            terms.append(net.acks(device)[-1].term)
        return terms

    assert asyncio.run(run()) == [1, 2]


@pytest.mark.parametrize("effect", ["write", "fsync", "ledger"])
def test_crash_before_the_ledger_acks_nothing_and_loses_nothing(tmp_path: Path, effect: str) -> None:
    device = TestDevice()

    async def crash() -> LoopNet:
        async with running(make_config(tmp_path)) as world:
            world.net.deliver(device.topic, device.schemas())
            await world.net.acked(device)

            def refuse_disk(what: str, name: str) -> None:
                if what == effect and name.startswith("segments/"):
                    raise DiskError(f"{name} cannot be written: no space left on device")

            def refuse_ledger(change: LedgerChange) -> None:
                if effect == "ledger":
                    raise LedgerError("the ledger cannot be used: disk I/O error")

            world.disk.refuse, world.ledger.refuse = refuse_disk, refuse_ledger
            world.net.deliver(device.topic, device.quotes(1.0))
            await asyncio.Event().wait()
        return world.net

    net = LoopNet()
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(crash())
    assert isinstance(caught.value.exceptions[0], DiskError | LedgerError)
    orphans = len(segments(tmp_path))
    assert orphans == (effect != "write")
    reader = asyncio.run(send(make_config(tmp_path), device, device.payload(2), net=net))
    assert prices(reader) == [1.0]
    assert reader.counters().get("orphan_segments", 0) == orphans
    assert len(segments(tmp_path)) == 1
    assert "duplicates" not in reader.counters()


def test_crash_after_the_ledger_acks_the_batch_that_comes_again(tmp_path: Path) -> None:
    device = TestDevice()

    async def crash() -> None:
        async with running(make_config(tmp_path)) as world:
            world.net.deliver(device.topic, device.schemas())
            await world.net.acked(device)

            async def no_more_acks(topic: str, payload: bytes) -> None:
                raise LedgerError("killed")

            world.net.publish = no_more_acks  # type: ignore[method-assign]
            world.net.deliver(device.topic, device.quotes(1.0))
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup):
        asyncio.run(crash())
    reader = asyncio.run(send(make_config(tmp_path), device, device.payload(2)))
    assert prices(reader) == [1.0]
    assert reader.counters()["duplicates"] == 1


def test_orphans_are_removed_and_what_is_not_ours_is_left(tmp_path: Path) -> None:
    device = TestDevice()
    asyncio.run(send(make_config(tmp_path), device, device.schemas(), device.quotes(1.0)))
    (named,) = segments(tmp_path)
    orphan = named.with_name("000000000009-1.arrow")
    orphan.write_bytes(b"torn")
    stranger = named.with_name("notes.txt")
    stranger.write_text("mine")
    reader = asyncio.run(send(make_config(tmp_path), device, device.quotes(2.0)))
    assert not orphan.exists()
    assert stranger.read_text() == "mine"
    assert reader.counters()["orphan_segments"] == 1
    assert prices(reader) == [1.0, 2.0]


def test_missing_segment_refuses_to_start_and_is_named_with_its_positions(tmp_path: Path) -> None:
    device = TestDevice()
    asyncio.run(send(make_config(tmp_path), device, device.schemas(), device.quotes(1.0)))
    asyncio.run(send(make_config(tmp_path), device, device.quotes(2.0)))
    segments(tmp_path)[0].unlink()
    error = start_fails(make_config(tmp_path))
    assert isinstance(error, LedgerError)
    assert "segments/stocks/quotes/p0/000000000003-1.arrow" in str(error)
    assert "rows of stocks/quotes between positions 3 and 3" in str(error)


def test_second_ingest_fences_the_first(tmp_path: Path) -> None:
    device = TestDevice()

    async def run() -> list[str]:
        async with running(make_config(tmp_path)) as world:
            world.net.deliver(device.topic, device.schemas())
            await world.net.acked(device)
            successor = SqliteLedger(tmp_path)
            await successor.open()
            await successor.close()
            world.net.deliver(device.topic, device.quotes(1.0))
            await asyncio.Event().wait()
        return world.journal

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(run())
    assert "another ingest has taken the ledger" in str(caught.value.exceptions[0])
    assert prices(LogReader(tmp_path)) == []


def test_device_assigned_late_is_overtaken_where_the_clock_has_passed(tmp_path: Path) -> None:
    first, second = TestDevice(), TestDevice("device-2", b"epoch--2")

    async def run() -> LogReader:
        await send(make_config(tmp_path), first, first.schemas(), first.quotes(1.0, 2.0))
        return await send(
            make_config(tmp_path, ("device-1", "device-2")),
            second,
            second.schemas(),
            second.quotes(3.0, 4.0, 5.0),
        )

    reader = asyncio.run(run())
    entry = [entry for entry in reader.entries(FLOW, "0", 0, 99) if entry.count][-1]
    assert reader.table(entry).column("_event_time").to_pylist() == [10, 20, 30]
    assert reader.table(entry).column("_overtaken").to_pylist() == [True, False, False]
    assert entry.clocks == {"quotes": 20}
    assert reader.counters()["records_overtaken"] == 1


def test_clock_waits_for_every_assigned_device_and_names_who_is_missing(tmp_path: Path) -> None:
    first, second = TestDevice(), TestDevice("device-2", b"epoch--2")

    async def run() -> tuple[LogReader, dict[str, Any]]:
        config = make_config(tmp_path, ("device-1", "device-2"))
        async with running(config) as world:
            world.net.deliver(first.topic, first.schemas(), first.quotes(1.0), first.end())
            await world.net.acked(first)
            assert world.ingest.missing(FLOW, "quotes") == ["device-2"]
            assert reader_clock(world.reader) == START_OF_TIME
        status: dict[str, Any] = json.loads((tmp_path / "status.json").read_bytes())
        async with running(config) as world:
            assert world.ingest.missing(FLOW, "quotes") == ["device-2"]
            world.net.deliver(second.topic, second.schemas(), second.quotes(2.0))
            await world.net.acked(second)
            assert reader_clock(world.reader) == 10
            world.net.deliver(second.topic, second.end())
            await world.net.acked(second)
        return world.reader, status

    reader, status = asyncio.run(run())
    assert reader_clock(reader) == END_OF_TIME
    assert status["flows"][FLOW]["channels"]["quotes"] == {
        "rows": 1,
        "clock": START_OF_TIME,
        "clock_time": None,
    }
    quotes = status["flows"][FLOW]["sources"]["quotes"]
    assert (quotes["clock"], quotes["clock_time"]) == (START_OF_TIME, None)
    assert (quotes["missing"], quotes["missing_count"], quotes["holding"]) == (["device-2"], 1, ["device-2"])
    contacts = {name: one.pop("last_contact_us") for name, one in status["flows"][FLOW]["devices"].items()}
    assert contacts["device-1"] > 0
    assert contacts["device-2"] == 0
    assert status["flows"][FLOW]["devices"] == {
        "device-1": {"epoch": b"epoch--1".hex(), "ordinal": 1, "seq": 3, "crossing": 0},
        "device-2": {"epoch": "", "ordinal": 0, "seq": 0, "crossing": 0},
    }
    assert status["counters"]["records_logged"] == 1
    assert status["counters"]["digest_conflicts"] == 0
    assert status["term"] == 1


def reader_clock(reader: LogReader) -> int:
    return reader.clocks(FLOW, "0", reader.positions(FLOW)["0"]).get("quotes", START_OF_TIME)


def test_status_is_not_needed_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "status.json").mkdir()
    device = TestDevice()
    reader = asyncio.run(send(make_config(tmp_path), device, device.schemas(), device.quotes(1.0)))
    assert prices(reader) == [1.0]


def test_channel_fed_by_some_devices_waits_for_these_only(tmp_path: Path) -> None:
    first, second = TestDevice(), TestDevice("device-2", b"epoch--2")
    put_flow(tmp_path, FLOW, document({"quotes": (first.name,)}, devices=(second.name,)))
    config = IngestConfig(log=tmp_path, group_commit_ms=5)

    async def run() -> LogReader:
        async with running(config) as world:
            world.net.deliver(first.topic, first.schemas(), first.quotes(1.0))
            await world.net.acked(first)
            world.net.deliver(second.topic, second.advance(10), second.quotes(2.0))
            await world.net.acked(second, 1)
            await world.net.until(lambda: bool(world.net.nacks(second)))
            assert world.net.nacks(second)[0].reason is NackReason.HOLD
        return world.reader

    reader = asyncio.run(run())
    assert reader_clock(reader) == 10
    assert prices(reader) == [1.0]
    assert reader.counters()["held_batches"] == 1


def test_all_files_are_private(tmp_path: Path) -> None:
    device = TestDevice()
    folder = tmp_path / "new" / "log"
    asyncio.run(send(make_config(folder), device, device.schemas(), device.quotes(1.0)))
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"ledger.sqlite", "status.json", "000000000003-1.arrow"}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    assert all(path.stat().st_mode & 0o777 == 0o700 for path in folders)
