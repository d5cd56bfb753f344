"""Checkpoints, locks, shards and settings: what belongs together, and what is refused in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from geartrain.errors import ConfigError
from geartrain.planning import make_plan
from geartrain.records.keys import encode_key
from geartrain_cloud.spark.checkpoint import Checkpoint, open_checkpoint, remove_checkpoint
from geartrain_cloud.spark.compile import Query, compile_queries
from geartrain_cloud.spark.config import read_config
from geartrain_cloud.spark.error_texts import has_lost_process, root_cause
from geartrain_cloud.spark.errors import QueryError
from geartrain_cloud.spark.lock import StateLock
from geartrain_cloud.spark.shards import shard_labels, shard_of
from geartrain_cloud.spark.status import StatusFile
from tests.spark.flows import sums_flow


@pytest.fixture
def query() -> Query:
    return compile_queries(make_plan(sums_flow().graph(), "cloud"))[1]


def offsets(checkpoint: Checkpoint, batch_id: int, text: str) -> None:
    path = checkpoint.location / "offsets" / str(batch_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_checkpoint_keeps_its_identity_and_shards(tmp_path: Path, query: Query) -> None:
    first = open_checkpoint(tmp_path / "keyed", query, 4)
    assert open_checkpoint(tmp_path / "keyed", query, 16) == first
    assert first.shards == 4
    (first.location / "commits").mkdir(parents=True)
    (first.location / "commits" / ".0.crc").touch()
    assert not first.has_run
    (first.location / "commits" / "0").touch()
    assert open_checkpoint(tmp_path / "keyed", query, 4).has_run
    remove_checkpoint(first.folder)
    assert open_checkpoint(tmp_path / "keyed", query, 4).identity != first.identity


def test_checkpoint_of_another_cut_is_refused(tmp_path: Path, query: Query) -> None:
    open_checkpoint(tmp_path / "keyed", query, 4)
    other = compile_queries(make_plan(sums_flow().graph(), ["positive"]))[1]
    with pytest.raises(
        QueryError, match="was made for stages by_sensor positive, adding each last, this run"
    ):
        open_checkpoint(tmp_path / "keyed", other, 4)


def test_checkpoint_that_is_not_whole_is_refused(tmp_path: Path, query: Query) -> None:
    checkpoint = open_checkpoint(tmp_path / "keyed", query, 4)
    identity = checkpoint.folder / "identity.json"
    identity.write_text("{")
    with pytest.raises(QueryError, match="cannot be read"):
        open_checkpoint(checkpoint.folder, query, 4)
    offsets(checkpoint, 0, "")
    identity.unlink()
    with pytest.raises(QueryError, match=r"without its identity\.json"):
        open_checkpoint(checkpoint.folder, query, 4)


def test_end_positions_are_those_of_the_offset_log(tmp_path: Path, query: Query) -> None:
    checkpoint = open_checkpoint(tmp_path / "keyed", query, 4)
    assert checkpoint.positions(-1) == {}
    offsets(checkpoint, 0, 'v1\n{"batchWatermarkMs":0}\n{"0": 7}')
    assert checkpoint.positions(0) == {"0": 7}
    wrong = ["", "v1\n{}\n", "v9\n{}\n{}", "v1\n{}\n-", "v1\n{}\n{}\n{}", 'v1\n{}\n{"a": "b"}', "v1\n{}\n[1]"]
    for text in wrong:
        offsets(checkpoint, 1, text)
        with pytest.raises(QueryError, match="offset log"):
            checkpoint.positions(1)
    with pytest.raises(QueryError, match="offset log"):
        checkpoint.positions(2)


@pytest.mark.parametrize(("shards", "partitions"), [(4, 1), (4, 2), (4, 4), (8, 3), (16, 5)])
def test_shards_are_dealt_evenly(shards: int, partitions: int) -> None:
    labels = shard_labels(shards, partitions)
    assert len(set(labels)) == shards
    keys = Counter(shard_of(encode_key(f"key-{n}"), shards) for n in range(4_000))
    assert min(keys.values()) > 4_000 / shards / 2


PYTHON = (sys.executable, "-c")
HOLDER = """
import sys, time
from pathlib import Path
from geartrain_cloud.spark.lock import StateLock
lock = StateLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_only_one_driver_has_a_state_folder(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(QueryError, match=f"process {holder.pid}"):
            StateLock(tmp_path)
        holder.kill()
    StateLock(tmp_path).release()
    StateLock(tmp_path).release()


def test_lock_waits_for_what_a_dead_driver_left_running(tmp_path: Path) -> None:
    """A child that holds the descriptor lives on, as Spark's JVM does for a moment."""
    leave = "import subprocess; subprocess.Popen(['sleep', '2'], pass_fds=[lock.descriptor])\n"
    script = HOLDER.replace("print(", leave + "print(")
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    with holder:
        assert holder.stdout.readline() == "held\n"
        holder.kill()
        holder.wait()
        with pytest.raises(QueryError, match="another driver"):
            StateLock(tmp_path, wait_s=0.3)
        StateLock(tmp_path, wait_s=20).release()


def write_config(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "driver.toml"
    path.write_text(text)
    return path


MINIMAL = 'flow = "tests.spark.flows:flow"\nlog = "log"\nstate = "driver"\ntables = "/x/tables.sqlite"\n'


def test_config_is_read(tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path, MINIMAL + 'cut = ["positive"]\n'))
    assert (config.log, config.tables) == (tmp_path / "log", Path("/x/tables.sqlite"))
    assert config.status_file == tmp_path / "driver" / "status.json"
    assert config.plan().cloud == ("kept", "by_sensor", "adding", "each", "last")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("flow", "is not a TOML file"),
        ("", "flow is missing"),
        (MINIMAL + "rows = 5", "rows is not a key of this file; its keys: flow, log"),
        (MINIMAL + 'rows_max = "5"', "rows_max: expected `int`"),
        (MINIMAL + "rows_max = 0", "rows_max: expected `int` >= 1"),
        (MINIMAL.replace('"log"', '""'), "log: expected `str` of length >= 1"),
        (MINIMAL + "[steps]\nadding = 3", "steps"),
    ],
)
def test_wrong_config_names_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    path = write_config(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        read_config(path)
    assert said in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MINIMAL.replace("flows:flow", "flows:flaw"), "flow: "),
        (MINIMAL + 'cut = "adding"\n[steps.nothing]\nx = 1', "has no step 'nothing'"),
        (MINIMAL + 'cut = "each"', "cut: step 'each' cannot be on the edge"),
        (MINIMAL + "[steps.adding]\nperiod = 3", "no option 'period'"),
    ],
)
def test_wrong_flow_names_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    config = read_config(write_config(tmp_path, text))
    with pytest.raises(ConfigError) as raised:
        config.plan()
    assert said in str(raised.value)
    assert config.path in str(raised.value)


def test_status_is_written_at_most_twice_a_second(tmp_path: Path) -> None:
    now = [100.0]
    path = tmp_path / "status.json"
    status = StatusFile(path, "sums", lambda: now[0])
    status.enter("waiting")
    assert path.stat().st_mode & 0o777 == 0o600
    for step in range(10):
        now[0] += 0.125
        status.show(lambda step=step: {"queries": {"keyed": step}})  # type: ignore[misc]
    held = json.loads(path.read_text())
    assert held["queries"] == {"keyed": 7}
    status.show(lambda: {"queries": {}})
    assert json.loads(path.read_text()) == held
    status.enter("failed", "it broke")
    last = json.loads(path.read_text())
    assert (last["state"], last["reason"], last["finished"]) == ("failed", "it broke", False)
    assert last["pid"] == os.getpid()


TRACE = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted
Traceback (most recent call last):
  File "a.py", line 3, in read
    raise LedgerError(
geartrain.errors.LedgerError: segment x is damaged: restore it

    at org.apache.spark.Something(File.java:1)
"""


def test_the_sentence_is_found_in_a_trace() -> None:
    assert root_cause(TRACE) == "segment x is damaged: restore it"
    assert root_cause(TRACE.replace("geartrain.errors.Ledger", "Value")).startswith("ValueError: segment x")
    assert root_cause("\n\nJob aborted\n  at x") == "Job aborted"
    assert root_cause("") == "Spark gave no reason"
    java = "a.Failed: a\n\tat x\nCaused by: b.Failed: b\n\tat y\nCaused by: java.io.EOFException: end"
    assert root_cause(java) == "java.io.EOFException: end"


def test_a_process_that_died_is_told_from_one_that_refused() -> None:
    died = "java.io.EOFException\n\tat org.apache.spark.sql.x.PythonStreamingSourceRunner.latestOffset"
    assert has_lost_process(died)
    assert has_lost_process("org.apache.spark.SparkException: Python worker failed to connect back.")
    assert not has_lost_process(f"{TRACE}\n{died}")
    assert not has_lost_process("Job aborted")
