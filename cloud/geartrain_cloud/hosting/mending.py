"""A group's checkpoint that a loss of power, a disk or a person has torn: cut back, or begun anew.

Beside the record's path, before a group's query starts. Spark does not sync what it writes, so its newest
files may be missing, empty or short, while the tables of flows, which are synced, hold more. The checkpoint
is cut back to the newest micro-batch that is whole. Where none is, it begins anew: each flow reads its log
from the beginning. Either way flows make again what their tables hold, up to where these stand
(`Steering.stops`).

Guarantees: each row is in each table once. Only files behind the micro-batch that is kept are removed, and
durably. So a kill or a loss of power amid that leaves a checkpoint that is cut back to the same place. One
that begins anew sets the former aside first, and does all the rest again until a micro-batch is committed. A
flow whose state cannot be made again in this way is named, with the reason.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from geartrain.adapters.files import fsync_path, write_durable
from geartrain_cloud.hosting.errors import HostError
from geartrain_cloud.hosting.offsets import PLAN, count_name, positions_by_name
from geartrain_cloud.hosting.places import ASIDE
from geartrain_cloud.hosting.versions import FIRST, Hosted, Version, Versions
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.spark.checkpoint import Checkpoint
from geartrain_cloud.spark.errors import QueryError, TornError
from geartrain_cloud.spark.whole import (
    are_lines_whole,
    check_whole,
    is_metadata_whole,
    numbers,
    whole_batches,
)


@dataclass(frozen=True, slots=True)
class Damage:
    """What a checkpoint lacks. where: the file, and what is wrong with it; whole: the newest micro-batch from
    which Spark can go on, None where there is none.
    """

    where: str
    whole: int | None


def damage_of(checkpoint: Checkpoint, versions: Versions, *, stages: int) -> Damage | None:
    """What the checkpoint lacks, None where Spark can go on from it, or has not begun with it.

    stages: how many its query has behind shuffles. Raises `HostError` where the plan of the
    group cannot be read.
    """
    try:
        check_whole(checkpoint, stages=stages)
    except TornError as torn:
        whole = whole_batches(checkpoint, stages=stages)
        leads = (one for one in whole if leads_on(checkpoint.positions(one), versions))
        return Damage(torn.where, next(leads, None))
    newest = versions.newest()
    has_gone_on = newest is not None and any(one.begin_count >= 0 for one in newest.flows.values())
    if not numbers(checkpoint.location / "commits") and (versions.oldest() > FIRST or has_gone_on):
        return Damage(f"{checkpoint.location}: it holds no micro-batch", None)
    return None


def leads_on(offsets: Mapping[str, int], versions: Versions) -> bool:
    """Whether all flows of the newest version can go on from these offsets: their state there is that with
    which they began, where they came later.
    """
    newest = versions.newest()
    if newest is None or not versions.exists(offsets[PLAN]):
        return False
    before, positions = versions.read(offsets[PLAN]), positions_by_name(offsets)
    return all(_follows(one, before, positions, offsets) for one in newest.flows.values())


def _follows(
    hosted: Hosted, before: Version, positions: Mapping[str, Mapping[str, int]], offsets: Mapping[str, int]
) -> bool:
    if hosted.name in positions:
        return True
    former = before.of_flow(hosted.flow, hosted.run)
    if former is None:
        return hosted.begin_count < 0
    if former.leaves_for or hosted.comes_from:
        return False
    stood = positions.get(former.name, former.begin)
    count = offsets.get(count_name(former.name), former.begin_count)
    begin = hosted.resumes if hosted.past and not former.past else hosted.begin
    return count == hosted.begin_count and all(stood.get(key, 0) == begin.get(key, 0) for key in hosted.keys)


def staying(newest: Version, before: Version) -> dict[str, Hosted]:
    """The flows of the newest version, for a group that goes on under one before.

    One whose slots are to leave in between would read no more, and may not have come to its tables by then:
    it is asked to leave again.
    """
    found = dict(newest.flows)
    for name, hosted in newest.flows.items():
        former = before.flows.get(name)
        if hosted.leaves_for and former is not None and not former.leaves_for:
            found[name] = replace(hosted, leaves_for=0, broadcasts=())
    return found


def cut_back(checkpoint: Checkpoint, batch_id: int) -> None:
    """Have Spark go on from micro-batch `batch_id`, with the one after it if the offsets of that are whole.

    Raises `QueryError`.
    """
    root, last = checkpoint.location, batch_id
    if are_lines_whole(checkpoint, batch_id + 1):
        last += 1
    # State goes first, while the checkpoint is still torn: an image of it that a later micro-batch has left
    # would be taken for that of the one which is planned anew.
    gone = [
        [path for path in (root / "state").rglob(f"*.{kind}") if _is_behind(path, batch_id + 1)]
        for kind in ("changelog", "zip")
    ]
    gone.append([root / "commits" / str(one) for one in numbers(root / "commits")[::-1] if one > batch_id])
    gone.append([root / "offsets" / str(one) for one in numbers(root / "offsets")[::-1] if one > last])
    try:
        for paths in gone:
            _remove(paths)
        if not is_metadata_whole(checkpoint):
            write_durable(root / "metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
    except OSError as error:
        raise _unwritable(checkpoint, error) from None


def _is_behind(path: Path, version: int) -> bool:
    return path.stem.isdecimal() and int(path.stem) > version


def _remove(paths: list[Path]) -> None:
    """Remove files, so that a loss of power brings none of them back."""
    for path in paths:
        path.unlink(missing_ok=True)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    for folder in sorted({path.parent for path in paths}):
        fsync_path(folder)


def set_aside(checkpoint: Checkpoint) -> None:
    """Move Spark's files away; the former ones that were set aside go. Raises `QueryError`."""
    aside = checkpoint.folder / ASIDE
    try:
        if checkpoint.location.exists():
            if numbers(checkpoint.location / "commits") or not aside.exists():
                forget_aside(checkpoint)
                checkpoint.location.rename(aside)
            else:  # a new one, which has come to nothing yet
                shutil.rmtree(checkpoint.location)
            fsync_path(checkpoint.folder)
    except OSError as error:
        raise _unwritable(checkpoint, error) from None


def forget_aside(checkpoint: Checkpoint) -> None:
    """Remove what was set aside; raises `OSError`."""
    if (checkpoint.folder / ASIDE).exists():
        shutil.rmtree(checkpoint.folder / ASIDE)


def _unwritable(checkpoint: Checkpoint, error: OSError) -> QueryError:
    place = error.filename or checkpoint.folder
    return QueryError(
        f"{checkpoint.query}: its checkpoint is torn and cannot be mended, since {place} cannot be changed "
        f"({error.strerror or error}): make room, or let it be written, and start the platform again"
    )


def begun_anew(hosted: Hosted, log: LogReader, registered: Mapping[str, int]) -> Hosted:
    """A generation whose state is made again from the log, in the slots that it has.

    registered: from where the log is kept for it. One without state need not go back before that. Raises
    `HostError` where its state cannot be made again: those of revisions before are not there to run.
    """
    app = hosted.flow.rpartition(".")[0] or hosted.flow
    anew = f"gear replay {app} makes its tables anew from the log"
    begin = {}
    if not hosted.stages and not hosted.past:
        begin = {key: max(registered.get(key, 0), hosted.begin_at(key)) for key in hosted.keys}
    elif hosted.revision > 1:
        raise HostError(
            f"flow {hosted.flow}: the checkpoint with its state is lost, and its revision {hosted.revision} "
            f"cannot make again what revisions before have kept: {anew}"
        )
    elif log.removed(hosted.flow):
        raise HostError(
            f"flow {hosted.flow}: the checkpoint with its state is lost, and retention has removed the "
            "beginning of its log, from which the state would be made again: bring the platform back from a "
            f"backup with gear restore, or kill {app} and submit it under another name"
        )
    return replace(
        hosted,
        begin=begin,
        begin_count=-1,
        stop={},
        drops={},
        leaves_for=0,
        broadcasts=(),
        comes_from="",
        former_slots=0,
        takes=None,
    )
