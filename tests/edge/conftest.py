"""A device with a real parent of its agents, and a broker."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from geartrain_cloud.broker import choose_broker, wait_until_ready
from tests.edge.device_parent import Device
from tests.waiting import WAIT_S


@pytest.fixture
def device(tmp_path: Path, broker_kind: Literal["mosquitto", "amqtt"]) -> Iterator[Device]:
    broker = choose_broker(broker_kind, tmp_path)
    process = subprocess.Popen(broker.command)
    fixture = None
    try:
        wait_until_ready(broker.host, broker.port, timeout_s=WAIT_S)
        fixture = Device(tmp_path, broker.address)
        yield fixture
    finally:
        for parent in [] if fixture is None else fixture.parents:
            parent.kill()
            parent.communicate(timeout=WAIT_S)
        process.terminate()
        process.wait(timeout=WAIT_S)
