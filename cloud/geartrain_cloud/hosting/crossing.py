"""The way of a flow from one revision to the next: where it lies, and what of its state goes with it.

Between the log, which brings a revision as an entry of each partition, and the group, which runs it from
there on. Guarantees: a generation reads its log up to these entries and no further, so that the whole flow
changes between two micro-batches. State stays where the step that keeps it stays behind the same shuffle.
What cannot go over is refused before the log brings it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from geartrain_cloud.hosting.errors import HostError
from geartrain_cloud.hosting.prepared import Prepared
from geartrain_cloud.hosting.versions import Hosted
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.sinks.own import OwnTables
from geartrain_cloud.spark.compile import HOSTED


def boundary(log: LogReader, hosted: Hosted, following: int) -> dict[str, int] | None:
    """Where the revision `following` begins, by key of the log; None until each partition has brought it.

    Where it passes over others, it begins where the first of them would have.
    """
    brought = log.boundary(hosted.flow, following)
    if not all(key in brought for key in hosted.keys):
        return None
    return log.boundary(hosted.flow, hosted.revision + 1)


def awaited(log: LogReader, hosted: Hosted, following: int) -> list[str]:
    """The partitions that have not brought a revision, while others have."""
    found = log.boundary(hosted.flow, following)
    return [key for key in hosted.keys if key not in found] if found else []


def dropped_state(
    flow: str, old: Prepared, new: Prepared, drops: Collection[str]
) -> dict[int, tuple[str, ...]]:
    """By stage, the steps whose state goes: those that the new revision has not, and `drops`.

    Raises `HostError` where state would have to move behind another shuffle, or take another form.
    """
    merged = set(old.merges) ^ set(new.merges)
    found: dict[int, tuple[str, ...]] = {}
    for step, stage in sorted(old.states.items()):
        now = new.states.get(step)
        if now is None or step in drops:
            found[stage] = (*found.get(stage, ()), step)
        elif now != stage:
            raise HostError(
                f"flow {flow}: step {step!r} stands behind shuffle {stage} and would stand behind shuffle "
                f"{now}, where its state cannot follow: have an update drop it, by gear update "
                f"--drop-state {step}, or submit the flow under another name, with all cuts it is to have"
            )
        elif step in merged:
            raise HostError(
                f"flow {flow}: step {step!r} would be split between devices and cloud, or whole again, and "
                "would keep its state in another form: submit the flow anew with the cuts that it is to have"
            )
    return found


def check_successor(flow: str, old: Prepared, new: Prepared) -> None:
    """Raise `HostError` where the new revision rests on other clocks, or sends other things to devices, than
    the one that runs. Channels may come in and go: rows of one that has gone are read no more. So may sources
    where nothing goes to devices.
    """
    for what, changes in (
        ("the sources", old.sources != new.sources and bool(new.dealt)),
        ("what goes to devices", old.dealt != new.dealt),
    ):
        if changes:
            raise HostError(f"flow {flow}: {what} would change, which only a flow that is submitted anew may")


def has_written(hosted: Hosted, own: OwnTables) -> bool:
    """Whether the tables hold a micro-batch of this generation; if not, they may be those of the revision
    before.
    """
    held = own.progress(HOSTED)
    return held is not None and held.batch_id > hosted.begin_count


def stands_at(positions: Mapping[str, int], places: Mapping[str, int]) -> bool:
    """Whether what stands at `positions` has come to `places`."""
    return all(positions.get(key, 0) == place for key, place in places.items())
