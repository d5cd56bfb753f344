"""A checkpoint made again: a query goes on from where its tables stand, though Spark's own files are lost.

It stands before the record's path, and runs where the driver was given `--restore`. The tables say up to
which positions of the log they hold the output of a query. A query without state begins there. A query with
state reads the log again from its beginning, and writes nothing until it comes to exactly these positions.

Guarantees: each row is in each store once. A checkpoint that cannot be made again in this way is refused
before anything is changed. The files of the lost checkpoint are set aside, not deleted.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from geartrain_cloud.log.queries import Registration
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.sinks.store import Tables, is_reached
from geartrain_cloud.spark.checkpoint import Checkpoint, open_checkpoint
from geartrain_cloud.spark.compile import Query
from geartrain_cloud.spark.errors import QueryError, RefusedError
from geartrain_cloud.spark.whole import check_whole

SET_ASIDE = "set-aside"
"""The folder, beside that of the checkpoints, to which lost ones are moved; the one before goes."""


def sound_checkpoint(query: Query, folder: Path, tables: Tables, shards: int) -> Checkpoint:
    """The checkpoint of `query` in `folder`, made there where tables hold nothing of it.

    Raises `RefusedError` where it is lost or torn, `QueryError` where it was made for something else.
    """
    held = tables.progress(query.name)
    if not folder.exists() and held is not None and held.positions:
        raise RefusedError(
            f"query {query.name!r}: its checkpoint {folder} is missing, but {tables.own.place} holds what it "
            f"wrote up to micro-batch {held.batch_id}: bring the folder back from a copy, make it again from "
            "the log with --restore, or empty the tables with --reset"
        )
    checkpoint = open_checkpoint(folder, query, shards)
    check_whole(checkpoint, keeps_state=bool(query.native) or len(query.stages) > 1)
    checkpoint.clear_drafts()
    return checkpoint


def restored_checkpoint(
    query: Query, folder: Path, tables: Tables, shards: int, log: LogReader
) -> Checkpoint:
    """As `sound_checkpoint`, but one that is lost or torn is made again from the log, where that can be.

    Raises `RefusedError` where it cannot: nothing is changed then.
    """
    try:
        return sound_checkpoint(query, folder, tables, shards)
    except RefusedError:
        pass
    stands = tables.stands(query.name)
    stops = _stops(query, stands)
    flow, held = query.graph.name, tables.progress(query.name)
    if stops:
        _check_possible(query, stops, log)
    _set_aside(folder)
    checkpoint = open_checkpoint(folder, query, shards, stops)
    tables.adopt(query.name, checkpoint.identity)
    if held is not None and held.checkpoint:
        Registration(log.folder, query.name, held.checkpoint, flow).unregister()
    return checkpoint


def _stops(query: Query, stands: Sequence[Mapping[str, int]]) -> list[Mapping[str, int]]:
    """The positions at which the stores stand, each once, ascending: one may be a micro-batch ahead."""
    found: list[Mapping[str, int]] = []
    for positions in sorted(stands, key=lambda one: sum(one.values())):
        if positions not in found:
            found.append(positions)
    if any(not is_reached(later, earlier) for earlier, later in pairwise(found)):
        raise RefusedError(
            f"query {query.name!r} cannot be made again: its stores do not stand at micro-batches of one "
            "run; bring the checkpoint back from a copy, or begin anew with --reset"
        )
    return found


def _check_possible(query: Query, stops: list[Mapping[str, int]], log: LogReader) -> None:
    flow, otherwise = query.graph.name, "bring the checkpoint back from a copy, or begin anew with --reset"
    if query.native:
        raise RefusedError(
            f"query {query.name!r} cannot be made again from the log, for its state is Spark's own: "
            f"{otherwise}"
        )
    if any(step.operator.kind == "deal" and step.id in query.sinks for step in query.graph.steps):
        raise RefusedError(
            f"query {query.name!r} cannot be made again from the log, for it writes to devices: {otherwise}"
        )
    newest = log.positions(flow)
    for key, position in stops[-1].items():
        if newest.get(key, 0) < position:
            raise RefusedError(
                f"{flow}/{key}: the tables stand at position {position}, but the log ends at "
                f"{newest.get(key, 0)}: it is another or an older one; bring the right one back"
            )
        if len(query.stages) == 1:
            continue
        entries = log.entries(flow, key, 0, position, query.channels)
        gone = [entry.number for entry in entries if entry.count and not entry.segment]
        if gone:
            raise RefusedError(
                f"query {query.name!r} cannot be made again from the log: retention has removed the rows of "
                f"{flow}/{key} up to position {gone[-1]}; {otherwise}"
            )


def _set_aside(folder: Path) -> None:
    if not folder.exists():
        return
    aside = folder.parent.with_name(SET_ASIDE) / folder.name
    try:
        if aside.exists():
            shutil.rmtree(aside)
        aside.parent.mkdir(mode=0o700, exist_ok=True)
        folder.rename(aside)
    except OSError as error:
        raise QueryError(f"{folder} cannot be moved to {aside} ({error.strerror or error})") from None
