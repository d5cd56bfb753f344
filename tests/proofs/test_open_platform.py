"""A platform that is open to other machines: real mosquitto, and devices that join, renew and are revoked.

The tables are compared with sums made here in plain Python from the same files.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.errors import NetError
from geartrain.wire.topics import desired_topic
from geartrain_edge.identity import Identity
from geartrain_edge.parent.config import read_device
from tests.control.platform_client import client_of
from tests.ports import free_port
from tests.proofs.test_platform import FLOW, gear, until, until_ended, write_readings
from tests.supervisor.test_up import pids, platform
from tests.waiting import WAIT_S, Wait, in_time

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.mosquitto]

LIFE_S = 60.0
AGENT = ("-m", "geartrain_edge.agent.process")


def open_platform(state: Path) -> None:
    state.mkdir()
    (state / "platform.toml").write_text(
        f'[fleet]\naddress = "localhost"\nmqtt_port = {free_port()}\ndevice_port = {free_port()}\n'
        f"certificate_days = {LIFE_S / 86_400!r}\n"
    )


def become_author(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder, with keys by which code is signed: a joined device runs no other."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GEARTRAIN_KEYS", str(folder / "keys"))
    subprocess.run([sys.executable, "-m", "geartrain_client.cli", "key", "new"], check=True, timeout=WAIT_S)


def join(state: Path, name: str, folder: Path, python: str = sys.executable) -> Path:
    """A device of its own, by the line that `gear device add` prints; its file. python: has its program."""
    line = gear(state, "device", "add", name, "--label", "kind=truck").split()
    assert line[:2] == ["gear-agent", "join"]
    file = folder / name / "device.toml"
    command = [python, *AGENT, *line[1:], "--device", str(file)]
    done = subprocess.run(command, check=False, timeout=WAIT_S, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return file


def copied(file: Path) -> Path:
    """A copy of a device's card, for another machine."""
    folder = file.parent.with_name(f"{file.parent.name}-copy")
    shutil.copytree(file.parent, folder)
    copy = folder / file.name
    copy.write_text(copy.read_text().replace(str(file.parent), str(folder)))
    return copy


@contextmanager
def running(file: Path, where: Path, python: str = sys.executable) -> Iterator[subprocess.Popen[bytes]]:
    """The parent of a device's agents, in a folder with the flow. python: has the device's program."""
    with (
        (file.parent / "log").open("wb") as log,
        subprocess.Popen(
            [python, *AGENT, "--device", str(file)], stdout=log, stderr=log, cwd=where
        ) as process,
    ):
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT_S)


class Held:
    """A connection to the broker that shows the certificate of a device, as the device itself would."""

    def __init__(self, file: Path) -> None:
        self._config = read_device(str(file))

    @property
    def net(self) -> AiomqttNet:
        broker = self._config.broker
        return AiomqttNet(broker.host, broker.port, tls_context=broker.tls_context)

    async def ends(self, is_open: asyncio.Event) -> str:
        """Stay connected; why it has ended."""
        try:
            async with self.net.connect("probe") as connection:
                await connection.subscribe(desired_topic(self._config.device))
                is_open.set()
                async for _ in connection.incoming():
                    pass
        except NetError as error:
            return str(error)
        return ""

    async def is_let_in(self) -> bool:
        try:
            async with self.net.connect("probe") as connection:
                await connection.subscribe(desired_topic(self._config.device))
                return True
        except NetError:
            return False


async def is_revoked_for_good(revoke: list[str], lost: Held, other: Held) -> None:
    """Revoke a device: its open connection ends and none comes again, and another's comes again."""
    is_open = asyncio.Event()
    ends = asyncio.create_task(lost.ends(is_open))
    await in_time("an open connection", is_open.wait())
    await asyncio.to_thread(subprocess.run, revoke, check=True, capture_output=True)
    assert await in_time("the end of the connection", ends)
    wait = Wait("a device to be let in")
    while not await other.is_let_in():
        wait.check()
    for _ in range(5):
        assert not await lost.is_let_in()
        await asyncio.sleep(0.2)
    assert await other.is_let_in()


def test_devices_join_renew_and_are_revoked_and_no_row_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    become_author(tmp_path, monkeypatch)  # a joined device runs signed code alone
    (tmp_path / "heat.py").write_text(FLOW, encoding="utf-8")
    files = {name: tmp_path / f"{name}.csv" for name in ("truck-1", "here")}
    highs = write_readings(files["truck-1"], range(4), 1) | write_readings(files["here"], range(4, 9), 2)
    own = [f"--device-set={name}:readings.path={path}" for name, path in files.items()]
    state, devices = tmp_path / "state", tmp_path / "devices"
    open_platform(state)
    with platform(state):
        client = client_of(state)
        good, bad = (join(state, name, devices) for name in ("truck-1", "truck-2"))
        gear(state, "device", "add", "here", "--local", "--label", "kind=car", "--label", "zone=yard")
        first = Identity(good.parent / "state").term()
        with running(good, tmp_path), running(bad, tmp_path):
            until(lambda: all(one["online"] for one in client.get("/devices")["items"]), "three in contact")
            listed = json.loads(gear(state, "device", "ls", "--label", "kind=truck,zone!=yard", "--json"))
            assert [one["name"] for one in listed] == ["truck-1", "truck-2"]
            assert all(one["certificate_until_us"] for one in listed)
            with running(copied(bad), tmp_path):
                said = until(lambda: client.get("/devices/truck-2")["clones"], "the two of truck-2")
            assert said.startswith("two devices are truck-2")
            assert said in gear(state, "device", "ls").replace("\n", " ")
            assert not any(
                one["clones"] for one in client.get("/devices")["items"] if one["name"] != "truck-2"
            )
            more = [*own, f"--device-set=truck-2:readings.path={files['truck-1']}", "--no-wait", "--json"]
            made = gear(state, "submit", "heat:flow", "--devices", "kind!=plane,zone!=lab", *more)
            assert json.loads(made)["devices"] == ["here", "truck-1", "truck-2"]
            gear(state, "kill", "heat", "--now", "--purge")
            for name in ("truck-1", "here"):
                gear(state, "device", "label", name, "zone=field")
            named = ("--name", "field", "--devices", "zone=field", "--no-wait")
            gear(state, "submit", "heat:flow", *named, *own)
            revoke = [sys.executable, "-m", "geartrain_client.cli", "device", "revoke", "truck-2"]
            revoke += ["--state", str(state)]
            asyncio.run(is_revoked_for_good(revoke, Held(bad), Held(good)))
            until_ended(client, "field")
            assert dict(client.get("/apps/field/tables/highs")["rows"]) == highs
            # The certificate with which truck-1 came is over; the next connection shows the one after it.
            until(lambda: time.time() > first.expires_s + 1, "the end of the first certificate")
            assert Identity(good.parent / "state").term().issued_s > first.issued_s
            former, began_us = pids(state)["broker"], time.time_ns() // 1_000
            os.kill(former, signal.SIGKILL)
            until(lambda: pids(state).get("broker", former) != former, "the broker again")
            until(lambda: client.get("/devices/truck-1")["seen_us"] > began_us, "truck-1 again")
            shown = {one["name"]: one for one in json.loads(gear(state, "device", "ls", "--json"))}
            assert shown["truck-1"]["certificate_until_us"] > first.expires_s * 1e6
            assert shown["truck-2"]["certificate_until_us"] is None
            assert "cannot connect to the broker" in (bad.parent / "log").read_text()
            gear(state, "device", "retire", "truck-1")
            until(
                lambda: client.get("/devices/truck-1")["certificate_until_us"] is None,
                "the end of a retired device's certificate",
            )
