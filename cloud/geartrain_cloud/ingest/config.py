"""The configuration of ingest: its log, its broker, and how much it takes at once.

Read once, before anything else. Which flows and devices there are, the log's roster says. Guarantees: a
mistake raises a `ConfigError` that names the file and the key.
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
from geartrain.errors import ConfigError
from geartrain.wire.topics import BUCKETS
from geartrain_cloud.log.part import buckets_of
from geartrain_cloud.log.retention import Retention

_RANGE = re.compile(r"([0-9a-f]{2})(?:-([0-9a-f]{2}))?")


@dataclass(frozen=True, slots=True)
class IngestConfig:
    """All settings.

    log: the folder of ledger and segments; partitions: how many a flow has, fixed for the log's life;
    buckets: the first and the last whose devices it serves, which make up whole partitions; retention: what
    may go of the log; merge: whether small segments are put together, and merge_grace_s: how long the old
    files then stay; group_commit_ms: how long a batch may wait for others to be committed with;
    group_rows_max, group_bytes_max: once a group holds so many rows or payload bytes, ingest takes nothing
    more until they are committed. waiting_batches_max (of one epoch), waiting_bytes_max (of all together):
    what waits beyond gaps; quarantine_batches_max, quarantine_bytes_max: what the quarantine holds;
    nack_interval_ms: how long the same NACK is not repeated; backoff_ms_max: the longest pause before
    connecting again; resubscribe_ms: after how long a silence of the whole fleet ingest subscribes again;
    puback_ms: how long the broker may take for the puback of an answer until the connection is made anew;
    status_interval_ms: how often status.json is written, at most.
    """

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
    if "flows" in raw:
        raise ConfigError(
            "flows: ingest takes them from the log's roster, which control writes: leave flows out, and give "
            "each flow to `gear submit`"
        )
    for key in raw:
        if key not in _NUMBERS | {"log", "broker", "buckets"}:
            raise ConfigError(
                f"{key}: there is no such setting; there are broker, buckets, log, {_listed(_NUMBERS)}"
            )
    log = _log(raw.get("log"))
    broker = parse_broker(raw.get("broker", "127.0.0.1:1883"), folder)
    numbers: dict[str, Any] = {key: _number(key, raw[key]) for key in sorted(_NUMBERS & raw.keys())}
    return IngestConfig(
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


def _number(key: str, raw: Any) -> int:
    if type(raw) is not int or raw < 1:
        raise ConfigError(f"{key}: give a whole number above 0, not {raw!r}")
    return raw


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))
