"""What becomes of steps, state and tables where an app goes over to a revision: by table and by chance."""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

import geartrain.operators
from geartrain import Context, Flow, Record, State, Table, Task, agg, tumbling
from geartrain.graph.operator import Keyed
from geartrain.planning import make_plan
from geartrain.revision import Change, Revision, change_of, differences, revision_of, tables_of
from geartrain.revision.change import STATEFUL, TableForm, lost_state
from geartrain.sinks import JsonLinesFile
from geartrain.testing import TestingSource
from tests.reference import flows
from tests.reference.comparison import drawn_cuts


class Reading(Record):
    sensor: str
    celsius: float


class Longer(Record):
    sensor: str
    celsius: float
    again: int = 0


class Numbered(Record):
    sensor: int
    celsius: float


class Warmest(Record):
    key: str
    celsius: float


class Seen(State):
    count: int = 0


class SeenMore(State):
    count: int = 0
    last: float = 0.0


class Alarms(Task[Reading, Reading]):
    state: ClassVar[type] = Seen
    above: float = 30.0

    def on_next(self, value: Reading, ctx: Context[Reading, Seen]) -> None:
        ctx.emit(value)


class OtherAlarms(Alarms):
    state: ClassVar[type] = SeenMore


def is_warm(reading: Reading) -> bool:
    return reading.celsius > 20


def is_hot(reading: Reading) -> bool:
    return reading.celsius > 30


def longer(reading: Reading) -> Longer:
    return Longer(reading.sensor, reading.celsius)


def again(reading: Reading) -> Longer:
    return Longer(reading.sensor, reading.celsius, 1)


def as_numbered(reading: Reading) -> Numbered:
    return Numbered(len(reading.sensor), reading.celsius)


def heat(
    *,
    keep: Callable[[Reading], bool] = is_warm,
    calm: Callable[[Reading], Any] | None = None,
    calm_out: Any = Longer,
    key: str = "sensor",
    alarms: Any = None,
    alarm_out: Any = Reading,
    minutes: int = 1,
    table: Table | None = None,
    windows: bool = True,
    hot: bool = False,
    straight: bool = False,
) -> Revision:
    """The revision of a small flow whose devices filter, with some of it changed."""
    flow = Flow("heat")
    source: Any = TestingSource(items=[(1, Reading("a", 20.5))])
    readings: Any = flow.source("readings", source, out=Reading)
    kept = readings.filter(keep, name="kept")
    known = kept if calm is None else kept.map(calm, name="calm", out=calm_out)
    keyed = known.key_by(key, name="by_sensor")
    keyed.process("alarms", alarms or Alarms(), out=alarm_out).sink(
        "alarm_table", table or Table("alarms", key=("sensor",))
    )
    if windows:
        window = keyed.window(tumbling(timedelta(minutes=minutes)))
        warmest = window.aggregate("warmest", celsius=agg.max("celsius"), out=Warmest)
        warmest.sink("warmest_table", Table("warmest"))
    if hot:
        kept.filter(is_hot, name="hot").sink("hot_table", Table("hot"))
    if straight:
        readings.sink("all_table", Table("all"))
    return revision_of("heat:flow", make_plan(flow.graph(), ["kept"]))


def short(change: Change) -> tuple[list[str], list[str]]:
    """What becomes of each step and table, in words, and nothing of what differs."""
    return (
        [f"{one.step} {one.what} {one.state}".strip() for one in change.steps],
        [f"{one.table} {one.what}" for one in change.tables],
    )


BOTH_KEPT = ["alarms same kept", "alarms_order same kept", "warmest same kept"]
CHANGES: list[tuple[dict[str, Any], tuple[str, ...], tuple[list[str], list[str]], list[str]]] = [
    ({}, (), (BOTH_KEPT, []), []),
    ({"hot": True}, (), ([*BOTH_KEPT, "hot attached", "hot_table attached"], ["hot new"]), []),
    (
        {"alarms": Alarms(above=35.0)},
        (),
        (["alarms replaced kept", "alarms_order same kept", "warmest same kept"], []),
        [],
    ),
    (
        {"windows": False},
        (),
        (
            [
                "alarms same kept",
                "alarms_order same kept",
                "warmest removed dropped",
                "warmest_table removed",
            ],
            ["warmest stays"],
        ),
        [],
    ),
    (
        {"alarms": OtherAlarms()},
        (),
        (["alarms replaced refused", "alarms_order same kept", "warmest same kept"], []),
        ["step alarms cannot keep its state, since its state type is another one", "--drop-state alarms"],
    ),
    (
        {"alarms": OtherAlarms()},
        ("alarms",),
        (["alarms replaced dropped", "alarms_order same kept", "warmest same kept"], []),
        [],
    ),
    ({}, ("warmest",), (["alarms same kept", "alarms_order same kept", "warmest replaced dropped"], []), []),
    (
        {"minutes": 5},
        (),
        (["alarms same kept", "alarms_order same kept", "warmest replaced refused"], []),
        ["step warmest cannot keep its state, since its options are others"],
    ),
    (
        {"calm": longer},
        (),
        (
            [
                "calm attached",
                "by_sensor replaced",
                "alarms same kept",
                "alarms_order replaced refused",
                "warmest same refused",
            ],
            [],
        ),
        ["since the records that it reads are of another type"],
    ),
    (
        {"calm": as_numbered, "calm_out": Numbered, "windows": False},
        (),
        (
            [
                "calm attached",
                "by_sensor replaced",
                "alarms same refused",
                "alarms_order replaced refused",
                "warmest removed dropped",
                "warmest_table removed",
            ],
            ["warmest stays"],
        ),
        ["step alarms cannot keep its state, since its key is another one"],
    ),
    (
        {"table": Table("alarms")},
        (),
        (
            ["alarms same kept", "alarm_table replaced", "alarms_order same kept", "warmest same kept"],
            ["alarms changes"],
        ),
        ["table alarms: its key was sensor, and would be nothing: give the table another name"],
    ),
    (
        {"alarm_out": Longer},
        (),
        (["alarms replaced kept", "alarms_order same kept", "warmest same kept"], ["alarms changes"]),
        ["table alarms: its columns would be others"],
    ),
    (
        {"keep": is_hot},
        (),
        (["kept replaced", *BOTH_KEPT], []),
        [],
    ),
    (
        {"straight": True},
        (),
        ([*BOTH_KEPT, "all_table attached"], ["all new"]),
        [],
    ),
    ({}, ("none",), (BOTH_KEPT, []), ["--drop-state none: no step of this name keeps anything"]),
    ({}, ("kept",), (BOTH_KEPT, []), ["--drop-state kept: no step of this name keeps anything"]),
]


@pytest.mark.parametrize(("changed", "drop", "wanted", "refusals"), CHANGES)
def test_what_becomes_of_each_step_and_table(
    changed: dict[str, Any], drop: tuple[str, ...], wanted: tuple[list[str], list[str]], refusals: list[str]
) -> None:
    found = change_of(heat(), heat(**changed), drop)
    assert (sorted(short(found)[0]), short(found)[1]) == (sorted(wanted[0]), wanted[1])
    assert bool(found.refusals) == bool(refusals)
    for sentence in refusals:
        assert any(sentence in one for one in found.refusals), found.refusals
    assert found.drops == tuple(one.step for one in found.steps if one.state == "dropped")


@pytest.mark.parametrize(
    ("changed", "crosses"),
    [({}, False), ({"hot": True}, False), ({"keep": is_hot}, True), ({"straight": True}, True)],
)
def test_devices_go_over_where_what_they_run_or_send_differs(changed: dict[str, Any], crosses: bool) -> None:
    found = change_of(heat(), heat(**changed))
    assert (found.crosses, found.refusals) == (crosses, ())
    assert not change_of(heat(), heat(**changed), on_devices=frozenset()).crosses


def on_devices(
    source: str = "readings",
    made: Callable[[Reading], Any] | None = None,
    out: Any = Longer,
    task: Any = None,
) -> Revision:
    """The revision of a flow whose devices have a map and a task with state."""
    flow = Flow("heat")
    given: Any = TestingSource(items=[(1, Reading("a", 20.5))])
    readings: Any = flow.source(source, given, out=Reading, partitioned_by="sensor")
    if task is not None:
        readings.key_by("sensor").process("alarms", task, out=Reading).sink("a", Table("alarms"))
    readings.map(made or longer, name="made", out=out).sink("made_table", Table("made"))
    return revision_of("heat:flow", make_plan(flow.graph(), "edge"))


def test_devices_keep_their_sources_and_the_records_of_a_name() -> None:
    found = change_of(on_devices(), on_devices("others")).refusals
    assert any(
        "source readings cannot go from an app that runs, since all that would stay come to" in one
        for one in found
    )
    assert any(
        "source others cannot come to an app that runs, since it or all others" in one for one in found
    )
    found = change_of(on_devices(), on_devices(made=as_numbered, out=Numbered)).refusals
    assert any(
        "devices would send other records under a known name (channel made: its records" in one
        for one in found
    )


def sent_down(made: Callable[[Reading], Any], out: Any, is_shown: Callable[[Any], bool]) -> Revision:
    """The revision of a flow that sends what it makes in the cloud to devices, which filter it."""
    flow = Flow("heat")
    given: Any = TestingSource(items=[(1, Reading("a", 20.5))])
    readings: Any = flow.source("readings", given, out=Reading, partitioned_by="sensor")
    told = readings.map(made, name="made", out=out).at("cloud").filter(is_shown, name="shown")
    told.at("edge", device="sensor").sink("panel", JsonLinesFile("panel"))
    return revision_of("heat:flow", make_plan(flow.graph(), "auto"))


def test_what_comes_down_and_what_reads_it_there_stay_and_what_makes_it_may_change() -> None:
    was = sent_down(longer, Longer, is_warm)
    assert not change_of(was, sent_down(again, Longer, is_warm)).refusals
    for made, out, is_shown in ((as_numbered, Numbered, is_warm), (longer, Longer, is_hot)):
        (refused,) = change_of(was, sent_down(made, out, is_shown)).refusals
        assert refused.startswith("what comes down to the devices, or runs behind it there, would change (")
        assert refused.endswith("stays while an app runs: kill it, and submit the flow")


class Live(TestingSource[Reading]):
    """One that never ends."""

    bounded = False


def live(*more: str, bounded: bool = False, devices: str = "all", joins: bool = False) -> Revision:
    """The revision of a flow with a live source and others, each with a table; joins: one step reads all."""
    flow = Flow("heat")
    given: Any = Live(items=[(1, Reading("a", 20.5))])
    other: Any = TestingSource(items=[(1, Reading("a", 20.5))]) if bounded else given
    readings: Any = flow.source("readings", given, out=Reading)
    streams = [flow.source(one, other, out=Reading, devices=devices) for one in more]
    whole = readings.merge("all", *streams) if joins else readings.map(longer, name="all")
    whole.sink("all_table", Table("all"))
    for name, stream in zip(more, streams, strict=True):
        stream.map(longer, name=f"{name}_made").sink(f"{name}_table", Table(name))
    return revision_of("heat:flow", make_plan(flow.graph(), "edge"))


def test_a_source_comes_where_new_steps_alone_read_it() -> None:
    found = change_of(live(), live("doors"))
    assert (found.refusals, found.crosses) == ((), True)
    assert {one.step for one in found.steps if one.what == "attached"} >= {"doors", "doors_made"}
    assert change_of(live("doors"), live("doors", "bells")).refusals == ()


def test_a_source_goes_with_the_steps_that_read_it() -> None:
    for bounded in (False, True):
        found = change_of(live("doors", bounded=bounded), live())
        assert (found.refusals, found.crosses) == ((), True)
        assert {one.step for one in found.steps if one.what == "removed"} >= {"doors", "doors_made"}
    assert change_of(live("doors"), live("bells")).refusals == ()
    (reads,) = change_of(live("doors", "bells", joins=True), live("bells", joins=True)).refusals[-1:]
    assert reads.startswith("source doors cannot go from an app that runs, since step all, which stays")
    in_cloud = live("doors", "bells", devices="tier=cloud")
    assert change_of(in_cloud, live("bells", devices="tier=cloud")).refusals == ()
    (last,) = change_of(live("doors", devices="tier=cloud"), live()).refusals
    assert last.startswith(
        "source doors cannot go from an app that runs, since it is the last one in the data"
    )


def test_a_source_that_stays_is_what_it_was() -> None:
    (other,) = change_of(live("doors", bounded=True), live("doors")).refusals
    assert "a source of a running app stays as it is, or goes" in other


@pytest.mark.parametrize("devices", ["kind=gate", "tier=cloud"])
def test_a_source_comes_for_some_devices_or_for_that_of_the_platform(devices: str) -> None:
    found = change_of(live(), live("doors", devices=devices))
    assert (found.refusals, found.crosses) == ((), True)


def test_a_source_that_comes_to_an_end_is_refused_in_one_sentence() -> None:
    (refused,) = change_of(live(), live("doors", bounded=True)).refusals
    assert refused.startswith("source doors cannot come to an app that runs, since it or all others come to")


def test_no_step_that_runs_begins_to_wait_for_a_source() -> None:
    found = change_of(live("doors", joins=True), live("doors", "bells", joins=True)).refusals
    assert any("since step all, which runs, would wait for it: let new steps alone" in one for one in found)


def test_what_devices_keep_stays_where_its_type_does() -> None:
    was = on_devices(task=Alarms())
    assert was.on("edge").steps[-1].id == "made"
    gone = change_of(was, on_devices())
    assert (gone.drops, gone.refusals, gone.crosses) == (("alarms",), (), True)
    back = change_of(on_devices(), was)
    assert (back.drops, back.refusals, back.crosses) == ((), (), True)
    others = on_devices(task=OtherAlarms())
    assert "step alarms cannot keep its state" in change_of(was, others).refusals[0]
    assert lost_state(was, others, ["alarms", "made"]) == list(change_of(was, others).refusals)
    dropped = change_of(was, others, ["alarms"])
    assert (dropped.drops, dropped.refusals) == (("alarms",), ())
    assert change_of(was, was, ["alarms"]).crosses


def test_cuts_alone_cannot_drop_what_a_step_keeps_and_nobody_is_told_so() -> None:
    (refused,) = change_of(heat(), heat(alarms=OtherAlarms()), on_devices=frozenset()).refusals
    assert refused == (
        "step alarms cannot keep its state, since its state type is another one: give devices a cut that "
        "leaves alarms as it is, or submit the flow anew with all cuts it is to have"
    )


def test_a_table_that_is_there_from_before_is_not_made_anew() -> None:
    gone = heat(windows=False)
    assert change_of(gone, heat(), laid=tables_of(heat())).tables == ()
    other = {"warmest": TableForm("Table", ("celsius",), tables_of(heat())["warmest"].record)}
    assert "its key was celsius, and would be nothing" in change_of(gone, heat(), laid=other).refusals[0]


def test_columns_change_where_the_stores_can_do_it() -> None:
    def evolution(name: str, old: TableForm, new: TableForm) -> tuple[str, ...]:
        return (f"{name}: {'again' in old.record} to {'again' in new.record}",)

    found = change_of(heat(), heat(alarm_out=Longer), evolution=evolution)
    assert found.refusals == ()
    assert [one.says for one in found.tables] == [("alarms: False to True",)]


def test_every_kind_that_keeps_state_is_known() -> None:
    for one in pkgutil.iter_modules(geartrain.operators.__path__, "geartrain.operators."):
        importlib.import_module(one.name)

    def below(kind: type) -> Iterator[type]:
        children: list[type] = kind.__subclasses__()
        for direct in children:
            yield direct
            yield from below(direct)

    # A base, such as that of the windowed steps, has no kind of its own.
    ours = [one for one in below(Keyed) if one.__module__.startswith("geartrain.") and "kind" in vars(one)]
    assert {one.kind for one in ours} == STATEFUL  # type: ignore[attr-defined]


@settings(max_examples=30)
@given(flows.cases())
def test_a_random_flow_goes_over_to_itself_and_back_from_less(case: flows.Case) -> None:
    """Nothing differs from itself under the cut that is pinned; what is removed loses its state, and all else
    keeps it; the way back attaches it again.
    """
    graph = case.graph
    for cut in drawn_cuts(graph, case.rng(), 3):
        whole = revision_of("random:flow", make_plan(graph, sorted(cut.edge)))
        again = revision_of("random:flow", make_plan(graph, list(whole.cut)))
        assert again.cut == whole.cut
        assert differences(whole, again) == []
        same = change_of(whole, again)
        assert (same.refusals, same.drops, same.tables) == ((), (), ())
        keeping = {one.id for one in whole.steps if one.kind in STATEFUL}
        assert {one.step for one in same.steps if one.state == "kept"} == keeping
        less = _without_one(whole, case.rng())
        if less is None:
            continue
        fewer, more = change_of(whole, less), change_of(less, whole, laid=tables_of(whole))
        gone = {one.id for one in whole.steps} - {one.id for one in less.steps}
        assert fewer.refusals == more.refusals == ()
        assert {one.step for one in fewer.steps if one.what == "removed"} == gone
        assert set(fewer.drops) == gone & keeping
        assert {one.table for one in fewer.tables if one.what == "stays"} == (
            tables_of(whole).keys() - tables_of(less).keys()
        )
        assert {one.step for one in more.steps if one.what == "attached"} == gone
        assert (more.drops, more.tables) == ((), ())
        assert {one.step for one in more.steps if one.state == "kept"} == keeping - gone


def _without_one(whole: Revision, rng: random.Random) -> Revision | None:
    """The revision without one of its steps in the cloud, and without all below that."""
    steps = [one for one in whole.steps if one.tier == "cloud"]
    if not steps:
        return None
    gone = {rng.choice(steps).id}
    for one in whole.steps:  # in topological order
        if any(above.partition(":")[0] in gone for above in one.inputs):
            gone.add(one.id)
    return replace(whole, steps=tuple(one for one in whole.steps if one.id not in gone))
