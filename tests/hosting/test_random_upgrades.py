"""Random flows whose devices send records of former types, without Spark, against a reference that is given
all records in the present type.
"""

from __future__ import annotations

from pathlib import Path

from tests.hosting.former_log import COUNTED, FormerLog, GivenUpLog, Lost
from tests.hosting.in_process import Seen, check_flow

FLOWS = 8


def test_rows_of_former_types_are_as_if_they_had_come_in_the_present_one(tmp_path: Path) -> None:
    seen = Seen()
    for number in range(FLOWS):
        seen.add(check_flow(tmp_path / str(number), number, 1, FormerLog, past=True))
    assert seen.flows > FLOWS / 2
    assert seen.rows > 200
    assert seen.letters > 5
    assert seen.in_past > 1
    assert min(COUNTED[kind] for kind in set(FormerLog.kinds)) > 20


def test_rows_of_a_type_that_was_given_up_are_dead_letters_and_the_others_are_as_ever(tmp_path: Path) -> None:
    """A former type that `upgrade` names is upgraded though it was given up before."""
    seen, before = Seen(), COUNTED[Lost]
    for number in range(FLOWS):
        seen.add(check_flow(tmp_path / str(number), number, 1, GivenUpLog, past=number % 2 == 1))
    assert seen.flows > FLOWS / 2
    assert seen.rows > 150
    assert seen.letters > 50
    assert COUNTED[Lost] - before > 50
