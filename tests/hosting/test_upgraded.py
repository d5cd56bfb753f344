"""A host that is started by another version of the program than has prepared its flows."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from geartrain_cloud.hosting import preparing
from geartrain_cloud.hosting.errors import PreparationError
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.hosting.prepared import Prepared
from geartrain_cloud.hosting.program import program
from geartrain_cloud.hosting.wanted import WantedPlan
from geartrain_cloud.short_process import Ended
from tests.hosting.hosted import Hosting, Wanted
from tests.hosting.test_hosting import lose_the_last_commit


def make_it_of_another_program(places: HostPlaces) -> None:
    """What was prepared says so, and its pickles are none that this program could open."""
    for path in places.plans.glob("*.json"):
        held = json.loads(path.read_bytes())
        assert held["program"] == program()
        path.write_text(json.dumps(held | {"program": "another"}), encoding="utf-8")
    for path in places.plans.glob("*.plan"):
        path.unlink()


def test_flows_go_on_that_another_version_has_prepared(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Wanted(tmp_path, monkeypatch)
    logs = {name: wanted.add(name, number) for number, name in enumerate(("stone.1", "steel.1"))}
    wanted.write()
    for log in logs.values():
        log.append(300)
    hosting = Hosting(spark, wanted)
    try:
        hosting.through(*logs)
        for log in logs.values():
            log.append(100)
        hosting.through(*logs)  # the last micro-batch, which is lost below, is of the plan before it too
        before = {name: hosting.host.groups.hosted((name, 1)) for name in logs}
        hosting.close()
        lose_the_last_commit(wanted.state)  # the tables hold a micro-batch that Spark has not committed
        make_it_of_another_program(HostPlaces(wanted.state))
        (wanted.package / "mill" / "flows.py").write_text("raise ValueError('of a later day')\n")
        for log in logs.values():
            log.append(100)
        hosting = Hosting(spark, wanted)
        assert hosting.host.groups.shared.returning == {"stone.1~1", "steel.1~1"}
        hosting.close()  # before they are back: the next host brings them in
        hosting = Hosting(spark, wanted)
        hosting.through(*logs)
        for name, log in logs.items():
            log.assert_tables(wanted.tables(name))
            former, hosted = before[name], hosting.host.groups.hosted((name, 1))
            assert former is not None
            assert hosted is not None
            assert (hosted.generation, hosted.code) == (2, former.code)  # not what is installed by now
            assert hosted.identity == former.identity
    finally:
        hosting.close()
        wanted.close()


def test_what_replaced_files_have_prepared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = Prepared("p", {}, 1, (), (), (), program="of a later day")

    async def run_short(*_: object) -> Ended:
        return Ended(0, msgspec.json.encode(prepared), b"")

    monkeypatch.setattr(preparing, "run_short", run_short)
    one = preparing.Preparing(HostPlaces(tmp_path))
    with pytest.raises(PreparationError, match=r"^flow stone\.1: the files of Geartrain were replaced while"):
        one.prepare("stone.1", WantedPlan("mill.flows:flow0"))
    one.close()
