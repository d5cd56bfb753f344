"""`gear-downlink` as a process without a broker: it says so, goes on trying, and ends with a signal."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.waiting import WAIT_S, Wait


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_sender_cleanly(tmp_path: Path, number: int, code: int) -> None:
    port = free_port()
    config, log = tmp_path / "down.toml", tmp_path / "down.log"
    config.write_text(f'broker = "127.0.0.1:{port}"\n')
    command = [sys.executable, "-m", "geartrain_cloud.downlink.main", "--config", str(config)]
    with log.open("wb") as said, subprocess.Popen(command, stderr=said) as process:
        try:
            wait = Wait("the sender to try the broker")
            while "cannot connect to the broker" not in log.read_text():
                wait.check(log.read_text())
                time.sleep(0.05)
            process.send_signal(number)
            assert process.wait(timeout=WAIT_S) == code, log.read_text()
        finally:
            process.kill()
    assert "Traceback" not in log.read_text()
