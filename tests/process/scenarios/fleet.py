"""A fleet that comes back at once: a thousand agents whose broker was gone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.process import crowd
from tests.process.brokers import HOST
from tests.process.oracle import Account
from tests.process.programs import Program, status_of
from tests.process.registry import scenario
from tests.process.world import UPLINK, ScenarioError, World

AGENTS = 1_000
RECORDS = 30


@scenario("1,000 agents reconnect at once")
async def reconnect(world: World) -> Account:
    """In one process, over sockets of their own; all of them have batches to send."""
    agents = 40 if world.small else AGENTS
    world.records = RECORDS
    world.devices = [crowd.device(number) for number in range(agents)]
    world.prepare_gate(RECORDS // 3)
    await world.launch()
    state = world.folder / "crowd"
    (state / "state").mkdir(parents=True)
    config = {
        "agents": agents,
        "host": HOST,
        "port": world.near.port,
        "state": str(state / "state"),
        "records_max": 10,
        "source": {"records": RECORDS, "gate": str(world.gate)},
        "uplink": UPLINK | {"resend_ms": 5_000, "resend_ms_max": 30_000, "silence_ms": 120_000},
    }
    (state / "crowd.json").write_text(json.dumps(config), encoding="utf-8")
    fleet = Program("crowd", "tests.process.crowd", state / "crowd.json", world.folder / "crowd.log")
    world.agents["crowd"] = fleet
    fleet.start()
    await world.until_numbers(RECORDS // 3)
    world.broker.kill()
    world.broker.forget()
    world.open_gate(RECORDS)
    await world.pause(5, 1)
    status = state / "state" / "status.json"
    await world.until("none has a connection", lambda: _of(status, "connected") == 0)
    began_s = asyncio.get_running_loop().time()
    await world.broker.start()
    world.healed()
    await world.until("all are connected", lambda: _of(status, "connected") >= agents or fleet.code == 0)
    world.notes["connected_s"] = round(asyncio.get_running_loop().time() - began_s, 2)
    await world.drained()
    world.notes["all_delivered_s"] = round(asyncio.get_running_loop().time() - began_s, 2)
    world.notes["rss_mib"] = _of(status, "rss_mib")
    found = world.by_sources()
    if not found.is_exact:
        raise ScenarioError(f"not each record once and in order: {found}")
    world.check_numbers()
    return found


def _of(path: Path, key: str) -> int:
    return int(status_of(path).get(key, 0))
