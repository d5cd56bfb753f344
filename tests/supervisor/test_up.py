"""`gear up` as a real process: it comes up, keeps what dies, refuses a second one, and ends whole."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from geartrain_client.rest.door import find_door
from geartrain_cloud.broker import is_ready
from geartrain_cloud.control_store.database import LAYOUT
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.errors import PortError
from geartrain_cloud.platform.config import read_platform
from geartrain_cloud.platform.door import read_door
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from geartrain_cloud.supervisor import named_ports
from geartrain_cloud.supervisor.named_ports import check_ports
from geartrain_cloud.supervisor.supervise import StopSignal
from geartrain_cloud.supervisor.up import bring_up
from tests.control.platform_client import client_of
from tests.ports import free_port
from tests.waiting import WAIT_S, wait_for

pytestmark = pytest.mark.slow


def until(condition: Callable[[], Any], what: str) -> Any:
    return wait_for(what, condition)


def own_port(state: Path) -> None:
    """Give the platform a port of its own: no other one takes it while control is down."""
    state.mkdir(mode=0o700, exist_ok=True)
    settings = state / "platform.toml"
    if not settings.exists():
        settings.write_text(f"[control]\nport = {free_port()}\n", encoding="utf-8")


@contextmanager
def platform(state: Path) -> Iterator[subprocess.Popen[str]]:
    own_port(state)
    command = [sys.executable, "-m", "geartrain_client.cli", "up", "--state", str(state)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def pids(state: Path) -> dict[str, int]:
    found = read_report(PlatformPlaces(state).processes)
    return {name: one["pid"] for name, one in found.items() if one["pid"] and one["state"] == "running"}


def until_restarted(state: Path, name: str, former: int) -> None:
    until(lambda: pids(state).get(name, former) != former, f"{name} again")


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_platform_comes_up_lives_through_kills_and_ends_whole(tmp_path: Path) -> None:
    with platform(tmp_path) as process:
        client_of(tmp_path)
        first = until(lambda: len(found := pids(tmp_path)) == 5 and found, "five processes")
        address = read_report(PlatformPlaces(tmp_path).broker)["address"]
        host, _, port = address.rpartition(":")
        for name in ("control", "broker"):
            os.kill(first[name], signal.SIGKILL)
            until_restarted(tmp_path, name, first[name])
        until(lambda: is_ready(host, int(port)), "the broker at its old port")
        client = client_of(tmp_path)
        restarts = {one["name"]: one["restarts"] for one in client.get("/status")["processes"]}
        assert restarts == {"broker": 1, "control": 1, "downlink": 0, "ingest": 0, "spark": 0}
        second = subprocess.run(
            [sys.executable, "-m", "geartrain_client.cli", "up", "--state", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert second.returncode == 2
        assert f"a platform runs in {tmp_path} already (process {process.pid})" in second.stderr
        last = pids(tmp_path)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
        assert "control was killed by SIGKILL and is started again (1)" in said
        assert not any(is_alive(pid) for pid in last.values())


def test_after_a_kill_of_gear_up_the_next_one_goes_on_at_the_same_address(tmp_path: Path) -> None:
    with platform(tmp_path) as process:
        client = client_of(tmp_path)
        client.ask("POST", "/devices", {"name": "d1", "labels": {"kind": "truck"}}, expect=201)
        address = read_report(PlatformPlaces(tmp_path).broker)["address"]
        running = until(lambda: len(found := pids(tmp_path)) == 5 and found, "five processes")
        process.kill()
        process.wait()
        until(lambda: not any(is_alive(pid) for pid in running.values()), "the end of all children")
    with platform(tmp_path) as process:
        until(lambda: read_report(PlatformPlaces(tmp_path).door).get("pid") != running["control"], "control")
        again = client_of(tmp_path)
        assert again.token == client.token
        assert [one["name"] for one in again.get("/devices")["items"]] == ["d1"]
        assert read_report(PlatformPlaces(tmp_path).broker)["address"] == address
        down = subprocess.run(
            [sys.executable, "-m", "geartrain_client.cli", "down", "--state", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert (down.returncode, down.stdout) == (0, f"the platform in {tmp_path} has ended\n")
        assert process.wait(WAIT_S) == 0


def test_down_without_a_platform_says_so(tmp_path: Path) -> None:
    down = subprocess.run(
        [sys.executable, "-m", "geartrain_client.cli", "down", "--state", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (down.returncode, down.stdout) == (0, f"no platform runs in {tmp_path}\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('broker = "nowhere"', "is not HOST:PORT"),
        ("[spark]\nrows_max = 0", "spark.rows_max"),
        ('broker = { address = "127.0.0.1:1883", tls = true }', "broker_certs"),
    ],
)
def test_a_mistake_in_the_configuration_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "platform.toml").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "geartrain_client.cli", "up", "--config", str(tmp_path / "platform.toml")],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_port_that_another_program_has_is_said_and_commands_find_the_platform_at_the_next(
    tmp_path: Path,
) -> None:
    """The control before has left its port in the state folder, and a listener has that now."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        door = {"url": f"http://127.0.0.1:{taken}", "token_file": str(tmp_path / "control.token"), "pid": 1}
        PlatformPlaces(tmp_path).door.write_text(json.dumps(door))
        (tmp_path / "platform.toml").write_text("")  # names no port
        with platform(tmp_path) as process:
            found = until(
                lambda: (found := read_door(PlatformPlaces(tmp_path))) and found.pid != 1 and found, "control"
            )
            assert found.taken[0] == taken
            assert found.port not in found.taken
            assert find_door(None, tmp_path, {}).port == found.port
            assert client_of(tmp_path).get("/status")["url"] == found.url
            assert process.stderr is not None
            said = list(takewhile(lambda line: not line.startswith("the platform is up"), process.stderr))
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=WAIT_S)
    ports = " and ".join(map(str, found.taken))
    verb = "port {} is" if len(found.taken) == 1 else "ports {} are"
    why = f"{verb.format(ports)} taken by another program, so control listens on {found.port} instead"
    assert [line for line in said if line.startswith(why)], said
    assert f"control answers at {found.url}\n" in said


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('broker = "amqtt"\nbroker_port = {port}\n', "broker_port"),
        ("[control]\nport = {port}\n", "control.port"),
        ('[fleet]\naddress = "localhost"\nmqtt_port = {port}\ndevice_port = {free}\n', "fleet.mqtt_port"),
        ('[fleet]\naddress = "hub.example"\nmqtt_port = {free}\ndevice_port = {port}\n', "fleet.device_port"),
    ],
)
def test_a_named_port_that_another_program_has_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, key: str
) -> None:
    monkeypatch.setattr(named_ports, "PORT_FREE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        (tmp_path / "platform.toml").write_text(text.format(port=port, free=free_port()))
        config = read_platform(state=tmp_path)
        said: list[str] = []
        refusal = rf"{key}: another program listens on (127\.0\.0\.1:)?{port}: stop it, or give another port"
        with pytest.raises(PortError, match=refusal), StopSignal() as stop:
            bring_up(config, stop, said.append, lambda url, children: True)
        assert not said
        assert not PlatformPlaces(tmp_path).broker.exists()
    check_ports(config)


def test_a_named_port_that_is_let_go_in_time_is_waited_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        (tmp_path / "platform.toml").write_text(f"[control]\nport = {port}\n")
        ends = threading.Timer(0.3, other.close)
        ends.start()
        check_ports(read_platform(state=tmp_path))
        assert other.fileno() == -1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[control]\nport = 9443\n[fleet]\naddress = "localhost"\ndevice_port = 9443\n',
            "control.port and fleet.device_port are both 9443: give one of them another",
        ),
        (
            '[control]\nhost = "192.0.2.7"\nport = 9443\ntls = true\n[fleet]\naddress = "localhost"\n',
            r"control.port: this machine has no address 192\.0\.2\.7 to listen on: give one of its own",
        ),
    ],
)
def test_ports_that_nothing_can_listen_on_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "platform.toml").write_text(text)
    with pytest.raises(PortError, match=said):
        check_ports(read_platform(state=tmp_path))


def test_an_older_version_starts_nothing_on_the_store_of_a_later_one(tmp_path: Path) -> None:
    ControlStore(PlatformPlaces(tmp_path).control, lambda: 1).close()
    with closing(sqlite3.connect(PlatformPlaces(tmp_path).control)) as database:
        database.execute(f"PRAGMA user_version = {LAYOUT.version + 1}")
    with platform(tmp_path) as process:
        _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    known = LAYOUT.version
    refusal = f"has layout {known + 1}, and this version of Geartrain knows {known}: start the version"
    assert said.splitlines()[-1].startswith(f"gear: the control store {tmp_path}/")
    assert refusal in said.splitlines()[-1]
    assert not PlatformPlaces(tmp_path).log.exists()
    assert not PlatformPlaces(tmp_path).broker.exists()
