"""Canaries: some devices run an update first, and the others follow or it goes back, with a reason."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import ServerDisconnectedError, web
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace

from geartrain import Flow, Table
from geartrain.control.app_reasons import AppCode, app_sentence
from geartrain.control.codec import encode_reported
from geartrain.control.states import App, AppReport, AppState, Reported
from geartrain.errors.reason import make_reason
from geartrain.revision.code import Code
from geartrain.testing import TestingSource
from geartrain_cloud.changes.judging import Others, Standing, Verdict, judged, others_of
from geartrain_cloud.control import checking
from geartrain_cloud.control.canary_rounds import SETTLE_S, CanaryRounds, restarts
from geartrain_cloud.control.checking import Answer, Question, check
from geartrain_cloud.control.crossed import laggards
from geartrain_cloud.control.hosting import HostReport
from geartrain_cloud.control.lane_store import state_of
from geartrain_cloud.control.observing import Observer
from geartrain_cloud.control.trust import Trust
from geartrain_cloud.control.updating import Updates
from geartrain_cloud.control_store.errors import ConflictError
from geartrain_cloud.control_store.events import Event
from geartrain_cloud.control_store.model import CanaryStage, CutChange, Mode, Report, State, Submission
from geartrain_cloud.log.brought import ENTRIES_BEFORE, Brought, brought_by_device
from geartrain_cloud.log.opening import take_ledger
from geartrain_cloud.platform.places import read_report, write_report
from geartrain_cloud.rest.answering import sentences
from geartrain_cloud.rest.audit import AuditLog
from geartrain_cloud.rest.openapi import ROOT
from geartrain_cloud.rest.requests import BODY_BYTES_MAX
from geartrain_cloud.rest.routes import add_routes
from tests.control.test_adaptive_rounds import HandClock
from tests.control.test_reconciler import ROUNDS_MAX, KilledError, dying
from tests.control.test_revisions import Host
from tests.drawing import drawn
from tests.spark.flows import Adding, Reading, Sum

FLOW = f"{__name__}:heat"
DEVICES = ("d1", "d2", "d3")
MINUTE_US = 60_000_000
DEATHS = 6
"""Of control, that a commit draws."""


def _double(reading: Reading) -> Reading:
    return Reading(reading.sensor, 2 * reading.value)


def _flow(kind: str) -> Flow:
    """plain: a step on devices; calm: one more there; cloud: one more in the data centre; sums: one on
    devices that keeps something.
    """
    flow = Flow("heat")
    read = flow.source("readings", TestingSource[Reading](), out=Reading, partitioned_by="sensor")
    calm = read.filter(lambda r: r.value < 100, name="calm") if kind == "calm" else read
    doubled = calm.map(_double, name="doubled")
    if kind == "sums":
        read.key_by("sensor", name="by").process("sums", Adding(), out=Sum).sink("each", Table("each"))
    doubled.sink("all", Table("all"))
    if kind == "cloud":
        doubled.filter(lambda r: r.value > 3, name="high").sink("warm", Table("warm"))
    return flow


heat = _flow("plain")


class World(Host):
    """A platform in one process, whose devices do what they are told; faults: what some say instead."""

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, dies_at: int | None = None, before: bool = True
    ) -> None:
        self.patch, self.faults, self.away = patch, dict[str, AppReport](), set[str]()
        self.contents = dict[tuple[str, int], tuple[App, ...]]()
        self.numbers = dict[str, int]()
        self.audit, self.kind, self.code = AuditLog(folder / "audit.sqlite", lambda: 1), "plain", "a"
        super().__init__(folder, dies_at, before)

    def open(self) -> None:
        super().open()
        self.clocked = HandClock(lambda: self.now_us)
        self.rounds_of = CanaryRounds(self.store, self.places, self.audit, self.clocked, lambda: None)
        self.clocked.now_s += SETTLE_S
        trust = Trust(self.places.bundles, self.store)
        self.updates = Updates(self.store, self.load, trust, lambda: None, self.host_says, self.clock)
        self.observer = Observer(self.store, self.config, self.reconciler, str, lambda: 0.0)

    def host_says(self, instance: str) -> HostReport:
        return msgspec.convert(read_report(self.places.spark_status)["flows"][instance], HostReport)

    async def load(self, question: Question) -> Answer:
        """As control's process would: code is `code`, and the flow is of `kind`."""
        made, code = _flow(self.kind), Code("heat", {"heat.py": self.code * 64})
        with self.patch.context() as patch:
            patch.setattr(checking, "load_flow", lambda spec: made)
            patch.setattr(checking, "code_of", lambda spec: code)
            found = check(question)
        assert found.outline is not None
        return replace(found, outline=replace(found.outline, bundled=True))

    def submit(self, cut: str = "doubled") -> None:
        for name in DEVICES:
            self.store.devices.add(name, {"kind": "first" if name == "d1" else "other"})
        found = asyncio.run(self.load(Question(FLOW, cut, {})))
        assert found.outline is not None
        self.store.apps.submit(Submission("heat", FLOW, cut, "all"), found.outline)
        self.settle()

    def settle(self) -> None:
        for _ in range(6):
            self.reconciler.round()
            self.host()
            self.devices()

    def devices(self) -> None:
        for device in self.store.devices.every():
            name = device.device
            if name in self.away:
                continue
            told, place = state_of(self.store, name).apps, (name, device.serial)
            assert self.contents.setdefault(place, told) == told, "one serial has one content"
            for app in told:
                assert app.number >= self.numbers.get(name, 0), "a device never goes back to a number"
                self.numbers[name] = app.number
            said = [self.faults.get(name) or _runs(app) for app in told]
            whole = Reported(
                name,
                b"12345678",
                1,
                1,
                apps=tuple(said),
            )
            reports = [
                Report(name, one.instance, one.state.word, one.why, reasons=one.reasons) for one in said
            ]
            self.store.reports.heard(name, encode_reported(whole), device.serial, reports)

    def told(self) -> dict[str, tuple[int, str]]:
        """By device the number of the revision that it is told, and the code, as a letter."""
        apps = {name: state_of(self.store, name).apps[0] for name in DEVICES}
        codes = {Code("heat", {"heat.py": one * 64}).hash: one for one in "abc"}
        return {name: (app.number, codes[app.code]) for name, app in apps.items()}

    def ask(self, verb: str, **body: Any) -> tuple[int, Any]:
        async def story() -> tuple[int, Any]:
            app = web.Application(middlewares=[sentences(ROOT, BODY_BYTES_MAX)])
            add_routes(app, ROOT, [self.updates])
            async with TestClient(TestServer(app)) as client:
                answer = await client.post(f"{ROOT}/apps/heat/{verb}", json=body)
                return answer.status, await answer.json()

        return asyncio.run(story())

    def update(self, kind: str, code: str, **body: Any) -> tuple[int, Any]:
        self.kind, self.code = kind, code
        files = Code("heat", {"heat.py": code * 64})
        return self.ask("update", flow=FLOW, code=files.hash, **body)

    def refusal(self, kind: str, **body: Any) -> str:
        status, said = self.update(kind, "b", **body)
        assert status == 409, said
        return str(said["error"]["sentence"])

    def look(self, after_us: int = 0) -> Any:
        """One round over canaries, and what is then known of that of the app."""
        self.now_us += after_us
        self.devices()
        asyncio.run(self.rounds_of.round())
        self.settle()
        return self.observer.info(self.store.apps.newest("heat"))["canary"]

    @property
    def stage(self) -> CanaryStage:
        found = self.store.revisions.canaries.of("heat.1")
        assert found is not None
        return found.stage

    def close(self) -> None:
        self.audit.close()
        self.store.close()


def _runs(app: App) -> AppReport:
    return AppReport(app.instance, AppState.RUNNING, revision=app.revision)


def _says(state: AppState, why: str) -> AppReport:
    return AppReport("heat.1", state, why)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    found = World(tmp_path, monkeypatch)
    found.submit()
    yield found
    found.close()


def in_cloud(world: World) -> tuple[Any, Any]:
    """What the Spark host runs: the code's folder and the cut."""
    wanted = read_report(world.places.spark_wanted)["flows"]["heat.1"]
    return wanted["bundle"], wanted["cut"]


@pytest.mark.parametrize("kind", ["calm", "plain"])
def test_a_canary_runs_alone_and_then_the_others_follow(world: World, kind: str) -> None:
    cloud, before = in_cloud(world), {name: state_of(world.store, name).apps for name in DEVICES}
    status, said = world.update(kind, "b", canary="kind=first")
    assert (status, said["number"], said["canary"]) == (202, 2, ["d1"]), said
    assert world.told() == dict.fromkeys(DEVICES, (1, "a")), "the log has not brought the number"
    world.settle()
    assert world.told() == {"d1": (2, "b"), "d2": (1, "a"), "d3": (1, "a")}
    assert {name: state_of(world.store, name).apps for name in ("d2", "d3")} == {
        name: before[name] for name in ("d2", "d3")
    }
    assert in_cloud(world) == cloud
    shown = [world.observer.device_info(one)["apps"][0] for one in world.store.devices.every()]
    assert [(one["number"], one["canary"]) for one in shown] == [(2, True), (1, False), (1, False)]
    assert laggards(world.store, world.store.apps.newest("heat")) == []
    seen = world.look()
    told = (seen["stage"], seen["number"], seen["devices"], seen["crossed"], seen["is_open"])
    assert told == ("runs", 2, ["d1"], 1, True)
    assert seen["until_us"] - seen["since_us"] == 10 * MINUTE_US
    assert world.look(9 * MINUTE_US)["stage"] == "runs"
    seen = world.look(2 * MINUTE_US)
    assert (seen["stage"], seen["why"]) == ("promoted", "1 of 1 devices have run it well for 10 min")
    assert not seen["is_open"]
    assert world.told() == dict.fromkeys(DEVICES, (3, "b"))
    assert in_cloud(world) != cloud
    assert laggards(world.store, world.store.apps.newest("heat")) == []
    events = [e for e in world.store.events.after(0, 1_000)[0] if e.kind == "canary"]
    assert [(e.app, e.said["stage"]) for e in events] == [
        ("heat", "waits"),
        ("heat", "runs"),
        ("heat", "promoted"),
    ]
    (entry,) = world.audit.page(10, 1 << 60, 0)[0]
    assert (entry["token"], entry["app"], entry["asked"]["why"]) == ("canary", "heat", seen["why"])


def test_a_canary_that_fails_goes_back_and_the_others_never_hear_of_it(world: World) -> None:
    cloud, before = in_cloud(world), [state_of(world.store, name).apps for name in ("d2", "d3")]
    world.update("calm", "b", canary="d1")
    world.settle()
    world.faults["d1"] = _says(AppState.FAILED, "calm raised ValueError")
    seen = world.look(MINUTE_US)
    assert (seen["stage"], seen["why"]) == ("went back", "device d1 has failed: calm raised ValueError")
    assert world.told() == {"d1": (3, "a"), "d2": (1, "a"), "d3": (1, "a")}
    assert [state_of(world.store, name).apps for name in ("d2", "d3")] == before
    assert in_cloud(world) == cloud
    assert laggards(world.store, world.store.apps.newest("heat")) == ["d1"]
    world.faults.clear()
    world.settle()
    assert laggards(world.store, world.store.apps.newest("heat")) == []
    assert not seen["is_open"]
    world.update("calm", "c", canary="d2")  # the next one
    world.settle()
    assert world.told() == {"d1": (3, "a"), "d2": (4, "c"), "d3": (3, "a")}


def test_code_that_goes_back_by_itself_on_the_device_ends_the_canary(world: World) -> None:
    world.update("plain", "b", canary="d1")
    world.settle()
    why = "bundle bbbb went back to aaaa: its agent ended with 1"
    reason = make_reason(AppCode.WENT_BACK, code="bbbb", former="aaaa", why="its agent ended with 1")
    assert app_sentence(reason) == why
    world.faults["d1"] = replace(_says(AppState.RUNNING, why), revision="a" * 64, reasons=(reason,))
    seen = world.look()
    assert (seen["stage"], seen["why"]) == ("went back", f"device d1 does not run it: {why}")


def test_a_canary_that_sends_dead_letters_goes_back_by_the_log(world: World) -> None:
    take_ledger(world.places.log / "ledger.sqlite", 1, (0,))[0].close()
    number = 0

    def logged(device: str, letters: int) -> None:
        nonlocal number
        number += 1
        entry = ("heat.1", 0, number, "rows", "_dead_letters", device)
        row = (*entry, b"", 0, "", 0, letters, "", "", "{}", b"")
        with closing(sqlite3.connect(world.places.log / "ledger.sqlite")) as ledger, ledger:
            ledger.execute(f"INSERT INTO entries VALUES ({', '.join('?' * len(row))})", row)

    logged("d1", 1_000)  # before the canary
    world.update("calm", "b", canary="d1")
    world.settle()
    write_report(world.places.ingest_status, {"flows": {"heat.1": {"positions": {"0": 1}}}})
    assert world.look()["stage"] == "runs"
    for device, letters in (("d1", 12), ("d2", 1), ("d3", 3)):
        logged(device, letters)
    assert world.look()["stage"] == "runs", "others send some, too"
    world.store.close()
    world.open()  # the place is kept
    logged("d1", 3)
    seen = world.look()
    assert (seen["stage"], seen["why"]) == (
        "went back",
        "device d1 has sent 15 dead letters, and other devices 2.0 each",
    )


def test_what_a_canary_sends_before_it_is_first_looked_at_counts(world: World) -> None:
    path = world.places.log / "ledger.sqlite"
    take_ledger(path, 1, (0,))[0].close()
    world.update("calm", "b", canary="d1")
    world.settle()
    rows = [
        ("heat.1", 0, 1, "rows", "_dead_letters", "d1", b"", 0, "", 0, 1_000, "", "", "{}", b""),
        ("heat.1", 0, 2, "revision", "", "", b"", 2, "", 0, 0, "", "", "{}", b""),
        ("heat.1", 0, 3, "rows", "_dead_letters", "d1", b"", 1, "", 0, 30, "", "", "{}", b""),
    ]
    with closing(sqlite3.connect(path)) as ledger, ledger:
        ledger.executemany(f"INSERT INTO entries VALUES ({', '.join('?' * 15)})", rows)
    write_report(world.places.ingest_status, {"flows": {"heat.1": {"positions": {"0": 3}}}})
    seen = [world.look() for _ in range(2)][-1]
    assert (seen["stage"], seen["why"]) == (
        "went back",
        "device d1 has sent 30 dead letters, and other devices 0.0 each",
    )


def test_a_canary_that_falls_silent_goes_back_by_the_log(world: World) -> None:
    path = world.places.log / "ledger.sqlite"
    take_ledger(path, 1, (0,))[0].close()

    def logged(number: int, device: str, channel: str, count: int, kind: str = "rows") -> None:
        row = ("heat.1", 0, number, kind, channel, device, b"", 0, "", 0, count, "", "", "{}", b"")
        with closing(sqlite3.connect(path)) as ledger, ledger:
            ledger.execute(f"INSERT INTO entries VALUES ({', '.join('?' * len(row))})", row)

    place = ENTRIES_BEFORE + 9
    logged(9, "d2", "doubled", 5)  # too long ago to be looked at
    logged(place - 1, "d1", "doubled", 5)
    logged(place, "d1", "_dead_letters", 5)
    world.update("calm", "b", canary="d1")
    world.settle()
    write_report(world.places.ingest_status, {"flows": {"heat.1": {"positions": {"0": place}}}})
    assert world.look()["stage"] == "runs"
    sent = [("d2", "doubled", 200), ("d3", "doubled", 100), ("d3", "_late", 9), ("d1", "_late", 8)]
    for number, one in enumerate(sent, place + 1):
        logged(number, *one)
    logged(place + 5, "d1", "doubled", 5, "crossing")
    assert brought_by_device(world.places.log, "heat.1", {"0": place}) == {
        "d1": Brought(late=8, before=5),
        "d2": Brought(200),
        "d3": Brought(100, 9),
    }
    assert world.look(9 * MINUTE_US)["stage"] == "runs", "its time is not over"
    seen = world.look(2 * MINUTE_US)
    assert (seen["stage"], seen["why"]) == (
        "went back",
        "device d1 sends no records any more, and other devices have sent 150.0 each",
    )


def test_starts_anew_are_counted_in_events() -> None:
    def said(*states: str) -> list[Event]:
        whole = [dict(zip(("state", "why"), one.split(":"), strict=True)) for one in states]
        return [Event(n, n, "applied", "heat", "d1", one) for n, one in enumerate(whole)][::-1]

    assert restarts(said("running:", "starting:", "running:")) == 0, "it was asked to"
    assert restarts(said("running:", "starting:it hangs", "running:", "starting:it hangs", "running:")) == 2
    assert restarts(said("starting:it is fetched", "starting:it is away", "running:")) == 0


def test_a_person_ends_a_canary_either_way_and_the_last_word_holds(world: World) -> None:
    world.update("calm", "b", canary="d1")
    status, said = world.ask("promote")
    assert (status, "no device runs the canary of app heat yet" in said["error"]["sentence"]) == (409, True)
    world.settle()
    assert world.ask("promote", dry_run=True)[0] == 200
    assert world.look()["stage"] == "runs"
    status, said = world.ask("promote")
    assert (status, said["number"], said["code"]) == (202, 3, Code("heat", {"heat.py": "b" * 64}).hash)
    assert world.ask("promote")[0] == 202  # another operator, with another key
    status, said = world.ask("rollback")  # a third one, before the log was told
    assert (status, said["number"]) == (202, 3)
    world.settle()
    assert world.told() == {"d1": (3, "a"), "d2": (1, "a"), "d3": (1, "a")}
    assert world.look()["why"] == "a person has said so"
    status, said = world.ask("promote")
    assert (status, "has no canary" in said["error"]["sentence"]) == (409, True)


def test_a_canary_of_which_no_device_was_told_is_given_up_at_once(world: World) -> None:
    world.update("calm", "b", canary="d1")
    status, said = world.ask("rollback")
    assert (status, said["number"]) == (202, 1)
    world.settle()
    assert world.told() == dict.fromkeys(DEVICES, (1, "a"))
    world.update("calm", "b", canary="d1")
    world.reconciler.round()
    world.host()
    world.reconciler.round()  # by now the log is told
    assert world.store.apps.newest("heat").revision == 2
    assert world.ask("rollback")[0] == 202
    world.settle()
    assert {code for _, code in world.told().values()} == {"a"}
    assert world.look()["is_open"] is False
    assert world.update("calm", "b")[0] == 202
    world.settle()
    assert {code for _, code in world.told().values()} == {"b"}


def test_what_cannot_be_tried_on_some_devices_is_refused(world: World) -> None:
    says = world.refusal("cloud", canary="d1")
    assert "the data centre's part would change for all devices (step high is new" in says
    assert "no device of app heat matches kind=none" in world.refusal("calm", canary="kind=none")
    assert "none would be left to follow" in world.refusal("calm", canary="all")
    status, said = world.update("cloud", "b", canary="d1", dry_run=True)
    assert (status, len(said["refusals"])) == (200, 1)
    status, said = world.update("calm", "b", canary="d1", for_s=-1)
    assert status in (400, 422), said


def test_a_canary_does_not_lose_what_steps_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch)
    world.kind = "sums"
    world.submit("sums,doubled")
    says = world.refusal("sums", canary="d1", drop_state=["sums"])
    assert "what steps keep would be lost on the way back (sums)" in says
    assert world.update("sums", "b", canary="d1")[0] == 202
    world.close()


def test_nothing_else_begins_while_a_canary_is_open(world: World) -> None:
    world.update("calm", "b", canary="d1")
    world.settle()
    found, apps = world.store.apps.newest("heat"), world.store.apps
    works: list[Callable[[], Any]] = [
        lambda: apps.scale(found, 4),
        lambda: apps.replay("heat"),
        lambda: apps.recut(found, CutChange("heat.1", 2, {"d2": "readings"}), None),
        lambda: apps.update(found, found.outline),
    ]
    for work in works:
        with pytest.raises(ConflictError, match=r"app heat has a canary: wait .*--promote or gear rollback"):
            work()
    assert "app heat has a canary" in world.refusal("plain", canary="d2")
    assert "app heat has a canary" in world.refusal("plain")
    codes = {Code("heat", {"heat.py": one * 64}).hash for one in "ab"}
    assert apps.codes(living=True) == codes
    apps.kill("heat", Mode.NOW, purge=True)
    assert world.stage is CanaryStage.BACK
    apps.enter("heat.1", State.ENDED)
    apps.forget("heat.1")
    assert apps.codes(living=False) == set()


def test_an_app_that_has_ended_amid_a_canary_is_replayed(world: World) -> None:
    world.update("calm", "b", canary="d1")
    world.settle()
    told = world.told()
    world.store.apps.enter("heat.1", State.ENDED)
    assert world.told() == told
    found = world.observer.info(world.store.apps.newest("heat"))["canary"]
    assert (found["stage"], found["is_open"]) == ("went back", False)
    assert world.store.apps.replay("heat").run == 2


def test_devices_out_of_contact_are_waited_for_after_a_start_of_control(world: World) -> None:
    world.update("calm", "b", canary="d1", for_s=60)
    world.settle()
    world.away.add("d1")
    world.store.close()
    world.open()
    world.clocked.now_s -= SETTLE_S
    world.now_us += 10 * MINUTE_US
    assert world.look()["stage"] == "runs", "control has just begun"
    world.clocked.now_s += SETTLE_S
    seen = world.look()
    assert (seen["stage"], seen["why"]) == (
        "went back",
        "none of its 1 devices was in contact after 1 min",
    )


def story(world: World, patch: pytest.MonkeyPatch, *, fails: bool) -> tuple[Any, ...]:
    """Submit an app, have it begin a canary, and go on until that is decided and all have heard of it."""

    def control(work: Callable[[], Any]) -> None:
        with dying(world, patch):
            world.as_control(work)

    def rounds(until: Callable[[], bool]) -> None:
        for _ in range(ROUNDS_MAX):
            control(world.reconciler.round)
            control(lambda: asyncio.run(world.rounds_of.round()))
            world.host()
            world.devices()
            if until():
                return
        raise AssertionError(world.told())

    def ask() -> None:
        if world.store.revisions.canaries.of("heat.1") is None:
            try:
                assert world.update("calm", "b", canary="d1")[0] == 202
            except ServerDisconnectedError:
                raise KilledError from None

    world.submit()
    for _ in range(2):
        control(ask)
    rounds(lambda: world.told()["d1"] == (2, "b") and world.stage is CanaryStage.RUNS)
    if fails:
        world.faults["d1"] = _says(AppState.FAILED, "it raised")
    world.now_us += 11 * MINUTE_US
    world.devices()
    rounds(lambda: world.told()["d1"][0] == 3)
    return world.told(), world.stage, len(world.store.revisions.former(world.store.apps.newest("heat")))


@pytest.mark.parametrize("count", [DEATHS, pytest.param(0, marks=pytest.mark.long)], ids=["drawn", "each"])
@pytest.mark.parametrize("fails", [False, True])
def test_it_is_decided_once_wherever_control_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool, count: int
) -> None:
    plain = World(tmp_path / "plain", monkeypatch)
    wanted = story(plain, monkeypatch, fails=fails)
    assert wanted[1] is (CanaryStage.BACK if fails else CanaryStage.PROMOTED)
    deaths = [(before, at) for before in (True, False) for at in range(1, plain.steps + 1)]
    for before, at in drawn(f"deaths of a canary {fails}", deaths, count) if count else deaths:
        world = World(tmp_path / f"{before}-{at}", monkeypatch, at, before)
        assert story(world, monkeypatch, fails=fails) == wanted, (before, at)
        world.close()
    plain.close()


@pytest.mark.parametrize("seed", range(3))
def test_whatever_people_ask_for_each_device_runs_what_was_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance, world = random.Random(seed), World(tmp_path, monkeypatch)
    world.submit()
    runs, tried = "a", dict[str, str]()
    for _ in range(14):
        what = chance.choice(["canary", "canary", "update", "promote", "rollback", "time", "fault", "start"])
        code = chance.choice("abc")
        if what == "canary":
            device = chance.choice(DEVICES)
            status, said = world.update(chance.choice(["calm", "plain"]), code, canary=device)
            assert (status == 202) == (not tried and code != runs), said
            tried = {device: code} if status == 202 else tried
        elif what == "update":
            status, said = world.update("plain", code)
            assert status == 202 or tried or code == runs, said
            runs = code if status == 202 else runs
        elif what == "rollback" and tried:
            assert world.ask("rollback")[0] == 202
            tried = {}
        elif what == "start":
            world.store.close()
            world.open()
        elif tried and what in ("promote", "time"):
            if what == "promote":
                assert world.ask("promote")[0] == 202
            world.look(11 * MINUTE_US)
            runs, tried = next(iter(tried.values())), {}
        elif tried and what == "fault":
            world.faults = {device: _says(AppState.FAILED, "it raised") for device in tried}
            world.look()
            world.faults, tried = {}, {}
        world.settle()
        assert {name: code for name, (_, code) in world.told().items()} == {
            name: tried.get(name, runs) for name in DEVICES
        }, what
        assert laggards(world.store, world.store.apps.newest("heat")) == []
    world.close()


def test_the_devices_of_a_canary_are_judged_by_plain_figures() -> None:
    good = Standing("d1", "running", has_crossed=True)

    def verdict(*found: Standing, mean: float = 0.0, is_over: bool = True) -> Verdict | None:
        return judged(found, Others(mean), "10 min", is_over=is_over)

    assert verdict(good, is_over=False) is None
    assert verdict(good) == Verdict(True, "1 of 1 devices have run it well for 10 min")
    away = replace(good, device="d2", is_online=False, has_crossed=False)
    assert verdict(good, away) == Verdict(True, "1 of 2 devices have run it well for 10 min")
    cases = [
        (replace(good, state="ended"), "device d1 has come to its end"),
        (replace(good, went_back=True, why="it is bad"), "device d1 does not run it: it is bad"),
        (replace(good, restarts=3, why="it hangs"), "device d1 was started anew 3 times: it hangs"),
        (replace(good, letters=11), "device d1 has sent 11 dead letters, and other devices 0.0 each"),
    ]
    for one, why in cases:
        assert verdict(one, is_over=False) == Verdict(False, why)
    assert verdict(replace(good, letters=10)) == verdict(good)
    assert verdict(replace(good, letters=30), mean=10.0) == verdict(good)
    late = replace(good, has_crossed=False, why="bundle b is being fetched")
    assert verdict(late, is_over=False) is None
    assert verdict(late) == Verdict(
        False, "device d1 has not gone over within 10 min: bundle b is being fetched"
    )
    assert verdict(replace(good, held="no such channel")) == Verdict(
        False, "device d1 keeps what it sends: no such channel"
    )
    assert judged(
        [replace(good, state="ended", is_online=False)], Others(), "5 s", is_over=True, ends=True
    ) == (Verdict(True, "1 of 1 devices have run it well for 5 s"))


def test_the_devices_of_a_canary_are_compared_by_what_they_send() -> None:
    good = Standing("d1", "running", has_crossed=True)

    def why(brought: Brought, others: Others, *, is_over: bool = True, state: str = "running") -> str:
        found = judged([replace(good, brought=brought, state=state)], others, "10 min", is_over=is_over)
        return "" if found is None or found.is_good else found.why

    late = "device d1 sends 50% of its records too late, and other devices 25%"
    assert why(Brought(101, 101), Others(late_share=0.25)) == late
    assert why(Brought(101, 101), Others(late_share=0.25), is_over=False) == ""
    assert why(Brought(100, 100), Others(late_share=0.25)) == "", "these few are borne"
    assert why(Brought(101, 101), Others(late_share=0.45)) == ""
    silent = "device d1 sends no records any more, and other devices have sent 1,000.0 each"
    assert why(Brought(before=1), Others(records=1_000.0)) == silent
    assert why(Brought(before=1), Others(records=99.0)) == "", "others send little as well"
    assert why(Brought(), Others(records=1_000.0)) == "", "it sent nothing before either"
    assert why(Brought(1, before=1), Others(records=1_000.0)) == ""
    assert why(Brought(before=1), Others(records=1_000.0), state="ended", is_over=False) == (
        "device d1 has come to its end"
    )
    brought = {"d1": Brought(7, 7), "d2": Brought(30, 10), "d3": Brought(30)}
    letters = {"d1": 40, "d2": 3, "d3": 1}
    assert others_of(letters, brought, ("d1",), 4) == Others(1.0, 15.0, 10 / 70)
    assert others_of({}, {}, ("d1",), 0) == Others()


def test_other_code_for_an_app_that_has_ended_is_refused_in_a_dry_run_too(world: World) -> None:
    assert world.update("plain", "b", dry_run=True)[1]["refusals"] == []
    world.store.apps.enter("heat.1", State.ENDED, "")
    says = "it is ended: only an app that is to run is updated"
    assert world.update("plain", "b", dry_run=True)[1]["refusals"] == [says]
    assert world.refusal("plain").endswith(says)
    assert world.update("calm", "b", dry_run=True)[1]["refusals"] == [
        "it has ended, and only an app that runs goes over"
    ]
