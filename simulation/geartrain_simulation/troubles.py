"""The troubles of one run, from its seed: who is killed when and how, and what the network does meanwhile.

Stand outside of the nodes. Guarantees: bounded in number, and the network's over after `trouble_s`, so that a
run that does not come to its end has a fault of its own. Kills aim at the points around effects: kills at
random times alone miss what lies between a write and its fsync.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from geartrain_simulation.broker import SimBroker
from geartrain_simulation.world import Node, World

NET_POINTS = ("net.subscribe", "net.publish", "net.publish done", "net.incoming")
SPOOL_POINTS = ("spool.commit", "spool.commit done", "spool.trim", "spool.trim done")
LOG_POINTS = (
    *("disk.write half", "disk.write done", "disk.fsync", "disk.fsync done", "disk.rename done"),
    *("ledger.commit", "ledger.commit done"),
)
NTH_MAX = 40
"""A kill strikes at one of the first so many points of its name."""


@dataclass(frozen=True, slots=True)
class Troubles:
    """How many of each trouble at the most, and for how long, virtual seconds."""

    trouble_s: float = 6.0
    kills_max: int = 3
    stops_max: int = 2
    cuts_max: int = 3
    broker_crashes_max: int = 2
    away_s_max: float = 2.0


def arrange(world: World, broker: SimBroker, limits: Troubles) -> None:
    """Arrange the troubles of a run for all nodes of its world."""
    random = world.random("troubles")
    for node in world.nodes.values():
        for _ in range(random.randint(0, limits.kills_max)):
            _arrange_kill(world, random, node, limits)
        for _ in range(random.randint(0, limits.stops_max)):
            world.later(random.uniform(0, limits.trouble_s), node.stop)
        for _ in range(random.randint(0, limits.cuts_max)):
            trouble = random.choice((broker.cut, broker.silence))
            away_s = random.uniform(0, limits.away_s_max)
            world.later(random.uniform(0, limits.trouble_s), trouble, node.name, away_s)
    for _ in range(random.randint(0, limits.broker_crashes_max)):
        world.later(random.uniform(0, limits.trouble_s), broker.crash, random.uniform(0, limits.away_s_max))
    world.later(limits.trouble_s, _calm_down, broker)


def _arrange_kill(world: World, random: Random, node: Node, limits: Troubles) -> None:
    power = node.keeps_files and random.random() < 0.7
    if random.random() < 0.25:
        world.later(random.uniform(0, limits.trouble_s), lambda: node.crash(power=power))
        return
    points = (*NET_POINTS, *(LOG_POINTS if node.keeps_files else SPOOL_POINTS))
    node.kill_at_point(random.randint(1, NTH_MAX), random.choice(points), power=power)


def _calm_down(broker: SimBroker) -> None:
    broker.faults = replace(broker.faults, drop=0.0, reorder=0.0, duplicate=0.0)
