"""The processes of a device's apps: forked by the server, or started one by one; what becomes of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from geartrain.control.states import App
from tests.edge.device_parent import ROOT, Device, Platform, app, is_alive
from tests.waiting import WAIT_S


def children_of(pid: int) -> dict[int, str]:
    """The processes that are its children, each with its state."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    stats = {int(child): Path(f"/proc/{child}/stat").read_text() for child in found}
    return {child: stat.rpartition(")")[2].split()[0] for child, stat in stats.items()}


def test_a_fork_server_that_is_killed_ends_no_app_and_is_replaced(device: Device) -> None:
    async def story(platform: Platform) -> None:
        platform.want(app("stocks.1"))
        parent = device.start()
        await platform.until(lambda: bool(device.status("stocks.1").get("pid")))
        first = device.status("stocks.1")["pid"]
        (server,) = set(children_of(parent.pid)) - {first}
        os.kill(server, signal.SIGKILL)
        platform.want(app("stocks.1"), app("stocks.2"))
        await platform.until(lambda: bool(device.status("stocks.2").get("pid")))
        second = device.status("stocks.2")["pid"]
        assert device.status("stocks.1")["pid"] == first
        assert is_alive(first)
        assert os.getsid(second) == os.getpgid(second) == second
        (other,) = set(children_of(parent.pid)) - {first, second}
        assert other != server
        parent.kill()
        await platform.until(lambda: not any(map(is_alive, (first, second, other))))

    device.run(story)


def test_what_an_app_leaves_behind_is_reaped(device: Device) -> None:
    async def story(platform: Platform) -> None:
        platform.want(App("stray.1", "tests.edge.straying:flow", cut="cloud"))
        parent = device.start()
        await platform.until(lambda: len(children_of(parent.pid)) == 3)
        await platform.until(lambda: len(children_of(parent.pid)) == 2)
        assert "Z" not in children_of(parent.pid).values()

    device.file.write_text(device.file.read_text().replace("apps.stocks", "apps.stray"))
    device.run(story)


HELPERS = """
import asyncio, os, signal, subprocess, sys, time
from geartrain_edge.parent.children import ForkServer
from geartrain_edge.parent.short_process import started

def is_over(pid, within_s=60.0):
    until_s = time.monotonic() + within_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        assert time.monotonic() < until_s
        time.sleep(0.01)

async def story():
    family = ForkServer()
    fetch = started("geartrain_edge.bundles.fetch")
    fetch.kill()
    is_over(fetch.pid)
    family.reap_strays()
    print(fetch.wait())
    renewal = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(7)")
    asked = asyncio.create_task(renewal.wait())
    while not asked.done():
        family.reap_strays()
        await asyncio.sleep(0)
    print(await asked)
    # It outlives who started it: that one would reap it otherwise, where it ends at once.
    waits = "import sys; sys.stdin.read()"
    child = f"subprocess.Popen([sys.executable, '-c', '{waits}'], stdin=subprocess.PIPE)"
    leaves = f"import subprocess, sys; print({child}.pid)"
    said = subprocess.run(
        [sys.executable, "-c", leaves], start_new_session=True, capture_output=True, check=True
    )
    stray = int(said.stdout)
    is_over(stray)
    family.reap_strays()
    try:
        os.kill(stray, 0)
    except ProcessLookupError:
        print("reaped")

asyncio.run(story())
"""


def test_what_the_parent_has_started_itself_is_no_stray() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELPERS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.stdout.split() == ["-9", "7", "reaped"], done.stderr


STORY = """
import asyncio, os, signal, sys
from geartrain_edge.errors import StartError
from geartrain_edge.parent.children import ForkServer, Spawned

async def story():
    words = ["--config", "/no/such/file.toml"]
    reading, writing = os.pipe()
    for way in (Spawned(), ForkServer()):
        child = await way.start(words, writing)
        assert child.reap() == 2
        assert os.read(reading, 10_000).startswith(b"gear-agent: /no/such/file.toml")
    stopped = ForkServer(60)
    child = await stopped.start(words, writing)
    os.kill(stopped._server.pid, signal.SIGSTOP)
    stopped._fork_s_max = 0.5
    try:
        await stopped.start(words, writing)
    except StartError as error:
        print(error)
    stopped._fork_s_max = 60
    again = await stopped.start(words, writing)
    print(child.reap(), again.reap())
    try:
        await stopped.start(["--config", "x" * 20_000], writing)
    except StartError as error:
        print(error)

asyncio.run(story())
"""


def test_forked_and_spawned_agents_end_alike_and_a_server_that_hangs_is_replaced() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STORY], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert told[:2] == ["the fork server has not answered for 0.5 s", "2 2"]
    assert told[2].endswith("... is too long")
