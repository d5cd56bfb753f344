"""The agent's TOML file: read, checked, and turned into settings and a plan.

The first thing that an agent does. Guarantees: whatever is wrong with the file, the flow it names or an
option in it is one `ConfigError` that names the file and the key.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from geartrain.errors import ConfigError, GeartrainError
from geartrain.loading import load_flow
from geartrain.placement import Plan, make_plan
from geartrain.wire.topics import check_name
from geartrain_edge.admission import check_policy
from geartrain_edge.settings import AgentSettings, Policy, UplinkSettings

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Options = dict[str, dict[str, Any]]

_PATH = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")


_DEFAULT = AgentSettings("")


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the file's tables: a key that is not known is an error."""


class _Spool(_Section, frozen=True):
    bytes_max: Positive = _DEFAULT.spool_bytes_max
    policy: Policy = _DEFAULT.policy
    downsample_keep: Annotated[int, msgspec.Meta(ge=2, le=1_000_000)] = _DEFAULT.downsample_keep
    downsample_above: Annotated[float, msgspec.Meta(ge=0, le=1)] = _DEFAULT.downsample_above


class _Commit(_Section, frozen=True):
    records_max: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = _DEFAULT.records_max
    interval_ms: Positive = _DEFAULT.interval_ms


class _Uplink(_Section, frozen=True):
    window: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = _DEFAULT.uplink.window
    window_bytes: Positive = _DEFAULT.uplink.window_bytes
    resend_ms: Positive = _DEFAULT.uplink.resend_ms
    resend_ms_max: Positive = _DEFAULT.uplink.resend_ms_max
    backoff_ms: Positive = _DEFAULT.uplink.backoff_ms
    backoff_ms_max: Positive = _DEFAULT.uplink.backoff_ms_max
    silence_ms: Positive = _DEFAULT.uplink.silence_ms
    flip_window_s: Positive = _DEFAULT.uplink.flip_window_s


class _File(_Section, frozen=True):
    device: str
    flow: str
    state: str
    broker: str = "127.0.0.1:1883"
    cut: str | list[str] = "auto"
    spool: _Spool = msgspec.field(default_factory=_Spool)
    commit: _Commit = msgspec.field(default_factory=_Commit)
    uplink: _Uplink = msgspec.field(default_factory=_Uplink)
    steps: Options = msgspec.field(default_factory=dict)
    sources: Options = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """A checked file. `state` is the agent's folder; relative paths are below the working directory."""

    path: str
    settings: AgentSettings
    flow: str
    cut: str | tuple[str, ...]
    state: Path
    host: str
    port: int
    steps: Options = field(default_factory=dict)
    sources: Options = field(default_factory=dict)

    @property
    def spool_file(self) -> Path:
        """Where the spool is."""
        return self.state / "spool.sqlite"

    @property
    def status_file(self) -> Path:
        """Where the status is."""
        return self.state / "status.json"

    def plan(self) -> Plan:
        """Load the flow, set its options and cut it; raises `ConfigError` naming the file and the key."""
        try:
            graph = load_flow(self.flow).graph()
        except GeartrainError as error:
            raise ConfigError(f"{self.path}: flow: {error}") from None
        ours = {step.id for step in graph.sources()}
        for section, options, found in (("sources", self.sources, True), ("steps", self.steps, False)):
            wrong = [
                step
                for step in options
                if (step in ours) is not found and step in {s.id for s in graph.steps}
            ]
            if wrong:
                other = "steps" if found else "sources"
                raise ConfigError(f"{self.path}: [{section}.{wrong[0]}]: write [{other}.{wrong[0]}] instead")
            graph = graph.with_options(options, f"{self.path}: [{section}]")
        try:
            plan = make_plan(graph, self.cut)
        except GeartrainError as error:
            raise ConfigError(f"{self.path}: cut: {error}") from None
        try:
            check_policy(plan, self.settings.policy)
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {error}") from None
        return plan


def read_config(path: str) -> AgentConfig:
    """The configuration in the TOML file `path`; raises `ConfigError` naming the file and the key."""
    try:
        with Path(path).open("rb") as file:
            raw = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from None
    try:
        found = msgspec.convert(raw, _File)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_sentence(str(error))}") from None
    try:
        check_name("device", found.device)
    except GeartrainError as error:
        raise ConfigError(f"{path}: {error}") from None
    host, port = _address(path, found.broker)
    uplink = UplinkSettings(**msgspec.structs.asdict(found.uplink))
    for low, high in (("resend_ms", "resend_ms_max"), ("backoff_ms", "backoff_ms_max")):
        if getattr(uplink, low) > getattr(uplink, high):
            raise ConfigError(f"{path}: uplink.{low} is larger than uplink.{high}: make it smaller")
    settings = AgentSettings(
        device=found.device,
        spool_bytes_max=found.spool.bytes_max,
        records_max=found.commit.records_max,
        interval_ms=found.commit.interval_ms,
        uplink=uplink,
        policy=found.spool.policy,
        downsample_keep=found.spool.downsample_keep,
        downsample_above=found.spool.downsample_above,
    )
    cut = found.cut if isinstance(found.cut, str) else tuple(found.cut)
    if not found.state:
        raise ConfigError(f"{path}: state: name the folder that the agent keeps its spool in")
    return AgentConfig(
        path, settings, found.flow, cut, Path(found.state), host, port, found.steps, found.sources
    )


def _address(path: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not port.isascii() or not 0 < int(port) < 65_536:
        raise ConfigError(f"{path}: broker: {text!r} is not HOST:PORT, such as 127.0.0.1:1883")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _sentence(said: str) -> str:
    """msgspec's words with the key first: "commit.records_max: expected `int`, got `str`"."""
    where = _PATH.search(said)
    key = where[1] if where else ""
    said = _PATH.sub("", said)
    if unknown := _UNKNOWN.fullmatch(said):
        return f"{_join(key, unknown[1])} is not a key of this file"
    if missing := _MISSING.fullmatch(said):
        return f"{_join(key, missing[1])} is missing"
    return f"{key}: {said[:1].lower()}{said[1:]}"


def _join(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name
