"""What control bounds where only the log can answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from geartrain_cloud.control import explaining
from geartrain_cloud.control.explaining import WAITING_MAX, Explanations
from geartrain_cloud.control_store.errors import TooManyError
from geartrain_cloud.explaining.question import RecordsQuestion
from geartrain_cloud.platform.config import PlatformConfig
from geartrain_cloud.short_process import Ended


def test_a_bounded_number_of_requests_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = asyncio.run(_ask_much(tmp_path, monkeypatch))
    assert answers == [{"done": True}] * (WAITING_MAX + 2)


async def _ask_much(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    going, running = asyncio.Event(), 0

    async def run_short(*_: object) -> Ended:
        nonlocal running
        running += 1
        assert running == 1
        await going.wait()
        running -= 1
        return Ended(0, b'{"answer": {"done": true}}', b"")

    monkeypatch.setattr(explaining, "run_short", run_short)
    nothing: Any = None
    explanations = Explanations(nothing, PlatformConfig(folder), nothing)

    async def ask() -> dict[str, Any]:
        return await explanations._ask(nothing, RecordsQuestion("heat.1", "log", 0, 1), 60, 100)

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ask()) for _ in range(WAITING_MAX + 1)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyError, match="8 others wait"):
            await ask()
        going.set()
    return [*(one.result() for one in asked), await ask()]
