"""A spool that is full, under each policy: what is dropped is declared, to the record."""

from __future__ import annotations

from typing import Any

from tests.process.oracle import Account
from tests.process.registry import scenario
from tests.process.world import ScenarioError, World


def _bytes_max(world: World) -> int:
    """A cap that is reached long before all records are in."""
    return 8_000 if world.small else 24_000


async def _filled(world: World, policy: str, **more: Any) -> None:
    """Cut the device off until its spool is full, and have it drain."""
    spool = {"bytes_max": _bytes_max(world), "policy": policy, **more}
    await world.begin("d1", gate=world.records // 6, spool=spool, source={"filling": 40})
    await world.until_numbers(world.records // 30)  # not all: a slow ingest lets the spool fill up before
    world.near.refuse()
    world.open_gate(world.records)
    if policy == "block":
        await world.until("the spool is full", lambda: world.status("d1").get("state") == "blocked")
    else:
        await world.until("all was read", lambda: world.status("d1").get("records_read") == world.records)
    world.notes["spool_bytes"] = world.status("d1").get("spool_bytes")
    world.heal()
    await world.drained()


async def _dropped(world: World, policy: str, **more: Any) -> Account:
    await _filled(world, policy, **more)
    found = world.declared()
    if not found.declared_dropped:
        raise ScenarioError("nothing was dropped, so that this proves nothing")
    return found


@scenario("spool full: block")
async def block(world: World) -> Account:
    """The sources wait, and nothing is dropped."""
    await _filled(world, "block")
    return world.exact()


@scenario("spool full: drop_newest")
async def drop_newest(world: World) -> Account:
    """What has no seq yet is dropped."""
    return await _dropped(world, "drop_newest")


@scenario("spool full: drop_oldest", small=True)
async def drop_oldest(world: World) -> Account:
    """The oldest unacked batches give way to gaps."""
    return await _dropped(world, "drop_oldest")


@scenario("spool full: downsample")
async def downsample(world: World) -> Account:
    """Near the cap every fourth row is kept."""
    return await _dropped(world, "downsample", downsample_keep=4, downsample_above=0.5)


@scenario("spool full: drop_oldest, killed meanwhile")
async def drop_oldest_killed(world: World) -> Account:
    """What was dropped and not yet declared outlives the agent."""
    spool = {"bytes_max": _bytes_max(world), "policy": "drop_oldest"}
    await world.begin("d1", gate=world.records // 6, spool=spool, source={"filling": 40})
    await world.until_numbers(world.records // 30)  # not all: a slow ingest lets the spool fill up before
    world.near.refuse()
    for number in range(2, 6):
        world.open_gate(world.records * number // 6)
        await world.pause(1.0, 0.5)
        world.agents["d1"].kill()
        world.agents["d1"].start()
    world.open_gate(world.records)
    await world.until("all was read", lambda: world.status("d1").get("records_read") == world.records)
    world.heal()
    await world.drained()
    return world.declared()
