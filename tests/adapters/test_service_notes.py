"""Notes to a service manager: over a real socket, of real programs, and of a loop that really hangs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain.adapters.service_notes import ServiceNotes
from tests.waiting import WAIT_S, Wait

ROOT = Path(__file__).resolve().parents[2]
WATCHDOG_US = 400_000

HANGING = """
import pathlib, time
from geartrain import Flow, Table
from geartrain.source import Batch, Source


class Sensor:
    name, out_of_orderness_us, live_clock = "s", 0, False

    async def read(self, position, limit):
        while pathlib.Path("hang").exists():
            time.sleep(0.01)  # against the contract: the event loop stands still
        return Batch([], [], [], position)

    async def close(self):
        pass


class Sensors(Source[int]):
    def open(self, device, step, out):
        return [Sensor()]


flow = Flow("hanging")
flow.source("numbers", Sensors(), out=int).sink("out", Table("out"))
"""


class Listening:
    """What systemd is to a service: a socket, and how long it waits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    @property
    def environment(self) -> dict[str, str]:
        return {"NOTIFY_SOCKET": str(self.path), "WATCHDOG_USEC": str(WATCHDOG_US)}

    def hear(self, within_s: float) -> list[str]:
        """The lines of the next datagram; none where none comes in time."""
        self._socket.settimeout(within_s)
        try:
            return self._socket.recv(65_536).decode().split("\n")
        except TimeoutError:
            return []

    def hear_until(self, line: str) -> list[str]:
        """All lines up to one that is `line`."""
        heard: list[str] = []
        wait = Wait(f"the note {line}")
        while line not in heard:
            heard += self.hear(1)
            wait.check(heard)
        return heard

    def drain(self) -> None:
        """Forget what has come."""
        while self.hear(0.001):
            pass

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Listening]:
    found = Listening(tmp_path / "notify")
    yield found
    found.close()


def test_what_a_service_says_from_its_start_to_its_end(manager: Listening) -> None:
    now_s = [10.0]
    environment = manager.environment | {"OTHER": "stays"}
    notes = ServiceNotes(environment, lambda: now_s[0])
    assert environment == {"OTHER": "stays"}, "a child would speak in the name of its parent"
    notes.alive("starts\nSpark")
    assert manager.hear(1) == ["EXTEND_TIMEOUT_USEC=300000000", "STATUS=starts\\nSpark"]
    notes.ready()
    assert manager.hear(1) == ["READY=1"]
    notes.alive("runs")
    assert manager.hear(0.01) == [], "it spoke before half of the time was over"
    now_s[0] += WATCHDOG_US / 2_000_000
    notes.alive("runs")
    assert manager.hear(1) == ["WATCHDOG=1", "STATUS=runs"]
    now_s[0] += WATCHDOG_US / 2_000_000
    notes.alive("runs")
    assert manager.hear(1) == ["WATCHDOG=1"]
    notes.stopping()
    assert manager.hear(1) == ["STOPPING=1"]


def test_a_manager_without_a_file_is_found_by_its_abstract_name() -> None:
    name = f"geartrain-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        manager.settimeout(1)
        ServiceNotes({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert manager.recv(100) == b"READY=1"


def test_that_it_is_ready_is_said_once_there_is_somebody_to_hear_it(tmp_path: Path) -> None:
    now_s = [0.0]
    path = tmp_path / "notify"
    notes = ServiceNotes({"NOTIFY_SOCKET": str(path)}, lambda: now_s[0])
    notes.ready()
    notes.alive()
    late = Listening(path)
    now_s[0] += notes.interval_s
    notes.alive("runs")
    assert late.hear(1) == ["READY=1", "WATCHDOG=1", "STATUS=runs"]
    late.close()


def test_a_watchdog_over_another_process_sets_no_pace(manager: Listening) -> None:
    ours = ServiceNotes(manager.environment | {"WATCHDOG_PID": str(os.getpid())})
    others = ServiceNotes(manager.environment | {"WATCHDOG_PID": "1"})
    assert (ours.interval_s, others.interval_s) == (WATCHDOG_US / 2_000_000, 5.0)
    nobody = ServiceNotes({})
    nobody.ready()
    nobody.alive("nobody hears it")
    assert manager.hear(0.01) == []


def test_an_agent_whose_event_loop_hangs_is_silent(manager: Listening, tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    (tmp_path / "agent.toml").write_text(
        f'device = "d1"\nflow = "hanging:flow"\nstate = "{tmp_path}/state"\nbroker = "127.0.0.1:1"\n'
    )
    command = [sys.executable, "-m", "geartrain_edge.agent.process", "--config", "agent.toml"]
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = os.environ | manager.environment | {"PYTHONPATH": paths}
    agent = subprocess.Popen(command, cwd=tmp_path, env=environment)
    try:
        heard = manager.hear_until("STATUS=hanging running")
        assert "READY=1" in heard
        manager.hear_until("WATCHDOG=1")
        (tmp_path / "hang").touch()
        time.sleep(WATCHDOG_US / 1_000_000)
        manager.drain()
        assert manager.hear(3 * WATCHDOG_US / 1_000_000) == [], "a hung loop said that it lives"
        (tmp_path / "hang").unlink()
        manager.hear_until("WATCHDOG=1")
        agent.send_signal(signal.SIGTERM)
        manager.hear_until("STOPPING=1")
        assert agent.wait(WAIT_S) == 0
    finally:
        agent.kill()
        agent.wait()


def test_the_parent_of_a_devices_agents_is_a_service(manager: Listening, tmp_path: Path) -> None:
    (tmp_path / "device.toml").write_text('device = "d1"\nstate = "state"\nbroker = "127.0.0.1:1"\n')
    command = [sys.executable, "-m", "geartrain_edge.agent.process", "--device", "device.toml"]
    parent = subprocess.Popen(command, cwd=tmp_path, env=os.environ | manager.environment)
    try:
        assert "READY=1" in manager.hear_until("STATUS=no apps")
        manager.hear_until("WATCHDOG=1")
        parent.send_signal(signal.SIGSTOP)
        time.sleep(0.05)
        manager.drain()
        assert manager.hear(2 * WATCHDOG_US / 1_000_000) == []
        parent.send_signal(signal.SIGCONT)
        manager.hear_until("WATCHDOG=1")
        parent.send_signal(signal.SIGTERM)
        manager.hear_until("STOPPING=1")
        assert parent.wait(WAIT_S) == 0
    finally:
        parent.kill()
        parent.wait()


def test_control_is_a_service(manager: Listening, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "geartrain_cloud.control.main", "--state", str(tmp_path / "platform")]
    control = subprocess.Popen(command, env=os.environ | manager.environment)
    try:
        manager.hear_until("READY=1")
        manager.hear_until("WATCHDOG=1")
        control.send_signal(signal.SIGTERM)
        manager.hear_until("STOPPING=1")
        assert control.wait(WAIT_S) == 0
    finally:
        control.kill()
        control.wait()


def test_a_process_that_goes_on_as_another_program_is_not_said_to_stop(manager: Listening) -> None:
    environment = manager.environment | {"WATCHDOG_PID": str(os.getpid()), "OTHER": "x"}
    notes = ServiceNotes(environment)
    notes.ready()
    assert environment == {"OTHER": "x"}
    assert notes.hand_on() == manager.environment | {"WATCHDOG_PID": str(os.getpid())}
    notes.stopping()
    assert manager.hear(0.01) == ["READY=1"]
