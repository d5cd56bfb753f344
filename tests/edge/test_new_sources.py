"""A device goes over to a revision with one more source, which begins at its own beginning from there on. Or
it goes over to one without a source, of which the log then has what was read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from geartrain import Flow, Table
from geartrain.operators.source import on_device
from geartrain.planning import Plan, make_plan
from geartrain.records.event_time import SECOND_US
from geartrain.testing import TestingSource
from tests.edge.agents import KilledError, MortalSpool, agent_of, run
from tests.edge.network import MemoryNet, NaiveIngest, Troubles
from tests.edge.test_other_steps import (
    FIRST,
    ROWS,
    Reading,
    Sum,
    Sums,
    expected,
    half_way,
    ingest_of,
    is_high,
    of_revision,
    sums_of,
)

DOORS = 50


def with_doors(devices: str = "all") -> Plan:
    """The first revision, and a second source whose high records have a channel of their own; devices: for
    which it is, as the plan is of one without labels.
    """
    given = [(number * SECOND_US, Reading(f"s{number % 3}", number % 10)) for number in range(ROWS)]
    opened = [(number * SECOND_US, Reading(f"d{number % 2}", number % 7)) for number in range(DOORS)]
    flow = Flow("fleet")
    readings = flow.source("readings", TestingSource(items=given), out=Reading, partitioned_by="sensor")
    readings.key_by("sensor").process("sums", Sums(), out=Sum).sink("each", Table("each"))
    doors = flow.source("doors", TestingSource(items=opened), out=Reading, devices=devices)
    doors.filter(is_high, name="wide").sink("doors_table", Table("doors"))
    return make_plan(on_device(flow.graph(), "d1", {}), "edge")


THEN = with_doors()


def killed_at_each_write(
    folder: Path, was: Plan, then: Plan, rows: int, *, after: bool
) -> Iterator[NaiveIngest]:
    """A device goes over once so many rows were read, is killed about one of its writes, and comes back."""
    for writes in range(1, 6):
        path, ingest = folder / f"{writes}.sqlite", ingest_of(was, then)
        half_way(path, ingest, was, of_revision(1), rows)
        mortal = MortalSpool(path, writes, after=after)
        with pytest.raises(KilledError):
            run(agent_of(then, mortal, MemoryNet(ingest), of_revision(2)).run())
        assert run(agent_of(then, path, MemoryNet(ingest), of_revision(2), seed=2).run())
        yield ingest


def check(ingest: NaiveIngest) -> None:
    assert sums_of(ingest) == expected([ROWS], [1])
    assert [row[3] for row in ingest.rows["wide"]] == [n for n in range(DOORS) if n % 7 >= 5]
    assert [number for number, _ in ingest.crossings] == [1]
    assert ingest.crossings[0][1] == tuple(sorted(THEN.edge))
    ((place, at),) = [one for one in ingest.positions.items() if one[0][0] == "doors"]
    assert (place[1], at.position, at.ended) == ("d1", DOORS, True)


def test_it_is_read_from_its_beginning_and_the_others_go_on(tmp_path: Path) -> None:
    path, ingest = tmp_path / "spool.sqlite", ingest_of(FIRST, THEN)
    half_way(path, ingest, FIRST, of_revision(1), 30)
    assert "doors" not in ingest.sources
    net = MemoryNet(ingest, Troubles(0.1, 0.1, 0.1, 0.02, 3))
    assert run(agent_of(THEN, path, net, of_revision(2)).run())
    check(ingest)
    assert ingest.sources.keys() == {"readings", "doors"}


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_write_around_it_changes_nothing(tmp_path: Path, after: bool) -> None:
    for ingest in killed_at_each_write(tmp_path, FIRST, THEN, 30, after=after):
        check(ingest)


@pytest.mark.parametrize("after", [False, True])
def test_a_device_that_it_is_not_for_goes_over_and_has_nothing_of_it(tmp_path: Path, after: bool) -> None:
    for ingest in killed_at_each_write(tmp_path, FIRST, with_doors("kind=gate"), 30, after=after):
        assert sums_of(ingest) == expected([ROWS], [1])
        assert ingest.rows["wide"] == []
        assert [number for number, _ in ingest.crossings] == [1]
        assert ingest.positions.keys() == {("readings", "d1")}
        assert "doors" not in ingest.sources


def check_gone(ingest: NaiveIngest) -> None:
    """All that was read of the source is there once, as far as the log has its position, and nothing more."""
    assert sums_of(ingest) == expected([ROWS], [1])
    read = ingest.positions["doors", "d1"]
    assert 0 < read.position < DOORS
    assert not read.ended
    assert [row[3] for row in ingest.rows["wide"]] == [n for n in range(read.position) if n % 7 >= 5]
    assert ingest.crossings == [(1, tuple(sorted(FIRST.edge)))]
    assert ingest.positions["readings", "d1"].ended


def test_a_source_that_goes_is_delivered_as_far_as_it_was_read(tmp_path: Path) -> None:
    path, ingest = tmp_path / "spool.sqlite", ingest_of(THEN, FIRST)
    half_way(path, ingest, THEN, of_revision(1), 60)
    stands = ingest.sources["doors"]
    net = MemoryNet(ingest, Troubles(0.1, 0.1, 0.1, 0.02, 3))
    assert run(agent_of(FIRST, path, net, of_revision(2)).run())
    check_gone(ingest)
    assert ingest.sources["doors"] >= stands


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_write_as_a_source_goes_changes_nothing(tmp_path: Path, after: bool) -> None:
    for ingest in killed_at_each_write(tmp_path, THEN, FIRST, 60, after=after):
        check_gone(ingest)


def test_a_spool_that_is_lost_behind_it_goes_on_with_the_others(tmp_path: Path) -> None:
    path, ingest = tmp_path / "spool.sqlite", ingest_of(THEN, FIRST)
    half_way(path, ingest, THEN, of_revision(1), 60)
    half_way(path, ingest, FIRST, of_revision(2), 10)
    assert run(agent_of(FIRST, tmp_path / "new.sqlite", MemoryNet(ingest), of_revision(2), seed=2).run())
    check_gone(ingest)
