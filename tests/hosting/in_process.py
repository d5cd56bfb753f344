"""A hosted flow that goes through revisions without Spark: the real source, stages and versions, with
shuffles and state as dictionaries, and what chance does to them.

Micro-batches end where the source says. One in some is killed after it was run, with its state and its rows,
and runs again in new processes: it must put out the same. And the power is lost now and then: Spark's newest
micro-batches are gone, or all of them, while the tables hold all.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from msgspec.structs import replace
from pyspark.sql import Row

from geartrain.errors import PlacementError
from geartrain.operators.broadcast import Broadcast
from geartrain.planning import Plan
from geartrain.planning.past import past_of
from geartrain.records.event_time import START_OF_TIME
from geartrain.schema import ColumnBatch, RowCodec, Schema
from geartrain_cloud.hosting.budgets import Budgets
from geartrain_cloud.hosting.crossing import boundary, check_successor, dropped_state, stands_at
from geartrain_cloud.hosting.errors import HostError
from geartrain_cloud.hosting.mending import begun_anew, leads_on, staying
from geartrain_cloud.hosting.offsets import PLAN, TALLY, count_name, positions_by_name
from geartrain_cloud.hosting.past import beginning, first_in_past, next_in_past
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.hosting.plans import put_plan
from geartrain_cloud.hosting.prepare import merging_steps, put_past, task_forms
from geartrain_cloud.hosting.prepared import Prepared
from geartrain_cloud.hosting.source import HostReader
from geartrain_cloud.hosting.stage import HostStage
from geartrain_cloud.hosting.steering import Steering, SteeringFile, Stop
from geartrain_cloud.hosting.versions import (
    FIRST,
    ROWS_MAX,
    Hosted,
    Version,
    Versions,
    dealt_anew,
    new_labels,
    sink_labels,
)
from geartrain_cloud.log.ledger import SqliteLedger
from geartrain_cloud.log.pack import unpack
from geartrain_cloud.log.part import SegmentPart
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.log.segment import encode_segment
from geartrain_cloud.ports import Entry, EntryKind, LedgerChange, position_key
from geartrain_cloud.spark.compile import hosted_query
from tests.reference.comparison import check_equal
from tests.reference.revised_flows import Revised, Stage, revised
from tests.reference.revisions import Earlier, Era, interpret_eras
from tests.reference.rows import Answer, Letter
from tests.reference.two_tiers import World
from tests.spark.case_log import Logged, answer_of, log_of

APP = "random.1"
GROUP = "shared"
TASKS = 2
"""Partitions of Spark's, and tasks that read a large micro-batch."""
KILLS_MAX, SCALES_MAX, LOSSES_MAX = 4, 3, 3
LOSS = 0.06
"""How often the power is lost after a micro-batch, where it may be lost `LOSSES_MAX` times."""
LOST_MAX = 5
"""Micro-batches that go with the power, unless all do."""
REVISIONS, DEVICES = 3, 3
"""Of a flow, at the most."""
BATCHES_MAX = 2_000
"""Of one run; one that comes to no end is wrong."""


class RevisedLog:
    """The log of a flow in as many partitions as it has, with a revision begun anywhere in each."""

    def __init__(self, folder: Path, flow: Revised, rng: random.Random) -> None:
        self._folder, self._flow = folder, flow
        self._plan = flow.stages[0].plan  # with all sources
        (folder / "segments").mkdir(parents=True)
        channels = [channel for stage in flow.stages for channel in stage.plan.channels]
        self._codecs = {channel.id: RowCodec(channel.kind) for channel in channels}
        devices = list(flow.world.devices)
        self.partitions = rng.randint(1, min(2, len(devices)))
        self._waiting: list[list[Logged | int]] = []
        self.clocks: list[list[dict[str, int]]] = [[] for _ in range(self.partitions)]
        """Of each partition, where each revision ends, and at last the log."""
        self.records: list[set[tuple[str, str, int]]] = [set() for _ in flow.stages]
        for partition in range(self.partitions):
            mine = {name: flow.world.devices[name] for name in devices[partition :: self.partitions]}
            logged = self.sent(World(mine, flow.world.bounds_us), rng)
            self._waiting.append(self._with_boundaries(list(logged), partition, rng))
        self._whole = [list(waiting) for waiting in self._waiting]
        self.letters = Counter[Letter]()
        """Of rows that no step can be given."""
        self.begins = ["" for _ in flow.stages]
        """Of each revision, from where its new steps read the log."""
        self._numbers = [0] * self.partitions
        self._clocks: list[dict[str, int]] = [{} for _ in range(self.partitions)]
        self._segments = 0
        self._ledger, self._loop = SqliteLedger(folder), asyncio.new_event_loop()
        self._term = self._loop.run_until_complete(self._ledger.open(self.partitions))

    def by_stage(self) -> Iterator[tuple[Stage, set[tuple[str, str, int]]]]:
        """Each revision with the records that the log brings while it is in force."""
        return zip(self._flow.stages, self.records, strict=True)

    @property
    def given_up(self) -> dict[str, tuple[str, ...]]:
        """By channel the layouts of former types whose rows are dead letters."""
        return {}

    def sent(self, world: World, rng: random.Random) -> Iterator[Logged]:
        """What some of the devices send."""
        return log_of(self._plan, world, rng)

    def latest(self, logged: list[Logged]) -> int:
        """Behind how many entries a revision may begin at the most."""
        return len(logged)

    def _with_boundaries(
        self, logged: list[Logged], partition: int, rng: random.Random
    ) -> list[Logged | int]:
        """The entries with those of revisions between; notes what belongs to each."""
        ends = sorted(rng.randint(0, self.latest(logged)) for _ in self.records[1:])
        found: list[Logged | int] = []
        clocks: Mapping[str, int] = {}
        for revision, (start, end) in enumerate(zip([0, *ends], [*ends, len(logged)], strict=True), 1):
            if revision > 1:
                found.append(revision)
            for one in logged[start:end]:
                found.append(one)
                clocks = one.clocks
                if one.rows is not None and not one.channel.startswith("_"):
                    places = zip(one.rows.names, one.rows.numbers, strict=True)
                    self.records[revision - 1].update((one.channel, *place) for place in places)
            self.clocks[partition].append(dict(clocks))
        return found

    def draw_begins(self, rng: random.Random) -> None:
        """Have new steps begin anywhere, where they can."""
        for number, stage in enumerate(self._flow.stages):
            try:
                past_of(stage.plan, attached_by(stage))
            except PlacementError:
                continue
            entries = [one for logged in self._whole for one in logged if not isinstance(one, int)]
            clocks = rng.choice(entries).clocks if entries else {}
            time = min((clocks.get(source, 0) for source in self._sources_above(stage)), default=0)
            self.begins[number] = rng.choice(("earliest", str(time + rng.randint(-1, 1)), str(time)))

    def _sources_above(self, stage: Stage) -> set[str]:
        above = frozenset().union(*(stage.plan.graph.ancestors(step) for step in attached_by(stage)))
        return {source for source in self._flow.sources if source in above}

    def earlier(self, number: int) -> Earlier | None:
        """What the new steps of a revision read of the log of before, found by going through all of it."""
        stage, begin = self._flow.stages[number], self.begins[number]
        if not begin:
            return None
        graph, new = stage.plan.graph, set(attached_by(stage)) & set(stage.plan.cloud)
        above = set[str]().union(*(graph.ancestors(step) for step in new)) - new
        read: tuple[set[tuple[str, str, int]], set[tuple[str, str, int]]] = (set(), set())
        ends: tuple[list[Mapping[str, int]], list[Mapping[str, int]]] = ([], [])
        for logged in self._whole:
            last: list[Mapping[str, int]] = [{}, {}]
            for one in logged[: logged.index(number + 1)]:
                if isinstance(one, int):
                    continue
                clock = min(one.clocks.get(source, START_OF_TIME) for source in self._sources_above(stage))
                is_read = begin == "earliest" or clock >= int(begin)
                last[1] = one.clocks
                last[0] = last[0] if is_read else one.clocks
                if one.rows is not None and not one.channel.startswith("_"):
                    places = zip(one.rows.names, one.rows.numbers, strict=True)
                    read[is_read].update((one.channel, *place) for place in places)
            for each, clocks in zip(ends, last, strict=True):
                each.append(clocks)
        marks = [
            {s: min(one.get(s, START_OF_TIME) for one in each) for s in self._flow.sources} for each in ends
        ]
        return Earlier(new, above, read[1], marks[1], read[0], marks[0])

    @property
    def is_whole(self) -> bool:
        """Whether all of it was written."""
        return not any(self._waiting)

    def grow(self, rng: random.Random) -> None:
        """Write some more of one of its partitions."""
        partition = rng.choice([at for at, waiting in enumerate(self._waiting) if waiting])
        count = rng.choice((1, 5, 40))
        more, self._waiting[partition] = self._waiting[partition][:count], self._waiting[partition][count:]
        entries = [self._entry(partition, one) for one in more]
        self._loop.run_until_complete(self._ledger.commit(self._term, LedgerChange(entries=entries)))

    def _entry(self, partition: int, one: Logged | int) -> Entry:
        self._numbers[partition] += 1
        number = self._numbers[partition]
        if isinstance(one, int):
            clocks = dict(self._clocks[partition])
            return Entry(APP, partition, number, EntryKind.REVISION, seq=one, clocks=clocks)
        clocks = self._clocks[partition] = dict(one.clocks)
        if one.rows is None and one.channel:
            place = APP, partition, number
            return Entry(*place, EntryKind.CROSSING, one.channel, one.device, clocks=clocks)
        if one.rows is None:
            return Entry(APP, partition, number, EntryKind.WATERMARK, clocks=clocks)
        rows: dict[str, Any] = {
            "channel": one.channel,
            "segment": self.segment(one),
        }
        rows |= {"first_row": 0, "count": len(one.rows)}
        return Entry(APP, partition, number, EntryKind.ROWS, **rows, clocks=clocks)

    def segment(self, one: Logged) -> str:
        """Write the rows of an entry; where to."""
        assert one.rows is not None
        return self.written(one, self._codecs[one.channel].schema, one.rows)

    def written(self, one: Logged, schema: Schema, rows: ColumnBatch) -> str:
        """Write rows of a schema as those of an entry; where to."""
        self._segments += 1
        name = f"segments/{one.channel}-{self._segments}.arrow"
        part = SegmentPart(one.device, self._segments, rows)
        (self._folder / name).write_bytes(encode_segment(schema, [part]))
        return name

    def close(self) -> None:
        """Close the ledger."""
        self._loop.run_until_complete(self._ledger.close())
        self._loop.close()


def eras_of(flow: Revised, log: RevisedLog) -> list[Era]:
    """What the reference is given."""
    found = []
    for number, stage in enumerate(flow.stages):
        each = [of_partition[number] for of_partition in log.clocks]
        clocks = {source: min(one.get(source, START_OF_TIME) for one in each) for source in flow.sources}
        earlier = log.earlier(number)
        found.append(Era(stage.plan.graph, stage.kept(), clocks, log.records[number], earlier))
    return found


def attached_by(stage: Stage) -> tuple[str, ...]:
    """The steps that are new in a revision."""
    return tuple(one.step for one in stage.change.steps if one.what == "attached")


def prepared_of(
    plans: Path,
    plan: Plan,
    begin: str = "",
    attached: tuple[str, ...] = (),
    given_up: Mapping[str, tuple[str, ...]] | None = None,
) -> Prepared:
    """What a process of its own makes of a flow, made here."""
    query = hosted_query(plan, given_up or {})
    states = {
        step: stage.number
        for stage in query.stages[1:]
        for step in sorted(stage.steps)
        if plan.graph[step].operator.stateful
    }
    sources = tuple(sorted(step.id for step in plan.graph.sources()))
    channels, stages = tuple(sorted(query.channels)), len(query.stages) - 1
    name, merges = put_plan(plans, query), merging_steps(plan)
    forms, migrates = task_forms(plan)
    return Prepared(
        *(name, {}, stages, channels, sources, ()),
        states=states,
        merges=merges,
        forms=forms,
        migrates=migrates,
        past=put_past(plans, plan, query, begin, attached) if begin else None,
    )


class _Cells:
    """Spark's MapState of one slot and stage."""

    def __init__(self, values: dict[tuple[int], tuple[Any, ...]]) -> None:
        self._values = values

    def getMapState(self, *_: str) -> _Cells:  # noqa: N802
        return self

    def getValue(self, key: tuple[int]) -> tuple[Any, ...] | None:  # noqa: N802
        return self._values.get(key)

    def iterator(self) -> Iterator[tuple[tuple[int], tuple[Any, ...]]]:
        return iter(list(self._values.items()))

    def updateValue(self, key: tuple[int], value: tuple[Any, ...]) -> None:  # noqa: N802
        self._values[key] = value

    def removeKey(self, key: tuple[int]) -> None:  # noqa: N802
        self._values.pop(key, None)

    def clear(self) -> None:
        self._values.clear()


State = dict[tuple[int, int], dict[tuple[int], tuple[Any, ...]]]


class DrawnBudgets(Budgets):
    """Budgets by chance, in the place of those by how long micro-batches take; rng: None for no bound."""

    def __init__(self, rng: random.Random | None) -> None:
        super().__init__()
        self._rng = rng

    def alone(self, name: str) -> int:
        return ROWS_MAX if self._rng is None else self._rng.choice((1, 10, 1_000))

    def beside(self, name: str) -> int:
        return self.alone(name)


class InProcess:
    """The group of one flow; `run` it to the end of its log."""

    def __init__(
        self,
        folder: Path,
        flow: Revised,
        rng: random.Random,
        log: Callable[[Path, Revised, random.Random], RevisedLog] = RevisedLog,
        *,
        past: bool = False,
        losses: int = LOSSES_MAX,
    ) -> None:
        """past: new steps begin anywhere in the log, where they can; losses: of power, at the most."""
        self._flow, self._rng = flow, rng
        self._paces = random.Random()
        self._paces.setstate(rng.getstate())  # budgets draw nothing of the others' chances
        self._has_budgets = self._paces.random() < 0.25
        self.folder = folder
        self.log = log(folder / "log", flow, rng)
        if past:
            self.log.draw_begins(rng)
        self._places = HostPlaces(folder / "host").group(GROUP)
        self._host = folder / "host"
        self._places.versions.mkdir(parents=True)
        self._places.plans.mkdir(parents=True)
        self._prepared = [
            prepared_of(self._places.plans, stage.plan, begin, attached_by(stage), self.log.given_up)
            for stage, begin in zip(flow.stages, self.log.begins, strict=True)
        ]
        self._stages = max(one.stages for one in self._prepared)
        self._reads = LogReader(folder / "log")
        self._versions = Versions(self._places.versions)
        self._versions.publish(Version(FIRST))
        self._state: State = {}
        self.kills, self.losses, self.begun_anew = KILLS_MAX, losses, 0
        self._loses = LOSS * losses / LOSSES_MAX
        self._rows: dict[str, dict[str, list[bytes]]] = {}
        self._held: tuple[int, dict[str, int]] = (-1, {})
        """The flow's count of its newest micro-batch that is in the tables, and where that ended."""
        self._ahead: tuple[int, dict[str, int]] = (-1, {})
        """The same of another store, to which the rows of some sinks go."""
        self._chance = random.Random(repr(rng.getstate()))
        self.ahead = 0
        """How often that store alone had a micro-batch as the power was lost."""
        self._open()
        self._offsets = self._reader.initialOffset()
        self._committed: list[tuple[dict[str, int], State]] = [(self._offsets, {})]
        self._begin()

    def _open(self) -> None:
        """The processes of Spark, anew."""
        where = {"log": self.folder / "log", "host": self._host, "group": GROUP, "readers": TASKS}
        self._reader = HostReader(where)
        self._reader.budgets = DrawnBudgets(self._paces if self._has_budgets else None)
        self._workers = [
            HostStage(number, self._host, GROUP, sink_labels(TASKS)) for number in range(1, self._stages + 1)
        ]

    def _begin(self) -> None:
        slots, rows_max = self._rng.randint(1, 2), self._rng.choice((1, 3, 10, 1_000))
        first = self._prepared[0]
        hosted = Hosted(
            APP,
            1,
            first.plan,
            "asked",
            {},
            first.stages,
            new_labels(0, slots, TASKS),
            self._rng.choice((1, 4)),
            tuple(position_key(partition) for partition in range(self.log.partitions)),
            first.channels,
            first.sources,
            "identity",
            rows_max=rows_max,
        )
        self._versions.publish(Version(FIRST + 1, slots, {hosted.name: hosted}))
        self.hosted = hosted
        self.names = {hosted.name: 1}
        self.scales, self.scaled = SCALES_MAX, 0
        self.in_past = 0

    def fits(self) -> bool:
        """Whether no state would have to move behind another shuffle."""
        pairs = zip(self._prepared, self._prepared[1:], self._flow.stages[1:], strict=False)
        try:
            for old, new, stage in pairs:
                dropped_state(APP, old, new, stage.change.drops)
        except HostError:
            return False
        return True

    def run(self) -> Answer:
        """Go through all of the log; returns what came to the sinks."""
        for _ in range(BATCHES_MAX):
            if not self.log.is_whole and self._rng.random() < 0.6:
                self.log.grow(self._rng)
            went_on = self._micro_batch()
            if went_on and self.losses and self._rng.random() < self._loses:
                self._lose_power()
                continue
            scaled = self._is_up_to_date() and self._scale()
            if went_on and not self._is_up_to_date():
                continue
            if not went_on and not scaled and not self._cross() and self.log.is_whole:
                assert self.hosted.revision == len(self._flow.stages)
                return self._answer()
        raise AssertionError("it comes to no end")

    def _micro_batch(self) -> bool:
        """Run one, where there is something new, and again where it is killed; whether there was."""
        start = self._offsets
        end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        if end == start:
            return False
        found, state = self._attempt(start, end)
        while self.kills and self._rng.random() < 0.15:
            self.kills -= 1
            self._open()
            again, state = self._attempt(start, end)
            assert again == found, "a micro-batch that was run again put out other rows"
        self._offsets, self._state = end, state
        self._committed.append((end, state))
        for name, positions in positions_by_name(end).items():
            count = end[count_name(name)]
            if count > self._held[0]:  # what the tables hold is not written again
                self._held = count, positions
                mine = [(sink, packed) for of, sink, packed in found if of == name]
                has = count <= self._ahead[0]
                assert count != self._ahead[0] or positions == self._ahead[1], (
                    "a store has it with another end"
                )
                self._write([one for one in mine if not (has and _is_elsewhere(one[0]))], name)
        return True

    def _run_ahead(self) -> None:
        """Run a micro-batch that the other store takes, as the power is lost before the tables do."""
        start = self._offsets
        end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        count = end.get(count_name(self.hosted.name), -1)
        if end == start or count != self._held[0] + 1 or count == self._ahead[0]:
            return
        rng, self._rng = self._rng, self._chance
        found, _ = self._attempt(start, end)
        self._rng = rng
        self._ahead = count, positions_by_name(end)[self.hosted.name]
        mine = [(sink, packed) for of, sink, packed in found if of == self.hosted.name]
        self._write([one for one in mine if _is_elsewhere(one[0])], self.hosted.name)
        self.ahead += 1

    def _write(self, found: list[tuple[str, bytes]], name: str) -> None:
        for sink, packed in found:
            if sink != TALLY:
                self._rows.setdefault(name, {}).setdefault(sink, []).append(packed)

    def _is_up_to_date(self) -> bool:
        """Whether Spark has come to where the tables stand, under the newest version."""
        count = self._offsets.get(count_name(self.hosted.name), self.hosted.begin_count)
        return self._offsets[PLAN] == self._newest().number and count >= max(self._held[0], self._ahead[0])

    def _lose_power(self) -> None:
        """Have Spark stand some micro-batches before the tables, or begin anew, as a group has it."""
        self.losses -= 1
        self._run_ahead()
        kept = max(0, len(self._committed) - self._rng.choice((1, 2, LOST_MAX, BATCHES_MAX)) - 1)
        offsets, state = self._committed[kept]
        if kept and leads_on(offsets, self._versions):
            del self._committed[kept + 1 :]
            self._offsets, self._state = offsets, state
            newest = self._newest()
            self.hosted = staying(newest, self._versions.read(offsets[PLAN]))[self.hosted.name]
            if newest.flows[self.hosted.name] != self.hosted:
                flows = {self.hosted.name: self.hosted}
                self._versions.publish(Version(newest.number + 1, newest.slots, flows))
        else:
            self._begin_anew()
        self._open()
        count, ends = self._held
        at = self._offsets.get(count_name(self.hosted.name), self.hosted.begin_count)
        stops = (Stop(count, ends), Stop(*self._ahead, undivided=True))
        steering = Steering(stops={self.hosted.name: tuple(one for one in stops if one.count > at)})
        SteeringFile(self._places.steering).save(steering)
        if self._ahead[0] > count:  # a budget may change with a start
            self.hosted = replace(self.hosted, rows_max=1)
            newest = self._newest()
            self._versions.publish(Version(newest.number + 1, newest.slots, {self.hosted.name: self.hosted}))

    def _newest(self) -> Version:
        newest = self._versions.newest()
        assert newest is not None
        return newest

    def _begin_anew(self) -> None:
        newest = self._newest()
        try:
            self.hosted = begun_anew(self.hosted, self._reads, {})
        except HostError:
            return  # its state went with revisions that do not run any more
        self.begun_anew += 1
        number = newest.number + 1
        self._versions.publish(Version(number, newest.slots, {self.hosted.name: self.hosted}))
        self._versions.forget_before(number)
        self._open()
        self._offsets, self._state = self._reader.initialOffset(), {}
        self._committed = [(self._offsets, {})]

    def _attempt(
        self, start: dict[str, int], end: dict[str, int]
    ) -> tuple[list[tuple[str, str, bytes]], State]:
        """What comes to sinks in a micro-batch, and the state after it."""
        state: State = {place: dict(cells) for place, cells in self._state.items()}
        rows = [
            Row(**one)
            for span in self._reader.partitions(start, end)
            for batch in self._reader.read(span)
            for one in batch.to_pylist()
        ]
        for number, stage in enumerate(self._workers, 1):
            self._rng.shuffle(rows)
            dealt: dict[int, list[Row]] = {}
            for row in rows:
                dealt.setdefault(row.shard, []).append(row)
            rows = []
            for label, mine in dealt.items():
                stage.init(_as_handle(_Cells(state.setdefault((label, number), {}))))
                rows += stage.handleInputRows((label,), iter(mine), None)
        assert not any(row.stage for row in rows)
        return sorted((row.flow, row.stream, bytes(row.packed)) for row in rows), state

    def _scale(self) -> bool:
        """Now and then, have its keys dealt over another number of slots, as a group does; whether that goes
        on.
        """
        version = self._versions.read(self._offsets[PLAN])
        here = version.flows.get(self.hosted.name)
        if here is None or here.past:
            return False
        if here.leaves_for:
            positions = positions_by_name(self._offsets)[here.name]
            labels = new_labels(version.slots, here.leaves_for, TASKS)
            self.hosted = dealt_anew(here, positions, self._offsets[count_name(here.name)], labels)
            self.names[self.hosted.name] = self.hosted.revision
            self.scaled += 1
        elif self.scales and self._rng.random() < 0.1:
            self.scales -= 1
            steps = self._flow.stages[self.hosted.revision - 1].plan.graph.steps
            broadcasts = tuple(step.id for step in steps if step.operator.kind == Broadcast.kind)
            slots = self._rng.choice((1, 2, 3, 7))
            self.hosted = replace(self.hosted, leaves_for=slots, broadcasts=broadcasts)
            labels = ()
        else:
            return False
        flows = {self.hosted.name: self.hosted}
        self._versions.publish(Version(version.number + 1, version.slots + len(labels), flows))
        return True

    def _cross(self) -> bool:
        """Go over to the next revision, as a group does, once all of the log before it was run."""
        if self.hosted.past:
            return self._go_on_in_past()
        places = boundary(self._reads, self.hosted, self.hosted.revision + 1)
        at = positions_by_name(self._offsets).get(self.hosted.name, {})
        if places is None or not stands_at(at, places) or self.hosted.leaves_for:
            return False
        old, new = self._prepared[self.hosted.revision - 1], self._prepared[self.hosted.revision]
        drop = self._flow.stages[self.hosted.revision].change.drops
        check_successor(APP, old, new)
        before = self.hosted
        hosted = replace(
            before,
            generation=before.generation + 1,
            plan=new.plan,
            stages=new.stages,
            channels=new.channels,
            sources=new.sources,
            begin=places,
            begin_count=self._offsets[count_name(before.name)],
            revision=before.revision + 1,
            drops=dropped_state(APP, old, new, drop),
            forms=old.forms,
            comes_from="",
            takes=None,
        )
        begin = {}
        if new.past is not None:
            begin = beginning(self._reads, APP, new.past.begin, new.past.sources, places)
        self._goes_on = hosted
        self._publish(first_in_past(hosted, new.past, begin))
        return True

    def _go_on_in_past(self) -> bool:
        """As `_cross`, where new steps read the log of before."""
        before, said = self.hosted, self._prepared[self.hosted.revision - 1].past
        at = positions_by_name(self._offsets).get(before.name, {})
        if said is None or not at or not stands_at(at, before.upto):
            return False
        self.in_past += 1
        count = self._offsets[count_name(before.name)]
        hosted = replace(self._goes_on, generation=before.generation + 1, begin_count=count)
        self._publish(next_in_past(hosted, said, before))
        return True

    def _publish(self, hosted: Hosted) -> None:
        self.hosted = hosted
        self.names[self.hosted.name] = self.hosted.revision
        slots = self._versions.read(self._offsets[PLAN]).slots
        number = self._offsets[PLAN] + 1
        self._versions.publish(Version(number, slots, {self.hosted.name: self.hosted}))

    def _answer(self) -> Answer:
        found = Answer({}, Counter(), Counter())
        for name, revision in self.names.items():
            stage, rows = self._flow.stages[revision - 1], self._rows.get(name, {})
            unpacked = {sink: [unpack(one) for one in packed] for sink, packed in rows.items()}
            part = answer_of(stage.plan.graph, unpacked)
            for sink, more in part.sinks.items():
                found.sinks.setdefault(sink, []).extend(more)
            found.dead += part.dead
            found.late += part.late
        return found.sort()


def _is_elsewhere(sink: str) -> bool:
    """Whether the rows of a sink go to another store than the flow's own tables."""
    return not sink.startswith("_") and crc32(sink.encode()) % 2 == 1


def _as_handle(cells: _Cells) -> Any:
    return cells


@dataclass
class Seen:
    """What happened in the runs of some flows: rows that came to sinks, micro-batches that were killed, how
    often the power was lost, how often one store alone had a micro-batch then, how often all of Spark's files
    went with it, how often keys were dealt over other slots, what became of steps by revisions, how many
    tasks went on with the state of another type, how many generations have read the log of before, how many
    rows no step could be given, and how many sources have gone.
    """

    flows: int = 0
    rows: int = 0
    killed: int = 0
    lost: int = 0
    ahead: int = 0
    begun_anew: int = 0
    scaled: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    migrated: int = 0
    in_past: int = 0
    letters: int = 0
    sources_gone: int = 0

    def add(self, other: Seen) -> None:
        """That of others besides."""
        self.flows, self.rows = self.flows + other.flows, self.rows + other.rows
        self.lost, self.begun_anew = self.lost + other.lost, self.begun_anew + other.begun_anew
        self.ahead += other.ahead
        self.killed, self.scaled = self.killed + other.killed, self.scaled + other.scaled
        self.steps += other.steps
        self.migrated += other.migrated
        self.in_past += other.in_past
        self.letters += other.letters
        self.sources_gone += other.sources_gone


def check_flow(
    folder: Path,
    number: int,
    schedules: int,
    log: Callable[[Path, Revised, random.Random], RevisedLog] = RevisedLog,
    *,
    past: bool = False,
    losses: int = LOSSES_MAX,
) -> Seen:
    """Assert that flow `number` gives what the reference gives, under several schedules; one in which state
    would have to move behind another shuffle is left out. past: new steps begin anywhere in the log; losses:
    of power in a run, at the most.
    """
    flow, seen = revised(random.Random(number), REVISIONS, DEVICES), Seen()
    for schedule in range(schedules):
        rng = random.Random(f"{number}/{schedule}")
        run = InProcess(folder / str(schedule), flow, rng, log, past=past, losses=losses)
        try:
            if not run.fits():
                return Seen()
            found, eras = run.run(), eras_of(flow, run.log)
            want = interpret_eras(eras, flow.world.inputs(), flow.world.bounds_us)
            want.dead += run.log.letters
            check_equal(found, want)
        except Exception as error:
            raise AssertionError(f"flow {number}, schedule {schedule}: {error}\n{flow}") from error
        finally:
            run.log.close()
        seen.rows += sum(map(len, found.sinks.values()))
        seen.killed += KILLS_MAX - run.kills
        seen.lost += losses - run.losses
        seen.ahead += run.ahead
        seen.begun_anew += run.begun_anew
        seen.scaled += run.scaled
        seen.in_past += run.in_past
        seen.letters += run.log.letters.total()
    changes = [one for stage in flow.stages[1:] for one in stage.change.steps]
    migrated = [one for one in changes if one.state == "kept" and any("state type" in s for s in one.says)]
    seen.migrated = len(migrated)
    seen.flows, seen.steps = 1, Counter(f"{one.what} {one.state}".strip() for one in changes)
    seen.sources_gone = len(flow.sources) - len(flow.stages[-1].sources)
    return seen
