"""The control lane over a real broker: the control store on one end, devices on the other."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.control.receiver import ReceiverPolicy
from geartrain.control.sender import SenderPolicy
from geartrain.control.states import App, AppReport, AppState, RunningProgram, State, Wanted
from geartrain.errors import DiskError
from geartrain_cloud.control.lane import ControlLane, LaneSettings
from geartrain_cloud.control.lane_store import StoreOfLane, accept
from geartrain_cloud.control_store.errors import ConflictError
from geartrain_cloud.control_store.model import Channel, Mode, Outline, SourceOutline, Submission
from geartrain_cloud.control_store.store import ControlStore
from geartrain_edge.parent.kept_file import KeptFile
from geartrain_edge.parent.lane import DeviceLane
from tests.running_broker import running_broker
from tests.waiting import WAIT_S

OUTLINE = Outline("heat", [Channel("readings", ["readings"])], [SourceOutline("readings", True)], "ab" * 32)
QUICK = LaneSettings(0.02, 0.02, sender=SenderPolicy(resend_s=0.3, ask_s=0.3))


class Told:
    """Apps that run as soon as they are wanted."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.applied: list[State] = []

    def apply(self, state: State) -> None:
        self.applied.append(state)

    def reports(self) -> tuple[AppReport, ...]:
        apps = self.applied[-1].apps if self.applied else ()
        ended = {Wanted.RUN: AppState.RUNNING, Wanted.DRAIN: AppState.ENDED}
        return tuple(AppReport(app.instance, ended[app.wanted], "", app.revision) for app in apps)


class Fleet:
    """A broker, a control store, and devices by name."""

    def __init__(self, folder: Path, host: str, port: int) -> None:
        self.folder, self.told = folder, dict[str, Told]()
        self._address = (host, port)

    def net(self) -> AiomqttNet:
        return AiomqttNet(*self._address)

    @asynccontextmanager
    async def control(self) -> AsyncIterator[tuple[ControlStore, ControlLane]]:
        clock = SystemClock()
        store = ControlStore(self.folder / "control.sqlite", clock.now_us)
        lane = ControlLane(StoreOfLane(store), self.net(), clock, SystemRandomness(), QUICK)
        async with running(lane.run_alone()):
            yield store, lane
        store.close()

    @asynccontextmanager
    async def device(self, name: str) -> AsyncIterator[Told]:
        told = self.told[name] = Told()
        (self.folder / name).mkdir(exist_ok=True)
        lane = DeviceLane(
            name,
            self.net(),
            KeptFile(self.folder / name),
            told,
            SystemClock(),
            SystemRandomness(),
            RunningProgram("0.2.0"),
            ReceiverPolicy(resend_s=0.3, pause_s=0.02),
        )
        async with running(lane.run()):
            yield told


@asynccontextmanager
async def running(work: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        done = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError), done


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - it comes over a broker
            await asyncio.sleep(0.01)


def heat(name: str = "heat", selector: str = "all") -> Submission:
    return Submission(name, "heat:flow", "auto", selector, {"readings": {"path": "heat.csv"}})


@pytest.fixture(params=[pytest.param("mosquitto", marks=pytest.mark.mosquitto), "amqtt"])
def fleet(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    with running_broker(tmp_path, request.param) as broker:
        yield Fleet(tmp_path, broker.host, broker.port)


def is_applied(store: ControlStore, device: str) -> bool:
    found = store.devices.get(device)
    return found.applied == found.serial


def test_a_submit_and_a_kill_reach_the_devices_and_what_they_say_is_stored(fleet: Fleet) -> None:
    async def story() -> None:
        async with fleet.control() as (store, lane), fleet.device("t1") as t1, fleet.device("x1") as x1:
            store.devices.add("t1", {"kind": "truck"})
            store.devices.add("x1", {"kind": "tank"})
            store.apps.submit(heat(selector="kind=truck"), OUTLINE)
            await until(lambda: is_applied(store, "t1") and "t1" in store.reports.of("heat.1"))
            options = '{"sources":{"readings":{"path":"heat.csv"}},"steps":{}}'
            assert t1.applied[-1].apps == (App("heat.1", "heat:flow", "ab" * 32, "auto", options, number=1),)
            said = store.reports.of("heat.1")["t1"]
            assert (said.state, said.version, said.serial) == (
                "running",
                "0.2.0",
                store.devices.get("t1").serial,
            )
            await until(lambda: is_applied(store, "x1"))
            assert all(state.apps == () for state in x1.applied)
            assert lane.is_online("t1")
            store.apps.kill("heat", Mode.DRAIN, purge=False)
            await until(lambda: store.reports.of("heat.1")["t1"].state == "ended")
            assert t1.applied[-1].apps[0].wanted is Wanted.DRAIN
            store.desired.leave("heat.1")
            await until(lambda: is_applied(store, "t1") and t1.applied[-1].apps == ())
            serials = [state.serial for state in t1.applied]
            assert serials == sorted(set(serials))

    asyncio.run(story())


def test_control_comes_and_goes_and_a_device_that_was_away_gets_only_the_newest(fleet: Fleet) -> None:
    async def story() -> None:
        async with fleet.control() as (store, _):
            store.devices.add("t1", {})
            for n in range(5):
                store.apps.submit(heat(f"heat{n}"), OUTLINE)
        async with fleet.device("t1") as told:
            await asyncio.sleep(0.5)
            assert told.applied == []  # control is gone
            async with fleet.control() as (store, _):
                await until(lambda: is_applied(store, "t1"))
                assert [len(state.apps) for state in told.applied] == [5]
            async with fleet.control() as (store, lane):
                await until(lambda: lane.is_online("t1"))
                assert len(told.applied) == 1  # what is applied is not applied again
        async with fleet.device("t1") as told:
            await until(lambda: bool(told.applied))
            assert [len(state.apps) for state in told.applied] == [5]  # from its own disk

    asyncio.run(story())


def test_a_purge_reaches_devices_and_also_one_that_was_away(fleet: Fleet) -> None:
    async def story() -> None:
        async with fleet.control() as (store, _):
            async with fleet.device("t1"):
                store.devices.add("t1", {})
                store.devices.add("t2", {})
                store.apps.submit(heat(), OUTLINE)
                await until(lambda: is_applied(store, "t1"))
            store.apps.kill("heat", Mode.NOW, purge=True)
            store.apps.forget("heat.1")
        async with fleet.control() as (store, _), fleet.device("t1") as t1, fleet.device("t2") as t2:
            for name, told in (("t1", t1), ("t2", t2)):
                await until(lambda name=name: is_applied(store, name))  # type: ignore[misc]
                assert (told.applied[-1].apps, told.applied[-1].purged) == ((), ("heat.1",))
            store.apps.submit(heat("other"), OUTLINE)
            await until(lambda: is_applied(store, "t1") and is_applied(store, "t2"))
            assert [t1.applied[-1].purged, t2.applied[-1].purged] == [(), ()]

    asyncio.run(story())


def test_a_store_that_was_restored_from_a_copy_is_refused_until_a_person_accepts_it(fleet: Fleet) -> None:
    async def story() -> None:
        async with fleet.control() as (store, _):
            store.devices.add("t1", {})
        copy = fleet.folder / "copy.sqlite"
        shutil.copy(fleet.folder / "control.sqlite", copy)
        async with fleet.device("t1") as told:
            async with fleet.control() as (store, _):
                for n in range(3):
                    store.apps.submit(heat(f"heat{n}"), OUTLINE)
                await until(lambda: is_applied(store, "t1"))
                applied = store.devices.get("t1").applied
            shutil.copy(copy, fleet.folder / "control.sqlite")
            async with fleet.control() as (store, _):
                await until(lambda: "restored from a copy" in store.reports.lanes()["t1"][1])
                for n in range(5):
                    store.apps.submit(heat(f"other{n}"), OUTLINE)
                await asyncio.sleep(0.5)
                assert {state.serial for state in told.applied} <= set(range(applied + 1))
                assert [len(state.apps) for state in told.applied][-1] == 3
            async with fleet.control() as (store, _):  # also after a start
                await asyncio.sleep(0.5)
                assert {state.serial for state in told.applied} <= set(range(applied + 1))
                assert "gear device accept t1" in store.reports.refusal("t1")
                accept(store, "t1")
                with pytest.raises(ConflictError, match="is not refused"):
                    accept(store, "t1")
                await until(lambda: is_applied(store, "t1"))
                assert [len(state.apps) for state in told.applied][-1] == 5
                assert max(state.serial for state in told.applied) > applied

    asyncio.run(story())


def test_a_device_that_is_given_more_than_it_can_be_told_holds_up_no_other(tmp_path: Path) -> None:
    store = ControlStore(tmp_path / "control.sqlite", lambda: 1)
    lane = StoreOfLane(store)
    store.devices.add("t1", {"kind": "truck"})
    store.devices.add("x1", {"kind": "tank"})
    for n in range(65):
        store.apps.submit(heat(f"heat{n}", "kind=truck"), OUTLINE)
    found = asyncio.run(lane.changed())
    assert (found["t1"].state, found["t1"].refused) == (b"", "a state has more than 64 apps")
    assert found["x1"].state
    assert asyncio.run(lane.changed()) == {}
    store.apps.kill("heat0", Mode.NOW, purge=False)
    assert asyncio.run(lane.changed())["t1"].refused == ""
    store.close()


def test_a_desired_state_on_a_damaged_disk_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "desired.bin").write_bytes(b"\0" * 20)
    with pytest.raises(DiskError, match=r"is damaged .* move it away"):
        asyncio.run(KeptFile(tmp_path).load())
