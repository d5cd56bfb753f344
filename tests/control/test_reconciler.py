"""Submit and kill, with a kill -9 of control before and after each of its transactions and files.

The Spark host and the devices are played by the test, from the files and the store alone. However often
control dies, and wherever, the story ends as it does without a death.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from geartrain import Table
from geartrain.schema import ColumnBatch, derive
from geartrain_cloud.control import fleet
from geartrain_cloud.control.observing import Observer
from geartrain_cloud.control.reconciler import Reconciler
from geartrain_cloud.control_store.database import ControlDatabase
from geartrain_cloud.control_store.errors import NotFoundError
from geartrain_cloud.control_store.model import (
    ONLINE_US,
    Channel,
    Mode,
    Outline,
    Report,
    SourceOutline,
    State,
    Submission,
)
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.log.roster import RosterReader, changed
from geartrain_cloud.platform import followed
from geartrain_cloud.platform.config import PlatformConfig
from geartrain_cloud.platform.places import read_report, write_report
from geartrain_cloud.platform.runs import serve_run, tables_of_run
from geartrain_cloud.sinks.sqlite import SqliteTables
from tests.spark.flows import Reading

OUTLINE = Outline("heat", [Channel("readings", ["readings"])], [SourceOutline("readings", False)], "ab" * 32)
ASKED = Submission("heat", "heat:flow", "auto", "all", {"readings": {"path": "heat.csv"}})
ROUNDS_MAX = 60


class KilledError(BaseException):
    """Control was killed."""


@dataclass
class World:
    """A platform whose control may die at its n-th step; steps: those that were done so far; at_end: the
    sources of flows have ended.
    """

    folder: Path
    dies_at: int | None = None
    before: bool = True
    steps: int = 0
    now_us: int = 10**15
    seen: list[str] = field(default_factory=list)
    at_end: bool = False

    def __post_init__(self) -> None:
        self.config = PlatformConfig(self.folder)
        self.places = self.config.places
        self.open()

    def open(self) -> None:
        self.store = ControlStore(self.places.control, self.clock)
        self.reconciler = Reconciler(self.store, self.config, self.clock)

    def clock(self) -> int:
        self.now_us += 1
        return self.now_us

    def step(self, work: Callable[[], Any]) -> Any:
        """One step of control that is whole or not at all."""
        self.steps += 1
        dies = self.steps == self.dies_at
        if dies and self.before:
            raise KilledError
        done = work()
        if dies:
            raise KilledError
        return done

    def as_control(self, work: Callable[[], Any]) -> None:
        """Let control do something; one that is killed is started again."""
        try:
            work()
        except KilledError:
            self.store.close()
            self.open()

    # The others

    def host(self) -> None:
        """The Spark host takes up what is wanted, a step each time it is asked."""
        wanted, said = read_report(self.places.spark_wanted), read_report(self.places.spark_status)
        flows = {}
        for name, flow in wanted.get("flows", {}).items():
            former = said.get("flows", {}).get(name, {}).get("state")
            running = "starting" if former is None else "finished" if self.at_end else "running"
            is_served = running == "finished" or flow.get("end") != "ended"
            run = flow["run"] if is_served else 1
            flows[name] = {"state": "finished" if flow.get("end") == "drain" else running, "run": run}
        write_report(self.places.spark_status, {"serial": wanted.get("serial", 0), "flows": flows})

    def devices(self) -> None:
        """Each device does what is wanted of it, and says so."""
        for device in self.store.devices.every():
            if device.device == "away":
                continue
            said = [
                Report(device.device, one.instance, "ended" if drains else "running")
                for one, drains in self.store.desired.wanted_on(device.device)
            ]
            self.store.reports.heard(device.device, b"", device.serial, said)

    def note(self) -> None:
        """What the world looks like, and what must hold in it at any time."""
        for instance in self.store.apps.every():
            if not self.seen or self.seen[-1] != instance.state.value:
                self.seen.append(instance.state.value)
            hosted = read_report(self.places.spark_wanted).get("flows", {})
            assigned = self.store.desired.assigned(instance.instance)
            if instance.state is State.ENDED:
                assert instance.instance not in hosted
                assert set(assigned.values()) == {"left"}
            if hosted.get(instance.instance, {}).get("end") == "drain":
                reports = self.store.reports.of(instance.instance)
                assert reports["here"].state == "ended", "the host ends before a device has given all"


@contextmanager
def dying(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make each transaction and each file of control a step of the world."""
    with monkeypatch.context() as patch:
        whole = ControlDatabase.change
        outermost = [True]

        @contextmanager
        def change(self: ControlDatabase) -> Iterator[Any]:
            if not outermost[0]:
                with whole(self) as database:
                    yield database
                return
            world.steps += 1
            dies, outermost[0] = world.steps == world.dies_at, False
            try:
                with whole(self) as database:
                    yield database
                    if dies and world.before:
                        raise KilledError
            finally:
                outermost[0] = True
            if dies:
                raise KilledError

        def write(path: Path, content: Any) -> Any:
            return world.step(lambda: write_report(path, content))

        patch.setattr(ControlDatabase, "change", change)
        for module in (fleet, followed):
            patch.setattr(module, "write_report", write)
        yield


def story(world: World, monkeypatch: pytest.MonkeyPatch, mode: Mode, *, purge: bool) -> None:
    """Submit an app, have it run, kill it, and wait for its end."""
    for name in ("here", "away"):
        world.store.devices.add(name, {}, local=True)

    def control(work: Callable[[], Any]) -> None:
        with dying(world, monkeypatch):
            world.as_control(work)
        world.note()

    def rounds(until: Callable[[], bool]) -> None:
        for _ in range(ROUNDS_MAX):
            control(world.reconciler.round)
            world.host()
            world.devices()
            if until():
                return
        raise AssertionError(f"it did not come: {world.seen}")

    def submitted() -> None:
        world.store.answers.once(
            "s", "submit", lambda: (202, {"i": world.store.apps.submit(ASKED, OUTLINE).instance})
        )

    def killed() -> None:
        world.store.answers.once(
            "k", "kill", lambda: (202, {"s": world.store.apps.kill("heat", mode, purge=purge).state})
        )

    for _ in range(2):  # the client, too, asks again under the same key
        control(submitted)
    rounds(lambda: world.store.apps.newest("heat").state is State.RUNNING)
    for _ in range(2):
        control(killed)
    rounds(lambda: all(one.state is State.ENDED for one in world.store.apps.every()))


@pytest.mark.parametrize(("mode", "purge"), [(Mode.DRAIN, False), (Mode.NOW, True)])
def test_submit_and_kill_end_the_same_wherever_control_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode, purge: bool
) -> None:
    plain = World(tmp_path / "plain")
    story(plain, monkeypatch, mode, purge=purge)
    assert plain.steps > 10
    for before in (True, False):
        for at in range(1, plain.steps + 1):
            world = World(tmp_path / f"{before}-{at}", at, before)
            story(world, monkeypatch, mode, purge=purge)
            assert [one.instance for one in world.store.apps.every()] == ([] if purge else ["heat.1"])
            assert read_report(world.places.spark_wanted)["flows"] == {}
            assert world.store.desired.wanted_on("here") == []
            assert world.store.apps.submit(ASKED, OUTLINE).instance == "heat.2"
            world.store.close()
    plain.store.close()


def replay_story(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an app end by itself, replay it, and wait for its end."""
    world.store.devices.add("here", {}, local=True)
    world.store.apps.submit(ASKED, OUTLINE)
    world.at_end = True

    def replayed() -> None:
        world.store.answers.once("r", "replay", lambda: (202, {"run": world.store.apps.replay("heat").run}))

    def ended() -> bool:
        return world.store.apps.newest("heat").state is State.ENDED

    def control(work: Callable[[], Any]) -> None:
        with dying(world, monkeypatch):
            world.as_control(work)

    for asked, done in ((0, ended), (2, lambda: ended() and world.store.apps.newest("heat").run == 2)):
        for _ in range(asked):  # the client, too, asks again under the same key
            control(replayed)
        assert world.store.apps.newest("heat").state is (State.REPLAYING if asked else State.SUBMITTED)
        for _ in range(ROUNDS_MAX):
            control(world.reconciler.round)
            world.host()
            world.devices()
            if done():
                break
        assert done(), world.store.apps.newest("heat")
        control(world.reconciler.round)  # control goes on: there are five rounds a second


def test_a_replay_of_what_has_ended_ends_the_same_wherever_control_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = World(tmp_path / "plain")
    replay_story(plain, monkeypatch)
    assert plain.steps > 10
    for before in (True, False):
        for at in range(1, plain.steps + 1):
            world = World(tmp_path / f"{before}-{at}", at, before)
            replay_story(world, monkeypatch)
            assert world.store.apps.newest("heat").run == 2
            assert read_report(world.places.spark_wanted)["flows"] == {}
            assert world.store.desired.wanted_on("here") == []
            world.store.close()
    plain.store.close()


def test_a_device_that_is_away_is_not_waited_for_and_is_told_when_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    story(world, monkeypatch, Mode.DRAIN, purge=False)
    away = world.store.devices.get("away")
    assert away.applied == 0
    assert away.serial > 1
    assert world.store.desired.wanted_on("away") == []
    assert world.seen == ["submitted", "starting", "running", "draining", "ended"]


def test_a_device_in_contact_is_waited_for_and_one_that_falls_silent_is_not(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.store.devices.add("here", {})
    world.store.apps.submit(ASKED, OUTLINE)
    world.store.reports.heard("here", b"", 2, [Report("here", "heat.1", "running")])
    world.store.apps.kill("heat", Mode.DRAIN, purge=False)
    for _ in range(5):
        world.reconciler.round()
        world.host()
    instance = world.store.apps.newest("heat")
    assert instance.state is State.DRAINING
    waits = world.reconciler.waits_for(instance, world.store.desired.assigned("heat.1"), None)
    assert waits == ["device here sends what it has spooled"]
    world.now_us += ONLINE_US + 1
    for _ in range(5):
        world.reconciler.round()
        world.host()
    assert world.store.apps.newest("heat").state is State.ENDED


def test_a_bounded_flow_that_has_ended_is_purged_when_asked(tmp_path: Path) -> None:
    world = World(tmp_path)
    for name in ("here", "away"):
        world.store.devices.add(name, {}, local=name == "here")
    world.store.apps.submit(ASKED, OUTLINE)
    kept = (world.places.app("heat.1"), world.places.agent("here", "heat.1"))
    for folder in kept:
        folder.mkdir(parents=True)
        (folder / "file").write_text("kept")
    world.reconciler.round()
    write_report(world.places.spark_status, {"serial": 1, "flows": {"heat.1": {"state": "finished"}}})
    world.reconciler.round()
    assert world.store.apps.newest("heat").state is State.ENDED
    assert all(folder.exists() for folder in kept)
    world.store.apps.kill("heat", Mode.DRAIN, purge=True)
    for _ in range(3):
        world.reconciler.round()
        world.host()
    assert not any(folder.exists() for folder in kept)
    assert world.store.apps.every() == []
    assert [world.store.desired.purged_on(name) for name in ("here", "away")] == [["heat.1"]] * 2


def test_a_flow_has_not_ended_before_its_devices_have_taken_what_was_sent_to_them(tmp_path: Path) -> None:
    world = World(tmp_path)
    for name in ("here", "away"):
        world.store.devices.add(name, {})
    world.store.apps.submit(ASKED, structs.replace(OUTLINE, down=True))
    world.reconciler.round()
    write_report(world.places.spark_status, {"serial": 1, "flows": {"heat.1": {"state": "finished"}}})
    observer = Observer(world.store, world.config, world.reconciler, str, lambda: 0.0)
    for name, others in (("here", ["away"]), ("away", [])):
        world.store.reports.heard(name, b"", 1, [Report(name, "heat.1", "running")])
        world.reconciler.round()
        assert world.store.apps.newest("heat").state is not State.ENDED
        waits = observer.info(world.store.apps.newest("heat"))["waits_for"]
        assert [
            device for device in ("here", "away") if f"device {device} takes what was sent to it" in waits
        ] == [*sorted([name, *others], reverse=True)]
        world.store.reports.heard(name, b"", 1, [Report(name, "heat.1", "ended")])
        world.reconciler.round()
    assert world.store.apps.newest("heat").state is State.ENDED
    assert world.store.desired.wanted_on("here") == []


def test_a_kill_waits_until_the_downlink_has_let_go_of_the_outbox(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.store.devices.add("here", {})
    world.store.apps.submit(ASKED, structs.replace(OUTLINE, down=True))
    world.reconciler.round()
    told = read_report(world.places.downlink_wanted)
    assert told["flows"] == {"heat.1": {"outbox": str(world.places.outbox("heat.1"))}}
    said = {"serial": told["serial"], "flows": {"heat.1": {"state": "sending"}}}
    write_report(world.places.downlink_status, said)
    world.store.apps.kill("heat", Mode.NOW, purge=True)
    outbox = world.places.outbox("heat.1")
    outbox.parent.mkdir(parents=True)
    outbox.touch()
    for serial, flows in ((0, {}), (1, said["flows"]), (1, {})):
        for _ in range(3):
            world.reconciler.round()
            world.host()
        assert read_report(world.places.downlink_wanted) == {"serial": told["serial"] + 1, "flows": {}}
        assert outbox.exists()
        instance = world.store.apps.newest("heat")
        waits = world.reconciler.waits_for(instance, world.store.desired.assigned("heat.1"), None)
        assert waits == ["the downlink lets go of its outbox"]
        write_report(world.places.downlink_status, {"serial": told["serial"] + serial, "flows": flows})
    world.reconciler.round()
    assert not outbox.exists()
    assert world.store.apps.every() == []


def test_a_flow_that_the_host_puts_out_has_failed_with_its_reason_and_comes_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.store.devices.add("here", {})
    world.store.apps.submit(ASKED, OUTLINE)
    for state, why, wanted in (
        ("starting", "", State.STARTING),
        ("running", "", State.RUNNING),
        ("out", "its code raised ValueError", State.FAILED),
        ("held", "its table is locked", State.RUNNING),
        ("failed", "", State.FAILED),
        ("running", "", State.RUNNING),
        ("finished", "", State.ENDED),
    ):
        flows = {"heat.1": {"state": state, "why": why}}
        write_report(world.places.spark_status, {"serial": 1, "flows": flows})
        world.reconciler.round()
        found = world.store.apps.newest("heat")
        assert found.state is wanted
        assert why in found.why


def test_a_replay_is_told_to_the_host_before_the_end_of_the_former_run_counts(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.store.devices.add("here", {}, local=True)
    world.store.apps.submit(ASKED, OUTLINE)
    world.reconciler.round()
    world.host()
    world.reconciler.round()
    said = {"serial": 1, "flows": {"heat.1": {"state": "finished", "run": 1}}}
    write_report(world.places.spark_status, said)
    assert world.store.apps.replay("heat").run == 2
    world.reconciler.round()
    assert world.store.apps.newest("heat").state is not State.ENDED
    wanted = read_report(world.places.spark_wanted)
    assert (wanted["serial"], wanted["flows"]["heat.1"]["run"]) == (2, 2)
    write_report(world.places.spark_status, said | {"serial": 2})  # it knows of the run, and has refused it
    world.reconciler.round()
    assert world.store.apps.newest("heat").state is State.ENDED
    world.store.close()


def test_what_is_resumed_has_failed_again_only_when_the_host_knows_of_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.store.devices.add("here", {}, local=True)
    world.store.apps.submit(ASKED, OUTLINE)

    def standing(serial: int, state: str) -> State:
        flows = {"heat.1": {"state": state, "why": "its code raised" if state == "out" else "", "run": 1}}
        write_report(world.places.spark_status, {"serial": serial, "flows": flows})
        world.reconciler.round()
        return world.store.apps.newest("heat").state

    world.reconciler.round()
    assert standing(1, "running") is State.RUNNING
    assert standing(1, "out") is State.FAILED
    world.store.apps.resume("heat")
    assert standing(1, "out") is State.STARTING
    wanted = read_report(world.places.spark_wanted)
    assert (wanted["serial"], wanted["flows"]["heat.1"]["attempt"]) == (2, 2)
    assert standing(2, "starting") is State.STARTING
    assert standing(2, "running") is State.RUNNING
    assert standing(2, "out") is State.FAILED
    world.store.close()


def test_a_replay_of_what_has_ended_concerns_the_host_alone_and_ends_once_it_is_served(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    observer = Observer(world.store, world.config, world.reconciler, lambda: "", lambda: 0.0)

    def says(serial: int, **flow: Any) -> None:
        write_report(world.places.spark_status, {"serial": serial, "flows": {"heat.1": flow} if flow else {}})
        world.reconciler.round()

    def wanted() -> dict[str, Any]:
        found = read_report(world.places.spark_wanted)["flows"].get("heat.1", {})
        return {name: found.get(name) for name in ("run", "end")}

    world.store.devices.add("here", {}, local=True)
    world.store.apps.submit(ASKED, OUTLINE)
    world.reconciler.round()
    says(1, state="finished", run=1)
    assert (world.store.apps.newest("heat").state, wanted()) == (State.ENDED, {"run": None, "end": None})
    roster = changed(RosterReader(world.places.log).after())["heat.1"]
    assert roster.ended
    world.store.apps.replay("heat")
    says(1, state="finished", run=1)  # said before the host let go of it
    assert (world.store.apps.newest("heat").state, wanted()) == (State.REPLAYING, {"run": 2, "end": "ended"})
    says(3, state="running", run=1, why="run 2 is running: it has 9 entries of the log before it")
    assert world.store.apps.newest("heat").state is State.REPLAYING
    (waits,) = observer.info(world.store.apps.newest("heat"))["waits_for"]
    assert waits == "run 2 is running: it has 9 entries of the log before it"
    assert changed(RosterReader(world.places.log).after())["heat.1"] == roster
    assert world.store.desired.wanted_on("here") == []
    says(3, state="finished", run=2)
    assert (world.store.apps.newest("heat").state, wanted()) == (State.ENDED, {"run": None, "end": None})
    says(4)
    world.store.apps.replay("heat")
    world.reconciler.round()
    says(5, state="out", run=2, why="run 3 is out: its code raised")
    ended = world.store.apps.newest("heat")
    assert (ended.state, ended.why, ended.run) == (State.ENDED, "run 3 is out: its code raised", 3)
    assert wanted() == {"run": None, "end": None}
    world.store.apps.replay("heat")
    world.reconciler.round()
    world.store.apps.kill("heat", Mode.NOW, purge=True)
    world.reconciler.round()
    assert wanted() == {"run": None, "end": None}
    says(8)
    with pytest.raises(NotFoundError):
        world.store.apps.newest("heat")
    world.store.close()


def test_the_tables_of_the_run_that_is_served_are_shown(tmp_path: Path) -> None:
    world = World(tmp_path)
    instance = world.store.apps.submit(ASKED, OUTLINE)
    observer = Observer(world.store, world.config, world.reconciler, lambda: "", lambda: 0.0)
    first = world.places.tables("heat.1")
    for run, count in ((1, 1), (2, 2)):
        tables = SqliteTables(tables_of_run(first, run))
        tables.declare("readings", Table("readings"), derive(Reading))
        columns = ColumnBatch([["s"] * count, [1.0] * count], [0] * count, ["a"] * count, [*range(count)])
        tables.attach("main", "c", has_run=False)
        tables.write("main", 0, {"0": 1}, {"readings": [columns]}, count)
        tables.close()
    shown = []
    for run in (1, 2):
        serve_run(first, run)
        page = observer.rows(instance, "readings", 0, 10, as_written=False)
        tables = observer.tables(instance)["items"]
        shown.append((len(page["rows"]), {one["name"]: one["rows"] for one in tables}["readings"]))
    assert shown == [(1, 1), (2, 2)]
    world.store.close()
