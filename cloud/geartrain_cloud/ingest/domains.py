"""Finds a false `partitioned_by`: a value that its flow says lives on one device, and that came from two.

Watches the rows on their way into the log, and changes nothing: it cannot correct what a device computed
from only a part of a key's records. Guarantees: every such row is counted, and the first ones of each flow
are named with both devices. Memory is bounded, whatever the devices send: of each field, the devices of the
last `VALUES_MAX` values are known. Only what this ingest has seen since it started is compared. So it does
not find a value that moved to another device while ingest was down, or whose two devices are served by two
ingests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from geartrain.printable import printable
from geartrain.schema import ColumnBatch, Schema
from geartrain_cloud.ingest.alarm import Alarm
from geartrain_cloud.ingest.counters import Counter, Counters
from geartrain_cloud.ingest.flow import FollowedFlow
from geartrain_cloud.ingest.streams import DeviceStream

VALUES_MAX = 65_536
"""Values of one partition field whose device is remembered; beyond that the oldest is forgotten."""
STRAYS_MAX = 20
"""Values of one flow that are named."""
_CHARS_MAX = 64


@dataclass(slots=True)
class Stray:
    """A value of the field `field` that came from two devices; rows: those from others than the first."""

    field: str
    value: str
    devices: tuple[str, str]
    rows: int = 0

    def described(self) -> dict[str, Any]:
        """As JSON values, for the status."""
        return {"field": self.field, "value": self.value, "devices": list(self.devices), "rows": self.rows}


class Domains:
    """Watches the partition fields of all channels that carry theirs; two channels may share one."""

    def __init__(
        self,
        flows: Mapping[str, FollowedFlow],
        counters: Counters,
        alarm: Alarm,
        values_max: int = VALUES_MAX,
    ) -> None:
        self._counters, self._alarm, self._values_max = counters, alarm, values_max
        self._flows = flows
        self._homes: dict[tuple[str, str], dict[Any, str]] = {}
        self._strays: dict[str, dict[tuple[str, str, str], Stray]] = {}

    def watch(self, stream: DeviceStream, channel: str, schema: Schema, rows: ColumnBatch) -> None:
        """Take note of the values of rows that go into the log."""
        field = self._flows[stream.flow].partitioned_by.get(channel)
        if field is None:
            return
        names = [one.name for one in schema.fields]
        if field not in names:
            return
        column = rows.fields[names.index(field)]
        homes, astray = self._homes.setdefault((stream.flow, field), {}), dict[Any, str]()
        for value in dict.fromkeys(column):
            if value is None:
                continue
            known = _bounded(value)
            home = homes.get(known)
            if home is None:
                self._remember(homes, known, stream.device)
            elif home != stream.device:
                astray[value] = home
        if astray:
            self._report(stream, field, column, astray)

    def forget(self, flow: str) -> None:
        """Know nothing more of a flow that has ended."""
        for place in [place for place in self._homes if place[0] == flow]:
            del self._homes[place]
        self._strays.pop(flow, None)

    def strays(self, flow: str) -> list[dict[str, Any]]:
        """The values of a flow that came from two devices, as JSON values; at most `STRAYS_MAX`."""
        return [stray.described() for stray in self._strays.get(flow, {}).values()]

    def _remember(self, homes: dict[Any, str], value: Any, device: str) -> None:
        if len(homes) >= self._values_max:
            del homes[next(iter(homes))]
            self._counters.add(Counter.PARTITION_VALUES_FORGOTTEN)
        homes[value] = device

    def _report(self, stream: DeviceStream, field: str, column: list[Any], astray: Mapping[Any, str]) -> None:
        found = self._strays.setdefault(stream.flow, {})
        for value, home in astray.items():
            rows = column.count(value)
            self._counters.add(Counter.MISPLACED_RECORDS, rows)
            text = printable(str(value)[:_CHARS_MAX])[:_CHARS_MAX]
            key = (field, text, stream.device)
            if key not in found and len(found) < STRAYS_MAX:
                found[key] = Stray(field, text, (home, stream.device))
            if key in found:
                found[key].rows += rows
            self._alarm.warn(
                Counter.MISPLACED_RECORDS.value,
                f"{stream.flow}/{field}",
                f"{field} {text!r} came from {home} and from {stream.device}, but its source says "
                f'partitioned_by="{field}", each on one device: what devices computed for it is wrong',
            )


def _bounded(value: Any) -> Any:
    """A value to remember: itself, or the digest of a long one."""
    if not isinstance(value, str | bytes) or len(value) <= _CHARS_MAX:
        return value
    raw = value.encode(errors="surrogatepass") if isinstance(value, str) else value
    return (type(value), blake2b(raw, digest_size=16).digest())
