"""Agent, broker and ingest over mutual TLS: what a device reads is in the log, others add nothing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.adapters.toml_text import to_toml
from geartrain.wire.topics import up_topic
from geartrain_cloud.certs import CLOUD, DEVICE
from geartrain_cloud.log.reader import LogReader
from tests.cloud.fleet import TestDevice, prices
from tests.rosters import document, put_flow
from tests.security.fleet import Secured, secured
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.slow, pytest.mark.mosquitto]

ROWS = 500


def write_agent(broker: Secured, folder: Path, device: str, shown: str) -> Path:
    """The configuration of `device`'s agent that shows the certificate of `shown`."""
    folder.mkdir(exist_ok=True)
    rows = [f"S,2020-01-{n % 28 + 1:02d},{n}.5\n" for n in range(ROWS)]
    (folder / "prices.csv").write_text("symbol,date,price\n" + "".join(rows))
    config = folder / f"{device}-{shown}.toml"
    content = {
        "device": device,
        "flow": "geartrain_examples.stocks.flow:flow",
        "cut": "cloud",
        "state": str(folder / f"{device}-{shown}"),
        "broker": broker.table(DEVICE, shown),
        "sources": {"quotes": {"path": str(folder / "prices.csv")}},
    }
    config.write_text(to_toml(content))
    return config


def write_ingest(broker: Secured, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    config = folder / "ingest.toml"
    put_flow(folder / "log", "stocks", document({"quotes": ("d1",)}))
    config.write_text(to_toml({"log": "log", "broker": broker.table(CLOUD, "ingest")}))
    return config


def run(module: str, config: Path) -> subprocess.Popen[bytes]:
    with config.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, "--config", str(config)], stderr=log, stdout=log
        )


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


async def forge(net: AiomqttNet) -> None:
    """Say something in the name of d1."""
    async with net.connect("forger") as connection:
        await connection.publish(up_topic("d1", "stocks"), b"not even a batch")
        await connection.drain()


async def lie(net: AiomqttNet) -> None:
    """Say on d1's own topic, with d1's certificate, what d2 is: the broker lets it through."""
    other = TestDevice("d2", flow="stocks")
    async with net.connect("liar") as connection:
        for payload in (other.hello(), other.quotes(1.0)):
            await connection.publish(up_topic("d1", "stocks"), payload)
        await connection.drain()


def test_a_device_delivers_over_mutual_tls_and_a_forger_does_not(tmp_path: Path) -> None:
    with secured(tmp_path) as broker:
        ingest = run("geartrain_cloud.ingest.main", write_ingest(broker, tmp_path / "cloud"))
        forger = run("geartrain_edge.agent.process", write_agent(broker, tmp_path / "edge", "d1", "d2"))
        agent = run("geartrain_edge.agent.process", write_agent(broker, tmp_path / "edge", "d1", "d1"))
        try:
            broker.reload()  # as after a revocation: whoever is connected connects again by himself
            assert agent.wait(timeout=WAIT_S) == 0, (tmp_path / "edge" / "d1-d1.log").read_text()
            asyncio.run(forge(broker.net(DEVICE, "d2")))
            asyncio.run(lie(broker.net(DEVICE, "d1")))
            time.sleep(1)
            assert forger.poll() is None  # it waits for an ack that it may not hear
        finally:
            end(forger)
            end(agent)
            ingest.terminate()
            assert ingest.wait(timeout=WAIT_S) == 0
    logged = [one for one in prices(LogReader(tmp_path / "cloud" / "log")) if one is not None]
    assert sorted(logged) == [n + 0.5 for n in range(ROWS)]
    status = json.loads((tmp_path / "cloud" / "log" / "status.json").read_bytes())
    assert status["flows"]["stocks"]["devices"]["d1"]["epoch"]
    wrong = ("malformed_batches", "foreign_topics", "digest_conflicts", "unassigned_batches")
    assert [status["counters"][name] for name in wrong] == [0, 0, 0, 0]  # a forgery has not even arrived
    lies = ("identity_mismatches", "quarantined_batches")
    assert [status["counters"][name] for name in lies] == [2, 2]  # a lie has, and came no further
    spool = json.loads((tmp_path / "edge" / "d1-d2" / "status.json").read_bytes())
    assert spool["acked_seq"] == 0
