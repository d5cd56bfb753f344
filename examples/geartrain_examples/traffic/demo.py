"""The traffic demo: its options, the settings of its devices, its page, and the table at the end.

`gear demo traffic` finds it through the entry point `traffic` of the group `geartrain.demos`. It is plain
data and functions, and starts nothing itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from geartrain.errors import ConfigError, SourceError
from geartrain.planning import Plan
from geartrain.records.event_time import format_time, parse_time
from geartrain_examples.demo import Settings, Setup, Summary, deal, list_not_utf8, set_up, survey
from geartrain_examples.traffic.city import City, write_city
from geartrain_examples.traffic.files import START, CheckpointFile, LoopFile, PassFile
from geartrain_examples.traffic.page import Tables, TrafficPage
from geartrain_examples.traffic.records import Checkpoint, Pass, Reading
from geartrain_examples.traffic.simulate import PASSES, READINGS, prepare, streets_of
from geartrain_examples.traffic.streets import MINUTE_US

SAMPLE = Path(__file__).with_name("data")
SAMPLE_FILES = {
    "passes": SAMPLE / "passes.csv.gz",
    "loops": SAMPLE / "loops.csv.gz",
    "checkpoints": SAMPLE / "checkpoints.csv",
}
INPUT = "input"
"""Where in the state folder made-up traffic lies."""
VEHICLES, FAKE_SHARE, LOOP_S = 500, 0.02, 60
THROTTLED = City(6, 20_000, FAKE_SHARE, loop_s=3)
"""The city over a throttled link: its loops say much more than the streets' rows that are made of it. At its
pace it has somewhat more to say than 20 kB a second.
"""

File = Path | None


class TrafficOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `gear demo traffic` can be told besides the options of every demo."""

    passes: Annotated[
        File,
        Meta(
            description="CSV (.gz too) of time_s,detector,edge,lane,vehicle,speed_mps. Default the sample.",
            extra={"metavar": "FILE"},
        ),
    ] = None
    loops: Annotated[
        File,
        Meta(
            description="CSV (.gz too) of begin_s,detector,n,speed_mps,occupancy_pct.",
            extra={"metavar": "FILE"},
        ),
    ] = None
    checkpoints: Annotated[
        File, Meta(description="CSV (.gz too) of detector,x_m,y_m.", extra={"metavar": "FILE"})
    ] = None
    start: Annotated[str, Meta(description="When second 0 of the files was.", extra={"metavar": "TIME"})] = (
        START
    )
    live: Annotated[
        bool, Meta(description="Traffic as SUMO simulates it now; needs geartrain-examples[sumo].")
    ] = False
    city: (
        Annotated[
            int,
            Meta(
                ge=2,
                le=200,
                description="Traffic of a made-up city of N x N cameras, 5 km apart.",
                extra={"metavar": "N"},
            ),
        ]
        | None
    ) = None
    vehicles: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=10_000_000,
                description=f"Vehicles of --city. Default {VEHICLES}.",
                extra={"metavar": "N"},
            ),
        ]
        | None
    ) = None
    fake_share: (
        Annotated[
            float,
            Meta(
                ge=0,
                le=1,
                description=f"Part of the plates of --city that are used twice. Default {FAKE_SHARE}.",
                extra={"metavar": "SHARE"},
            ),
        ]
        | None
    ) = None
    loop_seconds: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=60,
                description=f"The loops of --city report every N seconds. Default {LOOP_S}.",
                extra={"metavar": "N"},
            ),
        ]
        | None
    ) = None
    limit_mps: Annotated[
        float, Meta(description="The limit at a camera, in m/s.", extra={"metavar": "N"})
    ] = 13.89
    section_limit_kmh: Annotated[
        float, Meta(description="The limit between two cameras, in km/h.", extra={"metavar": "N"})
    ] = 60.0


class TrafficDemo:
    """Passes and loop readings, dealt by street to devices."""

    about = (
        "Cameras and loops of a city: who drives too fast, plates used twice, traces, and how each street is."
    )
    examples = (
        "gear demo traffic",
        "gear demo traffic --city 5 --vehicles 2000 --fake-share 0.05",
        "gear demo traffic --throttle 20kB/s",
        "gear demo traffic --passes passes.csv.gz --loops loops.csv.gz --devices 3 --cut cloud",
        "gear demo traffic --no-page --output tables --cut overspeed,streets",
    )
    options = TrafficOptions
    part = "street"
    devices = 8
    tables = ("overspeed", "section_overspeed", "fake_plates", "traces", "streets", "city")
    page_while_running = True
    moves, throttled_devices = "streets", 1
    throttled_speed = "60"

    def throttled(self, options: TrafficOptions) -> TrafficOptions:
        """Its options for a slow link: without an input of its own, a city whose loops report often."""
        if options.live or any(getattr(options, name) is not None for name in SAMPLE_FILES):
            return options
        given = {"city": THROTTLED.size, "vehicles": THROTTLED.vehicles, "loop_seconds": THROTTLED.loop_s}
        return replace(
            options, **{name: one for name, one in given.items() if getattr(options, name) is None}
        )

    def flow(self, options: TrafficOptions) -> str:
        """Its flow, as `module:name`."""
        module = "live" if options.live else "flow"
        return f"geartrain_examples.traffic.{module}:flow"

    def beside(self, folder: Path, options: TrafficOptions) -> dict[str, list[str]]:
        """The simulation of a live run."""
        command = ["-m", "geartrain_examples.traffic.simulate", str(folder / INPUT)]
        return {"simulation": command} if options.live else {}

    def set_up(self, folder: Path, options: TrafficOptions, devices: int) -> Setup:
        """Find or make the traffic, and deal its streets to devices.

        Writes a made-up city, or the net of a live one, to `folder`. Raises `ConfigError` for options that
        do not go together, and `SourceError`.
        """
        check(options)
        if options.live:
            return _set_up_live(prepare(folder / INPUT), options, devices)
        inputs = files(folder, options)
        streets, end = streets_in(inputs, options)
        said = list_not_utf8(inputs.values())
        if "checkpoints" not in inputs:
            said.append(
                "no --checkpoints FILE says where the cameras stand, so the tables section_overspeed and "
                "fake_plates stay empty"
            )

        def sources(mine: Sequence[str], first: bool) -> Settings:
            # The first device takes the rows that name no street, and the checkpoints.
            common = {"start": options.start, "select": list(mine), "others": first}
            taken = [name for name in inputs if name != "checkpoints" or first]
            return {
                name: {"path": str(inputs[name].absolute())} | (common if name != "checkpoints" else {})
                for name in taken
            }

        paced = [name for name in inputs if name != "checkpoints"]
        parts, waits_from = deal(streets, devices), _middle(options.start, end)
        return set_up(
            inputs, parts, _steps(options, end), sources, paced=paced, waits_from=waits_from, said=said
        )

    def page(self, plan: Plan, drawing: str, options: TrafficOptions) -> TrafficPage:
        """Its page, with the flow and its cut."""
        return TrafficPage(plan, options.limit_mps, options.section_limit_kmh, drawing)

    def summary(self, rows: Tables) -> Summary:
        """How much of what was found."""
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


def check(options: TrafficOptions) -> None:
    """Raise `ConfigError` for options that cannot be, or do not go together."""
    try:
        parse_time(options.start)
    except ValueError as error:
        raise ConfigError(f"--start: {error}") from None
    for name in ("limit_mps", "section_limit_kmh"):
        if not 0 <= getattr(options, name) < math.inf:
            raise ConfigError(f"{_word(name)} {getattr(options, name)}: write a number from 0 on")
    given = {name: getattr(options, name) for name in SAMPLE_FILES if getattr(options, name) is not None}
    if options.live:
        former = [_word(name) for name in given]
        former += ["--city"] if options.city is not None else []
        former += ["--start"] if options.start != START else []
        if former:
            raise ConfigError(
                f"--live simulates its own traffic, as of now: leave out {former[0]}, or --live"
            )
    if options.city is None:
        for name in ("vehicles", "fake_share", "loop_seconds"):
            if getattr(options, name) is not None:
                raise ConfigError(f"{_word(name)} is for a made-up city: add --city N")
        if options.loops is not None and options.passes is None:
            raise ConfigError(f"--loops {options.loops} comes without passes: add --passes FILE")
    elif options.loop_seconds and 60 % options.loop_seconds:
        raise ConfigError(f"--loop-seconds {options.loop_seconds}: write a number that divides 60")
    elif given:
        name, path = next(iter(given.items()))
        raise ConfigError(f"--city makes its own traffic: leave out {_word(name)} {path}, or --city")


def files(folder: Path, options: TrafficOptions) -> dict[str, Path]:
    """The files to read: those of a made-up city, those that the user named, or the sample.

    The sample's loops and checkpoints belong to its passes only. Raises `SourceError`.
    """
    if options.city is not None:
        vehicles = VEHICLES if options.vehicles is None else options.vehicles
        fake_share = FAKE_SHARE if options.fake_share is None else options.fake_share
        city = City(options.city, vehicles, fake_share, options.loop_seconds or LOOP_S)
        try:
            return write_city(city, folder / INPUT)
        except OSError as error:
            raise SourceError(f"the city cannot be written to {folder / INPUT}: {error.strerror}") from None
    given = {"passes": options.passes, "loops": options.loops, "checkpoints": options.checkpoints}
    named = {name: path for name, path in given.items() if path is not None}
    return named if options.passes is not None else SAMPLE_FILES | named


def streets_in(inputs: dict[str, Path], options: TrafficOptions) -> tuple[list[str], str]:
    """The streets of the files, sorted, and the last minute in which any has a row; raises `SourceError`.

    No device sees the whole input, so that the flow is told this minute: `streets.end`.
    """
    surveys = [survey(PassFile(path=str(inputs["passes"]), start=options.start), Pass)]
    if "loops" in inputs:
        surveys.append(survey(LoopFile(path=str(inputs["loops"]), start=options.start), Reading))
    streets, last_us = set[str](), None
    for rows in surveys:
        for street, time_us in rows:
            streets.add(street)
            if time_us is not None:
                last_us = time_us if last_us is None else max(last_us, time_us)
    streets.discard("")
    if not streets:
        raise SourceError(f"file {inputs['passes']} has no street in it: its column edge is empty")
    if "checkpoints" in inputs:
        for _ in survey(CheckpointFile(path=str(inputs["checkpoints"])), Checkpoint):
            pass
    return sorted(streets), "" if last_us is None else format_time(last_us // MINUTE_US * MINUTE_US)


def _set_up_live(checkpoints: Path, options: TrafficOptions, devices: int) -> Setup:
    def sources(mine: Sequence[str], first: bool) -> Settings:
        followed = {
            name: {"path": str(checkpoints.absolute().with_name(file)), "select": list(mine)}
            for name, file in (("passes", PASSES), ("loops", READINGS))
        }
        return followed | ({"checkpoints": {"path": str(checkpoints.absolute())}} if first else {})

    parts = deal(streets_of(checkpoints), devices)
    return set_up({"checkpoints": checkpoints}, parts, _steps(options, ""), sources)


def _middle(start: str, end: str) -> str:
    """The time amid the input, "" for one without any."""
    return format_time((parse_time(start) + parse_time(end)) // 2) if end else ""


def _steps(options: TrafficOptions, end: str) -> Settings:
    return {
        "overspeed": {"limit_mps": options.limit_mps},
        "legs": {"limit_kmh": options.section_limit_kmh},
        "streets": {"end": end},
    }


def _word(name: str) -> str:
    return f"--{name.replace('_', '-')}"


DEMO = TrafficDemo()
