"""Checkpoints that are torn or lost: refused with one sentence that names the file, and made again from the
log, so that the tables hold each row once.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.ports import Entry
from geartrain_cloud.sinks.opening import open_tables
from geartrain_cloud.sinks.store import Tables
from geartrain_cloud.spark.checkpoint import open_checkpoint
from geartrain_cloud.spark.compile import KEYED, STATELESS, Query, compile_queries
from geartrain_cloud.spark.driver import EXIT_REFUSED
from geartrain_cloud.spark.errors import RefusedError
from geartrain_cloud.spark.restore import restored_checkpoint, sound_checkpoint
from geartrain_cloud.spark.shards import SHARDS
from geartrain_cloud.spark.whole import TORN_FILE, check_whole
from tests.spark.cloud import Cloud
from tests.spark.faults.drivers import PRODUCTION, ROOT, Drivers
from tests.spark.faults.flows import HeldLog, assert_tables, held_flow
from tests.waiting import WAIT_S

Damage = Callable[[Path], Path]


@dataclass
class Made:
    """A run that has stopped, in mid-flow."""

    cloud: Cloud
    log: HeldLog

    def query(self, name: str = KEYED) -> Query:
        return next(query for query in compile_queries(self.cloud.plan) if query.name == name)

    def tables(self) -> Tables:
        return open_tables(self.cloud.plan.graph, self.cloud.tables_file)

    def folder(self, name: str = KEYED) -> Path:
        return self.cloud.checkpoints() / name


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    cloud = Cloud(spark, tmp_path_factory.mktemp("made"), rows_max=60, flow=held_flow())
    log = HeldLog(cloud.writer)
    log.append(240)
    cloud.run()
    return Made(cloud, log)


def newest(folder: Path) -> Path:
    return max((one for one in folder.iterdir() if one.name.isdecimal()), key=lambda one: int(one.name))


def emptied(path: Path) -> Path:
    path.write_bytes(b"")
    return path


def halved(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def gone(path: Path) -> Path:
    path.unlink()
    return path


def gone_folder(path: Path) -> Path:
    shutil.rmtree(path)
    return path


def last_change(spark_folder: Path) -> Path:
    return max((spark_folder / "state/0/0").glob("*.changelog"), key=lambda one: int(one.stem))


DAMAGES: dict[str, Damage] = {
    "metadata empty": lambda folder: emptied(folder / "metadata"),
    "metadata cut": lambda folder: halved(folder / "metadata"),
    "metadata gone": lambda folder: gone(folder / "metadata"),
    "newest offsets empty": lambda folder: emptied(newest(folder / "offsets")),
    "newest offsets cut": lambda folder: halved(newest(folder / "offsets")),
    "newest offsets gone": lambda folder: gone(newest(folder / "offsets")),
    "newest commit empty": lambda folder: emptied(newest(folder / "commits")),
    "newest commit cut": lambda folder: halved(newest(folder / "commits")),
    "commits gone": lambda folder: gone_folder(folder / "commits"),
    "state empty": lambda folder: emptied(last_change(folder)),
    "state gone": lambda folder: gone(last_change(folder)),
    "part of the state gone": lambda folder: gone_folder(folder / "state/0/1"),
    "all state gone": lambda folder: gone_folder(folder / "state"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_torn_checkpoint_is_refused_and_the_file_named(made: Made, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / KEYED
    shutil.copytree(made.folder(), folder)
    checkpoint = open_checkpoint(folder, made.query(), SHARDS)
    check_whole(checkpoint, keeps_state=True)
    path = DAMAGES[damage](folder / "spark")
    with pytest.raises(RefusedError) as refused:
        check_whole(checkpoint, keeps_state=True)
    said = str(refused.value)
    assert said.startswith("query 'keyed': its checkpoint is not whole, ")
    assert str(path) in said
    assert (
        "bring the checkpoint back from a copy, make it again from the log with --restore, or empty" in said
    )
    assert "\n" not in said


def test_every_micro_batch_of_the_checkpoint_but_the_last_may_be_gone(made: Made, tmp_path: Path) -> None:
    """Spark clears them away itself."""
    folder = tmp_path / KEYED
    shutil.copytree(made.folder(), folder)
    for what in ("offsets", "commits"):
        for one in (folder / "spark" / what).iterdir():
            if one != newest(folder / "spark" / what):
                one.unlink()
    check_whole(open_checkpoint(folder, made.query(), SHARDS), keeps_state=True)


def test_the_driver_says_so_before_spark_starts(made: Made, tmp_path: Path) -> None:
    drivers = Drivers(tmp_path)
    for name in ("log", "tables.sqlite"):
        (tmp_path / name).symlink_to(made.cloud.folder / name)
    shutil.copytree(made.cloud.checkpoints(), tmp_path / "state" / "checkpoints")
    path = emptied(newest(drivers.checkpoint / "spark" / "offsets"))
    command = [sys.executable, "-m", PRODUCTION, "--config", str(drivers.config)]
    ended = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S)
    assert ended.returncode == EXIT_REFUSED
    (said,) = ended.stderr.splitlines()
    assert said.startswith(f"driver: query 'keyed': its checkpoint is not whole, {path}: it is empty; bring")
    status = json.loads((tmp_path / "state" / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("failed", said.removeprefix("driver: "))


@pytest.mark.proof
def test_lost_checkpoints_are_made_again_and_each_row_is_there_once(made: Made) -> None:
    """The last of this file, also where it runs apart: it changes what the others copy."""
    cloud = made.cloud
    # State that only Spark finds torn, for its end is missing, is refused at every start from then on.
    cloud.lose_the_last_commit()
    spark_folder = made.folder() / "spark"
    halved(spark_folder / "state/0/0" / f"{int(newest(spark_folder / 'commits').name) + 1}.changelog")
    with pytest.raises(
        RefusedError, match=r"state: Spark cannot load it \(.*EOFException.* --restore"
    ) as first:
        cloud.run([KEYED], again=True)
    assert (made.folder() / TORN_FILE).exists()
    tables = made.tables()
    with pytest.raises(RefusedError) as again:
        sound_checkpoint(made.query(), made.folder(), tables, SHARDS)
    assert str(again.value) == str(first.value)
    shutil.rmtree(made.folder(STATELESS))
    with pytest.raises(RefusedError, match=r"stateless is missing, but .* holds what it wrote .* --restore"):
        sound_checkpoint(made.query(STATELESS), made.folder(STATELESS), tables, SHARDS)

    for name in (STATELESS, KEYED):
        stands = tables.positions(name)
        checkpoint = restored_checkpoint(made.query(name), made.folder(name), tables, SHARDS, cloud.reader)
        assert checkpoint.restored == (stands,)
        assert sound_checkpoint(made.query(name), made.folder(name), tables, SHARDS) == checkpoint
    tables.close()
    assert (cloud.folder / "set-aside" / KEYED / "identity.json").exists()

    made.log.append(120)
    cloud.run([KEYED], batches=2)  # and stopped at once, before it has come to where the tables stand
    made.log.append(90)
    made.log.end()
    cloud.run()
    assert_tables(cloud.tables_file, made.log.records)


class Short(LogReader):
    """A log that was lost and begun anew."""

    def positions(self, flow: str) -> dict[str, int]:
        return {}


class Trimmed(LogReader):
    """A log of which retention has removed the rows."""

    def entries(self, *asked: Any) -> list[Entry]:
        return [replace(entry, segment="") for entry in super().entries(*asked)]


def test_what_cannot_be_made_again_is_refused_and_nothing_changed(made: Made, tmp_path: Path) -> None:
    tables, query = made.tables(), made.query()
    folder = tmp_path / KEYED
    with pytest.raises(RefusedError, match=r"the tables stand at position \d+, but the log ends at 0"):
        restored_checkpoint(query, folder, tables, SHARDS, Short(made.cloud.log_folder))
    with pytest.raises(RefusedError, match=r"retention has removed the rows of held/0 up to position \d"):
        restored_checkpoint(query, folder, tables, SHARDS, Trimmed(made.cloud.log_folder))
    assert not folder.exists()
    tables.close()
