"""What an update does to steps beside what it may, where a person has said what that is.

Asked by control before an update; pure. Guarantee: nothing is found where each step that differs was named,
with the change that was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Literal

from geartrain.revision import Change, in_short
from geartrain.revision.change import StepChange

Edit = Literal["attached", "replaced", "removed"]
_OF_STEP = re.compile(r"(?P<step>.+)_(order(_[0-9]+)?|partial|down)")
"""A step that stands there for another one, whose id it begins with."""


def unasked(change: Change, only: Sequence[Edit], named: Collection[str] = ()) -> list[str]:
    """What a change does beside what it may, a sentence. only: what may become of steps, all where it names
    nothing; named: the steps that may differ, all where it names none. With a step go those that Geartrain
    puts before it.
    """
    differ = [one for one in change.steps if one.what != "same"]
    others = [one for one in differ if only and one.what not in only]
    if others:
        return [f"steps would change otherwise than asked: {_listed(others)}"]
    others = [one for one in differ if named and not _is_named(one.step, named)]
    if others:
        return [
            f"steps would change that were not named: {_listed(others)}; name them too, or leave them out"
        ]
    return []


def unchanged(
    change: Change, only: Sequence[Edit], named: Collection[str], there: Collection[str]
) -> list[str]:
    """Which named steps would not become what was asked for, a sentence; there: the steps of the new flow.
    Whether the code of a step differs is not known, so one that is there may be replaced.
    """
    became = {one.step: one.what for one in change.steps}
    if "replaced" in only:
        missing = [step for step in named if step not in there or became.get(step) == "attached"]
        return [f"no step to replace in both flows: {in_short(missing)}"] if missing else []
    missing = [step for step in named if became.get(step, "same") not in only]
    if not missing:
        return []
    return [f"steps would not be {' or '.join(only) or 'changed'} by this flow: {in_short(missing)}"]


def _listed(steps: Sequence[StepChange]) -> str:
    return in_short([f"{one.step} {one.what}" for one in steps])


def _is_named(step: str, named: Collection[str]) -> bool:
    found = _OF_STEP.fullmatch(step)
    return step in named or (found is not None and found["step"] in named)
