"""Makes `golden/killed_0_2.tar.xz`: a platform of release 0.2.0 that was killed with `kill -9` in mid-run.

It runs with that release, from a checkout of it into which this file and `killed_run.py` were copied:
`python -m tests.layouts.killed_run_golden FILE.tar.xz`. Ingest is killed first, so that the agents keep in
their spools what they read from then on. Then they are killed. The driver reads the log to its end, as
`gear log migrate` asks for, and is killed too. No source has ended.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from geartrain.flow.loading import load_flow
from geartrain.planning import make_plan
from geartrain_cloud.broker.choice import choose_broker
from geartrain_cloud.broker.ready import wait_until_ready
from tests.layouts.killed_run import CUT, DEVICES, FLOW, ROWS, SOURCES, agent_toml, write_files

WAIT_S = 180
ACKED, UNSENT = ROWS // 2, ROWS // 6
"""How many rows of each source are read before ingest is killed, and at least how many after it."""


class Run:
    """Processes of the release in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, module: str, file: str, content: str) -> subprocess.Popen[bytes]:
        """Start a program with its configuration."""
        (self.folder / file).write_text(content, encoding="utf-8")
        command = [sys.executable, "-m", module, "--config", str(self.folder / file)]
        self.processes.append(subprocess.Popen(command))
        return self.processes[-1]

    def status(self, name: str) -> dict[str, Any]:
        """What a device, or the driver, says of itself."""
        file = self.folder / name / "status.json"
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def play(self) -> None:
        """The run, until all are killed."""
        write_files(self.folder)
        broker = choose_broker("amqtt", self.folder)
        self.processes.append(subprocess.Popen(broker.command))
        wait_until_ready(broker.host, broker.port, timeout_s=WAIT_S)
        plan = make_plan(load_flow(FLOW).graph(), CUT)
        channels = "".join(f"{one.id} = 'all'\n" for one in plan.channels if not one.id.startswith("_"))
        devices = json.dumps(DEVICES)
        ingest = self.start(
            "geartrain_cloud.ingest.main",
            "ingest.toml",
            f"log = '{self.folder / 'log'}'\nbroker = '{broker.address}'\n[flows.killed]\n"
            f"devices = {devices}\n[flows.killed.channels]\n{channels}",
        )
        agents = [
            self.start(
                "geartrain_edge.agent.process",
                f"{device}.toml",
                agent_toml(self.folder, device, broker.address, "10"),
            )
            for device in DEVICES
        ]
        driver = self.start(
            "geartrain_cloud.spark.driver",
            "driver.toml",
            f"flow = '{FLOW}'\ncut = '{CUT}'\nlog = 'log'\nstate = 'driver'\ntables = 'tables.sqlite'\n",
        )
        until(lambda: self._have_read(ACKED))
        kill(ingest)
        until(lambda: self._have_read(ACKED + UNSENT))
        kill(*agents)
        until(self._is_drained)
        kill(driver)

    def _have_read(self, rows: int) -> bool:
        return all(self.status(device).get("records_read", 0) >= rows * len(SOURCES) for device in DEVICES)

    def _is_drained(self) -> bool:
        queries = self.status("driver").get("queries", {})
        return len(queries) == 2 and all(
            one["positions"] == one["log_positions"] and one["log_rows"] for one in queries.values()
        )


def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.1)


def kill(*processes: subprocess.Popen[bytes]) -> None:
    """End them as a loss of power does."""
    for one in processes:
        one.kill()
        one.wait()


def main(target: Path) -> None:
    """Write the archive."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        run = Run(Path(place))
        try:
            run.play()
        finally:
            kill(*run.processes)
        assert not any(run.status(device)["ended"] for device in DEVICES)
        wanted = [f"{device}/spool.sqlite" for device in DEVICES]
        wanted += ["log/ledger.sqlite", "log/segments", "tables.sqlite"]
        wanted += [f"{name}-wal" for name in wanted if name.endswith(".sqlite")]
        wanted += [f"driver/checkpoints/{query}/identity.json" for query in ("stateless", "keyed")]
        with tarfile.open(target, "w:xz") as archive:
            for name in wanted:
                if (run.folder / name).exists():
                    archive.add(run.folder / name, name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
