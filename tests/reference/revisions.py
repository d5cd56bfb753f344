"""A naive reference interpreter of flows that change while they run: it is given where each revision began.

It runs revision n on the records before the boundary, revision n + 1 on those behind it. Of each step that
keeps state it has all records that came to the step since it began, and works out anew, in plain Python, what
they make: what has left before is not given again, and what waits for time stays. A task's keys live on under
the code of each revision. State stays with the id of its step, as the change of revision says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from geartrain.graph.graph import Graph, Step
from geartrain.records.keys import encode_key
from tests.reference.interpreter import FAMILIES, born
from tests.reference.rows import Answer, Letter, Row, by_key, conform
from tests.reference.tasks import Walk

WINDOWS = frozenset({"window_aggregate", "window_reduce", "window_fold"})


@dataclass(frozen=True)
class Earlier:
    """What steps that are new in a revision have read of the log of before: its rows, behind the place where
    they begin, and the clocks where these end. above: the steps that make what they read; before and
    before_clocks: what these had read by then.
    """

    new: Collection[str]
    above: Collection[str]
    records: Collection[tuple[str, str, int]]
    clocks: Mapping[str, int]
    before: Collection[tuple[str, str, int]]
    before_clocks: Mapping[str, int]


@dataclass(frozen=True)
class Era:
    """The time of one revision: its steps, which of them go on with what they kept, where it ended, and the
    rows of the log that belong to it.

    clocks: by source, at its last entry; records: (source, split, number) of those that the log brought;
    earlier: what its new steps have read of the log of before.
    """

    graph: Graph
    kept: Collection[str]
    clocks: Mapping[str, int]
    records: Collection[tuple[str, str, int]]
    earlier: Earlier | None = None


@dataclass
class Life:
    """What came to a step that keeps state, by input, and what has left it; walks: where it is a task, the
    life of each key.
    """

    inputs: list[list[Row]]
    rows: Counter[Any] = field(default_factory=Counter)
    letters: Counter[Letter] = field(default_factory=Counter)
    walks: dict[bytes, Walk] = field(default_factory=dict)

    def forget(self, keys: Collection[bytes]) -> None:
        """Go on as if nothing of these keys had come."""
        for rows in self.inputs:
            rows[:] = [row for row in rows if encode_key(row.key) not in keys]
        for key in keys:
            self.walks.pop(key, None)


def interpret_eras(
    eras: Sequence[Era], inputs: Mapping[str, Mapping[str, Sequence[Any]]], bounds_us: Mapping[str, int]
) -> Answer:
    """The answer of a flow that goes through `eras`; by sink id, those of all revisions."""
    answer = Answer({}, Counter(), Counter())
    sources: dict[str, list[Row]] = {}
    for step in eras[0].graph.sources():
        rows, late = born(step, inputs[step.id], bounds_us[step.id], answer)
        sources[step.id] = conform(step.id, step.out, rows, answer)
        answer.late.update((step.id, *row.order) for row in late)
    _forget_unread(eras, answer)
    lives: dict[str, Life] = {}
    for era in eras:
        lives = {step: life for step, life in lives.items() if step in era.kept}
        if era.earlier is not None:
            lives |= _caught_up(era.graph, era.earlier, sources, answer)
        _run(era.graph, lives, sources, era.records, era.clocks, answer)
    return answer.sort()


def _forget_unread(eras: Sequence[Era], answer: Answer) -> None:
    """Take back the letters of rows that nothing reads, since their source has gone."""
    for era in eras:
        here = {step.id for step in era.graph.sources()}
        unread = {one for one in era.records if one[0] not in here}
        for letter in [one for one in answer.dead if (one[0], one[2], one[3]) in unread]:
            del answer.dead[letter]


def _caught_up(
    graph: Graph, earlier: Earlier, sources: Mapping[str, list[Row]], answer: Answer
) -> dict[str, Life]:
    """What new steps keep after they have read the log of before; what they make of it is in the answer."""
    lives: dict[str, Life] = {}
    unheard, found = Answer({}, Counter(), Counter()), Answer({}, Counter(), Counter())
    _run(graph, lives, sources, earlier.before, earlier.before_clocks, unheard, earlier.above)
    both = {*earlier.above, *earlier.new}
    _run(graph, lives, sources, earlier.records, earlier.clocks, found, both)
    for sink, rows in found.sinks.items():
        answer.sinks.setdefault(sink, []).extend(rows)
    answer.dead.update({letter: n for letter, n in found.dead.items() if letter[0] in earlier.new})
    return {step: life for step, life in lives.items() if step in earlier.new}


def _run(
    graph: Graph,
    lives: dict[str, Life],
    sources: Mapping[str, list[Row]],
    records: Collection[tuple[str, str, int]],
    clocks: Mapping[str, int],
    answer: Answer,
    only: Collection[str] | None = None,
) -> None:
    """Run some rows of the log through a graph, up to where the clocks stand then; only: these steps."""
    streams: dict[str, list[Row]] = {}
    for step in graph.steps:
        if not step.inputs:
            mine = [r for r in sources[step.id] if (step.id, r.name, r.number) in records]
            streams[step.id] = mine
            continue
        if only is not None and step.id not in only:
            continue
        above = [streams[i.step] for i in step.inputs]
        if step.out is None:
            answer.sinks.setdefault(step.id, []).extend(above[0])
        elif step.operator.stateful:
            life = lives.setdefault(step.id, Life([[] for _ in above]))
            streams[step.id] = lived(step, life, above, _clock(graph, clocks, step), answer)
        else:
            streams[step.id] = FAMILIES[type(step.operator).__name__](step, above, answer)


def _clock(graph: Graph, clocks: Mapping[str, int], step: Step) -> int:
    """That of a step: the least of the sources above it."""
    above = graph.ancestors(step.id)
    return min(clocks[source.id] for source in graph.sources() if source.id in above)


def lived(step: Step, life: Life, above: list[list[Row]], clock: int, answer: Answer) -> list[Row]:
    """What leaves a step in an era, of all that came to it since it began."""
    if step.operator.kind == "process":
        return _walked(step, life, above[0], clock, answer)
    for rows, more in zip(life.inputs, above, strict=True):
        rows += more
    found = Answer({}, Counter(), Counter())
    whole = FAMILIES[type(step.operator).__name__](step, life.inputs, found)
    pairs = _pairs(step, life.inputs)
    rows = [row for row in whole if row.path in pairs or _has_left(step, row.name, row.time, clock)]
    left = Counter(row.order for row in rows)
    fresh, seen = [], Counter[Any]()
    for row in rows:
        seen[row.order] += 1
        if seen[row.order] > life.rows[row.order]:
            fresh.append(row)
    letters = Counter(
        {one: n for one, n in found.dead.items() if one[4] in pairs or _has_left(step, one[2], one[1], clock)}
    )
    answer.dead += letters - life.letters
    life.rows, life.letters = left, letters
    return fresh


def _pairs(step: Step, inputs: list[list[Row]]) -> Collection[bytes]:
    """The paths of what a join that waits for records without any makes of two: it leaves at once."""
    if getattr(step.operator, "how", "") != "left":
        return ()
    operator: Any = step.operator
    inner, found = replace(step, operator=replace(operator, how="inner")), Answer({}, Counter(), Counter())
    rows = FAMILIES[type(operator).__name__](inner, inputs, found)
    return {row.path for row in rows} | {letter[4] for letter in found.dead}


def _has_left(step: Step, name: str, time: int, clock: int) -> bool:
    """Whether a result of this origin and time has left a step whose clock is so far."""
    kind = step.operator.kind
    waits = kind in WINDOWS or getattr(step.operator, "how", "") == "left"
    is_held = kind in ("order", "broadcast") or (name == step.id and waits)
    return not is_held or time < clock  # a window ends one microsecond after its result


def _walked(step: Step, life: Life, rows: list[Row], clock: int, answer: Answer) -> list[Row]:
    """What a task makes in an era, which may have other code than that before."""
    operator: Any = step.operator
    fresh = {encode_key(records[0].key): records for records in by_key(rows)}
    for key, records in fresh.items():
        life.walks.setdefault(key, Walk(step, records[0].key, answer))
    found: list[Row] = []
    for key, walk in life.walks.items():
        walk.go_on_as(operator, answer)
        found += walk.over(fresh.get(key, []), clock)
    return conform(step.id, step.out, found, answer)
