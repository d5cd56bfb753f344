"""What shards give for one claim: cells as of the device's watermark, or one sentence why not."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from geartrain.errors import StepError
from geartrain.graph.graph import CLAIMS, GIVEN, STATE
from geartrain.planning.mixed import make_mixed_plan
from geartrain.records.event_time import END_OF_TIME, SECOND_US
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.state.claims import ASKS, HAS, Claim, GivenCell, Taking, given_cells, lost
from geartrain.state.keyed import NEVER, due_of
from geartrain.state.moving import StateCell
from geartrain_cloud.ports import Entry, EntryKind
from geartrain_cloud.spark.buckets import forget_steps
from geartrain_cloud.spark.claims import Claimed, claims_lost
from geartrain_cloud.spark.compile import hosted_query
from geartrain_simulation.fleet.claiming_flow import READINGS, SUMS, TABLES, TOTALS, claiming_graph
from geartrain_simulation.fleet.readings import Reading, Readings
from geartrain_simulation.fleet.stage_run import LogRow, StageRun
from tests.spark.stage_run import log_table, records_of

HOUR_US = 3_600 * SECOND_US
CLOCK_US = 10 * SECOND_US
"""Where another device holds the clock, far below what the device that claims has read."""


def run_of() -> StageRun:
    """The stages of a flow that adds up by sensor, and says the total at each full hour."""
    graph = claiming_graph(Readings(records={"d1": 0, "d2": 0}))
    return StageRun(hosted_query(make_mixed_plan(graph, "cloud", ["edge"])), random.Random(1))


def readings(position: int, device: str, *sensors: str) -> LogRow:
    """One reading of level 5 of each sensor."""
    rows = [(Reading(one, 5), 5 * SECOND_US, f"{device}/readings", position) for one in sensors]
    return READINGS, position, log_table(rows, Reading, device=device)


def asks(position: int, number: int, mark: int) -> LogRow:
    """A claim of device d1."""
    claim = Claim(number, TOTALS, ASKS, mark)
    return CLAIMS, position, log_table([(claim, 0, "_claims", position)], Claim, device="d1")


def said(position: int, *claims: Claim) -> LogRow:
    """What device d1 says of its claims."""
    rows = [(claim, 0, "_claims", position) for claim in claims]
    return CLAIMS, position, log_table(rows, Claim, device="d1")


def entry(position: int, kind: EntryKind) -> LogRow:
    """The entry of a spool of device d1 that knows of no claim."""
    table = claims_lost([Entry("f", 0, position, kind, CLAIMS, "d1")])
    assert table is not None
    return CLAIMS, position, table


def taken(number: int, found: Mapping[str, Sequence[ColumnBatch]]) -> Taking:
    """What device d1 has taken of what a micro-batch gave."""
    taking, codec = Taking(number, [TOTALS]), RowCodec(GivenCell)
    for batch in found[GIVEN]:
        *fields, names = batch.fields
        assert set(names) == {"d1"}
        for given in codec.from_columns(fields):
            taking.take(given)
    return taking


@pytest.mark.parametrize(("cells_max", "bytes_max"), [(2, 100), (3, 11)])
def test_a_device_takes_no_more_than_moves_at_once_and_keeps_nothing_of_it(
    cells_max: int, bytes_max: int
) -> None:
    taking = Taking(7, [TOTALS], cells_max, bytes_max)
    parts = [(b"a", 0, 6, b"1234"), (b"a", 4, 6, b"56"), (b"b", 0, 4, b"1234"), (b"c", 0, 2, b"12")]
    cells = [GivenCell(7, 0, 2, TOTALS, key, at, size, cell, "") for key, at, size, cell in parts]
    for cell in cells[:3]:
        taking.take(cell)
    with pytest.raises(StepError, match=f"more than {cells_max} keys or {bytes_max} bytes would come"):
        taking.take(cells[3])
    taking.take(cells[3])
    assert taking.ignored == 1
    assert not taking.complete


def test_a_claim_of_two_steps_is_whole_once_every_shard_has_given_both() -> None:
    taking = Taking(7, ["first", "second"])
    answers = [
        list(given_cells(7, shard, 2, [step], {(step, b"%d" % shard): step.encode()}))
        for step in ("second", "first")
        for shard in (0, 1)
    ]
    for several in answers:
        assert not taking.complete
        for given in several:
            taking.take(given)
    assert taking.complete
    assert taking.cells() == {
        (step, key): step.encode() for step in ("first", "second") for key in (b"0", b"1")
    }
    for given in answers[0]:
        taking.take(given)
    assert taking.ignored == len(answers[0])  # this shard has answered for the step before


def test_cells_are_given_as_of_the_watermark_and_what_was_due_by_then_goes_on() -> None:
    run = run_of()
    found = run.micro_batch(
        [readings(1, "d1", "a", "b"), readings(2, "d2", "c"), asks(3, 1, 2 * HOUR_US)], CLOCK_US
    )
    cells = taken(1, found).cells()
    assert len(cells) == 2
    assert all(due_of(cell) == NEVER for cell in cells.values())  # the timers of one o'clock have struck
    totals = [(sensor, count) for sensor, count, _ in records_of(found[SUMS])]
    assert sorted(totals) == [("a", -1), ("a", 1), ("b", -1), ("b", 1), ("c", 1)]
    hours = records_of(run.micro_batch([], END_OF_TIME)[TABLES[1]])
    assert sorted(hours) == [("a", 2, 5), ("b", 2, 5), ("c", 2, 5)]


def test_what_is_due_behind_the_watermark_is_given_with_the_cell() -> None:
    run = run_of()
    found = run.micro_batch([readings(1, "d1", "a"), asks(2, 1, HOUR_US - 1)], CLOCK_US)
    (cell,) = taken(1, found).cells().values()
    assert due_of(cell) == HOUR_US
    assert records_of(found[SUMS]) == [("a", 1, 5)]


def test_a_step_that_has_begun_empty_says_so_where_it_gives_no_cell() -> None:
    run = run_of()
    run.micro_batch([readings(1, "d2", "c")], CLOCK_US)
    for state in run.states.values():
        forget_steps(state, [TOTALS], 2)
    taking = taken(1, run.micro_batch([asks(2, 1, CLOCK_US)], CLOCK_US))
    assert not taking.cells()
    assert taking.began == {TOTALS: 2}


def test_a_key_whose_device_is_unknown_is_refused_until_it_has_a_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of_an_older_version(*_: Any) -> Iterator[Any]:
        return iter(())

    run = run_of()
    with monkeypatch.context() as patches:
        patches.setattr(Claimed, "owners", of_an_older_version)
        run.micro_batch([readings(1, "d1", "a")], CLOCK_US)
    taking = taken(1, run.micro_batch([asks(2, 1, HOUR_US)], CLOCK_US))
    assert taking.complete
    assert taking.refused == (
        "step totals keeps 1 keys of an unknown device, as no record of theirs came since the "
        "revision by which the step may stand on devices: the state comes once each has had one"
    )
    with pytest.raises(StepError, match="claim 1 is not answered: step totals keeps 1 keys"):
        taking.cells()
    found = run.micro_batch([readings(3, "d1", "a"), asks(4, 2, CLOCK_US)], CLOCK_US)
    assert records_of(found[SUMS]) == [("a", 2, 10)]  # nothing had been taken away
    assert len(taken(2, found).cells()) == 1


def test_a_key_whose_state_a_device_has_left_is_that_devices() -> None:
    run, other = run_of(), run_of()
    given = run.micro_batch([readings(1, "d1", "a", "b"), asks(2, 1, CLOCK_US)], CLOCK_US)
    cells = taken(1, given).cells()
    assert len(cells) == 2
    left = [StateCell(step, key, 0, len(cell), cell) for (step, key), cell in cells.items()]
    table = log_table([(one, 0, "d1/_state", 1) for one in left], StateCell, device="d1")
    found = other.micro_batch([(STATE, 1, table), asks(2, 1, CLOCK_US)], CLOCK_US)
    assert taken(1, found).cells() == cells  # no record of the keys has come


@pytest.mark.parametrize("told", [EntryKind.CROSSING, EntryKind.LOSS, None])
def test_a_device_that_knows_of_no_claim_gets_back_what_it_was_given(told: EntryKind | None) -> None:
    run = run_of()
    run.micro_batch([readings(1, "d1", "a"), readings(2, "d2", "c"), asks(3, 7, CLOCK_US)], CLOCK_US)
    run.micro_batch([said(4, lost()) if told is None else entry(4, told)], CLOCK_US)
    found = run.micro_batch([readings(5, "d1", "a"), readings(6, "d2", "c")], CLOCK_US)
    assert sorted(records_of(found[SUMS])) == [("a", 2, 10), ("c", 2, 10)]


def test_a_device_that_knows_of_its_claim_keeps_what_it_was_given() -> None:
    run = run_of()
    run.micro_batch([readings(1, "d1", "a"), asks(2, 7, CLOCK_US)], CLOCK_US)
    run.micro_batch([said(3, lost(7))], CLOCK_US)
    run.micro_batch([said(4, Claim(7, TOTALS, HAS, CLOCK_US))], CLOCK_US)
    assert records_of(run.micro_batch([], END_OF_TIME).get(SUMS, [])) == []
    run.micro_batch([said(5, lost(8))], END_OF_TIME)
    assert records_of(run.micro_batch([], END_OF_TIME).get(SUMS, [])) == []


def test_only_entries_of_spools_that_know_of_none_say_something_of_claims() -> None:
    crossing, loss = (Entry("f", 0, 1, kind, "", "d1") for kind in (EntryKind.CROSSING, EntryKind.LOSS))
    dropped = Entry("f", 0, 2, EntryKind.DROPPED, CLAIMS, "d1")
    assert claims_lost([crossing, loss, dropped]) is None
