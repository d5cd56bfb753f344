"""Random flows whose devices send records of former types, without Spark, against a reference that is given
all records in the present type.
"""

from __future__ import annotations

from pathlib import Path

from tests.hosting.former_log import COUNTED, FormerLog
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
    assert min(COUNTED.values()) > 20
    assert len(COUNTED) == 3
