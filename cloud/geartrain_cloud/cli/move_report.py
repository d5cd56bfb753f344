"""`move.json` of a demo over a throttled link, for the page: where its step stands, what the link carries.

Beside a run; the page's server hands it on as it is. Guarantees: a reader sees a whole report. All figures
are what devices and Spark have said. What is kept of the past is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geartrain.errors import DiskError
from geartrain_cloud.cli.link_meter import LinkMeter, Look, Rate
from geartrain_cloud.platform.places import PlatformPlaces, write_report

MOVE_FILE = "move.json"
POINTS_MAX = 240
"""Of the past; where there would be more, every second one goes."""
POINT_S = 1.0


def move_file(places: PlatformPlaces) -> Path:
    """The report of a run."""
    return places.folder / MOVE_FILE


@dataclass(slots=True)
class MoveReport:
    """What is told of the move of `step`, from a flow's start on; whole_per_s: what the links of all devices
    carry together, bytes a second; steps: all that move, once it is known.
    """

    path: Path
    step: str
    whole_per_s: int
    steps: list[str] = field(default_factory=list)
    _began_s: float | None = None
    _points: list[dict[str, Any]] = field(default_factory=list)
    _every_s: float = POINT_S
    _asked_at_s: float | None = None
    _moved_at_s: float | None = None

    def write(
        self, look: Look, meter: LinkMeter, devices: Sequence[Mapping[str, Any]], cloud: Any, behind: int
    ) -> None:
        """Write what is so now. devices: of each, what is told; cloud: what the data centre keeps of the
        step; behind: entries of the log that are not in the tables. Raises `DiskError`.
        """
        if not meter.has_begun:
            return
        if self._began_s is None:
            self._began_s = look.at_s
        at_s = round(look.at_s - self._began_s, 1)
        now = meter.now
        if now is not None and (not self._points or at_s - self._points[-1]["at_s"] >= self._every_s):
            self._points.append({"at_s": at_s, **_told(now)})
            if len(self._points) > POINTS_MAX:
                self._points, self._every_s = self._points[::2], 2 * self._every_s
        if look.has_moved and self._moved_at_s is None and self._asked_at_s is not None:
            self._moved_at_s = at_s
        content = {
            "step": self.step,
            "steps": self.steps or [self.step],
            "at_s": at_s,
            "asked_at_s": self._asked_at_s,
            "moved_at_s": self._moved_at_s,
            "devices": list(devices),
            "cloud": cloud,
            "link": {
                "most_bytes_per_s": self.whole_per_s,
                **{name: None if one is None else _told(one) for name, one in _rates(meter).items()},
                "is_settled": meter.is_settled,
                "waiting_bytes": look.waiting,
            },
            "behind_entries": behind,
            "points": self._points,
        }
        try:
            write_report(self.path, content)
        except OSError as error:
            raise DiskError(f"{self.path} cannot be written: {error.strerror or error}") from None

    def asked(self, at_s: float) -> None:
        """The step is told to move; at_s: monotonic seconds."""
        self._asked_at_s = round(at_s - (at_s if self._began_s is None else self._began_s), 1)


def _rates(meter: LinkMeter) -> dict[str, Rate | None]:
    return {"now": meter.now, "before": meter.before, "after": meter.after}


def _told(rate: Rate) -> dict[str, float]:
    return {
        "bytes_per_s": round(rate.bytes_per_s, 1),
        "records_per_s": round(rate.records_per_s, 1),
        "record_bytes": round(rate.record_bytes, 3),
        "seconds": round(rate.seconds, 1),
    }
