"""A device takes a step from the cloud with what that keeps: real agent, spool, outbox and sender, and the
real stages of the cloud's query.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs
from msgspec.structs import replace

from geartrain import Flow, Table
from geartrain.adapters.system import SystemClock
from geartrain.graph.graph import CLAIMS, DEAD_LETTERS, GIVEN, LATE, Graph
from geartrain.planning import Plan, make_plan
from geartrain.planning.mixed import make_mixed_plan
from geartrain.planning.plan import claim_channel, given_channel, state_channel
from geartrain.records.batch import Batch
from geartrain.records.event_time import END_OF_TIME
from geartrain.records.keys import encode_key
from geartrain.state.claims import HAS
from geartrain.state.moving import StateCell
from geartrain.testing import SeededRandomness, TestingSource
from geartrain.wire.envelope import Envelope, Header
from geartrain_cloud.downlink.outbox import SqliteOutbox
from geartrain_cloud.downlink.sender import OutboxSender, down_connection
from geartrain_cloud.downlink.writer import NamedChannel, OutboxWriter
from geartrain_cloud.log.arrow import to_table
from geartrain_cloud.spark import claims
from geartrain_cloud.spark.buckets import BucketState, forget_steps
from geartrain_cloud.spark.compile import HOSTED, hosted_query
from geartrain_edge.agent import claiming
from geartrain_edge.agent.agent import Agent
from geartrain_edge.agent.crossing import CLAIM, LastClaim
from geartrain_edge.spool.spool import SqliteSpool
from geartrain_simulation.fleet.stage_run import StageRun
from tests.down.broker import MemoryBroker
from tests.down.world import SETTINGS as SENDING
from tests.edge.agents import SETTINGS, KilledError, MortalSpool, agent_of, run, until
from tests.edge.flows import Reading, Running, expected, items, plan_of
from tests.edge.network import NaiveIngest, Troubles
from tests.spark.case_log import columns_of
from tests.spark.stage_run import records_of

ROWS = 160
ROUGH = Troubles(lose=0.1, double=0.1, delay=0.1, cut=0.01)
MARKED = ("marks", "readings")
"""The steps of a third cut, by which no state comes to the device."""
HELD = replace(SETTINGS, base_cut=("cloud",), claim_ms=30_000)


class LoggingIngest(NaiveIngest):
    """It keeps the rows of all channels in the order in which they came, each with the clocks before."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.log: list[tuple[str, list[Any], dict[str, int]]] = []

    def _append_rows(self, envelope: Envelope, header: Header) -> None:
        before = len(self.rows[header.channel])
        super()._append_rows(envelope, header)
        self.log.append((header.channel, self.rows[header.channel][before:], dict(self.sources)))


@dataclass
class Cloud:
    """What stands behind ingest: the query's stages, the outbox and its sender."""

    folder: Path
    edge: Plan
    cloud: Plan
    broker: MemoryBroker
    ingest: LoggingIngest
    read: int = 0
    micro_batches: int = 0
    sums: list[Any] = field(default_factory=list)
    letters: list[Any] = field(default_factory=list)
    """Dead letters of the stages: step, code, reason and raw value."""
    deaf: bool = False
    """Whether claims are not read."""
    more: tuple[str, ...] = ()
    """The steps of one more cut that a device may have, none for no such."""

    def __post_init__(self) -> None:
        whole = self.edge.whole
        assert whole is not None
        self.plan = make_mixed_plan(whole, "cloud", ["edge", *([self.more] if self.more else [])])
        self.stages = StageRun(hosted_query(self.plan), random.Random(1))
        schema = given_channel(whole).schema
        channels = {GIVEN: NamedChannel(schema, HOSTED, is_timed=False)}
        path = self.folder / "outbox.sqlite"
        self.writer = OutboxWriter(
            path, "fleet", channels, lambda: ["d1"], lambda query, positions: 0, SeededRandomness(7)
        )
        self.writer.attach(HOSTED, "checkpoint", has_run=True)

    def micro_batch(self, clocks: dict[str, int] | None = None) -> None:
        """Read the log up to its end, or to the next claim."""
        rows = []
        now: dict[str, int] = clocks or {}
        while self.read < len(self.ingest.log):
            channel, several, before = self.ingest.log[self.read]
            if channel == CLAIMS and self.deaf:
                break
            self.read += 1
            now = clocks or before
            if several and channel not in (DEAD_LETTERS, LATE):
                rows.append((channel, self.read, self._table(channel, several)))
            if channel == CLAIMS:
                break
        if not rows and clocks is None:
            return
        found = self.stages.micro_batch(rows, now)
        for batch in found.get("sums", ()):
            self.sums += records_of([batch])
        self.letters += records_of(found.get(DEAD_LETTERS, ()))
        self.micro_batches += 1
        given = {GIVEN: found.get(GIVEN, [])}
        self.writer.write(HOSTED, 40 + self.micro_batches, {"0": self.read}, given)

    def _table(self, channel: str, rows: Sequence[Any]) -> Any:
        values, times, names, numbers, paths = (list(column) for column in zip(*rows, strict=True))
        codec, count = self.ingest.codecs[channel], len(values)
        columns = columns_of(codec, Batch(values, times, names, numbers, paths if any(paths) else None))
        flags = [False] * count
        return to_table(codec.schema, columns, ["d1"] * count, [1] * count, flags, flags)

    async def work(self) -> None:
        """Run micro-batches forever."""
        while True:
            self.micro_batch()
            await asyncio.sleep(0.005)

    def sender(self) -> tuple[SqliteOutbox, OutboxSender]:
        """Of its outbox."""
        store, clock, chance = (
            SqliteOutbox(self.folder / "outbox.sqlite", "fleet"),
            SystemClock(),
            SeededRandomness(3),
        )
        shared = down_connection(self.broker, clock, chance, SENDING)
        return store, OutboxSender("fleet", store, shared, clock, chance, SENDING)


def marked_graph() -> Graph:
    """The flow of `plan_of` with a step more, which keeps nothing."""
    flow = Flow("fleet")
    source: TestingSource[Reading] = TestingSource(items=items(ROWS))
    readings = flow.source("readings", source, out=Reading, partitioned_by="sensor")
    readings.sink("levels", Table("levels"))
    readings.key_by("sensor").process("totals", Running()).sink("sums", Table("sums", key=("sensor",)))
    readings.map(marks).sink("marked", Table("marked"))
    return flow.graph()


def marks(reading: Reading) -> Reading:
    return Reading(f"{reading.sensor} marked", reading.level)


def cloud_of(
    folder: Path,
    troubles: Troubles | None = None,
    more: tuple[str, ...] = (),
    ingest: type[LoggingIngest] = LoggingIngest,
) -> Cloud:
    whole = marked_graph() if more else plan_of(items(ROWS), "edge").whole
    assert whole is not None
    edge, cloud = make_plan(whole, "edge", base="cloud"), make_plan(whole, "cloud")
    taking = ingest(cloud)
    for plan in (edge, cloud, *([make_plan(whole, more, base="cloud")] if more else [])):
        taking.add(plan)
        beside = (state_channel(plan.graph), claim_channel(plan.graph))
        for several in (beside[:1], beside[1:], beside):
            taking.add(structs.replace(plan, channels=(*plan.channels, *several)))
    return Cloud(folder, edge, cloud, MemoryBroker({"d1": taking}, troubles), taking, more=more)


async def beside(world: Cloud, agent: Agent, *, until_read: int = 0, drains: bool = False) -> bool:
    """Run the agent beside the cloud, to its end or until it has read so many records; drains: and these are
    all acked.
    """
    store, sender = world.sender()
    await store.open()
    working = asyncio.create_task(world.work())
    sending = asyncio.create_task(sender.run_alone())
    try:
        task = asyncio.create_task(agent.run())
        if until_read:
            await until(lambda: task.done() or agent.status().records_read >= until_read)
            agent.drain() if drains else agent.stop()
        return await task
    finally:
        working.cancel()
        sender.stop()
        await sending
        await store.close()


def check(world: Cloud) -> None:
    """The sums of both tiers together are those of the step that never moved."""
    while world.read < len(world.ingest.log):
        world.micro_batch()
    world.micro_batch({"readings": END_OF_TIME})
    assert sorted(world.sums) == due()


@lru_cache
def due() -> list[tuple[str, int, float]]:
    """The sums of the step that never moved."""
    totals = [row[0] for row in expected(plan_of(items(ROWS), "edge"))["totals"]]
    return sorted((one.sensor, one.count, one.level) for one in totals)


@pytest.mark.parametrize("seed", range(3))
def test_a_step_comes_to_the_device_with_its_state(tmp_path: Path, seed: int) -> None:
    world = cloud_of(tmp_path, replace_seed(ROUGH, seed) if seed else None)
    path = tmp_path / "spool.sqlite"
    run(beside(world, agent_of(world.cloud, path, world.broker, HELD), until_read=ROWS // 3))
    assert world.sums
    agent = agent_of(world.edge, path, world.broker, HELD, seed=2)
    assert run(beside(world, agent))
    assert [number for number, _ in world.ingest.crossings] == [1]
    assert agent.status().counters["cells_taken"] == 3
    assert not agent.status().awaits_state
    check(world)


def replace_seed(troubles: Troubles, seed: int) -> Troubles:
    return Troubles(troubles.lose, troubles.double, troubles.delay, troubles.cut, seed)


def test_a_kill_at_any_write_around_it_leaves_each_cell_in_one_place(tmp_path: Path) -> None:
    came = 0
    for after in (False, True):
        for writes in range(1, 9):
            folder = tmp_path / f"{writes}-{after}"
            folder.mkdir()
            world, path = cloud_of(folder), folder / "spool.sqlite"
            run(beside(world, agent_of(world.cloud, path, world.broker, HELD), until_read=ROWS // 3))
            spool = MortalSpool(path, writes, after=after)
            with pytest.raises(KilledError):
                run(beside(world, agent_of(world.edge, spool, world.broker, HELD, seed=2)))
            agent = agent_of(world.edge, path, world.broker, HELD, seed=3)
            assert run(beside(world, agent))
            check(world)
            came += len(world.ingest.crossings)
    assert came >= 12


def test_a_device_that_loses_its_disk_before_it_crosses_claims_again(tmp_path: Path) -> None:
    lost = 0
    for writes in range(1, 8):
        folder = tmp_path / str(writes)
        folder.mkdir()
        world, path = cloud_of(folder), folder / "spool.sqlite"
        former = agent_of(world.cloud, path, world.broker, HELD)
        run(beside(world, former, until_read=ROWS // 3, drains=True))
        spool = MortalSpool(path, writes)
        with pytest.raises(KilledError):
            run(beside(world, agent_of(world.edge, spool, world.broker, HELD, seed=2)))
        if world.ingest.crossings:
            continue  # the state is the device's by then
        for file in folder.glob("spool.sqlite*"):
            file.unlink()
        agent = agent_of(world.edge, path, world.broker, HELD, seed=3)
        assert run(beside(world, agent))
        assert agent.status().counters["cells_taken"] == 3
        check(world)
        lost += 1
    assert lost >= 2


def test_a_device_goes_on_without_what_nobody_gives_it(tmp_path: Path) -> None:
    world, path = cloud_of(tmp_path), tmp_path / "spool.sqlite"
    run(beside(world, agent_of(world.cloud, path, world.broker, HELD), until_read=ROWS // 3))
    world.deaf = True
    hurried = replace(HELD, claim_ms=50)
    agent = agent_of(world.edge, path, world.broker, hurried, seed=2)
    assert run(beside(world, agent))
    assert not world.ingest.crossings
    assert agent.status().counters["claims_given_up"] == 1
    status = agent.status()
    assert (status.awaits_state, status.claims_no_more) == (True, False)
    assert status.unmoved == "it did not come within 0.05 s"
    world.deaf = False
    check(world)


def test_a_device_does_not_ask_again_for_more_than_moves_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, path = cloud_of(tmp_path), tmp_path / "spool.sqlite"
    run(beside(world, agent_of(world.cloud, path, world.broker, HELD), until_read=ROWS // 3))
    monkeypatch.setattr(claiming, "AGAIN_S", 0.0)
    agent = agent_of(world.edge, path, world.broker, replace(HELD, claim_ms=5_000, claim_cells_max=2), seed=2)
    assert run(beside(world, agent))
    assert not world.ingest.crossings
    status = agent.status()
    names = ("claims", "claims_given_up", "claims_too_large")
    assert [status.counters[name] for name in names] == [1, 1, 1]
    assert (status.awaits_state, status.claims_no_more) == (True, True)
    assert status.unmoved.startswith("more than 2 keys or 1,073,741,824 bytes would come")
    assert "take the move back with gear move or gear rollback" in status.unmoved
    check(world)


def test_a_device_does_not_take_what_a_later_revision_keeps_in_another_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, path = cloud_of(tmp_path), tmp_path / "spool.sqlite"
    run(beside(world, agent_of(world.cloud, path, world.broker, HELD), until_read=ROWS // 3))
    monkeypatch.setattr(claims, "forms_of", lambda graph, steps: dict.fromkeys(steps, "another"))
    agent = agent_of(world.edge, path, world.broker, HELD, seed=2)
    assert run(beside(world, agent))
    assert not world.ingest.crossings
    counters = agent.status().counters
    assert (counters["claims_given_up"], counters.get("cells_taken", 0)) == (1, 0)
    assert agent.status().unmoved == "the data centre keeps totals as a later revision does"
    check(world)


def begins_empty(world: Cloud, number: int) -> Counter[str]:
    """Have the step begin empty with a revision, once the cloud has run all that the log has; how many sums
    of each sensor it has put out by then.
    """
    while world.read < len(world.ingest.log):
        world.micro_batch()
    for state in world.stages.states.values():
        forget_steps(state, ("totals",), number)
    return Counter(sensor for sensor, _, _ in world.sums)


def check_anew(world: Cloud, before: Counter[str]) -> None:
    """The sums of both tiers are those of a step that begins anew behind `before` of each sensor."""
    while world.read < len(world.ingest.log):
        world.micro_batch()
    world.micro_batch({"readings": END_OF_TIME})
    there = {(sensor, count): level for sensor, count, level in due()}
    wanted = []
    for (sensor, count), level in there.items():
        gone = before[sensor] if count > before[sensor] else 0
        wanted.append((sensor, count - gone, round(level - there.get((sensor, gone), 0.0), 6)))
    assert sorted((sensor, count, round(level, 6)) for sensor, count, level in world.sums) == sorted(wanted)


def test_what_came_behind_the_revision_that_had_it_begin_empty_stays(tmp_path: Path) -> None:
    """The spool is of the first revision still: nothing on the device has changed since."""
    world, path = cloud_of(tmp_path), tmp_path / "spool.sqlite"
    first, third = replace(HELD, revision=1), replace(HELD, revision=3, drops={"totals": 3})
    former = agent_of(world.cloud, path, world.broker, first)
    run(beside(world, former, until_read=ROWS // 3, drains=True))
    before = begins_empty(world, 3)
    run(beside(world, agent_of(world.cloud, path, world.broker, third), until_read=ROWS // 3))
    agent = agent_of(world.edge, path, world.broker, third, seed=2)
    assert run(beside(world, agent))
    assert agent.status().counters["cells_taken"] == 3
    assert before.keys() == {"s0", "s1", "s2"}
    check_anew(world, before)


def test_what_came_before_the_step_began_empty_goes(tmp_path: Path) -> None:
    """The cells are in the spool as the device is told of the revision, and it has not crossed."""
    met = 0
    for writes in range(2, 60):
        folder = tmp_path / str(writes)
        folder.mkdir()
        world, path = cloud_of(folder), folder / "spool.sqlite"
        first, third = replace(HELD, revision=1), replace(HELD, revision=3, drops={"totals": 3})
        run(beside(world, agent_of(world.cloud, path, world.broker, first), until_read=ROWS // 3))
        spool = MortalSpool(path, writes, after=True)
        with pytest.raises(KilledError):
            run(beside(world, agent_of(world.edge, spool, world.broker, first, seed=2)))
        if run(claim_of(path)).says != HAS:
            continue
        before = begins_empty(world, 3)
        assert run(beside(world, agent_of(world.edge, path, world.broker, third, seed=3)))
        check_anew(world, before)
        met += 1
        break
    assert met


def test_a_device_does_not_take_what_has_begun_empty_with_a_later_revision(tmp_path: Path) -> None:
    """Its claim comes behind the boundary: what the step keeps there is not for the step that it runs."""
    world, path = cloud_of(tmp_path), tmp_path / "spool.sqlite"
    first = replace(HELD, revision=1)
    former = agent_of(world.cloud, path, world.broker, first)
    run(beside(world, former, until_read=ROWS // 3, drains=True))
    before = begins_empty(world, 2)
    run(beside(world, agent_of(world.cloud, path, world.broker, first), until_read=ROWS // 3))
    agent = agent_of(world.edge, path, world.broker, first, seed=2)
    assert run(beside(world, agent))
    assert not world.ingest.crossings
    assert agent.status().counters["claims_given_up"] == 1
    assert agent.status().unmoved == "the data centre keeps totals as a later revision does"
    check_anew(world, before)


def test_state_on_its_way_up_as_its_step_begins_empty_is_set_aside(tmp_path: Path) -> None:
    """The device has crossed without the step, and the data centre is past the revision as the cells come."""
    world, path = cloud_of(tmp_path), tmp_path / "spool.sqlite"
    first = replace(HELD, revision=1)
    for plan, read in ((world.cloud, ROWS // 3), (world.edge, 2 * ROWS // 3)):
        agent = agent_of(plan, path, world.broker, first)
        run(beside(world, agent, until_read=read, drains=True))
    leaving = MortalSpool(path, 1, after=True)
    with pytest.raises(KilledError):
        run(beside(world, agent_of(world.cloud, leaving, world.broker, first)))
    assert len(world.ingest.crossings) == 1
    before = begins_empty(world, 2)
    assert run(beside(world, agent_of(world.cloud, path, world.broker, first)))
    assert len(world.ingest.crossings) == 2
    check_anew(world, before)
    kept = {(sensor, count): level for sensor, count, level in due()}
    found = {}
    why = "step 'totals' has begun empty with revision 2, and revision 1 has kept this"
    aside = [raw for step, code, _, raw in world.letters if (step, code) == ("totals", "state_not_taken")]
    assert all(reason.endswith(why) for _, code, reason, _ in world.letters if code == "state_not_taken")
    for raw in aside:
        cell = msgspec.json.decode(raw, type=StateCell)
        found[cell.key] = msgspec.msgpack.decode(cell.cell[8:])
    assert len(aside) == len(found) == 3
    assert found == {encode_key(s): {"count": n, "level": kept[s, n]} for s, n in before.items()}


@pytest.mark.parametrize(
    "check_of",
    [
        test_state_on_its_way_up_as_its_step_begins_empty_is_set_aside,
        test_what_came_behind_the_revision_that_had_it_begin_empty_stays,
        test_a_device_does_not_take_what_has_begun_empty_with_a_later_revision,
    ],
)
def test_it_is_found_where_shards_do_not_say_when_a_step_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_of: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(BucketState, "began", lambda *_: 0)
    with pytest.raises(AssertionError):
        check_of(tmp_path)


def test_it_is_found_where_all_stays_that_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BucketState, "began", lambda *_: 9)
    monkeypatch.setattr(claiming.Claiming, "of", of_any_revision(claiming.Claiming.of))
    with pytest.raises(AssertionError):
        test_what_came_before_the_step_began_empty_goes(tmp_path)


def of_any_revision(right: Callable[..., Any]) -> Callable[..., Any]:
    """`Claiming.of`, for a device that takes what began empty with any revision."""

    def made(image: Any, plan: Any, ours: Any, settings: Any, clock: Any) -> Any:
        return right(image, plan, ours, replace(settings, revision=9), clock)

    return made


async def claim_of(path: Path) -> LastClaim:
    """What a spool says of its last claim."""
    spool = SqliteSpool(path)
    image = await spool.open("d1", "fleet", b"e" * 16)
    await spool.close()
    return LastClaim.of(image.state.get(CLAIM))


def test_cells_that_have_come_for_another_cut_are_given_back(tmp_path: Path) -> None:
    third, met = make_plan(marked_graph(), MARKED, base="cloud"), 0
    assert set(third.edge) == set(MARKED)
    for writes in range(2, 60):  # the slower the machine, the more commits come before that with the cells
        folder = tmp_path / str(writes)
        folder.mkdir()
        world, path = cloud_of(folder, more=MARKED), folder / "spool.sqlite"
        run(beside(world, agent_of(world.cloud, path, world.broker, HELD), until_read=ROWS // 3))
        spool = MortalSpool(path, writes, after=True)
        with pytest.raises(KilledError):
            run(beside(world, agent_of(world.edge, spool, world.broker, HELD, seed=2)))
        if run(claim_of(path)).says != HAS:
            continue
        assert run(beside(world, agent_of(third, path, world.broker, HELD, seed=3)))
        assert run(claim_of(path)).says != HAS
        check(world)
        met += 1
        break
    assert met
