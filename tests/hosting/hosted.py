"""A host in this process, on the tests' one session, with flows of the package `mill`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from geartrain.adapters.files import write_private
from geartrain_cloud.hosting.group import GroupSettings
from geartrain_cloud.hosting.host import Host
from geartrain_cloud.hosting.wanted import SHARED_STAGES
from geartrain_cloud.log.reader import LogReader
from tests.hosting.mill_log import MillLog
from tests.waiting import WAIT_S

PACKAGE = Path(__file__).parent / "mill"


class HostFolder:
    """The folders of a platform's host, and its wanted.json as control writes it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state, self.log = folder, folder / "spark", folder / "log"
        self.log.mkdir(parents=True, exist_ok=True)
        self.flows: dict[str, dict[str, Any]] = {}
        self.serial = 0

    def tables(self, instance: str) -> Path:
        return self.folder / "apps" / instance / "tables.sqlite"

    def write(self) -> None:
        """Say it."""
        self.serial += 1
        write_private(self.state / "wanted.json", json.dumps({"serial": self.serial, "flows": self.flows}))

    def status(self, instance: str) -> dict[str, Any]:
        """What the host says of a flow."""
        try:
            found = json.loads((self.state / "status.json").read_text())
        except FileNotFoundError:
            return {}
        return dict(found["flows"].get(instance, {}))

    def is_through(self, instance: str) -> bool:
        """Whether all of the log is in the flow's tables."""
        positions, newest = (
            self.status(instance).get("positions", {}),
            LogReader(self.log).positions(instance),
        )
        return bool(newest) and all(positions.get(key, 0) >= position for key, position in newest.items())


class Wanted(HostFolder):
    """The same for flows of the package `mill`, with a log for each."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder)
        self.package = folder / "package"
        for path in PACKAGE.glob("*.py") if not self.package.exists() else ():
            (self.package / "mill").mkdir(parents=True, exist_ok=True)
            text = path.read_text().replace("tests.hosting.mill", "mill")
            (self.package / "mill" / path.name).write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(self.package))
        self.logs: dict[str, MillLog] = {}

    def add(self, instance: str, number: int, **more: Any) -> MillLog:
        """Want a flow."""
        tables = str(self.tables(instance))
        self.flows[instance] = {"flow": f"mill.flows:flow{number}", "cut": "cloud", "tables": tables} | more
        if instance not in self.logs:
            self.logs[instance] = MillLog(self.log, instance, number)
            for one in self.logs.values():  # each opens the ledger as an ingest would, and takes it over
                one.writer._term = self.logs[instance].writer._term
        return self.logs[instance]

    def close(self) -> None:
        for log in self.logs.values():
            log.writer.close()


class RunningHost:
    """A host that runs here."""

    def __init__(
        self,
        spark: SparkSession,
        folder: HostFolder,
        hang_s: float = 60.0,
        store: str = "",
        stages: int = SHARED_STAGES,
    ) -> None:
        """stages: shuffles of the query that flows share."""
        self._folder = folder
        settings = GroupSettings(stages=stages, hang_s=hang_s, retry_s=0.1)
        self.host = Host(spark, folder.state, folder.log, settings, store)
        self.host.open()

    def until(self, done: Callable[[], bool], wait_s: float = WAIT_S, *, show: bool = True) -> None:
        """Step until something is so; show: say how flows are at each step."""
        deadline = time.monotonic() + wait_s
        while not done():
            assert time.monotonic() < deadline, (self._folder.state / "status.json").read_text()
            self.host.step()
            if show:
                self.host.show()
            assert not self.host._failed, self.host._failed
            time.sleep(0.15)

    def through(self, *instances: str, wait_s: float = WAIT_S) -> None:
        """Step until all of these flows' logs are in their tables."""
        self.until(lambda: all(self._folder.is_through(one) for one in instances), wait_s)

    def close(self) -> None:
        self.host.close()


class Hosting(RunningHost):
    """The same with flows of the package `mill`."""

    def __init__(self, spark: SparkSession, wanted: Wanted, hang_s: float = 60.0, store: str = "") -> None:
        super().__init__(spark, wanted, hang_s, store)
        self.wanted = wanted
