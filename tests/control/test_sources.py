"""Sources that only some devices have: by a selector, by what was submitted, by a device's own file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from geartrain import Flow, Table
from geartrain.control.states import App
from geartrain.fleet.selectors import CLOUD_DEVICE, IN_CLOUD, parse_selector
from geartrain.planning import make_plan
from geartrain.revision import differences, revision_of
from geartrain.testing import TestingSource
from geartrain_cloud.control.checking import outline_of
from geartrain_cloud.control.lane_store import desired_of
from geartrain_cloud.control.observing import Observer
from geartrain_cloud.control.reconciler import Reconciler
from geartrain_cloud.control_store.errors import ConflictError
from geartrain_cloud.control_store.model import Outline, Planned, Report, SourceOutline, State, Submission
from geartrain_cloud.control_store.sources import check_meets_devices, takes_part, with_since
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.log.roster import RosterReader, changed
from geartrain_cloud.platform.config import PlatformConfig
from geartrain_cloud.platform.places import read_report
from tests.edge.flows import Reading, Running

GPS = SourceOutline("gps", False, "kind=truck", joins=True)
DOORS = SourceOutline("doors", False, "kind=truck")
HEAT = SourceOutline("heat", False)
FLEET = {"t1": {"kind": "truck"}, "x1": {"kind": "tank"}}


def hash_of(number: int) -> str:
    """That of a revision's document."""
    return f"{number:064x}"


class World:
    """A control store, with what it has ingest and devices told."""

    def __init__(self, folder: Path) -> None:
        self.config = PlatformConfig(folder)
        self.store = ControlStore(self.config.places.control, lambda: 10**15)
        self.reconciler = Reconciler(self.store, self.config, lambda: 10**15)
        self.observer = Observer(self.store, self.config, self.reconciler, lambda: "", lambda: 0.0)
        for name, labels in FLEET.items():
            if self.store.devices.find(name) is None:
                self.store.devices.add(name, labels)

    def submit(self, *sources: SourceOutline, **more: Any) -> None:
        outline = Outline("heat", [], list(sources), hash_of(1), code="cd" * 32)
        self.store.apps.submit(Submission("heat", "heat:flow", "auto", "all", **more), outline)

    def members(self) -> dict[str, tuple[str, ...]]:
        """The sources of each device, as ingest reads them."""
        self.reconciler.round()
        return changed(RosterReader(self.config.places.log).after())["heat.1"].devices

    def told(self, device: str) -> dict[str, Any]:
        """The options of sources that a device is told."""
        return dict(json.loads(self.app(device).options)["sources"])

    def app(self, device: str) -> App:
        (app,) = desired_of(self.store.devices.get(device), self.store.desired.wanted_on(device), []).apps
        return app

    def says(self, device: str, state: str, *lacks: str, runs: int = 1) -> None:
        """The report of a device whose agent runs revision `runs`."""
        serial = self.store.devices.get(device).serial
        report = Report(device, "heat.1", state, lacks=lacks, revision=hash_of(runs))
        self.store.reports.heard(device, b"", serial, [report])

    def goes_over(self, number: int, *sources: SourceOutline) -> None:
        """The next revision, which is in force at once, and by which devices have these sources."""
        now = self.store.apps.newest("heat")
        came = Outline("heat", [], list(sources), hash_of(number), code="cd" * 32, crosses=True)
        outline = with_since(came, now.outline, number)
        self.store.apps.plan(
            "heat", Planned("heat.1", number, now.flow, now.cut, {}, {}, outline, drops=(), made_us=1)
        )
        self.store.apps.cross("heat.1")
        self.store.apps.apply_cuts("heat.1")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    one = World(tmp_path)
    yield one
    one.store.close()


def test_a_selector_says_who_has_a_source_to_ingest_and_devices_and_people(world: World) -> None:
    world.submit(GPS, HEAT)
    assert world.members() == {"t1": ("gps", "heat"), "x1": ("heat",)}
    assert world.told("t1") == {"gps": {"enabled": True}}
    assert world.told("x1") == {"gps": {"enabled": False}}
    info = world.observer.info(world.store.apps.newest("heat"))
    assert [one["devices"] for one in info["sources"]] == ["kind=truck", "all"]
    assert {one["device"]: one["lacks"] for one in info["applied"]} == {"t1": [], "x1": ["gps"]}
    assert world.app("t1").code == "cd" * 32


def test_what_was_submitted_stands_above_a_selector(world: World) -> None:
    world.submit(
        GPS, HEAT, device_options={"x1": {"gps": {"enabled": True}}, "t1": {"heat": {"enabled": False}}}
    )
    assert world.members() == {"t1": ("gps",), "x1": ("gps", "heat")}
    assert world.told("x1") == {"gps": {"enabled": True}}


def test_what_was_submitted_for_all_stands_above_a_selector(world: World) -> None:
    world.submit(GPS, HEAT, options={"gps": {"enabled": True}})
    assert world.members() == {"t1": ("gps", "heat"), "x1": ("gps", "heat")}


def test_a_label_gives_a_running_device_what_may_join_and_the_rest_is_named(world: World) -> None:
    world.submit(GPS, DOORS, HEAT)
    before = world.store.devices.get("x1").serial
    device = world.store.devices.label("x1", {"kind": "truck"})
    assert device.serial == before + 1
    assert world.members()["x1"] == ("gps", "heat")
    assert world.told("x1") == {"gps": {"enabled": True}, "doors": {"enabled": False}}
    said = world.observer.labelled(device)["sources"]
    assert said == [{"name": "heat", "source": "doors", "has": False}]
    same = world.store.devices.label("x1", {"color": "red"})
    assert same.serial == device.serial
    lost = world.store.devices.label("t1", {"kind": "tank"})
    assert world.members()["t1"] == ("gps", "doors", "heat")
    said = world.observer.labelled(lost)["sources"]
    assert [(one["source"], one["has"]) for one in said] == [("doors", True), ("gps", True)]
    world.store.devices.add("t2", {"kind": "truck"})
    assert world.members()["t2"] == ("gps", "doors", "heat")


def test_a_device_s_own_file_is_heard_of(world: World) -> None:
    bounded = [SourceOutline(one.id, True, one.devices) for one in (DOORS, HEAT)]
    world.submit(*bounded)
    world.says("t1", "starting")
    assert not any(
        "source doors" in one for one in world.observer.info(world.store.apps.newest("heat"))["waits_for"]
    )
    world.says("t1", "running", "doors")
    info = world.observer.info(world.store.apps.newest("heat"))
    assert {one["device"]: one["lacks"] for one in info["applied"]} == {"t1": ["doors"], "x1": ["doors"]}
    assert any(
        "no device of the app has source doors, so it never ends: add a device that matches kind=truck" in one
        for one in info["waits_for"]
    )
    (app,) = world.observer.device_info(world.store.devices.get("t1"))["apps"]
    assert app["lacks"] == ["doors"]
    assert world.members()["t1"] == ("doors", "heat")  # until the device says so behind its last record
    world.says("x1", "running")  # its file says that it has it all the same
    assert world.members()["x1"] == ("doors", "heat")


def test_a_device_that_has_not_gone_over_is_waited_for_of_those_new_sources_alone_that_are_to_be_its(
    world: World,
) -> None:
    """What it says meanwhile is of the sources of the former revision."""
    world.submit(HEAT)
    world.store.apps.enter("heat.1", State.RUNNING)
    world.goes_over(2, HEAT, DOORS)
    for name in FLEET:
        world.says(name, "running", runs=1)
    assert world.members() == {"t1": ("heat", "doors"), "x1": ("heat",)}
    now = world.store.apps.newest("heat")
    applied = {one["device"]: one["lacks"] for one in world.observer.info(now)["applied"]}
    assert applied == {"t1": [], "x1": ["doors"]}
    (app,) = world.observer.device_info(world.store.devices.get("x1"))["apps"]
    assert app["lacks"] == ["doors"]
    # Once it has gone over, a device is believed, whatever its own file says, and whatever follows.
    world.says("x1", "running", runs=2)
    world.says("t1", "running", "doors", runs=2)
    assert world.members() == dict.fromkeys(FLEET, ("heat", "doors"))
    bells = SourceOutline("bells", False, "kind=tank")
    world.goes_over(3, HEAT, DOORS, bells)
    world.says("x1", "running", runs=2)
    world.says("t1", "running", "doors", runs=2)
    assert world.members() == {"t1": ("heat", "doors"), "x1": ("heat", "doors", "bells")}
    # The same revision may be made anew, for another version of the platform, say.
    now = world.store.apps.newest("heat")
    world.store.apps.update(now, replace(now.outline, revision=hash_of(4)))
    world.says("x1", "running", runs=3)
    world.says("t1", "running", "bells", "doors", runs=3)
    assert world.members() == {"t1": ("heat", "doors"), "x1": ("heat", "doors", "bells")}
    now = world.store.apps.newest("heat")
    applied = {one["device"]: one["lacks"] for one in world.observer.info(now)["applied"]}
    assert applied == {"t1": ["bells", "doors"], "x1": []}


class Live(TestingSource[Any]):
    """A sensor: it gives what happens now."""

    bounded: ClassVar[bool] = False
    replayable: ClassVar[bool] = False


def flow_of(devices: str = "all") -> Flow:
    flow = Flow("heat")
    flow.source("gps", Live(), out=Reading, devices=devices).sink("out", Table("out"))
    doors = flow.source("doors", Live(), out=Reading, partitioned_by="sensor", devices=devices)
    doors.key_by("sensor").process("totals", Running()).sink("sums", Table("sums"))
    flow.source("file", TestingSource[Any](), out=Reading, devices=devices).sink("other", Table("other"))
    return flow


def test_a_source_may_join_where_it_is_live_and_nothing_on_the_device_rests_on_it() -> None:
    graph = flow_of("kind = truck").graph()
    for cut, joins in (("edge", ["gps"]), ("cloud", ["gps", "doors"])):
        plan = make_plan(graph, cut)
        outline = outline_of(plan, revision_of("m:f", plan))
        assert {one.devices for one in outline.sources} == {"kind=truck"}
        assert [one.id for one in outline.sources if one.joins] == joins
    former = revision_of("m:f", make_plan(flow_of().graph(), "cloud"))
    assert differences(former, revision_of("m:f", make_plan(graph, "cloud"))) == [
        f"source {name}: its devices were all, are now kind=truck" for name in ("gps", "doors", "file")
    ]


PRICES = SourceOutline("prices", True, IN_CLOUD)


def test_a_source_in_the_cloud_is_that_of_the_platform_s_own_device_alone(world: World) -> None:
    world.submit(PRICES, HEAT, GPS)
    own = world.store.devices.get(CLOUD_DEVICE)
    assert (own.local, own.labels) == (True, {"tier": "cloud"})
    assert world.members() == {CLOUD_DEVICE: ("prices",), "t1": ("heat", "gps"), "x1": ("heat",)}
    assert world.told(CLOUD_DEVICE) == {
        "prices": {"enabled": True},
        "heat": {"enabled": False},
        "gps": {"enabled": False},
    }
    assert world.told("t1") == {"prices": {"enabled": False}, "gps": {"enabled": True}}
    assert set(read_report(world.config.places.agents_wanted)["devices"]) == {CLOUD_DEVICE}
    world.store.devices.add("t2", {"kind": "truck"})
    assert world.members()["t2"] == ("heat", "gps")


def test_no_option_moves_a_source_into_the_cloud_or_out_of_it(world: World) -> None:
    world.submit(
        PRICES,
        HEAT,
        options={"prices": {"enabled": True}, "heat": {"enabled": True}},
        device_options={"t1": {"prices": {"enabled": True}}},
    )
    assert world.members() == {CLOUD_DEVICE: ("prices",), "t1": ("heat",), "x1": ("heat",)}
    assert world.told("t1")["prices"] == {"enabled": False}
    assert world.told(CLOUD_DEVICE)["heat"] == {"enabled": False}


def test_a_flow_of_sources_in_the_cloud_needs_no_device_and_others_leave_the_cloud_alone(
    world: World,
) -> None:
    world.submit(PRICES)
    assert world.members() == {CLOUD_DEVICE: ("prices",)}
    waits = world.observer.info(world.store.apps.newest("heat"))["waits_for"]
    assert not any("no device" in one for one in waits)
    outline = Outline("rooms", [], [HEAT], "ab" * 32, code="cd" * 32)
    made = world.store.apps.submit(Submission("rooms", "heat:flow", "auto", "all"), outline)
    assert set(world.store.desired.assigned(made.instance)) == {"t1", "x1"}


def test_a_selector_that_means_nobody_is_a_mistake_where_devices_have_something_to_do(world: World) -> None:
    devices = list(world.store.devices.every())
    alone, down = (Outline("heat", [], [PRICES], "ab" * 32, down=has) for has in (False, True))
    both = Outline("heat", [], [PRICES, HEAT], "ab" * 32)
    for text, outline, is_wrong in (
        ("kind=ship", both, True),
        ("kind=ship", down, True),
        ("kind=ship", alone, False),
        ("kind=truck", both, False),
        ("all", both, False),
        (IN_CLOUD, both, True),
    ):
        selector = parse_selector(text)
        meant = [one for one in devices if takes_part(outline, selector, one)]
        if is_wrong:
            with pytest.raises(ConflictError, match=f"no device matches {text}: "):
                check_meets_devices(outline, selector, meant)
        else:
            check_meets_devices(outline, selector, meant)
    check_meets_devices(both, parse_selector("all"), [])


def test_the_platform_s_own_device_stays_as_it_is(world: World) -> None:
    for name, labels in ((CLOUD_DEVICE, {}), ("t9", {"tier": "cloud"})):
        with pytest.raises(ConflictError, match="platform's own device: use another"):
            world.store.devices.add(name, labels)
    world.submit(PRICES)
    with pytest.raises(ConflictError, match="kill the apps that it reads for"):
        world.store.devices.retire(CLOUD_DEVICE)
    with pytest.raises(ConflictError, match="use another"):
        world.store.devices.label(CLOUD_DEVICE, {"tier": None})
    names = [one.device for one in world.store.devices.page(10, "")[0]]
    assert names == [CLOUD_DEVICE, "t1", "x1"]
    assert [one.device for one in world.store.devices.page(10, "", IN_CLOUD)[0]] == [CLOUD_DEVICE]
    assert [one.device for one in world.store.devices.page(10, "", "kind!=tank")[0]] == ["t1"]


def test_a_device_of_the_fleet_with_that_name_is_named(world: World) -> None:
    database = world.store.devices._database
    with database.change() as change:
        change.execute("INSERT INTO devices VALUES (?, '{}', 0, 0, 1, 0, 0)", (CLOUD_DEVICE,))
    with pytest.raises(ConflictError, match="retire it, and add it under another name"):
        world.submit(PRICES)
    world.store.devices.retire(CLOUD_DEVICE)
    world.submit(PRICES)
    own = world.store.devices.get(CLOUD_DEVICE)
    assert (own.local, own.labels, own.serial) == (True, {"tier": "cloud"}, 4), "its serial goes on"


def test_a_source_says_with_which_revision_it_came() -> None:
    first, second, third = (
        Outline("heat", [], [SourceOutline(name, False) for name in names], "r")
        for names in (("a",), ("b", "a"), ("c", "b", "a"))
    )
    second = with_since(second, first, 3)
    third = with_since(third, second, 4)
    for outline, since in ((second, {"a": 0, "b": 3}), (third, {"a": 0, "b": 3, "c": 4})):
        assert {source.id: source.since for source in outline.sources} == since


def test_what_has_gone_of_the_sources_is_known_from_then_on(tmp_path: Path) -> None:
    names = (("a", "b"), ("a", "c"), ("a",), ("a",))
    found = [Outline("heat", [], [SourceOutline(name, False) for name in one], "r") for one in names]
    for number in range(1, len(found)):
        found[number] = with_since(found[number], found[number - 1], number + 1)
    world = World(tmp_path)
    left = Outline("heat", [], [HEAT], "ab" * 32, code="cd" * 32, gone={"doors": 2})
    world.store.apps.submit(Submission("heat", "heat:flow", "auto", "all"), left)
    assert world.members() == dict.fromkeys(FLEET, ("heat", "doors")), "each may have more to send of it"
    document = changed(RosterReader(world.config.places.log).after())["heat.1"]
    assert (document.sources, document.since) == (("heat", "doors"), {"doors": 2})
    assert "doors" not in world.told("t1")
    world.store.close()
    assert [one.gone for one in found] == [{}, {"b": 0}, {"b": 0, "c": 2}, {"b": 0, "c": 2}]
