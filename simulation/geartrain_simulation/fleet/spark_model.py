"""A short model of Spark: a query that reads the log in micro-batches, with a checkpoint and a sink.

Last on a simulated record's path, a node of its own that may die between any two steps. It works as Spark
does: it plans a micro-batch in its offset log, reads it, hands it to the sink at least once, and notes it
in its commit log. Guarantees, as long as the log keeps its own: the sink's rows are the log's, each once,
and each micro-batch ends at one place, however often it is run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import msgspec

from geartrain.errors import DiskError
from geartrain.records.event_time import START_OF_TIME
from geartrain_cloud.log import reader
from geartrain_cloud.ports import Entry, EntryKind, QueryProgress, position_key
from geartrain_simulation.checkers import Checkers
from geartrain_simulation.machine.faults import Faults
from geartrain_simulation.machine.platter import Platter
from geartrain_simulation.machine.world import Node, Process, World
from geartrain_simulation.stores.segments import LoggedRow, decode_plain
from geartrain_simulation.stores.stores import LedgerBook

Positions = Mapping[str, int]
"""The last entry of each partition that was read, by `0`, `1` and so on."""
POLL_S = 0.5


def key_of(entry: Entry) -> str:
    """How positions name the partition of an entry."""
    return position_key(entry.partition)


def revision_of(entry: Entry) -> int:
    """The revision that an entry brings, 0 for none."""
    return entry.seq if entry.kind is EntryKind.REVISION else 0


@dataclass(slots=True)
class CheckpointBook:
    """What the checkpoint's folder keeps: where each micro-batch ends, and which of them are done."""

    offsets: list[Positions] = field(default_factory=list)
    commits: int = 0
    clocks: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """By partition, the clock of each source at the last planned positions."""


@dataclass(slots=True)
class SinkBook:
    """What the tables keep: by partition the rows with their channels, in the order that they came, and the
    last micro-batch with its positions.
    """

    rows: dict[int, list[tuple[str, LoggedRow]]] = field(default_factory=dict)
    batch_id: int = -1
    positions: Positions = field(default_factory=dict)
    repeats: int = 0

    def write(
        self, batch_id: int, positions: Positions, rows: Mapping[int, Sequence[tuple[str, LoggedRow]]]
    ) -> bool:
        """Write a micro-batch in one transaction; False, and nothing, where it is held already."""
        if batch_id <= self.batch_id:
            self.repeats += 1
            return False
        for partition, more in rows.items():
            self.rows.setdefault(partition, []).extend(more)
        self.batch_id, self.positions = batch_id, positions
        return True


class SparkModel:
    """One query over all channels of one log."""

    def __init__(
        self, world: World, ledger: LedgerBook, platter: Platter, checkers: Checkers, faults: Faults
    ) -> None:
        self._world, self._ledger, self._platter, self._checkers = world, ledger, platter, checkers
        self._faults = faults
        self._rows_max = world.random("spark").choice((1, 7, 1_000))
        self.checkpoint, self.sink = CheckpointBook(), SinkBook()
        self.node: Node = world.node("spark", self._run)
        self._ends: Positions | None = None

    async def drained(self) -> None:
        """Return when the sink holds all that the log holds now."""
        self._ends = self._newest()
        await self.node.finished

    async def _run(self, process: Process) -> None:
        random = process.random("spark")
        while not self._is_done():
            if self.checkpoint.commits == len(self.checkpoint.offsets):
                self._register(self._last())
                planned = self._plan()
                if planned == self._last():
                    await asyncio.sleep(random.uniform(0, POLL_S))
                    continue
                await self._effect(process, random, "spark.plan")
                self.checkpoint.offsets.append(planned)
                process.point("spark.plan done", str(len(self.checkpoint.offsets)))
            await self._micro_batch(process, random)

    async def _micro_batch(self, process: Process, random: Random) -> None:
        """Run the oldest planned micro-batch that is not noted as done, for the first time or once more."""
        number = self.checkpoint.commits
        starts = self.checkpoint.offsets[number - 1] if number else {}
        ends = self.checkpoint.offsets[number]
        entries = self._entries(starts, ends)
        await self._effect(process, random, "spark.read")  # tasks read the files some time after the driver
        rows = self._read(entries)
        beside = await self._run_steps(process, random, number, ends, entries)
        await self._effect(process, random, "spark.write")
        self.sink.write(number, ends, rows)
        process.point("spark.write done", str(number))
        await self._effect(process, random, "spark.commit")
        self.checkpoint.commits = number + 1
        beside()
        process.point("spark.commit done", str(number))
        self._register(ends)

    async def _run_steps(
        self, process: Process, random: Random, number: int, ends: Positions, entries: Sequence[Entry]
    ) -> Callable[[], None]:
        """Have the steps of the cloud run, in a world that has any; what to do with the commit."""
        return lambda: None

    async def _effect(self, process: Process, random: Random, what: str) -> None:
        process.point(what)
        await process.pause(random, self._faults)

    def _is_done(self) -> bool:
        return (
            self._ends is not None
            and self.sink.positions == self._ends == self._last()
            and (self.checkpoint.commits == len(self.checkpoint.offsets))
        )

    def _last(self) -> Positions:
        return self.checkpoint.offsets[-1] if self.checkpoint.offsets else {}

    def _newest(self) -> Positions:
        return {key_of(entries[-1]): entries[-1].number for entries in self._ledger.entries.values()}

    def _plan(self) -> Positions:
        """Where the next micro-batch ends: at most so many rows of each partition, at least one entry."""
        last, planned = self._last(), dict[str, int]()
        for entries in self._ledger.entries.values():
            key = key_of(entries[-1])
            after = last.get(key, 0)
            extents = (
                (one.number, one.count, revision_of(one), one.channel, 0)
                for one in entries[max(after - 1, 0) :]
            )
            room = reader.Room(self._rows_max, 4 * self._rows_max)
            end = planned[key] = reader.end_of(extents, after, room, self._revision(last))
            self._check_clocks(key, entries[end - 1].clocks)
        return planned

    def _revision(self, starts: Positions) -> int:
        """That which runs behind these positions, 0 where the query goes over to none."""
        return 0

    def _check_clocks(self, key: str, clocks: Mapping[str, int]) -> None:
        for source, before in self.checkpoint.clocks.get(key, {}).items():
            clock = clocks.get(source, START_OF_TIME)
            if clock < before:
                detail = f"a micro-batch finds that of {source} in partition {key} set back to {clock}"
                self._checkers.breach("clock", detail)
        self.checkpoint.clocks[key] = clocks

    def _entries(self, starts: Positions, ends: Positions) -> list[Entry]:
        """The entries between positions, which name the files as they are now."""
        found: list[Entry] = []
        for entries in self._ledger.entries.values():
            key = key_of(entries[0])
            found += entries[starts.get(key, 0) : ends.get(key, 0)]
        return found

    def _read(self, entries: Sequence[Entry]) -> dict[int, list[tuple[str, LoggedRow]]]:
        found: dict[int, list[tuple[str, LoggedRow]]] = {}
        for entry in entries:
            if entry.segment:
                rows = found.setdefault(entry.partition, [])
                rows += [(entry.channel, row) for row in self._rows(entry)]
        return found

    def _register(self, positions: Positions) -> None:
        """Say how far the query is done, so that the log may let go of what is behind it."""
        flows = {key_of(entries[-1]): entries[-1].flow for entries in self._ledger.entries.values()}
        self._ledger.queries[:] = [
            QueryProgress("spark", flow, key, positions.get(key, 0)) for key, flow in flows.items()
        ]

    def _rows(self, entry: Entry) -> list[LoggedRow]:
        try:
            rows = decode_plain(self._platter.read(entry.segment))
        except (DiskError, msgspec.MsgspecError) as error:
            self._checkers.breach("readable", f"a micro-batch cannot read {entry.segment}: {error}")
        rows = rows[entry.first_row : entry.first_row + entry.count]
        if len(rows) != entry.count:
            self._checkers.breach("readable", f"{entry.segment} is shorter than entry {entry.number} says")
        return rows

    def check(self) -> None:
        """Compare the sink with the log: the same rows in the same order, whatever their channels."""
        logged: dict[int, list[tuple[str, LoggedRow]]] = {}
        for partition, channel, row in self._checkers.sequence():
            logged.setdefault(partition, []).append((channel, row))
        for partition in sorted(self.sink.rows.keys() | logged.keys()):
            held, wanted = self.sink.rows.get(partition, []), logged.get(partition, [])
            if held != wanted:
                pairs = enumerate(zip(held, wanted, strict=False))
                at = next((n for n, (one, other) in pairs if one != other), min(len(held), len(wanted)))
                self._checkers.breach(
                    "sink = model",
                    f"partition {partition}: the sink holds {len(held)} rows, the log {len(wanted)}; they "
                    f"differ from row {at} on: {held[at : at + 1]}, {wanted[at : at + 1]}",
                )
