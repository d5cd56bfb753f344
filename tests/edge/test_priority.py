"""Urgent flows go first, also those of other processes; nobody holds the others up for long."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from geartrain.errors import DiskError
from geartrain_edge.uplink.device_claims import DeviceClaims
from geartrain_edge.uplink.priority import WAIT_S_MAX, Priority
from tests.edge.device_parent import ROOT


class Clock:
    """Time that passes only in sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def now_us(self) -> int:
        return int(self.now_s * 1e6)

    def monotonic_s(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)


class Said:
    """Claims of another process, as a rule over the time says."""

    def __init__(self, rule: Callable[[float], bool], clock: Clock) -> None:
        self._rule, self._clock = rule, clock
        self.calls: list[str] = []

    def claim(self) -> None:
        self.calls.append("claim")

    def release(self) -> None:
        self.calls.append("release")

    def is_claimed(self) -> bool:
        return self._rule(self._clock.now_s)


def waits(rule: Callable[[float], bool], works_s: float, until_s: float) -> list[float]:
    """How long each wait of a flow took that works so long between two."""
    clock = Clock()
    turn = Priority(Said(rule, clock), clock).turn("bulk", is_urgent=False)
    took: list[float] = []

    async def story() -> None:
        while clock.now_s < until_s:
            began = clock.now_s
            await turn.give_way()
            took.append(clock.now_s - began)
            clock.now_s += works_s

    asyncio.run(story())
    return took


def test_a_claim_is_waited_for_until_it_ends() -> None:
    took = waits(lambda now_s: 100.1 <= now_s < 100.3, 0.01, 100.6)
    (waited,) = [one for one in took if one]
    assert waited == pytest.approx(0.2, abs=0.011)


def test_a_claim_that_never_ends_costs_others_half_of_the_time() -> None:
    took = waits(lambda now_s: True, 0.01, 120.0)
    assert max(took) <= WAIT_S_MAX + 0.002
    assert sum(took) == pytest.approx(10.0, abs=2 * WAIT_S_MAX)


def test_claims_that_flicker_are_waited_for_each_time() -> None:
    """An urgent flow that sends often and shortly is never taken for one that claims forever."""
    took = waits(lambda now_s: now_s % 0.1 < 0.05, 0.01, 110.0)
    assert max(took) <= 0.052
    assert sum(took) > 2.5


def test_flows_of_one_process_make_one_claim_and_only_urgent_ones_do() -> None:
    clock = Clock()
    said = Said(lambda now_s: False, clock)
    shared = Priority(said, clock)
    first, second = (shared.turn(name, is_urgent=True) for name in ("a", "b"))
    plain = shared.turn("c", is_urgent=False)
    plain.claim()
    plain.release()
    first.release()
    assert said.calls == []
    first.claim()
    second.claim()
    first.claim()
    first.release()
    assert said.calls == ["claim"]
    second.release()
    second.release()
    assert said.calls == ["claim", "release"]


HOLDER = """
import sys, time
from pathlib import Path
from geartrain_edge.uplink.device_claims import DeviceClaims
claims = DeviceClaims(Path(sys.argv[1]))
for line in sys.stdin:
    {"claim": claims.claim, "release": claims.release, "look": lambda: None}[line.strip()]()
    print(claims.is_claimed(), flush=True)
"""


def test_a_claim_is_seen_by_other_processes_and_ends_with_its_own(tmp_path: Path) -> None:
    path = tmp_path / "urgent.lock"
    claims = DeviceClaims(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    holders = [
        subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]

    def say(holder: subprocess.Popen[str], word: str) -> str:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write(f"{word}\n")
        holder.stdin.flush()
        return holder.stdout.readline().strip()

    first, second = holders
    assert (say(first, "look"), claims.is_claimed()) == ("False", False)
    assert (say(first, "claim"), say(second, "look"), claims.is_claimed()) == ("False", "True", True)
    assert say(second, "claim") == "True"  # both at once
    say(first, "release")
    assert claims.is_claimed()
    os.kill(second.pid, signal.SIGKILL)
    second.wait()
    assert not claims.is_claimed()
    claims.claim()
    assert (claims.is_claimed(), say(first, "look")) == (False, "True")  # its own claim is no other's
    claims.close()
    assert say(first, "look") == "False"
    first.kill()
    for holder in holders:
        holder.communicate()


def test_a_file_that_cannot_be_opened_is_said(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="cannot be opened: No such file or directory"):
        DeviceClaims(tmp_path / "nowhere" / "urgent.lock")
