"""The agents of a device as processes: started, listened to, asked to end, killed with all that they started.

Under `Apps`. Guarantees: an agent's configuration is a file of mode 0600 in its own folder. What it prints is
kept there in `agent.log`, which is bounded. It does not outlive the parent.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import deque
from pathlib import Path

import msgspec
from msgspec.structs import replace

from geartrain.adapters.files import make_private_folder, write_private
from geartrain.control.app_reasons import AppCode, app_sentence
from geartrain.control.states import App, AppState, Wanted
from geartrain.errors import ConfigError, DiskError
from geartrain.errors.reason import NO_REASON, Reason
from geartrain.ports import StateSize
from geartrain.printable import printable
from geartrain_edge.parent.apps import Health
from geartrain_edge.parent.children import Child, children
from geartrain_edge.parent.config import DeviceConfig
from geartrain_edge.parent.limits import Limits, memory_of
from geartrain_edge.parent.measuring import Spent, spent_by
from geartrain_edge.settings import CLAIMS_FILE, COMMITTED_FILE, DRAIN_FILE, SHARED_FOLDER

LOG_BYTES_MAX = 1 << 20
"""A log that is longer is set aside as `agent.log.1`, which it replaces."""
STILL_S = 15.0
"""A process whose status file says the same for so long is said to stand still."""
_LINES_KEPT = 20
_LINE_BYTES_MAX = 4_096
_SAID = "gear-agent: "
_STATES = {
    "running": AppState.RUNNING,
    "blocked": AppState.RUNNING,
    "moving": AppState.RUNNING,
    "draining": AppState.DRAINING,
    "finished": AppState.ENDED,
    "drained": AppState.ENDED,
}
_WHY = {"blocked": "its spool is full, so its sources wait", "greeting": "ingest has not answered it yet"}


class _Status(msgspec.Struct, frozen=True):
    """What the parent reads of an agent's `status.json`."""

    state: str = ""
    reason: str = ""
    alarm: str = ""
    pid: int = 0
    lacks: tuple[str, ...] | None = None
    written_at_us: int = 0
    uncommitted_s: float = 0.0
    records_read: int = 0
    awaits_state: bool = False
    unmoved: str = ""
    claims_no_more: bool = False
    kept: dict[str, StateSize] = {}
    left_out: tuple[str, ...] = ()

    @property
    def awaits(self) -> Reason:
        """Why it runs its former steps; `NO_REASON` where it does not."""
        if not self.awaits_state:
            return NO_REASON
        code = AppCode.STATE_STAYS if self.claims_no_more else AppCode.AWAITS_STATE
        return Reason(code, {"unmoved": self.unmoved} if self.unmoved else {})


_decode_status = msgspec.json.Decoder(_Status).decode


class AgentProcess:
    """One agent; its output is read in the running event loop."""

    def __init__(self, child: Child, folder: Path, log: _Log, limits: Limits) -> None:
        self._child, self._folder, self._log = child, folder, log
        self._code: int | None = None
        self._seen, self._seen_s = 0, time.monotonic()
        self._limits, self._exceeded = limits, ""

    def ended(self) -> int | None:
        """Its exit code once it is over, as it soon is when it takes more than it may; what is left of its
        group is killed then.
        """
        if self._code is None and not self._exceeded:
            self._exceeded = self._limits.exceeded_by(self._child.pid)
            if self._exceeded:
                _signal_group(self._child.pid, signal.SIGKILL)
        if self._code is None and self._child.is_over():
            _signal_group(self._child.pid, signal.SIGKILL)
            self._code = self._child.reap()
            self._log.close()
        return self._code

    async def wait(self, seconds: float) -> None:
        """Return after so long, or once its output has ended."""
        try:
            async with asyncio.timeout(seconds):
                await self._log.ended.wait()
        except TimeoutError:
            return
        await asyncio.sleep(0.02)  # its output has ended, and itself very soon

    def reasons(self) -> tuple[Reason, ...]:
        """Why it does not run as it is to, by its status file."""
        status = self._said()
        return (status.awaits,) if status is not None and status.awaits else ()

    def state(self) -> tuple[AppState, str]:
        """What its status file says, if that is its own."""
        status = self._said()
        if status is None:
            return AppState.STARTING, ""
        still_s = time.monotonic() - self._look_s(status)
        still = f"it has made no step for more than {STILL_S:g} s" if still_s > STILL_S else ""
        why = (
            status.alarm
            or status.reason
            or still
            or app_sentence(status.awaits)
            or _WHY.get(status.state, "")
        )
        said = "; ".join(filter(None, (why, *status.left_out)))
        return _STATES.get(status.state, AppState.STARTING), said

    def lacks(self) -> tuple[str, ...] | None:
        """The sources that the device does not have, as its status file says."""
        status = self._said()
        return None if status is None else status.lacks

    def health(self) -> Health:
        """What its status file and the system say. It makes no step while its status stays the
        same, or while records that it has read are not committed.
        """
        status, now_s = self._said(), time.monotonic()
        still_s = max(now_s - self._look_s(status), 0.0 if status is None else status.uncommitted_s)
        return Health(still_s, memory_of(self._child.pid))

    def spent(self) -> Spent | None:
        """What its status file and the system say."""
        status = self._said()
        spent = None if status is None else spent_by(self._child.pid, status.records_read)
        return None if spent is None or status is None else replace(spent, kept=status.kept)

    def _look_s(self, status: _Status | None) -> float:
        """Since when its status file says the same, monotonic seconds."""
        if status is not None and status.written_at_us != self._seen:
            self._seen, self._seen_s = status.written_at_us, time.monotonic()
        return self._seen_s

    def _said(self) -> _Status | None:
        """Its status file; None until it has written one."""
        try:
            status = _decode_status((self._folder / "status.json").read_bytes())
        except (OSError, msgspec.DecodeError):
            return None
        return status if status.pid == self._child.pid else None

    def sentence(self) -> str:
        """What it was ended for, or what the agent said last; else what its status says of its failure, or
        the last line of its log. Paths in it are relative.
        """
        if self._exceeded:
            return self._exceeded
        status = self._said()
        reason = status.reason if status is not None and status.state == "failed" else ""
        last = self._log.lines[-1] if self._log.lines else ""
        return (self._log.said or reason or last).replace(f"{self._folder.parent}/", "")

    def speaks(self) -> bool:
        """Whether its log has a line that is for people."""
        return bool(self._log.said)

    def terminate(self) -> None:
        """SIGTERM."""
        if self.ended() is None:
            os.kill(self._child.pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to its group."""
        if self.ended() is None:
            _signal_group(self._child.pid, signal.SIGKILL)


class AgentProcesses:
    """`Starter` for the agents of one device."""

    def __init__(self, config: DeviceConfig, reserved: frozenset[str]) -> None:
        """`reserved`: names in the device's folder that no instance may have."""
        self._config, self._reserved, self._children = config, reserved, children()

    def folder(self, instance: str) -> Path:
        """Where an instance has its spool, status, configuration and log; raises `ConfigError`."""
        if instance in self._reserved:
            raise ConfigError(f"instance {instance} has the name of a file of this device's parent")
        return self._config.state / instance

    async def start(self, app: App) -> AgentProcess:
        """Write what the agent reads, and start it; raises `StartError`, too."""
        folder = self.folder(app.instance)
        try:
            file = folder / "agent.toml"
            write_private(file, self._config.agent_toml(app, folder))
            (self._config.state / CLAIMS_FILE).touch(0o600)  # which an app may not make beside its folder
            (self._config.state / SHARED_FOLDER).mkdir(0o700, exist_ok=True)
            make_private_folder(self._config.secrets(app.instance))
            _mark(folder, is_draining=app.wanted is Wanted.DRAIN)
        except OSError as error:
            raise _unwritable(folder, error) from None
        return await self._start(app, file)

    async def rehearse(self, app: App) -> AgentProcess:
        """The same, beside the process that runs."""
        folder = self.folder(app.instance)
        file = folder / "rehearsal.toml"
        try:
            write_private(file, self._config.agent_toml(app, folder, is_rehearsal=True))
        except OSError as error:
            raise _unwritable(folder, error) from None
        return await self._start(app, file)

    async def _start(self, app: App, file: Path) -> AgentProcess:
        folder = file.parent
        reading, writing = os.pipe()
        try:
            child = await self._children.start(["--config", str(file)], writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        limits = self._config.limits(app.instance)
        limits.set_on(child.pid)
        return AgentProcess(child, folder, _Log(reading, folder / "agent.log"), limits)

    def committed(self, instance: str) -> str:
        """What the agent's mark says."""
        try:
            return (self.folder(instance) / COMMITTED_FILE).read_text()
        except (OSError, ValueError, ConfigError):
            return ""

    async def drain(self, instance: str) -> None:
        """Leave the mark that asks for it."""
        folder = self.folder(instance)
        try:
            _mark(folder, is_draining=True)
        except OSError as error:
            raise _unwritable(folder, error) from None

    async def purge(self, instance: str) -> None:
        """Remove the instance's folder."""
        folder = self._config.state / instance
        if instance in self._reserved or not folder.is_dir() or folder.is_symlink():
            return
        import shutil  # which brings two megabytes of compression, for once in an app's life

        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise _unwritable(folder, error) from None


class _Log:
    """What an agent prints: to a file of bounded size, with the last lines at hand."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor, self._path, self._rest = descriptor, path, b""
        self.ended = asyncio.Event()
        self.lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self.said = ""
        """The last line that is for people."""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)
        self._is_open = True

    def close(self) -> None:
        """Take what is left, then let the pipe go."""
        while self._is_open:
            self._read(is_last=True)

    def _read(self, *, is_last: bool = False) -> None:
        try:
            data = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            data = b""
            if not is_last:
                return
        if data:
            self._take(data)
            return
        self._take(b"\n" if self._rest else b"")
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._is_open = False
        self.ended.set()

    def _take(self, data: bytes) -> None:
        *whole, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:_LINE_BYTES_MAX]
        for line in whole:
            if text := printable(line[:_LINE_BYTES_MAX].decode(errors="backslashreplace")).strip():
                self.lines.append(text)
                if text.startswith(_SAID):
                    self.said = text.removeprefix(_SAID)
        try:
            self._write(data)
        except OSError:  # a log is a courtesy: the app goes on without it
            return

    def _write(self, data: bytes) -> None:
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, data)
            is_long = os.fstat(handle).st_size > LOG_BYTES_MAX
        finally:
            os.close(handle)
        if is_long:
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))


def _mark(folder: Path, *, is_draining: bool) -> None:
    mark = folder / DRAIN_FILE
    if is_draining:
        make_private_folder(folder)
        write_private(mark, b"")
    else:
        mark.unlink(missing_ok=True)


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return  # nothing of it is left


def _unwritable(folder: Path, error: OSError) -> DiskError:
    return DiskError(f"{folder} cannot be written: {error.strerror or error}: make room on its disk")
