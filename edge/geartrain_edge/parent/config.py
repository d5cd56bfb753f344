"""The file of a device, `gear-agent --device FILE.toml`: who it is, and what is so on this machine.

Read by the parent of the agents. Guarantees: any mistake raises one `ConfigError` that names the file and the
key. The configuration of an app's agent is made here: what the platform wants, then what this file says.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from geartrain.adapters.configuration import read_as
from geartrain.adapters.tls import OTHERS, Broker, BrokerTable, broker_of
from geartrain.adapters.toml_text import to_toml
from geartrain.control.states import WAITS, App
from geartrain.errors import ConfigError, GeartrainError
from geartrain.wire.topics import check_name
from geartrain_edge.bundles.choice import TrialPolicy
from geartrain_edge.bundles.request import PATIENCE_S
from geartrain_edge.identity import FOLDER as IDENTITY_FOLDER
from geartrain_edge.parent.limits import Limits, LimitsTable
from geartrain_edge.programs.launch import DEADLINE_S, DEADLINE_S_MAX, TRIES_MAX, TRIES_MOST, Trial
from geartrain_edge.programs.store import FOLDER as PROGRAMS_FOLDER
from geartrain_edge.quantities import size_bytes
from geartrain_edge.settings import CLAIMS_FILE, FREE_FLOOR_BYTES, SECRETS_FOLDER, SHARED_FOLDER, Policy

Options = dict[str, dict[str, Any]]
_TABLES = ("spool", "commit", "uplink")
GIVES_WAY: dict[str, dict[str, Any]] = {"commit": {"records_max": 1_000}, "uplink": {"window": 1}}
"""What holds for an app that is not urgent where another one is, unless the file says otherwise: what it has
on its way stands before the urgent one's records at the broker and at ingest.
"""
BUNDLES_FOLDER = "bundles"
"""Of a device's state folder."""
_READ_BY_APPS = (IDENTITY_FOLDER, BUNDLES_FOLDER, PROGRAMS_FOLDER)
_PATHS = ("ca", "certificate", "key")


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the file's tables: a key that is not known is an error."""


class _AppTable(_Section, frozen=True):
    """What is so on this device for one app, whatever its instance."""

    sources: Options = msgspec.field(default_factory=dict)
    steps: Options = msgspec.field(default_factory=dict)
    spool: dict[str, Any] = msgspec.field(default_factory=dict)
    commit: dict[str, Any] = msgspec.field(default_factory=dict)
    uplink: dict[str, Any] = msgspec.field(default_factory=dict)
    urgent: bool = False
    limits: LimitsTable = msgspec.field(default_factory=LimitsTable)


class _Bundles(_Section, frozen=True):
    """The table `[bundles]`: when code that came over the air is given up, and how long it is waited for.
    folder: where the platform of this machine has unpacked its own.
    """

    folder: str = ""
    deadline_s: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = TrialPolicy().deadline_s
    tries_max: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = TrialPolicy().tries_max
    memory_mib_max: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = TrialPolicy().memory_bytes_max >> 20
    patience_s: Annotated[float, msgspec.Meta(ge=1, le=3_600)] = PATIENCE_S


class _Program(_Section, frozen=True):
    """The table `[program]`, which the launcher reads, too: when a program that came over the air is given
    up.
    """

    deadline_s: Annotated[int, msgspec.Meta(ge=1, le=DEADLINE_S_MAX)] = DEADLINE_S
    tries_max: Annotated[int, msgspec.Meta(ge=1, le=TRIES_MOST)] = TRIES_MAX


class _File(_Section, frozen=True):
    device: str
    state: str
    broker: str | BrokerTable = "127.0.0.1:1883"
    isolation: bool | None = None
    platform: str = ""
    bundles: _Bundles = msgspec.field(default_factory=_Bundles)
    program: _Program = msgspec.field(default_factory=_Program)
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    spool: dict[str, Any] = msgspec.field(default_factory=dict)
    commit: dict[str, Any] = msgspec.field(default_factory=dict)
    uplink: dict[str, Any] = msgspec.field(default_factory=dict)
    apps: dict[str, _AppTable] = msgspec.field(default_factory=dict)


class _Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of an app, as the platform sends them."""

    sources: Options = msgspec.field(default_factory=dict)
    steps: Options = msgspec.field(default_factory=dict)


class DeviceConfig(msgspec.Struct, frozen=True):
    """A checked file. state: the folder of the device; relative paths are taken from `folder`, the file's
    own.

    broker_table: as the agents are given it, with absolute paths; platform: where the platform that the
    device has joined listens for devices, `https://HOST:PORT`, empty for none: its apps run from bundles;
    trial, program_trial: when code and programs from there are given up; isolation: whether apps are kept
    from each other's files; free_floor_bytes: of the disk that stay free where code is fetched; patience_s:
    how long an answer of the platform is waited for then; unpacked: where this machine's own platform has
    bundles, None for nowhere: an app whose code is there runs it from there.
    """

    path: str
    folder: Path
    device: str
    state: Path
    broker: Broker
    broker_table: str | dict[str, Any]
    tables: dict[str, dict[str, Any]]
    apps: dict[str, _AppTable]
    platform: str = ""
    trial: TrialPolicy = TrialPolicy()
    isolation: bool = False
    program_trial: Trial = Trial()
    free_floor_bytes: int = FREE_FLOOR_BYTES
    patience_s: float = PATIENCE_S
    unpacked: Path | None = None

    @property
    def waits(self) -> tuple[str, ...]:
        """`WAITS` where sources wait while a spool is full, as the platform is told."""
        return (WAITS,) if self.tables["spool"].get("policy") == Policy.BLOCK.value else ()

    @property
    def bundles(self) -> Path:
        """Where unpacked bundles are."""
        return self.state / BUNDLES_FOLDER

    @property
    def programs(self) -> Path:
        """Where the device's own programs are."""
        return self.state / PROGRAMS_FOLDER

    def secrets(self, instance: str) -> Path:
        """Where the secrets of an app are, whatever its instance."""
        return self.state / SECRETS_FOLDER / app_name(instance)

    def _own(self, app: App, here: _AppTable) -> dict[str, str]:
        """The sections of options that this file has for the app, each with how it is named to people."""
        tables = {"sources": here.sources, "steps": here.steps}
        names = [f"{table}.{step}" for table, steps in tables.items() for step in steps]
        return {name: f"{self.path}: [apps.{app_name(app.instance)}.{name}]" for name in names}

    def limits(self, instance: str) -> Limits:
        """What the process of an app may take."""
        here = self.apps.get(app_name(instance))
        return Limits() if here is None else Limits.of(here.limits)

    def agent_toml(self, app: App, state: Path, *, is_rehearsal: bool = False) -> str:
        """The configuration of the agent of `app`, whose state folder is `state`; raises `ConfigError`.

        is_rehearsal: it only loads the flow.
        """
        try:
            wanted = msgspec.json.decode(app.options.encode(), type=_Wanted)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise ConfigError(f"app {app.instance}: its options cannot be read: {error}") from None
        here = self.apps.get(app_name(app.instance), _AppTable())
        content: dict[str, Any] = {
            "device": self.device,
            "state": str(state),
            "flow": app.flow,
            "instance": app.instance,
            "cut": app.own_cut or app.cut,
            "folder": str(self.folder),
            "broker": self.broker_table,
            "claims": str(self.state / CLAIMS_FILE),
            "shared": str(self.state / SHARED_FOLDER),
            "secrets": str(self.secrets(app.instance)),
            "urgent": here.urgent,
        }
        if self.isolation:
            content["private"] = [str(self.state)]
            content["read_only"] = [str(self.state / name) for name in _READ_BY_APPS]
            content["read_only"] += [content["secrets"]]
        if is_rehearsal:
            content["rehearsal"] = True
        if app.own_cut:
            content["base_cut"] = app.cut
        content |= _of_revision(app)
        if app.number > 1:  # what stood there for a former one may have gone
            content["own"] = self._own(app, here)
        if app.code:
            # What the platform names takes the place of other code whose steps and types are equal.
            content |= {"code": app.code, "mended": app.code}
        if self.platform:
            content["bundle"] = str(self.bundles / app.code)
        elif self.unpacked is not None and app.code and (self.unpacked / app.code).is_dir():
            content["bundle"] = str(self.unpacked / app.code)
        gives_way = not here.urgent and any(other.urgent for other in self.apps.values())
        for name in _TABLES:
            first = GIVES_WAY.get(name, {}) if gives_way else {}
            content[name] = first | self.tables[name] | getattr(here, name)
        content["sources"] = _merged(wanted.sources, here.sources)
        content["steps"] = _merged(wanted.steps, here.steps)
        try:
            return to_toml({key: value for key, value in content.items() if value != {}})
        except TypeError as error:
            raise ConfigError(f"app {app.instance}: an option cannot be written: {error}") from None


def _of_revision(app: App) -> dict[str, Any]:
    """What the agent must know of the app's revision, which may be another than its spool's.

    Raises `ConfigError`.
    """
    try:
        drops = msgspec.json.decode(app.drops.encode(), type=dict[str, int])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ConfigError(f"app {app.instance}: the states that go cannot be read: {error}") from None
    return {
        **({"revision": app.number} if app.number else {}),
        **({"without": app.without.split(",")} if app.without else {}),
        **({"drops": drops} if drops else {}),
    }


def app_name(instance: str) -> str:
    """The app of an instance: `traffic` of `traffic.3`."""
    name, point, number = instance.rpartition(".")
    return name if point and number.isdecimal() else instance


def read_device(path: str) -> DeviceConfig:
    """The file of a device; raises `ConfigError` naming it and the key."""
    found, folder = read_as(path, _File), Path(path).absolute().parent
    try:
        check_name("device", found.device)
        broker = broker_of(found.broker, folder)
        if Path(path).stat().st_mode & 0o777 & OTHERS & 0o022:
            raise ConfigError(f"others may write it: run chmod 600 {path}")
    except GeartrainError as error:
        raise ConfigError(f"{path}: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    if not found.state:
        raise ConfigError(f"{path}: state: name the folder that the device keeps its apps in")
    for name, app in found.apps.items():
        try:
            Limits.of(app.limits)
        except ConfigError as error:
            raise ConfigError(f"{path}: apps.{name}.limits.memory: {error}") from None
    tables = {name: getattr(found, name) for name in _TABLES}
    return DeviceConfig(
        path,
        folder,
        found.device,
        folder / found.state,
        broker,
        _absolute(found.broker, folder),
        tables,
        found.apps,
        found.platform,
        TrialPolicy(found.bundles.deadline_s, found.bundles.tries_max, found.bundles.memory_mib_max << 20),
        bool(found.platform) if found.isolation is None else found.isolation,
        Trial(found.program.deadline_s, found.program.tries_max),
        _free_floor(path, found.spool),
        found.bundles.patience_s,
        folder / found.bundles.folder if found.bundles.folder else None,
    )


def _free_floor(path: str, spool: dict[str, Any]) -> int:
    """What the spools leave free, code that is fetched leaves free, too."""
    said = spool.get("free_floor")
    if said is None:
        return FREE_FLOOR_BYTES
    try:
        return size_bytes(str(said))
    except ConfigError as error:
        raise ConfigError(f"{path}: spool.free_floor: {error}") from None


def _absolute(broker: str | BrokerTable, folder: Path) -> str | dict[str, Any]:
    if isinstance(broker, str):
        return broker
    table = {key: value for key, value in msgspec.structs.asdict(broker).items() if value != ""}
    return table | {key: str(folder / table[key]) for key in _PATHS if key in table}


def _merged(wanted: Mapping[str, Mapping[str, Any]], here: Mapping[str, Mapping[str, Any]]) -> Options:
    """What this device says stands above what the platform wants."""
    return {step: {**wanted.get(step, {}), **here.get(step, {})} for step in dict.fromkeys((*wanted, *here))}
