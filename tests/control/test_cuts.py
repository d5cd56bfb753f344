"""Cuts of single devices in control: what moves, what is refused, and when devices are told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace

from geartrain import Flow, Table
from geartrain.control.app_reasons import AppCode, app_sentence
from geartrain.control.codec import encode_reported
from geartrain.control.states import (
    AppReport,
    AppState,
    Measured,
    Reported,
    StepKept,
    reported_cut,
)
from geartrain.errors import PlacementError
from geartrain.errors.reason import make_reason
from geartrain.graph.graph import Input
from geartrain.ports import StateSize
from geartrain.revision.change import Change, StepChange
from geartrain.testing import TestingSource
from geartrain_cloud.changes.cut_checking import CutWish
from geartrain_cloud.control import explaining
from geartrain_cloud.control.checking import Answer, Question, check
from geartrain_cloud.control.cutting import Cuts
from geartrain_cloud.control.explaining import Explanations
from geartrain_cloud.control.hosting import HostReport
from geartrain_cloud.control.lane_store import desired_of
from geartrain_cloud.control.moving_state import StateSizes, Tier
from geartrain_cloud.control.observing import Observer
from geartrain_cloud.control.trust import Trust
from geartrain_cloud.control_store.model import CutRule, Report, State, Submission
from geartrain_cloud.log.roster import RosterReader, changed
from geartrain_cloud.platform.places import read_report
from geartrain_cloud.rest.answering import sentences
from geartrain_cloud.rest.openapi import ROOT
from geartrain_cloud.rest.requests import BODY_BYTES_MAX
from geartrain_cloud.rest.routes import add_routes
from geartrain_cloud.short_process import Ended
from tests.control.test_revisions import Host
from tests.spark.flows import Adding, Reading, Sum

FLOW = f"{__name__}:flow"


def _double(reading: Reading) -> Reading:
    return Reading(reading.sensor, 2 * reading.value)


def _twice(reading: Reading) -> list[Reading]:
    return [reading, reading]


flow = Flow("heat")
_readings = flow.source("readings", TestingSource[Reading](), out=Reading, partitioned_by="sensor")
_doubled = _readings.map(_double, name="doubled")
_doubled.filter(lambda r: r.value > 3, name="high").sink("warm", Table("warm"))
_readings.key_by("sensor", name="by_sensor").process("sums", Adding(), out=Sum).sink("each", Table("each"))


few = Flow("few")
_readings = few.source("readings", TestingSource[Reading](), out=Reading)
_some = _readings.flat_map(_twice, out=Reading, name="some")
_some.filter(lambda r: r.value > 3, name="fewer").sink("warm", Table("warm"))
FEW = f"{__name__}:few"


def found(wish: CutWish, cut: str = "cloud") -> tuple[str, list[str], str]:
    (one,) = check(Question(FLOW, cut, {}, wishes=(wish,))).found
    return one.cut, [f"{move.step}>{move.to}" for move in one.moves], one.refused


def test_a_cut_has_one_text_and_says_which_steps_move() -> None:
    assert found(CutWish(spec="doubled")) == ("doubled", ["doubled>edge"], "")
    assert found(CutWish(spec="doubled,readings")) == found(CutWish(spec=" doubled"))
    assert found(CutWish(step="high", to="edge")) == ("high", ["doubled>edge", "high>edge"], "")
    assert found(CutWish("high", step="high", to="cloud")) == ("doubled", ["high>cloud"], "")
    assert found(CutWish("high", step="doubled", to="cloud"))[:2] == ("", ["doubled>cloud", "high>cloud"])
    assert found(CutWish("high", spec="cloud")) == ("", ["doubled>cloud", "high>cloud"], "")
    assert found(CutWish(spec="cloud"), "edge")[0] == "cloud"


def test_what_a_step_keeps_goes_with_it() -> None:
    _, moves, why = found(CutWish(spec="edge"))
    assert "sums>edge" in moves
    assert not why
    leaves = CutWish("edge", step="sums", to="cloud")
    assert found(leaves)[2] == ""
    (one,) = check(Question(FLOW, "cloud", {}, wishes=(leaves,))).found
    assert {move.step: move.keeps for move in one.moves} == {"sums": True}
    assert found(CutWish(spec="edge", is_new=True))[2] == ""  # a device that has nothing yet


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        (CutWish(spec="nothing"), "nothing"),
        (CutWish(spec="warm"), "warm"),
        (CutWish(step="nothing", to="edge"), "has no step 'nothing': it has readings, doubled"),
        (CutWish(step="readings", to="cloud"), "step 'readings' stays on the devices whatever the cut"),
    ],
)
def test_a_cut_that_is_illegal_is_refused_in_the_words_of_the_planner(wish: CutWish, says: str) -> None:
    assert says in found(wish)[2]


class Fleet(Host):
    """A world of devices that report the cut with which they run."""

    def open(self) -> None:
        super().open()
        trust = Trust(self.places.bundles, self.store)
        self.explanations = Explanations(self.store, self.config, trust)
        self.cuts = Cuts(
            self.store,
            self.load,
            trust,
            lambda: None,
            lambda name: msgspec.convert(
                read_report(self.places.spark_status)["flows"][name], HostReport, strict=False
            ),
            self.clock,
        )
        self.observer = Observer(self.store, self.config, self.reconciler, str, lambda: 0.0)

    async def load(self, question: Question) -> Answer:
        return check(question)

    def submit(self, *rules: CutRule, flow: str = FLOW) -> None:
        for name in ("d1", "d2", "away"):
            self.store.devices.add(name, {"kind": "truck" if name != "d2" else "van"})
        wishes = tuple(CutWish(spec=rule.cut, is_new=True) for rule in rules)
        outline = check(Question(flow, "cloud", {}, wishes=wishes)).outline
        assert outline is not None
        asked = Submission("heat", flow, "cloud", "all", cut_rules=rules)
        self.store.apps.submit(asked, outline)
        self.rounds()

    def rounds(self) -> None:
        for _ in range(5):
            self.reconciler.round()
            self.host()
            self.devices()

    def devices(self) -> None:
        for device in self.store.devices.every():
            if device.device == "away":
                continue
            own = self.store.desired.own_cuts(device.device)
            said = [
                Report(
                    device.device,
                    one.instance,
                    "running",
                    cut=reported_cut(own.get(one.instance) or one.cut),
                )
                for one, _ in self.store.desired.wanted_on(device.device)
            ]
            self.store.reports.heard(device.device, self.report(device.device), device.serial, said)

    def measure(self, device: str, measured: Measured | None, cut: str = "cloud") -> None:
        app = AppReport("heat.1", AppState.RUNNING, cut=cut, measured=measured)
        said = Reported(device, b"12345678", 1, 1, apps=(app,))
        serial = self.store.devices.get(device).serial
        self.store.reports.heard(device, encode_reported(said), serial, [])

    def report(self, device: str) -> bytes:
        return encode_reported(Reported(device, b"12345678", 1, 1))

    def lane(self, device: str) -> tuple[str, str]:
        store = self.store
        wanted, own = store.desired.wanted_on(device), store.desired.own_cuts(device)
        (app,) = desired_of(store.devices.get(device), wanted, [], "", own).apps
        return app.cut, app.own_cut

    def ask(self, verb: str, **body: Any) -> tuple[int, Any]:
        async def story() -> tuple[int, Any]:
            app = web.Application(middlewares=[sentences(ROOT, BODY_BYTES_MAX)])
            add_routes(app, ROOT, [self.cuts, self.explanations])
            async with TestClient(TestServer(app)) as client:
                path = f"{ROOT}/apps/heat/{verb}"
                answer = await (client.post(path, json=body) if body else client.get(path))
                return answer.status, await answer.json()

        return asyncio.run(story())

    def refusal(self, verb: str, **body: Any) -> str:
        status, said = self.ask(verb, **body)
        assert status in (409, 422), said
        return str(said["error"]["sentence"])

    def shown(self) -> list[tuple[str, int, int]]:
        item = self.observer.item(self.store.apps.newest("heat"))
        return [(one["cut"], one["devices"], one["applied"]) for one in item["cuts"]]


def moved(step: str, to: str, devices: int, *kept: int, at_most: bool = False, unsaid: int = 0) -> Any:
    """A step that moves with its state: `kept` is cells and bytes, nothing where nobody has said."""
    cells, size = kept or (None, None)
    move = {"step": step, "to": to, "keeps": True, "devices": devices, "cells": cells, "bytes": size}
    return {**move, "at_most": at_most, "unsaid": unsaid}


TOO_LARGE = (
    "the state to move is too large: sums has 1,000,001 keys of 9,000,000 bytes; 1,000,000 keys and "
    "1,073,741,824 bytes are the most that move at once: move fewer steps, or let them keep less (ttl, "
    "shorter windows)"
)


def test_it_is_told_beforehand_how_much_state_would_move(tmp_path: Path) -> None:
    world = Fleet(tmp_path)
    world.submit(CutRule("all", "sums"))
    host = HostReport("running", micro_batch_ms=350.0, kept={"sums": StateSize(700, 16_800)})
    world.cuts = Cuts(
        world.store,
        world.load,
        Trust(world.places.bundles, world.store),
        world.host,
        lambda name: host,
        world.clock,
    )
    kept = (StepKept("other", 1, 9), StepKept("sums", 12, 300))
    world.measure("d1", Measured(kept=kept), "sums")
    world.measure("d2", Measured(kept=(StepKept("sums", 30, 721),)), "sums")
    ask: dict[str, Any] = {"step": "sums", "to": "cloud", "dry_run": True}
    dry = world.ask("move", **ask)[1]
    assert dry["moves"][1:] == [moved("sums", "cloud", 3, 42, 1_021, unsaid=1)]
    assert (dry["micro_batches"], dry["pause_ms"]) == (1, 350)
    one = world.ask("move", **ask, devices="d1")[1]["moves"][-1]
    assert (one["cells"], one["bytes"], one["unsaid"]) == (12, 300, 0)
    world.measure("d1", Measured(kept=(StepKept("sums", 1_000_001, 9_000_000),)), "sums")
    refused = world.ask("move", **ask, devices="d1")[1]["refusals"]
    assert refused == [f"device d1: {TOO_LARGE}"]
    assert TOO_LARGE in world.refusal("move", step="sums", to="cloud", devices="d1")
    world.measure("d1", Measured(kept=(StepKept("sums", 9, (1 << 30) + 1),)), "sums")
    assert "sums has 9 keys of 1,073,741,825 bytes" in world.refusal("cut", cut="cloud", devices="d1")
    world.measure("d1", Measured(), "sums")  # it keeps nothing, and says so
    one = world.ask("move", **ask, devices="d1")[1]["moves"][-1]
    assert (one["cells"], one["bytes"]) == (0, 0)
    for device in ("d1", "d2", "away"):
        world.measure(device, None, "sums")
    assert world.ask("cut", cut="cloud")[0] == 202
    world.rounds()
    back = world.ask("move", step="sums", to="edge", dry_run=True)[1]
    assert moved("sums", "edge", 3, 700, 16_800) in back["moves"]
    assert (back["micro_batches"], back["pause_ms"]) == (2, 700)
    assert back["behind_entries"] == 0
    host = replace(host, lag=120, entries_per_s=60.0)
    behind = world.ask("move", step="sums", to="edge", dry_run=True)[1]
    assert (behind["behind_entries"], behind["pause_ms"]) == (120, 2_700)
    host = replace(host, entries_per_s=None)
    behind = world.ask("move", step="sums", to="edge", dry_run=True)[1]
    assert (behind["behind_entries"], behind["pause_ms"]) == (120, 700)
    part = world.ask("move", step="sums", to="edge", devices="d1", dry_run=True)[1]
    assert moved("sums", "edge", 1, 700, 16_800, at_most=True) in part["moves"]
    world.store.close()


def test_of_an_update_it_is_told_how_much_its_steps_keep_on_each_tier(tmp_path: Path) -> None:
    world = Fleet(tmp_path)
    world.submit(CutRule("d1", "sums"))
    world.measure("d1", Measured(kept=(StepKept("sums", 12, 300),)), "sums")
    host = HostReport("running", kept={"sums": StateSize(700, 16_800), "gone": StateSize(3, 9)})
    steps = (
        StepChange("sums", "replaced", state="kept"),
        StepChange("gone", "removed", state="dropped"),
        StepChange("stays", "same", state="kept"),
        StepChange("high", "attached"),
    )
    tiers: dict[str, Tier] = {"sums": "cloud", "gone": "cloud", "stays": "cloud", "high": "edge"}
    found = StateSizes(world.store, "heat.1", host).changed(Change(steps), tiers, ["d1", "d2"])
    assert [(one.step, one.tier, one.becomes, one.cells, one.bytes, one.unsaid) for one in found] == [
        ("sums", "cloud", "kept", 700, 16_800, 0),
        ("sums", "edge", "kept", 12, 300, 1),
        ("gone", "cloud", "dropped", 3, 9, 0),
    ]
    found = StateSizes(world.store, "heat.1", HostReport()).changed(Change(steps), tiers, ["d2"])
    assert [(one.step, one.cells) for one in found] == [("sums", None), ("gone", None)]
    world.store.close()


def test_devices_are_told_once_the_data_centre_takes_what_they_will_send(tmp_path: Path) -> None:
    world = Fleet(tmp_path)
    world.submit()
    assert world.shown() == [("cloud", 3, 2)]
    status, dry = world.ask("move", step="high", to="edge", devices="kind=truck", dry_run=True)
    assert (status, dry["refusals"], dry["number"], dry["revises"]) == (200, [], 2, True)
    assert world.store.revisions.next_of(world.store.apps.newest("heat")) is None
    status, said = world.ask("move", step="high", to="edge", devices="kind=truck")
    assert status == 202
    assert said["devices"] == [
        {"device": "away", "before": "cloud", "cut": "high"},
        {"device": "d1", "before": "cloud", "cut": "high"},
    ]
    assert [(one["step"], one["to"], one["keeps"], one["devices"]) for one in said["moves"]] == [
        (step, "edge", False, 2) for step in ("doubled", "high")
    ]
    assert (said["micro_batches"], said["pause_ms"]) == (0, 0)
    world.reconciler.round()
    assert world.lane("d1") == ("cloud", "")
    info = world.observer.info(world.store.apps.newest("heat"))
    assert (info["cut_change"], info["change"]["number"]) == (
        {"number": 2, "count": 2, "devices": ["away", "d1"]},
        2,
    )
    assert "other cuts are under way" in world.refusal("cut", cut="doubled")
    before = set(changed(RosterReader(world.places.log).after())["heat.1"].channels)
    world.rounds()
    after = set(changed(RosterReader(world.places.log).after())["heat.1"].channels)
    assert before < after
    assert [world.lane(name) for name in ("away", "d1", "d2")] == [
        *[("cloud", "high")] * 2,
        ("cloud", ""),
    ]
    assert world.shown() == [("high", 2, 1), ("cloud", 1, 1)]
    wanted = read_report(world.places.spark_wanted)["flows"]["heat.1"]
    assert (wanted["cut"], wanted["cuts"], "cuts" in wanted["former"][0]) == ("cloud", ["high"], False)
    # What the plan has already needs no revision, and a cut that is out of use stays in it.
    assert world.ask("move", step="high", to="edge", devices="d2")[0] == 202
    assert world.ask("cut", cut="cloud")[0] == 202
    assert world.lane("d1") == ("cloud", "")
    world.rounds()
    assert world.shown() == [("cloud", 3, 2)]
    assert world.store.apps.newest("heat").revision == 2
    world.store.close()


def test_what_a_device_keeps_leaves_it_with_its_step(tmp_path: Path) -> None:
    world = Fleet(tmp_path)
    world.submit(CutRule("d1", "edge"))
    assert world.shown() == [("cloud", 2, 1), ("edge", 1, 1)]
    status, said = world.ask("move", step="sums", to="cloud", devices="d1")
    assert (status, said.get("refusals", [])) == (202, [])
    assert said["moves"] == [moved("sums", "cloud", 1, unsaid=1)]
    world.store.close()


def test_what_the_data_centre_keeps_comes_to_a_device_with_its_step(tmp_path: Path) -> None:
    world = Fleet(tmp_path)
    world.submit()
    status, said = world.ask("move", step="sums", to="edge", devices="d1")
    assert (status, said["revises"]) == (202, True)
    assert moved("sums", "edge", 1, at_most=True) in said["moves"]
    world.rounds()
    app = world.store.apps.newest("heat")
    assert app.outline.sends
    assert ("sums", 1, 1) in [(cut, *counts) for cut, *counts in world.shown()]
    cut = reported_cut(world.store.desired.own_cuts("d1")[app.instance])
    reason = make_reason(AppCode.AWAITS_STATE)
    why = app_sentence(reason)
    awaits = Report("d1", app.instance, "running", why, cut=cut, reasons=(reason,))
    world.store.reports.heard("d1", world.report("d1"), 9, [awaits])
    assert ("sums", 1, 0) in [(cut, *counts) for cut, *counts in world.shown()]
    info = world.observer.info(app)
    assert "the state of steps is on its way to 1 device" in info["waits_for"]
    (d1,) = [one for one in info["applied"] if one["device"] == "d1"]
    assert (d1["cut_applied"], d1["why"]) == (False, why)
    assert d1["reasons"] == [{"code": "awaits_state", "details": {}}]
    for code in (AppCode.AWAITS_STATE, AppCode.STATE_STAYS):
        reason = make_reason(code, unmoved="it did not come within 20 s")
        why = app_sentence(reason)
        late = Report("d1", app.instance, "running", why, cut=cut, reasons=(reason,))
        world.store.reports.heard("d1", world.report("d1"), 10, [late])
        assert ("sums", 1, 0) in [(cut, *counts) for cut, *counts in world.shown()]
        info = world.observer.info(app)
        assert f"device d1 {why}" in info["waits_for"]
        assert not any("on its way" in one for one in info["waits_for"])
    world.store.close()


def test_auto_gives_each_device_the_cut_that_fits_what_was_measured_of_it(tmp_path: Path) -> None:
    world = Fleet(tmp_path)
    world.submit(flow=FEW)
    world.measure("d1", Measured(100, 0.1, 0.9, 1 << 30))
    world.measure("d2", Measured(900, 0.49, 0.5, 1 << 30))
    world.measure("away", Measured(900, 0.49, 0.5, 1 << 30), "edge")  # of another cut than it is to have
    status, dry = world.ask("cut", cut="auto", dry_run=True)
    assert (status, dry["refusals"]) == (200, [])
    said = [(one["device"], one["cut"], one["why"]) for one in dry["devices"]]
    assert [one[:2] for one in said] == [("away", "fewer"), ("d1", "fewer"), ("d2", "cloud")]
    assert said[0][2] == "nothing was measured yet: by estimate"
    assert said[1][2].startswith("at 100 records/s it takes 0.1 of a core, with this cut 0.12 of 0.5")
    assert said[2][2].startswith(
        "at 900 records/s it takes 0.49 of a core, with this cut 0.49 of 0.5; with fewer 0.6"
    )
    dry = world.ask("cut", cut="auto", dry_run=True, capacity=0.2)[1]
    assert [(one["device"], one["cut"]) for one in dry["devices"]] == [
        *(("away", "fewer"), ("d1", "fewer"), ("d2", "cloud"))
    ]
    assert dry["devices"][-1]["why"].endswith("may take 0.2: as little as it may do")
    assert world.ask("cut", cut="auto", capacity=2)[0] == 400
    status, said_now = world.ask("cut", cut="auto", devices="d1")
    assert (status, said_now["count"]) == (202, 1)
    world.rounds()
    assert [world.lane(name)[1] for name in ("away", "d1", "d2")] == ["", "fewer", ""]
    assert world.store.apps.newest("heat").cut_rules == ()
    world.store.close()


async def _found_nothing(*_: object) -> Ended:
    return Ended(0, b'{"answer": {}}', b"")


def test_devices_that_come_later_have_the_cut_of_the_last_rule_that_means_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Fleet(tmp_path)
    world.submit(CutRule("kind=truck", "high"), CutRule("d1", "doubled"))
    assert world.shown() == [("high", 1, 0), ("doubled", 1, 1), ("cloud", 1, 1)]
    assert world.ask("cut", cut="doubled", devices="kind=van")[0] == 202
    for name, kind in (("d4", "van"), ("d5", "truck"), ("d6", "bus")):
        world.store.devices.add(name, {"kind": kind})
    assert [world.lane(name)[1] for name in ("d4", "d5", "d6")] == ["doubled", "high", ""]
    monkeypatch.setattr(explaining, "run_short", _found_nothing)
    assert world.ask("records")[1]["cuts"] == ["high", "doubled"]
    world.store.close()


def test_what_stands_in_the_way_is_said_and_nothing_changes(tmp_path: Path) -> None:
    world = Fleet(tmp_path)
    world.submit()
    assert "no device of app heat matches kind=ship" in world.refusal("cut", cut="edge", devices="kind=ship")
    assert "no device of app heat matches d9" in world.refusal("move", step="high", to="edge", devices="d9")
    assert "has no step 'hight'" in world.refusal("move", step="hight", to="edge")
    assert "have this cut already" in world.refusal("cut", cut="cloud")
    assert world.ask("cut", cut="high", devices="d2")[0] == 202
    world.store.apps.give_up("heat", "heat.1")  # as gear rollback does
    assert world.store.cut_changes.waiting() == set()
    world.store.apps.enter("heat.1", State.FAILED, "it raised")
    assert "gear resume it first" in world.refusal("cut", cut="high", devices="d2")
    world.store.apps.enter("heat.1", State.ENDED, "")
    assert (
        world.refusal("cut", cut="high") == "app heat is ended: only an app that is to run gets another cut"
    )
    assert world.store.desired.cuts("heat.1") == dict.fromkeys(("away", "d1", "d2"), "")
    world.store.close()


def test_devices_with_cuts_of_their_own_go_over_where_their_steps_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = check(Question(FLOW, "cloud", {}, wishes=(CutWish(spec="high", is_new=True),))).outline
    assert first is not None
    assert (first.base, first.cuts) == ("cloud", ("high",))

    graph = flow.graph()

    def changed_by(**changes: Any) -> Any:
        steps = tuple(replace(step, **changes) if step.id == "high" else step for step in graph.steps)
        other = replace(graph, steps=steps)
        monkeypatch.setattr(Flow, "graph", lambda self: other)
        asked = Question(FLOW, "cloud", {}, running=first.document, base=first.base, cuts=first.cuts)
        return check(asked).change

    assert (changed_by().refusals, changed_by().crosses) == ((), False)
    changed = changed_by(operator=graph["doubled"].operator)
    assert (changed.refusals, changed.crosses) == ((), True)
    above = graph["high"].inputs
    rest = [one for one in graph.steps if one.id != "high"]
    steps = tuple(replace(one, inputs=above) if Input("high") in one.inputs else one for one in rest)
    monkeypatch.setattr(Flow, "graph", lambda self: replace(graph, steps=steps))
    asked = Question(FLOW, "cloud", {}, running=first.document, base=first.base, cuts=first.cuts)
    with pytest.raises(PlacementError, match="devices have the cut high, which would be doubled"):
        check(asked)
