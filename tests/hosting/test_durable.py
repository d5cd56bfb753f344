"""What a group lets go of, and what it publishes, only after Spark's checkpoint was synced; without Spark."""

from __future__ import annotations

import ctypes
import errno
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from geartrain_cloud.hosting import durable
from geartrain_cloud.hosting.admission import Admission, Member
from geartrain_cloud.hosting.durable import SYNC_MICRO_BATCHES, Committed, DurableCheckpoint, sync_file_system
from geartrain_cloud.hosting.group import Group
from geartrain_cloud.hosting.offsets import PLAN, count_name, position_name
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.hosting.prepared import Prepared, put_prepared
from geartrain_cloud.hosting.program import program
from geartrain_cloud.hosting.versions import Versions
from geartrain_cloud.hosting.writer import Ran
from geartrain_cloud.log.queries import Registration
from geartrain_cloud.sinks.app_tables import AppTables
from geartrain_cloud.spark.compile import HOSTED
from tests.hosting.test_group import group_of, places, version
from tests.waiting import wait_for

__all__ = ["places"]
NAME = "stone.1~1"


def test_a_file_system_is_synced_or_it_is_said_that_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync_file_system(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync_file_system(tmp_path / "none")

    def failing(_: int) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(syncfs=failing))
    with pytest.raises(OSError, match="Input/output error") as found:
        sync_file_system(tmp_path)
    assert found.value.errno == errno.EIO


class Disk:
    """A file system that is synced when it is let, or never."""

    def __init__(self, patches: pytest.MonkeyPatch) -> None:
        self.go, self.syncs, self.error = threading.Event(), 0, OSError(errno.EIO, "Input/output error")
        self.fails = False
        patches.setattr(durable, "sync_file_system", self.sync)

    def sync(self, _: Path) -> None:
        wait_for("the disk to go on", self.go.is_set)
        self.syncs += 1
        if self.fails:
            raise self.error


def taken(checkpoint: DurableCheckpoint) -> Committed | None:
    """What has become durable, when the sync under way is done."""
    assert checkpoint._under_way is not None
    wait_for("the sync to be done", checkpoint._under_way[1].done)
    return checkpoint.take()


def at(position: int, plan: int = 2) -> dict[str, int]:
    return {PLAN: plan, position_name(NAME, "0"): position, count_name(NAME): position - 1}


def test_a_sync_is_due_by_micro_batches_by_time_and_for_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, checkpoint = Disk(monkeypatch), DurableCheckpoint(tmp_path)
    disk.go.set()
    far = SYNC_MICRO_BATCHES - 1
    assert not checkpoint.is_due(far - 1, soon=False)
    assert checkpoint.is_due(far, soon=False)
    assert checkpoint.is_due(0, soon=True)
    checkpoint.begin(far, Committed(at(1), ()))
    assert not checkpoint.is_due(far + 100, soon=True)  # one is under way
    assert taken(checkpoint) == Committed(at(1), ())
    assert not checkpoint.is_due(far, soon=False)
    assert checkpoint.is_due(-1, soon=False)  # its numbers begin anew
    disk.fails = True
    checkpoint.begin(far, Committed(at(2), ()))
    assert taken(checkpoint) is None
    assert not checkpoint.is_due(far + 100, soon=True)  # not again and again
    monkeypatch.setattr(durable, "SYNC_EVERY_S", 0.0)
    assert checkpoint.is_due(far, soon=False)
    checkpoint.close()


def with_a_flow(places: HostPlaces) -> tuple[Group, Member]:
    """A group that runs one."""
    prepared = Prepared("p", {}, 1, (), ("readings",), (), program=program())
    put_prepared(places.group("all").plans, prepared)
    member = Member(AppTables(places.folder / "tables.sqlite"))
    found = group_of(places)
    assert found.publish([Admission("stone.1", "r", prepared, member)]) == {}
    return found, member


def run(one: Group, patches: pytest.MonkeyPatch, batch_id: int, offsets: dict[str, int]) -> None:
    """Have Spark commit a micro-batch."""
    patches.setattr(one, "committed", lambda: offsets)
    one.writer.last = Ran(batch_id, 0.1, offsets)


def test_the_log_is_let_go_up_to_what_was_committed_before_a_sync(
    places: HostPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = with_a_flow(places)
    log = Registration(places.folder.parent / "log", HOSTED, one.version.flows[NAME].identity, "stone.1")
    disk, number = Disk(monkeypatch), one.version.number
    run(one, monkeypatch, 100, at(5, number))
    one._sweep()
    run(one, monkeypatch, 101, at(6, number))
    one._sweep()
    assert log.positions() == {"0": 0}  # the disk has nothing yet
    assert Versions(places.group("all").versions).oldest() < number
    disk.go.set()
    assert one._durable._under_way is not None
    wait_for("the sync to be done", one._durable._under_way[1].done)
    one._sweep()
    assert log.positions() == {"0": 5}
    assert Versions(places.group("all").versions).oldest() == number
    disk.fails = True
    run(one, monkeypatch, 200, at(9, number))
    one._sweep()
    wait_for("the sync to be done", one._durable._under_way[1].done)
    one._sweep()
    assert log.positions() == {"0": 5}  # it cannot be synced
    one.close()


def test_a_flow_that_leaves_is_let_go_after_a_sync(
    places: HostPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = with_a_flow(places)
    one.publish([], [NAME])
    disk = Disk(monkeypatch)
    run(one, monkeypatch, 0, {PLAN: one.version.number})
    one._sweep()
    assert one._leaving() == [NAME]
    disk.go.set()
    assert one._durable._under_way is not None
    wait_for("the sync to be done", one._durable._under_way[1].done)
    one._sweep()
    assert one._leaving() == []
    one.close()


def admitted(one: Group, member: Member) -> None:
    prepared = Prepared("q", {}, 1, (), ("readings",), (), program=program())
    put_prepared(one._places.plans, prepared)
    one.publish([Admission("stone.2", "r", prepared, member)])


def gone(one: Group, _: Member) -> None:
    one.publish([], [NAME])


def handed_over(one: Group, member: Member) -> None:
    earlier = one.version.flows[NAME]
    one._hand_over(earlier, replace(earlier, generation=2), member, at(5, one.version.number))


@pytest.mark.parametrize("change", [admitted, gone, handed_over])
def test_a_version_in_which_flows_change_is_published_after_a_sync(
    places: HostPlaces, monkeypatch: pytest.MonkeyPatch, change: Callable[[Group, Member], None]
) -> None:
    one, member = with_a_flow(places)
    disk, number = Disk(monkeypatch), one.version.number
    disk.go.set()
    disk.fails = True
    with pytest.raises(OSError, match="Input/output"):
        change(one, member)
    assert (disk.syncs, one.version.number) == (1, number)
    assert not Versions(places.group("all").versions).exists(number + 1)
    one.close()


@pytest.mark.parametrize("change", [admitted, gone, handed_over])
def test_such_a_version_is_published_where_all_is_durable(
    places: HostPlaces, monkeypatch: pytest.MonkeyPatch, change: Callable[[Group, Member], None]
) -> None:
    one, member = with_a_flow(places)
    number = one.version.number
    change(one, member)
    assert Versions(places.group("all").versions).exists(number + 1)
    one.close()


def test_a_budget_alone_is_published_without_a_sync(
    places: HostPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    group_of(places)
    Versions(places.group("all").versions).publish(version(2))
    one, disk = group_of(places), Disk(monkeypatch)
    one._set_budgets({"stone.1": Member(AppTables(places.folder / "tables.sqlite"), rows_max=77)})
    assert one.version.flows[NAME].rows_max == 77
    assert disk.syncs == 0
