"""A fleet with certificates and a mosquitto that demands them: what the tests of security attack."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.adapters.tls import BrokerTable, broker_of
from geartrain_cloud.broker.fleet_config import BrokerHost, write_broker
from geartrain_cloud.certs import CLOUD, DEVICE, SERVER, Fleet
from tests.ports import free_port
from tests.programs import mosquitto
from tests.waiting import WAIT_S, Wait, note_log

SERVER_NAME = "localhost"


@dataclass(slots=True)
class Secured:
    """A running broker of `fleet`, which `strangers` are no part of."""

    fleet: Fleet
    strangers: Fleet
    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        return f"{SERVER_NAME}:{self.port}"

    def table(self, kind: str, name: str, fleet: Fleet | None = None) -> dict[str, object]:
        """The table `[broker]` of whoever shows this certificate, and trusts this broker."""
        paths = (fleet or self.fleet).paths(kind, name)
        return {
            "address": self.address,
            "tls": True,
            "ca": str(self.fleet.ca),
            "certificate": str(paths.certificate),
            "key": str(paths.key),
        }

    def net(self, kind: str, name: str, fleet: Fleet | None = None) -> AiomqttNet:
        """The way to the broker with a certificate."""
        return net_of(self.table(kind, name, fleet))

    def reload(self) -> None:
        """Write the configuration again, with the list of what is revoked, and start the broker anew."""
        stop(self.process)
        write(self.fleet, self.folder, self.port)
        self.process = start(self.folder, self.port)


def net_of(table: dict[str, object]) -> AiomqttNet:
    broker = broker_of(BrokerTable(**table), Path())  # type: ignore[arg-type]
    return AiomqttNet(broker.host, broker.port, tls_context=broker.tls_context)


def write(fleet: Fleet, folder: Path, port: int) -> None:
    write_broker(fleet, BrokerHost(SERVER_NAME, f"127.0.0.1:{port}", folder, "root"), folder)


def start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Start mosquitto and wait until it listens."""
    program = mosquitto()
    with note_log(folder / "log").open("ab") as log:
        process = subprocess.Popen([program, "-c", str(folder / "mosquitto.conf")], stdout=log, stderr=log)
    wait = Wait("mosquitto to listen")
    while not _listens(process.pid, port):
        assert process.poll() is None, (folder / "log").read_text()
        wait.check()
        time.sleep(0.02)
    return process


def _listens(pid: int, port: int) -> bool:
    """Whether the process listens there: asked without connecting, which a broker would log as a refusal."""
    found = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A" for line in found)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(timeout=WAIT_S)


@contextmanager
def secured(folder: Path, more_acl: str = "") -> Iterator[Secured]:
    """A fleet of d1, d2 and what else is issued, with its broker; `more_acl`: what else its users may."""
    fleet, strangers = Fleet(folder / "certs"), Fleet(folder / "strangers")
    fleet.init("fleet")
    strangers.init("strangers")
    fleet.issue(SERVER, SERVER_NAME, ["127.0.0.1"])
    for role in ("ingest", "down", "control"):
        fleet.issue(CLOUD, role)
    for device in ("d1", "d2", "thief"):
        fleet.issue(DEVICE, device)
    strangers.issue(DEVICE, "d1")
    fleet.issue(DEVICE, "old", days=1, now=datetime.now(UTC) - timedelta(days=3))
    port, place = free_port(), folder / "broker"
    write(fleet, place, port)
    with (place / "acl").open("a") as acl:
        acl.write(more_acl)
    found = Secured(fleet, strangers, place, port, start(place, port))
    try:
        yield found
    finally:
        stop(found.process)
