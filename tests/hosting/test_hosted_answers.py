"""The running sums of sensors on the host: what plain Python gives, in whatever batches Spark hands rows
over, through a damaged log and through too many dead letters.

The flow keeps what is above zero, and adds it up for each sensor; a zero and a 13 are dead letters of two of
its steps.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from geartrain.records.event_time import END_OF_TIME
from geartrain_cloud.hosting.offsets import generation_name, position_name
from geartrain_cloud.hosting.places import SHARED, HostPlaces
from geartrain_cloud.log.queries import registered
from geartrain_cloud.spark.breaker import LETTERS_MIN
from geartrain_cloud.spark.checkpoint import Checkpoint
from geartrain_cloud.spark.whole import numbers
from tests.hosting.hosted_run import INSTANCE, HostedRun
from tests.spark.flows import Reading, expected_sums, sensors, sums_flow

Records = list[tuple[Reading, int, str, int]]

ROWS_IN_ARROW = "spark.sql.execution.arrow.maxRecordsPerBatch"


def sums_run(spark: SparkSession, folder: Path, rows_max: int) -> HostedRun:
    return HostedRun(spark, folder, sums_flow().graph(), rows_max=rows_max)


def assert_exact(run: HostedRun, records: Records) -> None:
    """The tables hold what plain Python makes of the records."""
    readings = [record[0] for record in records]
    assert [reading for _, _, reading in run.records("kept")] == [r for r in readings if r.value > 0]
    assert [each for _, _, each in run.records("each")] == expected_sums(readings)
    zeros, thirteens = (sum(r.value == value for r in readings) for value in (0.0, 13.0))
    letters = sorted(step for step, *_ in run.answer().dead.elements())
    assert letters == ["adding"] * thirteens + ["positive"] * zeros


def test_rows_of_a_slot_run_in_the_order_of_the_log_however_spark_deals_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    before = str(spark.conf.get(ROWS_IN_ARROW))
    spark.conf.set(ROWS_IN_ARROW, "1")
    try:
        run = sums_run(spark, tmp_path, rows_max=100_000)
        records = sensors(2, 40_000)
        run.log.append("readings", records, rows_per_entry=5_000, clock=END_OF_TIME)
        with run.hosting() as hosting:
            hosting.until(lambda: is_kept_for(run) and run.host_folder.is_through(INSTANCE))
    finally:
        spark.conf.set(ROWS_IN_ARROW, before)
    run.log.close()
    assert_exact(run, records)
    assert_files(run)


def checkpoint_of(run: HostedRun) -> Checkpoint:
    return Checkpoint("group all", HostPlaces(run.host_folder.state).group(SHARED).folder)


def is_kept_for(run: HostedRun) -> bool:
    """The log is kept for all that Spark has not committed."""
    done, checkpoint = registered(run.log.folder), checkpoint_of(run)
    commits = numbers(checkpoint.location / "commits")
    positions = checkpoint.positions(commits[-1]) if commits else {}
    generation = generation_name(INSTANCE, 1)
    assert all(one.position <= positions.get(position_name(generation, one.key), 0) for one in done)
    return bool(done)


def assert_files(run: HostedRun) -> None:
    """Spark's offsets have the form that positions are read from, and nobody else can read its files."""
    checkpoint = checkpoint_of(run)
    newest = numbers(checkpoint.location / "offsets")[-1]
    lines = (checkpoint.location / "offsets" / str(newest)).read_text().splitlines()
    assert (len(lines), lines[0]) == (3, "v1")
    assert json.loads(lines[2]) == checkpoint.positions(newest)
    files = [path for path in checkpoint.location.rglob("*") if path.is_file()]
    assert [path for path in files if path.stat().st_mode & 0o077] == []


@pytest.mark.proof
def test_a_missing_or_damaged_segment_puts_the_flow_out_until_it_is_brought_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What comes after it is never read in its place, at the first attempt or a later one."""
    run = sums_run(spark, tmp_path, rows_max=100)
    records = sensors(3, 500)
    run.log.append("readings", records[:200], rows_per_entry=100)
    name = run.log.append("readings", records[200:300], rows_per_entry=100)
    run.log.append("readings", records[300:], rows_per_entry=100, clock=END_OF_TIME)
    segment = run.log.folder / name
    content = segment.read_bytes()
    segment.unlink()
    assert f"{INSTANCE}/0, channel readings, positions 3 to 3 ({name})" in why_out(run, attempt=1)
    kept = [r[0] for r in records[:200] if r[0].value > 0]
    assert [reading for _, _, reading in run.records("kept")] == kept
    segment.write_bytes(content[: len(content) // 2])
    assert f"positions 3 to 3 ({name})" in why_out(run, attempt=2)
    assert [reading for _, _, reading in run.records("kept")] == kept
    segment.write_bytes(content)
    want_attempt(run, 3)
    run.run()
    run.log.close()
    assert_exact(run, records)


@pytest.mark.proof
def test_too_many_dead_letters_put_the_flow_out_until_it_is_told_to_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    run = sums_run(spark, tmp_path, rows_max=2_000)
    run.host_folder.flows[INSTANCE]["letters_percent"] = 1.0
    records = sensors(4, 12_000)
    run.log.append("readings", records, rows_per_entry=100, clock=END_OF_TIME)
    attempt = held = 0
    while why := why_out(run, attempt := attempt + 1):
        assert "dead letters of" in why
        letters = run.answer().dead.total()
        assert letters >= held + LETTERS_MIN
        held = letters
    run.log.close()
    assert attempt > 1
    assert_exact(run, records)


def want_attempt(run: HostedRun, attempt: int) -> None:
    run.host_folder.flows[INSTANCE]["attempt"] = attempt
    run.host_folder.write()


def why_out(run: HostedRun, attempt: int) -> str:
    """Why the flow is put out in this attempt; empty where all of the log is in its tables."""
    want_attempt(run, attempt)
    hosting = run.host()
    try:
        hosting.until(lambda: run.host_folder.status(INSTANCE).get("generation") == attempt)
        hosting.until(
            lambda: run.host_folder.status(INSTANCE)["state"] == "out" or run.host_folder.is_through(INSTANCE)
        )
        status = run.host_folder.status(INSTANCE)
        return str(status["why"]) if status["state"] == "out" else ""
    finally:
        hosting.close()
