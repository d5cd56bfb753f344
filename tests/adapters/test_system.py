"""The machine's clock and randomness behind their ports."""

from __future__ import annotations

import asyncio
import time

from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.ports import Clock, Randomness


def test_clock_tells_microseconds_since_1970() -> None:
    clock: Clock = SystemClock()
    before = time.time_ns() // 1_000
    assert before <= clock.now_us() <= time.time_ns() // 1_000


def test_clock_sleeps_by_its_own_monotonic_time() -> None:
    clock: Clock = SystemClock()
    start = clock.monotonic_s()
    asyncio.run(clock.sleep(0.05))
    assert clock.monotonic_s() - start >= 0.049


def test_randomness_stays_in_bounds_and_does_not_repeat() -> None:
    dice: Randomness = SystemRandomness()
    drawn = [dice.uniform(2.0, 3.0) for _ in range(100)]
    assert all(2.0 <= one <= 3.0 for one in drawn)
    assert len(set(drawn)) == 100
    assert {len(dice.token(size)) for size in (0, 8, 16)} == {0, 8, 16}
    assert len({dice.token(8) for _ in range(100)}) == 100
