"""Many agents in one process, each with a spool, a connection and a device of its own: a fleet.

`python -m tests.process.crowd --config FILE.json`. It runs the agent's own class over the production
ports. Guarantees: its status says how many agents are connected and have finished, and what their spools
took together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.flow.loading import load_flow
from geartrain.planning import Plan, make_plan
from geartrain_edge.agent.agent import Agent
from geartrain_edge.settings import AgentSettings, UplinkSettings
from geartrain_edge.spool.spool import SqliteSpool

CONNECTS_AT_ONCE = 64
_REPORT_S = 0.25


def device(number: int) -> str:
    """The name of one of them."""
    return f"c{number:04d}"


def _agent(config: dict[str, Any], plan: Plan, number: int) -> Agent:
    uplink = UplinkSettings(**config["uplink"])
    settings = AgentSettings(device(number), uplink=uplink)
    settings = replace(settings, records_max=config["records_max"], idle_ms_max=500)
    net = AiomqttNet(config["host"], config["port"], reply_timeout_s=60.0)
    spool = SqliteSpool(Path(config["state"]) / device(number) / "spool.sqlite")
    return Agent(settings, plan, spool, net, SystemClock(), SystemRandomness())


async def _run(config: dict[str, Any]) -> None:
    # A connect takes a thread; the few that a loop has by itself would let a fleet in one by one.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(CONNECTS_AT_ONCE))
    graph = load_flow("tests.process.flows:flow").graph()
    plan = make_plan(graph.with_options({"numbers": config["source"]}, "crowd"), "edge")
    agents = [_agent(config, plan, number) for number in range(config["agents"])]
    status = Path(config["state"]) / "status.json"
    async with asyncio.TaskGroup() as group:
        report = group.create_task(_report_forever(agents, status))
        async with asyncio.TaskGroup() as running:
            for agent in agents:
                running.create_task(agent.run())
        report.cancel()
    _report(agents, status)


async def _report_forever(agents: list[Agent], path: Path) -> None:
    while True:
        _report(agents, path)
        await asyncio.sleep(_REPORT_S)


def _report(agents: list[Agent], path: Path) -> None:
    found = [agent.status() for agent in agents]
    counters: Counter[str] = Counter()
    for one in found:
        counters.update(one.counters)
    content = {
        "connected": sum(one.connected for one in found),
        "finished": sum(one.finished for one in found),
        "acked": sum(one.acked_seq == one.spooled_seq > 0 for one in found),
        "counters": counters,
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(content), encoding="utf-8")
    fresh.replace(path)


def main() -> int:
    """Run until all have finished; returns the exit code."""
    parser = argparse.ArgumentParser(prog="crowd")
    parser.add_argument("--config", type=Path, required=True)
    config = json.loads(parser.parse_args().config.read_text(encoding="utf-8"))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(_run(config))
    return 0


if __name__ == "__main__":
    sys.exit(main())
