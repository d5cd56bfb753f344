"""What the page of the traffic demo shows, as data: the map, each minute's streets, lists, and one vehicle.

After the end of the record's path: it only reads tables, even while they are being filled. Guarantees: an
answer has at most `ROWS_MAX` rows of a list. Who goes on with the `next` of a list misses no row and sees
none twice, in whatever order rows came in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from geartrain.planning import Plan
from geartrain.planning.refusals import sentence
from geartrain.records.event_time import format_time, parse_time
from geartrain_examples.demo import Answer, Row
from geartrain_examples.traffic.street_map import lay_out

ROWS_MAX = 5_000
MINUTE_US = 60_000_000
LEVELS = ("free", "congested", "silent")
LISTS = {"overspeed": "overspeed", "sections": "section_overspeed", "fakes": "fake_plates"}
"""The lists that can be asked for, by the name in the address, and their tables."""

_NEXT = re.compile(r"r(\d{1,18})")
_LOOKS = re.compile(r'<style>.*?</style>| style="[^"]*"', re.DOTALL)
"""The colours of a drawing, which the page gives itself: its security policy takes none from elsewhere."""
_ASK = (
    "there is no such page: ask for /api/map, /api/minutes, /api/streets?minute=, /api/overspeed?since=, "
    "/api/sections?since=, /api/fakes?since=, /api/trace/VEHICLE or /api/plan"
)


class Tables(Protocol):
    """The tables of a run, see `geartrain_cloud.pages.page.Tables`."""

    def __call__(self, table: str, where: Mapping[str, Any]) -> list[Row]:
        """Rows whose fields equal `where`, in canonical order."""
        ...

    def after(self, table: str, place: int | None, count_max: int) -> tuple[list[Row], int]:
        """Rows written after `place` (None: the newest), and the next place."""
        ...

    def counts(self, table: str, by: Sequence[str]) -> list[Row]:
        """How many rows there are of each combination of fields."""
        ...


@dataclass(frozen=True)
class TrafficPage:
    """The page: `static` is the folder with index.html and what it loads.

    plan: the flow with its cut, if the page is to show it; drawing: the same as SVG; limit_mps,
    section_limit_kmh: the limits that were set, for people to read.
    """

    plan: Plan | None = None
    limit_mps: float | None = None
    section_limit_kmh: float | None = None
    drawing: str = ""

    static = Path(__file__).with_name("static")

    def answer(self, rows: Tables, path: Sequence[str], query: Mapping[str, str]) -> Answer:
        """The answer to `GET /api/<path>`; what is not there is a 404, a wrong question a 400."""
        try:
            match list(path):
                case ["map"]:
                    return 200, self._map(rows)
                case ["minutes"]:
                    return 200, _minutes(rows)
                case ["streets"]:
                    return _streets(rows, query.get("minute"))
                case [name] if name in LISTS:
                    return 200, _list(rows, LISTS[name], query)
                case ["trace", vehicle]:
                    return _trace(rows, vehicle)
                case ["plan"]:
                    return self._plan()
        except ValueError as error:
            return 400, {"error": str(error)}
        return 404, {"error": _ASK}

    def _map(self, rows: Tables) -> Row:
        edges = [row["edge"] for row in rows.counts("streets", ["edge"])]
        places = {row["detector"]: (row["x_m"], row["y_m"]) for row in rows("checkpoints", {})}
        found = lay_out(edges, places)
        return {
            "layout": found.layout,
            "crossings": [{"name": n, "x": x, "y": y} for n, (x, y) in sorted(found.crossings.items())],
            "streets": [
                {"edge": edge, "from": street.start, "to": street.end, "at": [*start, *end]}
                for edge, (street, start, end) in found.streets.items()
            ],
            "detectors": {name: list(at) for name, at in sorted(places.items())},
            "limit_mps": self.limit_mps,
            "section_limit_kmh": self.section_limit_kmh,
        }

    def _plan(self) -> Answer:
        if self.plan is None:
            return 404, {"error": "nobody said how the flow is cut: start the page with gear demo traffic"}
        steps = {"edge": list(self.plan.edge), "cloud": list(self.plan.cloud)}
        reasons = {step.id: sentence(self.plan.reason(step)) for step in self.plan.graph.steps}
        shapes = _LOOKS.sub("", self.drawing)
        return 200, steps | {"flow": self.plan.graph.name, "reasons": reasons, "svg": shapes}


def _minutes(rows: Tables) -> Row:
    """Each minute of the table of streets: how many are at each level, and the figures of the whole city."""
    found: dict[str, Row] = {}
    for row in rows.counts("streets", ["minute", "level"]):
        empty = {"minute": row["minute"], **dict.fromkeys(LEVELS, 0), "passes": 0, "mean_speed_mps": None}
        found.setdefault(row["minute"], empty)[row["level"]] = row["count"]
    for row in rows("city", {}):
        if row["minute"] in found:
            found[row["minute"]] |= {"passes": row["passes"], "mean_speed_mps": row["mean_speed_mps"]}
    return {"minutes": [found[minute] for minute in sorted(found)]}


def _streets(rows: Tables, minute: str | None) -> Answer:
    """Every street in one minute, the last one there is by default."""
    if minute is None:
        minutes = [row["minute"] for row in rows.counts("streets", ["minute"])]
        if not minutes:
            return 404, {"error": "no minute is over yet: ask again"}
        minute = str(minutes[-1])
    start = parse_time(minute)
    if start % MINUTE_US:
        whole = format_time(start - start % MINUTE_US)
        raise ValueError(f"{minute!r} is not the start of a minute: ask for {whole}")
    found = rows("streets", {"minute": start})
    if not found:
        minutes = [row["minute"] for row in rows.counts("streets", ["minute"])]
        spans = f"they are known from {minutes[0]} to {minutes[-1]}" if minutes else "there are none yet"
        return 404, {"error": f"nothing is known of the streets in the minute {format_time(start)}: {spans}"}
    streets = [{name: value for name, value in row.items() if name != "minute"} for row in found]
    return 200, {"minute": format_time(start), "streets": sorted(streets, key=lambda row: str(row["edge"]))}


def _list(rows: Tables, table: str, query: Mapping[str, str]) -> Row:
    """Rows of a list: all, the newest `last`, those written since `next` was given, or those of a time on."""
    since, last = query.get("since"), query.get("last")
    if since is None and last is None:
        found, place = rows.after(table, 0, ROWS_MAX)
    elif last is not None:
        if not (last.isascii() and last.isdigit() and 0 < int(last[:9]) <= ROWS_MAX and len(last) < 9):
            raise ValueError(f"last={last!r} is not a number from 1 to {ROWS_MAX}")
        found, place = rows.after(table, None, int(last))
    elif found_next := _NEXT.fullmatch(since or ""):
        found, place = rows.after(table, int(found_next[1]), ROWS_MAX)
    else:
        return _from_time(rows, table, since or "")
    return _part(found, place, more=len(found) == ROWS_MAX and last is None)


def _part(rows: list[Row], place: int, *, more: bool) -> Row:
    """A part of a list; its tables only grow, so that a place is the number of rows up to there."""
    return {"rows": rows, "next": f"r{place}", "count": place, "more": more}


def _from_time(rows: Tables, table: str, since: str) -> Row:
    try:
        first = parse_time(since)
    except ValueError:
        raise ValueError(
            f"since={since!r} is neither a time, such as 2026-01-01T00:05:00Z, nor the next of an earlier "
            "answer, such as r120"
        ) from None
    found: list[Row] = []
    place, more = 0, True
    while more and len(found) < ROWS_MAX:
        wanted = ROWS_MAX - len(found)
        part, place = rows.after(table, place, wanted)
        found += [row for row in part if parse_time(row["time"]) >= first]
        more = len(part) == wanted
    found.sort(key=lambda row: parse_time(row["time"]))
    return _part(found, place, more=more)


def _trace(rows: Tables, vehicle: str) -> Answer:
    """The last passes of a vehicle, and where it was too fast or in two places at once."""
    found = rows("traces", {"vehicle": vehicle})
    if not found:
        seen = [row["vehicle"] for row in rows.counts("traces", ["vehicle"])][:3]
        some = f"there are, for example, {', '.join(map(str, seen))}" if seen else "none has passed yet"
        return 404, {"error": f"no camera has seen the plate {vehicle!r}: {some}"}
    lists = {name: rows(table, {"vehicle": vehicle})[-ROWS_MAX:] for name, table in LISTS.items()}
    return 200, {"vehicle": vehicle, "passes": found[0]["passes"]} | lists


PAGE = TrafficPage()
"""The page where nobody says more: the map from the names of the streets, and no plan."""
