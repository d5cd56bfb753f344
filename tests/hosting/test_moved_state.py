"""A hosted flow whose devices leave steps with state to it gives what the reference gives.

The real source, stages and versions run without Spark. Micro-batches end anywhere, also between the pieces of
one cell, and some are killed and run again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from geartrain.graph.graph import DEAD_LETTERS, STATE
from geartrain.planning import make_plan
from geartrain.planning.mixed import make_mixed_plan
from geartrain.records.keys import encode_key
from geartrain.state.keyed import NEVER, saved_cell
from geartrain.state.moving import StateCell
from geartrain_cloud.spark.compile import hosted_query
from geartrain_simulation.fleet.stage_run import StageRun
from tests.edge.flows import Reading, Sums, plan_of
from tests.hosting.in_process import InProcess, RevisedLog
from tests.hosting.test_hosted_query import leaving
from tests.reference.comparison import check_equal, drawn_cuts
from tests.reference.flows import Case, drawn
from tests.reference.interpreter import interpret
from tests.reference.moving_flows import moving_cases
from tests.reference.revised_flows import Revised, Stage
from tests.reference.two_tiers import World
from tests.spark.case_log import Logged, log_of
from tests.spark.stage_run import log_table, records_of

FLOWS = 40


def check(case: Case, folder: Path, seen: Counter[str]) -> None:
    """Compare one flow, under one schedule."""
    graph, rng = case.graph, case.rng()
    cuts = drawn_cuts(graph, rng, 16)
    base = sorted(rng.choice(cuts).edge)
    chosen = [leaving(graph, cuts, rng) for _ in case.world.devices]
    plan = make_mixed_plan(graph, base, [sorted(cut.edge) for several in chosen for cut in several])
    plans = [[make_plan(graph, sorted(cut.edge), base=base) for cut in several] for several in chosen]
    own = dict(zip(case.world.devices, plans, strict=True))

    class Log(RevisedLog):
        """What these devices send."""

        def sent(self, world: World, rng: random.Random) -> Iterator[Logged]:
            return log_of(plan, world, rng, [own[device] for device in world.devices], seen)

    document: Any = None  # of no concern here
    run = InProcess(folder, Revised({}, case.world, [Stage((), plan, document)]), rng, Log)
    kills = run.kills
    try:
        found, want = run.run(), interpret(graph, case.world.inputs(), case.world.bounds_us)
        check_equal(found, want)
    except AssertionError as error:
        raise AssertionError(f"{case!r}\n{error}") from error
    finally:
        run.log.close()
    seen["killed"] += kills - run.kills


@pytest.mark.proof
def test_state_that_devices_leave_to_a_hosted_flow_changes_no_result(tmp_path: Path) -> None:
    seen = Counter[str]()
    for number, case in enumerate(drawn(moving_cases(), 6, FLOWS)):
        check(case, tmp_path / str(number), seen)
    assert seen["cells"] > FLOWS // 4, seen
    assert seen["killed"] > FLOWS // 2, seen


def test_a_cell_of_a_key_that_is_held_and_one_that_is_damaged_are_set_aside_whole() -> None:
    graph = plan_of([]).whole
    assert graph is not None
    query = hosted_query(make_mixed_plan(graph, "edge", ["cloud"]))
    reading = next(c for c in query.channels if query.stream(c) == "readings" and c != "readings")
    run = StageRun(query, random.Random(1))
    run.micro_batch([(reading, 1, log_table([(Reading("held", 1.0), 5, "d1/readings", 0)], Reading))], 10)

    def cell(step: str, sensor: str, content: bytes, number: int) -> tuple[StateCell, int, str, int]:
        return StateCell(step, encode_key(sensor), 0, len(content), content), 0, "d2/_state", number

    kept = saved_cell(NEVER, msgspec.msgpack.encode(Sums(3, 7.5)))
    cells = [
        cell("totals", "held", kept, 0),
        cell("totals", "fresh", kept, 1),
        cell("totals", "damaged", b"12345678\xff", 2),
        cell("levels", "odd", kept, 3),
    ]
    found = run.micro_batch([(STATE, 2, log_table(cells, StateCell))], 20)
    letters = [letter for batch in found[DEAD_LETTERS] for letter in zip(*batch.fields, strict=True)]
    assert sorted(step for step, *_ in letters) == [STATE, "totals", "totals"]
    assert {code for _, code, *_ in letters} == {"state_not_taken"}
    said = sorted(str(letter) for letter in letters)
    assert any("is held for" in one for one in said)
    assert any("keeps none in the data centre" in one for one in said)
    more = [(Reading("fresh", 0.5), 30, "d2/readings", 9), (Reading("held", 1.0), 31, "d1/readings", 1)]
    sums = run.micro_batch([(reading, 3, log_table(more, Reading))], 40)["sums"]
    assert sorted(records_of(sums)) == [("fresh", 4, 8.0), ("held", 2, 2.0)]
