"""Traffic: passes and loop readings of a city; who drives too fast, where, and how each street is."""

from datetime import timedelta

from geartrain import Flow, Source, Table, agg, tumbling
from geartrain_examples.traffic.files import CheckpointFile, LoopFile, PassFile
from geartrain_examples.traffic.records import (
    Checkpoint,
    CityMinute,
    Leg,
    Pass,
    Placed,
    Reading,
    Section,
    Trace,
    WindowedCity,
)
from geartrain_examples.traffic.streets import Streets, TooFast, as_reading
from geartrain_examples.traffic.vehicles import Legs, Traces, placed, too_fast, twice_used


def whole_city(seen: Pass) -> str:
    """One key for all streets."""
    return "city"


def city_minute(row: WindowedCity) -> CityMinute:
    """A row of the city's table."""
    return CityMinute(row.window_start, row.passes, row.mean_speed_mps)


def traffic(passes_from: Source[Pass], loops_from: Source[Reading]) -> Flow:
    """The flow over these sources of passes and of readings."""
    flow = Flow("traffic")

    passes = flow.source("passes", passes_from, out=Pass, partitioned_by="edge")
    loops = flow.source("loops", loops_from, out=Reading, partitioned_by="edge")
    checkpoints = flow.source("checkpoints", CheckpointFile(), out=Checkpoint)

    overspeed = passes.key_by("edge", name="by_street").process("overspeed", TooFast())

    on_streets = passes.map(as_reading, keeps=["edge"]).merge("on_streets", loops)
    streets = on_streets.key_by("edge", name="all_by_street").process("streets", Streets())

    minutes = passes.key_by(whole_city).window(tumbling(timedelta(minutes=1)))
    city = minutes.aggregate(
        "city", out=WindowedCity, passes=agg.count(), mean_speed_mps=agg.mean("speed_mps")
    )

    by_vehicle = passes.key_by("vehicle", name="by_vehicle")
    traces = by_vehicle.process("traces", Traces(), out=Trace)
    places = by_vehicle.broadcast("placed", checkpoints, placed, key="detector", out=Placed)
    legs = places.key_by("vehicle", name="placed_by_vehicle").process("legs", Legs(), out=Leg)
    sections = legs.flat_map(too_fast, name="sections", out=Section)
    fakes = legs.flat_map(twice_used, name="fakes", out=Section)

    overspeed.sink("overspeed_table", Table("overspeed"))
    sections.sink("sections_table", Table("section_overspeed"))
    fakes.sink("fakes_table", Table("fake_plates"))
    traces.sink("traces_table", Table("traces", key=("vehicle",)))
    streets.sink("streets_table", Table("streets", key=("edge", "minute")))
    city.map(city_minute).sink("city_table", Table("city", key=("minute",)))
    checkpoints.sink("checkpoints_table", Table("checkpoints", key=("detector",)))
    return flow


flow = traffic(PassFile(), LoopFile())
