"""The revisions of an app in control: kept in order, told to the log once the host could, given up before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace

from geartrain import Flow, Table
from geartrain.control.codec import encode_reported
from geartrain.control.states import AppReport, AppState, Reported
from geartrain.errors import PlacementError
from geartrain.fleet.selectors import CLOUD_DEVICE, IN_CLOUD
from geartrain.graph.graph import Graph
from geartrain.graph.without import without
from geartrain.revision import Change, Revision
from geartrain.revision.change import StepChange
from geartrain.testing import TestingSource
from geartrain_cloud.changes.editing import unasked
from geartrain_cloud.control import abilities
from geartrain_cloud.control.canary import unfit
from geartrain_cloud.control.checking import Answer as Checked
from geartrain_cloud.control.checking import Question, check
from geartrain_cloud.control.crossed import laggards
from geartrain_cloud.control.hosting import HostReport
from geartrain_cloud.control.lane_store import state_of
from geartrain_cloud.control.observing import Observer
from geartrain_cloud.control.trust import Trust
from geartrain_cloud.control.updating import Updates
from geartrain_cloud.control_store.errors import ConflictError
from geartrain_cloud.control_store.model import (
    Channel,
    Instance,
    Mode,
    Outline,
    Planned,
    SourceOutline,
    State,
    Submission,
)
from geartrain_cloud.control_store.sources import has
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.log.roster import RosterReader, changed
from geartrain_cloud.platform.places import read_report, write_report
from geartrain_cloud.rest.answering import sentences
from geartrain_cloud.rest.openapi import ROOT
from geartrain_cloud.rest.requests import BODY_BYTES_MAX
from geartrain_cloud.rest.routes import add_routes
from tests.control.test_reconciler import ASKED, ROUNDS_MAX, World, dying
from tests.hosting.mill import revisions as mill
from tests.spark.flows import Reading

CHANNELS = [Channel("readings", ["readings"])]
SOURCES = [SourceOutline("readings", False)]


HEAT = f"{__name__}:heat_flow"


def _double(reading: Reading) -> Reading:
    return Reading(reading.sensor, 2 * reading.value)


heat_flow = Flow("heat")
_readings = heat_flow.source("readings", TestingSource[Reading](), out=Reading, partitioned_by="sensor")
_doubled = _readings.map(_double, name="doubled")
_doubled.sink("all", Table("all"))
_doubled.filter(lambda r: r.value > 3, name="high").sink("warm", Table("warm"))


def outline(code: str) -> Outline:
    return Outline("heat", CHANNELS, SOURCES, code * 64, code=code * 64, bundled=True)


def planned(instance: Instance, code: str, *drops: str, number: int = 0) -> Planned:
    return Planned(
        instance.instance,
        number or instance.revision + 1,
        instance.flow,
        "readings",
        {"readings": {"path": "heat.csv"}},
        {},
        outline(code),
        drops,
        5,
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ControlStore]:
    ticks = iter(range(1, 10**9))
    one = ControlStore(tmp_path / "control.sqlite", lambda: next(ticks))
    for name in ("d1", "d2"):
        one.devices.add(name, {})
    yield one
    one.close()


def running(store: ControlStore) -> Instance:
    store.apps.submit(ASKED, outline("a"))
    store.apps.enter("heat.1", State.RUNNING)
    return store.apps.newest("heat")


def serials(store: ControlStore) -> list[int]:
    return [device.serial for device in store.devices.every()]


def test_the_next_revision_waits_beside_the_one_that_runs_until_the_log_is_told(store: ControlStore) -> None:
    first = running(store)
    before = serials(store)
    store.apps.plan("heat", planned(first, "b", "alarms"))
    assert store.apps.newest("heat") == first
    assert serials(store) == before
    store.apps.plan("heat", planned(first, "c", "alarms"))  # in its place
    following = store.revisions.next_of(first)
    assert following is not None
    assert (following.number, following.outline.code[0]) == (2, "c")
    store.apps.cross("heat.1")
    second = store.apps.newest("heat")
    assert (second.revision, second.outline.code[0], second.drops, second.cut) == (
        2,
        "c",
        ("alarms",),
        "readings",
    )
    assert (second.attempt, second.run, second.state, second.made_us) == (1, 1, State.RUNNING, 5)
    assert serials(store) == [one + 1 for one in before]
    (former,) = store.revisions.former(second)
    assert (former.number, former.cut, former.outline, former.made_us) == (
        1,
        first.cut,
        first.outline,
        first.submitted_us,
    )
    assert store.revisions.next_of(second) is None
    store.apps.cross("heat.1")  # there is nothing to tell any more
    assert store.apps.newest("heat") == second
    assert store.apps.codes(living=True) == {"a" * 64, "c" * 64}


def test_sources_that_come_are_for_the_devices_that_their_selectors_match(store: ControlStore) -> None:
    """The platform's own device is told of the app once it has a source there, and of nothing before."""

    def told(device: str) -> list[tuple[int, dict[str, bool]]]:
        apps = state_of(store, device).apps
        given = [json.loads(app.options)["sources"] for app in apps]
        found = [{source: one["enabled"] for source, one in its.items() if "enabled" in one} for its in given]
        return [(app.number, one) for app, one in zip(apps, found, strict=True)]

    store.devices.label("d1", {"kind": "gate"})
    first = running(store)
    more = [*SOURCES, SourceOutline("doors", False, "kind=gate"), SourceOutline("tides", False, IN_CLOUD)]
    other = planned(first, "b")
    store.apps.plan("heat", replace(other, outline=replace(other.outline, sources=more, crosses=True)))
    store.apps.cross("heat.1")
    assert {one: told(one) for one in ("d1", "d2", CLOUD_DEVICE)} == {
        "d1": [(1, {})],
        "d2": [(1, {})],
        CLOUD_DEVICE: [],
    }
    now = store.apps.newest("heat")
    lacks = store.desired.lacking("heat.1")
    assert {one: has(now, one, lacks.get(one, ())) for one in store.desired.assigned("heat.1")} == {
        "d1": ("readings", "doors"),
        "d2": ("readings",),
        CLOUD_DEVICE: ("tides",),
    }
    serial = store.devices.get(CLOUD_DEVICE).serial
    store.apps.apply_cuts("heat.1")
    assert store.devices.get(CLOUD_DEVICE).serial > serial
    assert {one: told(one) for one in ("d1", "d2", CLOUD_DEVICE)} == {
        "d1": [(2, {"doors": True, "tides": False})],
        "d2": [(2, {"doors": False, "tides": False})],
        CLOUD_DEVICE: [(2, {"doors": False, "readings": False, "tides": True})],
    }
    # What comes later finds devices as they are labelled then; what they lack stays so.
    store.devices.label("d2", {"kind": "gate"})
    last = planned(store.apps.newest("heat"), "c")
    bells = [*more, SourceOutline("bells", False, "kind=gate")]
    store.apps.plan("heat", replace(last, outline=replace(last.outline, sources=bells, crosses=True)))
    store.apps.cross("heat.1")
    assert store.desired.lacking("heat.1")["d2"] == ("doors", "tides")


def test_devices_are_told_of_other_steps_once_these_are_in_force(store: ControlStore) -> None:
    def told() -> tuple[int, str, dict[str, int]]:
        state = state_of(store, "d1")
        (app,) = state.apps
        return app.number, app.code[0], json.loads(app.drops)

    first = running(store)
    store.reports.heard("d1", report_of("d1", "a", 1), 1, [])
    other = planned(first, "b", "alarms")
    store.apps.plan("heat", replace(other, outline=replace(other.outline, crosses=True)))
    store.apps.cross("heat.1")
    assert told() == (1, "a", {})
    store.apps.cross("heat.1")
    assert told() == (1, "a", {})
    assert laggards(store, store.apps.newest("heat")) == []
    before = serials(store)
    store.apps.apply_cuts("heat.1")
    assert serials(store) == [one + 1 for one in before]
    assert told() == (2, "b", {"alarms": 2})
    second = store.apps.newest("heat")
    assert laggards(store, second) == ["d1", "d2"]
    store.reports.heard("d1", report_of("d1", "b", 2), 2, [])
    assert laggards(store, second) == ["d2"]
    # It passes over one that never came into force, of which devices were not told.
    other = planned(second, "c", "alarms", "means")
    store.apps.plan("heat", replace(other, outline=replace(other.outline, crosses=True)))
    store.apps.cross("heat.1")
    over = planned(store.apps.newest("heat"), "d", "highs")
    store.apps.plan("heat", replace(over, outline=replace(over.outline, follows=2)))
    assert told() == (2, "b", {"alarms": 2})
    store.apps.cross("heat.1")
    assert told() == (4, "d", {"alarms": 2, "highs": 4})
    assert store.cut_changes.waiting() == set()


def report_of(device: str, code: str, number: int) -> bytes:
    app = AppReport("heat.1", AppState.RUNNING, revision=code * 64)
    return encode_reported(Reported(device, b"session-", 1, number, number, b"d" * 16, (app,)))


def test_new_steps_come_to_devices_by_a_wider_cut_and_no_other_step_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def checked(graph: Graph, running: Outline | None = None, **wishes: Any) -> Checked:
        monkeypatch.setattr(Flow, "graph", lambda self: graph)
        outline = running or Outline("heat", [], [], "")
        document, base, sent = outline.document, outline.base, tuple(outline.channels)
        return check(Question(HEAT, "doubled", {}, running=document, base=base, sent=sent, **wishes))

    whole = heat_flow.graph()
    bare = without(whole, ["high"])
    first = checked(bare).outline
    assert first is not None
    assert first.base == "doubled"
    attached = checked(whole, first)
    assert (attached.cut, attached.change and attached.change.crosses) == ("doubled", False)
    for wider in ("high", "edge"):
        found = checked(whole, first, wider=wider)
        assert found.cut == "high"
        assert found.change is not None
        assert (found.change.crosses, found.change.refusals) == (True, ())
        assert found.outline is not None
        assert {one.id for one in found.outline.channels} >= {"doubled", "high"}
    again = checked(bare, checked(whole, first, wider="high").outline)
    assert (again.cut, again.change and again.change.crosses) == ("doubled", True)
    assert again.outline is not None
    assert {one.id for one in again.outline.channels} >= {"doubled", "high"}
    back = checked(whole, again.outline, wider="high", is_back=True)
    assert back.cut == "high"
    with pytest.raises(PlacementError, match=r"these are in the data centre \(high\): leave them there"):
        checked(whole, attached.outline, wider="high")
    assert checked(whole, attached.outline, wider="high", is_back=True).cut == "doubled"


def test_what_the_log_was_told_of_is_not_given_up(store: ControlStore) -> None:
    first = running(store)
    store.apps.plan("heat", planned(first, "b"))
    assert store.apps.give_up("heat", "heat.1")
    assert not store.apps.give_up("heat", "heat.1")
    store.apps.plan("heat", planned(first, "b"))
    store.apps.cross("heat.1")
    assert not store.apps.give_up("heat", "heat.1")
    with pytest.raises(ConflictError, match="has had another update meanwhile"):
        store.apps.plan("heat", planned(first, "c"))


def test_only_an_app_that_runs_goes_over(store: ControlStore) -> None:
    first = running(store)
    store.apps.enter("heat.1", State.FAILED, "it raised")
    with pytest.raises(ConflictError, match=r"app heat is failed.*gear resume first"):
        store.apps.plan("heat", planned(first, "b"))
    store.apps.enter("heat.1", State.RUNNING)
    with pytest.raises(ConflictError, match="app heat is running"):
        store.apps.plan("heat", replace(planned(first, "b"), instance="heat.0"))
    store.apps.plan("heat", planned(first, "b"))
    store.apps.enter("heat.1", State.FAILED, "it raised")
    store.apps.cross("heat.1")
    assert store.apps.newest("heat").revision == 1


@pytest.mark.parametrize("change", ["update", "replay"])
def test_nothing_else_begins_while_a_revision_is_prepared(store: ControlStore, change: str) -> None:
    first = running(store)
    store.apps.plan("heat", planned(first, "b"))
    work: dict[str, Callable[[], Any]] = {
        "update": lambda: store.apps.update(first, outline("c")),
        "replay": lambda: store.apps.replay("heat"),
    }
    with pytest.raises(ConflictError, match=r"is to go over to revision 2: wait .* gear rollback"):
        work[change]()
    store.apps.give_up("heat", "heat.1")
    work[change]()


def test_code_is_exchanged_in_the_newest_revision_alone(store: ControlStore) -> None:
    first = running(store)
    store.apps.plan("heat", planned(first, "b"))
    store.apps.cross("heat.1")
    with pytest.raises(ConflictError, match="has had another update meanwhile"):
        store.apps.update(first, outline("c"))  # it was compared with the revision before
    updated = store.apps.update(store.apps.newest("heat"), outline("c"))
    assert (updated.revision, updated.outline.code[0], updated.attempt) == (2, "c", 2)
    assert [one.outline.code[0] for one in store.revisions.former(updated)] == ["a"]


def test_a_list_of_revisions_has_the_code_that_was_exchanged(store: ControlStore) -> None:
    async def load(question: Question) -> Checked:
        raise AssertionError(question)

    def listed() -> list[tuple[int, str, str]]:
        _, answer = asyncio.run(posted(updates, "revisions", "GET"))
        return [(one["number"], one["code"][:1], one["code_before"][:1]) for one in answer["items"]]

    trust = Trust(Path("bundles"), store)
    updates = Updates(store, load, trust, lambda: None, lambda _: HostReport(), lambda: 0)
    running(store)
    assert listed() == [(1, "a", "")]
    for code, before in ("ba", "ab"):  # an update, and its rollback
        store.apps.update(store.apps.newest("heat"), outline(code))
        assert listed() == [(1, code, before)]
    store.apps.enter("heat.1", State.RUNNING)
    store.apps.plan("heat", planned(store.apps.newest("heat"), "c"))
    store.apps.cross("heat.1")
    assert listed() == [(2, "c", ""), (1, "a", "b")]


@pytest.mark.parametrize("way", ["kill", "end"])
def test_an_app_that_ends_gives_up_its_next_revision_and_a_purge_forgets_all(
    store: ControlStore, way: str
) -> None:
    store.apps.plan("heat", planned(running(store), "b"))
    store.apps.cross("heat.1")
    store.apps.plan("heat", planned(store.apps.newest("heat"), "c"))
    if way == "kill":
        store.apps.kill("heat", Mode.NOW, purge=False)
    else:
        store.apps.enter("heat.1", State.ENDED)
    found = store.apps.newest("heat")
    assert (store.revisions.next_of(found), len(store.revisions.former(found))) == (None, 1)
    store.apps.forget("heat.1")
    assert store.revisions.with_others() == set()


class Host(World):
    """A world whose Spark host prepares revisions, and goes over where the log is told of them."""

    fails = ""

    def host(self) -> None:
        super().host()
        said, told = read_report(self.places.spark_status), read_report(self.places.spark_wanted)
        roster = changed(RosterReader(self.places.log).after())
        for name, flow in said["flows"].items():
            wanted = told["flows"][name]
            newest = wanted.get("revision", 1)
            logged = roster[name].revision if name in roster else 1
            assert len(wanted.get("former", [])) == newest - 1
            flow |= {"revision": logged, "prepared": logged if self.fails else newest}
            flow["next_why"] = self.fails if newest > logged else ""
        write_report(self.places.spark_status, said)


def story(world: Host, monkeypatch: pytest.MonkeyPatch, plans: list[str]) -> None:
    """Submit an app, and have it go over to each of these."""
    world.store.devices.add("here", {}, local=True)
    world.store.apps.submit(ASKED, outline("a"))

    def control(work: Callable[[], Any]) -> None:
        with dying(world, monkeypatch):
            world.as_control(work)

    def rounds(until: Callable[[], bool]) -> None:
        for _ in range(ROUNDS_MAX):
            control(world.reconciler.round)
            world.host()
            world.devices()
            told = changed(RosterReader(world.places.log).after()).get("heat.1")
            assert told is None or told.revision <= world.store.apps.newest("heat").revision
            if until():
                return
        raise AssertionError(world.store.apps.newest("heat"))

    rounds(lambda: world.store.apps.newest("heat").state is State.RUNNING)
    for number, code in enumerate(plans, 2):

        def ask(number: int = number, code: str = code) -> None:
            def work() -> tuple[int, dict[str, str]]:
                found = world.store.apps.newest("heat")
                world.store.apps.plan("heat", planned(found, code, number=number))
                return 202, {}

            world.store.answers.once(code, "update", work)

        for _ in range(2):  # the client, too, asks again under the same key
            control(ask)
        rounds(lambda number=number: _in_force(world) == number)  # type: ignore[misc]


def _in_force(world: World) -> int:
    found: int = read_report(world.places.spark_status)["flows"]["heat.1"]["revision"]
    return found


def test_revisions_come_into_force_in_order_wherever_control_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Host(tmp_path / "plain")
    story(plain, monkeypatch, ["b", "c"])
    wanted = read_report(plain.places.spark_wanted)["flows"]["heat.1"]
    assert wanted["revision"] == 3
    assert [one["cut"] for one in wanted["former"]] == ["auto", ["readings"]]
    assert [Path(one["bundle"]).name[0] for one in (*wanted["former"], wanted)] == ["a", "b", "c"]
    for before in (True, False):
        for at in range(1, plain.steps + 1):
            world = Host(tmp_path / f"{before}-{at}", at, before)
            story(world, monkeypatch, ["b", "c"])
            found = world.store.apps.newest("heat")
            assert (found.revision, found.outline.code[0]) == (3, "c")
            assert [one.outline.code[0] for one in world.store.revisions.former(found)] == ["a", "b"]
            assert read_report(world.places.spark_wanted)["flows"]["heat.1"] == wanted | {
                "tables": str(world.places.tables("heat.1")),
                "bundle": str(world.places.code("c" * 64)),
                "former": [
                    one | {"bundle": str(world.places.code(code * 64))}
                    for one, code in zip(wanted["former"], "ab", strict=True)
                ],
            }
            world.store.close()
    plain.store.close()


def test_a_revision_that_the_host_cannot_prepare_is_replaced_or_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Host(tmp_path)
    story(world, monkeypatch, [])
    observer = Observer(world.store, world.config, world.reconciler, str, lambda: 0.0)

    def rounds() -> dict[str, Any] | None:
        for _ in range(3):
            world.reconciler.round()
            world.host()
        found: dict[str, Any] | None = observer.info(world.store.apps.newest("heat"))["change"]
        return found

    assert rounds() is None
    world.fails = "its code raises"
    world.store.apps.plan("heat", planned(world.store.apps.newest("heat"), "b"))
    assert rounds() == {"number": 2, "stage": "being prepared", "why": "its code raises"}
    assert changed(RosterReader(world.places.log).after())["heat.1"].revision == 1
    world.store.apps.enter("heat.1", State.FAILED, "it raised")  # it goes over once it is resumed
    assert observer.info(world.store.apps.newest("heat"))["change"]["number"] == 2
    world.store.apps.give_up("heat", "heat.1")
    assert rounds() is None
    assert "revision" not in read_report(world.places.spark_wanted)["flows"]["heat.1"]
    world.store.apps.plan("heat", planned(world.store.apps.newest("heat"), "b"))
    world.fails = ""
    world.reconciler.round()
    write_report(
        world.places.spark_status,
        {"serial": 1, "flows": {"heat.1": {"state": "running", "run": 1, "prepared": 2}}},
    )
    world.reconciler.round()  # what the host says there, it says of a revision that was given up
    assert world.store.apps.newest("heat").revision == 1
    assert rounds() is None
    assert _in_force(world) == world.store.apps.newest("heat").revision == 2
    world.store.close()


@pytest.mark.parametrize("drain", [False, True])
def test_a_revision_that_drains_is_mended_and_not_passed_over(store: ControlStore, *, drain: bool) -> None:
    following = planned(running(store), "b")
    store.apps.plan("heat", replace(following, outline=replace(following.outline, drain=drain)))
    store.apps.cross("heat.1")
    stuck = HostReport(state="running", revision=1, prepared=2, stuck=2)
    trust = Trust(Path("bundles"), store)

    async def load(question: Question) -> Checked:
        return check(question)

    updates = Updates(store, load, trust, lambda: None, lambda name: stuck, lambda: 0)
    passed = updates._passed(store.apps.newest("heat"))
    assert (passed is None) is drain
    mended = store.apps.update(store.apps.newest("heat"), outline("c"))
    assert (mended.outline.code[0], mended.outline.drain) == ("c", drain)


def test_a_rollback_passes_over_a_revision_of_equal_code(store: ControlStore) -> None:
    flow = f"{mill.__name__}:one"

    async def load(question: Question) -> Checked:
        found = check(question)
        assert found.outline is not None
        return replace(found, outline=replace(found.outline, bundled=True))

    checked = asyncio.run(load(Question(flow, "cloud", {})))
    first = checked.outline
    assert first is not None
    store.apps.submit(Submission("heat", flow, "cloud", "all"), first)
    store.apps.enter("heat.1", State.RUNNING)
    drops = Planned("heat.1", 2, flow, "cloud", {}, {}, first, ("levels",), 5)
    store.apps.plan("heat", drops)
    store.apps.cross("heat.1")
    said = [HostReport(state="running", revision=1, prepared=2)]
    trust = Trust(Path("bundles"), store)
    updates = Updates(store, load, trust, lambda: None, lambda name: said[-1], lambda: 7)

    def rollback() -> tuple[int, Any]:
        return asyncio.run(posted(updates, "rollback"))

    status, answer = rollback()
    assert (status, "so there is no code to go back to" in answer["error"]["sentence"]) == (409, True)
    said.append(HostReport(state="running", revision=1, prepared=2, stuck=2))
    status, answer = rollback()
    assert (status, answer["number"]) == (202, 3)
    following = store.revisions.next_of(store.apps.newest("heat"))
    assert following is not None
    assert (following.number, following.outline.follows, following.drops) == (3, 1, ())
    assert following.outline.document == first.document


def test_a_device_whose_agent_lacks_what_an_app_needs_is_named(
    store: ControlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust = Trust(Path("bundles"), store)

    async def load(question: Question) -> Checked:
        return check(question)

    updates = Updates(store, load, trust, lambda: None, lambda name: HostReport(), lambda: 0)
    first = check(Question(f"{mill.__name__}:one", "edge", {})).outline
    assert first is not None

    def refused() -> str:
        try:
            updates.check_reaches("mill", first, ["d1", "d2"])
        except ConflictError as error:
            return str(error)
        return ""

    def says(*can: str) -> None:
        said = Reported("d1", b"12345678", 1, 1, can=can, program="0.2.0")
        store.reports.heard("d1", encode_reported(said), 1, [])

    says("something")
    assert refused() == ""  # an agent of this version need not say anything
    monkeypatch.setattr(abilities, "NEEDED", {"tests": "cannot do what this test needs"})
    assert refused() == (
        "device d1 runs an agent of version 0.2.0, which cannot do what this test needs: upgrade it with "
        "gear agent upgrade, or leave it out"
    )
    says("something", "tests")
    assert refused() == ""  # d2 was never heard: nothing is known of it


def test_a_source_that_has_gone_does_not_come_again(store: ControlStore) -> None:
    trust = Trust(Path("bundles"), store)

    async def load(question: Question) -> Checked:
        return check(question)

    updates = Updates(store, load, trust, lambda: None, lambda name: HostReport(), lambda: 0)
    instance = running(store)
    without = replace(instance, outline=replace(instance.outline, gone={"doors": 2}))
    wanted = replace(outline("b"), sources=[*SOURCES, SourceOutline("doors", False)])
    first = check(Question(f"{mill.__name__}:one", "edge", {})).outline
    assert first is not None
    plain = Revision.from_json(first.document)

    def says(one: Instance) -> list[str]:
        return [w for w in updates._in_the_way(one, wanted, Change(), (plain, plain)) if "doors" in w]

    (why,) = says(without)
    assert why.startswith("source doors has gone from the app, and does not come again: give it another id")
    assert says(instance) == []
    found = unfit((instance.outline, wanted), (plain, replace(plain, sources=())), Change())
    assert any("a source that has gone does not come again (readings)" in one for one in found)
    change = Change(letters={"readings": "its records had a field level"})
    (refused,) = unfit((instance.outline, instance.outline), (plain, plain), change)
    assert refused.startswith(
        "--canary: what all other devices send meanwhile would be dead letters (readings)"
    )


async def posted(updates: Updates, verb: str, method: str = "POST") -> tuple[int, Any]:
    """What REST answers to a change of the app, or a question about it."""
    app = web.Application(middlewares=[sentences(ROOT, BODY_BYTES_MAX)])
    add_routes(app, ROOT, [updates])
    async with TestClient(TestServer(app)) as client:
        body: dict[str, Any] | None = {} if method == "POST" else None
        answer = await client.request(method, f"{ROOT}/apps/heat/{verb}", json=body)
        return answer.status, await answer.json()


def test_what_an_update_does_beside_what_it_may_is_said() -> None:
    steps = (
        StepChange("sums", "same", state="kept"),
        StepChange("high", "removed"),
        StepChange("low", "attached"),
    )
    assert unasked(Change(steps), []) == []
    assert unasked(Change(steps), ["attached", "removed"]) == []
    assert unasked(Change(steps), ["attached"]) == ["steps would change otherwise than asked: high removed"]


def test_the_columns_of_a_table_change_where_no_row_loses_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def checked(flow: Flow, running: Outline | None = None) -> Checked:
        monkeypatch.setattr(mill, "app", flow, raising=False)
        document = "" if running is None else running.document
        return check(Question(f"{mill.__name__}:app", "cloud", {}, running=document))

    def change(found: Checked) -> Change:
        assert found.change is not None
        return found.change

    first = checked(mill.one).outline
    second = checked(mill.two, first)
    assert change(second).refusals == ()
    tables = {one.table: (one.what, one.says) for one in change(second).tables}
    assert tables["each_sum"] == ("changes", ("column 'half' is added (null in the rows there are)",))
    assert (tables["second"][0], tables["level"][0]) == ("new", "stays")
    back = change(checked(mill.one, second.outline))
    assert any("'half' is dropped" in say for one in back.tables for say in one.says)
    other = change(checked(mill.counts_as_text, first))
    assert any(one.startswith("table each_sum: column 'count'") for one in other.refusals), other.refusals
