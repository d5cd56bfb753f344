"""The soak: one world, for as long as is asked for, in which one fault after the other is drawn at random.

`scripts/soak --minutes M --seed S`. Every round lets the sources go on by a number of records, brings about a
fault while they do, and heals it; at the end all is drained and the oracle counts. Guarantees: the faults are
a function of the seed; a round whose records do not come within minutes of its end is a failure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.process.link import Direction
from tests.process.oracle import Account
from tests.process.packets import Kind
from tests.process.proxy import Action, Rule
from tests.process.registry import HELD, Outcome
from tests.process.suite import ROOT, end_on_sigterm, machine, table
from tests.process.world import World, opened

DEVICES = ("d1", "d2", "d3")
ROUND_RECORDS = 120
PUBLISH = frozenset({Kind.PUBLISH})
Fault = Callable[[World], Awaitable[None]]


async def _pause(world: World) -> None:
    await asyncio.sleep(world.random.uniform(0.2, 4))


async def broker_killed(world: World) -> None:
    """The broker dies, with all that it kept half of the times."""
    world.broker.kill()
    if world.random.random() < 0.5:
        world.broker.forget()
    await _pause(world)
    await world.broker.start()


async def agent_killed(world: World) -> None:
    """kill -9."""
    victim = world.agents[world.random.choice(DEVICES)]
    victim.kill()
    await _pause(world)
    victim.start()


async def ingest_killed(world: World) -> None:
    """kill -9."""
    world.ingest.kill()
    await _pause(world)
    world.ingest.start()


async def all_killed(world: World) -> None:
    """Everything at once."""
    for program in (*world.agents.values(), world.ingest):
        program.kill()
    world.broker.kill()
    world.broker.forget()
    await _pause(world)
    await world.broker.start()
    for program in (world.ingest, *world.agents.values()):
        program.start()


async def ingest_frozen(world: World) -> None:
    """It hangs."""
    world.ingest.freeze()
    await _pause(world)
    world.ingest.freeze(on=False)


async def agent_frozen(world: World) -> None:
    """It hangs."""
    victim = world.agents[world.random.choice(DEVICES)]
    victim.freeze()
    await _pause(world)
    victim.freeze(on=False)


async def silence(world: World) -> None:
    """On one side, in one direction or both."""
    ways = world.random.choice([(Direction.UP,), (Direction.DOWN,), tuple(Direction)])
    world.random.choice((world.near, world.far)).silence(*ways)
    await _pause(world)


async def stall(world: World) -> None:
    """On one side, in one direction or both."""
    ways = world.random.choice([(Direction.UP,), (Direction.DOWN,), tuple(Direction)])
    world.random.choice((world.near, world.far)).stall(*ways)
    await _pause(world)


async def flapping(world: World) -> None:
    """Resets and refusals."""
    for _ in range(world.random.randrange(2, 8)):
        side = world.random.choice((world.near, world.far))
        side.refuse()
        await asyncio.sleep(world.random.uniform(0, 0.4))
        side.refuse(on=False)
        await asyncio.sleep(world.random.uniform(0, 0.4))


async def slow(world: World) -> None:
    """A thin and long link."""
    side = world.random.choice((world.near, world.far))
    side.throttle(world.random.choice((5_000, 20_000)))
    side.latency(world.random.uniform(0, 0.3))
    await _pause(world)


async def astray(world: World) -> None:
    """Publishes and pubacks that do not come as they were sent."""
    chance = world.random.choice((0.02, 0.1, 0.3))
    actions = (Action.DROP, Action.DUPLICATE, Action.REORDER, Action.DELAY, Action.CUT)
    rules = [Rule(action, chance if action is not Action.CUT else 0.01, PUBLISH) for action in actions]
    for side in (world.near, world.far):
        side.rules = world.random.sample(rules, 3)
    await _pause(world)


FAULTS: tuple[Fault, ...] = (
    *(broker_killed, agent_killed, ingest_killed, all_killed, ingest_frozen, agent_frozen),
    *(silence, stall, flapping, slow, astray),
)


async def soak(world: World, minutes: float) -> tuple[Account, Counter[str]]:
    """Play rounds for so long, then drain; returns the account and how often each fault was drawn."""
    world.records, drawn = 1 << 40, Counter[str]()
    await world.begin(*DEVICES, gate=0)
    ends_s, upto = time.monotonic() + minutes * 60, 0
    while time.monotonic() < ends_s or not upto:
        fault = world.random.choice(FAULTS)
        drawn[fault.__name__] += 1
        upto += ROUND_RECORDS
        world.open_gate(upto)
        await asyncio.sleep(world.random.uniform(0, 0.5))
        await fault(world)
        world.heal()
        await world.until_numbers(upto)
    await world.until("all is acked", lambda: all(map(world.is_idle, DEVICES)))
    for agent in world.agents.values():
        await asyncio.to_thread(agent.terminate)
    await world.end_ingest()
    world.records = upto
    return world.exact(), drawn


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak; returns the exit code."""
    parser = argparse.ArgumentParser(prog="soak", description="Random faults on real processes, one report.")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--json", type=Path, default=ROOT / "build" / "soak.json", help="where the report goes"
    )
    options = parser.parse_args(arguments)
    end_on_sigterm()
    worlds: list[World] = []
    drawn: Counter[str] = Counter()

    async def whole() -> Account:
        folder = Path(tempfile.mkdtemp(prefix="soak-")) / "world"
        async with opened(folder, options.seed, small=False) as world:
            worlds.append(world)
            found, faults = await soak(world, options.minutes)
            drawn.update(faults)
            return found

    began_s, account, verdict = time.monotonic(), Account(), HELD
    try:
        account = asyncio.run(whole())
    except Exception as error:  # the report says so
        verdict = f"{type(error).__name__}: {error}"
    recovery_s = sorted(worlds[0].recovery_s) if worlds else []
    name = f"soak, {options.minutes:g} min, seed {options.seed}"
    outcome = Outcome(name, account, recovery_s, verdict, time.monotonic() - began_s)
    print(table([outcome]))
    _report(outcome, options, drawn)
    return 0 if outcome.held else 1


def _report(outcome: Outcome, options: argparse.Namespace, drawn: Counter[str]) -> None:
    recovery_s = outcome.recovery_s
    content: dict[str, Any] = {
        "seed": options.seed,
        "minutes": options.minutes,
        "machine": machine(),
        "verdict": outcome.verdict,
        **asdict(outcome.account),
        "faults": dict(sorted(drawn.items())),
        "recovery_s": {
            "count": len(recovery_s),
            "p50": round(recovery_s[len(recovery_s) // 2], 3) if recovery_s else None,
            "p95": round(recovery_s[int(len(recovery_s) * 0.95)], 3) if recovery_s else None,
            "max": round(recovery_s[-1], 3) if recovery_s else None,
        },
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
