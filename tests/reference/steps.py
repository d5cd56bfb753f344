"""The steps of the random flows: for each operator, how one is drawn and put behind what is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from geartrain import Flow
from tests.reference import records


@dataclass
class Made:
    """A stream of a flow under construction: the variable that holds it, and what it is good for."""

    variable: str
    stream: Any
    domain: bool = False
    timely: bool = True
    source: bool = False


@dataclass
class Known:
    """A flow under construction, and the code that builds it."""

    flow: Flow
    streams: list[Made] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    late: set[str] = field(default_factory=set)

    def source(self, step: str, source: Any, partitioned_by: str | None) -> None:
        """Add a source."""
        stream = self.flow.source(step, source, out=records.Reading, partitioned_by=partitioned_by)
        kind = type(source).__name__
        self.code.append(
            f"{step} = flow.source({step!r}, {kind}(), out=Reading, partitioned_by={partitioned_by!r})"
        )
        self.streams.append(Made(step, stream, partitioned_by is not None, source=True))

    def call(self, made: Made, verb: str, *args: Any, **options: Any) -> Made:
        """Call a verb of a stream; what it returns is not yet a stream to draw from."""
        values = [a.stream if isinstance(a, Made) else a for a in args]
        stream = getattr(made.stream, verb)(*values, **options)
        variable = f"s{len(self.code)}"
        given = [_text(a) for a in args] + [f"{n}={_text(v)}" for n, v in options.items()]
        self.code.append(f"{variable} = {made.variable}.{verb}({', '.join(given)})")
        return Made(variable, stream)

    def pick(self, draw: st.DrawFn, *, timely: bool = False) -> Made:
        """One of the streams, the latest rather than others."""
        choices = [m for m in self.streams if m.timely or not timely]
        return choices[-1 - draw(_backward) % len(choices)]

    def name(self, verb: str) -> str:
        """A name for the next step."""
        return f"{verb}{len(self.code)}"

    def add(self, made: Made, like: Made, *, domain: bool = False) -> None:
        """A stream to draw from, as timely as `like`."""
        self.streams.append(Made(made.variable, made.stream, domain, like.timely))


def _text(value: Any) -> str:
    if isinstance(value, Made):
        return value.variable
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    return repr(value)


_backward = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 5, 6])
_yes = st.booleans()
_small = st.integers(1, 3)
_micros = st.sampled_from([1, 3, 5, 10, 24, 10**6])

DrawStep = Callable[[st.DrawFn, Known], None]


def us(count: int) -> timedelta:
    """So many microseconds."""
    return timedelta(microseconds=count)


def draw_step(draw: st.DrawFn, known: Known) -> None:
    """Put one more step behind what is there."""
    draw(_steps)(draw, known)


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


def keyed(draw: st.DrawFn, known: Known, above: Made) -> Made:
    """`above`, keyed: mostly by its domain."""
    keys = ["key", "key", "key", records.pair_key, records.int_key, records.bool_key]
    return known.call(above, "key_by", draw(st.sampled_from(keys)), name=known.name("by"))


def _process(draw: st.DrawFn, known: Known) -> None:
    above = known.pick(draw, timely=True)
    by = keyed(draw, known, above)
    task = records.Running(every=draw(_small))
    known.add(known.call(by, "process", known.name("running"), task), above)


_steps: st.SearchStrategy[DrawStep] = st.sampled_from([_map, _flat_map, _filter, _process])
