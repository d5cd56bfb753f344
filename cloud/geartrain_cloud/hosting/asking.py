"""The host's part in a question: it finds the group that has the flow, and has its next micro-batch answer.

Beside the record's path, in the host's own thread. Guarantees: a question that no micro-batch can answer gets
its sentence at once. Questions that came meanwhile go into one micro-batch. Files of questions are bounded,
and removed when they were answered or have expired.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from geartrain_cloud.hosting.group import Group
from geartrain_cloud.hosting.groups import Groups
from geartrain_cloud.hosting.offsets import QUESTIONS, asked_name
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.hosting.questions import EXPIRES_S, Answer, BatchFolder, Question, QuestionFolder

SWEEP_EVERY_S = 5.0

_log = logging.getLogger("host")


class Asking:
    """The questions to the flows of one host; call `step` again and again."""

    def __init__(self, places: HostPlaces, groups: Groups) -> None:
        self._places, self._groups = places, groups
        self._folder = QuestionFolder(places.questions)
        self._under_way: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._swept_s = 0.0

    def step(self, run_of: Callable[[str], int | None]) -> None:
        """Pass on what was asked since the last call; run_of: the run of an instance that is served, None for
        one that is not wanted.
        """
        waiting = self._folder.asked()
        self._under_way &= waiting
        fresh = sorted(waiting - self._under_way)
        self._under_way.update(fresh)
        try:
            if fresh:
                self._pass_on(fresh, run_of)
            if time.monotonic() - self._swept_s >= SWEEP_EVERY_S:
                self._sweep()
        except OSError as error:  # they expire
            _log.warning("questions are not passed on: %s", error)

    def _pass_on(self, names: list[str], run_of: Callable[[str], int | None]) -> None:
        found: dict[str, tuple[Group, dict[str, list[Question]]]] = {}
        for name in names:
            question = self._folder.read(name)
            if question is None:
                continue
            place = self._place(question.flow, run_of(question.flow))
            if isinstance(place, str):
                self._folder.answer(Answer(name, refused=f"{question.flow} cannot be asked: {place}"))
                continue
            group, asked = place
            of_group = found.setdefault(group.name, (group, {}))[1]
            of_group.setdefault(asked, []).append(question)
        for group, questions in found.values():
            BatchFolder(self._places.group(group.name).questions).put(self._number(group), questions)

    def _place(self, flow: str, run: int | None) -> tuple[Group, str] | str:
        """The group that can be asked, and under which name, or why none can."""
        if run is None:
            return "it does not run here"
        key = flow, run
        group, hosted = self._groups.of(key), self._groups.hosted(key)
        if stopped := self._groups.stopped(key):
            return stopped
        if group is None or hosted is None:
            return "it is starting"
        out = group.out.get(hosted.name)
        return (group, asked_name(flow, run)) if out is None else out.why

    def _number(self, group: Group) -> int:
        """The next number of a group: higher than any that a micro-batch has named, after a restart too."""
        last = self._numbers.get(group.name)
        if last is None:
            last = max(time.time_ns() // 1_000, group.committed().get(QUESTIONS, 0))
        self._numbers[group.name] = last + 1
        return last + 1

    def _sweep(self) -> None:
        self._swept_s = time.monotonic()
        self._folder.sweep()
        for group in self._groups:
            answered = group.writer.last.offsets.get(QUESTIONS, 0)
            expired = time.time_ns() // 1_000 - int(EXPIRES_S * 1_000_000)  # as `_number` counts
            BatchFolder(self._places.group(group.name).questions).forget(max(answered, expired))
