"""What leaves with a step and what comes in: split aggregates in windows of each kind, sessions, records in
order, and a clock that is ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import combinations_with_replacement
from typing import Any

import pytest

from geartrain import Context, Flow, State, Table, Task, agg, global_window, session, sliding, tumbling
from geartrain.declarations.windows import Session, Window
from geartrain.errors import SchemaError
from geartrain.graph.graph import DEAD_LETTERS, Graph
from geartrain.graph.operator import Services
from geartrain.operators.merge_partials import MergePartials
from geartrain.planning.splitting import with_partials
from geartrain.records.batch import Batch
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.records.keys import encode_key
from geartrain.runtime.fragment import Fragment, Output
from geartrain.runtime.moving import Left, Moves, brought_up, given, loaded
from geartrain.state.keyed import DictBackend, KeyedState
from geartrain.state.moving import Cells
from geartrain.testing import TestingSource
from tests.reference import summaries
from tests.reference.comparison import check_equal
from tests.reference.interpreter import interpret
from tests.reference.records import Reading
from tests.reference.rows import Answer
from tests.reference.two_tiers import answer_of
from tests.reference.windows import windows_of

US = timedelta(microseconds=1)
WINDOWS: dict[str, Window] = {
    "tumbling": tumbling(100 * US),
    "several": tumbling(3 * US),
    "sliding": sliding(5 * US, 2 * US),
    "with gaps": sliding(2 * US, 3 * US),
    "global": global_window(),
}
"""Those that are split. The first holds all records, of the others some end before the device crosses."""
SIZES = (0.1, -0.7, float("nan"), 1e16, 0.0, 1 / 3, 1e-9, -1e16)
TIMES = range(len(SIZES))
PAUSED = (0, 1, 2, 3, 4, 8, 9, 11)
"""Times with a pause, in which a session ends."""
READINGS = [Reading("ab"[n % 2], n * 3 % 7, SIZES[n], "xy"[n // 4]) for n in range(len(SIZES))]
LISTS = (summaries.NUMBERS, summaries.SIZES, summaries.NOTES, summaries.TOPS)
AGGREGATES = [
    {name: of[n % len(of)] for name, of in zip(("n", "x", "note", "top"), LISTS, strict=True)}
    for n in range(max(map(len, LISTS)))
]
"""Each kind of aggregate at least once."""


def batch(rows: list[int], times: Sequence[int] = TIMES) -> Batch:
    return Batch([READINGS[n] for n in rows], [times[n] for n in rows], ["rows/split"] * len(rows), rows)


def unsplit(fields: dict[str, Any], window: Window = WINDOWS["tumbling"]) -> Graph:
    domain = (
        "key" if isinstance(window, Session) else None
    )  # where each key lives on one device, nothing is split
    flow = Flow("moving")
    rows = flow.source("rows", TestingSource[Reading](), out=Reading, partitioned_by=domain)
    out = summaries.Everything if window == global_window() else summaries.Summary
    windowed = rows.key_by("key", name="by").window(window)
    windowed.aggregate("sums", out=out, **fields, key=agg.first("key")).sink("out", Table("t"))
    return flow.graph()


def aggregated(fields: dict[str, Any], window: Window = WINDOWS["tumbling"]) -> Graph:
    return with_partials(unsplit(fields, window))


def left_of(fragment: Fragment, stream: str) -> list[Batch]:
    """What left a fragment by a stream; some aggregates refuse some records."""
    output = fragment.take()
    assert set(output.batches) <= {stream, DEAD_LETTERS}, output
    return output.batches.get(stream, [])


def wanted(fields: dict[str, Any], window: Window, times: Sequence[int] = TIMES) -> Answer:
    """By the naive reference."""
    items = list(zip(times, READINGS, strict=True))
    return interpret(unsplit(fields, window), {"rows": {"split": items}}, {"rows": 0})


def parts_of(*outputs: Output) -> list[tuple[str, Batch]]:
    return [(stream, one) for out in outputs for stream, batches in out.batches.items() for one in batches]


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("number", range(len(AGGREGATES)))
def test_an_aggregate_that_crosses_twice_within_its_windows_adds_up_to_the_last_bit(
    number: int, window: Window
) -> None:
    graph, want = aggregated(AGGREGATES[number], window), wanted(AGGREGATES[number], window)
    crossings = range(len(TIMES) + 1) if window == WINDOWS["tumbling"] else range(1, len(TIMES), 3)
    for up, down in combinations_with_replacement(crossings, 2):
        partials = [Fragment(graph, {"sums_partial"}) for _ in range(3)]
        merging = Fragment(graph, {"sums", "out"})
        for partial, rows in zip(
            partials, (range(up), range(up, down), range(down, len(TIMES))), strict=True
        ):
            partial.feed("by", batch([*rows]))
            partial.advance("by", max(rows, default=START_OF_TIME))
        # The first device's life ends at once; those of the cloud and of the second go on to the end.
        left = given(partials[0], {}, Moves((), (), ("sums_partial",)))
        assert not left.cells
        assert not left.kept
        ends = {min(end, END_OF_TIME) - 1 for time in range(up) for _, end in windows_of(window, time)}
        assert {time for out in left.output.batches.get("sums_partial", []) for time in out.times} <= ends
        for partial in partials[1:]:
            partial.advance("by", END_OF_TIME)
        parts = parts_of(left.output, *(partial.take() for partial in partials[1:]))
        for stream, out in parts:
            if stream == "sums_partial":
                merging.feed(stream, out)
        merging.advance("sums_partial", END_OF_TIME)
        found = [part for part in parts if part[0] == DEAD_LETTERS] + parts_of(merging.take())
        check_equal(answer_of(graph, found), want)


@pytest.mark.parametrize("number", range(len(AGGREGATES)))
def test_a_session_that_crosses_twice_goes_on_with_its_cells(number: int) -> None:
    window = session(4 * US)
    graph, want = aggregated(AGGREGATES[number], window), wanted(AGGREGATES[number], window, PAUSED)
    assert "sums_partial" not in {step.id for step in graph.steps}
    steps, moves = ["sums", "out"], Moves(("sums",), (), ())
    for up, down in combinations_with_replacement(range(1, len(PAUSED), 3), 2):
        left, parts = Left({}, Output(), {}), list[tuple[str, Batch]]()
        for rows in (range(up), range(up, down), range(down, len(PAUSED))):
            fragment = Fragment(graph, set(steps), DictBackend(dict(left.cells)))
            fragment.feed("by", batch([*rows], PAUSED))
            mark = PAUSED[rows[-1]] if rows else START_OF_TIME
            fragment.advance("by", mark if rows.stop < len(PAUSED) else END_OF_TIME)
            left = given(fragment, left.cells, moves)
            parts += parts_of(left.output)
            assert bool(left.cells) == (rows.stop < len(PAUSED))
        check_equal(answer_of(graph, parts), want)


def _merging(graph: Graph) -> tuple[MergePartials, Services]:
    operator = graph["sums"].operator
    assert isinstance(operator, MergePartials)
    services = Services(
        "sums",
        graph["sums"].out,
        lambda letter: None,
        KeyedState(DictBackend()),
        (graph["sums_partial"].out,),
    )
    return operator, services


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("number", range(len(AGGREGATES)))
def test_what_an_aggregate_kept_before_it_was_split_goes_on_in_the_step_that_merges(
    number: int, window: Window
) -> None:
    fields = AGGREGATES[number]
    graph = aggregated(fields, window)
    operator, services = _merging(graph)
    before = Fragment(unsplit(fields, window), {"sums", "out"})
    before.feed("by", batch([0, 1, 2, 3]))
    before.advance("by", 3)
    parts = parts_of(before.take())
    cells: Cells = {
        at: operator.adopted(services, cell) for at, cell in before.changes().items() if cell is not None
    }
    assert cells
    partial, merging = Fragment(graph, {"sums_partial"}), Fragment(graph, {"sums", "out"}, DictBackend(cells))
    partial.feed("by", batch([4, 5, 6, 7]))
    partial.advance("by", END_OF_TIME)
    for stream, out in parts_of(partial.take()):
        if stream == "sums_partial":
            merging.feed("sums_partial", out)
        else:
            parts.append((stream, out))
    merging.advance("sums_partial", END_OF_TIME)
    check_equal(answer_of(graph, parts + parts_of(merging.take())), wanted(fields, window))


def test_a_cell_of_another_step_is_not_adopted() -> None:
    operator, services = _merging(aggregated(AGGREGATES[0]))
    with pytest.raises(SchemaError, match="the saved state of step 'sums' cannot be read"):
        operator.adopted(services, bytes(8) + b"\x05")


class Count(State):
    count: int = 0


class Alarm(Task[Reading, Reading]):
    """Says how many there were 10 us after each."""

    state = Count

    def on_next(self, value: Reading, ctx: Context[Reading, Count]) -> None:
        ctx.state.count += 1
        ctx.notify_at(ctx.event_time + 10)

    def on_notify(self, time: int, ctx: Context[Reading, Count]) -> None:
        ctx.emit(Reading(str(ctx.key), ctx.state.count, float(time)))


class Unsorted(TestingSource[Reading]):
    in_order = False


def alarms() -> Graph:
    flow = Flow("alarms")
    rows = flow.source("rows", Unsorted(), out=Reading, partitioned_by="key")
    rows.key_by("key", name="by").process("alarm", Alarm()).sink("out", Table("t"))
    return flow.graph()


def cells_of(graph: Graph, rows: list[int], mark: int) -> Cells:
    """What the steps keep of some records at a watermark of their source."""
    fragment = Fragment(graph, {"alarm_order", "alarm"})
    fragment.feed("by", batch(rows))
    fragment.advance("by", mark)
    left_of(fragment, "alarm")
    return {at: cell for at, cell in fragment.changes().items() if cell is not None}


def shown(left: Left, stream: str) -> list[tuple[int, int]]:
    return [
        (time, value.n)
        for out in left.output.batches.get(stream, [])
        for time, value in zip(out.times, out.values, strict=True)
    ]


def test_cells_leave_as_of_the_watermark_of_the_device_that_takes_them() -> None:
    graph = alarms()
    cells = cells_of(graph, [6, 0, 2], 0)
    assert {step for step, _ in cells} == {"alarm_order"}
    left = brought_up(graph, ["alarm_order", "alarm"], cells, {"by": 5})
    assert sorted(left.cells) == [("alarm", encode_key("a")), ("alarm_order", encode_key("a"))]
    assert shown(left, "alarm") == []
    later = brought_up(graph, ["alarm_order", "alarm"], left.cells, {"by": 12})
    assert shown(later, "alarm") == [(10, 3), (12, 3)]
    assert set(later.cells) == {("alarm", encode_key("a"))}


def test_what_order_holds_goes_to_its_task_where_the_device_has_none() -> None:
    graph = alarms()
    left = brought_up(
        graph, ["alarm_order", "alarm"], cells_of(graph, [6, 0, 2], 0), {"by": 5}, ["alarm_order"]
    )
    assert set(left.cells) == {("alarm", encode_key("a"))}
    assert shown(brought_up(graph, ["alarm"], left.cells, {"alarm_order": END_OF_TIME}), "alarm") == [
        (10, 3),
        (12, 3),
        (16, 3),
    ]


def test_what_a_loaded_cell_puts_out_below_the_clock_leaves_the_graph_and_is_counted() -> None:
    graph = alarms()
    cells = brought_up(graph, ["alarm_order", "alarm"], cells_of(graph, [6, 0, 2], 0), {"by": 7}).cells
    counters: dict[str, int] = {}
    left, overtaken = loaded(graph, cells, {"by": 12, "alarm_order": 12}.__getitem__, counters)
    assert shown(left, "alarm") == [(12, 3)]
    assert [time for out in overtaken.batches["alarm"] for time in out.times] == [10]
    assert counters == {"alarm.overtaken": 1}
    assert shown(brought_up(graph, ["alarm"], left.cells, {"alarm_order": 99}), "alarm") == [(16, 3)]


def test_cells_that_are_ahead_of_the_clock_come_in_as_they_are() -> None:
    graph = alarms()
    cells = brought_up(graph, ["alarm_order", "alarm"], cells_of(graph, [6, 0, 2], 0), {"by": 7}).cells
    left, overtaken = loaded(graph, cells, lambda stream: 3, {})
    assert left.cells == cells
    assert not left.output.batches
    assert not overtaken.batches


def test_a_fragment_takes_cells_in_between_two_batches() -> None:
    graph = alarms()
    cells = brought_up(graph, ["alarm_order", "alarm"], cells_of(graph, [6, 0, 2], 0), {"by": 7}).cells
    fragment = Fragment(graph, {"alarm_order", "alarm"})
    fragment.feed("by", batch([1]))
    fragment.advance("by", 7)
    fragment.take_in(cells)
    fragment.feed("by", batch([7]))
    fragment.advance("by", 12)
    found = [(time, value.n) for out in left_of(fragment, "alarm") for time, value in pairs(out)]
    assert sorted(found) == [(10, 3), (11, 2), (12, 3)]
    assert {key for _, key in fragment.changes()} == {encode_key("a"), encode_key("b")}


def pairs(out: Batch) -> list[tuple[int, Any]]:
    return list(zip(out.times, out.values, strict=True))


def test_windows_take_cells_in_between_two_batches() -> None:
    graph = aggregated(AGGREGATES[0])
    first, second = Fragment(graph, {"sums_partial"}), Fragment(graph, {"sums_partial"})
    first.feed("by", batch([0, 2, 4]))
    second.feed("by", batch([1, 3]))
    second.advance("by", 5)
    second.take_in({at: cell for at, cell in first.changes().items() if cell is not None})
    second.feed("by", batch([6]))
    second.advance("by", END_OF_TIME)
    assert sorted(names for out in left_of(second, "sums_partial") for names in out.numbers) == [0, 1]
    assert set(second.changes().values()) == {None}
