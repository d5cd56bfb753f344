"""The source of a hosting query: which flows a micro-batch moves and how far, and what their first steps
make.

Between the log and the stages. Each flow has positions, clocks and a budget of rows of its own. A flow that
has nothing new, is held or is out gets neither rows nor ticks, and costs nothing.

Guarantees: those of `FlowLog` for each flow. All that a micro-batch does follows from its offsets,
the version of the plan that they name, and which flows were put out since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from geartrain.errors import LedgerError
from geartrain.graph.graph import CLAIMS, STATE
from geartrain_cloud.hosting.answering import Asked, sent
from geartrain_cloud.hosting.budgets import SIZE_MAX, Budgets
from geartrain_cloud.hosting.dealing import Dealing
from geartrain_cloud.hosting.offsets import (
    COMING,
    DRAINED,
    DROPPED,
    EMPTIED,
    LEAVING,
    PLAN,
    QUESTIONS,
    TAKEN,
    TALLY,
    asked_name,
    count_name,
    position_name,
)
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.hosting.questions import BatchFolder
from geartrain_cloud.hosting.sizes import SizesFile
from geartrain_cloud.hosting.steering import SteeringFile, Stop
from geartrain_cloud.hosting.versions import FIRST, Hosted, Versions, sink_labels
from geartrain_cloud.hosting.workshop import Workshop
from geartrain_cloud.log.reader import CELLS_MAX, UNBOUNDED, LogReader, Room
from geartrain_cloud.ports import Entry
from geartrain_cloud.spark.chains import Chains
from geartrain_cloud.spark.claims import claims_lost
from geartrain_cloud.spark.clocks import Clocks, encode_clocks
from geartrain_cloud.spark.flow_log import SOURCE_NAME, FlowLog
from geartrain_cloud.spark.rows import CLOCKS, Routed
from geartrain_cloud.spark.tally import Tally

HOST_ROWS = (
    "shard int, stage int, flow string, stream string, sender string, position long, sequence long, "
    "packed binary"
)
"""As `ROUTED_ROWS`, with the generation. Of a row that brings the clocks, the sequence is the version."""

CELLS_PER_ROW = 4
"""So many cells of moved state are in a micro-batch of a flow for each row that it may have at the most."""

PACK_ROWS = 2_048
"""Rows that are run together, between which a worker's mark is set anew."""

_FIELDS: list[pa.Field[Any]] = [
    pa.field("shard", pa.int32()),
    pa.field("stage", pa.int32()),
    pa.field("flow", pa.string()),
    pa.field("stream", pa.string()),
    pa.field("sender", pa.string()),
    pa.field("position", pa.int64()),
    pa.field("sequence", pa.int64()),
    pa.field("packed", pa.binary()),
]
_SCHEMA = pa.schema(_FIELDS)


@dataclass
class FlowSpan:
    """What one task reads of one generation: (key, after, upto) each; clocks: of the flow's sources, None
    where another task brings them; drains: its steps put out what they hold.
    """

    name: str
    clocks: Clocks | None = None
    parts: list[tuple[str, int, int]] = field(default_factory=list)
    drains: bool = False

    def add(self, key: str, entry: Entry) -> None:
        """Read one entry more."""
        after = self.parts.pop()[1] if self.parts and self.parts[-1][0] == key else entry.number - 1
        self.parts.append((key, after, entry.number))


@dataclass
class HostSpan(InputPartition):
    """What one task reads, under which version of the plan."""

    version: int
    flows: tuple[FlowSpan, ...]
    emptied: tuple[tuple[int, int], ...] = ()
    """(label, stage) of slots whose flow has left with this micro-batch."""
    told: tuple[tuple[int, int, str, str], ...] = ()
    """(label, stage, generation, stream) of slots whose state changes hands with this micro-batch: they lose
    that of some steps (`DROPPED`), write all of it (`LEAVING`), take it (`COMING`), or take what was kept
    beside (`TAKEN`).
    """
    asked: dict[str, tuple[Asked, ...]] = field(default_factory=dict)
    """Questions, by generation."""


class HostReader(DataSourceStreamReader):
    """Reads the log for a group: in a Python process of Spark's driver, and `read` in its workers."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """options: log, host (folders), group (its name), readers (tasks that read a large micro-batch)."""
        self.budgets = Budgets()
        """How many rows the next micro-batch reads of a flow with a backlog."""
        self._log, self._readers = LogReader(options["log"]), int(options["readers"])
        self._places = HostPlaces(Path(options["host"])).group(options["group"])
        self._versions = Versions(self._places.versions)
        self._steering = SteeringFile(self._places.steering)
        self._questions = BatchFolder(self._places.questions)
        self._sizes = SizesFile(self._places.sizes)
        self._rested = False
        self._planned: dict[str, int] = {}
        self._backlogs: dict[str, int] = {}
        # Flows that have more to read than that, with their budgets in rows, in the micro-batch planned last.

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Where the flows of the first version begin that there is."""
        first = self._versions.oldest() or FIRST
        return {PLAN: first} | self._ends(self._versions.read(first).flows, {}, {}, {}, move=False)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Each flow has a budget of its own."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Where the micro-batch that begins at `start` ends; `start` itself where nothing is new.

        One that brings questions reads nothing of the log, so that the answers wait for no more than the one
        before. It does so every second time at the most: who asks without end slows flows, and stops none.
        """
        self.budgets.settle(start, self._sizes.read)
        number = start[PLAN] + self._versions.exists(start[PLAN] + 1)
        flows, steering = self._versions.read(number).flows, self._steering.read()
        if number != start[PLAN]:
            self.budgets.forget(set(flows))
        asked, answered = (self._questions.newest(start.get(QUESTIONS, 0)), start.get(QUESTIONS, 0))
        self._rested = asked > answered and number == start[PLAN] and not self._rested
        still = set(flows) if self._rested else steering.held.keys() | steering.out.keys()
        still |= {name for name, hosted in flows.items() if hosted.leaves_for}
        moving = {hosted.flow for name, hosted in flows.items() if name not in still}
        newest = self._log.newest(moving)
        resting = {name: hosted for name, hosted in flows.items() if name in still}
        going = {name: hosted for name, hosted in flows.items() if name not in still}
        self._planned = (
            {PLAN: number}
            | ({QUESTIONS: asked} if asked else {})
            | self._ends(resting, start, {}, {}, move=False)
            | self._ends(going, start, self._within_budgets(going, start, newest), steering.stops, move=True)
        )
        return self._planned

    def _within_budgets(
        self, flows: Mapping[str, Hosted], start: Mapping[str, int], newest: Mapping[str, Mapping[str, int]]
    ) -> dict[str, dict[str, int]]:
        """By generation and key, up to where the next micro-batch may read the log.

        A flow has a backlog where it has more than backlogs may have beside others. Where flows with less
        wait, backlogs read no more than that.
        """
        found = dict[str, dict[str, int]]()
        after = {name: _stands(name, hosted, start) for name, hosted in flows.items()}
        backlogs, waits = list[str](), False
        for name, hosted in flows.items():
            last = newest.get(hosted.flow, {})
            found[name] = self._upto(hosted, after[name], last, self.budgets.beside(name))
            ends = {key: min(last.get(key, 0), hosted.upto.get(key, UNBOUNDED)) for key in hosted.keys}
            if any(found[name][key] < ends[key] for key in hosted.keys):
                backlogs.append(name)
            else:
                waits = waits or found[name] != after[name]
        self._backlogs = {}
        for name in backlogs:
            rows = self.budgets.beside(name) if waits else self.budgets.alone(name)
            self._backlogs[name] = rows = rows // len(backlogs)
            found[name] = self._upto(flows[name], after[name], newest.get(flows[name].flow, {}), rows)
        return found

    def _upto(
        self, hosted: Hosted, after: Mapping[str, int], newest: Mapping[str, int], rows: int
    ) -> dict[str, int]:
        """By key, up to where a flow may read `rows` rows; keys with something new share them evenly."""
        log = FlowLog(self._log, hosted.flow, hosted.channels)
        keys = max(1, sum(newest.get(key, 0) > after[key] for key in hosted.keys))
        room = Room(
            max(1, min(rows // keys, hosted.rows_max)),
            min(CELLS_MAX, CELLS_PER_ROW * hosted.rows_max),
            SIZE_MAX // keys,
        )
        return {key: self._end(hosted, log, key, after[key], newest.get(key, 0), room) for key in hosted.keys}

    def _ends(
        self,
        flows: Mapping[str, Hosted],
        start: Mapping[str, int],
        upto: Mapping[str, Mapping[str, int]],
        stops: Mapping[str, tuple[Stop, ...]],
        *,
        move: bool,
    ) -> dict[str, int]:
        """Where flows end, with the count of each. upto: how far each may read.

        One that makes again what its tables hold reads up to where they stand, in as many micro-batches as
        it takes. Its count stays meanwhile, so nothing is written, and becomes that of the tables there. A
        micro-batch that only some stores hold comes whole.
        """
        found: dict[str, int] = {}
        for name, hosted in flows.items():
            count = start.get(count_name(name), hosted.begin_count)
            moved = move and hosted.drains_after(count)
            stop = next((one for one in stops.get(name, ()) if one.count > count), None)
            is_there = True
            for key in hosted.keys:
                place = position_name(name, key)
                after = end = start.get(place, hosted.begin_at(key))
                if stop is not None:
                    goal = max(after, stop.positions.get(key, after))
                    is_whole = stop.undivided and count == stop.count - 1
                    end = goal if is_whole else min(goal, upto[name][key])
                    is_there &= end >= goal
                elif move and hosted.stop and count == hosted.begin_count:
                    end = hosted.stop.get(key, after)  # its tables hold this micro-batch
                elif move:
                    end = upto[name][key]
                found[place] = end
                moved |= end > after
            found[count_name(name)] = count + moved if stop is None else stop.count if is_there else count
        return found

    def _end(self, hosted: Hosted, log: FlowLog, key: str, after: int, newest: int, room: Room) -> int:
        if newest < after:
            raise LedgerError(
                f"{hosted.flow}/{key}: the checkpoint stands at position {after}, but the log ends at "
                f"{newest}: it is another or an older one; bring the right one back"
            )
        if newest == after:
            return after
        end = min(newest, log.limit(key, after, room, hosted.revision))
        return min(end, hosted.upto[key]) if hosted.past else end

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One span for a small micro-batch, up to `readers` of about equal rows for a large one."""
        out = self._steering.read().out
        moved: dict[str, Clocks] = {}
        draining: set[str] = set()
        entries: list[tuple[str, str, Entry]] = []
        questions = self._questions.between(start.get(QUESTIONS, 0), end.get(QUESTIONS, 0))
        asked: dict[str, tuple[Asked, ...]] = {}
        for name, hosted in self._versions.read(end[PLAN]).flows.items():
            first = _stands(name, hosted, start)
            last = {key: end[position_name(name, key)] for key in hosted.keys}
            mine = [] if hosted.past else questions.get(asked_name(hosted.flow, hosted.run), [])
            count = start.get(count_name(name), hosted.begin_count)
            drains = hosted.drains_after(count) and end[count_name(name)] > count
            if (first == last and not mine and not drains) or name in out:
                continue
            log = FlowLog(self._log, hosted.flow, hosted.channels)
            clocks = log.clocks(last)
            asked[name] = tuple(Asked(one, last, dict(clocks)) for one in mine)
            if first == last and not drains:
                continue
            moved[name] = clocks
            draining |= {name} if drains else set()
            for key in hosted.keys:
                entries += [(name, key, entry) for entry in log.entries(key, first[key], last[key])]
        self._note_planned(start, end, entries)
        spans = self._spans(end[PLAN], moved, entries)
        for one in spans[0].flows:
            one.drains = one.name in draining
        spans[0].emptied = self._emptied(start[PLAN], end[PLAN])
        spans[0].told = self._told(start[PLAN], end[PLAN])
        spans[0].asked = {name: several for name, several in asked.items() if several}
        return list(spans)

    def _note_planned(
        self, start: Mapping[str, int], end: Mapping[str, int], entries: list[tuple[str, str, Entry]]
    ) -> None:
        """Have budgets learn from a micro-batch whose size they have set.

        An earlier process may have planned it. A claim, a revision, bytes or moved state may end it early.
        """
        rows = dict.fromkeys(self._backlogs, 0)
        for name, _, entry in entries:
            if name in rows:
                rows[name] += entry.count
        is_early = any(2 * rows[name] < budget for name, budget in self._backlogs.items())
        if end == self._planned and not is_early and not any(entry.channel == STATE for *_, entry in entries):
            self.budgets.begin(end, rows, switches=start[PLAN] != end[PLAN])

    def _emptied(self, before: int, now: int) -> tuple[tuple[int, int], ...]:
        """The slots that a switch of versions leaves to nobody; their labels are never given out again."""
        if before == now or not self._versions.exists(before):
            return ()
        flows = self._versions.read(now).flows.values()
        used = {label for hosted in flows for label in hosted.labels}
        return tuple(
            (label, stage)
            for hosted in self._versions.read(before).flows.values()
            for label in hosted.labels
            if label not in used
            for stage in range(1, hosted.stages + 1)
        )

    def _told(self, before: int, now: int) -> tuple[tuple[int, int, str, str], ...]:
        """The slots that a switch of versions has drop, write or take state.

        Whether their generation is out does not matter: the one that comes after it finds that done.
        """
        if before == now or not self._versions.exists(before):
            return ()
        known, found = self._versions.read(before).flows, list[tuple[int, int, str, str]]()
        for name, hosted in self._versions.read(now).flows.items():
            stages = range(1, hosted.stages + 1)
            if hosted.past:
                continue  # its state is beside that of the flow, which changes behind it
            if name not in known:
                found += [(label, stage, name, DROPPED) for stage in hosted.drops for label in hosted.labels]
                here = () if hosted.takes is None else stages
                found += [(label, stage, name, TAKEN) for stage in here for label in hosted.labels]
                here = stages if hosted.comes_from else ()
                found += [(label, stage, name, COMING) for stage in here for label in hosted.labels]
            elif hosted.leaves_for and not known[name].leaves_for:
                found += [(label, stage, name, LEAVING) for stage in stages for label in hosted.labels]
        return tuple(found)

    def _spans(
        self, version: int, moved: Mapping[str, Clocks], entries: list[tuple[str, str, Entry]]
    ) -> list[HostSpan]:
        rows = sum(entry.count for _, _, entry in entries)
        readers = max(1, min(self._readers, rows // PACK_ROWS))
        flows: list[dict[str, FlowSpan]] = [{} for _ in range(readers)]
        flows[0] = {name: FlowSpan(name, clocks) for name, clocks in moved.items()}
        seen = 0
        for name, key, entry in entries:
            reader = min(readers - 1, seen * readers // rows) if rows else 0
            seen += entry.count
            flows[reader].setdefault(name, FlowSpan(name)).add(key, entry)
        return [HostSpan(version, tuple(several.values())) for several in flows]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What becomes of a span's rows in the first steps of each flow; raises as they do."""
        span, workshop = cast(HostSpan, partition), Workshop(self._places)
        version = workshop.version(span.version)
        beside = ("", 0, span.version, b"")
        if span.emptied:
            yield _batch([(label, stage, "", EMPTIED, *beside) for label, stage in span.emptied])
        if span.told:
            yield _batch([(*one, *beside) for one in span.told])
        for one in span.flows:
            yield from self._read_flow(workshop, version.flows[one.name], one, span.version)
        for name, several in span.asked.items():
            yield from self._ask(workshop, version.flows[name], several, span.version)

    def _ask(
        self, workshop: Workshop, hosted: Hosted, asked: tuple[Asked, ...], version: int
    ) -> Iterator[pa.RecordBatch]:
        with workshop.running(hosted) as (query, _):
            rows = sent(query, hosted, asked)
        label, beside = sink_labels(self._readers)[0], ("", 0, version)
        yield _batch(
            [
                (
                    *(hosted.labels[row.shard] if row.stage else label, row.stage, hosted.name, row.stream),
                    *(*beside, row.packed),
                )
                for row in rows
            ]
        )

    def _read_flow(
        self, workshop: Workshop, hosted: Hosted, span: FlowSpan, version: int
    ) -> Iterator[pa.RecordBatch]:
        log = FlowLog(self._log, hosted.flow, hosted.channels)
        sinks = sink_labels(self._readers)

        def placed(rows: list[Routed], sender: str, position: int) -> list[tuple[Any, ...]]:
            return [
                (
                    hosted.labels[row.shard] if row.stage else sinks[row.shard % len(sinks)],
                    *(row.stage, hosted.name, row.stream, sender, position, sequence, row.packed),
                )
                for sequence, row in enumerate(rows)
            ]

        if span.clocks is not None:
            beside = (hosted.name, CLOCKS, "", 0, version, encode_clocks(span.clocks))
            stages = range(1, hosted.stages + 1)
            ticks = [(label, stage, *beside) for stage in stages for label in hosted.labels]
            if ticks:
                yield _batch(ticks)
            if span.drains:
                said = (hosted.name, DRAINED, "", 0, version, b"")
                yield _batch([(label, stage, *said) for stage in stages for label in hosted.labels])
        with workshop.running(hosted) as (query, dealing):
            tally = Tally(len(hosted.labels))
            chains = Chains(query, len(hosted.labels), tally)
            chains.clocks = span.clocks
        for key, after, upto in span.parts:
            for run in log.runs(key, after, upto, PACK_ROWS):
                with workshop.running(hosted, sum(entry.count for entry in run)):
                    runs = [
                        (number, _named(dealing, chains.run(run[0].channel, table)))
                        for number, table in log.rows(run)
                    ]
                for number, found in runs:
                    if found:
                        yield _batch(placed(found, key, number))
            table = claims_lost(log.entries(key, after, upto)) if CLAIMS in hosted.channels else None
            if table is not None and (found := chains.run(CLAIMS, table)):
                yield _batch(placed(found, key, upto))
        with workshop.running(hosted):
            found = _named(dealing, chains.finish())
        if told := tally.told():
            found.append(Routed(0, 0, TALLY, told))
        if found:
            yield _batch(placed(found, "0/clocks", 0))


def _stands(name: str, hosted: Hosted, offsets: Mapping[str, int]) -> dict[str, int]:
    """By key, where a generation stands at these offsets."""
    return {key: offsets.get(position_name(name, key), hosted.begin_at(key)) for key in hosted.keys}


def _named(dealing: Dealing, rows: list[Routed]) -> list[Routed]:
    if not dealing.streams:
        return rows
    return [replace(row, packed=dealing.named(row.stage, row.stream, row.packed)) for row in rows]


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, one.type) for column, one in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


class HostSource(DataSource):
    """The log as a group reads it, one source for all groups; the options are those of `HostReader`."""

    @classmethod
    def name(cls) -> str:
        """Under which it is registered."""
        return f"{SOURCE_NAME}_host"

    def schema(self) -> str:
        """Of its rows."""
        return HOST_ROWS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The reader."""
        return HostReader(self.options)
