"""Revisions of one small flow, what each of them drops, and what plain Python makes of a device's records.

Beside the world of revisions on devices, which runs them. Guarantees: what is drawn is a function of the
seed. The reference knows neither fragments nor spools: it is given the places where a device has gone over.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, ClassVar

from geartrain import Context, Flow, Record, State, Stream, Table, Task
from geartrain.graph.graph import Graph
from geartrain.planning import Plan, make_plan
from geartrain.records.batch import origin_name
from geartrain.revision import revision_of
from geartrain.revision.change import change_of
from geartrain_simulation.fleet.readings import Doors, Reading, Readings, Total, rows_of
from geartrain_simulation.stores.segments import Row

HIGH = 20
"""From this level on a reading is high."""
STATEFUL = ("sums", "counts")
_FIRST = b"\x00"
"""The path of the first record that a task makes of another."""


class Said(State):
    """Of one sensor."""

    count: int = 0
    sum: int = 0


class SaidSince(State):
    """The same in a later layout."""

    count: int = 0
    sum: int = 0
    since: int = 0


class SaidHow(State):
    """The same in the newest layout."""

    count: int = 0
    sum: int = 0
    since: int = 0
    how: str = ""


UP, DOWN = 1_000_000, 10_000
"""What a sum gains where its state becomes that of the next layout, and of the one before. So a result shows
how often that was done.
"""


def _made(kind: Callable[[int, int], Any], gain: int) -> Callable[[Any], Any]:
    """What makes a state of the type `kind` of one of another layout."""
    return lambda said: kind(said.count, said.sum + gain)


_TO_SAID, _TO_HOW = _made(Said, DOWN), _made(SaidHow, UP)
_UP_TO_SINCE, _DOWN_TO_SINCE = _made(SaidSince, UP), _made(SaidSince, DOWN)


class SaidLast(State):
    """The same, and what it said last."""

    count: int = 0
    sum: int = 0
    last: int = 0


class Count(Record):
    """How often a sensor has spoken."""

    sensor: str
    count: int
    upgrade: ClassVar[Mapping[type, Any]] = {}


class Counted(Record):
    """The same in another order, of which the other is made, and the other way round."""

    count: int
    sensor: str
    upgrade: ClassVar[Mapping[type, Any]] = {Count: lambda one: Counted(one.count, one.sensor)}


Count.upgrade = {Counted: lambda one: Count(one.sensor, one.count)}


class Sums(Task[Reading, Total]):
    """Adds up `factor` times what a sensor says."""

    state: ClassVar[type] = Said
    migrate: ClassVar[Mapping[Any, Callable[[Any], Any]]] = {SaidHow: _DOWN_TO_SINCE, SaidSince: _TO_SAID}
    factor: int = 1

    def on_next(self, reading: Reading, ctx: Context[Total, Said]) -> None:
        """One total for each reading."""
        ctx.state.count += 1
        ctx.state.sum += self.factor * reading.level
        ctx.emit(Total(reading.sensor, ctx.state.count, ctx.state.sum))


class SumsSince(Sums):
    """The same in a later layout."""

    state: ClassVar[type] = SaidSince
    migrate: ClassVar[Mapping[Any, Callable[[Any], Any]]] = {Said: _UP_TO_SINCE, SaidHow: _DOWN_TO_SINCE}


class SumsHow(Sums):
    """The same in the newest layout, to which the first one comes in two steps."""

    state: ClassVar[type] = SaidHow
    migrate: ClassVar[Mapping[Any, Callable[[Any], Any]]] = {Said: _UP_TO_SINCE, SaidSince: _TO_HOW}


class WiderSums(Sums):
    """The same with another type of state, which none of the former can become."""

    state: ClassVar[type] = SaidLast
    migrate: ClassVar[Mapping[Any, Callable[[Any], Any]]] = {}


LAYOUTS: tuple[type[Sums], ...] = (Sums, SumsSince, SumsHow)
"""What adds up with each layout of its state; each can make its own of the others."""


class Counts(Task[Reading, Any]):
    """Counts what a sensor says; each form of the flow says which type comes out."""

    state: ClassVar[type] = Said

    def on_next(self, reading: Reading, ctx: Context[Count, Said]) -> None:
        """One count for each reading."""
        ctx.state.count += 1
        ctx.emit(Count(reading.sensor, ctx.state.count))


def is_high(reading: Reading) -> bool:
    """Whether a step lets a reading pass."""
    return reading.level >= HIGH


class CountsOtherwise(Counts):
    """The same, put out as records of another type."""

    def on_next(self, reading: Reading, ctx: Context[Any, Said]) -> None:
        """One count for each reading."""
        ctx.state.count += 1
        ctx.emit(Counted(ctx.state.count, reading.sensor))


@dataclass(frozen=True, slots=True)
class Form:
    """Which steps a revision has on its devices. factor: of the sums, 0 where there are none; layout: of
    their state, if they are not wide; doors: whether there is a second source; reset: steps that begin anew
    with it, by a person's word; otherwise: counts are records of another type.
    """

    factor: int = 1
    is_wide: bool = False
    counts: bool = False
    high: bool = False
    levels: bool = True
    layout: int = 0
    doors: bool = False
    reset: frozenset[str] = field(default_factory=frozenset)
    otherwise: bool = False

    @property
    def channels(self) -> frozenset[str]:
        """Those that rows come by."""
        has = {"sums": self.factor, "counts": self.counts, "high": self.high, "readings": self.levels}
        has["doors"] = self.doors
        return frozenset(channel for channel, is_there in has.items() if is_there)

    def begins_anew(self, step: str, before: Form) -> bool:
        """Whether what a step has kept is gone with this revision, behind that before."""
        if step in self.reset or step not in self.channels:
            return True
        return step == "sums" and self.is_wide != before.is_wide


@dataclass(frozen=True, slots=True)
class Version:
    """A revision as control has it: its plan, and by step the newest revision by which its state went."""

    form: Form
    plan: Plan
    drops: Mapping[str, int]


def draw_forms(seed: int) -> list[Form]:
    """Two to four revisions. Some go back to the one before the last, as `gear rollback` does."""
    random = Random(f"{seed}/forms")
    forms = [_drawn(random)]
    for _ in range(random.choice((1, 2, 2, 3))):
        last = replace(forms[-1], reset=frozenset())
        goes_back = len(forms) > 1 and random.random() < 0.4
        following = replace(forms[-2], reset=frozenset()) if goes_back else _drawn(random)
        if following == last:
            following = replace(last, counts=not last.counts, high=True)
        resets = {s for s in STATEFUL if s in last.channels & following.channels and random.random() < 0.25}
        if "sums" in last.channels & following.channels and last.is_wide != following.is_wide:
            resets.add("sums")
        forms.append(replace(following, reset=frozenset(resets)))
    layouts, types = Random(f"{seed}/layouts"), Random(f"{seed}/types")
    return [
        replace(form, layout=layouts.choice((0, 0, 1, 2)), otherwise=types.random() < 0.4) for form in forms
    ]


def _drawn(random: Random) -> Form:
    form = Form(
        factor=random.choice((0, 1, 1, 10)),
        is_wide=random.random() < 0.3,
        counts=random.random() < 0.6,
        high=random.random() < 0.5,
        levels=random.random() < 0.7,
    )
    return form if form.channels else replace(form, levels=True)


def make_versions(forms: Sequence[Form], source: Readings) -> list[Version]:
    """The revisions from the first on; what each drops is found as control finds it. Control would let live
    sources come alone, so it is not asked about the second one, which comes to an end as each run does.
    """
    versions: list[Version] = []
    for number, form in enumerate(forms, 1):
        plan, drops = make_plan(graph_of(form, source), "edge"), dict[str, int]()
        if versions:
            before = versions[-1]
            was, now = (
                revision_of("", make_plan(graph_of(replace(one, doors=False), source), "edge"))
                for one in (before.form, form)
            )
            change = change_of(was, now, form.reset, evolution=lambda *_: ())
            if change.refusals:
                raise AssertionError(f"control would refuse {form} behind {before.form}: {change.refusals}")
            drops = {**before.drops, **dict.fromkeys(change.drops, number)}
        versions.append(Version(form, plan, drops))
    return versions


def graph_of(form: Form, source: Readings) -> Graph:
    """The flow of one revision; bad rows of its source are sent as such by all of them."""
    flow = Flow("fleet")
    readings = flow.source("readings", source, out=Reading, partitioned_by="sensor")
    keyed = readings.key_by("sensor")
    if form.factor:
        sums = (WiderSums if form.is_wide else LAYOUTS[form.layout])(factor=form.factor)
        keyed.process("sums", sums).sink("to_sums", Table("sums"))
    if form.counts:
        task, out = (CountsOtherwise(), Counted) if form.otherwise else (Counts(), Count)
        counts: Stream[Any] = keyed.process("counts", task, out=out)
        counts.sink("to_counts", Table("counts"))
    if form.high:
        readings.filter(is_high, name="high").sink("to_high", Table("high"))
    if form.levels:
        readings.sink("to_levels", Table("levels"))
    if form.doors:
        doors = flow.source("doors", doors_beside(source), out=Reading)
        doors.sink("to_doors", Table("doors"))
    return flow.graph()


def doors_beside(source: Readings) -> Doors:
    """The second source of the flow."""
    return Doors(seed=source.seed + 1, records=source.records, pause_s_max=source.pause_s_max)


@dataclass(frozen=True, slots=True)
class Leg:
    """A stretch of a device's records: from where on its revision is `number`, until the next leg begins.

    is_fresh: what its steps have kept was made by themselves, of all records before; doors: where its second
    source stood.
    """

    begin: int
    number: int
    is_fresh: bool = False
    doors: int = 0


def gained(forms: Sequence[Form], last: int, number: int) -> int:
    """What each sum gains as a device goes over from revision `last` to `number`."""
    between = range(last + 1, number + 1)
    if any(forms[n - 1].begins_anew("sums", forms[n - 2]) for n in between) or forms[number - 1].is_wide:
        return 0
    steps = forms[number - 1].layout - forms[last - 1].layout
    return steps * UP if steps > 0 else -steps * DOWN


class _Kept:
    """What the steps of a device keep, by step and sensor."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str], list[int]] = {}

    def go_over(self, forms: Sequence[Form], last: int, number: int) -> None:
        """Forget what any of the revisions behind `last` up to `number` has begun anew, and make the rest the
        last one's own.
        """
        for n in range(last + 1, number + 1):
            gone = {step for step in STATEFUL if forms[n - 1].begins_anew(step, forms[n - 2])}
            self.cells = {at: cell for at, cell in self.cells.items() if at[0] not in gone}
        for (step, _), cell in self.cells.items():
            cell[1] += gained(forms, last, number) if step == "sums" else 0

    def run(self, form: Form, records: Iterable[tuple[Row, Reading]]) -> Iterator[tuple[str, Row]]:
        """What the steps of a revision make of records, with the channel of each row."""
        for row, reading in records:
            if form.levels:
                yield "readings", row
            if form.high and is_high(reading):
                yield "high", row
            for step, factor in (("sums", form.factor), ("counts", int(form.counts))):
                if factor:
                    cell = self.cells.setdefault((step, reading.sensor), [0, 0])
                    cell[0], cell[1] = cell[0] + 1, cell[1] + factor * reading.level
                    fields: tuple[object, ...] = (reading.sensor, *cell)
                    if step == "counts":
                        fields = (cell[0], reading.sensor) if form.otherwise else (reading.sensor, cell[0])
                    yield step, replace(row, path=_FIRST, fields=fields)


def expected(
    records: Sequence[tuple[Row, Reading]], legs: Sequence[Leg], forms: Sequence[Form]
) -> dict[str, list[Row]]:
    """What a device sends, by channel and in order; records: as its source gives them."""
    found, kept = dict[str, list[Row]](), _Kept()
    for at, leg in enumerate(legs):
        form, end = forms[leg.number - 1], legs[at + 1].begin if at + 1 < len(legs) else math.inf
        if leg.is_fresh:
            kept = _Kept()
            deque(kept.run(form, (one for one in records if one[0].number < leg.begin)), maxlen=0)
        elif at:
            kept.go_over(forms, legs[at - 1].number, leg.number)
        for channel, row in kept.run(form, (one for one in records if leg.begin <= one[0].number < end)):
            found.setdefault(channel, []).append(row)
    return found


def records_of(source: Readings, device: str) -> list[tuple[Row, Reading]]:
    """The good records of a device, each as the row that it is sent as where no step changes it."""
    found = []
    for split in source.open(device, "readings", Reading):
        for number, (time, reading) in enumerate(rows_of(source.seed, device, source.records[device])):
            if reading is not None:
                fields = (reading.sensor, reading.level)
                name = origin_name("readings", split.name)
                found.append((Row(time, name, number, b"", fields), reading))
    return found
