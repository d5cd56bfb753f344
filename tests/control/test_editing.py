"""Updates of named steps: what may change, and a flow without some of its steps."""

from __future__ import annotations

import pytest

from geartrain import Flow, Table
from geartrain.errors import FlowError
from geartrain.graph.without import without
from geartrain.revision import Change, Revision
from geartrain.revision.change import StepChange
from geartrain.testing import TestingSource
from geartrain_cloud.changes.editing import Edit, unasked, unchanged
from geartrain_cloud.control.checking import Question, check
from tests.hosting.mill import revisions as mill
from tests.hosting.mill.records import Reading

LEVELS = {"by_count", "levels_order", "levels", "level"}
"""What hangs below the step `adding` besides its table: nothing else reads their key and their order."""


@pytest.mark.parametrize(
    ("removed", "gone"),
    [
        ([], set()),
        (["levels"], LEVELS),
        (["level", "levels"], LEVELS),
        (["by_count"], LEVELS),
        (["each"], {"each"}),
    ],
)
def test_what_leaves_with_steps_is_what_only_they_need(removed: list[str], gone: set[str]) -> None:
    there = [step.id for step in mill.one.graph().steps]
    assert [step.id for step in without(mill.one.graph(), removed).steps] == [
        step for step in there if step not in gone
    ]


def _two(*, both: bool) -> Flow:
    flow = Flow("two")
    readings = flow.source("readings", TestingSource[Reading](), out=Reading, partitioned_by="sensor")
    high, low = readings.filter(bool, name="high"), readings.filter(bool, name="low")
    high.sink("highs", Table("highs"))
    (high.merge("both", low) if both else low).sink("all", Table("all"))
    return flow


@pytest.mark.parametrize(
    ("flow", "removed", "says"),
    [
        (mill.one, ["level"], "nothing would read step 'levels' any more: remove it as well"),
        (mill.one, ["levls"], "has no step 'levls'"),
        (mill.one, ["readings"], "no sink would be left: kill the app"),
        (_two(both=True), ["low"], "step 'both' reads 'low' and others, which stay: remove it as well"),
    ],
)
def test_what_cannot_stand_without_the_steps_is_named(flow: Flow, removed: list[str], says: str) -> None:
    with pytest.raises(FlowError, match=says):
        without(flow.graph(), removed)


def test_a_revision_without_steps_is_that_of_the_flow_which_is_written_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mill, "less", mill.make(0.5, levels=False, windows=False), raising=False)
    first, less = (
        check(Question(f"{mill.__name__}:{name}", "cloud", {})).outline for name in ("one", "less")
    )
    assert first is not None
    assert less is not None
    asked = Question(f"{mill.__name__}:one", "cloud", {}, running=first.document, without=("levels",))
    found = check(asked)
    assert found.outline is not None
    assert found.outline.without == ("levels",)
    made, written = (Revision.from_json(one.document) for one in (found.outline, less))
    assert (made.steps, made.channels, made.sources) == (written.steps, written.channels, written.sources)
    assert found.change is not None
    assert {one.step: (one.what, one.state) for one in found.change.steps} == {
        "adding": ("same", "kept"),
        "by_count": ("removed", ""),
        "levels_order": ("removed", "dropped"),
        "levels": ("removed", "dropped"),
        "level": ("removed", ""),
    }
    assert found.change.refusals == ()


STEPS = (
    StepChange("sums", "same", state="kept"),
    StepChange("means_order", "attached"),
    StepChange("means", "attached"),
    StepChange("high", "replaced"),
)


@pytest.mark.parametrize(
    ("steps", "only", "named", "says"),
    [
        (STEPS[:3], ["attached"], ["means"], ""),  # with what Geartrain puts before it
        (STEPS[:3], ["attached"], ["sums"], "not named: means_order attached; means attached; name them too"),
        (STEPS, ["attached"], ["means", "high"], "otherwise than asked: high replaced"),
        (STEPS[3:], ["replaced"], ["high"], ""),
        (STEPS[3:], ["replaced"], ["low"], "not named: high replaced; name them too"),
        (STEPS, [], [], ""),
    ],
)
def test_a_step_that_would_change_beside_those_named_is_named(
    steps: tuple[StepChange, ...], only: list[Edit], named: list[str], says: str
) -> None:
    found = unasked(Change(steps), only, named)
    assert (says in found[0]) if says else not found


@pytest.mark.parametrize(
    ("only", "named", "says"),
    [
        (["attached"], ["means"], ""),
        (["attached"], ["means", "sums"], "would not be attached by this flow: sums"),
        (["attached"], ["gone"], "would not be attached by this flow: gone"),
        (["replaced"], ["high", "sums"], ""),  # what the code of a step is no plan says
        (["replaced"], ["means", "gone"], "no step to replace in both flows: means; gone"),
        ([], [], ""),
    ],
)
def test_a_named_step_that_would_not_change_so_is_named(
    only: list[Edit], named: list[str], says: str
) -> None:
    found = unchanged(Change(STEPS), only, named, {one.step for one in STEPS})
    assert (says in found[0]) if says else not found
