"""The agent's TOML file: read, checked, and turned into the settings and the plan of each of its flows.

An agent does this first. Guarantees: any mistake in the file, in the flow it names or in an option raises one
`ConfigError`, which names the file and the key.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from geartrain import __version__
from geartrain.adapters.boot_clock import FLOOR_US
from geartrain.adapters.configuration import read_as
from geartrain.adapters.tls import Broker, BrokerTable, broker_of
from geartrain.declarations.options import in_file
from geartrain.errors import ConfigError, GeartrainError
from geartrain.fleet.labels import check_labels
from geartrain.flow.loading import load_flow
from geartrain.graph.graph import Graph
from geartrain.graph.without import without
from geartrain.operators.source import on_device
from geartrain.planning import Plan, make_plan
from geartrain.records.event_time import parse_time
from geartrain.revision import Revision, code_of, revision_of
from geartrain.revision.differences import MENDED_CHARS, is_named
from geartrain.wire.topics import check_name
from geartrain_edge.bundles.running import run_from
from geartrain_edge.quantities import milliseconds, size_bytes
from geartrain_edge.settings import COMMITTED_FILE, DRAIN_FILE, AgentSettings, Policy, UplinkSettings
from geartrain_edge.spool.admission import check_policy

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Options = dict[str, dict[str, Any]]

_DEFAULT = AgentSettings("")
DURABILITY_MS_MAX = 60_000


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the file's tables: a key that is not known is an error."""


class _Spool(_Section, frozen=True):
    bytes_max: Positive = _DEFAULT.spool_bytes_max
    policy: Policy | None = None
    downsample_keep: Annotated[int, msgspec.Meta(ge=2, le=1_000_000)] = _DEFAULT.downsample_keep
    downsample_above: Annotated[float, msgspec.Meta(ge=0, le=1)] = _DEFAULT.downsample_above
    free_floor: str = "50MB"


class _Commit(_Section, frozen=True):
    records_max: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = _DEFAULT.records_max
    interval_ms: Positive = _DEFAULT.interval_ms
    linger_ms: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = _DEFAULT.linger_ms
    idle_ms_max: Annotated[int, msgspec.Meta(ge=1, le=60_000)] = _DEFAULT.idle_ms_max
    durability: str = "0s"
    claim_ms: Positive = _DEFAULT.claim_ms


class _Clock(_Section, frozen=True):
    known: Literal["floor", "synchronized"] = "floor"
    floor: str = "2025-01-01"


class _Uplink(_Section, frozen=True):
    window: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = _DEFAULT.uplink.window
    window_bytes: Positive = _DEFAULT.uplink.window_bytes
    resend_ms: Positive = _DEFAULT.uplink.resend_ms
    resend_ms_max: Positive = _DEFAULT.uplink.resend_ms_max
    backoff_ms: Positive = _DEFAULT.uplink.backoff_ms
    backoff_ms_max: Positive = _DEFAULT.uplink.backoff_ms_max
    refused_ms_max: Positive = _DEFAULT.uplink.refused_ms_max
    denied_ms_max: Positive = _DEFAULT.uplink.denied_ms_max
    probe_ms_min: Positive = _DEFAULT.uplink.probe_ms_min
    trim_ms: Positive = _DEFAULT.uplink.trim_ms
    silence_ms: Positive = _DEFAULT.uplink.silence_ms
    flip_window_s: Positive = _DEFAULT.uplink.flip_window_s
    bytes_per_s_max: Annotated[int, msgspec.Meta(ge=0, le=2**40)] = _DEFAULT.uplink.bytes_per_s_max


class _Flow(_Section, frozen=True):
    """One of several flows; a table that it does not have is that of the file."""

    flow: str
    instance: str = ""
    cut: str | list[str] = "auto"
    base_cut: str | list[str] = ""
    mended: str = ""
    code: str = ""
    urgent: bool = False
    revision: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    without: list[str] = msgspec.field(default_factory=list)
    drops: dict[str, int] = msgspec.field(default_factory=dict)
    spool: _Spool | None = None
    commit: _Commit | None = None
    uplink: _Uplink | None = None
    steps: Options = msgspec.field(default_factory=dict)
    sources: Options = msgspec.field(default_factory=dict)


class _File(_Section, frozen=True):
    device: str
    state: str
    flow: str = ""
    instance: str = ""
    mended: str = ""
    code: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    folder: str = ""
    claims: str = ""
    shared: str = ""
    secrets: str = ""
    private: list[str] = msgspec.field(default_factory=list)
    read_only: list[str] = msgspec.field(default_factory=list)
    urgent: bool = False
    revision: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    without: list[str] = msgspec.field(default_factory=list)
    drops: dict[str, int] = msgspec.field(default_factory=dict)
    bundle: str = ""
    rehearsal: bool = False
    own: dict[str, str] = msgspec.field(default_factory=dict)
    broker: str | BrokerTable = "127.0.0.1:1883"
    cut: str | list[str] = "auto"
    base_cut: str | list[str] = ""
    spool: _Spool = msgspec.field(default_factory=_Spool)
    commit: _Commit = msgspec.field(default_factory=_Commit)
    uplink: _Uplink = msgspec.field(default_factory=_Uplink)
    clock: _Clock = msgspec.field(default_factory=_Clock)
    steps: Options = msgspec.field(default_factory=dict)
    sources: Options = msgspec.field(default_factory=dict)
    flows: list[_Flow] = msgspec.field(default_factory=list)


class AgentConfig(msgspec.Struct, frozen=True):
    """What a checked file says of one flow. `state` is the folder of its spool; relative paths are taken from
    the file's folder; where: what stands before the keys of the flow in the file, "" or "flows[0].";
    instance: under which name it runs, "" for the flow's own; labels: the device's, for the sources of the
    flow that are for some devices only; code: the hash of the flow's files that it is to have, "" for any;
    claims: the file by which processes of the device say that an urgent flow comes first, None for none;
    private: what the process gives up all access to before it loads the flow, but for its own state and
    `read_only`; bundle: the folder in which the code is, None where it is installed;
    clock_floor_us: the wall clock is wrong below it, microseconds; is_clock_synchronized: and before a time
    server has set it; base_cut: the app's cut where `cut` is the device's own, else "";
    without: the steps that are removed from the flow; is_rehearsal: the flow is loaded and nothing else, to
    find out whether it can be, beside the process that runs; own: the sections of options, such as
    "sources.gps", that are left out where the flow has no such step, each with where a person has written it.
    """

    path: str
    settings: AgentSettings
    flow: str
    cut: str | tuple[str, ...]
    state: Path
    broker: Broker
    steps: Options = msgspec.field(default_factory=dict)
    sources: Options = msgspec.field(default_factory=dict)
    where: str = ""
    instance: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    code: str = ""
    claims: Path | None = None
    private: tuple[Path, ...] = ()
    read_only: tuple[Path, ...] = ()
    bundle: Path | None = None
    clock_floor_us: int = FLOOR_US
    is_clock_synchronized: bool = False
    base_cut: str | tuple[str, ...] = ""
    without: tuple[str, ...] = ()
    is_rehearsal: bool = False
    own: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def spool_file(self) -> Path:
        """Where the spool is."""
        return self.state / "spool.sqlite"

    @property
    def status_file(self) -> Path:
        """Where the status is."""
        return self.state / "status.json"

    @property
    def committed_file(self) -> Path:
        """Where the code is named with which records were committed first."""
        return self.state / COMMITTED_FILE

    @property
    def drain_file(self) -> Path:
        """Where a file asks the agent to drain."""
        return self.state / DRAIN_FILE

    def plan(self, before_code: Callable[[AgentConfig], None] | None = None) -> Plan:
        """Load the flow, set its options and cut it; raises `ConfigError` naming the file and the key.
        before_code: called before any code of a user runs.
        """
        if self.bundle is not None:
            run_from(self.bundle, self.flow)
        if before_code is not None:
            before_code(self)
        try:
            graph = without(load_flow(self.flow).graph(), self.without)
        except GeartrainError as error:
            raise ConfigError(f"{self.path}: {self.where}flow: {error}") from None
        try:
            graph = graph.named(self.instance)
        except GeartrainError as error:
            raise ConfigError(f"{self.path}: {self.where}instance: {error}") from None
        graph = on_device(graph, self.settings.device, self.labels)
        steps, ours = {step.id for step in graph.steps}, {step.id for step in graph.sources()}
        gone = self._gone(graph)
        for section, given, found in (("sources", self.sources, True), ("steps", self.steps, False)):
            options = {step: values for step, values in given.items() if f"{section}.{step}" not in gone}
            wrong = [step for step in options if (step in ours) is not found and step in steps]
            if wrong:
                other = "steps" if found else "sources"
                raise ConfigError(
                    f"{self.path}: [{self.where}{section}.{wrong[0]}]: write "
                    f"[{self.where}{other}.{wrong[0]}] instead"
                )
            graph = graph.with_options(options, f"{self.path}: [{self.where}{section}]")
        try:
            plan = make_plan(graph, self.cut, base=self.base_cut or None)
        except GeartrainError as error:
            raise ConfigError(f"{self.path}: {self.where}cut: {error}") from None
        try:
            check_policy(plan, self.settings.policy)
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {self.where}{error}") from None
        return plan

    def left_out(self, plan: Plan) -> tuple[str, ...]:
        """The sections of options that are left out of the plan, as sentences."""
        why = f"is left out, since revision {self.settings.revision} has no step"
        return tuple(
            f"{self.own[one]} {why} {_step_of(one)}: remove that section" for one in self._gone(plan.graph)
        )

    def _gone(self, graph: Graph) -> list[str]:
        """Those of `own` that are left out, since the graph has no such step."""
        steps = {step.id for step in graph.steps}
        return [one for one in self.own if _step_of(one) not in steps]

    def revision(self, plan: Plan) -> Revision:
        """The revision that `plan` makes, with the code of its flow.

        Raises `ConfigError`, also where the code is another than what was submitted.
        """
        try:
            code = code_of(self.flow)
        except ConfigError as error:
            raise ConfigError(f"{self.path}: {self.where}flow: {error}") from None
        if self.code and code.hash != self.code and not is_named(code, self.settings.mended):
            here, there = code.hash[:MENDED_CHARS], self.code[:MENDED_CHARS]
            raise ConfigError(
                f"{self.path}: {self.where}flow: package {code.package} of {self.flow} is installed here "
                f"with the hash {here}, and was submitted with {there}: install what was submitted and start "
                "gear-agent again, or submit what is installed here"
            )
        return revision_of(self.flow, plan, self.steps, code, __version__)


def load(
    path: str, before_code: Callable[[AgentConfig], None] | None = None
) -> list[tuple[AgentConfig, Plan]]:
    """Every flow of the TOML file `path`, loaded and cut, each with a folder of its own where they are
    several; raises `ConfigError` naming the file and the key. before_code: called before the code of each.
    """
    configs = read_configs(path)
    if not configs[0].where:
        return [(configs[0], configs[0].plan(before_code))]
    loaded: dict[str, tuple[AgentConfig, Plan]] = {}
    for config in configs:
        plan = config.plan(before_code)
        name = plan.graph.name
        if name in loaded:
            raise ConfigError(f"{path}: {config.where}flow: flow {name} is here twice; a device runs it once")
        try:
            check_name("flow", name)
        except GeartrainError as error:
            raise ConfigError(f"{path}: {config.where}flow: {error}") from None
        if not name.strip("."):
            raise ConfigError(f"{path}: {config.where}flow: flow {name!r} cannot name a folder: rename it")
        loaded[name] = replace(config, state=config.state / name), plan
    return list(loaded.values())


def read_config(path: str) -> AgentConfig:
    """The configuration of the only flow in the TOML file `path`; raises `ConfigError` as `read_configs`."""
    found = read_configs(path)
    if len(found) > 1:
        raise ConfigError(f"{path}: there are {len(found)} flows; one was expected")
    return found[0]


def read_configs(path: str) -> list[AgentConfig]:
    """The configuration of each flow in the TOML file `path`; raises `ConfigError` naming the file and the
    key.
    """
    found, folder = read_as(path, _File), Path(path).absolute().parent
    try:
        check_name("device", found.device)
    except GeartrainError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not found.state:
        raise ConfigError(f"{path}: state: name the folder that the agent keeps its spool in")
    try:
        check_labels(found.labels)
    except GeartrainError as error:
        raise ConfigError(f"{path}: labels: {error}") from None
    try:
        broker = broker_of(found.broker, folder)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    try:
        clock_floor_us = parse_time(found.clock.floor)
    except ValueError as error:
        raise ConfigError(f"{path}: clock.floor: {error}") from None
    return [
        AgentConfig(
            path,
            _settings(path, found, flow, where),
            flow.flow,
            _cut(flow.cut),
            folder / found.state,
            broker,
            in_file(flow.steps, folder / found.folder),
            in_file(flow.sources, folder / found.folder),
            where,
            flow.instance,
            found.labels,
            flow.code,
            folder / found.claims if found.claims else None,
            tuple(folder / path for path in found.private),
            tuple(folder / path for path in found.read_only),
            folder / found.bundle if found.bundle else None,
            clock_floor_us,
            found.clock.known == "synchronized",
            _cut(flow.base_cut),
            tuple(flow.without),
            found.rehearsal,
            found.own,
        )
        for where, flow in _flows(path, found)
    ]


def _step_of(section: str) -> str:
    """The step of a section of options, such as `sources.gps`."""
    return section.partition(".")[2]


def _cut(given: str | list[str]) -> str | tuple[str, ...]:
    return given if isinstance(given, str) else tuple(given)


def _words(cut: str | list[str]) -> tuple[str, ...]:
    """A cut as words: `cloud`, `edge`, `auto`, or ids of steps."""
    given = cut.split(",") if isinstance(cut, str) else cut
    return tuple(word.strip() for word in given if word.strip())


_OF_ONE = (
    *("flow", "instance", "cut", "base_cut", "mended", "code", "urgent", "steps", "sources"),
    *("revision", "without", "drops"),
)
"""What stands at the top of a file with one flow, and below each of `[[flows]]` otherwise."""


def _flows(path: str, found: _File) -> list[tuple[str, _Flow]]:
    """The flows of a file, each with what stands before its keys."""
    if not found.flows:
        if not found.flow:
            raise ConfigError(f"{path}: flow is missing")
        return [("", _Flow(**{key: getattr(found, key) for key in _OF_ONE}))]
    one = _File(found.device, found.state)
    for key in _OF_ONE:
        if getattr(found, key) != getattr(one, key):
            raise ConfigError(f"{path}: {key}: there are [[flows]]: write it below the one that it is for")
    return [(f"flows[{number}].", flow) for number, flow in enumerate(found.flows)]


def _settings(path: str, found: _File, flow: _Flow, where: str) -> AgentSettings:
    spool, commit = flow.spool or found.spool, flow.commit or found.commit
    uplink = UplinkSettings(**msgspec.structs.asdict(flow.uplink or found.uplink))
    for low, high in (("resend_ms", "resend_ms_max"), ("backoff_ms", "backoff_ms_max")):
        if getattr(uplink, low) > getattr(uplink, high):
            key = f"{where if flow.uplink else ''}uplink"
            raise ConfigError(f"{path}: {key}.{low} is larger than {key}.{high}: make it smaller")
    durability_ms = _read(
        milliseconds, f"{path}: {where if flow.commit else ''}commit.durability", commit.durability
    )
    free_floor = _read(size_bytes, f"{path}: {where if flow.spool else ''}spool.free_floor", spool.free_floor)
    if durability_ms > DURABILITY_MS_MAX:
        raise ConfigError(f"{path}: commit.durability: {commit.durability} is too long: 1min is the most")
    return AgentSettings(
        device=found.device,
        spool_bytes_max=spool.bytes_max,
        records_max=commit.records_max,
        interval_ms=commit.interval_ms,
        linger_ms=commit.linger_ms,
        durability_ms=durability_ms,
        claim_ms=commit.claim_ms,
        idle_ms_max=commit.idle_ms_max,
        uplink=uplink,
        policy=spool.policy,
        downsample_keep=spool.downsample_keep,
        downsample_above=spool.downsample_above,
        urgent=flow.urgent,
        mended=flow.mended,
        free_floor_bytes=free_floor,
        shared=Path(path).absolute().parent / found.shared if found.shared else None,
        secrets=Path(path).absolute().parent / found.secrets if found.secrets else None,
        base_cut=_words(flow.base_cut),
        revision=flow.revision,
        drops=flow.drops,
    )


def _read(quantity: Callable[[str], int], key: str, text: str) -> int:
    """A quantity of the file; raises `ConfigError` naming its key."""
    try:
        return quantity(text)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None
