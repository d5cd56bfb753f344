"""The next revision of each flow of a host, prepared beside the one that runs.

Between wanted.json and the groups, in the host's thread. Guarantees: a flow goes on while its next revision
is prepared. What goes wrong with that is one sentence, and the flow stays as it is. A revision that cannot be
prepared or come into force is tried again, and its flow waits before it, until one is wanted that passes over
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from geartrain.errors import GeartrainError
from geartrain_cloud.hosting.admission import Admission, Key, Member, is_locked
from geartrain_cloud.hosting.crossing import awaited, boundary, stands_at
from geartrain_cloud.hosting.errors import NotYetError, PreparationError
from geartrain_cloud.hosting.groups import Groups
from geartrain_cloud.hosting.prepared import Prepared
from geartrain_cloud.hosting.preparing import Preparing
from geartrain_cloud.hosting.status import FlowStatus
from geartrain_cloud.hosting.versions import Hosted
from geartrain_cloud.hosting.wanted import WantedFlow
from geartrain_cloud.log.reader import LogReader

LOOK_S = 0.1
"""Between two looks whether a flow has come to its next revision."""
TRY_AGAIN_S = 2.0
"""After a revision could not come into force."""
PREPARE_AGAIN_S = 60.0
"""After one could not be prepared: the machine may have been too busy, or short of memory."""


@dataclass(slots=True)
class _Next:
    """The next revision of a run. drops: the steps whose state goes; prepared: None until it is begun anew;
    admission: once it is prepared; why: it is not, or cannot come into force; waits: what it waits for,
    which passes; due_s: when to look again, monotonic.
    """

    revision: int
    request: str
    drops: tuple[str, ...]
    prepared: Future[Prepared] | None = None
    admission: Admission | None = None
    why: str = ""
    waits: str = ""
    due_s: float = 0.0


class Succession:
    """Those of one host; call `step` again and again."""

    def __init__(
        self,
        groups: Groups,
        preparing: Preparing,
        log: LogReader,
        member: Callable[[WantedFlow], Member],
    ) -> None:
        self._groups, self._preparing, self._log, self._member = groups, preparing, log, member
        self._next: dict[Key, _Next] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing is prepared that no version of a plan names yet."""
        return not self._next

    def step(self, runs: Mapping[Key, WantedFlow]) -> None:
        """Begin to prepare what is wanted next, and let flows go over that have come to it."""
        for key in self._next.keys() - runs.keys():
            del self._next[key]
        for key, wanted in runs.items():
            hosted = self._groups.hosted(key)
            if hosted is None or (wanted.revision <= hosted.revision and not hosted.past):
                self._next.pop(key, None)
                continue
            self._go_on(key, wanted, hosted.revision if hosted.past else wanted.after(hosted.revision))

    def _go_on(self, key: Key, wanted: WantedFlow, revision: int) -> None:
        plan, now = wanted.plan_of(revision), time.monotonic()
        one, asked = self._next.get(key), (revision, wanted.request_of(revision), plan.drops)
        if one is None or (one.revision, one.request, one.drops) != asked:
            one = self._next[key] = _Next(*asked)
        if now < one.due_s:
            return
        if one.prepared is None:
            one.prepared = self._preparing.begin(key[0], plan)
        if not one.prepared.done():
            return
        one.due_s, one.waits = now + LOOK_S, ""
        try:
            if one.admission is None:
                one.admission = self._admission(key, wanted, one, one.prepared.result())
            if self._groups.is_running(key) and self._groups.cross(one.admission):
                del self._next[key]
        except NotYetError as error:
            one.why, one.waits, one.due_s = "", str(error), now + TRY_AGAIN_S
        except PreparationError as error:
            one.why, one.due_s, one.prepared = str(error), now + PREPARE_AGAIN_S, None
        except GeartrainError as error:
            one.due_s = now + TRY_AGAIN_S
            one.why, one.waits = ("", str(error)) if is_locked(error) else (str(error), "")
        else:
            one.why = ""

    def _admission(self, key: Key, wanted: WantedFlow, one: _Next, prepared: Prepared) -> Admission:
        flow, run = key
        drain = wanted.plan_of(one.revision).drain
        given = (one.request, prepared, self._member(wanted), run, one.revision, one.drops, drain)
        admission = Admission(flow, *given)
        self._groups.check_crossing(admission)
        return admission

    def say(self, hosted: Hosted, found: FlowStatus) -> None:
        """Add to a status how far the next revision is."""
        one = self._next.get((hosted.flow, hosted.run))
        if one is None:
            return
        why = one.why
        if hosted.past:
            found.why = "; ".join(filter(None, [found.why, why, "new steps read the log of before"]))
            return
        if one.admission is not None:
            found.prepared = one.revision
            if not why and (missing := awaited(self._log, hosted, one.revision)):
                why = f"ingest has not brought it to partition {', '.join(missing)} of the log"
        places = boundary(self._log, hosted, one.revision) if one.why else None
        if places is not None and stands_at(found.positions, places):
            found.stuck = one.revision
        if why:
            found.next_why = why
            found.why = "; ".join(filter(None, [found.why, f"revision {one.revision}: {why}"]))
        elif one.waits and one.waits != found.why:  # no reason to give up
            found.why = "; ".join(filter(None, [found.why, f"revision {one.revision} waits: {one.waits}"]))
