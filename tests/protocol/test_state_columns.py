"""States that are looked at by columns once a batch: refused as when each is looked at by itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from geartrain import Context, Flow, Record, State, Table, Task
from geartrain.state.state_columns import StateColumns
from geartrain.state.state_type import StateType
from geartrain.testing import TestingSource, run_flow


class Part(Record):
    low: float
    at: datetime | None


class Kept(State):
    label: str = ""
    count: int = 0
    level: float = 0.0
    part: Part | None = None
    raw: bytes | None = None


class Listed(State):
    levels: list[float] = msgspec.field(default_factory=list)


class Mutable(State):
    kept: Kept | None = None


GOOD = 3
"""So many of the states below pass; others that have their declared form take a closer look."""
ODD = timezone(timedelta(0), "odd")
NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)
STATES: list[Any] = [
    Kept(),
    Kept("ä", -(2**63), -0.0, Part(1.5, NOON), b"\xff"),
    Kept("a", 2**63 - 1, float("nan"), Part(1.5, None)),
    Kept("\ud800"),
    Kept("a", 2**64),
    Kept("a", -(2**63) - 1),
    Kept("a", True),
    Kept("a", 1, 2),
    Kept("a", 1, None),  # type: ignore[arg-type]
    Kept("a", 1, 2.0, Part(3, None)),
    Kept("a", 1, 2.0, Part(3.0, NOON.replace(tzinfo=None))),
    Kept("a", 1, 2.0, Part(3.0, NOON.replace(tzinfo=ODD))),
    Kept("a", 1, 2.0, Part(3.0, NOON.replace(fold=1))),
    Kept("a", 1, 2.0, None, "text"),  # type: ignore[arg-type]
    Kept(b"a"),  # type: ignore[arg-type]
]


def _fits(state: Any) -> bool:
    """Whether the state is given back as it is when it is looked at by itself."""
    before = repr(state)
    try:
        return StateType("step", Kept).fitted(state) is state and repr(state) == before
    except Exception:
        return False


@pytest.mark.parametrize("number", range(len(STATES)))
def test_a_state_that_passes_is_one_that_stays_as_it_is(number: int) -> None:
    columns = StateColumns.of(Kept)
    assert columns is not None
    between = (Kept("b"), STATES[number], Kept("c", 1, 1.0, Part(0.5, NOON)))
    rows = [columns.fields(state) for state in between]
    ready = columns.ready([STATES[number]], rows)
    assert ready == (number < GOOD)
    assert not ready or _fits(msgspec.structs.replace(STATES[number]))


def test_states_of_another_type_do_not_pass_and_those_that_change_in_place_have_no_columns() -> None:
    columns = StateColumns.of(Kept)
    assert columns is not None
    assert not columns.ready([Part(1.0, None)], [columns.fields(Kept())])
    assert StateColumns.of(Listed) is None
    assert StateColumns.of(Mutable) is None
    assert StateColumns.of(int) is None
    assert StateColumns.of(None) is None


class Reading(Record):
    key: str
    n: int


class Passing(Task[Reading, str]):
    """Its state leaves its form at 3, by an int too large, and at 5, by an int for a float, and returns."""

    state = Kept

    def on_next(self, reading: Reading, ctx: Context[str, Kept]) -> None:
        ctx.emit(f"{reading.n}: {ctx.state.count} {ctx.state.level!r}")
        ctx.state.count = 2**70 if reading.n == 3 else reading.n
        ctx.state.level = 7 if reading.n == 5 else 0.5
        if reading.n == 8:
            raise ValueError("eight")


def test_what_leaves_its_form_within_a_batch_is_refused_or_mended_at_the_call_that_did_it() -> None:
    flow = Flow("passing")
    items = [(n, Reading("ab"[n % 2], n)) for n in range(10)]
    readings = flow.source("readings", TestingSource(items=items), out=Reading)
    readings.key_by("key").process("pass", Passing()).sink("out", Table("out"))
    results = run_flow(flow)
    assert sorted(value for _, value in results.tables["out"]) == [
        "0: 0 0.0",
        "1: 0 0.0",
        "2: 0 0.5",
        "4: 2 0.5",
        "5: 1 0.5",
        "6: 4 0.5",
        "7: 5 7.0",
        "9: 7 0.5",
    ]
