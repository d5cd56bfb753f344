"""How fast records go through an app, hop by hop: from two looks at the totals that processes report.

Beside every record's path, for the answer about an app. Guarantees: what nobody reports is left out, and so
is a total that went back. What is remembered is bounded: a look every `LOOK_S`, of the last `SPAN_S`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from geartrain_cloud.control.hosting import HostReport, read_hosted
from geartrain_cloud.platform.places import PlatformPlaces, read_report

LOOK_S = 10.0
SPAN_S = 60.0
LEAST_S = 2.0
"""Two looks tell a rate when so much time is between them: processes report twice a second."""
DAY_S = 86_400
AGENTS_MAX = 100
"""Devices of an app whose agents' reports are read; of an app with more, `read` and `link` are left out."""

Totals = dict[str, int]
"""By hop: `read` (records that sources gave), `link` (bytes to ingest), `log` and `tables` (records)."""


class RateMeter:
    """Of all apps of a platform."""

    def __init__(self, places: PlatformPlaces, now_s: Callable[[], float]) -> None:
        """`now_s`: a clock that never goes back, seconds."""
        self._places, self._now_s = places, now_s
        self._looks: dict[str, deque[tuple[float, Totals]]] = {}
        self._looked_s: float | None = None

    @property
    def is_due(self) -> bool:
        """Whether the last look is long enough ago for the next one."""
        return self._looked_s is None or self._now_s() - self._looked_s >= LOOK_S

    def look(self, apps: Iterable[tuple[str, Sequence[str] | None]]) -> None:
        """Remember where the apps stand, and forget others. apps: instances, each with its devices, or None
        where not all of these run on this machine.
        """
        now_s = self._looked_s = self._now_s()
        ingest, hosted = self._ingest(), read_hosted(self._places)[1]
        looks = dict[str, deque[tuple[float, Totals]]]()
        for instance, devices in apps:
            mine = looks[instance] = self._looks.get(instance, deque())
            mine.append((now_s, self._totals(instance, devices, ingest, hosted)))
            while now_s - mine[0][0] > SPAN_S:
                mine.popleft()
        self._looks = looks

    def rates(self, instance: str, devices: Sequence[str] | None) -> dict[str, dict[str, float]]:
        """What has gone through each hop since the oldest look, `records_per_s` or `bytes_per_day`."""
        if not self._looks.get(instance):
            return {}
        then_s, then = self._looks[instance][0]
        span_s = self._now_s() - then_s
        if span_s < LEAST_S:
            return {}
        now = self._totals(instance, devices, self._ingest(), read_hosted(self._places)[1])
        found: dict[str, dict[str, float]] = {}
        for hop, total in now.items():
            if total < then.get(hop, total + 1):
                continue
            per_s = (total - then[hop]) / span_s
            found[hop] = (
                {"bytes_per_day": round(per_s * DAY_S)}
                if hop == "link"
                else {"records_per_s": round(per_s, 3)}
            )
        return found

    def _ingest(self) -> Mapping[str, Any]:
        flows = read_report(self._places.ingest_status).get("flows", {})
        return flows if isinstance(flows, dict) else {}

    def _totals(
        self,
        instance: str,
        devices: Sequence[str] | None,
        ingest: Mapping[str, Any],
        hosted: Mapping[str, HostReport],
    ) -> Totals:
        totals = self._of_agents(instance, devices)
        flow = ingest.get(instance)
        channels = flow.get("channels") if isinstance(flow, dict) else None
        if isinstance(channels, dict):
            totals["log"] = sum(_count(one, "rows") or 0 for one in channels.values())
        if instance in hosted:
            totals["tables"] = hosted[instance].rows
        return totals

    def _of_agents(self, instance: str, devices: Sequence[str] | None) -> Totals:
        """Nothing unless each of the devices reports: a part would look like the whole."""
        if not devices or len(devices) > AGENTS_MAX:
            return {}
        read = link = 0
        for device in devices:
            counters = read_report(self._places.agent(device, instance) / "status.json").get("counters")
            records, sealed = _count(counters, "records_read"), _count(counters, "bytes_sealed")
            if not isinstance(counters, dict) or records is None or sealed is None:
                return {}
            read, link = read + records, link + sealed
        return {"read": read, "link": link}


def _count(found: Any, name: str) -> int | None:
    """A count of a report; None for what is none."""
    value = found.get(name, 0) if isinstance(found, dict) else None
    return value if isinstance(value, int) and value >= 0 else None
