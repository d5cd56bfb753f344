"""One supervised process: started in a group of its own, logged, and ended with all that it has started.

Guarantees: it dies with the supervisor, however that dies. When a process has ended, nothing of its group is
left: a killed host's Java would otherwise go on writing beside the next one's.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from geartrain.printable import printable
from geartrain_cloud.bounded_log import bound_log
from geartrain_cloud.errors import FullDiskError, SupervisorError

DELAY_S_MAX = 30.0
"""The longest pause before a process is started again."""
RESTARTS_WINDOW_S = 60.0
"""Deaths within it make the pauses longer."""
DEATHS_KEPT = 16
EMPTY = "(it is empty)"
"""What is told of a log without a line."""

_PR_SET_PDEATHSIG = 1


class ChildState(Enum):
    """WAITING to be started (again), RUNNING, or STOPPED by the supervisor.

    FAILED: it has said that a new start does not help; ENDING: it is wanted no longer, and was asked to end.
    """

    WAITING = "waiting"
    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run, and to run again whenever it ends.

    guarded: the program changes its user, so that only a guard can end it with the supervisor. version: of
    what it reads when it starts, such as a hash of its configuration: with another one it is started anew.
    """

    name: str
    command: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    guarded: bool = False
    version: str = ""

    def is_same(self, other: ChildSpec) -> bool:
        """Whether a process of `other` need not be started anew for this."""
        mine, its = (self.command, self.environment), (other.command, other.environment)
        return mine == its and self.version == other.version


class Child:
    """A `ChildSpec` at work."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.state = ChildState.WAITING
        self.restarts = 0
        self.deaths: deque[float] = deque(maxlen=DEATHS_KEPT)
        self.start_at_s = 0.0
        self.end_by_s = 0.0
        self.why = ""
        self.since_us = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._is_guarded = spec.guarded or sys.platform != "linux"
        # Its writing end closes when the supervisor dies, which is how a guard learns of it.
        self._life = os.pipe() if self._is_guarded else None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process; raises `SupervisorError` when its program is not there, or its log cannot be
        written.
        """
        descriptor = self._open_log()
        try:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                env=os.environ | self.spec.environment,
                start_new_session=True,
                pass_fds=() if self._life is None else self._life[:1],
                # Safe, for the supervisor has no threads.
                preexec_fn=None if self._is_guarded else _dying_with(os.getpid()),  # noqa: PLW1509
            )
        except OSError as error:
            raise SupervisorError(f"{self.spec.name} cannot be started: {error}") from None
        finally:
            os.close(descriptor)
        self.state, self.why, self.since_us = ChildState.RUNNING, "", time.time_ns() // 1_000

    def _open_log(self) -> int:
        log = self.spec.log
        try:
            log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.bound_log()
            return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise unwritable(log, error) from None

    def bound_log(self) -> None:
        """Keep the log of a process that runs for long short; what it writes just now may be lost."""
        bound_log(self.spec.log)

    def _command(self) -> tuple[str, ...]:
        if self._life is None:
            return self.spec.command
        guard = "geartrain_cloud.supervisor.guard"
        return (sys.executable, "-m", guard, str(self._life[0]), *self.spec.command)

    def close(self) -> None:
        """Give back what was taken for a guard; the process has ended."""
        if self._life is not None:
            for end in self._life:
                os.close(end)
            self._life = None

    def reap(self) -> int | None:
        """The exit code once the process has ended (negative: the signal), with the rest of its group."""
        if self._process is None or not _has_ended(self._process):
            return None
        _kill_group(self._process.pid)
        code = self._process.wait()
        self._process = None
        return code

    def terminate(self) -> None:
        """Ask the process to end; its own children are its own to end."""
        # Not by `Popen.terminate`, which reaps one that has just ended, and with it the number of its group.
        if self._process is not None and not _has_ended(self._process):
            os.kill(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End the process and its group at once."""
        if self._process is not None:
            _kill_group(self._process.pid)

    def plan_restart(self) -> None:
        """Set when to start again, with doubling delays."""
        now = time.monotonic()
        self.deaths.append(now)
        recent = sum(now - death_s <= RESTARTS_WINDOW_S for death_s in self.deaths)
        self.restarts += 1
        self.start_at_s = now + min(DELAY_S_MAX, 0.1 * 2 ** (recent - 1))
        self.state = ChildState.WAITING


def unwritable(path: Path, error: OSError) -> SupervisorError:
    """The error of a file in the state folder that cannot be written, most often because the disk is full."""
    kind = FullDiskError if error.errno in (errno.ENOSPC, errno.EDQUOT) else SupervisorError
    reason = error.strerror or str(error)
    return kind(f"{path} cannot be written: {reason}; make room on its disk, or name a folder on another one")


def last_lines(path: Path, count: int = 12) -> str:
    """The last lines of a log, indented, control characters escaped: they may come from a device."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16_384))
            text = file.read().decode(errors="backslashreplace")
    except OSError as error:
        return f"  ({error})"
    lines = [line for line in text.splitlines() if line.strip()][-count:]
    return "\n".join("  " + printable(line) for line in lines) or f"  {EMPTY}"


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # The group is empty; macOS says so by refusing to signal one of zombies only.
        return


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process is over; where the system can tell, without reaping it.

    As long as it is a zombie nobody else gets its number, which is also that of its group.
    """
    if sys.platform == "darwin":
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def how_it_ended(code: int) -> str:
    """An exit code of `subprocess` in words."""
    if code >= 0:
        return f"ended with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _dying_with(parent: int) -> Callable[[], None]:
    """What a new process runs before its program: on Linux, to be killed when `parent` dies."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return prepare
