"""`gear-spark` on disks that are full: that of one flow's tables, and its own.

A flow whose tables have no room is held, and the others go on. A host without room ends with a sentence, and
the next one goes on exactly. Tables are compared with plain Python.
"""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from geartrain_cloud.hosting.main import EXIT_FAILED
from tests.hosting.host_process import HostProcess
from tests.hosting.hosted import Wanted
from tests.process.shim import can_mount
from tests.proofs.test_hosting_processes import process
from tests.waiting import WAIT_S

__all__ = ["process"]
pytestmark = [pytest.mark.slow, pytest.mark.spark]

SMALL, HOSTS = 1 << 20, 48 << 20
"""Bytes of the disk of a flow's tables, and of the host's."""


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[None]:
    """A file system of its own at `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={size_bytes},mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
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


def forbid_growth(process: HostProcess[Wanted], host: subprocess.Popen[str]) -> None:
    """Let no file grow that the host's own process writes, until it has ended with a sentence."""
    resource.prlimit(host.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    assert host.wait(WAIT_S) == EXIT_FAILED


def test_a_flow_whose_tables_have_no_room_is_held_and_the_others_go_on(process: HostProcess[Wanted]) -> None:
    """Without root, nothing that the host writes in Python may grow: then it ends, and goes on later."""
    wanted = process.wanted
    full, good = wanted.add("mill0.1", 0), wanted.add("mill1.1", 1)
    folder = wanted.tables("mill0.1").parent
    with small_disk(folder, SMALL) if can_mount() else nullcontext():
        full.append(200)
        good.append(200)
        wanted.write()
        host = process.start()
        process.until(lambda: wanted.is_through("mill0.1") and wanted.is_through("mill1.1"))
        if can_mount():
            ballast = fill(folder)
            full.append(1_500)
            good.append(300)
            process.until(lambda: wanted.status("mill0.1")["state"] == "held")
            process.until(lambda: wanted.is_through("mill1.1"))
            assert "the disk is full" in wanted.status("mill0.1")["why"]
            good.assert_tables(wanted.tables("mill1.1"))
            ballast.unlink()
        else:
            forbid_growth(process, host)
            full.append(1_500)
            host = process.start()
        process.until(lambda: wanted.is_through("mill0.1") and wanted.is_through("mill1.1"))
        process.until(lambda: wanted.status("mill0.1")["state"] == "running")  # it says so behind its tables
        full.assert_tables(wanted.tables("mill0.1"))
        good.assert_tables(wanted.tables("mill1.1"))
        host.terminate()
        assert host.wait(WAIT_S) == 0


def test_a_host_without_room_ends_with_a_sentence_and_the_next_goes_on_exactly(
    process: HostProcess[Wanted],
) -> None:
    """Without root, nothing that it writes in Python may grow."""
    wanted = process.wanted
    logs = [wanted.add(f"mill{number}.1", number) for number in range(2)]
    with small_disk(wanted.state, HOSTS) if can_mount() else nullcontext():
        for log in logs:
            log.append(200)
        wanted.write()
        host = process.start()
        process.until(lambda: all(wanted.is_through(log.instance) for log in logs))
        for log in logs:
            log.append(1_000)
        if can_mount():
            ballast = fill(wanted.state)
            assert host.wait(WAIT_S) == EXIT_FAILED
            last = (wanted.folder / "said-0").read_text().splitlines()[-1]
            assert last.startswith("gear-spark: ")
            assert "No space left on device" in last
            ballast.unlink()
        else:
            forbid_growth(process, host)
        host = process.start()
        process.until(lambda: all(wanted.is_through(log.instance) for log in logs))
        host.terminate()
        assert host.wait(WAIT_S) == 0
    for log in logs:
        log.assert_tables(wanted.tables(log.instance))
