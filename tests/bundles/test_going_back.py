"""New code of an app on a real device: it stays after its first commit, and goes back if it fails before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from geartrain.control.states import AppState
from geartrain_edge.bundles.choice import short
from tests.bundles.device import Device, Platform, device_world


@pytest.fixture
def device(tmp_path: Path, broker_kind: Any) -> Iterator[Device]:
    with device_world(tmp_path, broker_kind) as found:
        yield found


def test_an_app_runs_from_its_bundle_and_other_code_takes_its_place(device: Device) -> None:
    async def story(platform: Platform) -> None:
        first = platform.submit("good")
        device.start()
        await platform.until_runs(first)
        bundle = device.state / "bundles" / first
        modes = {path.name: path.stat().st_mode & 0o777 for path in [bundle, *bundle.rglob("*")]}
        assert modes.pop(first) == modes.pop("coldroom") == 0o700
        assert modes == {"__init__.py": 0o600, "flow.py": 0o600, "geartrain-bundle.json": 0o600}
        second = platform.submit("better")
        await platform.until_runs(second)
        await platform.until(lambda: device.bundles() == {second})  # the former is needed by no app
        await platform.until(lambda: (platform.state, platform.why) == (AppState.RUNNING, ""))
        assert device.status()["counters"]["records_read"] > 5  # of one spool, that goes on
        device.kill()
        device.start()
        await platform.until_rows()
        assert device.runs() == second

    device.tell(story)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("raises", "no such sensor"),
        ("exits", "ended with 7"),
        ("hangs", "hangs"),
        ("leaks", "leaks"),
        ("imports forever", "hangs"),
    ],
)
def test_code_that_fails_before_its_first_commit_goes_back(device: Device, kind: str, words: str) -> None:
    async def story(platform: Platform) -> None:
        first = platform.submit("good")
        device.start()
        await platform.until_runs(first)
        pid = device.status()["pid"]
        second = platform.submit(kind)
        await platform.until(lambda: f"{short(second)} went back to {short(first)}" in platform.why)
        assert words in platform.why
        await platform.until_runs(first)
        if kind in ("raises", "imports forever"):  # it was loaded beside the process that ran
            assert device.status()["pid"] == pid
        await platform.until(lambda: platform.state is AppState.RUNNING)
        device.kill()  # it is not tried again after that
        device.start()
        await platform.until_rows()
        assert device.runs() == first
        await platform.until(lambda: words in platform.why)
        third = platform.submit("better")
        await platform.until_runs(third)
        await platform.until(lambda: platform.why == "")

    device.tell(story)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("later", "ended with 7"),
        ("exits as for what heals", "ended with 1"),
        ("exits as for a mistake", "ended with 2"),
        ("exits as for an alarm", "ended with 3"),
    ],
)
def test_code_that_fails_after_its_first_commit_stays_and_stops_by_name(
    device: Device, kind: str, how: str
) -> None:
    async def story(platform: Platform) -> None:
        first = platform.submit("good")
        device.start()
        await platform.until_runs(first)
        second = platform.submit(kind)
        await platform.until(lambda: device.committed() == second)
        await platform.until(lambda: platform.state is AppState.FAILED)
        assert f"bundle {short(second)} has failed 2 times in a row" in platform.why
        assert how in platform.why
        said = [app for report in platform.reports for app in report.apps]
        assert any(one.state is AppState.RUNNING and f"{how} and is started again" in one.why for one in said)
        assert device.runs() == second

    device.tell(story)


def test_code_that_fails_and_has_none_before_it_is_shown_as_failing_and_stops_by_name(device: Device) -> None:
    async def story(platform: Platform) -> None:
        code = platform.submit("exits at once")
        device.start()
        await platform.until(lambda: platform.state is AppState.FAILED)
        said = [app for report in platform.reports for app in report.apps if "ended with 1" in app.why]
        assert any("its agent ended with 1 and is started again" in one.why for one in said)
        assert said[-1].why.startswith(f"bundle {short(code)} has failed 2 times in a row and is not started")
        assert device.committed() == ""

    device.tell(story)
