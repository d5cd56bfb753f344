"""Power lost at every step of a spool and of a log, on real files: whatever the disk may leave is recovered.

The real spool, ingest and ledger work on real files; what they write is mirrored, and at each step the states
that a disk may leave of what is not synced yet are built and opened again by the same classes. Here a
thousand states; `python -m tests.proofs.test_crash_states 20000` takes as many as are asked for.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.delivery.receiver import WaitingBudget
from geartrain.ports import SplitProgress, SpoolCommit, SpooledBatch, SpoolImage
from geartrain_cloud.ingest.ingest import Ingest
from geartrain_cloud.ingest.recovery import recover
from geartrain_cloud.log.disk import OsDisk
from geartrain_cloud.log.ledger import SqliteLedger
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.log.roster import FollowedRoster
from geartrain_cloud.log.segment import encode_segment, merge_segments
from geartrain_cloud.ports import LedgerChange
from geartrain_edge.spool.spool import SqliteSpool
from geartrain_simulation.machine.platter import Platter
from tests.cloud import fleet
from tests.cloud.fleet import FLOW, LoopNet, TestDevice, followed_flows, make_config

BATCHES = 24
ROWS = 2
STATES_IN_CI = 1_000
STEPS = 90
"""About so many times as many states are recovered as of each step."""
SPLIT = ("quotes", "device-1")
SPOOL = ("spool.sqlite", "spool.sqlite-wal")
FRESH = b"fresh..!"
"""The epoch of a spool that is begun as the power is back."""
LEDGER = ("ledger.sqlite", "ledger.sqlite-wal")

Recovery = Callable[[Path, int], Awaitable[None]]
"""Given a folder, and the last seq that was acked before the power went."""


@dataclass(slots=True)
class Mirror:
    """What of a folder's files the disk surely holds, and what it may lose: their writes since a sync.

    states: how many of each step are recovered; recovered: opens one and checks it; acked: the last seq that
    was acked by now; counts: how many were checked, by step; turn: one effect with all its states at a time.
    """

    folder: Path
    states: int
    recovered: Recovery
    acked: Callable[[], int]
    platter: Platter = field(default_factory=lambda: Platter(Random(7)))
    counts: dict[str, int] = field(default_factory=dict)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def take(self, name: str) -> bool:
        """Note what was written to a file since; whether anything was."""
        path = self.folder / name
        data = path.read_bytes() if path.exists() else b""
        known = self.platter.read(name) if self.platter.matching(name) else None
        if known == data or (known is None and not data):
            return False
        old = known or b""
        if len(data) < len(old):
            self.platter.put(name, data)
            return True
        same = 0
        while same < len(old) and old[same : same + 512] == data[same : same + 512]:
            same += 512
        same = min(same, len(old))
        self.platter.put_at(name, same, data[same:])
        return True

    async def strike(self, step: str) -> None:
        """Recover every state that the disk may leave now."""
        acked = self.acked()
        for files in self.platter.crash_states(self.states):
            # A folder that cannot be cleared away (seen once) is no fault of what is proved.
            with tempfile.TemporaryDirectory(dir=scratch(), ignore_cleanup_errors=True) as folder:
                for name, data in files.items():
                    path = Path(folder) / name
                    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                    path.write_bytes(data)
                await self.recovered(Path(folder), acked)
            self.counts[step] = self.counts.get(step, 0) + 1

    async def database(self, files: tuple[str, str], step: str) -> None:
        """A transaction of SQLite was made: its log is synced before the file itself is written."""
        file, wal = files
        before = self.platter.read(wal) if self.platter.matching(wal) else b""
        if (self.folder / wal).stat().st_size < len(before):
            return await self.checkpoint(files, step)
        if self.take(wal):
            await self.strike(f"{step}: write-ahead log")
            self.platter.sync(wal)
        if self.take(file):
            await self.strike(f"{step}: checkpoint")
            self.platter.sync(file)
        return None

    async def checkpoint(self, files: tuple[str, str], step: str) -> None:
        """The log was written into the file, which was synced, and then emptied."""
        if self.take(files[0]):
            await self.strike(f"{step}: checkpoint")
            self.platter.sync(files[0])
        if self.take(files[1]):
            await self.strike(f"{step}: emptying the write-ahead log")
            self.platter.sync(files[1])


def scratch() -> str | None:
    """Where states are built: in memory where there is such a folder, since there are many."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


class MirroredDisk(OsDisk):
    """The log's disk; after each effect every state of it is recovered."""

    mirror: Mirror

    async def write(self, name: str, data: bytes) -> None:
        async with self.mirror.turn:
            await super().write(name, data)
            if name.startswith("segments/"):
                self.mirror.platter.put(name, data)
                await self.mirror.strike("segment written")

    async def fsync(self, name: str) -> None:
        async with self.mirror.turn:
            await super().fsync(name)
            if name.startswith("segments/"):
                self.mirror.platter.sync(name)
                await self.mirror.strike("segment synced")

    async def remove(self, name: str) -> None:
        async with self.mirror.turn:
            await super().remove(name)
            self.mirror.platter.remove(name)
            await self.mirror.strike("segment removed")


class MirroredLedger(SqliteLedger):
    """The ledger; after each transaction every state of it is recovered."""

    mirror: Mirror

    async def open(self, *args: Any) -> int:
        term = await super().open(*args)
        for name in LEDGER:  # an empty ledger is another test's
            self.mirror.take(name)
            if self.mirror.platter.matching(name):
                self.mirror.platter.sync(name)
        return term

    async def commit(self, term: int, change: LedgerChange) -> None:
        async with self.mirror.turn:
            await super().commit(term, change)
            await self.mirror.database(LEDGER, "ledger committed")

    async def merge(self, *args: Any) -> bool:
        async with self.mirror.turn:
            done = await super().merge(*args)
            await self.mirror.database(LEDGER, "ledger merged")
            return done

    async def forget_files(self, *args: Any) -> None:
        async with self.mirror.turn:
            await super().forget_files(*args)
            await self.mirror.database(LEDGER, "ledger forgets files")


@dataclass
class Proof:
    """A device with a real spool, a real ingest with a real log, and what is true of both."""

    folder: Path
    states: int
    device: TestDevice = field(default_factory=TestDevice)
    committed: int = 0
    begun: int = 0
    trimmed: tuple[int, int] = (0, 0)
    kept: dict[int, SpooledBatch] = field(default_factory=dict)
    acked: int = 0

    def __post_init__(self) -> None:
        self.net = LoopNet()
        self.config = make_config(self.folder / "log", merge_grace_s=0)
        kinds = (self.states, self.spool_recovered, lambda: self.acked)
        self.spool_mirror = Mirror(self.folder / "spool", *kinds)
        kinds = (self.states, self.log_recovered, lambda: self.acked)
        self.log_mirror = Mirror(self.folder / "log", *kinds)

    async def spool_recovered(self, folder: Path, acked: int) -> None:
        """What a spool must hold after a loss of power."""
        spool = SqliteSpool(folder / SPOOL[0])
        image: SpoolImage = await spool.open("device-1", FLOW, FRESH)
        held = {batch.seq: batch for batch in await spool.read(0, 1_000)}
        await spool.close()
        # An epoch is a spool's own from its first commit on.
        assert image.epoch == (self.device.epoch if image.last_seq else FRESH), "the spool began anew"
        assert self.committed <= image.last_seq <= self.begun, "a commit is lost, or half of one is there"
        assert image.acked_seq in self.trimmed
        assert image.acked_seq <= acked, "what no ack said is trimmed"
        assert sorted(held) == list(range(image.acked_seq + 1, image.last_seq + 1)), "batches are lost"
        assert all(held[seq] == self.kept[seq] for seq in held), "a batch has another content"
        position = image.positions.get(SPLIT)
        assert position == (SplitProgress(image.last_seq, image.last_seq) if image.last_seq else None)

    async def log_recovered(self, folder: Path, acked: int) -> None:
        """What a log must hold after a loss of power."""
        config, flows = replace(self.config, log=folder), followed_flows(self.config.log)
        ledger, disk = SqliteLedger(folder), OsDisk(folder)
        try:
            known = await recover(config, flows, ledger, disk, WaitingBudget(100, 1 << 20))
            named, found = await ledger.segments(), set(await disk.list("segments/"))
            assert named <= found, "a file is missing"
            assert found <= named | {one.name for one in await ledger.replaced_files()}, "an orphan is kept"
        finally:
            await ledger.close()
            disk.close()
        cursor = known.streams["device-1", FLOW].cursor
        seq = 0 if cursor is None else cursor.seq
        assert acked <= seq <= self.begun, "what was acked is lost, or is there before its time"
        if cursor is not None and seq:
            assert cursor.digest == self.kept[seq].digest
        reader = LogReader(folder)
        upto = reader.positions(FLOW).get("0", 0)
        entries = [one for one in reader.entries(FLOW, "0", 0, upto, ["quotes"]) if one.count]
        rows = [price for one in entries for price in reader.table(one).column("price").to_pylist()]
        assert [one.seq for one in entries] == list(range(2, seq + 1)), "a batch is lost or doubled"
        assert rows == [float(n) for n in range(2 * ROWS, (seq + 1) * ROWS)], "rows are lost or doubled"

    async def run(self) -> dict[str, int]:
        """Commit, log, ack and trim every batch; returns how many states were recovered, by step."""
        spool = SqliteSpool(self.spool_mirror.folder / SPOOL[0])
        await spool.open("device-1", FLOW, self.device.epoch)
        for name in SPOOL:
            self.spool_mirror.take(name)
            if self.spool_mirror.platter.matching(name):
                self.spool_mirror.platter.sync(name)
        async with self._ingest():
            for seq in range(1, BATCHES + 1):
                await self._one(spool, seq)
                if seq % 8 == 0:
                    await spool.close()
                    await self.spool_mirror.checkpoint(SPOOL, "spool closed")
                    spool = SqliteSpool(self.spool_mirror.folder / SPOOL[0])
                    await spool.open("device-1", FLOW, FRESH)
                    await self.spool_mirror.database(SPOOL, "spool opened")
        await spool.close()
        return self.spool_mirror.counts | self.log_mirror.counts

    async def _one(self, spool: SqliteSpool, seq: int) -> None:
        prices = [float(seq * ROWS + n) for n in range(ROWS)]
        payload = self.device.schemas() if seq == 1 else self.device.quotes(*prices)
        envelope = self.device.batches[seq]
        batch = SpooledBatch(seq, envelope.header, envelope.body, envelope.digest, ROWS if seq > 1 else 0)
        self.kept[seq], self.begun = batch, seq
        await spool.commit(SpoolCommit([batch], {SPLIT: SplitProgress(seq, seq)}))
        await self.spool_mirror.database(SPOOL, "spool committed")
        self.committed = seq
        self.net.deliver(self.device.topic, payload)
        await self.net.acked(self.device)
        self.acked = seq
        if seq % 3 == 0:
            self.trimmed = (self.trimmed[1], seq)
            await spool.trim(seq)
            await self.spool_mirror.database(SPOOL, "spool trimmed")
            self.trimmed = (seq, seq)

    @asynccontextmanager
    async def _ingest(self) -> AsyncIterator[None]:
        ledger, disk = MirroredLedger(self.config.log), MirroredDisk(self.config.log)
        ledger.mirror = disk.mirror = self.log_mirror
        ports = (FollowedRoster(self.config.log), ledger, disk, self.net, SystemClock())
        ingest = Ingest(self.config, *ports, encode_segment, SystemRandomness(), merge_segments)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(ingest.run())
            await self.net.until(lambda: bool(self.net.filters))
            yield
            ingest.stop()
            await task
        disk.close()


def proven(states: int) -> dict[str, int]:
    """Recover about so many states; returns how many of each step."""
    folder = Path(tempfile.mkdtemp(dir=scratch()))
    patience_s, fleet.PATIENCE_S = fleet.PATIENCE_S, 3_600.0  # an ack waits for all states before it
    try:
        return asyncio.run(Proof(folder, max(states // STEPS, 4)).run())
    finally:
        fleet.PATIENCE_S = patience_s
        shutil.rmtree(folder, ignore_errors=True)


def test_what_a_loss_of_power_leaves_is_recovered() -> None:
    counts = proven(STATES_IN_CI)
    assert sum(counts.values()) > STATES_IN_CI // 2
    for step in ("spool committed", "spool trimmed", "ledger committed", "ledger merged"):
        assert counts[f"{step}: write-ahead log"] > 20, counts
    assert counts["segment written"] > 20, counts


def test_what_a_killed_agent_left_in_the_page_cache_is_durable_once_a_spool_was_opened(
    tmp_path: Path,
) -> None:
    """SQLite reads a killed process's transactions from its log without a sync: they were sent, acked and
    trimmed below, and a loss of power took them back.
    """
    batch = SpooledBatch(1, b"header", b"body", bytes(16), 1)

    async def recovered(folder: Path, acked: int) -> None:
        spool = SqliteSpool(folder / SPOOL[0])
        image = await spool.open("device-1", FLOW, FRESH)
        assert (image.last_seq, await spool.read(acked, 10)) == (1, [batch])
        await spool.close()

    async def story() -> int:
        spool = SqliteSpool(tmp_path / "first" / SPOOL[0])
        await spool.open("device-1", FLOW, b"epoch..8")
        mirror = Mirror(tmp_path / "second", 100, recovered, lambda: 0)
        mirror.folder.mkdir()
        copied(tmp_path / "first", mirror)
        for name in SPOOL:
            if mirror.platter.matching(name):
                mirror.platter.sync(name)
        await spool.commit(SpoolCommit([batch]))
        copied(tmp_path / "first", mirror)  # as a kill leaves it: written, and nothing of it synced
        await spool.close()
        again = SqliteSpool(mirror.folder / SPOOL[0])
        assert (await again.open("device-1", FLOW, b"fresh..!")).last_seq == 1
        if (mirror.folder / SPOOL[1]).stat().st_size == 0:
            mirror.platter.sync(SPOOL[1])  # as a checkpoint does before it writes the file
            await mirror.checkpoint(SPOOL, "opened")
        await mirror.strike("open")
        await again.close()
        return sum(mirror.counts.values())

    assert asyncio.run(story()) > 5


def copied(folder: Path, mirror: Mirror) -> None:
    """Take a running spool's files as they are into the mirror's folder."""
    for name in SPOOL:
        if (folder / name).exists():
            shutil.copy(folder / name, mirror.folder / name)
            mirror.take(name)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    found = proven(int(sys.argv[1]))
    for one, number in sorted(found.items()):
        print(f"{number:8,}  {one}")
    print(f"{sum(found.values()):8,}  states in all, each recovered")
