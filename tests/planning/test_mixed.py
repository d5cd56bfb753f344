"""The plan of the cloud's part for devices with different cuts, and the names of their channels."""

from __future__ import annotations

from datetime import timedelta

import pytest

from geartrain import Flow, Record, Table, agg, tumbling
from geartrain.errors import PlacementError
from geartrain.graph.graph import CHANNEL_ID, Graph
from geartrain.planning import make_plan
from geartrain.planning.mixed import make_mixed_plan
from geartrain.planning.readers import ID_CHARS_MAX, channel_id
from geartrain.testing import TestingSource


class Reading(Record):
    """One value of a sensor."""

    sensor: str
    value: int


class Counted(Record):
    """How many readings a sensor gave."""

    sensor: str
    n: int


def flow() -> Graph:
    """Readings of which some are flagged, and a count of all."""
    made = Flow("heat")
    readings = made.source("readings", TestingSource[Reading](), out=Reading)
    readings.filter(lambda one: one.value > 9, name="flag").sink("flags", Table("flags"))
    keyed = readings.key_by("sensor")
    counted = keyed.window(tumbling(timedelta(minutes=1))).aggregate("count", out=Counted, n=agg.count())
    counted.sink("counts", Table("counts"))
    return made.graph()


def test_one_cut_is_planned_as_ever() -> None:
    graph = flow()
    for cut in ("cloud", "flag", "edge"):
        assert make_mixed_plan(graph, cut, [cut]) == make_plan(graph, cut)
        assert make_plan(graph, cut, base=cut) == make_plan(graph, cut)


def test_a_channel_names_the_readers_left_out() -> None:
    graph = flow()
    of_flag = make_plan(graph, "flag", base="cloud")
    assert [c.id for c in of_flag.channels[:-2]] == ["readings-flag", "flag"]
    assert of_flag.names == {"readings": "readings-flag"}
    of_cloud = make_plan(graph, "cloud", base="flag")
    assert [c.id for c in of_cloud.channels[:-2]] == ["readings-0"]
    plain = make_plan(graph, "flag", base="flag")
    assert [c.id for c in plain.channels[:-2]] == ["readings", "flag"]
    assert plain.channel("readings").left_out == ("flag",)


def test_the_cloud_reads_the_channels_of_every_device() -> None:
    graph = flow()
    cuts = ["cloud", "flag", "count_partial", "edge"]
    for base in cuts:
        plan = make_mixed_plan(graph, base, cuts)
        sent = {c.id for cut in cuts for c in make_plan(graph, cut, base=base).channels}
        assert {c.id for c in plan.channels} == sent
        assert plan.edge == ("readings",)
        assert {"flag", "count_partial", "count"} < set(plan.cloud)
        assert all(CHANNEL_ID.fullmatch(c.id) for c in plan.channels)


def test_a_long_name_is_cut_and_stays_its_own() -> None:
    readers = tuple(f"reader_of_a_long_name_{number}" for number in range(9))
    names = {channel_id("s" * 63, readers[:count], ()) for count in range(1, 9)}
    assert len(names) == 8
    assert all(len(name) <= ID_CHARS_MAX and CHANNEL_ID.fullmatch(name) for name in names)


def test_an_illegal_cut_among_them_is_refused() -> None:
    with pytest.raises(PlacementError, match="step 'count'"):
        make_mixed_plan(flow(), "cloud", ["count"])
