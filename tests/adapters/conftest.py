"""A real broker for the tests of the adapters: mosquitto where the machine has it, and amqtt in any case."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from geartrain_cloud.broker import choose_broker, wait_until_ready
from tests.waiting import WAIT_S


@dataclass(frozen=True)
class RunningBroker:
    """Where it listens, and its process."""

    host: str
    port: int
    process: subprocess.Popen[bytes]


@pytest.fixture(params=["auto", "amqtt"])
def real_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningBroker]:
    """A broker of its own for each test."""
    chosen = choose_broker(request.param, tmp_path)
    process = subprocess.Popen(chosen.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(chosen.host, chosen.port, timeout_s=WAIT_S)
        yield RunningBroker(chosen.host, chosen.port, process)
    finally:
        process.kill()
        process.wait()
