"""The steps of the random flows: for each operator, how one is drawn and put behind what is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from geartrain import Flow, agg
from geartrain.declarations.calendars import Calendar
from geartrain.declarations.windows import Global, Sliding, Tumbling
from tests.reference import records
from tests.reference.calendars import CALENDARS


@dataclass
class Made:
    """A stream of a flow under construction: the variable that holds it, and what it is good for."""

    variable: str
    stream: Any
    domain: bool = False
    timely: bool = True
    source: bool = False
    joined: bool = False
    kind: Any = records.Reading


@dataclass
class Known:
    """A flow under construction, and the code that builds it."""

    flow: Flow
    streams: list[Made] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    late: set[str] = field(default_factory=set)

    def source(self, step: str, source: Any, partitioned_by: str | None, *, in_cloud: bool = False) -> None:
        """Add a source; in_cloud: which the platform's own device reads."""
        stream = self.flow.source(step, source, out=records.Reading, partitioned_by=partitioned_by)
        kind = type(source).__name__
        self.code.append(
            f"{step} = flow.source({step!r}, {kind}(), out=Reading, partitioned_by={partitioned_by!r})"
        )
        if in_cloud:
            stream = stream.at("cloud")
            self.code.append(f'{step} = {step}.at("cloud")')
        self.streams.append(Made(step, stream, partitioned_by is not None, source=True))

    def call(self, made: Made, verb: str, *args: Any, **options: Any) -> Made:
        """Call a verb of a stream; what it returns is not yet a stream to draw from."""
        values = [a.stream if isinstance(a, Made) else a for a in args]
        stream = getattr(made.stream, verb)(*values, **options)
        variable = f"s{len(self.code)}"
        given = [_text(a) for a in args] + [f"{n}={_text(v)}" for n, v in options.items()]
        self.code.append(f"{variable} = {made.variable}.{verb}({', '.join(given)})")
        return Made(variable, stream)

    def pick(self, draw: st.DrawFn, *, timely: bool = False, joined: bool = True, kind: Any = None) -> Made:
        """One of the streams, the latest rather than others; joined: one below a join will do too."""
        choices = [
            m
            for m in self.streams
            if (m.timely or not timely) and (joined or not m.joined) and kind in (None, m.kind)
        ]
        return choices[-1 - draw(_backward) % len(choices)]

    def name(self, verb: str) -> str:
        """A name for the next step."""
        return f"{verb}{len(self.code)}"

    def add(self, made: Made, *above: Made, domain: bool = False, joined: bool = False) -> None:
        """A stream to draw from, made of those above."""
        timely = all(a.timely for a in above)
        joined = joined or any(a.joined for a in above)
        kind = made.stream.kind
        self.streams.append(Made(made.variable, made.stream, domain, timely, joined=joined, kind=kind))


def _text(value: Any) -> str:
    if isinstance(value, Made):
        return value.variable
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    if isinstance(value, agg.AggregateSpec):
        chosen = [s.field or _text(s.function) for s in (value.selector, value.give) if s is not None]
        options = ", ".join(f"{n}={v!r}" for n, v in vars(value.aggregate).items() if n[0] != "_")
        return f"{type(value.aggregate).__name__}({options}).of({', '.join(chosen)})"
    return repr(value)


_backward = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 5, 6])
_yes = st.booleans()
_small = st.integers(1, 3)
_micros = st.sampled_from([1, 3, 5, 10, 24, 10**6])

DrawStep = Callable[[st.DrawFn, Known], None]


def us(count: int) -> timedelta:
    """So many microseconds."""
    return timedelta(microseconds=count)


def _map(draw: st.DrawFn, known: Known) -> None:
    above = known.pick(draw)
    function = draw(st.sampled_from([records.grow, records.shift, records.rekey]))
    keeps = above.domain and function is not records.rekey and draw(_yes)
    name = known.name(function.__name__)
    made = known.call(above, "map", function, name=name, keeps=["key"] if keeps else [])
    known.add(made, above, domain=keeps)


def _flat_map(draw: st.DrawFn, known: Known) -> None:
    above = known.pick(draw)
    keeps = above.domain and draw(_yes)
    made = known.call(
        above, "flat_map", records.spread, name=known.name("spread"), keeps=["key"] if keeps else []
    )
    known.add(made, above, domain=keeps)


def _filter(draw: st.DrawFn, known: Known) -> None:
    above = known.pick(draw)
    predicate = draw(st.sampled_from([records.odd, records.small]))
    made = known.call(above, "filter", predicate, name=known.name(predicate.__name__))
    known.add(made, above, domain=above.domain)


def _merge(draw: st.DrawFn, known: Known) -> None:
    first = known.pick(draw)
    above = [first, *(known.pick(draw, kind=first.kind) for _ in range(draw(_small)))]
    made = known.call(above[0], "merge", known.name("merge"), *above[1:])
    known.add(made, *above, domain=all(a.domain for a in above))


def _split(draw: st.DrawFn, known: Known) -> None:
    above = known.pick(draw)
    branches = known.call(above, "split", known.name("split"), records.heat, ("hot", "cold"))
    for name in ("hot", "cold"):
        made = Made(f"{branches.variable}[{name!r}]", branches.stream[name])
        known.add(made, above, domain=above.domain)


def _iterate(draw: st.DrawFn, known: Known) -> None:
    above = known.pick(draw, kind=records.Reading)
    until = draw(st.sampled_from([records.done, None]))
    body, rounds = records.halve, draw(_small)
    made = known.call(above, "iterate", known.name("iterate"), body, until=until, rounds_max=rounds)
    known.add(made, above)


def _log(draw: st.DrawFn, known: Known) -> None:
    above = known.pick(draw)
    made = known.call(above, "log", known.name("log"), every=draw(_small))
    known.add(made, above, domain=above.domain)


def _late(draw: st.DrawFn, known: Known) -> None:
    """Once a source."""
    above = known.streams[0] if draw(_yes) else known.streams[1 % len(known.streams)]
    if above.source and above.variable not in known.late:
        known.late.add(above.variable)
        made = known.call(above, "late")
        known.streams.append(Made(made.variable, made.stream, above.domain, timely=False))


def keyed(draw: st.DrawFn, known: Known, above: Made, key: Any = None) -> Made:
    """`above`, keyed: mostly by its domain; logged, now and then, which keeps the keys."""
    by = known.call(above, "key_by", key or draw(KEYS), name=known.name("by"))
    return known.call(by, "log", known.name("log")) if draw(RARELY) else by


def _process(draw: st.DrawFn, known: Known) -> None:
    above = known.pick(draw, timely=True)
    by = keyed(draw, known, above)
    number = draw(_small)
    task, initial = draw(
        st.sampled_from(
            [
                (records.Running(every=number), None),
                (records.Timed(rearms=number), records.alarms_at_start),
                (records.Timed(rearms=number), records.alarms_at_start),
                (records.Bell(), None),
                (records.Counting(), records.counts_at_start),
            ]
        )
    )
    options: dict[str, Any] = {}
    if draw(_yes):
        options["ttl"] = us(draw(_micros))
    if initial is not None and draw(_yes):
        options["initial"] = initial()
    name = known.name(type(task).__name__.lower())
    known.add(known.call(by, "process", name, task, **options), above)


def _distinct(draw: st.DrawFn, known: Known) -> None:
    above = known.pick(draw, timely=True)
    options = {"ttl": us(draw(_micros)), "fields": draw(st.sampled_from([[], ["n"], ["key"], ["n", "key"]]))}
    made = known.call(keyed(draw, known, above), "distinct", known.name("distinct"), **options)
    known.add(made, above, domain=above.domain)


def _join(draw: st.DrawFn, known: Known) -> None:
    left, right = (known.pick(draw, timely=True, joined=False) for _ in range(2))
    key = draw(KEYS)
    sides = keyed(draw, known, left, key), keyed(draw, known, right, key)
    how: dict[str, Any] = draw(_meetings)
    keeps = left.domain and right.domain and key == "key" and not draw(RARELY)
    kept = {"keeps": ["key"]} if keeps else {}
    made = known.call(sides[0], "join", known.name("join"), sides[1], records.pair, **how, **kept)
    known.add(made, left, right, domain=keeps, joined=True)


def _broadcast(draw: st.DrawFn, known: Known) -> None:
    main, small = (known.pick(draw, timely=True) for _ in range(2))
    key = draw(st.sampled_from(["key", "n", records.mixed_key, records.int_key]))
    made = known.call(main, "broadcast", known.name("broadcast"), small, records.look_up, key=key)
    known.add(made, main, small)


_joinable: list[Any] = [
    Tumbling(10),
    Tumbling(7, 3),
    Sliding(10, 5),
    Sliding(4, 9),
    Sliding(9, 3, -2),
    Global(),
    *CALENDARS,
]
KEYS = st.sampled_from(["key", "key", "key", records.pair_key, records.int_key, records.bool_key])
RARELY = st.sampled_from([False, False, False, True])
_meetings: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"lower": us(after), "upper": us(before), "how": how}
        for after, before in [(0, 0), (-5, 5), (0, 10), (-10, -3), (3, 3), (2, 20), (-(10**6), 10**6)]
        for how in ("inner", "left")
    ]
    + [{"within": window} for window in _joinable]
    + [{"within": window, "how": "left"} for window in _joinable if isinstance(window, Tumbling | Calendar)]
)
PLAIN_STEPS: list[DrawStep] = [_map, _flat_map, _filter, _merge, _split, _iterate, _log]
"""Those that keep nothing."""
STEPS: list[DrawStep] = [
    *[*PLAIN_STEPS, _late, _broadcast, _distinct],
    *[_join] * 2,
    *[_process] * 3,
]
"""Each as often as it shall be drawn."""
