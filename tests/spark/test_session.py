"""What is relied on of a session of Spark's."""

from __future__ import annotations

import signal

from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

from geartrain_cloud.spark.shards import shard_labels


def test_spark_leaves_ctrl_c_to_whoever_had_it(spark: SparkSession) -> None:
    assert spark.version.startswith("4.")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_labels_of_shards_are_what_spark_hashes_evenly(spark: SparkSession) -> None:
    for partitions in (2, 3):
        labels = shard_labels(6, partitions)
        frame = spark.createDataFrame([(label,) for label in labels], "shard int")
        found = frame.select(expr(f"pmod(hash(shard), {partitions})")).collect()
        assert [row[0] for row in found] == [shard % partitions for shard in range(6)]
