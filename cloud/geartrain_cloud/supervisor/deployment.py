"""A flow on one machine: the configuration of each process, and how each is started and judged.

It makes files and `ChildSpec`s from a plan and a list of devices. Guarantees: all processes are given one
flow, one cut and one set of options, so that they agree on channels and schemas.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from geartrain import __version__
from geartrain.adapters.files import write_private
from geartrain.adapters.toml_text import to_toml
from geartrain.errors import ConfigError
from geartrain.flow.loading import load_flow
from geartrain.operators.source import SourceOperator
from geartrain.planning import Plan, make_plan
from geartrain.planning.properties import derive_properties
from geartrain.revision import Revision, code_of, revision_of
from geartrain_cloud.broker import BrokerChoice
from geartrain_cloud.supervisor.child import ChildSpec, unwritable

Options = Mapping[str, Mapping[str, Any]]

BROKER, INGEST, DRIVER, DOWN = "broker", "ingest", "driver", "down"
DRIVER_RESTARTS_MAX = 5
DRIVER_WINDOW_S = 300.0
"""Spark takes ten seconds to start, so that a driver that never comes up dies seldom: counted for longer."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What runs: `flow` as `module:name`, its cut, step options, and each device's source options.

    agent: sections of the agents' files besides these, such as `{"commit": {"records_max": 100}}`; driver:
    keys of the driver's file, such as `{"rows_max": 1000}`.
    """

    flow: str
    cut: str
    steps: Options
    devices: Mapping[str, Options]
    master: str = "local[2]"
    agent: Mapping[str, Any] = field(default_factory=dict)
    driver: Mapping[str, Any] = field(default_factory=dict)

    def plan(self) -> Plan:
        """The flow with its options, cut in two; raises `ConfigError`, `FlowError` or `PlacementError`."""
        return make_plan(load_flow(self.flow).graph().with_options(self.steps, "options"), self.cut)

    def revision(self) -> Revision:
        """The revision of the flow with its options and cut; raises what `plan` raises."""
        return revision_of(self.flow, self.plan(), self.steps, code_of(self.flow), __version__)


@dataclass(frozen=True, slots=True)
class Places:
    """Where things lie in a state folder."""

    folder: Path

    @property
    def log(self) -> Path:
        """Ingest's ledger and segments."""
        return self.folder / "log"

    @property
    def tables(self) -> Path:
        """The results."""
        return self.folder / "tables.sqlite"

    @property
    def logs(self) -> Path:
        """What the processes print."""
        return self.folder / "logs"

    def agent(self, device: str) -> Path:
        """An agent's folder."""
        return self.folder / "agents" / device

    def agent_status(self, device: str) -> Path:
        """What an agent says of itself."""
        return self.agent(device) / "status.json"

    @property
    def ingest_status(self) -> Path:
        """What ingest says of itself."""
        return self.log / "status.json"

    @property
    def driver_status(self) -> Path:
        """What the driver says of itself."""
        return self.folder / "driver" / "status.json"


def read_status(path: Path) -> dict[str, Any]:
    """A status file, or nothing where there is none yet: they are reports, and replaced in one step."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def broker_spec(broker: BrokerChoice, places: Places) -> ChildSpec:
    """The broker, where it is ours to start."""
    # mosquitto, started by root, becomes another user, and would outlive a supervisor that is killed.
    guarded = broker.kind == "mosquitto"
    return ChildSpec(BROKER, broker.command, places.logs / "broker.log", guarded=guarded)


def write_deployment(deployment: Deployment, broker: BrokerChoice, places: Places) -> list[ChildSpec]:
    """Write the configuration of ingest, driver and agents; how to start each, in that order.

    Raises what `Deployment.plan` raises, and `ConfigError` when the agent's package is not installed. Raises
    `CertificateError` when a process that needs a certificate has none, and `SupervisorError` when a file
    cannot be written.
    """
    if find_spec("geartrain_edge") is None:
        raise ConfigError("the agent is not installed: run pip install geartrain-edge")
    plan = deployment.plan()
    specs = [
        _ingest(plan, list(deployment.devices), broker, places),
        _driver(deployment, places),
    ]
    if plan.down:
        specs.append(_sender(plan, broker, places))
    return specs + [_agent(deployment, device, broker, places) for device in deployment.devices]


def _write(path: Path, content: str) -> None:
    try:
        write_private(path, content)
    except OSError as error:
        raise unwritable(path, error) from None


def _ingest(plan: Plan, devices: list[str], broker: BrokerChoice, places: Places) -> ChildSpec:
    config = places.folder / "ingest.toml"
    sources = {step.id: "all" for step in plan.graph.sources()}
    channels = {channel.id: sorted(channel.sources) for channel in plan.channels}
    # Nobody is excluded from a flow whose sources all end: its results are those of all devices.
    bounded = all(
        step.operator.source.bounded for step in plan.graph.steps if isinstance(step.operator, SourceOperator)
    )
    flow = {
        "devices": devices,
        "bounded": bounded,
        "sources": sources,
        "channels": channels,
        "partitioned_by": _domains(plan),
    }
    flows = {plan.graph.name: flow}
    _write(config, to_toml({"log": places.log.name, "broker": broker.of_cloud(INGEST), "flows": flows}))
    command = (sys.executable, "-m", "geartrain_cloud.ingest.main", "--config", str(config))
    return ChildSpec(INGEST, command, places.logs / "ingest.log")


def _domains(plan: Plan) -> dict[str, str]:
    """The channels that carry the field that their sources are partitioned by, with that field."""
    properties = derive_properties(plan.graph)
    known = {c.id: properties[c.id].domain for c in plan.channels if c.id in properties}
    fields = {c.id: {field.name for field in c.schema.fields} for c in plan.channels}
    return {channel: field for channel, field in known.items() if field in fields[channel] and field}


def _driver(deployment: Deployment, places: Places) -> ChildSpec:
    config = places.folder / "driver.toml"
    content = {
        "flow": deployment.flow,
        "cut": deployment.cut,
        "log": places.log.name,
        "state": "driver",
        "tables": places.tables.name,
        "master": deployment.master,
        **deployment.driver,
        "steps": deployment.steps,
    }
    _write(config, to_toml(content))
    return ChildSpec(
        DRIVER,
        (sys.executable, "-m", "geartrain_cloud.spark.driver", "--config", str(config)),
        places.logs / "driver.log",
        finished=lambda: read_status(places.driver_status).get("finished") is True,
        restarts_max=DRIVER_RESTARTS_MAX,
        restarts_window_s=DRIVER_WINDOW_S,
    )


def _sender(plan: Plan, broker: BrokerChoice, places: Places) -> ChildSpec:
    config = places.folder / "down.toml"
    outbox = places.tables.with_name("outbox.sqlite").name
    content = {"flow": plan.graph.name, "outbox": outbox, "state": "down", "broker": broker.of_cloud(DOWN)}
    _write(config, to_toml(content))
    command = (sys.executable, "-m", "geartrain_cloud.downlink.main", "--config", str(config))
    return ChildSpec(DOWN, command, places.logs / "down.log")


def _agent(deployment: Deployment, device: str, broker: BrokerChoice, places: Places) -> ChildSpec:
    folder = places.agent(device)
    config = folder / "agent.toml"
    content = {
        "device": device,
        "flow": deployment.flow,
        "cut": deployment.cut,
        "state": str(folder),
        "broker": broker.of_device(device),
        **deployment.agent,
        "steps": deployment.steps,
        "sources": deployment.devices[device],
    }
    _write(config, to_toml(content))
    status = places.agent_status(device)
    return ChildSpec(
        f"agent {device}",
        (sys.executable, "-m", "geartrain_edge.agent.process", "--config", str(config)),
        places.logs / f"{device}.log",
        finished=lambda: read_status(status).get("finished") is True,
    )
