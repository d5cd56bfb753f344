"""Flows whose keys are to be dealt over more slots, or fewer, while they run.

Between wanted.json and the groups, in the host's thread. Guarantees: what is wanted is begun where nothing
else changes in the flow, and goes on after a restart. Which slots a flow has changes no result. What is in
the way is one sentence of that flow alone, and is tried again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from geartrain.errors import GeartrainError
from geartrain_cloud.hosting.admission import Key, Member
from geartrain_cloud.hosting.groups import Groups
from geartrain_cloud.hosting.status import FlowStatus
from geartrain_cloud.hosting.versions import Hosted
from geartrain_cloud.hosting.wanted import WantedFlow

LOOK_S = 0.05
TRY_AGAIN_S = 2.0
"""After it could not be done."""


@dataclass(slots=True)
class _Under:
    """A run that is being scaled. why: it could not be, last; due_s: when to look again, monotonic."""

    slots: int
    why: str = ""
    due_s: float = 0.0


class Scaling:
    """That of one host; call `step` again and again."""

    def __init__(self, groups: Groups, member: Callable[[WantedFlow], Member]) -> None:
        self._groups, self._member = groups, member
        self._under: dict[Key, _Under] = {}

    def step(self, runs: Mapping[Key, WantedFlow]) -> None:
        """Go on with the runs that have another number of slots than is wanted."""
        for key in self._under.keys() - runs.keys():
            del self._under[key]
        for key, wanted in runs.items():
            hosted = self._groups.hosted(key)
            if hosted is None or not is_to_scale(hosted, wanted):
                self._under.pop(key, None)
                continue
            one = self._under.setdefault(key, _Under(wanted.slots))
            one.slots = wanted.slots
            if time.monotonic() >= one.due_s:
                self._go_on(key, wanted, one)

    def _go_on(self, key: Key, wanted: WantedFlow, one: _Under) -> None:
        try:
            self._groups.scale(key, wanted.slots, self._member(wanted), wanted.broadcasts)
        except GeartrainError as error:
            one.why, one.due_s = str(error), time.monotonic() + TRY_AGAIN_S
        else:
            one.why, one.due_s = "", time.monotonic() + LOOK_S

    def say(self, hosted: Hosted, found: FlowStatus) -> None:
        """Add to a status over how many slots its keys are to be dealt."""
        one = self._under.get((hosted.flow, hosted.run))
        if one is None:
            return
        found.slots_wanted = one.slots
        if one.why:
            found.why = "; ".join(filter(None, [found.why, f"{one.slots} slots: {one.why}"]))


def is_to_scale(hosted: Hosted, wanted: WantedFlow) -> bool:
    """Whether a generation is on its way to other slots, or is to go; a revision that is to come goes
    first.
    """
    if hosted.leaves_for:
        return True
    if hosted.past:
        return False
    return len(hosted.labels) != wanted.slots and bool(hosted.stages) and hosted.revision == wanted.revision
