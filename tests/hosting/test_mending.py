"""A group's checkpoint of which files are empty, short or missing: where it is cut back to, and when it
begins anew. Without Spark; a kill may come at each step.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from geartrain_cloud.hosting import group as group_module
from geartrain_cloud.hosting import mending
from geartrain_cloud.hosting.admission import Admission, Member
from geartrain_cloud.hosting.errors import HostError
from geartrain_cloud.hosting.group import Group
from geartrain_cloud.hosting.mending import cut_back, damage_of, set_aside
from geartrain_cloud.hosting.offsets import PLAN, count_name, position_name
from geartrain_cloud.hosting.places import ASIDE, GroupPlaces, HostPlaces
from geartrain_cloud.hosting.prepared import Prepared
from geartrain_cloud.hosting.source import HostReader
from geartrain_cloud.hosting.steering import Out, Steering, SteeringFile, Stop
from geartrain_cloud.hosting.versions import Version, Versions
from geartrain_cloud.hosting.wanted import SHARED_STAGES
from geartrain_cloud.log.queries import Registration, commit, register
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.sinks.app_tables import AppTables
from geartrain_cloud.spark.checkpoint import Checkpoint
from geartrain_cloud.spark.compile import HOSTED
from geartrain_cloud.spark.errors import QueryError
from geartrain_cloud.spark.whole import check_whole, numbers
from tests.hosting.mill_log import MillLog
from tests.hosting.test_group import group_of, places, version

__all__ = ["places"]

END = b"LZ4Block\x15" + bytes(12)
"""Of a file of changes."""
BLOCK = b"LZ4Block\x15" + (5).to_bytes(4, "little") * 2 + bytes(4) + b"12345"
NAME = "stone.1~1"
BATCHES = 6
STAGES = SHARED_STAGES
KEPT = 4
"""The micro-batch before the last."""


def offsets_of(batch_id: int, plan: int = 2) -> dict[str, int]:
    return {PLAN: plan, position_name(NAME, "0"): batch_id + 1, count_name(NAME): batch_id}


def filled(folder: Path) -> Path:
    """A checkpoint of six micro-batches, two stages with two parts of state; Spark's folder in it."""
    spark = folder / "spark"
    for name in ("offsets", "commits"):
        (spark / name).mkdir(parents=True)
    (spark / "metadata").write_text('{"id":"0"}')
    conf = json.dumps({"conf": {"spark.sql.shuffle.partitions": "2"}})
    for batch_id in range(BATCHES):
        (spark / "offsets" / str(batch_id)).write_text(f"v1\n{conf}\n{json.dumps(offsets_of(batch_id))}")
        (spark / "commits" / str(batch_id)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        for stage, part in product(range(STAGES), range(2)):
            path = spark / "state" / str(stage) / str(part) / f"{batch_id + 1}.changelog"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(BLOCK + END)
    for stage in range(STAGES):
        (spark / "state" / str(stage) / "_metadata/v2").mkdir(parents=True)
        (spark / "state" / str(stage) / "_metadata/v2/0").write_text("v2\n{}")
    return spark


@pytest.fixture
def own(places: HostPlaces) -> GroupPlaces:
    """A group with a flow and a whole checkpoint."""
    found = places.group("all")
    group_of(places)
    Versions(found.versions).publish(version(2))
    filled(found.folder)
    return found


def checkpoint_of(own: GroupPlaces) -> Checkpoint:
    return Checkpoint("group all", own.folder)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def removed(*paths: Path) -> None:
    for path in paths:
        path.unlink()


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def lose_the_last_three(spark: Path) -> None:
    for path in spark.rglob("*"):
        number = path.name.partition(".")[0]
        if path.is_file() and number.isdecimal() and int(number) > (3 if path.suffix else 2):
            emptied(path)


DAMAGES: dict[str, tuple[Callable[[Path], Any], int | None]] = {
    "newest offsets gone": (lambda spark: removed(spark / "offsets/5"), KEPT),
    "newest offsets empty": (lambda spark: emptied(spark / "offsets/5"), KEPT),
    "newest offsets cut": (lambda spark: halved(spark / "offsets/5"), KEPT),
    "newest commit empty": (lambda spark: emptied(spark / "commits/5"), KEPT),
    "newest commit cut": (lambda spark: halved(spark / "commits/5"), KEPT),
    "newest commits gone": (lambda spark: removed(spark / "commits/4", spark / "commits/5"), 3),
    "offsets below gone": (lambda spark: removed(spark / "offsets/4", spark / "offsets/5"), 3),
    "newest state gone": (lambda spark: (spark / "state/0/1/6.changelog").unlink(), KEPT),
    "newest state empty": (lambda spark: emptied(spark / "state/0/1/6.changelog"), KEPT),
    "newest state cut": (lambda spark: halved(spark / "state/0/0/6.changelog"), KEPT),
    "newest state without its end": (
        lambda spark: (spark / "state/0/0/6.changelog").write_bytes(BLOCK),
        KEPT,
    ),
    "newest state of zeros": (lambda spark: (spark / "state/0/0/6.changelog").write_bytes(bytes(47)), KEPT),
    "three micro-batches empty": (lose_the_last_three, 2),
    "metadata gone": (lambda spark: (spark / "metadata").unlink(), 5),
    "metadata cut": (lambda spark: halved(spark / "metadata"), 5),
    "first state gone": (lambda spark: (spark / "state/0/1/1.changelog").unlink(), None),
    "part of the state gone": (lambda spark: shutil.rmtree(spark / "state/0/1"), None),
    "what the state is gone": (lambda spark: emptied(spark / "state/0/_metadata/v2/0"), None),
    "what the state is lost": (lambda spark: shutil.rmtree(spark / "state/1/_metadata"), None),
    "state of a stage gone": (lambda spark: shutil.rmtree(spark / "state/1"), None),
    "state gone": (lambda spark: shutil.rmtree(spark / "state"), None),
    "commits gone": (lambda spark: shutil.rmtree(spark / "commits"), None),
    "all gone": (shutil.rmtree, None),
}


class Killed(BaseException):
    """The host ends here."""


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_torn_checkpoint_is_cut_back_to_what_is_whole(
    own: GroupPlaces, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    checkpoint, versions = checkpoint_of(own), Versions(own.versions)
    assert damage_of(checkpoint, versions, stages=STAGES) is None
    tear, whole = DAMAGES[damage]
    tear(checkpoint.location)
    versions.forget_before(2)
    found = damage_of(checkpoint, Versions(own.versions), stages=STAGES)
    assert found is not None
    assert found.whole == whole
    if whole is None:
        return
    copied = checkpoint.location.with_name("before")
    shutil.copytree(checkpoint.location, copied)
    for comes_back in (0.0, 0.5, 1.0):  # of what was removed and not synced, at a loss of power
        shutil.rmtree(checkpoint.location)
        shutil.copytree(copied, checkpoint.location)
        with monkeypatch.context() as patched:
            end_amid_cutting_back(checkpoint, versions, whole, Removals(patched, comes_back))
        check_whole(checkpoint, stages=STAGES)
        assert numbers(checkpoint.location / "commits")[-1] == whole
        assert numbers(checkpoint.location / "offsets")[-1] in (whole, whole + 1)


class Removals:
    """Files that were removed, and the folders that were synced since; the host ends amid them."""

    def __init__(self, patches: pytest.MonkeyPatch, comes_back: float) -> None:
        """comes_back: of those whose folder was not synced, how many at a loss of power, from 0 to 1."""
        self._unlink, self._comes_back, self._random = Path.unlink, comes_back, random.Random(7)
        self.left = 0
        """So many are removed before the end."""
        self._gone: dict[Path, bytes] = {}
        patches.setattr(Path, "unlink", lambda path, missing_ok=False: self.remove(path))
        patches.setattr(mending, "fsync_path", self.sync)

    def remove(self, path: Path) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed
        if path.exists():
            self._gone[path] = path.read_bytes()
            self._unlink(path)

    def sync(self, folder: Path) -> None:
        self._gone = {path: raw for path, raw in self._gone.items() if path.parent != folder}

    def lose_power(self) -> None:
        for path, raw in self._gone.items():
            if self._random.random() < self._comes_back:
                path.write_bytes(raw)
        self._gone = {}


def end_amid_cutting_back(checkpoint: Checkpoint, versions: Versions, whole: int, removals: Removals) -> None:
    """Cut back, with an end after each file that is removed."""
    for count in range(200):
        removals.left = count
        try:
            cut_back(checkpoint, whole)
        except Killed:
            removals.lose_power()
            again = damage_of(checkpoint, versions, stages=STAGES)
            changes = checkpoint.location.rglob("*.changelog")
            left_over = [path for path in changes if int(path.stem) > whole + 1]
            assert not left_over if again is None else again.whole == whole
        else:
            removals.lose_power()  # Spark's newest files have not come yet
            assert damage_of(checkpoint, versions, stages=STAGES) is None
            assert not [
                path for path in checkpoint.location.rglob("*.changelog") if int(path.stem) > whole + 1
            ]
            return
    raise AssertionError("it was never done")


def test_a_checkpoint_is_not_cut_back_behind_a_change_that_its_plan_has_forgotten(own: GroupPlaces) -> None:
    Versions(own.versions).publish(version(3))
    spark = own.folder / "spark"
    path = spark / "offsets/5"
    path.write_text(path.read_text().replace('"!plan": 2', '"!plan": 3'))
    Versions(own.versions).forget_before(3)
    emptied(spark / "commits/5")
    found = damage_of(checkpoint_of(own), Versions(own.versions), stages=STAGES)
    assert found is not None
    assert found.whole is None


@pytest.mark.parametrize(("count", "whole"), [(3, 3), (4, None)])
def test_a_flow_goes_on_only_from_where_its_next_generation_begins(
    own: GroupPlaces, count: int, whole: int | None
) -> None:
    """The tables' generation went over to the next one, and Spark has lost that."""
    versions = Versions(own.versions)
    hosted = versions.read(2).flows[NAME]
    later = replace(hosted, generation=2, begin={"0": count + 1}, begin_count=count)
    versions.publish(Version(3, 2, {later.name: later}))
    for batch_id in (4, 5):
        emptied(own.folder / "spark/commits" / str(batch_id))
    found = damage_of(checkpoint_of(own), versions, stages=STAGES)
    assert found is not None
    assert found.whole == whole


def steps(monkeypatch: pytest.MonkeyPatch, left: list[int]) -> None:
    """Have each step of a checkpoint that begins anew be the last one, as often as is left."""

    def ending(owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        def step(*given: Any) -> Any:
            found = plain(*given)
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return found

        monkeypatch.setattr(owner, name, step)

    ending(group_module, "set_aside")
    ending(Registration, "unregister")
    ending(Registration, "register")
    ending(SteeringFile, "save")
    ending(Versions, "publish")
    ending(Versions, "forget_before")


def test_a_lost_checkpoint_begins_anew_whatever_ends_the_host_amid_that(
    places: HostPlaces, own: GroupPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = places.folder.parent / "log"
    register(log, f"{HOSTED}@i", "stone.1", ["0"])
    commit(log, f"{HOSTED}@i", "stone.1", {"0": 4})
    SteeringFile(own.steering).save(Steering(out={NAME: Out("its code hung", {"0": 5}, 4)}))
    Versions(own.versions).forget_before(2)
    shutil.rmtree(own.folder / "spark" / "state")
    left = [0]
    with monkeypatch.context() as patched:
        steps(patched, left)
        for count in range(30):
            left[0] = count
            try:
                group = group_of(places)
            except Killed:
                continue
            break
        else:
            raise AssertionError("it was never done")
    assert not (own.folder / "spark").exists()
    assert (own.folder / ASIDE / "commits" / "5").exists()
    hosted = group.version.flows[NAME]
    assert (hosted.begin, hosted.begin_count, hosted.labels) == ({}, -1, (2, 3))
    assert Versions(own.versions).oldest() == group.version.number > 2
    assert Registration(log, HOSTED, "i", "stone.1").positions() == {"0": 0}
    assert (group.out[NAME].positions, group.out[NAME].count) == ({"0": 0}, -1)
    assert not group.out[NAME].is_lost
    options = {"log": log, "host": places.folder, "group": "all", "readers": 2}
    begins = {PLAN: group.version.number, position_name(NAME, "0"): 0, count_name(NAME): -1}
    assert HostReader(options).initialOffset() == begins


@pytest.mark.parametrize(
    ("revision", "removed", "why"), [(2, 0, "gear replay stone"), (1, 3, "gear restore")]
)
def test_a_flow_whose_state_cannot_be_made_again_is_out_for_good(
    places: HostPlaces,
    own: GroupPlaces,
    monkeypatch: pytest.MonkeyPatch,
    revision: int,
    removed: int,
    why: str,
) -> None:
    monkeypatch.setattr(LogReader, "removed", lambda *_: removed)
    Versions(own.versions).publish(version(3, revision))
    Versions(own.versions).forget_before(3)
    shutil.rmtree(own.folder / "spark")
    group = group_of(places)
    out = group.out[NAME]
    assert out.is_lost
    assert why in out.why
    assert group.returning == set()
    prepared = Prepared("p", {}, 1, ("readings",), ("readings",), ())
    member = Member(AppTables(places.folder / "tables.sqlite"))
    admission = Admission("stone.1", "other", prepared, member, revision=revision)
    refused = group.publish([admission])
    assert str(refused["stone.1", 1]) == out.why
    stateless = replace(version(3, revision).flows[NAME], stages=0, begin={"0": 2}, begin_count=1)
    again = mending.begun_anew(stateless, LogReader(places.folder.parent / "log"), {"0": 7})
    assert (again.begin, again.begin_count) == ({"0": 7}, -1)
    with pytest.raises(HostError, match=why):
        mending.begun_anew(replace(stateless, stages=1), LogReader(places.folder.parent / "log"), {})


class Failing:
    """A query that cannot load its state."""

    has_lost_state = True

    def __init__(self) -> None:
        self.starts = 0

    def why(self, writer: object) -> str:
        return "EOFException"

    def start_again(self, writer: object) -> None:
        self.starts += 1


def test_state_that_spark_cannot_load_is_made_again_once(places: HostPlaces, own: GroupPlaces) -> None:
    group: Group = group_of(places)
    failing = Failing()
    group.query = failing  # type: ignore[assignment]
    group._start_again()
    assert numbers(own.folder / "spark" / "commits")[-1] == 5  # as far as can be seen it is whole
    group._start_again()
    assert not (own.folder / "spark").exists()
    assert (own.folder / ASIDE).exists()
    group._start_again()
    assert failing.starts == 3
    with pytest.raises(QueryError, match=r"state that was just made again .* gear restore"):
        group._start_again()
    assert failing.starts == 3


def test_state_before_the_first_micro_batch_is_no_state(own: GroupPlaces) -> None:
    """Tasks of a query that has failed may write after its checkpoint was set aside."""
    checkpoint = checkpoint_of(own)
    set_aside(checkpoint)
    late = checkpoint.location / "state" / "0" / "0" / "5.changelog"
    late.parent.mkdir(parents=True)
    late.touch()
    checkpoint.clear_drafts()
    assert not (checkpoint.location / "state").exists()
    late.parent.mkdir(parents=True)
    late.touch()
    (checkpoint.location / "offsets").mkdir()
    (checkpoint.location / "offsets" / "0").touch()
    checkpoint.clear_drafts()
    assert late.exists()


def test_what_is_made_again_ends_where_the_tables_say(places: HostPlaces, own: GroupPlaces) -> None:
    """The count stands still until there, then it is that of the tables, and so for the next stop."""
    log = places.folder.parent / "log"
    mill = MillLog(log, "stone.1", 0)
    mill.append(1_000)  # twenty entries of fifty
    mill.writer.close()
    budget = replace(version(2).flows[NAME], rows_max=150, channels=("readings",))
    Versions(own.versions).publish(Version(2, 2, {NAME: budget}))
    stops = (Stop(5, {"0": 7}), Stop(6, {"0": 12}, undivided=True))
    SteeringFile(own.steering).save(Steering(stops={NAME: stops}))
    reader = HostReader({"log": log, "host": places.folder, "group": "all", "readers": 2})
    offsets = {PLAN: 2, position_name(NAME, "0"): 0, count_name(NAME): -1}
    found = []
    for _ in range(5):
        offsets = reader.latestOffset(offsets, reader.getDefaultReadLimit())
        found.append((offsets[position_name(NAME, "0")], offsets[count_name(NAME)]))
    assert found == [(3, -1), (6, -1), (7, 5), (12, 6), (15, 7)]
