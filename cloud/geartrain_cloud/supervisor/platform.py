"""The processes of a platform: what each is told, as `ChildSpec`s made of what control has written.

Between control's wanted state and the supervisor. Guarantees: a spec is a function of the configuration, the
broker and the files in the state folder. So the next `gear up` goes on with the same ones. A process whose
configuration has changed has another version, and is started anew.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from geartrain.adapters.files import write_private
from geartrain.adapters.toml_text import to_toml
from geartrain_cloud.broker import BrokerChoice
from geartrain_cloud.platform.config import PlatformConfig
from geartrain_cloud.platform.places import PlatformPlaces, read_report, write_report
from geartrain_cloud.supervisor.child import ChildSpec, unwritable

BROKER, CONTROL, DOWNLINK, INGEST, SPARK = "broker", "control", "downlink", "ingest", "spark"


class Processes:
    """The specs of a platform whose broker is `broker`."""

    def __init__(self, config: PlatformConfig, broker: BrokerChoice) -> None:
        self._config, self._places, self._broker = config, config.places, broker

    def first(self) -> list[ChildSpec]:
        """The broker, where it is ours to start."""
        if not self._broker.command:
            return []
        # mosquitto, started by root, becomes another user, and would outlive a supervisor that is killed.
        guarded = self._broker.kind == "mosquitto"
        log = self._places.process_log(BROKER)
        return [ChildSpec(BROKER, self._broker.command, log, guarded=guarded, version=self._broker.version())]

    def all(self) -> list[ChildSpec]:
        """Every process that is wanted now; raises `SupervisorError` when a file cannot be written."""
        paused = read_report(self._places.paused).get("processes", [])
        return [one for one in self._every() if one.name not in paused]

    def _every(self) -> list[ChildSpec]:
        return [
            *self.first(),
            self._program(CONTROL, "geartrain_cloud.control.main"),
            self._ingest(),
            self._program(SPARK, "geartrain_cloud.hosting.main"),
            self._program(DOWNLINK, "geartrain_cloud.downlink.main"),
            *self._devices(),
        ]

    def write_broker(self) -> None:
        """Say where the broker is, for those that `gear up` does not start; raises `SupervisorError`."""
        cloud = {role: self._broker.of_cloud(role) for role in (INGEST, "down", CONTROL)}
        certs = None if self._broker.certs is None else str(self._broker.certs)
        content = {"address": self._broker.address, "certs": certs, "cloud": cloud}
        try:
            write_report(self._places.broker, content)
        except OSError as error:
            raise unwritable(self._places.broker, error) from None

    def _program(self, name: str, module: str) -> ChildSpec:
        """A process that reads the platform's own configuration."""
        command = (sys.executable, "-m", module, *self._config.arguments)
        return ChildSpec(name, command, self._places.process_log(name))

    def _devices(self) -> Iterator[ChildSpec]:
        """The parent of the agents of each device that this machine runs itself."""
        for device in _table(read_report(self._places.agents_wanted), "devices"):
            if self._broker.command and self._broker.certs is not None:
                from geartrain_cloud.certs import DEVICE, Fleet

                Fleet(self._broker.certs).ensure(DEVICE, device)
            broker = self._broker.of_device(device)
            bundles = {"folder": str(self._places.unpacked)}
            tables = self._config.local.tables
            content = {"device": device, "state": ".", "broker": broker, "bundles": bundles, **tables}
            path = self._places.device(device) / "device.toml"
            module = "geartrain_edge.agent.process"
            yield process(self._places, f"device {device}", module, path, content, "--device")

    def _ingest(self) -> ChildSpec:
        """Ingest, which follows the log's roster."""
        log = {
            "folder": str(self._places.log),
            "partitions": self._config.log.partitions,
            **_given(retain_s=self._config.log.retain_s, retain_bytes=self._config.log.retain_bytes),
        }
        content = {"broker": self._broker.of_cloud(INGEST), "log": log}
        path = self._places.folder / "ingest.toml"
        return process(self._places, INGEST, "geartrain_cloud.ingest.main", path, content)


def process(
    places: PlatformPlaces,
    name: str,
    module: str,
    path: Path,
    content: Mapping[str, Any],
    option: str = "--config",
) -> ChildSpec:
    """A process that reads `content` from the TOML file `path`, which is written where it differs.

    option: by which the file is named.

    Raises `SupervisorError`.
    """
    text = to_toml(content)
    try:
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_private(path, text)
    except OSError as error:
        raise unwritable(path, error) from None
    command = (sys.executable, "-m", module, option, str(path))
    version = hashlib.sha256(text.encode()).hexdigest()
    return ChildSpec(name, command, places.process_log(name), version=version)


def _table(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = found.get(name, {})
    return table if isinstance(table, dict) else {}


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
