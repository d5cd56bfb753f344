"""Random small flows and random data for them: what the property tests feed to the runtime and to the
reference.

Every generated flow is legal: a keyed task only where its keys live in one split and its records come in
order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
from hypothesis import strategies as st

from geartrain import Context, Flow, Record, State, Stream, Table, Task
from geartrain.source import Reject
from geartrain.testing import TestingSource


class Reading(Record):
    """A record with a key, an integer, a float and an optional text."""

    key: str
    n: int
    x: float
    note: str | None = None


def grow(r: Reading) -> Reading:
    """Multiplies, so that integers overflow in the end and become dead letters."""
    return Reading(r.key, r.n * 1_000_003, r.x * 1.5, r.note)


def shift(r: Reading) -> Reading:
    """Divides by n + 3: a dead letter for n = -3, an int in the float field now and then."""
    return Reading(r.key, r.n + 1, 7 if r.n == 2 else r.x / (r.n + 3), str(r.n))


def rekey(r: Reading) -> Reading:
    """Changes the key, which ends the partition domain."""
    return Reading(r.key[:1], r.n, r.x, r.note)


def spread(r: Reading) -> Iterable[Reading]:
    """As many children as n modulo 4."""
    return [Reading(r.key, r.n + i, r.x, r.note) for i in range(r.n % 4)]


def odd(r: Reading) -> bool:
    """Raises for n = 5."""
    if r.n == 5:
        raise ValueError("five")
    return r.n % 2 == 1


def small(r: Reading) -> bool:
    """Keeps what is below 100, NaN not."""
    return r.x < 100.0


class Last(Record):
    """A float within a state."""

    x: float = 0.0


class Tally(State):
    """What a key has seen."""

    count: int = 0
    total: int = 0
    last: float = 0.0
    inner: Last | None = None
    recent: list[float] = msgspec.field(default_factory=list)
    seen: list[int] = msgspec.field(default_factory=list)


class Running(Task[Reading, Reading]):
    """Emits the running total of its key; raises for n = 13 after it has changed its state."""

    state: ClassVar[type[Tally]] = Tally
    every: int = 1

    def on_next(self, value: Reading, ctx: Context[Reading, Tally]) -> None:
        tally = ctx.state
        tally.count += 1
        tally.total += abs(value.n)  # beyond 64 bits in the end: a state that cannot be saved
        tally.seen = [*tally.seen[-3:], value.n]
        ctx.emit(Reading(value.key, tally.total, tally.last, repr((tally.seen, tally.inner, tally.recent))))
        tally.last = value.n if tally.count % 3 == 0 else value.x  # an int is a float once it is saved
        tally.inner = Last(tally.count)
        tally.recent = [*tally.recent[-2:], tally.count]
        if tally.count == 9:
            tally.total = "nine"  # type: ignore[assignment]  # a state of another type cannot be saved
        if value.n == 13:
            raise ValueError("thirteen")
        if tally.count % self.every:
            ctx.emit(Reading(str(ctx.key), tally.count, float(ctx.event_time)))


@dataclass
class Case:
    """A flow and its data: by source step, by split name, items of (time, value) or Reject."""

    flow: Flow
    inputs: dict[str, dict[str, list[Any]]]
    bounds_us: dict[str, int]
    devices: list[str]


_times = st.one_of(st.integers(-5, 30), st.integers(-(10**12), 10**12))
_numbers = st.one_of(
    st.integers(-4, 16), st.sampled_from([13, 5, 2, -3]), st.sampled_from([2**63 - 1, -(2**63), 2**63, 0])
)
_mostly: st.SearchStrategy[bool] = st.sampled_from([True, True, False])
_floats = st.floats(allow_nan=True, allow_infinity=True)


def _items(keys: list[str], in_order: bool) -> st.SearchStrategy[list[Any]]:
    reading = st.builds(
        Reading, st.sampled_from(keys), _numbers, _floats, st.one_of(st.none(), st.text(max_size=3))
    )
    timed = st.tuples(_times, reading)
    items = st.lists(timed, max_size=30)
    return items.map(lambda rows: sorted(rows, key=lambda row: row[0]) if in_order else rows)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A flow of one or two sources and 1 to 6 steps, over 1 to 3 devices, each with its own keys."""
    devices = [f"d{i}" for i in range(draw(st.integers(1, 3)))]
    flow = Flow("random")
    inputs: dict[str, dict[str, list[Any]]] = {}
    bounds: dict[str, int] = {}
    streams: list[tuple[Stream[Reading], bool, bool]] = []
    for number in range(draw(st.integers(1, 2))):
        step, in_order = f"source{number}", draw(_mostly)
        bounds[step] = 0 if in_order else draw(st.sampled_from([0, 3, 10**6]))
        partitioned = draw(_mostly)
        inputs[step] = {}
        for device in devices:
            keys = [f"{device}{k}" for k in "ab"] if partitioned else ["a", "b"]
            items: list[Any] = list(draw(_items(keys, in_order)))
            planted = draw(st.booleans())
            if items and planted:
                items.insert(draw(st.integers(0, len(items))), Reject(-1, "planted", b"raw"))
            split = f"{device}/{step}"
            inputs[step][split] = [
                Reject(i, x.reason, x.raw) if isinstance(x, Reject) else x for i, x in enumerate(items)
            ]
        source: TestingSource[Reading] = _Ordered() if in_order else _Unordered()
        out = flow.source(step, source, out=Reading, partitioned_by="key" if partitioned else None)
        streams.append((out, in_order, partitioned))
    for number in range(draw(st.integers(1, 6))):
        streams.append(_step(draw, number, *draw(st.sampled_from(streams))))
    for number, (stream, _, _) in enumerate(streams):
        if number == len(streams) - 1 or draw(st.booleans()):
            stream.sink(f"sink{number}", Table(f"table{number}"))
    return Case(flow, inputs, bounds, devices)


class _Ordered(TestingSource[Reading]):
    in_order = True


class _Unordered(TestingSource[Reading]):
    in_order = False


def _step(
    draw: st.DrawFn, number: int, stream: Stream[Reading], ordered: bool, domain: bool
) -> tuple[Stream[Reading], bool, bool]:
    verbs = ["grow", "shift", "rekey", "spread", "odd", "small"]
    if ordered and domain:
        verbs += ["running"] * 4
    verb = draw(st.sampled_from(verbs))
    name = f"{verb}{number}"
    if verb == "running":
        keyed = stream.key_by("key", name=f"by{number}")
        task = Running(every=draw(st.integers(1, 3)))
        return keyed.process(name, task), False, False
    keeps = ["key"] if domain and verb != "rekey" and draw(st.booleans()) else []
    if verb in ("grow", "shift", "rekey"):
        function = {"grow": grow, "shift": shift, "rekey": rekey}[verb]
        return stream.map(function, name=name, keeps=keeps), ordered, bool(keeps)
    if verb == "spread":
        return stream.flat_map(spread, name=name, keeps=keeps), ordered, bool(keeps)
    return stream.filter(odd if verb == "odd" else small, name=name), ordered, domain
