"""The devices that `gear run` stands in for: their names, labels, and own options of sources.

Between the command line and the run. Guarantees: a device has the sources that a platform would give it by
the same name and labels, so that the tables are those of a platform with these devices. What an option of a
device may be is what its file on the device may say: options of sources alone.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from geartrain.errors import ConfigError, SelectorError
from geartrain.fleet.labels import check_device, check_labels
from geartrain.fleet.selectors import CLOUD_DEVICE, CLOUD_LABELS
from geartrain.graph.graph import Graph
from geartrain.operators.source import SourceOperator, is_in_cloud, on_device
from geartrain.printable import printable
from geartrain_client.terminal.settings import parse_set

DEVICES_MAX = 10_000
FILE_BYTES_MAX = 16 << 20


@dataclass
class FleetDevice:
    """A device of a run. labels: by key; options: its own, by source and name."""

    labels: dict[str, str] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device in the file of a fleet."""

    labels: dict[str, str] = {}
    sources: dict[str, dict[str, Any]] = {}


def parse_fleet(
    devices: Iterable[str], labels: Iterable[str] = (), file: Path | None = None
) -> dict[str, FleetDevice]:
    """The devices by name.

    Args:
        devices: `NAME` or `NAME:STEP.OPTION=VALUE` each, whose values are `Text`.
        labels: `NAME:KEY=VALUE` each.
        file: TOML with a table for each device; what `devices` and `labels` say stands above that.

    Raises:
        ConfigError: for another form, a name or a label that no device may have, and too many devices.

    >>> parse_fleet(["pump-1:meter.path=a.csv"], ["pump-1:site=north"])
    {'pump-1': FleetDevice(labels={'site': 'north'}, options={'meter': {'path': 'a.csv'}})}
    """
    fleet = {} if file is None else _read(file)
    given: dict[str, list[str]] = {}
    for text in devices:
        name, _, setting = text.partition(":")
        _check_name(name, f"--device {printable(text, 80)}")
        given.setdefault(name, []).extend([setting] if setting else [])
    for name, settings in given.items():
        device = fleet.setdefault(name, FleetDevice())
        for step, options in parse_set(settings, f"--device {name}:").items():
            device.options.setdefault(step, {}).update(options)
    for text in labels:
        name, _, label = text.partition(":")
        key, equals, value = label.partition("=")
        where = f"--label {printable(text, 80)}"
        if not (equals and key):
            raise ConfigError(f"{where}: write NAME:KEY=VALUE, such as station-1:site=north")
        if name not in fleet:
            raise ConfigError(f"{where}: there is no device {name}: name it with --device {name}")
        fleet[name].labels[key] = value
    for name, device in fleet.items():
        try:
            check_labels(device.labels)
        except SelectorError as error:
            raise ConfigError(f"device {name}: {error}") from None
    if len(fleet) > DEVICES_MAX:
        raise ConfigError(f"{len(fleet):,} devices are more than one run takes, {DEVICES_MAX:,}")
    return fleet


def graphs_of(graph: Graph, fleet: Mapping[str, FleetDevice]) -> dict[str, Graph]:
    """The flow as each device has it, by its name; with the platform's own device for sources in the cloud.

    Raises `ConfigError` for an option that no device may set, and for a source that no device has.
    """
    found = {}
    for name, device in fleet.items():
        where = f"device {name}"
        for named in device.options:
            _check_source(graph, named, where)
        own = on_device(graph, name, device.labels)
        found[name] = own.with_options(device.options, where)
    if any(is_in_cloud(step) for step in graph.sources()):
        found[CLOUD_DEVICE] = on_device(graph, CLOUD_DEVICE, CLOUD_LABELS)
    for step in graph.sources():
        if not any(_is_enabled(own, step.id) for own in found.values()):
            operator: Any = step.operator
            raise ConfigError(
                f"source {step.id} is for devices {operator.devices}, and none of this run is one of them: "
                "name one with --device NAME, and give it labels with --label NAME:KEY=VALUE"
            )
    return found


def _check_source(graph: Graph, step: str, where: str) -> None:
    known = {one.id: one for one in graph.steps}
    if step not in known:
        return  # `with_options` says so
    if not isinstance(known[step].operator, SourceOperator):
        raise ConfigError(
            f"{where}: {step} is no source, and a device has options of sources alone: set it for the flow "
            "with --set"
        )
    if is_in_cloud(known[step]):
        raise ConfigError(f"{where}: source {step} is read in the cloud: set its options with --set")


def _is_enabled(graph: Graph, step: str) -> bool:
    operator = graph[step].operator
    return isinstance(operator, SourceOperator) and operator.enabled


def _check_name(name: str, where: str) -> None:
    try:
        check_device(name)
    except SelectorError as error:
        raise ConfigError(f"{where}: {error}") from None
    if name == CLOUD_DEVICE:
        raise ConfigError(
            f"{where}: {CLOUD_DEVICE} is the platform's own device, which reads the sources in the cloud: "
            "use another name"
        )


def _read(file: Path) -> dict[str, FleetDevice]:
    where = f"--fleet {file}"
    try:
        with file.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise ConfigError(f"{where}: a fleet's file has at most {FILE_BYTES_MAX >> 20} MiB")
        document = tomllib.loads(content.decode())
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where} is not UTF-8 at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is no TOML: correct what stands there ({error})") from None
    fleet = {}
    for name, value in document.items():
        _check_name(name, where)
        try:
            section = msgspec.convert(value, _Section)
        except msgspec.ValidationError:
            raise ConfigError(
                f'{where}, [{name}]: a device has labels, such as labels = {{ site = "north" }}, and options '
                f'of sources, such as path = "a.csv" in [{name}.sources.meter]'
            ) from None
        fleet[name] = FleetDevice(dict(section.labels), {s: dict(o) for s, o in section.sources.items()})
    return fleet
