"""SQLite and PostgreSQL that fail before, within and after their transaction, and a server that is restarted
in the middle of one: the host holds the flow and says why, and each row is in each store once.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.postgres_server import Postgres
from tests.spark.faults.stores import Stores, each_store_fails, server_restarts


@pytest.fixture
def dsn(postgres: Postgres) -> str:
    return postgres.database("broken")


def test_each_row_is_in_each_store_once_wherever_one_fails(
    spark: SparkSession, tmp_path: Path, postgres: Postgres, dsn: str
) -> None:
    assert len(each_store_fails(Stores(spark, tmp_path, postgres, dsn).begun())) == 6


def test_a_server_restarted_within_a_transaction_is_waited_for(
    spark: SparkSession, tmp_path: Path, postgres: Postgres, dsn: str
) -> None:
    assert server_restarts(Stores(spark, tmp_path, postgres, dsn).begun())
