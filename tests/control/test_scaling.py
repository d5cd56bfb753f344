"""Over how many slots an app's keys are dealt: asked for by REST, told to the host, or refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace

from geartrain.flow.loading import load_flow
from geartrain.planning import make_plan
from geartrain.revision import revision_of
from geartrain_cloud.control.hosting import HostReport, ToHost, write_hosted
from geartrain_cloud.control.scaling import Scales
from geartrain_cloud.control_store.model import State
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from geartrain_cloud.rest.answering import sentences
from geartrain_cloud.rest.openapi import ROOT
from geartrain_cloud.rest.requests import BODY_BYTES_MAX
from geartrain_cloud.rest.routes import add_routes
from tests.control.test_reconciler import ASKED
from tests.control.test_revisions import outline, planned

KEYED = HostReport("running", stages=1, slots=2, micro_batch_ms=350.0)


class World:
    """An app that runs, and what its host says."""

    def __init__(self, folder: Path) -> None:
        ticks = iter(range(1, 10**9))
        self.store = ControlStore(folder / "control.sqlite", lambda: next(ticks))
        self.places = PlatformPlaces(folder)
        self.host, self.changes = KEYED, 0
        self.store.devices.add("d1", {})
        self.store.apps.submit(ASKED, outline("a"))
        self.store.apps.enter("heat.1", State.RUNNING)

    def changed(self) -> None:
        self.changes += 1

    def ask(self, key: str = "", app_name: str = "heat", **body: Any) -> tuple[int, Any]:
        async def story() -> tuple[int, Any]:
            app = web.Application(middlewares=[sentences(ROOT, BODY_BYTES_MAX)])
            add_routes(app, ROOT, [Scales(self.store, self.changed, lambda name: self.host)])
            async with TestClient(TestServer(app)) as client:
                headers = {"Idempotency-Key": key} if key else {}
                answer = await client.post(f"{ROOT}/apps/{app_name}/scale", json=body, headers=headers)
                return answer.status, await answer.json()

        return asyncio.run(story())

    def refusal(self, app_name: str = "heat", **body: Any) -> str:
        status, said = self.ask("", app_name, **body)
        assert status == 409, said
        return str(said["error"]["sentence"])

    def told(self) -> Any:
        """The slots that the host is told."""
        write_hosted(self.places, [ToHost(self.store.apps.newest("heat"))])
        return read_report(self.places.spark_wanted)["flows"]["heat.1"].get("slots")


def test_other_slots_are_told_to_the_host_and_stay(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.told() is None
    status, dry = world.ask(slots=8, dry_run=True)
    assert (status, dry["refusals"], dry["former"], dry["pause_ms"]) == (200, [], 2, 700)
    assert (world.told(), world.changes) == (None, 0)
    status, said = world.ask("one", slots=8)
    assert (status, said["slots"], said["instance"]) == (202, 8, "heat.1")
    assert world.told() == 8
    assert world.ask("one", slots=8) == (202, said)
    world.host = HostReport("running", stages=1, slots=8)
    assert world.store.apps.replay("heat").slots == 8
    instance = world.store.apps.newest("heat")
    world.store.apps.plan("heat", planned(instance, "b"))
    world.store.apps.cross("heat.1")
    assert world.store.apps.newest("heat").slots == world.told() == 8


def test_how_much_the_slots_keep_is_told_before_the_change(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.ask(slots=8, dry_run=True)[1]["state_bytes"] is None
    world.host = HostReport("running", stages=1, slots=2, state_bytes=21_449_000)
    assert world.ask(slots=8, dry_run=True)[1]["state_bytes"] == 21_449_000


@pytest.mark.parametrize(
    ("host", "says"),
    [
        (HostReport("running"), "keeps its slots: it has no step behind a key in the data centre"),
        (HostReport("running", stages=1, slots=2, slots_wanted=4), "are being dealt over 4 slots: wait"),
    ],
)
def test_what_is_in_the_way_is_one_sentence(tmp_path: Path, host: HostReport, says: str) -> None:
    world = World(tmp_path)
    world.host = host
    assert says in world.refusal(slots=8)


def test_the_host_is_told_whose_table_each_slot_has_whole(tmp_path: Path) -> None:
    world = World(tmp_path)
    plan = make_plan(load_flow("geartrain_examples.traffic.flow:flow").graph(), "auto")
    told = replace(outline("c"), document=revision_of("traffic", plan).to_json())
    world.store.apps.submit(replace(ASKED, name="city"), told)
    world.store.apps.enter("city.1", State.RUNNING)
    status, dry = world.ask("one", "city", slots=4, dry_run=True)
    assert (status, dry["refusals"]) == (200, [])
    write_hosted(world.places, [ToHost(world.store.apps.newest("city"))])
    assert read_report(world.places.spark_wanted)["flows"]["city.1"]["broadcasts"] == ["placed"]


def test_an_app_goes_over_to_one_thing_at_a_time(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert "its keys are dealt over 2 slots already" in world.refusal(slots=2)
    for slots in (0, 65):
        assert "the body: slots: " in world.ask(slots=slots)[1]["error"]["sentence"]
    world.store.apps.plan("heat", planned(world.store.apps.newest("heat"), "b"))
    assert "it is to go over to revision 2: wait until that is in force" in world.refusal(slots=4)
    world.store.apps.give_up("heat", "heat.1")
    world.store.apps.enter("heat.1", State.FAILED, "it raised")
    assert "it has failed, and only an app that runs goes over: gear resume" in world.refusal(slots=4)
    assert world.told() is None
