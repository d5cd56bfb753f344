"""The next revision of a flow beside the one that runs, without Spark: when it is prepared anew."""

from __future__ import annotations

import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from geartrain_cloud.hosting import preparing as preparing_module
from geartrain_cloud.hosting import succession as succession_module
from geartrain_cloud.hosting.admission import Admission, Member
from geartrain_cloud.hosting.crossing import boundary
from geartrain_cloud.hosting.errors import NotYetError, PreparationError
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.hosting.prepared import Prepared
from geartrain_cloud.hosting.preparing import Preparing
from geartrain_cloud.hosting.status import FlowStatus
from geartrain_cloud.hosting.succession import Succession
from geartrain_cloud.hosting.wanted import WantedFlow, WantedPlan
from geartrain_cloud.sinks.app_tables import AppTables
from tests.hosting.test_group import version

KEY = ("stone.1", 1)
HOSTED = version(1).flows["stone.1~1"]


class World:
    """A flow that runs its first revision, and what was prepared and tried for the second."""

    def __init__(self, folder: Path, *results: Prepared | Exception) -> None:
        self.results, self.begun = list(results), 0
        self.tried: list[Admission] = []
        self.check: NotYetError | None = None
        groups: Any = SimpleNamespace(
            hosted=lambda key: HOSTED,
            is_running=lambda key: True,
            check_crossing=self.check_crossing,
            cross=self.cross,
        )
        self.places: dict[int, dict[str, int]] = {}
        log: Any = SimpleNamespace(boundary=lambda flow, revision: self.places.get(revision, {}))
        self.log = log
        preparing: Any = SimpleNamespace(begin=self.begin)
        member = Member(AppTables(folder / "t.sqlite"))
        self.succession = Succession(groups, preparing, log, lambda wanted: member)

    def begin(self, instance: str, plan: WantedPlan) -> Future[Prepared]:
        self.begun += 1
        future, result = Future[Prepared](), self.results.pop(0)
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
        return future

    def check_crossing(self, admission: Admission) -> None:
        if self.check is not None:
            raise self.check

    def cross(self, admission: Admission) -> bool:
        self.tried.append(admission)
        return False

    def step(self, *drops: str, at: int = 0) -> FlowStatus:
        former = (WantedPlan("mill:flow"),)
        wanted = WantedFlow("mill:flow", tables="t", revision=2, former=former, drops=drops)
        self.succession.step({KEY: wanted})
        found = FlowStatus("running", positions={"0": at})
        self.succession.say(HOSTED, found)
        return found


PREPARED = Prepared("p", {}, 1, (), (), ())


def test_another_wish_what_to_drop_takes_the_place_of_the_former(tmp_path: Path) -> None:
    world = World(tmp_path, PREPARED, PREPARED)
    assert world.step("means").prepared == 2
    assert world.step("means", "alarms").prepared == 2
    assert [one.drops for one in world.tried] == [("means",), ("means", "alarms")]


def test_what_could_not_be_prepared_is_prepared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, PreparationError("flow stone.1: it took too long"), PREPARED)
    found = world.step()
    assert (found.prepared, found.next_why) == (1, "flow stone.1: it took too long")
    assert found.why == f"revision 2: {found.next_why}"
    assert world.step().why == found.why
    assert world.begun == 1
    later_s = time.monotonic() + succession_module.PREPARE_AGAIN_S
    monkeypatch.setattr(succession_module, "time", SimpleNamespace(monotonic=lambda: later_s))
    found = world.step()
    assert (found.prepared, found.why, world.begun) == (2, "", 2)


def test_what_passes_is_no_reason_to_give_a_revision_up(tmp_path: Path) -> None:
    world = World(tmp_path, PREPARED)
    world.check = NotYetError("its tables have not said yet")
    found = world.step()
    assert (found.prepared, found.why) == (1, "revision 2 waits: its tables have not said yet")


def test_what_a_flow_prints_while_it_is_prepared_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "talks.py").write_text("import sys\nwhile True: sys.stdout.write('x' * 65536)")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    preparing = Preparing(HostPlaces(tmp_path), wait_s=2.0)
    with pytest.raises(PreparationError, match=r"not imported and planned within 2 s"):
        preparing.prepare("stone.1", WantedPlan("talks:flow"))
    preparing.close()


def test_a_revision_that_never_came_into_force_is_passed_over(tmp_path: Path) -> None:
    world = World(tmp_path, PreparationError("flow stone.1: its code raises"), PREPARED)
    world.places = {2: {"0": 5}}
    assert world.step().stuck == 0  # the log stands at 5, and the flow does not yet
    assert world.step(at=5).stuck == 2
    plan = WantedPlan("mill:flow")
    third = WantedFlow("mill:flow", tables="t", revision=3, former=(plan, plan), follows=1)
    assert [third.after(number) for number in (1, 2)] == [3, 3]
    world.succession.step({KEY: third})
    (tried,) = world.tried
    assert tried.revision == 3
    assert boundary(world.log, HOSTED, 3) is None
    world.places |= {3: {"0": 9}}
    assert boundary(world.log, HOSTED, 3) == {"0": 5}  # where that which it passes over would have begun


def test_a_machine_without_room_for_a_process_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(preparing_module, "run_short", full)
    preparing = Preparing(HostPlaces(tmp_path))
    with pytest.raises(PreparationError, match=r"no process can be started .* temporarily unavailable"):
        preparing.prepare("stone.1", WantedPlan("mill:flow"))
    preparing.close()
