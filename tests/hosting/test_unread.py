"""Rows that no step reads: of channels that a revision has left without readers."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from geartrain import Record
from geartrain_cloud.hosting.unread import UnreadRows, unread_since
from geartrain_cloud.hosting.versions import Hosted
from geartrain_cloud.log.reader import LogReader
from tests.spark.log_writer import LogWriter


class Reading(Record):
    sensor: str


def hosted_of(*channels: str) -> Hosted:
    return Hosted("heat.1", 1, "p", "r", {}, 1, (7,), 4, ("0",), channels, ("readings",), "i")


def test_rows_are_counted_from_the_revision_on_that_has_no_reader(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "heat.1", {"readings": Reading, "means": Reading, "highs": Reading})
    log = LogReader(tmp_path)
    counting, position = UnreadRows(log), 0

    def add(channel: str, count: int) -> None:
        nonlocal position
        writer.append(channel, [(Reading("a"), 1, "d1/readings", n) for n in range(count)], rows_per_entry=2)
        position += (count + 1) // 2

    first = hosted_of("readings", "means", "highs")
    add("means", 5)
    assert unread_since(first, first.channels, {"0": position}) == {}
    second = replace(
        hosted_of("readings", "highs"), unread=unread_since(first, ["readings", "highs"], {"0": 3})
    )
    assert counting.of(second, {"0": position}) == {}
    add("means", 3)
    add("readings", 4)
    assert counting.of(second, {"0": 4}) == {"means": 2}  # the tables have come so far
    assert counting.of(second, {"0": position}) == {"means": 3}
    third = replace(
        hosted_of("readings"), generation=2, unread=unread_since(second, ["readings"], {"0": position})
    )
    add("highs", 7)
    add("means", 1)
    for again in (counting, UnreadRows(log)):  # as it is after a start
        assert again.of(third, {"0": position}) == {"means": 4, "highs": 7}
    counting.forget(third.name)
    assert counting.of(third, {"0": position}) == {"means": 4, "highs": 7}
    assert unread_since(third, ["readings", "means"], {"0": 99}) == {"highs": {"0": 7}}
    writer.close()
