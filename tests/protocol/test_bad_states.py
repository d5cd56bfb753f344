"""States that cannot be: types that no state can have, and values that a state cannot hold."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

import msgspec
import pytest

from geartrain import Context, Flow, Record, State, Task
from geartrain.errors import FlowError
from geartrain.testing import TestingSink, TestingSource, run_flow


class Hit(Record):
    key: str
    n: int


class Inner(State):
    total: int = 0
    names: list[str] = msgspec.field(default_factory=list)


class Deep(State):
    count: int = 0
    share: float = 0.0
    anything: Any = None
    inner: Inner = msgspec.field(default_factory=Inner)
    by_name: dict[str, int] = msgspec.field(default_factory=dict)
    seen: set[str] = msgspec.field(default_factory=set)
    maybe: Inner | None = None


@dataclass
class Plain:
    count: int = 0
    parts: list[int] = field(default_factory=list)


class Lacks(State):
    needed: int


def raises() -> None:
    raise RuntimeError("no such thing")


def make_lock() -> Any:
    return threading.Lock()


class Unmade:
    def __init__(self) -> None:
        raise OSError("it cannot be made")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (make_lock, "what make_lock makes cannot be a state ("),
        (object, "object cannot be a state (Encoding objects of type object is unsupported)"),
        (Unmade, "Unmade cannot be a state (it cannot be made)"),
        (Lacks, "Lacks cannot be a state (Missing required argument 'needed')"),
        (raises, "what raises makes cannot be a state ("),
        ([1], "a list cannot be a state ("),
        ("text", "'text' cannot be a state ("),
        (threading.Thread, "Thread cannot be a state ("),
    ],
)
@pytest.mark.parametrize("timed", [False, True])
def test_a_type_that_cannot_be_a_state_is_refused_where_the_flow_is_written(
    kind: Any, said: str, timed: bool
) -> None:
    class Keeps(Task[Hit, int]):
        state: ClassVar[Any] = kind

        def on_next(self, value: Hit, ctx: Context[int, Any]) -> None:
            ctx.emit(1)

    flow = Flow("f")
    keyed = flow.source("hits", TestingSource(items=[]), out=Hit).key_by("key")
    with pytest.raises(FlowError) as error:
        keyed.process("keeps", Keeps(), ttl=timedelta(days=1) if timed else None)
    assert str(error.value).startswith("flow f, step 'keeps': ")
    assert said in str(error.value)
    assert "use a geartrain.State with typed fields that have defaults, or a scalar type" in str(error.value)


def wrong(state: Any, number: int) -> None:
    """Put a value into a state that it cannot hold; 0 is a good one."""
    if number == 1:
        state.count = 1.5
    elif number == 2:
        state.count = 2**64
    elif number == 3:
        state.anything = {1, 2}
    elif number == 4:
        state.inner.names = {"b", "a"}
    elif number == 5:
        state.inner = Hit("a", 1)
    elif number == 6:
        state.by_name["x"] = "many"
    elif number == 7:
        state.seen.add(threading.Lock())
    elif number == 8:
        state.maybe = Inner(total="none")  # type: ignore[arg-type]
    elif number == 9:
        state.inner.names.append("\udcff")
    elif number == 10:
        del state.inner
    else:
        state.count += 1


FIELDS = {
    1: "field count is 1.5, declared int: Expected int, got float",
    2: "field count is 18446744073709551616, declared int: ",
    3: "field anything is a set, declared Any: a set has no order: sort it into a list, or declare a set",
    4: "field inner.names is a set, declared list[str]: a set has no order",
    5: "field inner is a Hit, declared ",
    6: "field by_name['x'] is 'many', declared int: Expected int, got str",
    7: "field seen is a set, declared set[str]: Encoding objects of type ",
    8: "field maybe.total is 'none', declared int: Expected int, got str",
    9: "field inner.names[0] is '\\udcff', declared str: ",
    10: "inner",
}


@pytest.mark.parametrize("timed", [False, True])
def test_a_value_that_a_state_cannot_hold_names_step_key_and_field_and_leaves_no_trace(timed: bool) -> None:
    class Counts(Task[Hit, int]):
        state: ClassVar[type[Deep]] = Deep

        def on_next(self, value: Hit, ctx: Context[int, Deep]) -> None:
            wrong(ctx.state, value.n)
            ctx.emit(ctx.state.count)

    items = [(n, Hit("AAPL", number)) for n, number in enumerate([0, *FIELDS, 0])]
    flow = Flow("f")
    keyed = flow.source("hits", TestingSource(items=items), out=Hit).key_by("key")
    counted = keyed.process("counts", Counts(), ttl=timedelta(days=1) if timed else None)
    counted.sink("out", TestingSink("out"))
    results = run_flow(flow)
    assert [count for _, count in results.tables["out"]] == [1, 2]
    assert [letter.step for letter in results.dead_letters] == ["counts"] * len(FIELDS)
    start = "SchemaError: the state of step 'counts' for the key 'AAPL' cannot be saved: "
    for letter, said in zip(results.dead_letters, FIELDS.values(), strict=True):
        assert letter.reason.startswith(start)
        assert said in letter.reason
        assert "0x" not in letter.reason


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (int, 1.5, "it is 1.5, declared int: Expected int, got float"),
        (str, "\udcff", "it is '\\udcff', declared str: "),
        (Plain, Plain(count=5, parts=[1, "x"]), "field parts[1] is 'x', declared int: Expected int, got str"),  # type: ignore[list-item]
        (Plain, 7, "it is 7, declared "),
        (list[int], [1, 2**70], "field [1] is 1180591620717411303424, declared int: "),
    ],
)
def test_a_state_without_fields_and_a_dataclass_are_named_too(kind: Any, value: Any, said: str) -> None:
    class Sets(Task[Hit, int]):
        state: ClassVar[Any] = kind

        def on_next(self, hit: Hit, ctx: Context[int, Any]) -> None:
            ctx.state = value

    flow = Flow("f")
    keyed = flow.source("hits", TestingSource(items=[(1, Hit("a", 5))]), out=Hit).key_by("n")
    keyed.process("sets", Sets()).sink("out", TestingSink("out"))
    (letter,) = run_flow(flow).dead_letters
    assert re.match(r"SchemaError: the state of step 'sets' for the key 5 cannot be saved: ", letter.reason)
    assert said in letter.reason


def test_an_initial_state_that_cannot_be_names_its_key() -> None:
    class Counts(Task[Hit, int]):
        state: ClassVar[type[Inner]] = Inner

        def on_next(self, value: Hit, ctx: Context[int, Inner]) -> None:
            ctx.emit(1)

    flow = Flow("f")
    keyed = flow.source("hits", TestingSource(items=[(1, Hit("a", 5))]), out=Hit).key_by("key")
    initial: Any = {"a": Inner(total="x")}  # type: ignore[arg-type]
    with pytest.raises(FlowError, match="initial state of key 'a': Expected `int`, got `str`"):
        keyed.process("counts", Counts(), initial=initial)


def test_a_state_in_the_place_of_its_type_is_told_from_one() -> None:
    class Keeps(Task[Hit, int]):
        state: ClassVar[Any] = Good()

        def on_next(self, value: Hit, ctx: Context[int, Any]) -> None:
            ctx.emit(1)

    keyed = Flow("f").source("hits", TestingSource(items=[]), out=Hit).key_by("key")
    with pytest.raises(FlowError, match="step 'keeps': its state is one Good, and not the type: write state"):
        keyed.process("keeps", Keeps())


class Good(State):
    count: int = 0
