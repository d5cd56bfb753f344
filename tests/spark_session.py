"""One Spark session for all tests of a run that ask for `spark`: it takes 9 to 17 s and a JVM to start.

Where files of tests run side by side, all that ask for it are given to one process (`scope_of`). Guarantees:
a file that asks for the session in a way that is not seen here fails when it is collected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHARED = "files that share Spark's session"
_ASKS = re.compile(r"\bspark: SparkSession\b")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with the settings of production, on two cores."""
    from geartrain_cloud.spark.session import open_session  # pyspark, which few tests need

    # The session names this process's module path to its children; those of other tests have their own.
    with patch.dict(os.environ):
        session = open_session("local[2]", tmp_path_factory.mktemp("spark"), queries=2)
    yield session
    session.stop()


def check(item: pytest.Item) -> None:
    """Refuse a test that asks for the session, and whose file does not look so."""
    if "spark" in getattr(item, "fixturenames", ()) and not _asks(item.path):
        raise pytest.UsageError(f"{item.nodeid}: write the parameter as `spark: SparkSession`")


def scope_of(nodeid: str, root: Path) -> str:
    """What runs in one process with this test: those of its file, or all that share the session."""
    file = nodeid.partition("::")[0]
    return SHARED if _asks(root / file) else file


@cache
def _asks(path: Path) -> bool:
    return path.is_file() and _ASKS.search(path.read_text(encoding="utf-8")) is not None
