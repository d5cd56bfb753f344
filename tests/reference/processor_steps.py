"""The steps of the random flows that only the low-level face makes: tasks without a key, and copies of
records for each instance of a processor.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from geartrain import Context, Stream, Task
from geartrain.graph.graph import Grouping, Input
from geartrain.operators.copies import Copies, KeyByCopy
from geartrain.operators.process import Process
from geartrain.operators.stateless import Stateless
from tests.reference.records import Counting, Reading, Running
from tests.reference.steps import DrawStep, Known, Made


class Each(Task[Any, Reading]):
    """Emits up to two records for one; raises for n = 5 after the first, and emits what does not fit."""

    def on_next(self, value: Any, ctx: Context[Reading, None]) -> None:
        if value.n % 3:
            ctx.emit(Reading(value.key, value.n + 1, value.x, value.note))
        if value.n == 5:
            raise ValueError("five")
        if value.n % 4 == 0:
            ctx.emit(Reading(value.key, value.n * 2**60, 0.0, "large"))


def _put(known: Known, above: Made, operator: Any, verb: str, *, keyed: bool = False) -> Made:
    """Add a step as the low-level face does."""
    name, out = known.name(verb), operator_out(operator, above)
    inputs = (Input(above.stream.step, Grouping.HASH if keyed else Grouping.FORWARD),)
    stream: Stream[Any] = Stream(known.flow, known.flow.add_step(name, operator, inputs, out), out)
    variable = f"s{len(known.code)}"
    known.code.append(f"{variable} = {above.variable} >> {name}: {operator!r}")
    return Made(variable, stream)


def operator_out(operator: Any, above: Made) -> Any:
    """The type of an operator's records: a task makes new ones."""
    return Reading if hasattr(operator, "task") else above.stream.kind


def _stateless(draw: st.DrawFn, known: Known) -> None:
    above = known.pick(draw)
    known.add(_put(known, above, Stateless(Each()), "each"), above)


def _instances(draw: st.DrawFn, known: Known) -> None:
    above = known.pick(draw, timely=True, joined=False)
    copies = _put(known, above, Copies(draw(st.integers(1, 3))), "copies")
    keyed = _put(known, copies, KeyByCopy(), "by")
    task: Any = draw(st.sampled_from([Running(every=2), Counting()]))
    known.add(_put(known, keyed, Process(task), "instances", keyed=True), above)


STEPS: list[DrawStep] = [_stateless, _instances]
"""Each as often as it shall be drawn."""
