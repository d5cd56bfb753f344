"""The processes of the compose file, started by its own commands, with mutual TLS and PostgreSQL.

There is no container around them: paths, ports and the host's name are this test's. A device joins, gets a
signed flow, and its rows are in PostgreSQL, where they are compared with plain Python.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from geartrain.adapters.toml_text import to_toml
from tests.control.platform_client import Client, client_of
from tests.deploy.containers import SETUP, services
from tests.ports import free_port
from tests.postgres_server import Postgres
from tests.programs import mosquitto
from tests.proofs.test_open_platform import become_author
from tests.proofs.test_platform import FLOW, gear, until_ended, write_readings
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.mosquitto]

PLACES = {"/var/lib/geartrain-platform": "state", "/var/lib/geartrain-broker": "broker"}
PROCESSES = ("broker", "control", "ingest", "downlink", "spark")


def variables(folder: Path, postgres: Postgres) -> dict[str, str]:
    """What `setup.sh` takes from its environment."""
    ports = {f"GEARTRAIN_{name}": str(free_port()) for name in ("MQTT_PORT", "DEVICE_PORT", "PORT")}
    return ports | {
        "GEARTRAIN_ADDRESS": "localhost",
        "GEARTRAIN_LISTEN": "127.0.0.1",
        "GEARTRAIN_POSTGRES": quote(str(postgres.folder), safe=""),
        "GEARTRAIN_STATE": str(folder / "state"),
        "GEARTRAIN_BROKER": str(folder / "broker"),
        "GEARTRAIN_SECRETS": str(folder / "secrets"),
    }


def set_up(folder: Path, asked: dict[str, str]) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | asked | {"PATH": path}
    command = ["sh", str(SETUP)]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr


def command_of(service: str, folder: Path) -> list[str]:
    """What the compose file runs, with the places of this test."""
    one = services()[service]
    words = [*one.get("entrypoint", []), *one["command"]]
    for there, here in PLACES.items():
        words = [word.replace(there, str(folder / here)) for word in words]
    program = mosquitto() if words[0] == "mosquitto" else str(Path(sys.executable).with_name(words[0]))
    return [program, *words[1:]]


@contextmanager
def running(name: str, command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a log of its own, which is ended with the block as a container is."""
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def join(client: Client, device: str, folder: Path) -> Path:
    """Have a device join as its own agent does it; the file that it then has."""
    client.ask("POST", "/devices", {"name": device, "labels": {"kind": "room"}}, expect=201)
    invitation = client.ask("POST", f"/devices/{device}/token", {}, expect=201)[1]
    source, made = folder / "join.toml", folder / "device.toml"
    source.write_text(to_toml({key: invitation[key] for key in ("url", "token", "ca_fingerprint")}))
    source.chmod(0o600)
    agent = str(Path(sys.executable).with_name("gear-agent"))
    words = [agent, "join", "--from", str(source), "--device", str(made), "--state", str(folder / "state")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return made


def test_a_device_joins_the_processes_of_the_compose_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres: Postgres
) -> None:
    become_author(tmp_path, monkeypatch)
    (tmp_path / "heat.py").write_text(FLOW, encoding="utf-8")
    highs = write_readings(tmp_path / "d1.csv", range(5), 3)
    postgres.database("geartrain")
    asked = variables(tmp_path, postgres)
    for name in ("state", "broker", "secrets", "device"):
        (tmp_path / name).mkdir(mode=0o700)
    set_up(tmp_path, asked)
    made = {path: path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()}
    set_up(tmp_path, asked)
    assert all(path.read_bytes() == content for path, content in made.items()), "a second run changes nothing"
    assert all(path.stat().st_mode & 0o077 == 0 for path in made)
    state = tmp_path / "state"
    with ExitStack() as stack:
        for name in PROCESSES:
            stack.enter_context(running(name, command_of(name, tmp_path), tmp_path))
        client = client_of(state)
        device = join(client, "d1", tmp_path / "device")
        agent = [str(Path(sys.executable).with_name("gear-agent")), "--device", str(device)]
        stack.enter_context(running("agent", agent, tmp_path))
        gear(
            state, "submit", "heat:flow", "--devices", "kind=room", "--no-wait",
            f"--device-set=d1:readings.path={tmp_path / 'd1.csv'}",
        )  # fmt: skip
        until_ended(client, "heat")
        page = client.get("/apps/heat/tables/highs")
        assert dict(page["rows"]) == highs
        assert client.get("/apps/heat")["tables"] == "PostgreSQL, schema heat_1_run_1"
        with psycopg.connect(f"host={postgres.folder} user=geartrain dbname=geartrain") as database:
            rows = database.execute("SELECT sensor, celsius FROM heat_1_run_1.highs").fetchall()
        assert dict(rows) == highs
