"""What flows leave behind on disk, in Spark's state and in the log's ledger goes when nothing needs it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from geartrain_cloud.hosting.group import Group
from geartrain_cloud.hosting.leftovers import release_log, remove_unused_code
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.hosting.prepared import Prepared, prepared_path, put_prepared
from geartrain_cloud.hosting.versions import Hosted
from geartrain_cloud.log.queries import register, registered
from tests.hosting.hosted import Hosting, Wanted
from tests.hosting.mill_log import MillLog


class KillError(Exception):
    """The host ends here."""


def hosted(plan: str, code: str) -> Hosted:
    where: dict[str, Any] = {"plan": plan, "code": {"mill": code}, "keys": ("0",), "channels": ()}
    return Hosted(
        "stone.1", 1, request="r", stages=1, labels=(2,), buckets=8, sources=(), identity="i", **where
    )


def keep(places: HostPlaces, plan: str, code: str) -> list[Path]:
    """A flow's plan and code on disk, as `prepare` keeps them."""
    put_prepared(places.plans, Prepared(plan, {"mill": code}, 1, (), (), ()))
    (places.plans / f"{plan}.plan").write_bytes(b"pickled")
    (places.code / code / "mill").mkdir(parents=True)
    (places.code / code / "mill" / "flows.py").write_text("pass")
    (places.code / code / "mill" / "records.py").write_text("pass")
    own = [places.plans / f"{plan}.plan", prepared_path(places.plans, plan, {"mill": code})]
    return [*own, places.code / code]


def test_a_kill_in_mid_removal_leaves_what_is_in_use_and_the_rest_goes_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before each removal of a file or folder in turn."""
    for step in range(10):
        places = HostPlaces(tmp_path / str(step))
        used, gone = keep(places, "a" * 64, "c" * 64), keep(places, "b" * 64, "d" * 64)
        (places.plans / ".x.plan.new").write_bytes(b"half")
        left = step

        def counted(act: Any) -> Any:
            def one(*arguments: Any, **more: Any) -> Any:
                nonlocal left
                if not left:
                    raise KillError
                left -= 1
                return act(*arguments, **more)

            return one

        kept = [hosted("a" * 64, "c" * 64)]
        with monkeypatch.context() as killed:
            killed.setattr(Path, "unlink", counted(Path.unlink))
            killed.setattr(Path, "rename", counted(Path.rename))
            killed.setattr(shutil, "rmtree", counted(shutil.rmtree))
            try:
                remove_unused_code(places, kept)
            except KillError:
                over = False
            else:
                over = True
        code = gone[-1]  # in its place it is whole
        assert not code.exists() or len(list(code.rglob("*.py"))) == 2
        assert all(path.exists() for path in used)
        remove_unused_code(places, kept)
        assert sorted(places.plans.iterdir()) == sorted(used[:2])
        assert list(places.code.iterdir()) == [used[2]]
        if over:
            assert step > 4
            return
    raise AssertionError("the removal never ended")


def test_the_log_is_kept_for_hosted_flows_and_for_other_queries(tmp_path: Path) -> None:
    MillLog(tmp_path, "stone.1", 0).writer.close()
    for name, flow in (("hosted@here", "stone.1"), ("hosted@lost", "stone.1"), ("main@other", "heat")):
        register(tmp_path, name, flow, ["0"])
    release_log(tmp_path, {"hosted@here"})
    assert {one.name for one in registered(tmp_path)} == {"hosted@here", "main@other"}


def cells(group: Group) -> int:
    """How many buckets the group's query has in its state, by Spark's own count; -1 until it has counted."""
    assert group.query._handle is not None
    progress = group.query._handle.lastProgress
    if not progress or progress["batchId"] < group.writer.last.batch_id:
        return -1
    return sum(int(one["numRowsTotal"]) for one in progress["stateOperators"])


@pytest.mark.proof
def test_a_flow_that_leaves_takes_its_files_and_its_state_along(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    stays, leaves = wanted.add("stone.1", 0), wanted.add("wheel.1", 1)
    stays.append(200)
    leaves.append(200)
    wanted.write()
    places = HostPlaces(wanted.state)
    hosting = Hosting(spark, wanted)
    try:
        hosting.through("stone.1", "wheel.1")
        assert len(list(places.plans.glob("*.plan"))) == 2
        hosting.until(lambda: cells(hosting.host.groups.shared) > 0)
        before = cells(hosting.host.groups.shared)
        del wanted.flows["wheel.1"]
        wanted.write()
        hosting.until(lambda: len(list(places.plans.iterdir())) == 2)
        stays.append(100)
        hosting.through("stone.1")
        stays.assert_tables(wanted.tables("stone.1"))
        hosting.until(lambda: 0 < cells(hosting.host.groups.shared) < before)
        assert [path.name for path in (places.group("all").folder / "flows").iterdir()] == ["stone.1~1"]
        assert [path.name for path in (places.group("all").folder / "parked").iterdir()] == ["stone.1"]
        assert {one.flow for one in registered(wanted.log)} == {"stone.1"}
        assert len(list(places.code.iterdir())) >= 1
        del wanted.flows["stone.1"]
        wanted.write()
        hosting.until(lambda: not list(places.code.iterdir()) and not list(places.plans.iterdir()))
        hosting.until(lambda: cells(hosting.host.groups.shared) == 0)
    finally:
        hosting.close()
        wanted.close()


@pytest.mark.proof
def test_a_kill_between_registering_a_run_and_publishing_it_holds_the_log_no_longer(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    log = wanted.add("stone.1", 0)
    log.append(200)
    wanted.write()
    hosting = Hosting(spark, wanted)
    try:
        hosting.through("stone.1")
        wanted.flows["stone.1"]["run"] = 2
        wanted.write()

        def end_here(*arguments: Any) -> None:
            raise KillError

        with monkeypatch.context() as before_publishing:
            before_publishing.setattr(Group, "_publish", end_here)
            with pytest.raises(KillError):
                hosting.until(lambda: False)
        names = {one.name for one in registered(wanted.log)}
        assert len(names) == 2
        hosting.close()
        wanted.flows["stone.1"]["run"] = 1  # as after a kill that gives the replay up
        wanted.write()
        hosting = Hosting(spark, wanted)
        hosting.until(lambda: len({one.name for one in registered(wanted.log)}) == 1)
        version = hosting.host.groups.shared.version.of_flow("stone.1")
        assert version is not None
        assert [one.name for one in registered(wanted.log)] == [
            hosting.host.groups.shared.registered_as(version)
        ]
        log.append(100)
        hosting.through("stone.1")
        log.assert_tables(wanted.tables("stone.1"))
    finally:
        hosting.close()
        wanted.close()
