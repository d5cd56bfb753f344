"""A question for the state of a key: how a text becomes a key, and what each kind of step tells."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from geartrain import Context, Flow, KeyedStream, Record, State, Stream, Task, agg, tumbling
from geartrain.errors import QuestionError
from geartrain.records.batch import Batch
from geartrain.records.keys import encode_key
from geartrain.runtime.asking import check_asked, keys_of, shown_key, tell
from geartrain.runtime.fragment import Fragment
from geartrain.testing import TestingSink, TestingSource

US = timedelta(microseconds=1)


class Visit(Record):
    shop: str
    number: int
    is_open: bool
    tag: bytes
    weight: float


class Seen(State):
    count: int = 0
    total: float = 0.0
    shops: dict[str, int] = {}  # noqa: RUF012 - as states have them


class Shop(Record):
    shop: str
    visits: int
    most: float | None


class Remember(Task[Visit, Visit]):
    """Counts, and wakes up ten later."""

    state: ClassVar[type[Seen]] = Seen

    def on_next(self, value: Visit, ctx: Context[Visit, Seen]) -> None:
        ctx.state.count += 1
        ctx.state.total += value.weight
        ctx.state.shops[value.shop] = value.number
        ctx.notify_at(ctx.event_time + 10)
        ctx.notify_at(ctx.event_time + 20)

    def on_notify(self, time: int, ctx: Context[Visit, Seen]) -> None:
        ctx.state.count = -1


def added(state: Seen, value: Visit) -> Seen:
    return Seen(state.count + 1, state.total + value.weight)


def count_of(state: Seen) -> int:
    return state.count


def tag_of(value: Visit) -> bytes:
    return value.tag


def pair_of(value: Visit) -> tuple[str, int]:
    return value.shop, value.number


def untyped(value):  # type: ignore[no-untyped-def]
    return value.shop if value.is_open else value.number


def visits(*rows: tuple[int, str, float]) -> list[tuple[int, Visit]]:
    return [(at, Visit(shop, at, shop == "a", shop.encode(), weight)) for at, shop, weight in rows]


ROWS = visits((1, "a", 1.5), (3, "b", 2.0), (4, "a", 0.25), (12, "a", 4.0))


def told(make: Callable[[KeyedStream[Any, Visit]], Stream[Any]], key: str = "a", watermark: int = 13) -> Any:
    """What a step tells of a key after `ROWS` and the watermark, which has all of them pass `order`."""
    flow = Flow("shops")
    source = flow.source("visits", TestingSource[Visit](items=ROWS), out=Visit)
    make(source.key_by("shop", name="by_shop")).sink("out", TestingSink("out"))
    graph = flow.graph()
    fragment = Fragment(graph, [step.id for step in graph.steps])
    count = len(ROWS)
    times, values = [at for at, _ in ROWS], [value for _, value in ROWS]
    fragment.feed("visits", Batch(values, times, ["d/visits"] * count, list(range(count))))
    fragment.advance("visits", watermark)
    cells = fragment.changes()
    [encoded] = keys_of(graph, "step", key)
    cell = cells.get(("step", encoded))
    return None if cell is None else tell(graph, "step", encoded, cell)


def test_a_task_tells_its_state_and_its_timers() -> None:
    found = told(lambda keyed: keyed.process("step", Remember(), ttl=100 * US))
    # The timer of 11 has fired before the record at 12, which set count to -1 before it was raised again.
    assert found["state"] == {"count": 0, "total": 5.75, "shops": {"a": 12}}
    assert (found["timers"], found["forgets_us"]) == ([14, 21, 22, 24, 32], 112)
    assert told(lambda keyed: keyed.process("step", Remember()), key="nobody") is None


def test_running_steps_tell_what_they_have_by_now() -> None:
    fold = told(lambda keyed: keyed.fold("step", Seen, added, result=count_of))
    assert fold["state"] == {"count": 3, "total": 5.75, "shops": {}}
    heavier = told(lambda keyed: keyed.reduce("step", lambda old, new: max(old, new, key=lambda v: v.weight)))
    assert (heavier["state"]["number"], heavier["state"]["weight"]) == (12, 4.0)
    shop = told(lambda keyed: keyed.aggregate("step", out=Shop, visits=agg.count(), most=agg.max("weight")))
    assert shop["state"] == {"shop": "a", "visits": 3, "most": 4.0}


def test_windows_that_are_open_tell_what_they_would_give() -> None:
    ten = tumbling(10 * US)
    found = told(
        lambda keyed: keyed.window(ten).aggregate(
            "step", out=Shop, visits=agg.count(), most=agg.max("weight")
        ),
        watermark=5,
    )
    assert found["windows"] == [
        {"start_us": 0, "end_us": 10, "result": {"shop": "a", "visits": 2, "most": 1.5}},
        {"start_us": 10, "end_us": 20, "result": {"shop": "a", "visits": 1, "most": 4.0}},
    ]
    later = told(lambda keyed: keyed.window(ten).fold("step", Seen, added, result=count_of))
    assert later["windows"] == [{"start_us": 10, "end_us": 20, "result": 1}]
    assert later["state"] is None


def test_what_user_code_raises_is_a_sentence() -> None:
    def divided(state: Seen) -> float:
        return state.total / 0

    with pytest.raises(QuestionError, match="step 'step': its state cannot be told: ZeroDivisionError"):
        told(lambda keyed: keyed.window(tumbling(10 * US)).fold("step", Seen, added, result=divided))


@pytest.mark.parametrize(
    ("by", "text", "keys"),
    [
        ("shop", "7", ["7"]),
        ("shop", '["a"]', ['["a"]']),
        ("number", "-7", [-7]),
        ("is_open", "true", [True]),
        ("tag", "00ff", [b"\x00\xff"]),
        (tag_of, "0xab", [b"\xab"]),
        (pair_of, '["a", 7]', [("a", 7)]),
        (untyped, "7", ["7", 7]),
        (untyped, "true", ["true", True]),
        (untyped, "9" * 19, ["9" * 19]),
        (untyped, '["a", 1]', [("a", 1), '["a", 1]']),
    ],
)
def test_a_text_becomes_the_key_that_the_step_has(by: Any, text: str, keys: list[Any]) -> None:
    found = keys_of(graph_of(by), "step", text)
    assert found == [encode_key(key) for key in keys]


@pytest.mark.parametrize(
    ("by", "text", "why"),
    [
        ("number", "seven", "'seven' is no key of it: write a whole number"),
        ("number", "9" * 19, "does not fit into 64 bits"),
        ("is_open", "1", "'1' is no key of it: write true or false"),
        ("tag", "xy", "'xy' is no key of it: write hexadecimal digits"),
        (pair_of, "a", 'write a JSON list, such as ["north", 7]'),
        (pair_of, '["a", "7"]', "write a JSON list"),
        (pair_of, '["a"]', "write a JSON list"),
        (pair_of, "[" * 5000, "write a JSON list"),
    ],
)
def test_a_text_that_is_no_key_is_refused(by: Any, text: str, why: str) -> None:
    with pytest.raises(QuestionError, match=r"^step 'step': ") as caught:
        keys_of(graph_of(by), "step", text)
    assert why in str(caught.value)


def graph_of(by: Any) -> Any:
    flow = Flow("shops")
    source = flow.source("visits", TestingSource[Visit](items=[]), out=Visit)
    source.key_by(by, name="by").process("step", Remember()).sink("out", TestingSink("out"))
    return flow.graph()


def test_steps_without_a_state_of_a_key_are_named() -> None:
    graph = graph_of("shop")
    check_asked(graph, "step")
    with pytest.raises(QuestionError, match="there is no step 'stop'; those with a state: step"):
        check_asked(graph, "stop")
    with pytest.raises(QuestionError, match="step 'by' keeps no state of a key"):
        check_asked(graph, "by")


def test_keys_are_shown_as_json_has_them() -> None:
    assert [shown_key(encode_key(key)) for key in ("a", 7, True, b"\xff", ("a", b"\x01"))] == [
        *("a", 7, True, "ff"),
        ["a", "01"],
    ]
