"""The network between agents, broker and ingest: packets gone astray, partitions of all kinds, slow links."""

from __future__ import annotations

import asyncio

from tests.process.link import Direction
from tests.process.oracle import Account
from tests.process.packets import Kind
from tests.process.proxy import Action, FaultProxy, Rule
from tests.process.registry import scenario
from tests.process.world import World

PUBLISH = frozenset({Kind.PUBLISH})
PUBACK = frozenset({Kind.PUBACK})


def _astray(chance: float) -> list[Rule]:
    """Each kind of mishap for publishes in both directions, pubacks doubled or late."""
    return [
        Rule(Action.DROP, chance, PUBLISH),
        Rule(Action.DUPLICATE, chance, PUBLISH),
        Rule(Action.REORDER, chance, PUBLISH),
        Rule(Action.DELAY, chance, PUBLISH, delay_s=0.3),
        Rule(Action.DUPLICATE, chance, PUBACK),
        Rule(Action.DELAY, chance, PUBACK, delay_s=0.3),
    ]


@scenario("packets lost, doubled, late, out of order", small=True)
async def astray(world: World) -> Account:
    """On both sides of the broker and in both directions, the acks as well as the batches."""
    world.near.rules, world.far.rules = _astray(0.05), _astray(0.05)
    await world.begin("d1", "d2")
    await world.drained()
    for proxy in (world.near, world.far):
        assert all(proxy.counts[action] for action in (Action.DROP, Action.DUPLICATE, Action.REORDER)), (
            f"the {proxy.name} proxy did not do its worst: {proxy.counts}"
        )
    world.notes["packets"] = {
        p.name: {str(k): v for k, v in p.counts.items()} for p in (world.near, world.far)
    }
    return world.exact()


@scenario("every answer packet lost now and then")
async def answers_lost(world: World) -> Account:
    """Connects, subscriptions, pings and pubacks go unanswered; connections are cut at a publish."""
    answers = frozenset({Kind.CONNACK, Kind.SUBACK, Kind.PUBACK, Kind.PINGRESP})
    rules = [Rule(Action.DROP, 0.02, answers), Rule(Action.CUT, 0.01, PUBLISH)]
    world.near.rules, world.far.rules = rules, list(rules)
    await world.begin("d1", "d2")
    await world.until_numbers(world.records // 2)
    world.heal()
    await world.drained()
    return world.exact()


async def _silenced(world: World, proxy: str, directions: tuple[Direction, ...]) -> Account:
    await world.begin("d1", "d2", gate=world.records // 3)
    await world.until_numbers(world.records // 6)
    side: FaultProxy = getattr(world, proxy)
    side.silence(*directions)
    world.open_gate(world.records * 2 // 3)
    await world.pause(20, 2)
    world.heal()
    await world.until_numbers(world.records * 2 // 3)
    await world.drained()
    return world.exact()


@scenario("agents partitioned in silence")
async def agents_silent(world: World) -> Account:
    """Nobody hears anything, and no connection is reset."""
    return await _silenced(world, "near", tuple(Direction))


@scenario("ingest partitioned in silence")
async def ingest_silent(world: World) -> Account:
    """The broker goes on acknowledging what ingest never gets."""
    return await _silenced(world, "far", tuple(Direction))


@scenario("one way: agents are not heard")
async def agents_unheard(world: World) -> Account:
    """What agents send is lost; what they are told comes."""
    return await _silenced(world, "near", (Direction.UP,))


@scenario("one way: agents hear nothing", small=True)
async def agents_deaf(world: World) -> Account:
    """Batches arrive and are logged; acks and pubacks do not come."""
    return await _silenced(world, "near", (Direction.DOWN,))


@scenario("one way: ingest is not heard")
async def ingest_unheard(world: World) -> Account:
    """Batches are logged; nobody hears of it."""
    return await _silenced(world, "far", (Direction.UP,))


@scenario("one way: ingest hears nothing")
async def ingest_deaf(world: World) -> Account:
    """Batches and pubacks are lost between broker and ingest."""
    return await _silenced(world, "far", (Direction.DOWN,))


@scenario("partition held back: all of it comes late")
async def stalled(world: World) -> Account:
    """As TCP has it: nothing is lost, but it comes behind what was sent again meanwhile."""
    await world.begin("d1", "d2", gate=world.records // 3)
    await world.until_numbers(world.records // 6)
    world.near.stall(Direction.UP)
    world.far.stall(Direction.UP)
    world.open_gate(world.records)
    await world.pause(15, 2)
    world.heal()
    await world.drained()
    return world.exact()


@scenario("links flap")
async def flapping(world: World) -> Account:
    """Every connection is reset again and again, and refused in between."""
    await world.begin("d1", "d2", gate=world.records // 3)
    await world.until_numbers(1)
    world.open_gate(world.records)
    for _ in range(6 if world.small else 40):
        side = world.random.choice((world.near, world.far))
        side.refuse()
        await asyncio.sleep(world.random.uniform(0, 0.5))
        side.refuse(on=False)
        await asyncio.sleep(world.random.uniform(0, 0.7))
    world.heal()
    await world.drained()
    return world.exact()


@scenario("slow link: 10 kB/s and 300 ms")
async def slow(world: World) -> Account:
    """Slower than the source: the spool takes what the link cannot, and no storm of resends chokes it."""
    await world.begin("d1", gate=1, source={"filling": 64})
    await world.until_numbers(1)
    world.near.throttle(10_000)
    world.near.latency(0.15)
    world.open_gate(world.records)
    await world.until("the link has carried half", lambda: world.logged() >= world.records)
    sent = sum(step.size for step in world.near.trace if step.kind is Kind.PUBLISH)
    world.notes["bytes_a_row"] = round(sent / world.logged(), 1)
    world.heal()
    await world.drained()
    return world.exact()
