"""What an app's process may take of a device, kept by the parent on real processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from geartrain.control.states import App
from geartrain.errors import ConfigError
from geartrain_edge.parent.config import read_device
from geartrain_edge.parent.limits import FIRST_TO_GO, Limits, LimitsTable, data_bytes_of, memory_of
from tests.edge.device_parent import Device, Platform, app


def greedy(kind: str) -> App:
    return App(f"{kind}.1", f"tests.edge.greedy:{kind}", cut="cloud")


def limit(device: Device, text: str) -> None:
    device.file.write_text(f"{device.file.read_text()}{text}\n")


def test_a_flow_that_leaks_is_ended_by_name_and_the_others_go_on(device: Device) -> None:
    limit(device, '[apps.leak.limits]\nmemory = "80MB"')

    async def story(platform: Platform) -> None:
        platform.want(app("stocks.1"), greedy("leak"))
        parent = device.start()
        await platform.until(lambda: bool(device.status("stocks.1").get("pid")))
        other = device.status("stocks.1")["pid"]
        await platform.until(lambda: bool(device.status("leak.1").get("pid")))
        first = device.status("leak.1")["pid"]
        await platform.until(lambda: said(platform, "leak.1", "may take"))
        why = platform.why("leak.1")
        assert why.startswith("its agent was killed by signal 9 and is started again: it took ")
        assert why.endswith(" MB of memory and may take 80 MB: see limits.memory in the device's file")
        await platform.until(lambda: device.status("leak.1")["pid"] != first)
        assert device.status("stocks.1")["pid"] == other
        print(f"an idle app has to itself: {memory_of(other) / 1e6:.0f} MB")
        assert parent.poll() is None

    device.run(story)


def test_a_flow_that_asks_for_too_much_at_once_is_refused(device: Device) -> None:
    """It has no time to take it: the kernel's RLIMIT_DATA refuses, before the parent looks."""
    limit(device, '[apps.burst.limits]\nmemory = "80MB"')

    async def story(platform: Platform) -> None:
        platform.want(greedy("burst"))
        device.start()
        await platform.until(lambda: said(platform, "burst.1", "MemoryError"))
        assert "may take" not in platform.why("burst.1")

    device.run(story)


def test_shares_of_the_processor_are_as_their_weights(device: Device) -> None:
    """Two on one processor: a tenth of the weight gets much less of it, and no nothing."""
    limit(device, "[apps.other.limits]\ncpu_weight = 10")

    async def story(platform: Platform) -> None:
        platform.want(greedy("busy"), App("other.1", "tests.edge.greedy:busy", cut="cloud"))
        device.start()
        await platform.until(lambda: all(device.status(n).get("pid") for n in ("busy.1", "other.1")))
        full, tenth = (device.status(name)["pid"] for name in ("busy.1", "other.1"))
        for pid in (full, tenth):
            os.sched_setaffinity(pid, {0})
        before = [ticks(full), ticks(tenth)]
        await asyncio.sleep(4)
        most, least = ticks(full) - before[0], ticks(tenth) - before[1]
        print(f"processor, in ticks: {most} with a weight of 100, {least} with 10")
        assert 0 < least < most / 3
        assert first_to_go(full) == FIRST_TO_GO

    device.run(story)


def said(platform: Platform, instance: str, words: str) -> bool:
    return platform.state(instance) is not None and words in platform.why(instance)


def first_to_go(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_memory_is_what_a_process_has_to_itself() -> None:
    code = "import sys; kept = b'x' * 50_000_000; print(flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:  # type: ignore[call-overload]
        process.stdout.readline()
        taken, may = memory_of(process.pid), Limits(40_000_000).exceeded_by(process.pid)
        assert 50_000_000 < taken < 70_000_000
        assert data_bytes_of(process.pid) >= 50_000_000
        assert may.startswith(f"it took {taken / 1e6:.0f} MB of memory and may take 40 MB: see limits.memory")
        assert Limits(100_000_000).exceeded_by(process.pid) == Limits().exceeded_by(process.pid) == ""
        process.stdin.close()
    assert memory_of(process.pid) == data_bytes_of(process.pid) == 0


@pytest.mark.parametrize(("weight", "nice"), [(100, 0), (80, 1), (50, 3), (10, 10), (1, 19)])
def test_a_weight_is_a_nice_value(weight: int, nice: int) -> None:
    found = Limits.of(LimitsTable("64MB", weight))
    assert (found.memory_bytes, found.nice) == (64_000_000, nice)
    assert nice == 19 or 1.25**-0.5 < (1.25**-nice) / (weight / 100) < 1.25**0.5


def test_a_mistake_names_its_key(tmp_path: Path) -> None:
    file = tmp_path / "device.toml"
    for text, said in (
        ('memory = "much"', "apps.a.limits.memory: 'much' is not a size, such as 50MB"),
        ("cpu_weight = 0", "limits.cpu_weight: expected `int` >= 1"),
        ("disk = 1", "disk is not a key"),
    ):
        file.write_text(f'device = "d"\nstate = "s"\n[apps.a.limits]\n{text}\n')
        file.chmod(0o600)
        with pytest.raises(ConfigError) as caught:
            read_device(str(file))
        assert said in str(caught.value)
        assert str(caught.value).startswith(str(file))
