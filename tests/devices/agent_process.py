"""A real agent in a process of its own, a real broker, and a plain ingest that acks: what arrives is kept."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.adapters.toml_text import to_toml
from geartrain.ports import Connection
from geartrain.wire.codec import encode_control
from geartrain.wire.topics import ack_topic, up_filter
from geartrain_cloud.broker import choose_broker, wait_until_ready
from geartrain_edge.agent.config import read_config
from tests.edge.agents import run
from tests.edge.network import NaiveIngest
from tests.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[2]


class AgentProcess:
    """The agent of the flow `tests.devices.lines_flow:NAME`; its one source is the step `lines`."""

    def __init__(
        self,
        folder: Path,
        flow: str,
        options: Mapping[str, Any],
        *,
        policy: str = "block",
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """more: keys of the agent's file that stand above those here."""
        self.broker = choose_broker("auto", folder / "broker")
        self._config, self._flow = folder / "agent.toml", flow
        config = {"device": "d1", "flow": f"tests.devices.lines_flow:{flow}", "state": str(folder / "state")}
        config |= {"broker": self.broker.address, "cut": "cloud"} | dict(more or {})
        limits: dict[str, Any] = {
            "spool": {"policy": policy},
            "commit": {"records_max": 20},
            "uplink": {"resend_ms": 300, "backoff_ms_max": 500},
        }
        self._config.write_text(to_toml(config | limits | {"sources": {"lines": dict(options)}}))
        self.ingest = NaiveIngest(read_config(str(self._config)).plan())
        self._agent: subprocess.Popen[bytes] | None = None

    def records(self, channel: str = "lines") -> list[Any]:
        """The records that arrived, in the order of their numbers."""
        return [row[0] for row in self.ingest.sorted_rows()[channel]]

    def start(self) -> None:
        command = [sys.executable, "-m", "geartrain_edge.agent.process", "--config", str(self._config)]
        self._agent = subprocess.Popen(command, cwd=ROOT)

    def kill(self) -> None:
        assert self._agent is not None
        self._agent.kill()
        assert self._agent.wait(timeout=WAIT_S) == -9

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert self._agent is not None
            assert self._agent.poll() is None, "the agent has ended"
            await asyncio.sleep(0.02)

    def run(self, story: Callable[[AgentProcess], Awaitable[None]]) -> None:
        """Run a story beside the agent, for two minutes at the most."""

        async def started() -> None:
            self.start()
            await story(self)

        with self.with_broker():
            run(self.with_ingest(started), 120.0)

    @contextmanager
    def with_broker(self) -> Iterator[None]:
        """Run the broker; at the end nothing is left of the agent either."""
        broker = subprocess.Popen(self.broker.command)
        try:
            wait_until_ready(self.broker.host, self.broker.port, timeout_s=WAIT_S)
            yield
        finally:
            if self._agent is not None:
                self._agent.kill()
                self._agent.wait(timeout=WAIT_S)
            broker.terminate()
            broker.wait(timeout=WAIT_S)

    async def with_ingest(self, story: Callable[[], Awaitable[None]]) -> None:
        """Tell a story beside the ingest."""
        async with AiomqttNet(self.broker.host, self.broker.port).connect("ingest") as connection:
            receiving = asyncio.create_task(self._receive(connection))
            telling = asyncio.ensure_future(story())
            done, _ = await asyncio.wait({receiving, telling}, return_when=asyncio.FIRST_COMPLETED)
            receiving.cancel()
            for one in done:
                one.result()

    async def _receive(self, connection: Connection) -> None:
        await connection.subscribe(up_filter())
        async for incoming in connection.incoming():
            for control in self.ingest.take(incoming.payload):
                await connection.publish(ack_topic("d1", self._flow), encode_control(control))
