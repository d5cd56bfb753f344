"""A device's state between the tiers: what leaves with a step that goes up or down, and what comes in there.

Stands beside the fragments, at the commit at which a device goes over to another cut. Guarantees: results are
those of a step that never moved. What leaves was brought up to the watermarks of the tier that it goes to, or
was ahead of them, so that nothing comes out there below its clock. Where that cannot be (a device that was
excluded from the clock), what comes out below it leaves the graph there, and is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from geartrain.graph.graph import DEAD_LETTERS, LATE, Graph
from geartrain.records.event_time import START_OF_TIME
from geartrain.runtime.fragment import Fragment, Output
from geartrain.state.keyed import DictBackend
from geartrain.state.moving import Cells

PARTIAL = "partial_aggregate"
"""The kind of step that leaves no cells: the other tier merges what it puts out."""


class Moves(msgspec.Struct, frozen=True):
    """Steps with state that a device gives to the cloud (`up`) or gets from there (`down`), and the partial
    aggregates that end on the device (`put_out`). In topological order.
    """

    up: tuple[str, ...]
    down: tuple[str, ...]
    put_out: tuple[str, ...]

    @staticmethod
    def of(graph: Graph, before: AbstractSet[str], after: AbstractSet[str]) -> Moves:
        """The moves of a device whose steps were `before` and are `after`."""
        stateful = [step for step in graph.steps if step.operator.stateful]
        partial = {step.id for step in stateful if step.operator.kind == PARTIAL}
        up = [step.id for step in stateful if step.id in before and step.id not in after]
        down = [step.id for step in stateful if step.id in after and step.id not in before]
        return Moves(
            tuple(step for step in up if step not in partial),
            tuple(step for step in down if step not in partial),
            tuple(step for step in up if step in partial),
        )


class Left(msgspec.Struct, frozen=True):
    """What leaves a tier: cells, and records that steps put out before; kept: the cells that stay."""

    cells: Cells
    output: Output
    kept: Cells


def of_steps(cells: Mapping[tuple[str, bytes], bytes], steps: Collection[str]) -> Cells:
    """Those of some cells that belong to `steps`."""
    return {at: cell for at, cell in cells.items() if at[0] in steps}


def given(fragment: Fragment, cells: Mapping[tuple[str, bytes], bytes], moves: Moves) -> Left:
    """What a device gives up that goes over: the last output under its old steps, and the cells of those that
    move.

    fragment: its steps at work, of which nothing is fed any more; cells: all that it has saved, with its
    changes.
    """
    for step in moves.put_out:
        fragment.drain(step)
    output = fragment.take()
    now = dict(cells)
    for at, cell in fragment.changes().items():
        if cell is None:
            now.pop(at, None)
        else:
            now[at] = cell
    left = of_steps(now, {*moves.up, *moves.put_out})
    kept = {at: cell for at, cell in now.items() if at not in left}
    return Left(of_steps(left, moves.up), output, kept)


def brought_up(
    graph: Graph,
    steps: Iterable[str],
    cells: Mapping[tuple[str, bytes], bytes],
    marks: Mapping[str, int],
    drained: Collection[str] = (),
) -> Left:
    """The cells of one device that leave the cloud with the steps `steps`, as of the device's watermarks. All
    that is due by then comes out first: here it is not below the clock.

    marks: by stream that enters these steps, the device's watermark, microseconds; drained: `order` steps
    that the device does without, because its records come in order.
    """
    moving = frozenset(steps)
    fragment = Fragment(graph, moving, DictBackend(dict(cells)))
    for stream in dict.fromkeys(i.step for s in graph.steps if s.id in moving for i in s.inputs):
        if stream not in moving and marks.get(stream, START_OF_TIME) > START_OF_TIME:
            fragment.advance(stream, marks[stream])
    for step in graph.steps:
        if step.id in drained:
            fragment.drain(step.id)
    return given(fragment, cells, Moves(tuple(moving.difference(drained)), (), ()))


def loaded(
    graph: Graph,
    cells: Mapping[tuple[str, bytes], bytes],
    clock_of: Callable[[str], int],
    counters: dict[str, int],
) -> tuple[Left, Output]:
    """Cells as they are taken in at a clock, with what comes out of them at once; and what is overtaken.

    clock_of: the clock of a stream, microseconds; counters: `<step>.overtaken` counts the records that leave
    the graph here.
    """
    taken, output, overtaken = dict[tuple[str, bytes], bytes](), Output(), Output()
    moved = {step for step, _ in cells}
    for step in graph.steps:
        if step.id not in moved:
            continue
        mine = {stream.step: clock_of(stream.step) for stream in step.inputs}
        left = brought_up(graph, [step.id], of_steps(cells, [step.id]), mine)
        taken |= left.cells
        clock = min(mine.values())
        for stream, batches in left.output.batches.items():
            for batch in batches:
                below = [stream not in (DEAD_LETTERS, LATE) and time < clock for time in batch.times]
                output.add(stream, batch.where([not late for late in below]))
                overtaken.add(stream, batch.where(below))
                if any(below):
                    name = f"{step.id}.overtaken"
                    counters[name] = counters.get(name, 0) + sum(below)
    return Left(taken, output, {}), overtaken
