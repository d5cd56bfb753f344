"""A device was away while its app got another revision and it another cut: it goes over twice then."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import msgspec
import pytest
from msgspec import structs
from msgspec.structs import replace

from geartrain.planning import Plan, make_plan
from geartrain.planning.mixed import make_mixed_plan
from geartrain.planning.plan import claim_channel, state_channel
from geartrain.revision import revision_of
from geartrain_cloud.spark.compile import hosted_query
from geartrain_edge.agent.agent import Agent
from geartrain_edge.agent.crossing import NUMBERS, REVISION, Numbers, first_of_two
from geartrain_edge.errors import ChangedFlowError
from geartrain_simulation.fleet.stage_run import StageRun
from tests.down.broker import MemoryBroker
from tests.down.test_claiming import HELD, MARKED, ROWS, beside, check, cloud_of, marked_graph
from tests.edge.agents import SETTINGS, KilledError, MortalSpool, agent_of, run, until
from tests.edge.flows import items, plan_of
from tests.edge.network import NaiveIngest
from tests.edge.test_crossing import check_left

TOTALS = ("readings", "readings_by_sensor", "totals")
"""The steps of a cut with the step that keeps state, and without the other."""
FIRST, THEN = replace(HELD, revision=1), replace(HELD, revision=2)


def without_marks(cut: str, base: str) -> Plan:
    whole = plan_of(items(ROWS), "edge").whole
    assert whole is not None
    return make_plan(whole, cut, base=base)


@pytest.mark.parametrize("goes", [False, True])
def test_state_comes_to_it_after_its_steps_have_changed(tmp_path: Path, goes: bool) -> None:
    """A step is new, or is gone, which the device would not have run, or has run under its former cut."""
    killed = 0
    for writes in range(12 if goes else 9):
        folder = tmp_path / str(writes)
        folder.mkdir()
        world, path = cloud_of(folder, more=MARKED), folder / "spool.sqlite"
        first, then = without_marks("cloud", "cloud"), world.edge
        if goes:
            first, then = make_plan(marked_graph(), MARKED, base="cloud"), without_marks("edge", "cloud")
            know(world.ingest, without_marks("cloud", "cloud"), then)
            world.plan = make_mixed_plan(marked_graph(), "cloud", ["edge", MARKED, TOTALS])
            world.stages = StageRun(hosted_query(world.plan), Random(1))
        run(beside(world, agent_of(first, path, world.broker, FIRST), until_read=ROWS // 3))
        if writes:
            spool = MortalSpool(path, writes, after=writes % 2 == 0)
            with pytest.raises(KilledError):
                run(beside(world, agent_of(then, spool, world.broker, THEN, seed=2)))
            killed += 1
        agent = agent_of(then, path, world.broker, THEN, seed=3)
        assert run(beside(world, agent))
        assert [number for number, _ in world.ingest.crossings] == ([1, 2] if goes else [1])
        assert agent.status().counters["cells_taken"] == 3
        check(world)
    assert killed == (11 if goes else 8)


def know(ingest: NaiveIngest, *plans: Plan) -> None:
    """Have it take the channels of these as well, beside those by which state moves."""
    for plan in plans:
        beside = (state_channel(plan.graph), claim_channel(plan.graph))
        for several in ((), beside[:1], beside[1:], beside):
            ingest.add(structs.replace(plan, channels=(*plan.channels, *several)))


def left_behind(first: Plan, then: Plan) -> NaiveIngest:
    """An ingest that takes both, and what leaves a device."""
    ingest = NaiveIngest(first)
    assert then.whole is not None
    know(ingest, first, then, make_plan(then.whole, "edge", base="edge"))
    return ingest


async def part_of(agent: Agent) -> None:
    """Run it until it has read some records."""
    task = asyncio.create_task(agent.run())
    await until(lambda: task.done() or agent.status().records_read >= ROWS // 3)
    agent.stop()
    await task


def test_state_leaves_it_after_its_steps_have_changed(tmp_path: Path) -> None:
    first, then = without_marks("edge", "edge"), make_plan(marked_graph(), MARKED, base="edge")
    settings = replace(SETTINGS, base_cut=("edge",))
    for writes in range(8):
        ingest, path = left_behind(first, then), tmp_path / f"{writes}.sqlite"
        broker, second = MemoryBroker({"d1": ingest}), replace(settings, revision=2)
        run(part_of(agent_of(first, path, broker, replace(settings, revision=1))))
        if writes:
            with pytest.raises(KilledError):
                run(agent_of(then, MortalSpool(path, writes), broker, second).run())
        assert run(agent_of(then, path, broker, second, seed=2).run())
        check_left(first, then, ingest, crossings=2, revision=2)


def between(first: Plan, then: Plan, base: str) -> tuple[str, ...] | None:
    """What a spool of `first` goes over to before `then`."""
    held, ours = revision_of("", first), revision_of("", then)
    state = {REVISION: held.to_json().encode(), NUMBERS: msgspec.json.encode(Numbers(revision=1))}
    settings = replace(SETTINGS, base_cut=(base,), revision=2)
    found = first_of_two(state, then, ours, settings, is_fresh=False)
    return None if found is None else found[0].edge


def test_the_former_cut_says_where_the_steps_of_a_later_revision_run() -> None:
    whole = marked_graph()
    everything = make_plan(whole, "edge").edge
    without, cloud = without_marks("edge", "cloud"), without_marks("cloud", "cloud")
    assert everything == (*TOTALS, "marks")
    assert between(make_plan(whole, "edge", base="cloud"), cloud, "cloud") == TOTALS  # a step goes
    assert between(cloud, make_plan(whole, "edge", base="cloud"), "cloud") == ("readings",)  # the app's own
    assert between(without, make_plan(whole, MARKED, base="edge"), "edge") == everything
    assert (
        between(without, make_plan(whole, MARKED, base="cloud"), "cloud") is None
    )  # nobody knows of `marks`
    assert between(without, make_plan(whole, "cloud", base="cloud"), "cloud") is None  # one crossing does
    assert between(without, without, "cloud") is None


def test_it_stops_by_name_where_the_former_cut_does_not_say_it(tmp_path: Path) -> None:
    first, then = without_marks("edge", "edge"), make_plan(marked_graph(), MARKED, base=MARKED)
    settings = replace(SETTINGS, base_cut=("edge",))
    broker, path = MemoryBroker({"d1": left_behind(first, then)}), tmp_path / "spool.sqlite"
    run(part_of(agent_of(first, path, broker, replace(settings, revision=1))))
    with pytest.raises(ChangedFlowError, match="step totals keeps state for 3 keys in the spool"):
        run(agent_of(then, path, broker, replace(settings, revision=2, base_cut=MARKED)).run())
