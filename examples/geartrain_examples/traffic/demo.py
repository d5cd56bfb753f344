"""The traffic demo as its launcher needs it: input, streets, options, page, and what to show at the end.

Found through the entry point `traffic` of the group `geartrain.demos`. It holds plain data and functions
only, and starts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from geartrain.errors import ConfigError, SourceError
from geartrain.planning import Plan
from geartrain.records.event_time import format_time, parse_time
from geartrain_examples.traffic.city import City, write_city
from geartrain_examples.traffic.files import START, LoopFile, PassFile
from geartrain_examples.traffic.page import TrafficPage
from geartrain_examples.traffic.records import Pass, Reading
from geartrain_examples.traffic.simulate import PASSES, READINGS, prepare, streets_of
from geartrain_examples.traffic.streets import MINUTE_US

Options = dict[str, dict[str, Any]]
Inputs = Mapping[str, Path]
Settings = Mapping[str, str]
Survey = tuple[list[str], dict[str, str], list[str]]

SAMPLE = Path(__file__).with_name("data")
INPUT = "input"
"""Where in the state folder made-up traffic lies."""
VEHICLES, FAKE_SHARE = "500", "0.02"


class TrafficDemo:
    """Passes and loop readings, dealt by street to devices."""

    name = "traffic"
    flow = "geartrain_examples.traffic.flow:flow"
    live_flow = "geartrain_examples.traffic.live:flow"
    tables = ("overspeed", "section_overspeed", "fake_plates", "traces", "streets", "city")
    settings: Settings = MappingProxyType(
        {
            "start": START,
            "live": "",
            "city": "",
            "vehicles": "",
            "fake_share": "",
            "limit_mps": "13.89",
            "section_limit_kmh": "60.0",
        }
    )
    devices_default = 8
    edge_is_strict = False
    page_while_running = True

    def flow_of(self, settings: Settings) -> str:
        """Its flow, as `module:name`."""
        return self.live_flow if settings["live"] else self.flow

    def beside(self, folder: Path, settings: Settings) -> dict[str, list[str]]:
        """The simulation of a live run."""
        command = ["-m", "geartrain_examples.traffic.simulate", str(folder / INPUT)]
        return {"simulation": command} if settings["live"] else {}

    def own_inputs(self, folder: Path, given: Inputs, settings: Settings) -> dict[str, Path]:
        """The sample, a made-up city, or one that is simulated now; raises `ConfigError` for options that do
        not go together.
        """
        if settings["live"]:
            return self._live(folder, given, settings)
        if settings["city"]:
            return self._city(folder, given, settings)
        for name in ("vehicles", "fake_share"):
            if settings[name]:
                raise ConfigError(f"--{name.replace('_', '-')} is for a made-up city: add --city N")
        if "passes" in given:
            return {}
        if "loops" in given:
            raise ConfigError(f"--loops {given['loops']} comes without passes: add --passes FILE")
        files = {"passes": "passes.csv.gz", "loops": "loops.csv.gz", "checkpoints": "checkpoints.csv"}
        return {name: SAMPLE / file for name, file in files.items() if name not in given}

    def _live(self, folder: Path, given: Inputs, settings: Settings) -> dict[str, Path]:
        former = [f"--{name}" for name in given]
        former += ["--city"] if settings["city"] else []
        former += ["--start"] if settings["start"] != START else []
        if former:
            raise ConfigError(
                f"--live simulates its own traffic, as of now: leave out {former[0]}, or --live"
            )
        return {"checkpoints": prepare(folder / INPUT)}

    def _city(self, folder: Path, given: Inputs, settings: Settings) -> dict[str, Path]:
        for name, path in given.items():
            raise ConfigError(f"--city makes its own traffic: leave out --{name} {path}, or --city")
        size, vehicles = int(settings["city"]), int(settings["vehicles"] or VEHICLES)
        city = City(size, vehicles, float(settings["fake_share"] or FAKE_SHARE))
        try:
            return write_city(city, folder / INPUT)
        except OSError as error:
            raise SourceError(f"the city cannot be written to {folder / INPUT}: {error.strerror}") from None

    def survey(self, inputs: Inputs, settings: Settings) -> Survey:
        """The streets, the last minute of any row, and what is missing; raises `SourceError`."""
        if settings["live"]:
            return streets_of(inputs["checkpoints"]), {"end": ""}, []
        last_us, streets = 0, set[str]()
        surveys = [PassFile(path=str(inputs["passes"]), start=settings["start"]).survey(Pass)]
        if "loops" in inputs:
            surveys.append(LoopFile(path=str(inputs["loops"]), start=settings["start"]).survey(Reading))
        found = False
        for rows in surveys:
            for street, time_us in rows:
                streets.add(street)
                if time_us is not None:
                    last_us, found = max(last_us, time_us) if found else time_us, True
        streets.discard("")
        if not streets:
            raise SourceError(f"file {inputs['passes']} has no street in it: its column edge is empty")
        end = format_time(last_us // MINUTE_US * MINUTE_US) if found else ""
        said = []
        if "checkpoints" not in inputs:
            said.append(
                "no --checkpoints FILE says where the cameras stand, so the tables section_overspeed and "
                "fake_plates stay empty"
            )
        return sorted(streets), {"end": end}, said

    def source_options(
        self, inputs: Inputs, settings: Settings, parts: Sequence[str], *, first: bool, speed: str
    ) -> Options:
        """The options of the sources on a device that has the streets `parts`; none are all.

        first: this device also takes the rows that name no street, and the checkpoints.
        """
        if settings["live"]:
            folder = inputs["checkpoints"].parent
            live: Options = {
                name: {"path": str(folder / file), "select": list(parts)}
                for name, file in (("passes", PASSES), ("loops", READINGS))
            }
            return live | ({"checkpoints": {"path": str(inputs["checkpoints"])}} if first else {})
        common = {"start": settings["start"], "select": list(parts), "others": first, "speed": speed}
        options: Options = {"passes": {"path": str(inputs["passes"]), **common}}
        if "loops" in inputs:
            options["loops"] = {"path": str(inputs["loops"]), **common}
        if first and "checkpoints" in inputs:
            options["checkpoints"] = {"path": str(inputs["checkpoints"])}
        return options

    def step_options(self, settings: Settings) -> Options:
        """The options of the steps: the limits, and where the table of streets ends."""
        try:
            parse_time(settings["start"])
        except ValueError as error:
            raise ConfigError(f"--start: {error}") from None
        limits = {name: _limit(name, settings[name]) for name in ("limit_mps", "section_limit_kmh")}
        return {
            "overspeed": {"limit_mps": limits["limit_mps"]},
            "legs": {"limit_kmh": limits["section_limit_kmh"]},
            "streets": {"end": settings.get("end", "")},
        }

    def page_of(self, plan: Plan, settings: Settings) -> TrafficPage:
        """Its page, with the flow and its cut."""
        return TrafficPage(plan, float(settings["limit_mps"]), float(settings["section_limit_kmh"]))

    def summary(self, rows: Any) -> tuple[str, list[str], list[list[str]]]:
        """Title, column heads and rows of the table to print: how much of what was found."""
        streets = {(row["edge"], row["level"]) for row in rows.counts("streets", ["edge", "level"])}
        levels = {level: sum(one == level for _, one in streets) for level in ("congested", "silent")}
        fakes = {row["vehicle"] for row in rows("fake_plates", {})}
        found = {
            "passes": sum(row["passes"] for row in rows("city", {})),
            "of these above the limit": len(rows("overspeed", {})),
            "vehicles": len(rows("traces", {})),
            "sections driven above the limit": len(rows("section_overspeed", {})),
            "plates used twice": len(fakes),
            "streets": len({edge for edge, _ in streets}),
            "of these congested at some minute": levels["congested"],
            "of these silent at some minute": levels["silent"],
        }
        return "Traffic", ["what", "how many"], [[what, f"{count:,}"] for what, count in found.items()]


def _limit(name: str, text: str) -> float:
    limit = float(text)
    if not 0 <= limit < math.inf:
        raise ConfigError(f"--{name.replace('_', '-')} {text}: write a number from 0 on")
    return limit


DEMO = TrafficDemo()
