"""`gear-spark` as a process: killed with -9 in mid-run, it goes on exactly. Each folder has one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from geartrain_cloud.hosting.main import EXIT_REFUSED
from geartrain_cloud.spark.lock import LOCK_FILE
from tests.hosting.hosted import Wanted
from tests.waiting import WAIT_S, Wait, note_log

pytestmark = [pytest.mark.slow, pytest.mark.spark]

ROOT = Path(__file__).parents[2]


class Process:
    """The program on one state folder, one life after another."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.started: list[subprocess.Popen[str]] = []

    def start(self, entry: str = "geartrain_cloud.hosting.main", **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", entry, "--state", str(self.wanted.folder)]
        said = note_log(self.wanted.folder / f"said-{len(self.started)}").open("w")
        started = subprocess.Popen(
            command,
            cwd=ROOT,
            stderr=said,
            text=True,
            start_new_session=True,
            env=os.environ | environment,
        )
        self.started.append(started)
        return started

    def until(self, done: Callable[[], bool]) -> None:
        wait = Wait("what the host is to come to")
        while not done():
            said = (self.wanted.folder / f"said-{len(self.started) - 1}").read_text()
            wait.check(said)
            assert self.started[-1].poll() is None, said
            time.sleep(0.05)

    def until_killed(self, point: str) -> None:
        """Wait until this life has killed itself there."""
        wait = Wait("a life to kill itself")
        while (code := self.started[-1].poll()) is None:
            said = (self.wanted.folder / f"said-{len(self.started) - 1}").read_text()
            wait.check(f"it did not come to {point!r}: {said}")
            time.sleep(0.05)
        assert code == -9

    def end(self) -> None:
        for one in self.started:
            try:
                os.killpg(one.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            one.wait()


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    running = Process(Wanted(tmp_path, monkeypatch))
    yield running
    running.end()
    running.wanted.close()


def refuses_another(process: Process) -> None:
    """A second one on the folder ends with a sentence."""
    first = process.started[-1]
    lock = process.wanted.state / LOCK_FILE
    process.until(lambda: lock.exists() and lock.read_text().strip() == str(first.pid))
    refused = subprocess.run(
        [sys.executable, "-m", "geartrain_cloud.hosting.main", "--state", str(process.wanted.folder)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert refused.returncode == EXIT_REFUSED, refused.stderr
    assert f"(process {first.pid}) runs on" in refused.stderr


def test_it_goes_on_exactly_after_kill_9(process: Process) -> None:
    wanted = process.wanted
    logs = [
        wanted.add(f"mill{number}.1", number, rows_max=100, isolation=isolation)
        for number, isolation in enumerate(("shared", "own", "own"))
    ]
    for log in logs:
        log.append(1_000)
    wanted.write()
    first = process.start()
    process.until(lambda: all(wanted.status(log.instance).get("rows") for log in logs[:2]))
    assert not all(wanted.is_through(log.instance) for log in logs)
    first.kill()
    first.wait()
    second = process.start()
    refuses_another(process)
    fourth = wanted.add("mill3.1", 3)
    fourth.append(100)
    del wanted.flows["mill2.1"]  # asked while nobody runs
    wanted.write()
    process.until(lambda: all(wanted.is_through(f"mill{number}.1") for number in (0, 1, 3)))
    second.terminate()
    assert second.wait(WAIT_S) == 0
    for log in (*logs[:2], fourth):
        log.assert_tables(wanted.tables(log.instance))
    assert {path.name for path in (wanted.state / "groups").iterdir()} == {"all", "own-mill1.1"}
