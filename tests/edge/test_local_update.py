"""Other code on a device of the platform's own machine: what is installed there takes the place of what ran.

The spool was begun with the former code. The platform names the new one, which takes the place of a person's
`mended` in the agent's file; code that nobody names is refused as before.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from geartrain.control.states import App, AppState
from geartrain.revision import code_of
from tests.edge.device_parent import Device, Platform
from tests.edge.test_changed_flow import TASKS, own_flow

FLOW = "changedtest.flow:flow"


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The hash of the flow's files as they are installed now."""
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.delitem(sys.modules, "changedtest", raising=False)
        try:
            return code_of(FLOW).hash
        finally:
            sys.modules.pop("changedtest", None)


def test_installed_code_that_the_platform_names_goes_on_with_the_spool(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code").mkdir()
    tasks = own_flow(tmp_path / "code").parent / "changedtest" / "tasks.py"
    former = installed(tmp_path / "code", monkeypatch)
    log, spools = device.state / "stocks.1" / "agent.log", []

    def want(platform: Platform, code: str) -> None:
        platform.want(App("stocks.1", FLOW, cut="cloud", code=code))

    async def begins(platform: Platform, *others: int) -> None:
        """Wait until an agent that is none of the others runs on the spool."""
        await platform.until(lambda: device.status("stocks.1").get("state") == "greeting")
        await platform.until(lambda: device.status("stocks.1")["pid"] not in others)
        await platform.until(lambda: bool(device.status("stocks.1")["epoch"]))
        spools.append(device.status("stocks.1")["epoch"])

    async def story(platform: Platform) -> None:
        want(platform, former)
        device.start({**os.environ, "PYTHONPATH": str(tmp_path / "code")})
        await begins(platform)
        pid = device.status("stocks.1")["pid"]
        tasks.write_text(TASKS.replace("> 2", "> 3_000"))
        changed = installed(tmp_path / "code", monkeypatch)
        assert changed != former
        want(platform, changed)
        await begins(platform, pid)
        assert "goes on with changed files (file changedtest/tasks.py has changed)" in log.read_text()
        assert spools[0] == spools[1]
        tasks.write_text(TASKS.replace("> 2", "> 40_000"))
        want(platform, former)
        await platform.until(lambda: platform.state("stocks.1") is AppState.FAILED)
        assert f"and was submitted with {former[:12]}: install what was" in platform.why("stocks.1")

    device.run(story)
