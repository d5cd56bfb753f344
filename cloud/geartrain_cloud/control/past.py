"""Whether the log has all that a replay, or steps which are new in a revision, would read of the time before.

Asked by control before either. Guarantees: what the log never had, or has no more, is one sentence that
says since when or why, and what to do. The Spark host looks again when it begins with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from geartrain.errors import GeartrainError, LedgerError
from geartrain.planning.past import EARLIEST, NOW
from geartrain.records.event_time import format_time, parse_time
from geartrain.revision import Revision
from geartrain.revision.revision import StepForm
from geartrain_cloud.control.checking import PastFound
from geartrain_cloud.control_store.errors import ConflictError, InvalidError
from geartrain_cloud.control_store.model import Instance, Planned
from geartrain_cloud.hosting.past import beginning
from geartrain_cloud.log.reader import LogReader

_OTHERWISE = "begin from now, or from a later time"


def begin_of(text: str) -> str:
    """What `from` says, as a revision has it: "" for now, `earliest`, or an event time in microseconds.

    Raises `InvalidError`.
    """
    if text in (NOW, EARLIEST):
        return text if text == EARLIEST else ""
    try:
        return str(parse_time(text))
    except ValueError as error:
        raise InvalidError(f"from {text}: write now, earliest or a time: {error}") from None


class PastLog:
    """The log of one platform, as far as it goes back."""

    def __init__(self, folder: Path | None) -> None:
        """folder: ingest's, None where there is none."""
        self._log = None if folder is None else LogReader(folder)

    def check_whole(self, instance: Instance) -> None:
        """Raises `ConflictError` where retention has removed a part of an app's log. One that cannot be read
        is for the Spark host to tell.
        """
        with suppress(LedgerError):
            if self._log is not None and self._log.ready() and self._log.removed(instance.instance):
                raise ConflictError(
                    f"retention has removed the beginning of the log of app {instance.name}, so it cannot be "
                    "replayed: keep the log for longer before you count on a replay, see gear retain"
                )

    def lacks(
        self, instance: Instance, former: Sequence[Planned], begin: str, found: PastFound | None
    ) -> list[str]:
        """Why new steps cannot begin there, a sentence each. former: the revisions that were in force before
        the one that is; found: what the steps need.
        """
        if not begin or found is None:
            return []
        if found.refused:
            return [f"from {_said(begin)}: {found.refused}"]
        eras: list[Instance | Planned] = [*former, instance]
        try:
            first, gone = self._first_era(instance.instance, list(map(_number, eras)), begin, found)
        except GeartrainError as error:
            return [f"from {_said(begin)}: the log cannot be read: {error}"]
        if gone:
            why = f"retention has removed {gone:,} entries of the log behind that place"
            return [f"from {_said(begin)}: {why}: {_OTHERWISE}"]
        why = _unread(eras[first:], found)
        return [f"from {_said(begin)}: {why}: {_OTHERWISE}"] if why else []

    def _first_era(self, flow: str, numbers: Sequence[int], begin: str, found: PastFound) -> tuple[int, int]:
        """The place of the first revision whose part of the log is read, and how many entries have gone."""
        if self._log is None or not self._log.ready():
            return 0, 0
        newest = self._log.positions(flow)
        places = beginning(self._log, flow, begin, found.sources, newest)
        if found.keeps:
            places = dict.fromkeys(places, 0)
        first = 0
        for place, number in enumerate(numbers):
            begins = self._log.boundary(flow, number)
            if begins and all(places.get(key, 0) >= begins.get(key, 0) for key in newest):
                first = place
        return first, self._log.removed(flow, places)


def _unread(eras: Sequence[Instance | Planned], found: PastFound) -> str:
    """What the log has not, or what ran otherwise, in the time of some revisions; "" for nothing."""
    newest = _steps(eras[-1])
    for at, era in enumerate(eras):
        steps, sent = _steps(era), {channel.id for channel in era.outline.channels}
        for channel, stream in sorted(found.channels.items()):
            if channel not in sent and (stream not in steps or steps[stream].tier != "cloud"):
                return f"the records of {stream!r} were not in the log before revision {_number(era) + 1}"
        for step in found.keeps:
            is_there = step in steps and step in newest and steps[step].kind == newest[step].kind
            if not is_there and not _has_read_all(eras[at + 1 :], step):
                return (
                    f"step {step!r}, which is above, keeps something only since revision {_number(era) + 1}"
                )
            if at and step in era.drops:
                return f"step {step!r}, which is above, has begun anew with revision {_number(era)}"
    return ""


def _has_read_all(eras: Sequence[Instance | Planned], step: str) -> bool:
    """Whether the first of the revisions that has a step had it read all of the log before."""
    first = next((era.outline for era in eras if step in _steps(era)), None)
    return first is not None and first.begin == EARLIEST and step in first.attached


def _steps(era: Instance | Planned) -> dict[str, StepForm]:
    document = era.outline.document
    return {step.id: step for step in Revision.from_json(document).steps} if document else {}


def _number(era: Instance | Planned) -> int:
    return era.revision if isinstance(era, Instance) else era.number


def _said(begin: str) -> str:
    return begin if begin == EARLIEST else format_time(int(begin))
