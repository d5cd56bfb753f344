"""Spoiled bytes at whatever reads bytes of others, a few; `make fuzz` throws a million at each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.security.fuzz import READERS
from tests.waiting import WAIT_S

COUNTS = {
    "wire": 5_000,
    "sensors": 3_000,
    "syslog": 10_000,
    "syslog_headers": 10_000,
    "serial": 10_000,
    "tail": 10_000,
    "texts": 10_000,
    "csv_files": 10_000,
    "json_files": 10_000,
    "json_values": 10_000,
    "payloads": 10_000,
    "times": 10_000,
    "registers": 10_000,
    "answers": 10_000,
    "spool": 500,
    "publishes": 2_000,
    "requests": 1_000,
    "device_requests": 1_000,
    "sharing": 3_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_only_known_errors_come_out_and_memory_does_not_grow(reader: str) -> None:
    """In a process of its own, whose memory nothing else has warmed."""
    command = [sys.executable, "-m", "tests.security.fuzz", str(COUNTS[reader]), "--only", reader]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4_000:]
    taken, refused = (int(word.replace(",", "")) for word in done.stdout.split()[1:4:2])
    assert taken + refused == COUNTS[reader]
    assert min(taken, refused) > COUNTS[reader] // 100  # what is all refused or all taken tests little
