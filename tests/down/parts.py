"""Agents, ingest and sender of one flow as processes without a platform: the test plays Spark's part.

Guarantees: all are given one flow, cut and set of options, so that they agree on channels and schemas.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geartrain.adapters.files import write_private
from geartrain.adapters.toml_text import to_toml
from geartrain.flow.loading import load_flow
from geartrain.planning import Plan, make_plan
from geartrain_cloud.broker import BrokerChoice
from geartrain_cloud.platform.followed import put_wanted
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from geartrain_cloud.supervisor.child import ChildSpec
from tests.rosters import document_of, put_flow


@dataclass(frozen=True, slots=True)
class Parts:
    """`flow` as `module:name`; options of each device's sources; where all lies; more of agents' files."""

    flow: str
    devices: Mapping[str, Mapping[str, Mapping[str, Any]]]
    folder: Path
    agent: Mapping[str, Any] = field(default_factory=dict)

    def plan(self) -> Plan:
        """The flow, cut in two."""
        return make_plan(load_flow(self.flow).graph(), "auto")

    @property
    def outbox(self) -> Path:
        """What Spark leaves for the sender."""
        return self.folder / "outbox.sqlite"

    @property
    def places(self) -> PlatformPlaces:
        """Where the sender has what it is told, and what it says of itself."""
        return PlatformPlaces(self.folder)

    @property
    def down(self) -> Path:
        """The sender's file."""
        return self.folder / "down.toml"

    def agent_folder(self, device: str) -> Path:
        """An agent's folder."""
        return self.folder / "agents" / device

    def status(self, device: str) -> dict[str, Any]:
        """What an agent says of itself."""
        return read_report(self.agent_folder(device) / "status.json")

    def specs(self, broker: BrokerChoice) -> list[ChildSpec]:
        """Write what each process reads; ingest, the sender `down`, and `agent NAME` for each device."""
        return [self._ingest(broker), self._sender(broker), *(self._agent(d, broker) for d in self.devices)]

    def _ingest(self, broker: BrokerChoice) -> ChildSpec:
        plan = self.plan()
        put_flow(self.folder / "log", plan.graph.name, document_of(plan, list(self.devices)))
        content = {"log": "log", "broker": broker.of_cloud("ingest")}
        return self._spec("ingest", "geartrain_cloud.ingest.main", self.folder / "ingest.toml", content)

    def _sender(self, broker: BrokerChoice) -> ChildSpec:
        put_wanted(self.places.downlink_wanted, {self.plan().graph.name: {"outbox": str(self.outbox)}})
        content = {"broker": broker.of_cloud("down")}
        return self._spec("down", "geartrain_cloud.downlink.main", self.down, content)

    def _agent(self, device: str, broker: BrokerChoice) -> ChildSpec:
        folder = self.agent_folder(device)
        content = {
            "device": device,
            "flow": self.flow,
            "cut": "auto",
            "state": str(folder),
            "broker": broker.of_device(device),
            **self.agent,
            "sources": self.devices[device],
        }
        module = "geartrain_edge.agent.process"
        return self._spec(f"agent {device}", module, folder / "agent.toml", content)

    def _spec(self, name: str, module: str, path: Path, content: Mapping[str, Any]) -> ChildSpec:
        write_private(path, to_toml(content))
        log = self.folder / "logs" / f"{name.replace(' ', '.')}.log"
        return ChildSpec(name, (sys.executable, "-m", module, "--config", str(path)), log)


class Finished:
    """Which agents have finished; asked again and again, for one that is started again begins anew."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._left = parts, set(parts.devices)

    def __call__(self) -> bool:
        """Whether each has."""
        self._left -= {d for d in self._left if self._parts.status(d).get("finished") is True}
        return not self._left
