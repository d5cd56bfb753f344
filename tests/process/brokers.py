"""A mosquitto of a scenario's own: started, killed, stripped of what it kept, and started again on its port.

Under the scenarios. Guarantees: it listens on the loopback interface only, and keeps its files in the
scenario's folder.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

from geartrain_cloud.broker import is_ready
from tests.ports import free_port
from tests.programs import mosquitto

HOST = "127.0.0.1"
_READY_S = 60.0


class Mosquitto:
    """One broker: `port` stays the same over all its lives."""

    def __init__(self, folder: Path, *, queued_max: int = 100_000, packet_bytes_max: int = 2 << 20) -> None:
        self.port = free_port()
        self._kept = folder / "broker"
        self._kept.mkdir(parents=True, exist_ok=True)
        self._config, self._log = self._kept / "mosquitto.conf", folder / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.rewrite(queued_max, packet_bytes_max)

    def rewrite(self, queued_max: int = 100_000, packet_bytes_max: int = 2 << 20) -> None:
        """Write the configuration of its next life."""
        self._config.write_text(
            f"listener {self.port} {HOST}\nallow_anonymous true\nuser root\nset_tcp_nodelay true\n"
            f"persistence true\npersistence_location {self._kept}/\nautosave_interval 1\n"
            f"max_queued_messages {queued_max}\nmax_queued_bytes {256 << 20}\n"
            f"max_packet_size {packet_bytes_max}\nconnection_messages false\nlog_dest stderr\n",
            encoding="utf-8",
        )

    @property
    def pid(self) -> int:
        """Of the process at work."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start it and wait until it answers."""
        self._spawn(mosquitto())
        deadline_s = asyncio.get_running_loop().time() + _READY_S
        while not await asyncio.to_thread(is_ready, HOST, self.port):
            assert self._process is not None
            assert self._process.poll() is None, self._log.read_text(encoding="utf-8", errors="replace")
            assert asyncio.get_running_loop().time() < deadline_s, "mosquitto does not answer"
            await asyncio.sleep(0.02)

    def _spawn(self, program: str) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([program, "-c", str(self._config)], stderr=log, stdout=log)

    def kill(self) -> None:
        """kill -9, and wait for its end; nothing where it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """Delete all that it kept, as a lost disk does."""
        for path in self._kept.iterdir():
            if path == self._config:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
