"""What is read in the sentences of Spark stands in the classes of the version that is installed."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pyspark
import pytest

from geartrain_cloud.spark import error_texts
from geartrain_cloud.spark.error_texts import has_lost_state, root_cause, waits_for_data

JARS = Path(pyspark.__file__).parent / "jars"


@pytest.mark.parametrize(
    ("jar", "folder", "text"),
    [
        ("spark-sql_*.jar", "org/apache/spark/sql/execution/streaming/", error_texts._NOTHING_NEW),
        ("spark-common-utils_*.jar", "error/", error_texts._STATE_LOST.strip("[")),
    ],
)
def test_spark_has_the_text(jar: str, folder: str, text: str) -> None:
    (path,) = JARS.glob(jar)
    with zipfile.ZipFile(path) as archive:
        inside = [one for one in archive.namelist() if one.startswith(folder) and not one.endswith("/")]
        assert any(text.encode() in archive.read(one) for one in inside)


def test_a_text_of_another_form_is_no_special_case() -> None:
    assert not has_lost_state("Job aborted")
    assert not waits_for_data("Processing new data")
    assert root_cause("Job aborted\n  at x") == "Job aborted"
    assert has_lost_state(f"org.apache.spark.SparkException: {error_texts._STATE_LOST}.UNCATEGORIZED] x")
    assert waits_for_data(error_texts._NOTHING_NEW)
