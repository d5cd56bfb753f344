"""A step on a device is asked what it keeps of a key: how long the answer takes, over a real broker.

The device runs a flow of 1,000 records a second beside, before a real ingest. Each answer's count is never
less than that of the answer before it for the same key, and belongs to a later batch or the same one.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

from geartrain.adapters.mqtt import AiomqttNet
from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.control.states import App
from geartrain_cloud.control.device_questions import DeviceQuestions
from tests.bench.asked_flow import SENSORS
from tests.bench.harness import Work, scaled
from tests.bench.test_bench_urgent import running
from tests.edge.device_parent import Device, Platform

ASKED = scaled(1_000, least=50)
GOAL_MS = 50.0
INSTANCE = "asked.1"


def test_a_device_answers(tmp_path: Path) -> None:
    took: list[float] = []
    with running(tmp_path, {INSTANCE: ("samples", "counting")}) as device:
        device.run(lambda platform: _story(platform, device, took))
    work = Work(
        "a question to a step on a device, asked to answered (less is better)",
        "ms",
        {"p50": lambda: statistics.median(took), "goal": lambda: GOAL_MS},
        "goal",
    )
    work.notes.append(
        f"p95 {statistics.quantiles(took, n=20)[-1]:.1f} ms, longest {max(took):.1f} ms, {len(took)} asked"
    )
    work.run(rounds=1)
    assert len(took) == ASKED


async def _story(platform: Platform, device: Device, took: list[float]) -> None:
    platform.want(App(INSTANCE, "tests.bench.asked_flow:flow", cut="edge"))
    device.start()
    await platform.until(lambda: device.status(INSTANCE).get("acked_seq", 0) > 0)
    clock, questions = SystemClock(), DeviceQuestions(SystemClock())
    connection = asyncio.create_task(questions.run(AiomqttNet(*device.address), SystemRandomness()))
    before: dict[str, tuple[int, int]] = {}
    try:
        await clock.sleep(1.0)
        while len(took) < ASKED:
            key, began_s = f"s{len(took) % SENSORS}", time.perf_counter()
            [heard], _ = await questions.ask(INSTANCE, ["truck-1"], "counting", key, 10.0, lambda one: True)
            took.append((time.perf_counter() - began_s) * 1_000)
            place = (heard.answer.seq, heard.answer.told.told["state"]["count"])
            assert before.get(key, (0, 0)) <= place
            before[key] = place
            await clock.sleep(0.005)
    finally:
        connection.cancel()
