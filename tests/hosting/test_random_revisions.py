"""Random flows that go through random revisions, without Spark, against a reference that knows the log's
boundaries.
"""

from __future__ import annotations

from pathlib import Path

from tests.hosting.in_process import Seen, check_flow

FLOWS = 13


def test_each_record_is_run_by_the_revision_of_its_place_in_the_log(tmp_path: Path) -> None:
    seen = Seen()
    for number in range(FLOWS):
        seen.add(check_flow(tmp_path / str(number), number, schedules=1))
    assert seen.flows > FLOWS / 2
    assert seen.rows > 500
    assert seen.killed > 5
    assert seen.scaled > 5
    assert seen.sources_gone > 0
    for change in ("attached", "removed dropped", "replaced kept", "replaced dropped", "same kept"):
        assert seen.steps[change] > 0, change
