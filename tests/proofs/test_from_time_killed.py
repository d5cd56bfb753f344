"""A hosted flow gets steps that first read the log of before, and its host is killed with -9 amid that.

Live records come meanwhile. The tables are those of plain Python, each row once. The small form is killed at
a place that the commit draws, the long one at each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.drawing import drawn
from tests.hosting.host_process import HostProcess
from tests.hosting.killed_host import NTH, POINT
from tests.hosting.test_from_time_hosted import FIRST, NEW, assert_tables
from tests.hosting.test_revisions import APP, River

pytestmark = [pytest.mark.slow, pytest.mark.spark]

ENTRY = "tests.hosting.killed_host"
PLACES = (
    *(("past published", 1), ("past after the offsets", 1), ("past kept", 1), ("past written", 1)),
    *(("past written", 2), ("past after the offsets", 3), ("past taken", 1)),
)
"""In order, and which of the times that a life comes to it. Steps above the new ones are run first, by a
reading of their own.
"""


@pytest.mark.parametrize(
    "places",
    [
        pytest.param(drawn("places in the log of before", PLACES, 1), id="drawn"),
        pytest.param(PLACES, id="each", marks=pytest.mark.long),
    ],
)
def test_new_steps_read_the_log_of_before_to_the_last_record_though_their_host_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: Sequence[tuple[str, int]]
) -> None:
    river = River(tmp_path, monkeypatch)
    wanted, log = river.wanted, river.log
    wanted.flows[APP] |= {"rows_max": 50}
    river.want("one")
    river.begin()
    for _ in range(3):
        log.append(100)
    process = HostProcess(wanted)
    try:
        for number, (point, nth) in enumerate([*places, ("", 1)]):
            process.start(ENTRY, **{POINT: point, NTH: str(nth)})
            if not number:
                process.until(lambda: wanted.is_through(APP))
                time = log.records[FIRST][1]
                river.want("with_more", past={"begin": str(time), "attached": NEW})
                process.until(lambda: wanted.status(APP)["prepared"] == 2)
                river.begin()
            log.append(50)
            if point:
                process.until_killed(point)
        process.until(lambda: wanted.is_through(APP) and not wanted.status(APP)["why"])
        log.append(50)
        log.writer.end()
        process.until(lambda: wanted.is_through(APP))
        assert_tables(log, wanted.tables(APP))
        assert (wanted.status(APP)["dropped"], wanted.status(APP)["revision"]) == ({}, 2)
    finally:
        process.end()
        wanted.close()
