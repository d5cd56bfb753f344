"""Checkpoints, locks, shards and traces: what is read of Spark, and what is refused in one sentence."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from geartrain.records.keys import encode_key
from geartrain_cloud.spark.checkpoint import Checkpoint
from geartrain_cloud.spark.error_texts import root_cause
from geartrain_cloud.spark.errors import QueryError
from geartrain_cloud.spark.lock import StateLock
from geartrain_cloud.spark.shards import shard_labels, shard_of


def offsets(checkpoint: Checkpoint, batch_id: int, text: str) -> None:
    path = checkpoint.location / "offsets" / str(batch_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_end_positions_are_those_of_the_offset_log(tmp_path: Path) -> None:
    checkpoint = Checkpoint("group all", tmp_path / "all")
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


def test_only_one_host_has_a_state_folder(tmp_path: Path) -> None:
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


def test_lock_waits_for_what_a_dead_host_left_running(tmp_path: Path) -> None:
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
        with pytest.raises(QueryError, match="another host"):
            StateLock(tmp_path, wait_s=0.3)
        StateLock(tmp_path, wait_s=20).release()


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
