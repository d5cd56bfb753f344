"""status.json of a host: how each of its flows is, for control, people and pages.

It stands beside the record's path and decides nothing. Guarantees: a reader sees a whole status, the newest
or the one before. Positions and rows are durable in the flow's tables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from geartrain.adapters.files import write_private
from geartrain.ports import StateSize
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain_cloud.hosting.group import Group
from geartrain_cloud.hosting.offsets import count_name, position_name, positions_by_name
from geartrain_cloud.hosting.skew import Hottest
from geartrain_cloud.hosting.versions import Hosted
from geartrain_cloud.log.reader import LogReader


class FlowStatus(msgspec.Struct):
    """One flow.

    state: one of those below; why: a sentence where it does not run; next_why: why it does not go over to
    the next revision; positions: where its tables stand;
    clocks: microseconds, by source; rows: in its tables; records: those by sink. lag: entries of the log
    that are not in its tables yet; micro_batch_ms: how long the last micro-batch of its group took;
    entries_per_s: of the log that the last ones have read, None where they have read none; generation: how
    often it was brought in; run: which pass over its log its tables are of. revision: the number of the one
    that it runs; prepared: that of the newest one that it could go over to; stuck: that of one which the log
    has brought, before which it stands, and which cannot come into force; dropped: by step, how many keys'
    state went when it came into force. stages: those behind a shuffle; slots: over how many its keys
    are dealt; slots_wanted: over how many they are to be, where these are others. skew: of each keyed stream,
    the slot and the keys that have most rows. state_bytes: what all slots keep, None until each of them has
    run; kept: the same of each step. unread: by channel, the rows of the log that no step reads.

    A flow is `starting` until a micro-batch has taken it up, then `running`. It is `held` while its tables
    take no rows, and `out` when its code or its dead letters have put it out. It is `failed` if it could not
    be brought in. It is `finished` when every source has ended and all is in its tables.
    """

    state: str
    why: str = ""
    next_why: str = ""
    positions: dict[str, int] = {}
    clocks: dict[str, int] = {}
    rows: int = 0
    records: dict[str, int] = {}
    lag: int = 0
    micro_batch_ms: int = 0
    entries_per_s: float | None = None
    generation: int = 0
    run: int = 1
    revision: int = 1
    prepared: int = 1
    stuck: int = 0
    dropped: dict[str, int] = {}
    stages: int = 0
    slots: int = 0
    slots_wanted: int = 0
    skew: list[Hottest] = []
    state_bytes: int | None = None
    unread: dict[str, int] = {}
    kept: dict[str, StateSize] | None = None


def describe(group: Group, log: LogReader, hosted: Hosted, newest: Mapping[str, int]) -> FlowStatus:
    """How a flow of a group is; newest: the end of its log. Raises `LedgerError` or `TableError`."""
    store, out = group.store(hosted.name), group.out.get(hosted.name)
    ran = group.writer.last
    positions = dict(out.positions) if out is not None else store.positions() if store is not None else {}
    if hosted.past and out is None:  # its tables stand where it goes on
        positions = positions_by_name(group.committed()).get(hosted.name, {})
    positions = {key: positions.get(key, hosted.begin_at(key)) for key in hosted.keys}
    said = log.clocks_at(hosted.flow, positions)
    clocks = {source: said.get(source, START_OF_TIME) for source in hosted.sources}
    records = dict(store.records()) if store is not None else {}
    skew, places = group.writer.skew, hosted.stages * len(hosted.labels)
    found = FlowStatus(
        "running",
        positions=positions,
        clocks=clocks,
        rows=sum(records.values()),
        records=records,
        lag=sum(max(0, newest.get(key, 0) - position) for key, position in positions.items()),
        micro_batch_ms=round(ran.seconds * 1_000),
        entries_per_s=group.writer.pace.of([position_name(hosted.name, key) for key in hosted.keys]),
        generation=hosted.generation,
        run=hosted.run,
        revision=hosted.revision,
        prepared=hosted.revision,
        dropped=group.dropped(hosted.name),
        stages=hosted.stages,
        slots=len(hosted.labels),
        skew=skew.of(hosted.name),
        state_bytes=skew.state_bytes(hosted.name, places),
        kept=skew.kept(hosted.name, places),
        unread=group.unread.of(hosted, positions),
    )
    count = ran.offsets.get(count_name(hosted.name), hosted.begin_count)
    if out is None and (goal := group.behind(hosted.name, count)):
        entries = sum(goal.values()) - sum(
            ran.offsets.get(position_name(hosted.name, key), hosted.begin_at(key)) for key in hosted.keys
        )
        if entries > 0:
            found.why = f"its state is made again from the log: {entries:,} entries to go"
    if out is not None:
        found.state, found.why = "out", out.why
    elif store is not None and store.tripped:
        found.state, found.why = "out", store.tripped
    elif store is not None and store.held:
        found.state, found.why = "held", store.held
    elif not found.lag and not hosted.past and clocks and min(clocks.values()) == END_OF_TIME:
        found.state = "finished"
    elif ran.offsets and not any(position_name(hosted.name, key) in ran.offsets for key in hosted.keys):
        found.state = "starting"
    return found


class StatusFile:
    """The file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, serial: int, flows: Mapping[str, FlowStatus], complaint: str) -> None:
        """Write how all flows are; serial: of the wanted.json that is followed; complaint: what is wrong with
        a later one. Raises `OSError`.
        """
        said = {
            "serial": serial,
            "pid": os.getpid(),
            "why": complaint,
            "flows": {flow: msgspec.to_builtins(one) for flow, one in flows.items()},
        }
        write_private(self._path, msgspec.json.format(msgspec.json.encode(said), indent=1))
