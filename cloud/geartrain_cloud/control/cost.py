"""What an app takes: bytes a day on the link, in the log and on disk, and when a limit is reached.

Beside every record's path, for the answer about an app. Guarantees: all is measured, each rate with the span
that it is over; what nobody knows is null. What is remembered is bounded: a look every `LOOK_S`, of the last
day, since control has run.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geartrain.errors import LedgerError
from geartrain_cloud.control.aging import tables_age_s
from geartrain_cloud.control_store.model import Instance
from geartrain_cloud.ingest.counters import BYTES_PREFIX
from geartrain_cloud.log.retention import Holding, holding
from geartrain_cloud.platform.config import PlatformConfig
from geartrain_cloud.platform.places import read_report
from geartrain_cloud.sinks.app_tables import AppTables
from geartrain_cloud.sinks.layout import TableError

LOOK_S = 300.0
SPAN_S = 86_400.0
LEAST_S = 60.0
"""A shorter span tells nothing of a day."""


@dataclass(frozen=True, slots=True)
class _Look:
    """at_s: when; link: by instance, bytes that ingest took since ever; disk: bytes of files; free: bytes."""

    at_s: float
    link: Mapping[str, int]
    disk: Mapping[str, int]
    free: int


class Costs:
    """Of all apps of a platform."""

    def __init__(self, config: PlatformConfig, now_s: Callable[[], float]) -> None:
        """`now_s`: a clock that never goes back, seconds."""
        self._config, self._places, self._now_s = config, config.places, now_s
        self._looks = deque[_Look]()

    @property
    def is_due(self) -> bool:
        """Whether the last look is long enough ago for the next one."""
        return not self._looks or self._now_s() - self._looks[-1].at_s >= LOOK_S

    def look(self, instances: Iterable[str]) -> None:
        """Remember what these apps take by now."""
        self._looks.append(self._look(instances))
        while self._looks[-1].at_s - self._looks[0].at_s > SPAN_S:
            self._looks.popleft()

    def cost(self, instance: str) -> dict[str, Any]:
        """What an app takes on the link and on disk, and when the disk is full."""
        now = self._look([instance])
        then = next((look for look in self._looks if instance in look.disk), now)
        days = (now.at_s - then.at_s) / 86_400
        is_long = now.at_s - then.at_s >= LEAST_S
        link = now.link.get(instance, -1) - then.link.get(instance, 0)
        shrinks_a_day = (then.free - now.free) / days if is_long else 0.0
        return {
            "span_s": now.at_s - then.at_s if is_long else None,
            "link_bytes_per_day": round(link / days) if is_long and link >= 0 else None,
            "disk_bytes": now.disk[instance],
            "disk_bytes_per_day": round((now.disk[instance] - then.disk[instance]) / days)
            if is_long
            else None,
            "disk_free_bytes": now.free,
            "days_to_full": now.free / shrinks_a_day if shrinks_a_day > 0 else None,
        }

    def retention(self, instance: Instance) -> dict[str, Any]:
        """How long an app's rows stay, what its log takes, and when that reaches its limit in bytes."""
        ages = [s for s in (instance.retain_s, self._config.log.retain_s) if s]
        held = self._held(instance.instance)
        limit, grows = instance.retain_bytes, held.bytes_per_day
        full = max(0.0, (limit - held.bytes) / grows) if limit and grows else None
        return {
            "age_s": min(ages, default=None),
            "bytes": limit or None,
            "log_bytes": held.bytes,
            "log_bytes_per_day": grows,
            "log_span_s": held.span_s,
            "days_to_limit": full,
            "tables_age_s": tables_age_s(instance, self._config),
            "tables_removed": self._removed(instance),
        }

    def _look(self, instances: Iterable[str]) -> _Look:
        names = list(instances)
        totals = read_report(self._places.ingest_status).get("counters", {})
        counted = totals if isinstance(totals, dict) else {}
        link = {name: count for name in names if isinstance(count := counted.get(BYTES_PREFIX + name), int)}
        disk = {name: self._held(name).bytes + _size(self._places.app(name)) for name in names}
        return _Look(self._now_s(), link, disk, shutil.disk_usage(self._places.folder).free)

    def _held(self, instance: str) -> Holding:
        try:
            return holding(self._places.log, instance, time.time_ns() // 1_000)
        except LedgerError:  # there is none yet
            return Holding(0)

    def _removed(self, instance: Instance) -> int | None:
        """How many rows have gone by age from the tables of the run that is served; None: nobody can say."""
        try:
            tables = AppTables(self._places.tables(instance.instance), self._config.tables.store)
            return tables.removed_rows(tables.served)
        except TableError:
            return None


def _size(folder: Path) -> int:
    """The bytes of the files right in a folder; 0 where there is none."""
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.is_file(follow_symlinks=False))
    except OSError:
        return 0
