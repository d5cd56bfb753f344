"""What steps count for themselves: rows that joins hold and let go, and what tasks count; the agent keeps the
totals over its restarts.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

from geartrain import Context, Flow, Record, Table, Task
from geartrain.declarations.windows import sliding
from geartrain.planning import Plan, make_plan
from geartrain.records.event_time import END_OF_TIME
from geartrain.runtime.fragment import Fragment
from geartrain.runtime.splits import SplitTracker
from geartrain.source import Batch
from geartrain.testing import TestingSource
from tests.edge.agents import agent_of, run, until
from tests.edge.network import MemoryNet, NaiveIngest


class Seen(Record):
    key: str
    n: int


class Odd(Task[Seen, Seen]):
    def on_next(self, value: Seen, ctx: Context[Seen, Any]) -> None:
        if value.n % 2:
            ctx.metrics.add("odd")
        ctx.emit(value)


def both(left: Seen, right: Seen) -> Seen:
    return Seen(left.key, left.n + right.n)


def us(count: int) -> timedelta:
    return timedelta(microseconds=count)


def joined(**how: Any) -> Plan:
    flow = Flow("joined")
    sides = []
    for side, times in (("left", [1, 4, 9, 30]), ("right", [2, 4, 12])):
        items = [(time, Seen("k", time)) for time in times]
        source: TestingSource[Seen] = TestingSource(items=items, name=f"d1/{side}")
        stream = flow.source(side, source, out=Seen, partitioned_by="key").key_by("key", name=f"{side}_key")
        sides.append(stream)
    sides[0].process("odd", Odd()).sink("lefts", Table("lefts"))
    sides[0].join("near", sides[1], both, **how).sink("pairs", Table("pairs"))
    return make_plan(flow.graph(), "edge")


def test_a_join_counts_what_it_holds_and_lets_go() -> None:
    plan = joined(lower=us(0), upper=us(2))
    fragment = Fragment(plan.graph, plan.edge)
    left, right = SplitTracker("left", "d1", 0, None), SplitTracker("right", "d1", 0, None)
    for tracker, times in ((left, [1, 4, 9, 30]), (right, [2, 4, 12])):
        poll = Batch([Seen("k", time) for time in times], times, range(len(times)), len(times))
        fragment.feed(tracker.step, tracker.observe(poll)[0])
    assert fragment.counters == {"odd.odd": 2, "near.held": 7}
    fragment.advance("left", left.watermark)
    fragment.advance(
        "right", right.watermark
    )  # up to 12: the left ones of 1, 4 and 9, the right ones of 2 and 4
    assert fragment.counters == {"odd.odd": 2, "near.held": 7, "near.released": 5}
    for side in ("left", "right"):
        fragment.advance(side, END_OF_TIME)
    assert fragment.counters["near.released"] == 7


def test_a_row_in_no_window_is_counted_too() -> None:
    plan = joined(within=sliding(us(2), us(10)))  # [0, 2), [10, 12), ..., [30, 32)
    fragment = Fragment(plan.graph, plan.edge)
    for side, times in (("left", [1, 4, 9, 30]), ("right", [2, 4, 12])):
        poll = Batch([Seen("k", time) for time in times], times, range(len(times)), len(times))
        fragment.feed(side, SplitTracker(side, f"d1/{side}", 0, None).observe(poll)[0])
    assert fragment.counters == {"odd.odd": 2, "near.held": 2, "near.unreachable": 5}


def test_an_agent_keeps_the_totals_over_a_restart(tmp_path: Path) -> None:
    plan = joined(lower=us(0), upper=us(2))
    ingest, spool = NaiveIngest(plan), tmp_path / "spool.sqlite"
    first = agent_of(plan, spool, MemoryNet(ingest))

    async def begin() -> None:
        task = asyncio.create_task(first.run())
        await until(lambda: bool(ingest.rows["odd"]))
        first.stop()
        await task

    run(begin())
    again = agent_of(plan, spool, MemoryNet(ingest))
    assert run(again.run())
    counters = again.status().counters
    assert (counters["odd.odd"], counters["near.held"], counters["near.released"]) == (2, 7, 7)
