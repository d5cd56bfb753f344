"""A hosted group whose checkpoint is torn or lost: the host mends it by itself, and each row is in each table
once.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from geartrain_cloud.hosting import group
from geartrain_cloud.hosting.mending import set_aside
from geartrain_cloud.hosting.places import SHARED, HostPlaces
from geartrain_cloud.spark.checkpoint import Checkpoint
from geartrain_cloud.spark.whole import numbers
from tests.hosting.hosted import Hosting, Wanted

Damage = Callable[[Path], None]


@pytest.fixture
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wanted]:
    made = Wanted(tmp_path, monkeypatch)
    yield made
    made.close()


def newest(folder: Path) -> Path:
    return folder / str(numbers(folder)[-1])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def spoiled(path: Path) -> None:
    """Other bytes in the first block."""
    found = bytearray(path.read_bytes())
    found[21:26] = bytes(byte ^ 0xFF for byte in found[21:26])
    path.write_bytes(found)


def changes(spark: Path, back: int = 0) -> Path:
    """One of the newest files of changes of the state, `back` before the last."""
    return sorted((spark / "state/0/0").glob("*.changelog"), key=lambda one: int(one.stem))[-1 - back]


def lose_power(spark: Path) -> None:
    """The last four micro-batches, of which the disk has nothing but names."""
    for what in ("offsets", "commits"):
        for number in numbers(spark / what)[-4:]:
            emptied(spark / what / str(number))
    for path in spark.glob("state/*/*/*.changelog"):
        if int(path.stem) > numbers(spark / "offsets")[-4]:
            emptied(path)


DAMAGES: dict[str, Damage] = {
    "newest offsets gone": lambda spark: newest(spark / "offsets").unlink(),
    "newest commit cut": lambda spark: halved(newest(spark / "commits")),
    "newest state cut": lambda spark: halved(changes(spark)),
    "power lost": lose_power,
    "newest state spoiled, which only Spark sees": lambda spark: spoiled(changes(spark)),
    "metadata empty": lambda spark: emptied(spark / "metadata"),
    "state gone": lambda spark: shutil.rmtree(spark / "state"),
    "all gone": shutil.rmtree,
}


def set_aside_before_the_last_task_ends(checkpoint: Checkpoint) -> None:
    """A task of the query that has failed writes its state where the new checkpoint is to be."""
    set_aside(checkpoint)
    late = checkpoint.location / "state/0/0/999.changelog"
    late.parent.mkdir(parents=True)
    late.touch()


@pytest.mark.proof
def test_each_row_is_in_each_table_once_after_any_damage(
    spark: SparkSession, wanted: Wanted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One life after another, each of which finds the checkpoint torn in another way."""
    monkeypatch.setattr(group, "set_aside", set_aside_before_the_last_task_ends)
    logs = {"first.1": wanted.add("first.1", 0), "second.1": wanted.add("second.1", 1)}
    wanted.write()
    checkpoint = HostPlaces(wanted.state).group(SHARED).folder / "spark"
    for damage in ["", *DAMAGES]:
        if damage:
            DAMAGES[damage](checkpoint)
        hosting = Hosting(spark, wanted)
        try:
            for _ in range(5):
                for log in logs.values():
                    log.append(60)
                hosting.through(*logs)
        finally:
            hosting.close()
        for name, log in logs.items():
            assert wanted.status(name)["state"] == "running", (damage, wanted.status(name))
            log.assert_tables(wanted.tables(name))
