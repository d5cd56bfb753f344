"""What dies and comes back: how long until records flow again.

Among the recoveries: the broker under 100 agents, an agent with a full spool, ingest with a long log. All of
them are killed with -9 while records are on their way, and have their default settings. Guarantees: the time
ends with a packet that was seen on its way, not with what a program says of itself.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from geartrain.wire.topics import ack_topic
from tests.process import crowd
from tests.process.brokers import HOST
from tests.process.link import Direction
from tests.process.oracle import Account, account
from tests.process.packets import Kind, Packet
from tests.process.programs import Program, status_of
from tests.process.proxy import Action, FaultProxy
from tests.process.repairs import COMMIT_DEFAULTS, UPLINK_DEFAULTS, place_of, plain, settled, still
from tests.process.timings import Runs, recovery
from tests.process.world import ScenarioError, World
from tests.waiting import WAIT_S

BAR_S = 2.0
AGENTS, AGENTS_SMALL = 100, 10
SPOOL_MIB, SPOOL_MIB_SMALL = 100, 4
LOG_MIB, LOG_MIB_SMALL = 1_024, 8
_A_SECOND = 0.5
_GONE_S = (1.25 / _A_SECOND, 2.5 / _A_SECOND)
"""How long the broker is gone: each agent has something to send when it is back."""
_FIRST_ROWS = "broker back, 100 agents: first ack"


class Watch:
    """Waits for packets: of each of `topics`, one publish of a kind, "up" or "ack", that passes `proxy`."""

    def __init__(self, proxy: FaultProxy, direction: Direction, kind: str, topics: frozenset[str]) -> None:
        self._direction, self._kind, self._left = direction, kind, set(topics)
        self._first_s = 0.0
        self._all: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        proxy.watch = self._see

    def _see(self, direction: Direction, packet: Packet, action: Action) -> None:
        if direction is not self._direction or packet.topic not in self._left or action is not Action.PASS:
            return
        found = place_of(packet) if packet.kind is Kind.PUBLISH else None
        if found is None or found[0] != self._kind:
            return
        self._left.discard(packet.topic)
        now_s = asyncio.get_running_loop().time()
        self._first_s = self._first_s or now_s
        if not self._left:
            self._all.set_result(now_s)

    async def times(self) -> tuple[float, float]:
        """When the first and the last of them passed, by the loop's clock."""
        async with asyncio.timeout(WAIT_S):
            last_s = await self._all
        return self._first_s, last_s


@recovery("broker back, 100 agents: all acked", BAR_S)
async def broker_back(world: World, runs: Runs) -> Account:
    """From its first answer until each of the agents has an ack of a batch again."""
    agents = AGENTS_SMALL if world.small else AGENTS
    fleet = await _fleet(world, agents, {"per_second": _A_SECOND})
    topics = frozenset(ack_topic(device, "numbers") for device in world.devices)
    await Watch(world.near, Direction.DOWN, "ack", topics).times()
    for _ in range(runs.wanted):
        await asyncio.sleep(world.random.uniform(2, 4))  # to catch up: each run has its own to do
        world.broker.kill()
        world.broker.forget()
        await asyncio.sleep(world.random.uniform(*_GONE_S))
        watch = Watch(world.near, Direction.DOWN, "ack", topics)
        await world.broker.start()
        back_s = asyncio.get_running_loop().time()
        first_s, last_s = await watch.times()
        runs.seconds.append(last_s - back_s)
        runs.note(_FIRST_ROWS, max(first_s - back_s, 0.0))
    return await _fleet_settled(world, fleet, agents)


async def _fleet(world: World, agents: int, source: dict[str, Any]) -> Path:
    world.devices = [crowd.device(number) for number in range(agents)]
    world.prepare_gate(1 << 60)
    await world.launch()
    state = world.folder / "crowd" / "state"
    state.mkdir(parents=True)
    config = {
        "agents": agents,
        "host": HOST,
        "port": world.near.port,
        "state": str(state),
        "records_max": COMMIT_DEFAULTS["records_max"],
        "source": {"records": 1 << 40, "gate": str(world.gate), **source},
        "uplink": UPLINK_DEFAULTS,
    }
    path = world.folder / "crowd" / "crowd.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    fleet = Program("crowd", "tests.process.crowd", path, world.folder / "crowd.log")
    world.agents["crowd"] = fleet
    fleet.start()
    return state / "status.json"


async def _fleet_settled(world: World, status: Path, agents: int) -> Account:
    world.open_gate(0)
    await still(lambda: status_of(status).get("counters", {}).get("records_read", 0))
    await world.until("all is acked", lambda: status_of(status).get("acked") == agents)
    world.agents["crowd"].kill()
    await world.end_ingest()
    counters = status_of(status)["counters"]
    rows = {k.removeprefix("rows."): v for k, v in counters.items() if k.startswith("rows.")}
    found = account(world.seen(), rows)
    if not found.is_exact:
        raise ScenarioError(f"not each record once and in order: {found}")
    return found


@recovery("agent killed, 100 MiB in its spool", BAR_S)
async def agent_back(world: World, runs: Runs) -> Account:
    """From kill -9 and the start at once until its first batch passes on its way to the broker."""
    plain(world, filling=4_000, dense=True)
    await world.launch()
    world.open_gate(50)
    await world.until_logged(50)
    world.near.refuse()
    world.open_gate(1 << 60)
    mib = SPOOL_MIB_SMALL if world.small else SPOOL_MIB
    await world.until("the spool is full", lambda: world.status("d1").get("spool_bytes", 0) >= mib << 20)
    world.open_gate(0)
    world.ingest.kill()  # so that nothing of it is acked, and every start finds all of it
    world.near.refuse(on=False)
    topics = frozenset({ack_topic("d1", "plain").removesuffix("ack") + "up"})
    agent = world.agents["d1"]
    for _ in range(runs.wanted):
        await asyncio.sleep(world.random.uniform(0.2, 1))
        agent.kill()
        await world.near.ended()  # else a packet of its former life would end the run
        watch, began_s = Watch(world.near, Direction.UP, "up", topics), asyncio.get_running_loop().time()
        agent.start()
        runs.seconds.append((await watch.times())[0] - began_s)
    world.ingest.start()
    return await settled(world)


@recovery("ingest killed, 1 GiB in its log", BAR_S)
async def ingest_back(world: World, runs: Runs) -> Account:
    """From kill -9 and the start at once until its first ack, while a device goes on sending."""
    plain(world, filling=32_000)  # which travels well compressed, and is not in the log
    world.ingest_keys |= {"group_commit_ms": 1_000, "group_bytes_max": 64 << 20}
    await world.launch()
    wanted, upto = (LOG_MIB_SMALL if world.small else LOG_MIB) << 20, 0
    while _log_bytes(world) < wanted:
        upto += 256
        world.open_gate(upto)
        await world.until_logged(upto)
    await world.until("all is acked", lambda: world.status("d1").get("acked_seq", 0) == _spooled(world))
    _go_on_small(world)
    topics = frozenset({ack_topic("d1", "plain")})
    await Watch(world.far, Direction.UP, "ack", topics).times()
    for _ in range(runs.wanted):
        await asyncio.sleep(world.random.uniform(0.5, 1.5))
        world.ingest.kill()
        await world.far.ended()
        watch, began_s = Watch(world.far, Direction.UP, "ack", topics), asyncio.get_running_loop().time()
        world.ingest.start()
        runs.seconds.append((await watch.times())[0] - began_s)
    return await settled(world)


def _log_bytes(world: World) -> int:
    return sum(path.stat().st_size for path in (world.log / "segments").rglob("*.arrow"))


def _spooled(world: World) -> int:
    return int(world.status("d1").get("spooled_seq", -1))


def _go_on_small(world: World) -> None:
    """The log is made: from here on small records, a hundred a second, and ingest as it is by default."""
    agent = world.agents["d1"]
    agent.terminate()
    text = agent.config.read_text(encoding="utf-8").replace(
        "filling = 32000", "filling = 0\nper_second = 100.0"
    )
    agent.config.write_text(text, encoding="utf-8")
    world.ingest_keys = {}
    world.ingest.kill()
    world.write_ingest()
    world.open_gate(1 << 60)
    world.ingest.start()
    agent.start()
