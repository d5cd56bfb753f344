"""Spark's Python workers are this interpreter, with modules that were compiled before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from geartrain_cloud.spark.session import _with_retries
from geartrain_cloud.spark.worker_python import worker_python


def test_the_program_is_this_interpreter_with_the_module_path_that_was_given(tmp_path: Path) -> None:
    folder = tmp_path / "it's here"
    program = worker_python(folder, f"/a b:{tmp_path}")
    assert Path(program).stat().st_mode & 0o777 == 0o700
    asked = [program, "-c", "import sys; print(sys.executable, sys.path[1:3], sys.argv[1])", "$x"]
    said = subprocess.run(
        asked,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": "/spark/pyspark.zip"},
    )
    assert said.stdout.split("\n")[0] == f"{sys.executable} ['/a b', '{tmp_path}'] $x"


def test_where_nothing_may_be_run_it_is_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert worker_python(tmp_path, "/a") == sys.executable


def test_workers_import_pyspark_as_it_is_installed(spark: SparkSession) -> None:
    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark

        yield pa.RecordBatch.from_pylist([{"place": pyspark.__file__} for batch in batches if len(batch)])

    (row,) = spark.range(1, numPartitions=1).mapInArrow(where, "place string").collect()
    import pyspark

    assert row["place"] == pyspark.__file__


@pytest.mark.parametrize(
    ("master", "given"),
    [
        ("local", "local[1,4]"),
        ("local[2]", "local[2,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2,1]", "local[2,1]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_a_local_master_runs_a_task_again_as_a_cluster_does(master: str, given: str) -> None:
    assert _with_retries(master) == given
