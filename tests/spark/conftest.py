"""One Spark session for all tests of this folder: it takes 9 to 17 s to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from geartrain_cloud.spark.session import open_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with the settings of production, on two cores."""
    session = open_session("local[2]", tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()
