"""What random flows found about states: the smallest case of each."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from geartrain import Context, Flow, State, Table, Task
from geartrain.testing import TestingSource, run_flow


class Slot(State):
    """One number."""

    number: int = 0


class Keep(Task[int, int]):
    """Puts text where a number belongs, and the next record puts a number there again."""

    state: ClassVar[type[Slot]] = Slot

    def on_next(self, value: int, ctx: Context[int, Slot]) -> None:
        ctx.state.number = "nine" if value == 9 else value  # type: ignore[assignment]
        ctx.emit(value)


class KeepTimed(Keep):
    """The same, with timers to keep."""

    def on_notify(self, time: int, ctx: Context[int, Slot]) -> None:
        return


def keep(state: Slot, value: int) -> Slot:
    """The same as a fold."""
    state.number = "nine" if value == 9 else state.number * 10 + value  # type: ignore[assignment]
    return state


def number(state: Slot) -> int:
    """What the fold shows, of a state that is wrong too."""
    return state.number


@pytest.mark.parametrize("rows_max", [1, 256])
@pytest.mark.parametrize("verb", ["process", "timed", "fold"])
def test_a_state_that_cannot_be_saved_is_found_at_its_record_whatever_the_batch(
    verb: str, rows_max: int
) -> None:
    flow = Flow("found")
    source: TestingSource[int] = TestingSource(items=[(1, 1), (2, 9), (3, 3)])
    keyed = flow.source("source", source, out=int).key_by(bool, name="by")
    out: Any
    if verb == "fold":
        out, want = keyed.fold("fold", Slot, keep, result=number), [(1, 1), (3, 13)]
    else:
        out, want = keyed.process("step", Keep() if verb == "process" else KeepTimed()), [(1, 1), (3, 3)]
    out.sink("sink", Table("table"))
    results = run_flow(flow, rows_max=rows_max)
    assert results.tables["sink"] == want
    assert [letter.raw for letter in results.dead_letters] == [b"9"]
