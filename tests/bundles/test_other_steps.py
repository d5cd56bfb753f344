"""Code with other steps on a real device: it crosses with its first records, or goes back before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from geartrain.control.states import AppState
from geartrain_edge.bundles.choice import short
from tests.bundles.device import INSTANCE, Device, Platform, device_world


@pytest.fixture
def device(tmp_path: Path, broker_kind: Any) -> Iterator[Device]:
    with device_world(tmp_path, broker_kind) as found:
        yield found


def crossings(device: Device) -> int:
    """How often the app has gone over, as its spool counts."""
    return int(device.status().get("counters", {}).get("crossings", 0))


@pytest.mark.parametrize(("kind", "words"), [("exits", "ended with 7"), ("hangs", "hangs")])
def test_other_steps_that_fail_at_the_first_record_have_not_gone_over(
    device: Device, kind: str, words: str
) -> None:
    async def story(platform: Platform) -> None:
        first = platform.submit("good", 1)
        device.start()
        await platform.until_runs(first)
        second = platform.submit(kind, 2, has_more=True)
        await platform.until(lambda: f"{short(second)} went back to {short(first)}" in platform.why)
        assert words in platform.why
        await platform.until_runs(first)
        assert crossings(device) == 0
        device.kill()  # it is not tried again after that
        device.start()
        await platform.until_rows()
        assert device.runs() == first
        third = platform.submit("better", 3, has_more=True)
        await platform.until_runs(third)
        await platform.until(lambda: (platform.why, platform.state) == ("", AppState.RUNNING))
        await platform.until(lambda: crossings(device) == 1)

    device.tell(story)


def test_a_device_that_dies_at_each_step_goes_over_once_and_never_to_what_was_superseded(
    device: Device,
) -> None:
    async def story(platform: Platform) -> None:
        first = platform.submit("good", 1)
        device.start()
        await platform.until_runs(first)
        device.kill()
        superseded = platform.submit("good", 2, has_more=True)  # while nobody hears it
        third = platform.submit("better", 3, has_more=True)
        steps: list[Callable[[], bool]] = [
            (device.state / "bundles" / third).is_dir,
            lambda: device.runs() == third,
            lambda: device.committed() == third,
        ]
        for step in steps:
            device.start()
            await platform.until(step)
            device.kill()
        device.start()
        await platform.until_runs(third)
        await platform.until(lambda: crossings(device) == 1)
        assert superseded not in device.bundles()
        assert superseded not in (device.state / INSTANCE / "agent.log").read_text()

    device.tell(story)
