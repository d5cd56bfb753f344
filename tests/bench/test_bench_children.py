"""What a device's apps cost in memory: its parent, and each further idle app from the fork server."""

from __future__ import annotations

import asyncio
import os
import subprocess
from functools import partial
from pathlib import Path

from geartrain_cloud.broker import choose_broker, wait_until_ready
from tests.bench.harness import SIZE, Work
from tests.edge.device_parent import Device, Platform, app

APPS = (1, 2, 5, 10) if SIZE > 0.01 else (1, 3)
PARENT_MB_MAX, APP_MB_MAX = 30.0, 15.0
SETTLED_S = 2.0


def test_memory_of_a_parent_and_its_idle_apps(tmp_path: Path) -> None:
    broker = choose_broker("auto", tmp_path)
    process = subprocess.Popen(broker.command)
    try:
        wait_until_ready(broker.host, broker.port, timeout_s=60)
        device = Device(tmp_path, broker.address)
        parents, agents = _measured(device, tmp_path / "bytecode")
    finally:
        for parent in device.parents:
            parent.kill()
            parent.communicate(timeout=60)
        process.terminate()
        process.wait(timeout=60)
    figures = {f"parent, {n} apps: RSS": parents[n] for n in APPS}
    figures |= {f"fork server and {n} apps: PSS": agents[n] for n in APPS}
    each = (agents[APPS[-1]] - agents[APPS[0]]) / (APPS[-1] - APPS[0])
    figures["each further app: PSS"] = each
    work = Work(
        "memory of a device's apps",
        "MB",
        {n: partial(float, f) for n, f in figures.items()},
        "each further app: PSS",
    )
    work.notes.append(f"bounds: the parent {PARENT_MB_MAX:g}, each further app {APP_MB_MAX:g}")
    work.run(rounds=1)
    assert max(parents.values()) <= PARENT_MB_MAX
    assert each <= APP_MB_MAX


def _measured(device: Device, bytecode: Path) -> tuple[dict[int, float], dict[int, float]]:
    """By the number of apps: MB that the parent takes, and that the fork server and all apps take."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(bytecode)  # as on a device that has started before
    parents: dict[int, float] = {}
    agents: dict[int, float] = {}

    async def warm(platform: Platform) -> None:
        platform.want(app("stocks.1"))
        device.start(environment)
        await platform.until(lambda: device.status("stocks.1").get("state") == "greeting")
        device.parents[-1].kill()
        device.parents[-1].wait()

    async def story(platform: Platform) -> None:
        device.start(environment)
        for count in APPS:
            names = [f"stocks.{n}" for n in range(1, count + 1)]
            platform.want(*map(app, names))
            await platform.until(partial(_greet, device, names))
            await platform.until(lambda: platform.machine.is_settled)
            await asyncio.sleep(SETTLED_S)
            pid = device.parents[-1].pid
            parents[count] = _mb(pid, "Rss")
            agents[count] = sum(_mb(child, "Pss") for child in _children(pid))

    device.run(warm)
    device.run(story)
    return parents, agents


def _greet(device: Device, names: list[str]) -> bool:
    return all(device.status(name).get("state") == "greeting" for name in names)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _mb(pid: int, figure: str) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{figure}:")).split()[1]) / 1_024
