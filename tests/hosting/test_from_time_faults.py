"""Faults planted into how new steps read the log of before: a random flow without Spark finds each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from geartrain_cloud.hosting import past, prepare
from geartrain_cloud.hosting.source import HostReader
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.spark import buckets
from geartrain_cloud.spark.buckets import ShrinkingMap, take_beside
from geartrain_cloud.spark.compile import Query, part_of
from tests.hosting import in_process
from tests.hosting.in_process import check_flow


def take_no_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(buckets, "take_beside", lambda state, steps: take_beside(state, ()))


def take_the_state_of_steps_above(patch: pytest.MonkeyPatch) -> None:
    def all_of(state: ShrinkingMap, _: Collection[str]) -> int:
        found = {
            step
            for (number,), (raw,) in buckets.Beside(state).iterator()
            if number >= 0
            for step in buckets._decode_bucket(bytes(raw))
        }
        return take_beside(state, found)

    patch.setattr(buckets, "take_beside", all_of)


def forget_due_times(patch: pytest.MonkeyPatch) -> None:
    def forgetful(state: ShrinkingMap, steps: Collection[str]) -> int:
        count, place = take_beside(state, steps), state.getValue((buckets._PLACE,))
        if place is not None:
            held = buckets._decode_place(bytes(place[0]))
            held.due = {step: due for step, due in held.due.items() if step not in steps}
            state.updateValue((buckets._PLACE,), (buckets._encode(held),))
        return count

    patch.setattr(buckets, "take_beside", forgetful)


def keep_it_in_the_state_of_the_flow(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(buckets, "Beside", lambda state: state)


def hand_out_all_dead_letters(patch: pytest.MonkeyPatch) -> None:
    def of_all(query: Query, steps: frozenset[str], _: frozenset[str]) -> Query:
        return part_of(query, steps, query.owned)

    patch.setattr(prepare, "part_of", of_all)


def leave_the_steps_above_without_a_past(patch: pytest.MonkeyPatch) -> None:
    put = prepare.put_past
    patch.setattr(in_process, "put_past", lambda *given: replace(put(*given), above_plan=""))


def begin_one_entry_later(patch: pytest.MonkeyPatch) -> None:
    before = LogReader.before

    def later(*given: Any) -> int:
        return min(before(*given) + 1, int(given[-1]))

    patch.setattr(LogReader, "before", later)


def read_what_comes_after_the_revision_as_well(patch: pytest.MonkeyPatch) -> None:
    next_in_past = past.next_in_past

    def late(hosted: Any, said: Any, earlier: Any) -> Any:
        found = next_in_past(hosted, said, earlier)
        return found if found.past else replace(found, begin=dict.fromkeys(found.begin, 0))

    patch.setattr(in_process, "next_in_past", late)


def read_the_past_to_the_end_of_the_log(patch: pytest.MonkeyPatch) -> None:
    end = HostReader._end

    def further(reader: HostReader, hosted: Any, *given: Any) -> int:
        return end(reader, replace(hosted, past=""), *given)

    patch.setattr(HostReader, "_end", further)


def go_on_without_reading(patch: pytest.MonkeyPatch) -> None:
    def at_once(hosted: Any, _: Any, __: Mapping[str, int]) -> Any:
        return hosted

    patch.setattr(in_process, "first_in_past", at_once)


FOUND_BY = {
    take_no_state: 9,
    take_the_state_of_steps_above: 8,
    forget_due_times: 9,
    keep_it_in_the_state_of_the_flow: 2,
    hand_out_all_dead_letters: 2,
    leave_the_steps_above_without_a_past: 216,
    begin_one_entry_later: 2,
    read_what_comes_after_the_revision_as_well: 0,
    read_the_past_to_the_end_of_the_log: 0,
    go_on_without_reading: 5,
}
"""The number of the first flow that finds a fault."""


@pytest.mark.parametrize(("fault", "number"), FOUND_BY.items())
def test_the_fault_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None], number: int
) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        check_flow(tmp_path, number, schedules=1, past=True)
