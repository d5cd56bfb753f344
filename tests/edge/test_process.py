"""The agent as a process over a real broker: kill -9 in mid-replay changes nothing of what arrives."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.ports import Connection
from geartrain.wire.codec import encode_control
from geartrain.wire.topics import ack_topic, up_filter
from geartrain_cloud.broker import choose_broker, wait_until_ready
from geartrain_edge.agent.config import read_config
from tests.edge.agents import run, until
from tests.edge.flows import expected
from tests.edge.network import NaiveIngest
from tests.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[2]
ROWS = 6_000


def write_config(tmp_path: Path, address: str) -> Path:
    prices = tmp_path / "prices.csv"
    rows = [f"S{n % 3},20{n % 90 + 10}-01-{n % 28 + 1:02d},{(n * 7919 % 1_000) / 8}\n" for n in range(ROWS)]
    prices.write_text("symbol,date,price\n" + "".join(rows))
    config = tmp_path / "agent.toml"
    config.write_text(
        f'device = "d1"\nflow = "geartrain_examples.stocks.flow:flow"\nstate = "{tmp_path}/state"\n'
        f'broker = "{address}"\ncut = "edge"\n[commit]\nrecords_max = 100\n'
        "[uplink]\nresend_ms = 300\nbackoff_ms_max = 500\n"
        f'[sources.quotes]\npath = "{prices}"\n'
    )
    return config


def start_agent(config: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "geartrain_edge.agent.process", "--config", str(config)], cwd=ROOT
    )


async def receive(connection: Connection, ingest: NaiveIngest) -> None:
    await connection.subscribe(up_filter())
    async for incoming in connection.incoming():
        for control in ingest.take(incoming.payload):
            await connection.publish(ack_topic("d1", "stocks"), encode_control(control))


async def story(host: str, port: int, config: Path, ingest: NaiveIngest) -> None:
    async with AiomqttNet(host, port).connect("ingest") as connection:
        receiving = asyncio.create_task(receive(connection, ingest))
        agent = start_agent(config)
        try:
            for kill in range(1, 4):
                await until(lambda due=kill * 40: receiving.done() or ingest.seq >= due)  # type: ignore[misc]
                agent.kill()
                assert agent.wait(timeout=WAIT_S) == -9
                agent = start_agent(config)
            await until(lambda: receiving.done() or agent.poll() is not None)
        finally:
            agent.kill()
            receiving.cancel()
        assert agent.wait(timeout=WAIT_S) == 0
        outcome = await asyncio.gather(receiving, return_exceptions=True)
        assert isinstance(outcome[0], asyncio.CancelledError), outcome


@pytest.mark.slow
def test_kill_9_in_mid_replay_is_invisible(
    tmp_path: Path, broker_kind: Literal["mosquitto", "amqtt"]
) -> None:
    broker = choose_broker(broker_kind, tmp_path)
    process = subprocess.Popen(broker.command)
    try:
        wait_until_ready(broker.host, broker.port, timeout_s=WAIT_S)
        config = write_config(tmp_path, broker.address)
        plan = read_config(str(config)).plan()
        ingest = NaiveIngest(plan)
        run(story(broker.host, broker.port, config, ingest), 120.0)
    finally:
        process.terminate()
        process.wait(timeout=WAIT_S)
    rows = ingest.sorted_rows()
    assert rows == expected(plan)
    assert len(rows["quotes"]) + len(rows["_dead_letters"]) == ROWS
    status = json.loads((tmp_path / "state" / "status.json").read_text())
    assert (status["finished"], status["acked_seq"]) == (True, ingest.seq)
    assert (status["records_read"], status["rejected"]) == (ROWS, len(rows["_dead_letters"]))
