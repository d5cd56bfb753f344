"""Agents and ingest die at any moment, hang, are slow, or are started twice on one log."""

from __future__ import annotations

import asyncio

from tests.process.oracle import Account
from tests.process.programs import Program
from tests.process.registry import scenario
from tests.process.world import ScenarioError, World


async def _kill_again_and_again(world: World, victim: Program, times: int) -> None:
    """Kill at random moments, each of them while records are on their way, and start anew each time."""
    for number in range(1, times + 1):
        upto = world.records * number // (times + 1)
        world.open_gate(upto)
        await asyncio.sleep(world.random.uniform(0, 1.5))
        if world.random.random() < 0.5:  # else wherever it is, its start included
            await world.until_numbers(world.records * (number - 1) // (times + 1) + 1)
        victim.kill()
        victim.start()
        world.healed()
    await world.until_numbers(world.records * times // (times + 1))


@scenario("agent killed at 20 random moments", small=True)
async def agent_killed(world: World) -> Account:
    """Position, state, counters and batches move in one transaction."""
    await world.begin("d1", gate=0)
    await _kill_again_and_again(world, world.agents["d1"], 2 if world.small else 20)
    await world.drained()
    return world.exact()


@scenario("ingest killed at 20 random moments", small=True)
async def ingest_killed(world: World) -> Account:
    """What was acked is in the log, and what was not comes again."""
    await world.begin("d1", "d2", gate=0)
    await _kill_again_and_again(world, world.ingest, 2 if world.small else 20)
    await world.drained()
    return world.exact()


@scenario("two ingests on one log", small=True)
async def two_ingests(world: World) -> Account:
    """The later term wins; the other acks nothing more and says why it ends."""
    await world.begin("d1", "d2", gate=world.records // 2)
    await world.until_numbers(world.records // 4)
    second = Program(
        "ingest-2", "geartrain_cloud.ingest.main", world.ingest.config, world.folder / "ingest-2.log"
    )
    first, world.ingest = world.ingest, second
    try:
        second.start()
        world.open_gate(world.records)
        await world.until("the first ingest gives way", lambda: first.code is not None)
        if first.code != 3:
            raise ScenarioError(
                f"the first ingest ended with {first.code}, not with 3\n{first.words()[-2_000:]}"
            )
        await world.drained()
    finally:
        first.kill()
    return world.exact()


@scenario("ingest slow: it runs a tenth of the time")
async def ingest_slow(world: World) -> Account:
    """Queues fill, acks come late, resends double what is on its way: nothing of that may show."""
    await world.begin("d1", "d2", gate=world.records // 2)
    await world.until_numbers(1)
    world.open_gate(world.records)
    for _ in range(20 if not world.small else 4):
        world.ingest.freeze()
        await asyncio.sleep(1.8)
        world.ingest.freeze(on=False)
        await asyncio.sleep(0.2)
    world.healed()
    await world.drained()
    return world.exact()


@scenario("both killed at once, and the broker forgets")
async def all_killed(world: World) -> Account:
    """As when one rack loses its power, but for its disks."""
    times = 2 if world.small else 5
    await world.begin("d1", "d2", gate=0)
    for number in range(1, times + 1):
        upto = world.records * number // (times + 1)
        world.open_gate(upto)
        await world.until_numbers(world.records * (number - 1) // (times + 1) + 1)
        for program in (*world.agents.values(), world.ingest):
            program.kill()
        world.broker.kill()
        world.broker.forget()
        await world.broker.start()
        for program in (world.ingest, *world.agents.values()):
            program.start()
        world.healed()
        await world.until_numbers(upto)
    await world.drained()
    return world.exact()
