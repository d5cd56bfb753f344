"""Ingest in one process: decoded, written, fsynced, in the ledger and acked, from a broker in memory.

10 devices with batches of 1,000 records, and 1,000 devices with batches of one. The real classes over real
files at default settings; the batches are made beforehand. Ends when the last of each device is acked.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

from geartrain.wire.control import decode_control
from geartrain.wire.envelope import Ack
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.log.reader import LogReader
from tests.bench.harness import Work, fsync_us, scaled
from tests.cloud.fleet import FLOW, LoopNet, TestDevice, make_config, running

BATCH = 1_000
PATIENCE_S = 600.0


class Tally(LoopNet):
    """Keeps the last acked seq of each device, and no answer."""

    def __init__(self) -> None:
        super().__init__()
        self.acked_seqs: dict[str, int] = {}
        self.all_acked = asyncio.Event()
        self.wanted: dict[str, int] = {}

    async def publish(self, topic: str, payload: bytes) -> None:
        """Take an answer."""
        control = decode_control(payload)
        assert isinstance(control, Ack), control
        self.acked_seqs[topic] = control.seq
        if self.wanted.get(topic) == control.seq:
            del self.wanted[topic]
            if not self.wanted:
                self.all_acked.set()

    async def bring(self, publishes: list[tuple[TestDevice, bytes]]) -> None:
        """Deliver, and wait until the last batch of each device is acked."""
        self.all_acked.clear()
        self.wanted = {device.topic.removesuffix("up") + "ack": device.seq for device, _ in publishes}
        for device, payload in publishes:
            self.deliver(device.topic, payload)
        async with asyncio.timeout(PATIENCE_S):
            await self.all_acked.wait()


def _config(folder: Path, devices: list[TestDevice]) -> IngestConfig:
    config = make_config(folder, tuple(device.name for device in devices))
    return replace(config, group_commit_ms=IngestConfig().group_commit_ms)


async def _measured(folder: Path, devices: list[TestDevice], rounds: int, rows: int) -> tuple[float, float]:
    """Seconds by the clock and of CPU for `rounds` batches of `rows` records of each device."""
    net = Tally()
    async with running(_config(folder, devices), net):
        await net.bring([(device, device.schemas()) for device in devices])
        prices = [n / 4 for n in range(rows)]
        publishes = [(device, device.quotes(*prices)) for _ in range(rounds) for device in devices]
        began, cpu = time.perf_counter(), time.process_time()
        await net.bring(publishes)
        return time.perf_counter() - began, time.process_time() - cpu


def _ingest(name: str, folder: Path, devices: int, rounds: int, rows: int, asked_for: float) -> None:
    fleet = [(f"device-{n}", f"epoch{n:03d}".encode()) for n in range(devices)]
    taken: list[tuple[float, float]] = []
    units = devices * rounds * rows / 1_000  # with one record a batch, batches are records

    def by_the_clock() -> float:
        log = folder / f"log-{len(taken)}"
        log.mkdir()
        made = [TestDevice(device, epoch) for device, epoch in fleet]
        taken.append(asyncio.run(_measured(log, made, rounds, rows)))
        reader = LogReader(log)
        logged = reader.counts(FLOW, "0", 0, reader.positions(FLOW)["0"])["quotes"]
        assert logged == devices * rounds * rows
        return units / taken[-1][0]

    contenders = {
        "by the clock": by_the_clock,
        "by its CPU": lambda: units / taken[-1][1],
        "asked for": lambda: asked_for,
    }
    unit = "krec/s" if rows > 1 else "kbatches/s"
    goals = {"by the clock": {"asked for": 1.0}}
    work = Work(name, unit, contenders, "asked for", versions=("pyarrow",), goals=goals)
    work.notes.append(f"an fsync on this disk: {fsync_us(folder):.0f} us")
    work.run()


def test_ingest_of_large_batches(tmp_path: Path) -> None:
    rounds = scaled(100, least=2)
    _ingest("ingest: 10 devices, 1,000 a batch", tmp_path, 10, rounds, BATCH, 300.0)
    assert (tmp_path / "log-0").is_dir()


def test_ingest_of_single_records(tmp_path: Path) -> None:
    devices, rounds = scaled(1_000, least=20), 10
    _ingest("ingest: 1,000 devices, one a batch", tmp_path, devices, rounds, 1, 5.0)
    assert (tmp_path / "log-0").is_dir()
