"""The generations of a flow that read the log of before a revision, for the steps that are new in it.

Between the log and the group. Where a revision comes into force, the flow stands still. A generation runs the
new steps, and the steps above them, over the log of before, with state of its own beside that of the flow.
Where steps above keep state, another one goes before it: that runs these alone, from the log's beginning to
where the new ones begin. Then the flow goes on from where it stood, with what the new ones keep.

Guarantees: each is a generation as any other, so a kill goes on exactly. Where new steps begin follows from
the log. Tables stay at the place of the revision meanwhile, since a position of theirs never goes back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from geartrain.planning.past import EARLIEST
from geartrain_cloud.hosting.errors import HostError
from geartrain_cloud.hosting.prepared import PastSaid
from geartrain_cloud.hosting.versions import Hosted, Past
from geartrain_cloud.log.reader import LogReader


def beginning(
    log: LogReader, flow: str, begin: str, sources: Collection[str], places: Mapping[str, int]
) -> dict[str, int]:
    """Behind which positions new steps read, by key of the log. begin: as a revision says it; sources: those
    above them; places: where their revision begins.
    """
    if begin == EARLIEST:
        return dict.fromkeys(places, 0)
    return {key: log.before(flow, key, int(begin), sources, place) for key, place in places.items()}


def check_log(log: LogReader, hosted: Hosted) -> None:
    """Raise `HostError` where the log that a generation is to read is not whole any more."""
    if log.removed(hosted.flow, hosted.begin):
        raise HostError(
            f"flow {hosted.flow}: retention has removed some of the log that new steps were to begin with: "
            "go back with gear rollback, and begin from now or from a later time"
        )


def first_in_past(hosted: Hosted, said: PastSaid | None, begin: Mapping[str, int]) -> Hosted:
    """The generation that comes before `hosted`, which is the first of its revision and begins where that
    does; itself where there is nothing to read. begin: behind which positions new steps read.
    """
    if said is None or all(begin[key] >= place for key, place in hosted.begin.items()):
        return hosted
    if said.above_plan and any(begin.values()):
        return in_past(hosted, said, "above", dict.fromkeys(begin, 0), begin, hosted.begin)
    return in_past(hosted, said, "new", begin, hosted.begin, hosted.begin)


def next_in_past(hosted: Hosted, said: PastSaid, earlier: Hosted) -> Hosted:
    """The generation that comes after `earlier`, which has read what it was to read; hosted: of its revision,
    as it goes on.
    """
    if earlier.past == "above":
        return in_past(hosted, said, "new", earlier.upto, earlier.resumes, earlier.resumes)
    return replace(hosted, begin=earlier.resumes, takes=said.takes)


def in_past(
    hosted: Hosted,
    said: PastSaid,
    past: Past,
    begin: Mapping[str, int],
    upto: Mapping[str, int],
    resumes: Mapping[str, int],
) -> Hosted:
    """A generation that reads the log of before, of the revision that `hosted` runs."""
    above = past == "above"
    return replace(
        hosted,
        plan=said.above_plan if above else said.plan,
        channels=said.above_channels if above else said.channels,
        past=past,
        begin=dict(begin),
        upto=dict(upto),
        resumes=dict(resumes),
    )
