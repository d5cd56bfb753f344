"""What goes down to devices in the random flows: how such steps are drawn, and the reference's dealing."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import strategies as st

from geartrain import by_key
from geartrain.graph.graph import Step
from geartrain.sinks import JsonLinesFile
from tests.reference import records
from tests.reference.rows import Answer, Row
from tests.reference.steps import Known, Made

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_yes = st.booleans()
_often = st.sampled_from([False, False, False, True])


def home(r: Any) -> str:
    """A device by the record's key; one of four has a name that no device can have."""
    return f"d{len(r.key) % 3}" if r.n != 7 else "no device"


def home_of_key(r: Any) -> str:
    """The same for all records of one key."""
    return f"d{sum(map(ord, r.key)) % 3}"


def draw_down(draw: st.DrawFn, known: Known) -> None:
    """Now and then, deal a stream to devices, do something there, and end it there."""
    if not draw(_often):
        return
    above = known.pick(draw, kind=records.Reading)
    number = len(known.code)
    if draw(_yes):
        made = _stateless(draw, known, above)
        known.call(made, "sink", f"down{number}", JsonLinesFile(f"file{number}"))
        return
    above = known.pick(draw, timely=True, kind=records.Reading)
    made = _keyed(draw, known, above)
    known.call(made, "sink", f"down{number}", JsonLinesFile(f"file{number}"))


def _stateless(draw: st.DrawFn, known: Known, above: Made) -> Made:
    made = known.call(above, "filter", records.small, name=known.name("small"))
    made = known.call(made, "at", "edge", device=draw(st.sampled_from([home, home_of_key])))
    if draw(_yes):
        made = known.call(made, "map", records.grow, name=known.name("grow"))
    return made


def _keyed(draw: st.DrawFn, known: Known, above: Made) -> Made:
    task = draw(st.sampled_from([records.Running(every=2), records.Timed(rearms=1)]))
    by = known.call(above, "key_by", home_of_key, name=known.name("home"))
    if draw(_yes):
        made = known.call(by, "process", known.name("process"), task)
        return known.call(made, "at", "edge", device=by_key)
    odd = known.call(by, "log", known.name("log"))
    odd = known.call(odd, "at", "edge", device=by_key)
    return known.call(odd, "process", known.name("process"), task)


def deal(step: Step, inputs: list[list[Row]], answer: Answer) -> list[Row]:
    """The rows that name a device."""
    operator: Any = step.operator
    rows: list[Row] = []
    for row in inputs[0]:
        try:
            name = operator.function(row.value)
        except Exception:
            name = None
        if isinstance(name, str) and _NAME.fullmatch(name):
            rows.append(row)
        else:
            answer.refuse(step.id, row)
    return rows
