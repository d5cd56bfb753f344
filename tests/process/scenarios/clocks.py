"""Clocks that jump, and devices that live in 2099."""

from __future__ import annotations

import time

from tests.process.flows import AHEAD_US, SECOND_US, is_poison
from tests.process.oracle import LATE, LETTERS, Account
from tests.process.registry import scenario
from tests.process.shim import set_clock, shifted_clock
from tests.process.world import ScenarioError, World

DAY_S = 86_400


def _balanced(world: World) -> Account:
    """Exact by what the spools took, and every number of every source in some channel."""
    found = world.by_spools()
    if not found.is_exact:
        raise ScenarioError(f"not each record once and in order: {found}")
    world.check_numbers()
    world.notes["late"] = world.seen()[LATE].delivered if LATE in world.seen() else 0
    return found


@scenario("clock of a device jumps", small=True)
async def jumps(world: World) -> Account:
    """Ten days on, back, to 1970, and forth: what lies below the watermark is late, and nothing is lost."""
    world.prepare("d1", "d2", gate=0, source={"live": True})
    clock = world.folder / "clock"
    world.agents["d1"].environment = shifted_clock(clock)
    await world.launch()
    offsets = (0, 10 * DAY_S, -DAY_S, -int(time.time()), 20 * DAY_S)
    for number, offset_s in enumerate(offsets, 1):
        set_clock(clock, offset_s)
        upto = world.records * number // len(offsets)
        world.open_gate(upto)
        await world.until(
            f"{upto} were read under this clock",
            lambda upto=upto: world.status("d1").get("records_read", 0) >= upto,  # type: ignore[misc]
        )
    await world.drained()
    found = _balanced(world)
    if not world.notes["late"]:
        raise ScenarioError("nothing was late, so that this proves nothing")
    return found


@scenario("a device that lives in 2099")
async def lives_in_2099(world: World) -> Account:
    """Its clock is set right later: it holds up nobody, and what comes then is late."""
    world.prepare("d1", "d2", gate=world.records // 2, source={"live": True})
    clock = world.folder / "clock"
    world.agents["d1"].environment = shifted_clock(clock)
    set_clock(clock, AHEAD_US // SECOND_US)
    await world.launch()
    await world.until_numbers(world.records // 2)
    set_clock(clock, 0)
    await world.drained()
    found = _balanced(world)
    wanted = sum(not is_poison(n) for n in range(world.records // 2, world.records))
    if world.notes["late"] != wanted:
        raise ScenarioError(f"{world.notes['late']} records are late, not the {wanted} of the time after")
    return found


@scenario("a sensor that speaks of 2099")
async def speaks_of_2099(world: World) -> Account:
    """Its records are refused at birth, each as a dead letter, and move no watermark."""
    first, last = world.records // 3, world.records // 2
    source = {"live": True, "ahead_from": first, "ahead_to": last}
    await world.begin("d1", gate=world.records, source=source)
    await world.drained()
    found = _balanced(world)
    wanted = sum(is_poison(n) or first <= n < last for n in range(world.records))
    if found.dead_lettered != wanted or LETTERS not in world.seen():
        raise ScenarioError(f"{found.dead_lettered} dead letters, not {wanted}")
    return found
