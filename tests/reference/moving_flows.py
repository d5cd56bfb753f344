"""Random flows most of whose steps with state may stand on either tier, with others below them: what moves
are tried on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from geartrain import Flow, Table
from tests.reference import bills, flows, steps, window_steps
from tests.reference.flows import Case
from tests.reference.steps import Known, Made

_mostly = st.sampled_from([True, True, True, True, False])
_counts = {number: st.integers(1, number) for number in (2, 3)}
_step_counts = st.integers(1, 4)
_steps = st.sampled_from([*steps.STEPS, *window_steps.STEPS, *bills.STEPS])


@dataclass
class LocalKnown(Known):
    """A flow under construction whose steps read, rather than not, streams that keep their domain."""

    draw: Callable[[st.SearchStrategy[Any]], Any] = field(default=lambda strategy: None)
    local: bool = True

    def pick(self, draw: st.DrawFn, *, timely: bool = False, joined: bool = True, kind: Any = None) -> Made:
        """One of the streams that will do."""
        if self.local and self.draw(_mostly):
            local = [
                m
                for m in self.streams
                if m.domain and m.timely and (joined or not m.joined) and kind in (None, m.kind)
            ]
            if local:
                return local[-1 - int(self.draw(_counts[3])) % len(local)]
        return super().pick(draw, timely=timely, joined=joined, kind=kind)


@st.composite
def moving_cases(draw: st.DrawFn) -> Case:
    """A flow of one or two sources whose keys each live on one of 1 to 3 devices, and 1 to 4 steps, mostly
    keyed by them; below, up to 3 of any kind.
    """

    def drawn(strategy: Any) -> Any:
        return "key" if strategy is steps.KEYS and draw(_mostly) else draw(strategy)

    known = LocalKnown(Flow("random"), draw=draw)
    sources = [flows._source(draw, known, number, partitioned=True) for number in range(draw(_counts[2]))]
    world = flows._world(draw, sources, draw(_counts[3]))
    for _ in range(draw(_step_counts)):
        draw(_steps)(drawn, known)  # type: ignore[arg-type]  # it draws, as the other does
    known.local = False
    for _ in range(draw(_counts[3])):
        draw(_steps)(draw, known)
    last = len(known.streams) - 1
    for number, made in enumerate(known.streams):
        if number == last or (not made.source and draw(_mostly)):
            known.call(made, "sink", f"sink{number}", Table(f"table{number}"))
    return Case(known.code, world, draw(flows._seeds), known.flow)
