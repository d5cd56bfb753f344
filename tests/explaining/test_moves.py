"""Random flows whose devices take steps with state and leave them: what is fetched and run again, and what is
explained, beside the reference.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from geartrain_cloud.cli.fetched import Fetched
from geartrain_cloud.explaining import records
from geartrain_cloud.explaining.held_row import HeldRow
from geartrain_cloud.explaining.logged import LoggedFlow
from geartrain_cloud.explaining.reproducing import made_again
from geartrain_cloud.explaining.tracing import Tracer
from geartrain_cloud.log.reader import LogReader
from tests.explaining.moved_log import Moved, moved_logs
from tests.explaining.test_random_fetched import fetch, run_of
from tests.explaining.test_random_rows import check_by_reference, is_of_sources, row_of
from tests.hosting.in_process import APP
from tests.reference.comparison import check_equal
from tests.reference.interpreter import interpret
from tests.reference.two_tiers import answer_of

FLOWS, SEED = 12, 7
ROWS_MAX = 2
"""Of each sink, drawn by chance."""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Moved]:
    seen = Counter[str]()
    found = list(moved_logs(tmp_path_factory.mktemp("moved"), SEED, FLOWS, seen))
    assert min(seen["taken"], seen["left"]) > FLOWS // 4, seen
    return found


def test_what_was_fetched_gives_the_rows_of_a_flow_that_never_moved(
    logs: list[Moved], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(records, "PAGE_ROWS", 5)
    for number, one in enumerate(logs):
        folder, case = tmp_path / str(number), one.case
        folder.mkdir()
        fetch(one.log, folder, APP, one.base, one.cuts)
        found = answer_of(case.graph, asyncio.run(run_of(Fetched(folder), case)))
        check_equal(found, interpret(case.graph, case.world.inputs(), case.world.bounds_us))


def test_a_row_is_explained_by_records_that_make_it_again_with_the_state_that_moved(
    logs: list[Moved],
) -> None:
    seen = Counter[str]()
    for one in logs:
        plan, case, rng = one.plan, one.case, one.case.rng()
        want = interpret(case.graph, case.world.inputs(), case.world.bounds_us)
        for sink, rows in want.sinks.items():
            for row in rng.sample(rows, min(ROWS_MAX, len(rows))) if sink in plan.cloud else ():
                logged = LoggedFlow(LogReader(one.log), APP, plan)
                stream = plan.graph[sink].inputs[0].step
                trace = Tracer(logged).trace(stream, row.order)
                held = HeldRow(sink, row_of(plan, stream, row.value), row.order, 1)
                assert trace.whole
                assert made_again(logged, trace, held) == held.row, (case, trace.made, trace.notes)
                seen["noted" if trace.notes else "without a note"] += 1
                if not trace.notes and is_of_sources(plan, trace):
                    check_by_reference(case, trace, sink, row)
                    seen["by reference"] += 1
    assert min(seen["noted"], seen["without a note"], seen["by reference"]) > FLOWS // 4, seen
