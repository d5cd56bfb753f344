"""What the code of each step rests on: an edit of a flow's files is told of the steps that it concerns."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path

import pytest

from geartrain.flow.loading import load_flow
from geartrain.planning import make_plan
from geartrain.revision import Change, Revision, change_of, code_of, parts_of, revision_of, with_parts
from geartrain.revision.change import UNKNOWN
from geartrain.revision.parts import OTHERS, PARTS_MAX, Parts

MAIN = """
import math
import re
from datetime import timedelta
from functools import partial, wraps
from typing import ClassVar

from geartrain import Context, Flow, Record, State, Table, Task, agg, tumbling
from geartrain.testing import TestingSource

import {name}_lib as lib
from {name}_lib import scaled

LIMIT = 20
SHAPES = {{"low": 1, "high": 2}}
PATTERN = re.compile("a+")
SECRET = "hunter2"


class Reading(Record):
    sensor: str
    celsius: float


class Seen(State):
    count: int = 0


class Base(Task[Reading, Reading]):
    def is_due(self, value: Reading) -> bool:
        return value.celsius > 1


class Alarms(Base):
    state: ClassVar[type] = Seen
    step_by: ClassVar[int] = 7
    threshold: float = 0.8
    mode: str = "plain"

    def on_next(self, value: Reading, ctx: Context[Reading, Seen]) -> None:
        if self.is_due(value) and value.celsius > self.threshold:
            ctx.emit(value)


def checked(function):
    @wraps(function)
    def inner(value):
        return function(value)

    return inner


def above(limit):
    def is_above(reading):
        return reading.celsius > limit

    return is_above


def is_shaped(reading):
    return is_high(reading) or SHAPES["low"] > 3


def is_high(reading):
    return reading.celsius > LIMIT


def is_named(reading, least=3):
    return PATTERN.match(reading.sensor) is not None and len(SECRET) > least


@checked
def grow(reading):
    return Reading(reading.sensor, scaled(reading.celsius) + math.pi)


def shrink(by, reading):
    return Reading(reading.sensor, lib.halved(reading.celsius) - by)


flow = Flow("parts")
source = TestingSource(items=[(1, Reading("a", 20.5))])
readings = flow.source("readings", source, out=Reading)
shaped = readings.filter(is_shaped, name="shaped")
named = shaped.filter(is_named, name="named")
over = named.filter(above(5), name="over")
grown = over.map(grow, name="grown", out=Reading)
shrunk = grown.map(partial(shrink, 2), name="shrunk", out=Reading)
keyed = shrunk.key_by(lambda r: r.sensor, name="keyed")
keyed.process("alarms", Alarms(), out=Reading).sink("alarm_table", Table("alarms"))
"""
LIB = """
RATE = 2


def scaled(value):
    return value * RATE


def halved(value):
    return value / 2


def unused(value):
    return value
"""
_numbers = itertools.count()


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that Python imports from."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def loaded(folder: Path, main: str, lib: str) -> tuple[Revision, Parts]:
    """The revision of the flow with these files, and what its steps rest on, loaded anew."""
    name = "parted"
    (folder / f"{name}.py").write_text(main.format(name=name), encoding="utf-8")
    (folder / f"{name}_lib.py").write_text(lib, encoding="utf-8")
    for module in (name, f"{name}_lib"):
        sys.modules.pop(module, None)
    for cached in folder.glob("__pycache__/*"):
        cached.unlink()
    importlib.invalidate_caches()
    plan = make_plan(load_flow(f"{name}:flow").graph(), "cloud")
    code = code_of(f"{name}:flow")
    return revision_of(f"{name}:flow", plan, code=code), parts_of(plan.graph, code)


def changed(folder: Path, old: str, new: str) -> Change:
    """What becomes of the steps by an edit of either file."""
    assert (MAIN + LIB).count(old) == 1, old
    was, before = loaded(folder, MAIN, LIB)
    now, after = loaded(folder, MAIN.replace(old, new), LIB.replace(old, new))
    return with_parts(change_of(was, now), was, now, before, after)


@pytest.mark.parametrize(
    ("old", "new", "steps", "says"),
    [
        ("threshold: float = 0.8", "threshold: float = 0.85", ["alarms"], "its option threshold was 0.8 by"),
        ('mode: str = "plain"', 'mode: str = "other"', ["alarms"], "its option mode is another by default"),
        ("step_by: ClassVar[int] = 7", "step_by: ClassVar[int] = 8", ["alarms"], "was 7, is now 8"),
        ("value.celsius > 1", "value.celsius > 2", ["alarms"], "class parted.Base has changed"),
        ("LIMIT = 20", "LIMIT = 30", ["shaped"], "the constant parted.LIMIT was 20, is now 30"),
        ('"low": 1', '"low": 3', ["shaped"], "constant parted.SHAPES has changed"),
        ("celsius > LIMIT", "celsius >= LIMIT", ["shaped"], "function parted.is_high has changed"),
        ('re.compile("a+")', 're.compile("b+")', ["named"], "constant parted.PATTERN has changed"),
        ('"hunter2"', '"hunter3"', ["named"], "constant parted.SECRET has changed"),
        ("least=3", "least=4", ["named"], "parted.is_named by default was 3, is now 4"),
        ("above(5)", "above(6)", ["over"], "closes over was 5, is now 6"),
        ("celsius > limit", "celsius >= limit", ["over"], "is_above has changed"),
        ("RATE = 2", "RATE = 3", ["grown"], "the constant parted_lib.RATE was 2, is now 3"),
        ("value * RATE", "RATE * value", ["grown"], "function parted_lib.scaled has changed"),
        ("+ math.pi", "+ math.e", ["grown"], "function parted.grow has changed"),
        ("value / 2", "value / 3", ["shrunk"], "function parted_lib.halved has changed"),
        ("partial(shrink, 2)", "partial(shrink, 3)", ["shrunk"], "its option function was"),
        ("lambda r: r.sensor", "lambda r: r.sensor[:3]", ["keyed"], "<lambda> has changed"),
        ("def unused(value):\n    return value", "def unused(value):\n    return 1", [], ""),
        ("LIMIT = 20", "# the least\nLIMIT = 20", [], ""),
        ("    return value * RATE", "\n    # by the rate\n    return value * RATE", [], ""),
    ],
)
def test_an_edit_is_told_of_the_steps_that_it_concerns_alone(
    made: Path, old: str, new: str, steps: list[str], says: str
) -> None:
    found = changed(made, old, new)
    assert [one.step for one in found.steps if one.what != "same"] == steps
    for one in found.steps:
        if one.step in steps:
            assert (one.what, says in "; ".join(one.says)) == ("replaced", True), one.says
            assert one.state == ("kept" if one.step == "alarms" else "")
        assert "hunter" not in "; ".join(one.says)
    assert not found.refusals


def test_where_nobody_has_noted_what_a_step_rests_on_that_is_said(made: Path) -> None:
    was, _ = loaded(made, MAIN, LIB)
    now, after = loaded(made, MAIN.replace("0.8", "0.85"), LIB)
    steps = {one.step: one for one in with_parts(change_of(was, now), was, now, None, after).steps}
    assert (steps["alarms"].what, steps["alarms"].says) == ("same", (UNKNOWN,))
    assert all(one.says == () for one in with_parts(change_of(now, now), now, now, None, after).steps)


def test_what_is_named_of_a_step_is_bounded(made: Path) -> None:
    several = range(PARTS_MAX + 50)
    lib = LIB + "".join(f"C{number} = {number}\n" for number in several)
    main = MAIN.replace("LIMIT\n", f"LIMIT + {' + '.join(f'lib.C{number}' for number in several)}\n", 1)
    _, parts = loaded(made, main, lib)
    assert len(parts["shaped"]) == PARTS_MAX + 1
    _, other = loaded(made, main, lib.replace(f"= {several[-1]}\n", "= 0\n").replace("C99 = 99", "C99 = 98"))
    assert parts["shaped"][OTHERS] != other["shaped"][OTHERS]
