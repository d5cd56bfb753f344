"""Rows of random flows under random cuts, explained from a real log: the records that are named make the row
again, by the engine and by the naive reference.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from geartrain.planning import Plan
from geartrain.records.batch import origin_name
from geartrain.schema import RowCodec
from geartrain.source import Reject
from geartrain_cloud.explaining.held_row import HeldRow, json_row
from geartrain_cloud.explaining.reproducing import made_again
from geartrain_cloud.explaining.tracing import Trace, Tracer
from tests.explaining.two_tier_log import drawn_plans, log_of
from tests.reference.flows import Case, cases, check_drawn, split_cases
from tests.reference.interpreter import interpret
from tests.reference.rows import Row

FLOWS = 25
ROUNDS_MAX = 6
"""So often flows are drawn until all kinds of steps have been met."""
OVERLAPPING = 4
"""Draws flows in which a record is in windows of a step that had no part in the row, too, and in which the
part of these windows that was found has another key than the whole.
"""
ROWS_MAX = 3
"""Of each sink, drawn by chance."""


def test_the_records_behind_a_row_make_it_again() -> None:
    met: Counter[str] = Counter()

    def check(case: Case) -> None:
        rng = case.rng()
        graph = case.graph
        want = interpret(graph, case.world.inputs(), case.world.bounds_us)
        plan, own = drawn_plans(case, rng)
        with tempfile.TemporaryDirectory() as folder:
            logged = log_of(plan, case.world, rng, Path(folder), own, Random(1))
            for sink, rows in want.sinks.items():
                for row in rng.sample(rows, min(ROWS_MAX, len(rows))) if sink in plan.cloud else ():
                    stream = plan.graph[sink].inputs[0].step
                    trace = Tracer(logged).trace(stream, row.order)
                    held = HeldRow(sink, row_of(plan, stream, row.value), row.order, 1)
                    assert trace.whole
                    assert trace.found
                    assert made_again(logged, trace, held) == held.row, trace.made
                    met.update(one.operator for one in trace.made)
                    met["cuts of devices"] += any(plan.channel(one).entry != one for one in trace.counts)
                    if is_of_sources(plan, trace):
                        check_by_reference(case, trace, sink, row)
                        met["by reference"] += 1

    for number in (OVERLAPPING, *range(40, 40 + ROUNDS_MAX)):
        for strategy in (cases(), split_cases()):
            check_drawn(check, strategy, number, FLOWS)
        if met.keys() >= _MET and number != OVERLAPPING:
            break
    assert met.keys() >= _MET, met


def is_of_sources(plan: Plan, trace: Trace) -> bool:
    return all(plan.graph[plan.channel(one).stream].operator.kind == "source" for one in trace.counts)


_MET = {"map", "flat_map", "key_by", "order", "process", "window_aggregate", "window_fold", "aggregate"}
_MET |= {"merge", "merge_partials", "interval_join", "partial_aggregate", "by reference", "cuts of devices"}


def row_of(plan: Plan, stream: str, value: Any) -> dict[str, Any]:
    codec = RowCodec(plan.graph[stream].out)
    return json_row(codec.schema, [column[0] for column in codec.to_columns([value])])


def check_by_reference(case: Case, trace: Trace, sink: str, row: Row) -> None:
    """Without every other record of the sources, the reference gives the row all the same."""
    kept = {
        (name, number)
        for one in trace.found
        for name, number in zip(one.rows.names, one.rows.numbers, strict=True)
    }
    inputs = {
        source: {
            split: [
                item if (origin_name(source, split), at) in kept else Reject(at, "left out", b"")
                for at, item in enumerate(items)
            ]
            for split, items in splits.items()
        }
        for source, splits in case.world.inputs().items()
    }
    again = interpret(case.graph, inputs, case.world.bounds_us)
    assert row.order in {one.order for one in again.sinks[sink]}
