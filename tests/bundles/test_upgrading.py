"""A real device takes another program over TLS: it stays once it has reached the platform,
and goes back by itself where it does not. Spool and state are those of the app, whichever program runs.
"""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from geartrain.adapters.machine import machine
from geartrain.control.states import INSTALLED_PROGRAM
from geartrain_edge.programs.choice import Choice, short
from geartrain_edge.programs.store import ProgramStore
from tests.bundles.device import INSTANCE, Device, Platform, device_world
from tests.bundles.programs import program
from tests.drawing import each_or_long

pytestmark = pytest.mark.slow


@pytest.fixture
def device(tmp_path: Path, broker_kind: Any) -> Iterator[Device]:
    with device_world(tmp_path, broker_kind) as found:
        with found.file.open("a") as file:
            file.write("[program]\ndeadline_s = 6\ntries_max = 2\n")
        yield found


@contextmanager
def supervised(device: Device) -> Iterator[None]:
    """Start the device's program, and again whenever it ends, as systemd does; at the end it is killed."""
    over = threading.Event()

    def tend() -> None:
        while not over.is_set():
            if device.parent is None or device.parent.poll() is not None:
                device.start()
            over.wait(0.05)

    device.start()
    thread = threading.Thread(target=tend)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        device.kill()


def chosen(device: Device) -> Choice:
    return replace(ProgramStore(device.state / "programs").load(), beside="")


def batches(device: Device, folder: Path) -> dict[int, bytes]:
    """What the spool holds, by seq; the device is not running."""
    folder.mkdir()
    for path in (device.state / INSTANCE).glob("spool.sqlite*"):
        shutil.copy(path, folder)
    with sqlite3.connect(folder / "spool.sqlite") as spool:
        return {
            seq: header + body for seq, header, body in spool.execute("SELECT seq, header, body FROM batches")
        }


def wants(platform: Platform, code: str, app: str) -> None:
    platform.program = code
    platform.want(app)


def publishes(platform: Platform, kind: str, **where: str) -> str:
    code, archive = program(kind, **where)
    platform.repository.add(code, archive)
    platform.repository.publish()
    return code


def runs(platform: Platform, code: str) -> bool:
    return bool(platform.reports) and platform.reports[-1].program_code == code


def why(platform: Platform) -> str:
    return platform.reports[-1].program_why if platform.reports else ""


async def until_spooled(platform: Platform) -> None:
    """Wait until the app has committed more; without acks it sends no more than its window."""
    before = platform.device.status().get("spooled_seq", 0)
    await platform.until(lambda: platform.device.status().get("spooled_seq", 0) > before + 2)


@pytest.mark.proof
def test_a_program_takes_the_place_of_another_and_every_batch_stays(device: Device, tmp_path: Path) -> None:
    async def story(platform: Platform) -> None:
        platform.acks = False
        app = platform.submit("good")
        with supervised(device):
            await platform.until_runs(app)
            assert (platform.reports[-1].program, platform.reports[-1].program_code) == ("0.2.0", "")
            assert platform.reports[-1].machine == machine()
        before = batches(device, tmp_path / "before")
        assert len(before) > 3
        code = publishes(platform, "good")
        with supervised(device):
            wants(platform, code, app)
            assert device.parent is not None
            pid = device.parent.pid
            await platform.until(lambda: runs(platform, code) and chosen(device) == Choice(proved=code))
            await platform.until(lambda: platform.reports[-1].program == "0.2.1" and not why(platform))
            await until_spooled(platform)
            assert device.parent.pid == pid  # the same process, for its service manager
        between = batches(device, tmp_path / "between")
        assert len(between) > len(before)
        bad = publishes(platform, "deaf", version="0.2.2")
        with supervised(device):
            wants(platform, bad, app)
            await platform.until(lambda: f"{short(bad)} went back to {short(code)}" in why(platform))
            assert runs(platform, code)
            assert platform.reports[-1].program_went_back
            await until_spooled(platform)
            wants(platform, INSTALLED_PROGRAM, app)
            await platform.until(lambda: runs(platform, "") and chosen(device) == Choice())
            assert (why(platform), platform.reports[-1].program_went_back) == ("", False)
            await until_spooled(platform)
        after = batches(device, tmp_path / "after")
        for earlier, later in ((before, between), (between, after)):
            assert {seq: later.get(seq) for seq in earlier} == earlier
        print(f"{sum(map(len, before.values()))} bytes, then {sum(map(len, after.values()))}")
        with supervised(device):
            platform.acks = True
            await platform.until(lambda: device.status().get("acked_seq", 0) > max(after))

    device.tell(story)


FAULTS = {
    "exits": "it ended before it had reached the platform",
    "raises": "it ended before it had reached the platform",
    "hangs": "it ended before it had reached the platform",
    "deaf": "it did not reach the platform in time",
    "starves": f"{INSTANCE} did not run in time",
}


@pytest.mark.proof
@pytest.mark.parametrize(("kind", "words"), each_or_long("faults of a program", FAULTS.items(), 2))
def test_a_program_that_does_not_work_goes_back_by_itself(device: Device, kind: str, words: str) -> None:
    async def story(platform: Platform) -> None:
        app = platform.submit("good")
        with supervised(device):
            await platform.until_runs(app)
            bad = publishes(platform, kind)
            wants(platform, bad, app)
            await platform.until(lambda: f"{short(bad)} went back to the installed program" in why(platform))
            assert words in why(platform)
            assert (runs(platform, ""), chosen(device).refused) == (True, bad)
            assert platform.reports[-1].program_went_back
            await platform.until_rows()
        with supervised(device):  # it is not tried again
            await platform.until_rows()
            assert chosen(device).refused == bad
            good = publishes(platform, "better", version="0.2.2")
            wants(platform, good, app)
            await platform.until(lambda: runs(platform, good) and not why(platform))
            await platform.until(
                lambda: [path.name for path in (device.state / "programs").glob("?" * 64)] == [good]
            )

    device.tell(story)


@pytest.mark.proof
def test_what_cannot_run_here_is_refused_and_a_damaged_program_is_fetched_again(device: Device) -> None:
    async def story(platform: Platform) -> None:
        app = platform.submit("good")
        with supervised(device):
            await platform.until_runs(app)
            other = publishes(platform, "better", architecture="riscv64")
            wants(platform, other, app)
            await platform.until(lambda: "is for Python" in why(platform))
            assert "riscv64" in why(platform)
            wants(platform, "0" * 64, app)
            await platform.until(lambda: "is not named by any author's metadata" in why(platform))
            good = publishes(platform, "good")
            wants(platform, good, app)
            await platform.until(lambda: runs(platform, good) and chosen(device) == Choice(proved=good))
        damaged = device.state / "programs" / good / "geartrain_edge" / "parent" / "lane.py"
        damaged.write_bytes(damaged.read_bytes()[:-1] + b" ")
        with supervised(device):
            await platform.until(lambda: runs(platform, ""))
            await platform.until(lambda: runs(platform, good) and chosen(device) == Choice(proved=good))
            await platform.until_rows()

    device.tell(story)
