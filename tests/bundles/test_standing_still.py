"""A step that does not come back on a real device: it is named where people look, and when it is ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from geartrain.control.states import AppState
from tests.bundles.device import Device, Platform, device_world
from tests.bundles.versions import bundle


@pytest.fixture
def device(tmp_path: Path, broker_kind: Any) -> Iterator[Device]:
    with device_world(tmp_path, broker_kind) as found:
        yield found


def test_a_step_that_does_not_come_back_is_named_with_its_line(device: Device) -> None:
    device.file.write_text(device.file.read_text().replace("deadline_s = 3", "deadline_s = 12"))

    async def story(platform: Platform) -> None:
        code, _ = bundle("hangs later")
        assert platform.submit("hangs later") == code
        device.start()
        await platform.until(lambda: "has not come back" in platform.why)
        named = platform.why
        assert named.startswith("for 5 s step 'checked' has not come back from checked (/")
        assert f"/bundles/{code}/" in named
        assert named.endswith("coldroom/flow.py, line 20)")
        assert platform.state is AppState.RUNNING
        await platform.until(lambda: "it hangs" in platform.why)
        assert platform.why.startswith("it hangs: it has made no step for 12 s; for 5 s step 'checked'")

    device.tell(story)
