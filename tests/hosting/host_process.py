"""`gear-spark` as a process on one state folder, one life after another, each in a group of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from geartrain_cloud.hosting.main import EXIT_REFUSED
from geartrain_cloud.spark.lock import LOCK_FILE
from tests.hosting.hosted import HostFolder
from tests.waiting import WAIT_S, Wait, note_log

ROOT = Path(__file__).parents[2]
PROGRAM = "geartrain_cloud.hosting.main"

W = TypeVar("W", bound=HostFolder)


class HostProcess(Generic[W]):
    """The folder, and the lives that were started on it."""

    def __init__(self, wanted: W) -> None:
        self.wanted = wanted
        self.started: list[subprocess.Popen[str]] = []

    def start(self, entry: str = PROGRAM, **environment: str) -> subprocess.Popen[str]:
        """Begin a life; entry: the module that is run in the place of production's."""
        log = note_log(self.wanted.folder / f"said-{len(self.started)}").open("w")
        started = subprocess.Popen(
            self._command(entry),
            cwd=ROOT,
            stderr=log,
            text=True,
            start_new_session=True,
            env=os.environ | environment,
        )
        self.started.append(started)
        return started

    def read_log(self) -> str:
        """What the last life has said."""
        return (self.wanted.folder / f"said-{len(self.started) - 1}").read_text()

    def until(self, done: Callable[[], bool]) -> None:
        """Wait until something is so, while the last life lasts."""
        wait = Wait("what the host is to come to")
        while not done():
            wait.check(self.read_log())
            assert self.started[-1].poll() is None, self.read_log()
            time.sleep(0.02)

    def until_killed(self, point: str) -> None:
        """Wait until the last life has killed itself there."""
        wait = Wait("a life to kill itself")
        while (code := self.started[-1].poll()) is None:
            wait.check(f"it did not come to {point!r}: {self.read_log()}")
            time.sleep(0.05)
        assert code == -9, self.read_log()

    def refuse_another(self) -> None:
        """A second process on the folder ends with a sentence."""
        first, lock = self.started[-1], self.wanted.state / LOCK_FILE
        self.until(lambda: lock.exists() and lock.read_text().strip() == str(first.pid))
        refused = subprocess.run(
            self._command(PROGRAM), capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        assert refused.returncode == EXIT_REFUSED, refused.stderr
        sentences = [line for line in refused.stderr.splitlines() if line.startswith("gear-spark: ")]
        assert len(sentences) == 1, refused.stderr
        assert f"(process {first.pid}) runs on" in sentences[0]

    def _command(self, entry: str) -> list[str]:
        return [sys.executable, "-m", entry, "--state", str(self.wanted.folder)]

    def end(self) -> None:
        """End all lives, with their Java."""
        for one in self.started:
            try:
                os.killpg(one.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            one.wait()
