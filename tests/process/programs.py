"""The programs of a scenario as processes: agents and ingest, started, killed, frozen, asked how they are.

Under the world. Guarantees: what a program says goes to a file of its own over all its lives; none outlives
its scenario; a stack trace in what one said is found.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.waiting import note_log

ROOT = Path(__file__).resolve().parents[2]
_END_S = 60.0


class Program:
    """One program with one configuration, over several lives."""

    def __init__(self, name: str, module: str, config: Path, said: Path) -> None:
        self.name, self.config, self.said = name, config, note_log(said)
        self.environment: dict[str, str] = {}
        self.lives = 0
        self._command = [sys.executable, "-m", module, "--config", str(config)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin a life."""
        assert self.code is not None or self._process is None, f"{self.name} runs already"
        self.lives += 1
        environment = os.environ | {"PYTHONUNBUFFERED": "1"} | self.environment
        with self.said.open("ab") as said:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=environment, stdout=said, stderr=said
            )

    @property
    def pid(self) -> int:
        """Of the life at hand."""
        assert self._process is not None
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code of the last life, None while it lasts or before the first."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """kill -9, and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def terminate(self) -> int:
        """End it in good order; returns its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(_END_S)

    def freeze(self, *, on: bool = True) -> None:
        """SIGSTOP it, or let it go on."""
        os.kill(self.pid, signal.SIGSTOP if on else signal.SIGCONT)

    def words(self) -> str:
        """All that it said."""
        return self.said.read_text(encoding="utf-8", errors="replace") if self.said.exists() else ""

    def has_trace(self) -> bool:
        """Whether it ever showed a stack trace, which no user should see."""
        return "Traceback (most recent call last)" in self.words()


def status_of(path: Path) -> Mapping[str, Any]:
    """A status file, nothing where there is none yet."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
