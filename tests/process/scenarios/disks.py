"""Disks that are full, read-only, slow, or fail a sync: a program ends with a sentence, and goes on later."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path

from tests.process.oracle import Account
from tests.process.programs import Program
from tests.process.registry import scenario
from tests.process.shim import can_mount, faulty_disk
from tests.process.world import World

FAILED = 1


def _mount(world: World, folder: Path, size_bytes: int) -> None:
    """A small file system of its own at `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={size_bytes},mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    world.mounts.append(folder)


def _fill(folder: Path) -> Path:
    """Leave no byte free; returns the file to delete."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 4_096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return ballast


async def _fills_up(world: World, program: Program, folder: Path, says: str) -> None:
    """Fill a program's disk in the midst of work; mend it once the program has ended, and start it again.

    Without root there is no small file system: then no file of the program may grow any more.
    """
    if folder in world.mounts:
        ballast = _fill(folder)
        world.open_gate(world.records)
        await world.ended(program, FAILED, says)
        ballast.unlink()
    else:
        world.notes["how"] = "by the limit of a file's size, for want of root"
        resource.prlimit(program.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        world.open_gate(world.records)
        await world.ended(program, FAILED, "")
    program.start()
    world.healed()


@scenario("disk of the spool full")
async def spool_disk_full(world: World) -> Account:
    """The agent ends with a sentence; what it has accepted is still there."""
    world.prepare("d1", gate=world.records // 3)
    if can_mount():
        _mount(world, world.state_of("d1"), 16 << 20)
    await world.launch()
    await world.until_numbers(world.records // 6)
    await _fills_up(world, world.agents["d1"], world.state_of("d1"), "the disk is full: make room")
    await world.drained()
    return world.exact()


@scenario("disk of the log full")
async def log_disk_full(world: World) -> Account:
    """Nothing is acked that is not in the log."""
    world.prepare("d1", "d2", gate=world.records // 3)
    if can_mount():
        _mount(world, world.log, 16 << 20)
    await world.launch()
    await world.until_numbers(world.records // 6)
    await _fills_up(world, world.ingest, world.log, "gear-ingest: ")
    await world.drained()
    return world.exact()


def _remount(world: World, folder: Path, how: str) -> None:
    if folder in world.mounts:
        subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)
    else:
        world.notes["how"] = "by the mode of the folder, for want of root"
        folder.chmod(0o500 if how == "ro" else 0o700)


async def _made_read_only(world: World, program: Program, folder: Path) -> None:
    """A disk that comes up read-only after a restart, as after an error of its file system."""
    program.kill()
    _remount(world, folder, "ro")
    program.start()
    await world.ended(program, FAILED, "gear-")
    _remount(world, folder, "rw")
    program.start()
    world.healed()


@scenario("disk of the spool read-only")
async def spool_read_only(world: World) -> Account:
    """One sentence, and no batch that is not durable."""
    world.prepare("d1", gate=world.records // 3)
    if can_mount():
        _mount(world, world.state_of("d1"), 8 << 20)
    await world.launch()
    await world.until_numbers(world.records // 6)
    await _made_read_only(world, world.agents["d1"], world.state_of("d1"))
    await world.drained()
    return world.exact()


@scenario("disk of the log read-only")
async def log_read_only(world: World) -> Account:
    """One sentence, and no ack."""
    world.prepare("d1", gate=world.records // 3)
    if can_mount():
        _mount(world, world.log, 32 << 20)
    await world.launch()
    await world.until_numbers(world.records // 6)
    await _made_read_only(world, world.ingest, world.log)
    await world.drained()
    return world.exact()


async def _sync_fails(world: World, program: Program, path: str) -> Account:
    """One fsync says EIO, each of several times."""
    once = world.folder / "fail-now"
    program.environment = faulty_disk(path, once)
    await world.launch()
    times = 2 if world.small else 5
    for number in range(1, times + 1):
        await world.until_numbers(max(world.records * (number - 1) // times, 1))
        once.touch()
        world.open_gate(world.records * number // times)
        await world.ended(program, FAILED, "gear-")
        program.start()
        world.healed()
    await world.drained()
    return world.exact()


@scenario("EIO once from fsync of the spool", small=True)
async def spool_sync_fails(world: World) -> Account:
    """What a failed sync was to make durable was not accepted, or is still there."""
    world.prepare("d1", gate=1)
    return await _sync_fails(world, world.agents["d1"], "spool.sqlite")


@scenario("EIO once from fsync of a segment")
async def segment_sync_fails(world: World) -> Account:
    """What a failed sync was to make durable is not acked."""
    world.prepare("d1", gate=1)
    return await _sync_fails(world, world.ingest, ".arrow")


@scenario("EIO once from fsync of the ledger")
async def ledger_sync_fails(world: World) -> Account:
    """What a failed sync was to make durable is not acked."""
    world.prepare("d1", gate=1)
    return await _sync_fails(world, world.ingest, "ledger.sqlite")


@scenario("disk of the log slow: 250 ms a commit")
async def log_slow(world: World) -> Account:
    """Acks come late, and batches are sent again meanwhile."""
    world.prepare("d1", "d2")
    world.ingest.environment = faulty_disk("ledger.sqlite", sync_ms=250)
    await world.launch()
    await world.drained()
    world.notes["duplicates_refused"] = world.count("duplicates")
    return world.exact()
