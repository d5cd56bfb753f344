"""Questions to a step that some devices run by cuts of their own, and the data centre for the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from geartrain.adapters.system import SystemClock
from geartrain.control.questions import DeviceAnswer, ToldByDevice
from geartrain_cloud.control.device_questions import DeviceQuestions, Heard
from geartrain_cloud.control.hosting import HostReport
from geartrain_cloud.control.questions import Questions
from geartrain_cloud.control_store.model import CutRule
from geartrain_cloud.hosting.questions import Answer, Question, QuestionFolder
from geartrain_cloud.platform.places import PlatformPlaces
from geartrain_cloud.rest.answering import sentences
from geartrain_cloud.rest.openapi import ROOT
from geartrain_cloud.rest.requests import BODY_BYTES_MAX
from geartrain_cloud.rest.routes import add_routes
from tests.control.test_cuts import Fleet
from tests.control.test_questions import host


class Devices(DeviceQuestions):
    """Devices that answer as the test has it; None: the device is silent."""

    def __init__(self, keys: dict[str, list[str] | None]) -> None:
        super().__init__(SystemClock())
        self._keys = keys
        self.asked: list[list[str]] = []

    async def ask(
        self,
        instance: str,
        devices: Collection[str],
        step: str,
        key: str | None,
        wait_s: float,
        is_enough: Callable[[Heard], bool],
    ) -> tuple[list[Heard], set[str]]:
        self.asked.append(sorted(devices))
        heard = []
        for device in devices:
            keys = self._keys[device]
            if keys is not None:
                told = ToldByDevice(key, key in keys, {}, keys if key is None else [])
                heard.append(Heard(device, DeviceAnswer("q", b"12345678", 7, 5, told), 9))
        return heard, {device for device in devices if self._keys[device] is None}


class World:
    """An app whose step `sums` stands on `away` and `d1`, and in the data centre for `d2`."""

    def __init__(self, folder: Path, devices: Devices, in_cloud: list[str] | None) -> None:
        self.fleet = Fleet(folder)
        self.fleet.submit(CutRule("kind=truck", "sums"))
        self.folder = folder
        self.devices, self.in_cloud = devices, in_cloud
        self.hosted: dict[str, HostReport] = {}
        self.questions = Questions(
            self.fleet.store,
            QuestionFolder(PlatformPlaces(folder).questions),
            SystemClock(),
            devices,
            lambda name: self.hosted.get(name, HostReport()),
        )

    def ask(self, path: str) -> tuple[int, Any]:
        def answer(question: Question) -> Answer | None:
            if self.in_cloud is None:
                return None
            found = question.key in self.in_cloud
            return Answer(
                question.id, key=question.key, found=found, keys=[] if question.key else self.in_cloud
            )

        async def story() -> tuple[int, Any]:
            app = web.Application(middlewares=[sentences(ROOT, BODY_BYTES_MAX)])
            add_routes(app, ROOT, [self.questions])
            async with TestClient(TestServer(app)) as client:
                answer = await client.get(f"{ROOT}/apps/heat/steps/{path}")
                return answer.status, await answer.json()

        with host(self.folder, answer):
            return asyncio.run(story())

    def refusal(self, path: str) -> str:
        status, said = self.ask(path)
        assert status in (400, 404, 409), said
        return str(said["error"]["sentence"])


def test_the_one_that_has_the_key_answers(tmp_path: Path) -> None:
    devices = Devices({"away": ["a"], "d1": ["b"]})
    world = World(tmp_path, devices, ["c"])
    found = [world.ask(f"sums/state?key={key}")[1] for key in "abcd"]
    assert [(one["found"], one.get("device")) for one in found[:3]] == [
        (True, "away"),
        (True, "d1"),
        (True, None),
    ]
    assert not found[3]["found"]
    assert devices.asked == [["away", "d1"]] * 4
    assert sorted(world.ask("sums/state")[1]["keys"]) == ["a", "b", "c"]


def test_a_key_is_not_told_as_missing_while_somebody_is_silent(tmp_path: Path) -> None:
    devices = Devices({"away": None, "d1": None})
    world = World(tmp_path, devices, ["c"])
    assert world.ask("sums/state?key=c")[1]["found"]
    assert world.refusal("sums/state?key=a&wait_s=1").startswith("no device has answered within 1 s")
    devices._keys["d1"], world.in_cloud = ["b"], None
    assert world.ask("sums/state?key=b&wait_s=1")[1]["device"] == "d1"
    assert world.refusal("sums/state?key=a&wait_s=1").startswith("no micro-batch has answered within 1 s")
    world.hosted = {"heat.1": HostReport(state="running", micro_batch_ms=14_200.0)}
    assert world.refusal("sums/state?key=a&wait_s=1") == (
        "no micro-batch has answered within 1 s: a question waits for the micro-batch under way and then for "
        "a short one, and the last one took 14 s: wait longer, with --timeout up to 50s, or see gear info "
        "heat"
    )


def test_a_named_device_is_asked_alone_and_has_to_run_the_step(tmp_path: Path) -> None:
    devices = Devices({"d1": ["b"]})
    world = World(tmp_path, devices, ["c"])
    assert not world.ask("sums/state?key=c&device=d1")[1]["found"]
    assert devices.asked == [["d1"]]
    assert world.refusal("sums/state?key=c&device=d2") == (
        "device: step 'sums' of device 'd2' runs in the data centre, and no device is asked"
    )
    assert "does not run on device 'd9'" in world.refusal("sums/state?key=c&device=d9")


@pytest.mark.parametrize("cut", ["doubled", "high"])
def test_devices_with_another_step_of_their_own_are_not_asked(tmp_path: Path, cut: str) -> None:
    world = World(tmp_path, Devices({}), ["c"])
    for device in ("away", "d1"):
        world.fleet.store.desired.cut("heat.1", {device: cut})
    assert world.ask("sums/state?key=c")[1]["found"]
