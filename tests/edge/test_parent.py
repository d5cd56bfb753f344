"""`gear-agent --device`: real agents under a parent that follows the lane of a platform in the test."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.control.states import App, AppState, Wanted
from tests.edge.device_parent import FLOW, Device, Platform, app, is_alive
from tests.waiting import WAIT_S


def test_an_app_is_started_from_desired_state_and_ended_when_it_is_no_longer_wanted(device: Device) -> None:
    async def story(platform: Platform) -> None:
        serial = platform.want(app("stocks.1"))
        parent = device.start()
        await platform.until(lambda: device.status("stocks.1").get("state") == "greeting")
        await platform.until(lambda: platform.why("stocks.1") == "ingest has not answered it yet")
        assert platform.report is not None
        assert (platform.report.serial, platform.report.program) == (serial, "0.2.0")
        status = device.status("stocks.1")
        assert (status["device"], status["flow"]) == ("truck-1", "stocks.1")
        files = {
            path.name: stat.S_IMODE(path.stat().st_mode) for path in (device.state / "stocks.1").iterdir()
        }
        assert set(files) >= {"agent.toml", "agent.log", "spool.sqlite", "status.json"}
        assert set(files.values()) == {0o600}
        modes = {
            stat.S_IMODE((device.state / name).stat().st_mode) for name in ("desired.bin", "parent.lock")
        }
        assert modes == {0o600}
        serial = platform.want()
        await platform.until(lambda: platform.machine.is_settled and platform.state("stocks.1") is None)
        assert not is_alive(status["pid"])
        assert device.status("stocks.1")["state"] == "stopped"
        assert (device.state / "stocks.1" / "spool.sqlite").exists()
        platform.want(purged=["stocks.1"])
        await platform.until(lambda: not (device.state / "stocks.1").exists())
        assert parent.poll() is None

    device.run(story)


def test_a_mistake_is_reported_with_its_sentence_and_not_tried_again(device: Device) -> None:
    async def story(platform: Platform) -> None:
        platform.want(
            App("gone.1", "no_such_module:flow"), app("stocks.1", options='{"sources":{"wrong":{}}}')
        )
        device.start()
        await platform.until(lambda: platform.state("gone.1") is AppState.FAILED)
        assert "no_such_module" in platform.why("gone.1")
        await platform.until(lambda: platform.state("stocks.1") is AppState.FAILED)
        assert "wrong" in platform.why("stocks.1")
        log = (device.state / "gone.1" / "agent.log").read_text()
        platform.want(App("gone.1", "no_such_module:flow"), app("stocks.1"))  # mended
        await platform.until(lambda: platform.why("stocks.1") == "ingest has not answered it yet")
        assert (device.state / "gone.1" / "agent.log").read_text() == log
        platform.want(App("gone.1", FLOW, options="{"), app("stocks.1"))
        await platform.until(lambda: "options cannot be read" in platform.why("gone.1"))

    device.run(story)


def test_sources_that_its_own_file_leaves_out_and_other_code_are_reported(device: Device) -> None:
    async def story(platform: Platform) -> None:
        own = device.file.read_text().replace('path = "prices.csv"', 'path = "prices.csv"\nenabled = false')
        device.file.write_text(own)
        platform.want(app("stocks.1"), app("stocks.2", code="0" * 64))
        device.start()
        await platform.until(lambda: platform.state("stocks.1") in (AppState.RUNNING, AppState.STARTING))
        await platform.until(lambda: platform.lacks("stocks.1") == ("quotes",))
        await platform.until(lambda: platform.state("stocks.2") is AppState.FAILED)
        assert "was submitted with 000000000000: install what was submitted" in platform.why("stocks.2")

    device.run(story)


def test_sections_of_its_own_file_for_what_has_gone_are_left_out_and_named_beyond_the_first_revision(
    device: Device,
) -> None:
    """In the first one a wrong name is a mistake, as ever. What holds besides is said first."""
    own = (
        device.file.read_text()
        + "[apps.stocks.sources.gone]\nenabled = true\n[apps.stocks.steps.old]\nx = 1\n"
    )
    device.file.write_text(own)

    async def story(platform: Platform) -> None:
        platform.want(app("stocks.1", number=1))
        device.start()
        await platform.until(lambda: platform.state("stocks.1") is AppState.FAILED)
        assert "has no step 'gone'" in platform.why("stocks.1")
        platform.want(app("stocks.1", number=2))
        await platform.until(lambda: platform.state("stocks.1") is AppState.STARTING)
        why = "is left out, since revision 2 has no step"
        left_out = [
            f"{device.file}: [apps.stocks.{section}.{step}] {why} {step}: remove that section"
            for section, step in (("sources", "gone"), ("steps", "old"))
        ]
        said = ["ingest has not answered it yet", *left_out]
        await platform.until(lambda: platform.why("stocks.1") == "; ".join(said))
        assert all(one in (device.state / "stocks.1" / "agent.log").read_text() for one in left_out)
        given = tomllib.loads((device.state / "stocks.1" / "agent.toml").read_text())["sources"]["quotes"]
        assert given["path"] == "prices.csv"  # what is there has its options all the same

    device.run(story)


def test_an_agent_that_dies_is_started_again_and_the_others_are_left_alone(device: Device) -> None:
    async def story(platform: Platform) -> None:
        platform.want(app("stocks.1"), app("stocks.2"))
        device.start()
        await platform.until(lambda: all(device.status(f"stocks.{n}").get("pid") for n in (1, 2)))
        first, second = (device.status(f"stocks.{n}")["pid"] for n in (1, 2))
        os.kill(first, signal.SIGKILL)
        await platform.until(lambda: device.status("stocks.1")["pid"] != first)
        assert device.status("stocks.2")["pid"] == second
        platform.want(app("stocks.1"), app("stocks.2"), app("stocks.3"))
        await platform.until(lambda: bool(device.status("stocks.3").get("pid")))
        assert device.status("stocks.2")["pid"] == second  # a state that changes nothing of it

    device.run(story)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_agents_and_the_next_parent_needs_no_platform(
    device: Device, number: signal.Signals, code: int
) -> None:
    async def story(platform: Platform) -> None:
        platform.want(app("stocks.1"))
        parent = device.start()
        await platform.until(lambda: bool(device.status("stocks.1").get("pid")))
        parent.send_signal(number)
        _, said = await asyncio.to_thread(parent.communicate, timeout=WAIT_S)
        assert (parent.returncode, "Traceback" in said) == (code, False), said
        status = device.status("stocks.1")
        log = (device.state / "stocks.1" / "agent.log").read_text()
        how = f"the parent:\n{said}\nthe agent, asked to end:\n{log}\nits status: {status}"
        assert (status["state"], is_alive(status["pid"])) == ("stopped", False), how

    device.run(story)
    device.start()  # nobody is there to tell it
    began = time.monotonic()
    while device.status("stocks.1")["state"] == "stopped":
        assert time.monotonic() - began < WAIT_S
        time.sleep(0.05)


def test_kill_9_of_the_parent_leaves_no_agent_behind_and_none_is_doubled(device: Device) -> None:
    async def story(platform: Platform) -> None:
        platform.want(app("stocks.1"))
        parent = device.start()
        await platform.until(lambda: bool(device.status("stocks.1").get("pid")))
        pid = device.status("stocks.1")["pid"]
        second = device.start()
        _, said = await asyncio.to_thread(second.communicate, timeout=WAIT_S)
        assert second.returncode == 1
        assert f"{device.state} is in use by another gear-agent" in said
        parent.kill()
        await platform.until(lambda: not is_alive(pid))
        device.start()
        await platform.until(lambda: device.status("stocks.1")["pid"] != pid)
        assert platform.report is not None
        await platform.until(lambda: platform.report is not None and platform.report.life == 2)

    device.run(story)


def test_a_device_takes_only_the_newest_when_it_comes(device: Device) -> None:
    async def story(platform: Platform) -> None:
        for n in range(1, 6):
            platform.want(app(f"stocks.{n}"))
        device.start()
        await platform.until(lambda: platform.machine.is_settled)
        await platform.until(lambda: platform.state("stocks.5") is not None)
        assert [path.name for path in device.state.glob("stocks.*")] == ["stocks.5"]

    device.run(story)


def test_an_app_that_drains_has_ended_once_all_is_acked(device: Device) -> None:
    from geartrain.wire.codec import encode_control
    from geartrain.wire.topics import ack_topic, up_topic
    from geartrain_edge.agent.config import read_config
    from tests.edge.network import NaiveIngest

    async def story(platform: Platform) -> None:
        platform.want(app("stocks.1"))
        device.start()
        await platform.until(lambda: bool(device.status("stocks.1").get("pid")))
        ingest = NaiveIngest(read_config(str(device.state / "stocks.1" / "agent.toml")).plan())

        async def receive() -> None:
            async with AiomqttNet(*device.address).connect("ingest") as connection:
                await connection.subscribe(up_topic("truck-1", "stocks.1"))
                async for incoming in connection.incoming():
                    for control in ingest.take(incoming.payload):
                        await connection.publish(ack_topic("truck-1", "stocks.1"), encode_control(control))

        platform.want(app("stocks.1", wanted=Wanted.DRAIN))
        await platform.until(lambda: platform.state("stocks.1") is AppState.DRAINING)
        receiving = asyncio.create_task(receive())
        await platform.until(lambda: platform.state("stocks.1") is AppState.ENDED)
        status = device.status("stocks.1")
        assert status["acked_seq"] == status["spooled_seq"] == ingest.seq
        assert not is_alive(status["pid"])
        receiving.cancel()

    device.run(story)


RSS_KB_MAX = 30 * 1024
NOTHING_OF_A_USER = """
import sys
from geartrain_edge.agent.process import prepare
prepare()
import geartrain_edge.parent.main, geartrain.adapters.mqtt
ours = {name.split(".")[1] for name in sys.modules if name.startswith("geartrain.")}
print(sorted(ours & {"flow", "graph", "operators", "runtime", "planning", "tasks"}))
"""


def rss_kb_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


def test_the_parent_imports_nothing_of_flows_and_stays_small(device: Device, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(
        tmp_path / "bytecode"
    )  # as on a device, where installing compiles
    imported = subprocess.run(
        [sys.executable, "-c", NOTHING_OF_A_USER], env=environment, capture_output=True, text=True, check=True
    )
    assert imported.stdout == "[]\n"

    async def story(platform: Platform) -> None:
        names = [f"stocks.{n}" for n in range(1, 4)]
        platform.want(*map(app, names))
        first = device.start(environment)  # which compiles what it imports
        await platform.until(lambda: all(device.status(name).get("pid") for name in names))
        await platform.until(lambda: platform.machine.is_settled)
        first.terminate()
        await asyncio.to_thread(first.communicate, timeout=WAIT_S)
        parent = device.start(environment)
        await platform.until(lambda: all(device.status(name)["state"] != "stopped" for name in names))
        await platform.until(lambda: platform.report is not None and platform.report.life == 2)
        await platform.until(lambda: platform.machine.is_settled)
        rss_kb = rss_kb_of(parent.pid)
        print(f"parent of three agents, connected: {rss_kb / 1024:.1f} MiB RSS")
        assert rss_kb < RSS_KB_MAX

    device.run(story)


MISTAKES = [
    ("device = 1\nstate = 's'\n", "device: expected `str`, got `int`"),
    ('device = "a b"\nstate = "s"\n', "device 'a b': use a name of"),
    ('device = "d"\nstate = ""\n', "state: name the folder"),
    ('device = "d"\nstate = "s"\nflow = "x"\n', "flow is not a key of this file"),
    ('device = "d"\nstate = "s"\nbroker = "nowhere"\n', "'nowhere' is not HOST:PORT"),
]


@pytest.mark.parametrize(("text", "said"), MISTAKES)
def test_a_mistake_in_the_file_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "device.toml"
    file.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "geartrain_edge.agent.process", "--device", str(file)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stderr.startswith(f"gear-agent: {file}: ")
    assert "Traceback" not in done.stderr
