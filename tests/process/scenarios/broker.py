"""The broker fails: killed with all that it kept, gone for a minute, or too small for what waits in it."""

from __future__ import annotations

from tests.process.oracle import Account
from tests.process.registry import scenario
from tests.process.world import World


@scenario("broker killed, what it kept deleted", small=True)
async def killed_and_forgotten(world: World) -> Account:
    """Sessions, queues and retained publishes are gone; each time while batches are on their way."""
    rounds = 1 if world.small else 5
    await world.begin("d1", "d2", gate=0)
    for number in range(1, rounds + 1):
        upto = world.records * number // (rounds + 1)
        world.open_gate(upto)
        await world.until_numbers(upto // 2)
        world.broker.kill()
        world.broker.forget()
        await world.pause(1, 0.2)
        await world.broker.start()
        world.healed()
        await world.until_numbers(upto)
    await world.drained()
    return world.exact()


@scenario("broker gone for 60 s")
async def gone(world: World) -> Account:
    """Records go on being accepted meanwhile, and come when it is back."""
    await world.begin("d1", "d2", gate=world.records // 3)
    await world.until_numbers(world.records // 6)
    world.broker.kill()
    world.open_gate(world.records)
    await world.pause(60, 2)
    await world.until("the devices have read on", lambda: world.spooled("d1") > world.records * 9 // 10)
    await world.broker.start()
    world.healed()
    await world.drained()
    return world.exact()


@scenario("broker's queue for ingest overflows")
async def overflows(world: World) -> Account:
    """ingest hangs, and the broker drops what it cannot queue without a word, after its puback."""
    world.broker.rewrite(queued_max=5)
    await world.begin(
        "d1", "d2", "d3", gate=0, uplink={"window": 64, "resend_ms": 3_000, "resend_ms_max": 9_000}
    )
    await world.until("ingest runs", lambda: world.count("epochs_opened") >= 3)
    world.ingest.freeze()
    world.open_gate(world.records)
    await world.pause(10, 2)
    world.ingest.freeze(on=False)
    world.healed()
    await world.drained()
    return world.exact()
