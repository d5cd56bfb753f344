"""Random flows whose new steps read the log of before, without Spark, against a reference that goes through
all of it.
"""

from __future__ import annotations

from pathlib import Path

from tests.hosting.in_process import Seen, check_flow

FLOWS = 16


def test_new_steps_make_of_the_log_what_they_would_have_made_there(tmp_path: Path) -> None:
    seen = Seen()
    for number in range(FLOWS):
        seen.add(check_flow(tmp_path / str(number), number, schedules=1, past=True))
    assert seen.in_past > FLOWS / 2
    assert seen.rows > 500
    assert seen.killed > 5
