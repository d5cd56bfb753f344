"""A broker of MQTT in a process of its own, for as long as a test needs one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from geartrain_cloud.broker import BrokerChoice, choose_broker, wait_until_ready
from tests.waiting import WAIT_S


@contextmanager
def running_broker(folder: Path, kind: str = "auto") -> Iterator[BrokerChoice]:
    """A broker that answers. folder: for its configuration; kind: `auto` for mosquitto where there is one."""
    broker = choose_broker(kind, folder)
    process = subprocess.Popen(broker.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(broker.host, broker.port, timeout_s=WAIT_S)
        yield broker
    finally:
        process.kill()
        process.wait()
