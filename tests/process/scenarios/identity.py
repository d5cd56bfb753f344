"""Spools that are doubled, lost or set back: who a device is, and what ingest believes of it."""

from __future__ import annotations

import asyncio
import shutil

from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.ports import EntryKind
from tests.process.oracle import Account
from tests.process.registry import scenario
from tests.process.world import ScenarioError, World

ALARM = 3


def _check_epoch_ended(world: World) -> None:
    """A spool that is gone is never gone in silence: the log says that its epoch ended."""
    reader = LogReader(world.log)
    for key, newest in reader.positions("numbers").items():
        for entry in reader.entries("numbers", key, 0, newest):
            if entry.kind is EntryKind.EPOCH:
                return
    raise ScenarioError("no entry of the log says that an epoch ended")


async def _one_gives_up(world: World, first: str, second: str) -> Account:
    """Two agents of one device take it from one another, until one of them stops with an alarm.

    Both need something to say: the gate goes on opening by a little.
    """
    agents = {name: world.agents[name] for name in (first, second)}
    upto = world.records // 2
    while upto < world.records - 1 and not any(agent.code == ALARM for agent in agents.values()):
        upto = min(upto + 2, world.records - 1)
        world.open_gate(upto)
        await asyncio.sleep(0.3)
    await world.until(
        "one of two agents with one identity gives up",
        lambda: any(agent.code == ALARM for agent in agents.values()),
        ends=True,
    )
    stopped = next(name for name, agent in agents.items() if agent.code == ALARM)
    if (
        "give every agent a state folder" not in agents[stopped].words()
        and "took over" not in agents[stopped].words()
    ):
        raise ScenarioError(f"{stopped} does not say why it stopped\n{world.words()}")
    world.healed()
    await world.drained(second if stopped == first else first, ends=True)
    _check_epoch_ended(world)
    return world.once_at_least()


@scenario("two agents with one identity, own spools")
async def own_spools(world: World) -> Account:
    """A second device was given the name of the first."""
    await world.begin("d1", gate=world.records // 2)
    await world.until_numbers(world.records // 4)
    world.add_agent("d1-again", "d1").start()
    return await _one_gives_up(world, "d1", "d1-again")


@scenario("two agents with one identity, cloned spool")
async def cloned_spool(world: World) -> Account:
    """The image of a device was copied, with unacked batches in its spool."""
    await world.begin("d1", gate=world.records // 4)
    await world.until_numbers(world.records // 4)
    world.near.refuse()
    world.open_gate(world.records // 2)
    await world.until("the spool has grown", lambda: world.spooled("d1") > world.records // 3)
    world.agents["d1"].kill()
    twin = world.add_agent("d1-twin", "d1")
    shutil.copytree(world.state_of("d1"), world.state_of("d1-twin"))
    world.near.heal()
    world.agents["d1"].start()
    twin.start()
    return await _one_gives_up(world, "d1", "d1-twin")


@scenario("spool deleted under a running agent")
async def deleted(world: World) -> Account:
    """The agent goes on in a file that has no name any more; the next one begins a fresh spool."""
    await world.begin("d1", gate=world.records // 3)
    await world.until_numbers(world.records // 6)
    world.near.refuse()
    for path in world.state_of("d1").glob("spool.sqlite*"):
        path.unlink()
    world.open_gate(world.records // 2)
    await world.until("the spool has grown", lambda: world.spooled("d1") > world.records * 2 // 5)
    world.agents["d1"].kill()
    world.near.heal()
    world.agents["d1"].start()
    world.healed()
    await world.drained()
    _check_epoch_ended(world)
    return world.once_at_least()


@scenario("spool restored from an old copy", small=True)
async def restored(world: World) -> Account:
    """The copy was made before most of what ingest has from this epoch."""
    await world.begin("d1", gate=world.records // 4)
    await world.until_numbers(world.records // 4)
    world.agents["d1"].kill()
    backup = world.folder / "backup"
    shutil.copytree(world.state_of("d1"), backup)
    world.agents["d1"].start()
    world.open_gate(world.records // 2)
    await world.until_numbers(world.records // 2)
    world.agents["d1"].kill()
    shutil.rmtree(world.state_of("d1"))
    shutil.copytree(backup, world.state_of("d1"))
    world.agents["d1"].start()
    world.healed()
    await world.drained()
    _check_epoch_ended(world)
    return world.once_at_least()
