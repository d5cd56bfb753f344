"""Random small flows, built through the fluent face, and the worlds that they meet.

Every generated flow is legal, and every promise that it makes of its data is true. A case prints itself as
the code that builds the flow and a table of the data.

Not drawn is what has no one answer: a task with `order="arrival"`, whose answer depends on arrival
(docs/time.md says so, and the plan marks it), and live sources, where the device's clock decides
what is late.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from geartrain import Flow, Table
from geartrain.fleet.selectors import CLOUD_DEVICE
from geartrain.graph.graph import Graph
from geartrain.testing import TestingSource
from tests.reference import bills, data, down_steps, processor_steps, steps, window_steps
from tests.reference.records import Reading
from tests.reference.steps import Known
from tests.reference.two_tiers import World


@dataclass(repr=False)
class Case:
    """A flow, the code that made it, its data, and the seed of all that chance does to it."""

    code: list[str]
    world: World
    seed: int
    flow: Flow = field(compare=False)

    @property
    def graph(self) -> Graph:
        """The flow as a checked graph."""
        return self.flow.graph()

    def rng(self) -> random.Random:
        """A fresh generator of the case's chances."""
        return random.Random(self.seed)

    def __repr__(self) -> str:
        lines = ["Case:", *(f"    {line}" for line in self.code), f"    seed {self.seed}"]
        for device, sources in self.world.devices.items():
            for step, splits in sources.items():
                for name, items in splits.items():
                    bound = self.world.bounds_us[step]
                    lines.append(f"    device {device}, split {name} of {step} (bound {bound}):")
                    lines += [f"        {number}: {item!r}" for number, item in enumerate(items)]
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Hypothesis prints a case so."""
        printer.text(repr(self))


class Ordered(TestingSource[Reading]):
    """A source that promises order."""

    in_order = True


class Unordered(TestingSource[Reading]):
    """A source that does not."""

    in_order = False


class ModernOrdered(Ordered):
    """A source that promises order, and no time before 1970."""

    since_1970 = True


class ModernUnordered(Unordered):
    """A source that promises no time before 1970."""

    since_1970 = True


_SOURCES: dict[tuple[bool, bool], type[TestingSource[Reading]]] = {
    (True, False): Ordered,
    (False, False): Unordered,
    (True, True): ModernOrdered,
    (False, True): ModernUnordered,
}
"""By whether they promise order, and no time before 1970."""


EVERYWHERE, SOMEWHERE, CLOUD = "all", "some", "cloud"
"""Where a source of a flow stands: on all devices, on the first, or in the cloud."""


@dataclass(frozen=True)
class _Born:
    step: str
    in_order: bool
    partitioned: bool
    bound_us: int
    stands: str = EVERYWHERE


_stands = st.sampled_from([EVERYWHERE] * 6 + [SOMEWHERE, CLOUD])
_yes = st.booleans()
_mostly: st.SearchStrategy[bool] = st.sampled_from([True, True, True, False])
_rarely: st.SearchStrategy[bool] = st.sampled_from([False, False, False, True])
_counts = {number: st.integers(1, number) for number in (2, 3)}
_step_counts = st.integers(2, 8)
_bounds = st.sampled_from(data.BOUNDS)
_bases = st.sampled_from(data.BASES)
_sizes = st.sampled_from([12, 6, 3, 20, 0])
_bytes = {
    n: st.binary(min_size=n, max_size=n) for n in (data.RECORD_BYTES * size for size in (0, 3, 6, 12, 20))
}
_seeds = st.integers(0, 2**32)
_names = st.permutations(("d0", "a-1", "station-1", "zoo", "c_3", "m.9"))
"""Of devices: their order may show in none but the records of one source."""
_plain_steps = st.sampled_from(steps.PLAIN_STEPS)
_steps = st.sampled_from([*steps.STEPS, *window_steps.STEPS, *processor_steps.STEPS, *bills.STEPS])


@st.composite
def cases(draw: st.DrawFn, *, down: bool = False) -> Case:
    """A flow of one or two sources and 2 to 8 steps, over 1 to 3 devices, some of which lack a source at
    times; down: now and then something goes down to devices, too.
    """
    known = Known(Flow("random"))
    sources = [_source(draw, known, number, stands=draw(_stands)) for number in range(draw(_counts[2]))]
    devices = range(draw(_counts[3]))
    world = _world(draw, sources, len(devices))
    for _ in range(draw(_step_counts)):
        draw(_steps)(draw, known)
    if down:
        down_steps.draw_down(draw, known)
    last = len(known.streams) - 1
    for number, made in enumerate(known.streams):
        if number == last or draw(_yes):
            known.call(made, "sink", f"sink{number}", Table(f"table{number}"))
    return Case(known.code, world, draw(_seeds), known.flow)


@st.composite
def split_cases(draw: st.DrawFn) -> Case:
    """A flow of sources whose keys are on all of 2 or 3 devices, with 1 to 3 aggregates that may be split and
    up to 3 other steps.
    """
    known = Known(Flow("random"))
    sources = [_source(draw, known, number, partitioned=False) for number in range(draw(_counts[2]))]
    world = _world(draw, sources, 1 + draw(_counts[2]))
    if draw(_yes):
        draw(_plain_steps)(draw, known)
    for _ in range(draw(_counts[3])):
        window_steps.draw_split(draw, known)
    for _ in range(draw(_counts[3]) - 1):
        draw(_steps)(draw, known)
    for number, made in enumerate(known.streams):
        if not made.source:
            known.call(made, "sink", f"sink{number}", Table(f"table{number}"))
    return Case(known.code, world, draw(_seeds), known.flow)


@st.composite
def whole_cases(draw: st.DrawFn) -> Case:
    """A flow of sources without times before 1970 (or with some, which are dead letters), with 1 or 2 windows
    of whole numbers and up to 2 other steps.
    """
    known = Known(Flow("random"))
    sources = [_source(draw, known, number, since_1970=True) for number in range(draw(_counts[2]))]
    world = _world(draw, sources, draw(_counts[2]))
    if draw(_rarely):
        draw(_plain_steps)(draw, known)
    for _ in range(draw(_counts[2])):
        window_steps.draw_whole(draw, known)
    for _ in range(draw(_counts[3]) - 1):
        draw(_plain_steps)(draw, known)
    for number, made in enumerate(known.streams):
        if not made.source:
            known.call(made, "sink", f"sink{number}", Table(f"table{number}"))
    return Case(known.code, world, draw(_seeds), known.flow)


def _source(
    draw: st.DrawFn,
    known: Known,
    number: int,
    *,
    partitioned: bool | None = None,
    since_1970: bool | None = None,
    stands: str = EVERYWHERE,
) -> _Born:
    step, in_order = f"source{number}", draw(_mostly)
    partitioned = draw(_mostly) if partitioned is None else partitioned
    since_1970 = draw(_rarely) if since_1970 is None else since_1970
    source = _SOURCES[in_order, since_1970]()
    known.source(step, source, partitioned_by="key" if partitioned else None, in_cloud=stands == CLOUD)
    return _Born(step, in_order, partitioned, 0 if in_order else draw(_bounds), stands)


def _world(draw: st.DrawFn, sources: list[_Born], devices: int) -> World:
    base, wild = draw(_bases), draw(_yes)
    splits = [draw(_counts[2]) for _ in sources]
    found: dict[str, Any] = {device: {} for device in draw(_names)[:devices]}
    if any(source.stands == CLOUD for source in sources):
        found[CLOUD_DEVICE] = {}
    for place, (device, held) in enumerate(found.items()):
        for source, count in zip(sources, splits, strict=True):
            if not _is_held(place, device, source.stands):
                continue
            held[source.step] = {
                f"{device}/{part}": data.items(
                    draw(_bytes[data.RECORD_BYTES * draw(_sizes)]),
                    _keys(f"d{place}" if source.partitioned else "", part if source.partitioned else 0),
                    base,
                    in_order=source.in_order,
                    wild=wild,
                )
                for part in range(count)
            }
    return World(found, {source.step: source.bound_us for source in sources})


def _is_held(place: int, device: str, stands: str) -> bool:
    if device == CLOUD_DEVICE:
        return stands == CLOUD
    return stands == EVERYWHERE or (stands == SOMEWHERE and not place)


def _keys(device: str, part: int) -> list[str]:
    """Keys of a partitioned source live in one split; those of any other source are everywhere."""
    return [f"{device}a{part}", f"{device}b\x00{part}", f"{device}ü{part}"]


def check_drawn(
    check: Callable[[Case], None], strategy: st.SearchStrategy[Case], start: int, count: int
) -> None:
    """Check so many flows, the same in every run; raises for the smallest that fails. start: says which."""
    limits = settings(
        max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    seed(start)(limits(given(strategy)(check)))()


def drawn(strategy: st.SearchStrategy[Case], start: int, count: int) -> list[Case]:
    """So many flows, the same in every run; start: says which."""
    found: list[Case] = []

    def keep(case: Case) -> None:
        found.append(case)

    check_drawn(keep, strategy, start, count)
    return found
