"""Cuts that follow what devices measure, in control: moves, their reasons, and what keeps them back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from geartrain.control.states import Measured
from geartrain_cloud.changes.adapting import PAUSE_S
from geartrain_cloud.control.adaptive_rounds import AdaptiveRounds
from geartrain_cloud.rest.audit import AuditLog
from tests.control.test_cuts import FEW, Fleet

STRONG = Measured(100, 0.1, 3.0, 1 << 30)
WEAK = Measured(900, 0.7, 0.3, 1 << 30)


class HandClock:
    """A clock that is moved by hand."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self.now_us, self.now_s = now_us, 1_000.0

    def monotonic_s(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a round does not wait")


class World(Fleet):
    """Three devices of an app, which go on saying what they have said last."""

    def open(self) -> None:
        super().open()
        self.audit, self.hand = AuditLog(self.places.audit, self.clock), HandClock(self.clock)
        self.adaptive = AdaptiveRounds(self.store, self.cuts, self.audit, self.hand, lambda: None)

    def report(self, device: str, *can: str) -> bytes:
        return self.store.reports.last(device) or super().report(device, *can)

    def look(self, after_s: float = 30.0) -> dict[str, str]:
        """One round, and what it comes to: the cut of each device."""
        self.hand.now_s += after_s
        asyncio.run(self.adaptive.round())
        self.rounds()
        return self.store.desired.cuts("heat.1")

    def moves(self) -> list[tuple[str, str, str]]:
        found = self.observer.info(self.store.apps.newest("heat"))["adaptive"]["moves"]
        return [(one["device"], one["before"], one["cut"]) for one in found]

    def close(self) -> None:
        self.audit.close()
        self.store.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    found.submit(flow=FEW)
    yield found
    found.close()


def test_devices_move_one_after_the_other_each_with_its_reason(world: World) -> None:
    for device in ("d1", "d2"):
        world.measure(device, STRONG)
    assert world.look() == dict.fromkeys(("away", "d1", "d2"), ""), "nobody has asked for it"
    assert world.observer.info(world.store.apps.newest("heat"))["adaptive"] is None
    status, said = world.ask("cut", cut="adaptive")
    assert (status, said["count"], said["revises"]) == (202, 3, False)
    assert world.store.desired.cuts("heat.1") == dict.fromkeys(("away", "d1", "d2"), "")
    assert world.look() == {"away": "", "d1": "fewer", "d2": ""}
    assert world.look()["d2"] == "", "d1 has not said what it takes now"
    world.measure("d1", STRONG, "fewer")
    assert world.look() == {"away": "", "d1": "fewer", "d2": "fewer"}
    assert world.moves() == [("d2", "cloud", "fewer"), ("d1", "cloud", "fewer")]
    why = "at 100 records/s it takes 0.1 of a core; with fewer 0.12, within 0.35, and fewer bytes"
    told = [one for one in world.store.events.after(0, 1_000)[0] if one.kind == "moved"]
    assert [(one.app, one.device, one.said["why"]) for one in told] == [
        ("heat", "d1", why),
        ("heat", "d2", why),
    ]
    entries = world.audit.page(10, 1 << 60, 0)[0]
    assert [(one["token"], one["app"], one["result"]) for one in entries] == [("adaptive", "heat", "ok")] * 2
    assert entries[0]["asked"]["why"] == [why]


def test_a_device_that_takes_too_much_goes_down_and_stays_there(world: World) -> None:
    world.ask("cut", cut="adaptive", devices="d1")
    world.measure("d1", STRONG)
    assert world.look()["d1"] == "fewer"
    world.measure("d1", WEAK, "fewer")
    assert world.look()["d1"] == "fewer", "it has moved just now"
    assert world.look(PAUSE_S)["d1"] == ""
    world.measure("d1", Measured(900, 0.1, 3.0, 1 << 30))
    for _ in range(5):
        assert world.look(10 * PAUSE_S)["d1"] == "", "at this rate it was too much"
    world.measure("d1", Measured(300, 0.03, 3.0, 1 << 30))
    assert world.look(10 * PAUSE_S)["d1"] == "fewer"
    assert world.moves() == [("d1", "cloud", "fewer"), ("d1", "fewer", "cloud"), ("d1", "cloud", "fewer")]


def test_a_later_cut_of_a_person_holds_and_devices_out_of_contact_stay(world: World) -> None:
    world.ask("cut", cut="adaptive", capacity=0.9)
    world.measure("d1", STRONG)
    world.now_us += 200_000_000
    asyncio.run(world.adaptive.round())
    assert world.store.desired.cuts("heat.1")["d1"] == ""
    world.measure("d1", STRONG)
    world.ask("cut", cut="fewer", devices="d1")
    world.rounds()
    world.measure("d1", Measured(900, 0.95, 0.1, 1 << 30), "fewer")
    assert world.look()["d1"] == "fewer"
    assert world.observer.info(world.store.apps.newest("heat"))["adaptive"] == {"devices": 2, "moves": []}


def test_an_app_that_goes_over_to_something_is_left_alone(world: World) -> None:
    world.ask("cut", cut="adaptive")
    world.measure("d1", STRONG)
    world.ask("cut", cut="some", devices="d2")
    asyncio.run(world.adaptive.round())
    assert world.store.desired.cuts("heat.1") == dict.fromkeys(("away", "d1", "d2"), "")
    world.rounds()
    world.measure("d1", STRONG)
    assert world.look() == {"away": "", "d1": "fewer", "d2": "some"}


def test_control_that_was_killed_decides_again(world: World) -> None:
    world.ask("cut", cut="adaptive", capacity=0.4)
    world.measure("d1", STRONG)
    assert world.look()["d1"] == "fewer"
    world.measure("d1", WEAK, "fewer")
    assert world.look()["d1"] == "fewer", "it has moved just now"
    world.close()
    world.open()
    assert world.look()["d1"] == "", "no pause is remembered, and whose cut is adaptive is"
    world.close()
    world.open()
    world.measure("d2", STRONG)
    world.measure("d1", None)
    assert world.look() == {"away": "", "d1": "", "d2": "fewer"}
    assert world.moves() == [("d2", "cloud", "fewer"), ("d1", "fewer", "cloud"), ("d1", "cloud", "fewer")]
