"""The configuration of ingest: its log, its broker, and of each flow which devices have which source.

Read once, before anything else. Guarantees: a mistake raises a `ConfigError` that names the file and the
key. Every name that becomes a part of a topic or of a file name has plain characters only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from geartrain.adapters.configuration import read_toml
from geartrain.adapters.tls import Broker, parse_broker
from geartrain.errors import ConfigError, WireError
from geartrain.graph.graph import CHANNEL_ID, CLAIMS, DEAD_LETTERS, LATE, STATE
from geartrain.records.letters import Letter
from geartrain.schema import Schema, derive
from geartrain.wire.topics import BUCKETS, check_name
from geartrain_cloud.log.part import buckets_of
from geartrain_cloud.log.retention import Retention
from geartrain_cloud.ports import NO_SOURCE

SYSTEM_CHANNELS = (DEAD_LETTERS, LATE)
"""Channels that every flow has, below all its sources, and that every device feeds."""

TIMELESS_CHANNELS = (*SYSTEM_CHANNELS, STATE, CLAIMS)
"""Channels whose rows may lie anywhere in time, so that no clock has passed them."""

_RANGE = re.compile(r"([0-9a-f]{2})(?:-([0-9a-f]{2}))?")


@dataclass(frozen=True, slots=True)
class FlowConfig:
    """One flow: `sources` gives the devices that have each source, `channels` the sources above each channel,
    the two system channels included.

    bounded: all its sources come to an end, so no device is ever excluded. Otherwise ingest excludes a device
    that does not join within join_timeout_s, or of which nothing is heard for idle_after_s. partitioned_by:
    of some channels the field of whose values each is said to live on one device; schemas: of channels, the
    id of the schema that they have to have; that of any other is the first that is announced; revision: the
    number of the one that the log is to bring next, or has brought; since: of sources that came with a later
    one its number; former: of channels, by its id each schema that devices have which have not gone over.
    """

    devices: tuple[str, ...]
    sources: Mapping[str, tuple[str, ...]]
    channels: Mapping[str, tuple[str, ...]]
    bounded: bool = True
    join_timeout_s: float = 60.0
    idle_after_s: float = 30.0
    partitioned_by: Mapping[str, str] = field(default_factory=dict)
    schemas: Mapping[str, str] = field(default_factory=dict)
    revision: int = 1
    retention: Retention = field(default_factory=Retention)
    since: Mapping[str, int] = field(default_factory=dict)
    former: Mapping[str, Mapping[str, Schema]] = field(default_factory=dict)

    @staticmethod
    def of(
        devices: tuple[str, ...],
        sources: Mapping[str, tuple[str, ...]],
        channels: Mapping[str, tuple[str, ...]] | None = None,
        **membership: Any,
    ) -> FlowConfig:
        """A flow whose system channels lie below all sources; channels: None where each source is one."""
        below = {source: (source,) for source in sources} if channels is None else channels
        above = {**below, **{channel: tuple(sources) for channel in SYSTEM_CHANNELS}}
        return FlowConfig(devices, sources, above, **membership)

    def takes(self, channel: str, schema_id: str) -> bool:
        """Whether somebody has named the schema of this id for a channel; those of letters are known."""
        if channel in SYSTEM_CHANNELS:
            return schema_id == derive(Letter).schema_id
        return schema_id == self.schemas.get(channel) or schema_id in self.former.get(channel, {})

    def sources_of(self, device: str) -> list[str]:
        """The sources that `device` has, sorted."""
        return sorted(source for source, devices in self.sources.items() if device in devices)

    def memberships(self) -> set[tuple[str, str]]:
        """Each (device, source) that the log is to name, with NO_SOURCE for a device that has none."""
        held = {(device, source) for source, devices in self.sources.items() for device in devices}
        having = {device for device, _ in held}
        return held | {(device, NO_SOURCE) for device in self.devices if device not in having}

    def is_to_come(self, source: str, revision: int) -> bool:
        """Whether a device that runs `revision` has a source only once it has gone over to a later one."""
        return revision < self.since.get(source, 0)

    def fed_by(self, device: str) -> list[str]:
        """The channels that `device` feeds: those below a source that it has, and the two of the system."""
        has = set(self.sources_of(device))
        return sorted(c for c, above in self.channels.items() if c in SYSTEM_CHANNELS or has & set(above))


@dataclass(frozen=True, slots=True)
class IngestConfig:
    """All settings.

    flows: by name, where they are told once; follows_roster: they come from the log's roster instead; log:
    the folder of ledger and segments; partitions: how many a flow has, fixed for the log's life; buckets: the
    first and the last whose devices it serves, which make up whole partitions; retention: what may go of the
    log; merge: whether small segments are put together, and merge_grace_s: how long the old files then stay;
    group_commit_ms: how long a batch may wait for others to be committed with; group_rows_max,
    group_bytes_max: once a group holds so many rows or payload bytes, ingest takes nothing more until they
    are committed. waiting_batches_max (of one epoch), waiting_bytes_max (of all together): what waits beyond
    gaps; quarantine_batches_max, quarantine_bytes_max: what the quarantine holds; nack_interval_ms: how long
    the same NACK is not repeated; backoff_ms_max: the longest pause before connecting again; resubscribe_ms:
    after how long a silence of the whole fleet ingest subscribes again; puback_ms: how long the broker may
    take for the puback of an answer until the connection is made anew; status_interval_ms: how often
    status.json is written, at most.
    """

    flows: Mapping[str, FlowConfig]
    log: Path = field(default=Path("log"))
    partitions: int = 1
    buckets: tuple[int, int] = (0, BUCKETS - 1)
    retention: Retention = field(default_factory=Retention)
    merge: bool = True
    merge_grace_s: float = 60.0
    broker: Broker = field(default=Broker("127.0.0.1", 1883))
    group_commit_ms: int = 10
    group_rows_max: int = 50_000
    group_bytes_max: int = 16 << 20
    waiting_batches_max: int = 256
    waiting_bytes_max: int = 32 << 20
    quarantine_batches_max: int = 10_000
    quarantine_bytes_max: int = 64 << 20
    nack_interval_ms: int = 100
    backoff_ms_max: int = 250
    resubscribe_ms: int = 30_000
    puback_ms: int = 10_000
    status_interval_ms: int = 500
    follows_roster: bool = False

    @property
    def owned(self) -> tuple[int, ...]:
        """The partitions that its buckets make up."""
        first, last = self.buckets
        buckets = set(range(first, last + 1))
        return tuple(p for p in range(self.partitions) if buckets.issuperset(buckets_of(p, self.partitions)))

    @property
    def is_whole(self) -> bool:
        """Whether it serves all buckets alone."""
        return self.buckets == (0, BUCKETS - 1)


_TIMES = ("idle_after_s", "join_timeout_s")
_NUMBERS = frozenset(f.name for f in fields(IngestConfig) if f.type == "int") - {"partitions"}
_LOG_KEYS = ("folder", "merge", "merge_grace_s", "partitions", "retain_bytes", "retain_s")
PARTITIONS_MAX = 64
"""A partition has at least one bucket of devices."""


def read_config(path: Path) -> IngestConfig:
    """The configuration in the TOML file `path`; a relative `log` is taken from the file's folder.

    Raises `ConfigError`.
    """
    raw = read_toml(path)
    try:
        return _config(raw, path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}, {error}") from None


def _config(raw: Mapping[str, Any], folder: Path) -> IngestConfig:
    for key in raw:
        if key not in _NUMBERS | {"log", "broker", "buckets", "flows"}:
            raise ConfigError(
                f"{key}: there is no such setting; there are broker, buckets, flows, log, {_listed(_NUMBERS)}"
            )
    log, flows = _log(raw.get("log")), raw.get("flows")
    if not isinstance(flows, dict | None):
        raise ConfigError(
            "flows: give each flow as [flows.NAME] with devices, sources and channels, or leave flows out to "
            "follow the log's roster"
        )
    broker = parse_broker(raw.get("broker", "127.0.0.1:1883"), folder)
    numbers: dict[str, Any] = {key: _number(key, raw[key]) for key in sorted(_NUMBERS & raw.keys())}
    return IngestConfig(
        flows={
            _name("flow", f"flows.{name}", name): _flow(f"flows.{name}", one)
            for name, one in (flows or {}).items()
        },
        follows_roster=not flows,
        log=folder / log.pop("folder"),
        **log,
        buckets=_buckets(raw.get("buckets", f"00-{BUCKETS - 1:02x}"), log.get("partitions", 1)),
        broker=broker,
        **numbers,
    )


def _log(raw: Any) -> dict[str, Any]:
    """The settings of the log: `raw` is its folder, or a table with that and more."""
    found = {"folder": raw} if isinstance(raw, str) else raw
    folder = found.get("folder") if isinstance(found, dict) else None
    if not isinstance(folder, str) or not folder:
        raise ConfigError(
            "log: give the folder that keeps ledger and segments, as a string, or a table with folder"
        )
    for key in found:
        if key not in _LOG_KEYS:
            raise ConfigError(f"log.{key}: there is no such setting; there are {_listed(_LOG_KEYS)}")
    settings: dict[str, Any] = {"folder": folder}
    if "merge" in found:
        if not isinstance(found["merge"], bool):
            raise ConfigError(f"log.merge: give true or false, not {found['merge']!r}")
        settings["merge"] = found["merge"]
    if "merge_grace_s" in found:
        settings["merge_grace_s"] = _seconds("log.merge_grace_s", found["merge_grace_s"])
    if "partitions" in found:
        settings["partitions"] = _number("log.partitions", found["partitions"])
        if settings["partitions"] > PARTITIONS_MAX:
            raise ConfigError(
                f"log.partitions: at most {PARTITIONS_MAX}, one for each bucket of devices, "
                f"not {found['partitions']}"
            )
    retain_s, retain_bytes = found.get("retain_s"), found.get("retain_bytes")
    settings["retention"] = Retention(
        None if retain_s is None else _seconds("log.retain_s", retain_s),
        None if retain_bytes is None else _number("log.retain_bytes", retain_bytes),
    )
    return settings


def _buckets(raw: Any, partitions: int) -> tuple[int, int]:
    found = _RANGE.fullmatch(raw) if isinstance(raw, str) else None
    first, last = (int(found[1], 16), int(found[2] or found[1], 16)) if found else (1, 0)
    if first > last or last >= BUCKETS:
        raise ConfigError(
            f'buckets: give the first and the last of 00 to {BUCKETS - 1:02x}, such as "00-1f", not {raw!r}'
        )
    runs = [buckets_of(p, partitions) for p in range(partitions)]
    if first not in {run[0] for run in runs} or last not in {run[-1] for run in runs}:
        whole = ", ".join(f"{run[0]:02x}-{run[-1]:02x}" for run in runs)
        raise ConfigError(
            f"buckets: {raw} do not make up whole partitions of this log, which are {whole}: give one of "
            "these, or a run of them, or set log.partitions before the log is made"
        )
    return first, last


def _seconds(key: str, raw: Any) -> float:
    if type(raw) not in (int, float) or not 0 < raw < math.inf:
        raise ConfigError(f"{key}: give a number of seconds above 0, not {raw!r}")
    return float(raw)


def _flow(key: str, raw: Any) -> FlowConfig:
    if not isinstance(raw, dict):
        raise ConfigError(f"{key}: give a table with devices, sources and channels")
    for name in raw:
        if name not in ("devices", "sources", "channels", "bounded", "partitioned_by", *_TIMES):
            raise ConfigError(
                f"{key}.{name}: there is no such setting; "
                f"there are bounded, channels, devices, partitioned_by, sources, {_listed(_TIMES)}"
            )
    devices = _devices(f"{key}.devices", raw.get("devices"))
    sources = _sources(f"{key}.sources", raw.get("sources"), devices)
    channels = _channels(f"{key}.channels", raw.get("channels"), tuple(sources))
    fields = _partitioned_by(f"{key}.partitioned_by", raw.get("partitioned_by", {}), channels)
    return FlowConfig.of(devices, sources, channels, partitioned_by=fields, **_membership(key, raw))


def _sources(key: str, raw: Any, devices: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    if not isinstance(raw, dict) or not raw:
        raise ConfigError(f'{key}: give each source step of the flow the devices that have it, or "all"')
    members: dict[str, tuple[str, ...]] = {}
    for source, holders in raw.items():
        where = f"{key}.{source}"
        if not CHANNEL_ID.fullmatch(source):
            raise ConfigError(f"{where}: a source's name is the id of a step, of letters, digits and _")
        members[source] = devices if holders == "all" else _devices(where, holders)
        if strangers := sorted(set(members[source]) - set(devices)):
            raise ConfigError(f"{where}: {_listed(strangers)} not among the devices of the flow")
    return members


def _channels(key: str, raw: Any, sources: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    if not isinstance(raw, dict) or not raw:
        raise ConfigError(f'{key}: give each channel the sources above it, or "all"')
    channels: dict[str, tuple[str, ...]] = {}
    for channel, above in raw.items():
        where = f"{key}.{channel}"
        if not CHANNEL_ID.fullmatch(channel):
            raise ConfigError(f"{where}: a channel's name is the id of a step, of letters, digits and _")
        if above == "all":
            channels[channel] = sources
            continue
        if not isinstance(above, list) or not above or not all(isinstance(name, str) for name in above):
            raise ConfigError(f'{where}: give a list of the sources above it, or "all", not {above!r}')
        if strangers := sorted(set(above) - set(sources)):
            raise ConfigError(
                f"{where}: {_listed(strangers)} not among the sources of the flow: {_listed(sources)}"
            )
        channels[channel] = tuple(above)
    return channels


def _partitioned_by(key: str, raw: Any, channels: Mapping[str, Any]) -> dict[str, str]:
    if not isinstance(raw, dict):
        raise ConfigError(f"{key}: give a table of channels, each with the field it is partitioned by")
    for channel, name in raw.items():
        if channel not in channels:
            raise ConfigError(f"{key}.{channel}: there is no such channel; there are {_listed(channels)}")
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{key}.{channel}: give the name of a field, not {name!r}")
    return dict(raw)


def _membership(key: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    bounded = raw.get("bounded", True)
    if not isinstance(bounded, bool):
        raise ConfigError(f"{key}.bounded: give true or false, not {bounded!r}")
    found: dict[str, Any] = {"bounded": bounded}
    for name in _TIMES:
        if name not in raw:
            continue
        if bounded:
            raise ConfigError(f"{key}.{name}: nobody is excluded from a flow unless it has bounded = false")
        found[name] = _seconds(f"{key}.{name}", raw[name])
    return found


def _devices(key: str, raw: Any) -> tuple[str, ...]:
    if not isinstance(raw, list) or not raw or not all(isinstance(name, str) for name in raw):
        raise ConfigError(f"{key}: give a list of at least one device name")
    names = [_name("device", key, name) for name in raw]
    if len(set(names)) != len(names):
        raise ConfigError(f"{key}: a device is named twice")
    return tuple(names)


def _name(kind: str, key: str, name: str) -> str:
    try:
        check_name(kind, name)
    except WireError as error:
        raise ConfigError(f"{key}: {error}") from None
    if not name.strip("."):
        raise ConfigError(f"{key}: a {kind} cannot be called {name!r}: use a letter or a digit")
    return name


def _number(key: str, raw: Any) -> int:
    if type(raw) is not int or raw < 1:
        raise ConfigError(f"{key}: give a whole number above 0, not {raw!r}")
    return raw


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))
