"""Ingest's care for its log: what is merged, what is let go, and that a crash anywhere in it does no harm."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from geartrain.adapters.system import SystemClock
from geartrain.delivery.receiver import WaitingBudget
from geartrain.errors import FencedError, LedgerError
from geartrain_cloud.ingest import ingest as ingest_module
from geartrain_cloud.ingest.alarm import Alarm
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.ingest.counters import Counter, Counters
from geartrain_cloud.ingest.recovery import recover
from geartrain_cloud.ingest.upkeep import MERGED_BYTES_MAX, Upkeep, find_runs
from geartrain_cloud.log.disk import OsDisk
from geartrain_cloud.log.ledger import SqliteLedger
from geartrain_cloud.log.queries import commit, register
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.log.retention import Retention, retain
from geartrain_cloud.log.segment import merge_segments
from geartrain_cloud.log.verify import verify_log
from geartrain_cloud.ports import HeldSegment, StoredSegment
from tests.cloud.fleet import FLOW, TestDevice, make_config, prices, running

FAR_US = 2**60
SEGMENTS = 10
PRICES: list[float | None] = [float(n) for n in range(SEGMENTS)]


class LaterClock(SystemClock):
    """The system's clock, `ahead_us` microseconds on."""

    ahead_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.ahead_us


class CrashError(Exception):
    """A crash, as a test makes it."""


class Tended:
    """A log without ingest, and the parts that tend it; `steps` effects are let through, the next crashes."""

    def __init__(self, folder: Path, limits: Retention = Retention(), grace_s: float = 60.0) -> None:  # noqa: B008
        self.folder, self.limits, self.grace_s = folder, limits, grace_s
        self.clock = LaterClock()
        self.steps: int | None = None
        self.counters = Counters({})

    async def run(self, use: Callable[[Upkeep], Awaitable[None]]) -> None:
        ledger, disk = SqliteLedger(self.folder), OsDisk(self.folder)
        try:
            known = await recover(IngestConfig(log=self.folder), {}, ledger, disk, WaitingBudget(1, 1))
            self.counters = known.counters
            for owner, names in ((disk, ("write", "fsync", "remove")), (ledger, ("merge", "forget_files"))):
                for name in names:
                    setattr(owner, name, self._counted(getattr(owner, name)))
            upkeep = Upkeep(
                known.term,
                ledger,
                disk,
                self.clock,
                known.counters,
                Alarm(self.clock),
                self.limits,
                merge_segments,
                self.grace_s,
            )
            await use(upkeep)
        finally:
            await ledger.close()
            disk.close()

    def _counted(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*values: Any) -> Any:
            if self.steps is not None:
                if self.steps == 0:
                    raise CrashError
                self.steps -= 1
            return await call(*values)

        return counted

    def round(self, ahead_s: float = 0.0) -> None:
        self.clock.ahead_us = int(ahead_s * 1e6)
        asyncio.run(self.run(lambda upkeep: upkeep.round()))


def make_log(folder: Path, segments: int = SEGMENTS) -> int:
    """A log of so many segments of a row; the position of the last."""

    async def run() -> None:
        async with running(make_config(folder, group_commit_ms=1)) as world:
            device = TestDevice()
            world.net.deliver(device.topic, device.schemas())
            await world.net.acked(device)
            for price in range(segments):
                world.net.deliver(device.topic, device.quotes(float(price)))
                await world.net.acked(device)

    asyncio.run(run())
    return LogReader(folder).positions(FLOW)["0"]


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in (folder / "segments").rglob("*.arrow")}


def entries(folder: Path) -> list[tuple[int, str, int, int]]:
    found = LogReader(folder).entries(FLOW, "0", 0, 99)
    return [(entry.number, entry.kind.value, entry.clock(["quotes"]), entry.count) for entry in found]


def test_small_segments_become_one_and_no_position_changes(tmp_path: Path) -> None:
    last, before = make_log(tmp_path), entries(tmp_path)
    old, log = files(tmp_path), Tended(tmp_path)
    register(tmp_path, "slow", FLOW, ["0"])
    log.round()
    (merged,) = files(tmp_path) - old
    assert merged.endswith(f"m{last}.arrow")
    assert (entries(tmp_path), prices(LogReader(tmp_path))) == (before, PRICES)
    assert log.counters[Counter.SEGMENTS_MERGED] == SEGMENTS
    log.round(ahead_s=61)  # the query may still come by the old files
    assert files(tmp_path) == old | {merged}
    commit(tmp_path, "slow", FLOW, {"0": last - 1})
    log.round(ahead_s=61)
    assert files(tmp_path) - {merged} == {max(old)}
    commit(tmp_path, "slow", FLOW, {"0": last})
    log.round(ahead_s=30)  # its grace is not over
    assert len(files(tmp_path)) == 2
    log.round(ahead_s=61)
    assert files(tmp_path) == {merged}
    assert (entries(tmp_path), prices(LogReader(tmp_path))) == (before, PRICES)
    assert verify_log(tmp_path).damages == []


def test_reader_that_holds_an_old_entry_finds_the_rows(tmp_path: Path) -> None:
    last = make_log(tmp_path)
    reader = LogReader(tmp_path)
    held = [entry for entry in reader.entries(FLOW, "0", 0, last) if entry.count]
    log = Tended(tmp_path, grace_s=0.001)
    log.round()
    log.round(ahead_s=1)
    assert len(files(tmp_path)) == 1
    assert [reader.table(entry).column("price").to_pylist() for entry in held] == [[p] for p in PRICES]


def test_crash_at_every_step_of_a_merge_leaves_the_log_whole(tmp_path: Path) -> None:
    steps = 0
    while True:
        folder = tmp_path / str(steps)
        make_log(folder)
        log = Tended(folder, grace_s=0.001)
        log.steps = steps
        try:
            log.round()
            log.round(ahead_s=1)
        except CrashError:
            assert prices(LogReader(folder)) == PRICES
            log.steps = None
            log.round()
            log.round(ahead_s=1)
        else:
            break
        finally:
            assert prices(LogReader(folder)) == PRICES
            assert verify_log(folder).damages == []
        assert len(files(folder)) == 1
        steps += 1
    assert steps == 4 + SEGMENTS  # write, fsync, merge, each file, forget


def test_damaged_segment_is_left_alone_and_its_neighbours_too(tmp_path: Path) -> None:
    make_log(tmp_path)
    damaged = tmp_path / sorted(files(tmp_path))[4]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\0")
    log, before = Tended(tmp_path), files(tmp_path)
    log.round()
    log.round()
    assert files(tmp_path) == before
    assert log.counters[Counter.SEGMENTS_DAMAGED] == 1


def test_retention_lets_go_of_what_every_query_is_done_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    last = make_log(tmp_path)
    log = Tended(tmp_path, Retention(older_than_s=3_600))
    log.round(ahead_s=4_000)
    assert prices(LogReader(tmp_path)) == PRICES  # nobody has registered
    commit(tmp_path, "one", FLOW, {"0": last - 1})
    register(tmp_path, "two", FLOW, ["0"])
    log.round(ahead_s=4_000)
    assert log.counters[Counter.RECORDS_REMOVED] == 0
    commit(tmp_path, "two", FLOW, {"0": last})
    with caplog.at_level(logging.WARNING, "geartrain.ingest"):
        log.round(ahead_s=4_000)  # they were merged: it is all of them or none
        assert log.counters[Counter.RECORDS_REMOVED] == 0
        commit(tmp_path, "one", FLOW, {"0": last})
        log.round(ahead_s=4_000)
    assert log.counters[Counter.RECORDS_REMOVED] == SEGMENTS
    first = next(number for number, kind, _, _ in entries(tmp_path) if kind == "removed")
    assert f"retention removed {SEGMENTS} rows, positions {first} to {last}" in caplog.text
    assert LogReader(tmp_path).clocks(FLOW, "0", last)["quotes"] == SEGMENTS * 10
    log.round(ahead_s=9_000)
    assert files(tmp_path) == set()
    assert verify_log(tmp_path).damages == []


def test_trim_while_a_merge_is_made_wins(tmp_path: Path) -> None:
    last = make_log(tmp_path)
    commit(tmp_path, "one", FLOW, {"0": last})
    log = Tended(tmp_path)

    async def trimmed(upkeep: Upkeep) -> None:
        before = upkeep._merge_segments
        assert before is not None

        def merge(parts: Sequence[bytes]) -> bytes:
            retain(tmp_path, Retention(older_than_s=1.0), FAR_US)
            return merge_segments(parts)

        upkeep._merge_segments = merge
        await upkeep.round()

    asyncio.run(log.run(trimmed))
    assert files(tmp_path) == set()
    assert log.counters[Counter.SEGMENTS_MERGED] == 0
    assert {kind for _, kind, _, count in entries(tmp_path) if count} == {"removed"}


def test_running_ingest_merges_and_notices_that_it_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_log(tmp_path)
    monkeypatch.setattr(ingest_module, "_UPKEEP_S_MAX", 0.05)

    async def run() -> None:
        async with running(make_config(tmp_path)) as world:
            await world.counted(Counter.SEGMENTS_MERGED, SEGMENTS)
            device = TestDevice(epoch=b"epoch--2")
            device.time = 1_000
            world.net.deliver(device.topic, device.hello(2), device.schemas(), device.quotes(77.0))
            await world.net.acked(device)
            successor = SqliteLedger(tmp_path)
            await successor.open()
            await successor.close()
            await asyncio.sleep(5)

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(run())
    assert isinstance(caught.value.exceptions[0], FencedError)
    assert "run only one for each partition" in str(caught.value.exceptions[0])
    assert prices(LogReader(tmp_path)) == [*PRICES, 77.0]


def held(sizes: Sequence[int], channel: str = "c") -> list[HeldSegment]:
    return [
        HeldSegment(StoredSegment(f"{channel}{n}", size, b""), "f", channel, 0, n, n, 1)
        for n, size in enumerate(sizes, 1)
    ]


def lengths(sizes: Sequence[int], but: set[str] | None = None) -> list[int]:
    return [len(run) for run in find_runs(held(sizes), but or set())]


def test_only_runs_that_are_worth_it_are_merged() -> None:
    assert lengths([1_000] * 7) == []
    assert lengths([1_000] * 8) == [8]
    assert lengths([1_000] * 300) == [256]
    assert lengths([900_000, *[10_000] * 7]) == []  # one would be written again for the sake of little
    assert lengths([900_000, *[10_000] * 8]) == [8]
    assert lengths([MERGED_BYTES_MAX] * 20) == []
    assert lengths([2_000_000] * 20) == []  # four of them are a full one
    assert lengths([900_000] * 20) == [9]
    assert lengths([1_000] * 15, but={"c8"}) == []
    both = [*held([1_000] * 8), *held([1_000] * 9, "d")]
    assert [len(run) for run in find_runs(both, set())] == [8, 9]


def test_rows_are_written_again_a_bounded_number_of_times() -> None:
    """10,000 segments of 10 kB, merged as they come: how often a byte is written again."""
    several: list[HeldSegment] = []
    written = 0
    for n in range(10_000):
        several.append(HeldSegment(StoredSegment(f"s{n}", 10_000, b""), "f", "c", 0, n, n, 1))
        for run in find_runs(several, set()):
            size = sum(one.segment.size for one in run)
            written += size
            at = several.index(run[0])
            one = HeldSegment(StoredSegment(f"m{n}", size, b""), "f", "c", 0, run[0].first, run[-1].last, 1)
            several[at : at + len(run)] = [one]
    assert written < 5 * 10_000 * 10_000
    assert len(several) < 80


def test_segments_of_two_schemas_are_refused(tmp_path: Path) -> None:
    make_log(tmp_path, 1)
    (one,) = (tmp_path / name for name in files(tmp_path))
    other = one.read_bytes().replace(b"price", b"worth")
    with pytest.raises(LedgerError):
        merge_segments([one.read_bytes(), other])
