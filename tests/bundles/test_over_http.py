"""Authors, a real gear-control that other machines reach, and devices: over HTTP and HTTPS, with files.

The flow's package is on the author's side alone: platform and device have nothing of it but the bundle.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tuf.api.exceptions import DownloadHTTPError
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from geartrain_cloud.log.roster import RosterReader, changed
from geartrain_cloud.platform.places import PlatformPlaces, read_report, write_report
from tests import forked
from tests.bundles.test_repository import files_of
from tests.control.enrolled import Key
from tests.control.platform_client import Client, control_process
from tests.ports import free_port
from tests.waiting import WAIT_S

pytestmark = pytest.mark.slow

FLOW = """
from geartrain import Flow, Record, Table
from geartrain.testing import TestingSource
from secretflow.limits import LIMIT

class Reading(Record):
    sensor: str
    value: float

def hot(reading: Reading) -> bool:
    return reading.value > LIMIT

flow = Flow("heat")
readings = flow.source("readings", TestingSource(items=[]), out=Reading)
readings.filter(hot).sink("all", Table("heat"))
"""
PROJECT = '[project]\nname = "secretflow"\n[tool.geartrain]\nflow = "secretflow.flow:flow"\n'


@dataclass
class World:
    """A platform, and authors in folders of their own."""

    folder: Path
    client: Client
    device_port: int

    def project(self, limit: str = "LIMIT = 30.0\n", flow: str = FLOW, name: str = "project") -> Path:
        place = self.folder / name
        package = place / "src" / "secretflow"
        package.mkdir(parents=True, exist_ok=True)
        (place / "pyproject.toml").write_text(PROJECT)
        (package / "__init__.py").write_text("")
        (package / "limits.py").write_text(limit)
        (package / "flow.py").write_text(flow)
        return place

    def gear(self, *arguments: str, by: str = "alice", code: int = 0) -> str:
        """What a person's `gear` prints, with the keys of that person's folder alone."""
        own = {
            "GEARTRAIN_KEYS": str(self.folder / "keys" / by),
            "GEARTRAIN_STATE": str(self.folder / "state"),
        }
        done = forked.run(forked.GEAR, arguments, environment={**os.environ, **own}, folder=self.folder)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return " ".join((done.stdout + done.stderr).split())

    def ask(self, path: str, identity: Path | None) -> tuple[int, bytes]:
        """What the device listener answers to who shows this certificate."""
        fleet = next(PlatformPlaces(self.folder / "state").folder.rglob("ca.pem"))
        context = ssl.create_default_context(cafile=str(fleet))
        if identity is not None:
            context.load_cert_chain(identity)
        connection = http.client.HTTPSConnection(
            "localhost", self.device_port, timeout=WAIT_S, context=context
        )
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def join(self, name: str) -> Path:
        """A device that has joined: its key and its certificate in one file."""
        self.client.ask("POST", "/devices", {"name": name}, expect=201)
        token = self.client.ask("POST", f"/devices/{name}/token", {}, expect=201)[1]["token"]
        fleet = next(PlatformPlaces(self.folder / "state").folder.rglob("ca.pem"))
        context, key = ssl.create_default_context(cafile=str(fleet)), Key()
        connection = http.client.HTTPSConnection(
            "localhost", self.device_port, timeout=WAIT_S, context=context
        )
        connection.request("POST", "/v1/join", json.dumps({"token": token, "request": key.request}))
        answer = json.loads(connection.getresponse().read())
        connection.close()
        path = self.folder / f"{name}.pem"
        path.write_bytes(key.pem + answer["certificate"].encode())
        return path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder, port = tmp_path_factory.mktemp("trust"), free_port()
    state = folder / "state"
    state.mkdir()
    (state / "platform.toml").write_text(f'[fleet]\naddress = "localhost"\ndevice_port = {port}\n')
    with control_process(state) as (_, client):
        yield World(folder, client, port)


class Device(FetcherInterface):
    """A device's own look at the platform, over mutual TLS."""

    def __init__(self, world: World, identity: Path) -> None:
        self._world, self._identity = world, identity

    def _fetch(self, url: str) -> Iterator[bytes]:
        status, content = self._world.ask(urlsplit(url).path, self._identity)
        if status != 200:
            raise DownloadHTTPError("not found", status)
        yield content

    def bundle(self, folder: Path, code: str) -> bytes | None:
        base = f"https://localhost:{self._world.device_port}/v1"
        is_new = not folder.exists()
        folder.mkdir(exist_ok=True)
        root = b"".join(self._fetch(f"{base}/trust/1.root.json")) if is_new else None
        updater = Updater(
            str(folder),
            f"{base}/trust/",
            str(folder),
            f"{base}/bundles/",
            self,
            UpdaterConfig(prefix_targets_with_hash=True),
            bootstrap=root,
        )
        updater.refresh()
        info = updater.get_targetinfo(f"{code}.zip")
        if info is None:
            return None
        assert set(info.custom) <= {"app", "flow", "manifest", "program"}
        return Path(updater.download_target(info)).read_bytes()


def trust(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.client.get("/trust")
    return found


@pytest.mark.proof
def test_from_an_authors_folder_to_a_device(world: World) -> None:
    """One story, in order: each part rests on what was before."""
    project = world.project()
    check_refusals_without_keys(world, project)
    first = check_submit(world, project)
    check_devices_are_served(world, first)
    check_another_author(world)
    check_update_and_rollback(world, first)
    check_revisions(world)
    check_authors_at_once(world)
    check_hostile_requests(world)
    check_keys_are_taken_away(world)


def check_refusals_without_keys(world: World, project: Path) -> None:
    said = world.gear("submit", str(project), "--no-wait", by="nobody", code=2)
    assert "No module named 'secretflow'" in said or "there is no module" in said or "cannot be" in said
    assert "no keys in" in world.gear("key", "show", by="nobody", code=2)
    world.join("truck-1")
    (world.folder / "installed").mkdir()
    stocks = "geartrain_examples.stocks.flow:flow"
    said = world.gear("submit", stocks, "--set", "quotes.path=p.csv", "--no-wait", by="nobody", code=2)
    assert "device truck-1 runs signed bundles alone" in said
    assert "gear key new" in said
    assert world.client.get("/apps")["items"] == []


def check_submit(world: World, project: Path) -> str:
    assert "alice:" in world.gear("key", "new", "--name", "alice")
    assert "never overwritten" in world.gear("key", "new", "--name", "alice", code=2)
    assert "use 1 to 40 letters" in world.gear("key", "new", "--name", "../x", code=2)
    said = world.gear("submit", str(project), "--no-wait")
    assert "trusts the keys of alice from now on" in said
    assert "submitted heat.1" in said
    state = PlatformPlaces(world.folder / "state")
    wanted = _wanted_once(world)
    assert (Path(wanted["bundle"]) / "secretflow" / "limits.py").read_text() == "LIMIT = 30.0\n"
    assert not [
        path for path in state.folder.rglob("*.pem") if "PRIVATE" in path.read_text() and "root" in path.name
    ]
    before = trust(world)["targets"]
    world.gear("submit", str(project), "--name", "again", "--no-wait")
    assert trust(world)["targets"] == before  # the same code is signed once
    return Path(wanted["bundle"]).name


def check_devices_are_served(world: World, code: str) -> None:
    identity = world.folder / "truck-1.pem"
    device = Device(world, identity)
    got = files_of(device.bundle(world.folder / "device", code))
    assert got["secretflow/limits.py"] == b"LIMIT = 30.0\n"
    assert device.bundle(world.folder / "device", "0" * 64) is None
    for path in ("/v1/trust/timestamp.json", "/v1/trust/1.root.json", f"/v1/bundles/{code}.zip"):
        status, raw = world.ask(path, None)
        assert status in (400, 403), raw
        assert "certificate" in json.loads(raw)["error"]["sentence"]
    for path in (
        "/v1/trust/snapshot.pem",
        "/v1/trust/..%2Fkeys%2Fsnapshot.pem",
        "/v1/bundles/..%2F..%2Fcontrol.token",
    ):
        status, raw = world.ask(path, identity)
        assert status == 404
        assert "PRIVATE" not in raw.decode()


def check_another_author(world: World) -> None:
    other = world.project("LIMIT = 99.0\n", name="bobs")
    public = re.search(r"bob:[0-9a-f]{64}", world.gear("key", "new", "--name", "bob", by="bob"))
    assert public is not None
    said = world.gear("submit", str(other), "--name", "bobs", "--no-wait", by="bob", code=2)
    assert f"gear key trust {public[0]}" in said
    assert "does not trust the keys of bob" in world.gear("key", "trust", public[0], by="bob", code=2)
    assert "is no public key" in world.gear("key", "trust", "bob", code=2)
    assert "trust bundles of bob" in world.gear("key", "trust", public[0])
    assert "are not the root" in world.gear("key", "trust", f"carol:{'1' * 64}", by="bob", code=2)
    listed = json.loads(world.gear("key", "ls", "--json"))["keys"]
    assert {row["name"]: (row["here"], row["trusted"]) for row in listed} == {
        "alice": (True, True),
        "bob": (False, True),
    }
    world.gear("submit", str(other), "--name", "bobs", "--no-wait", by="bob")
    wanted = _wanted_once(world, "bobs.1")
    device = Device(world, world.folder / "truck-1.pem")
    got = files_of(device.bundle(world.folder / "device", Path(wanted["bundle"]).name))
    assert got["secretflow/limits.py"] == b"LIMIT = 99.0\n"


def check_authors_at_once(world: World) -> None:
    """Each signs upon what the others have signed, and none is lost."""
    given = [(f"p{n}", by) for n, by in enumerate(("alice", "bob", "alice", "bob"))]
    places = [world.project(f"LIMIT = {n}.5\n", name=name) for n, (name, _) in enumerate(given)]
    with ThreadPoolExecutor(4) as pool:
        waiting = [
            pool.submit(world.gear, "submit", str(place), "--name", name, "--no-wait", by=by)
            for place, (name, by) in zip(places, given, strict=True)
        ]
        for one in waiting:
            one.result()
    targets = json.loads(trust(world)["targets"])["signed"]["targets"]
    named = {Path(_wanted_once(world, f"{name}.1")["bundle"]).name for name, _ in given}
    assert len(named) == 4
    assert named <= {path.removesuffix(".zip") for path in targets}


def check_hostile_requests(world: World) -> None:
    """What is no bundle and no metadata is refused in a sentence, and without the token nothing is taken."""
    before = trust(world)
    for method, path, body, said in (
        ("PUT", "/bundles/x.zip", b"PK", "is no name of a bundle"),
        ("PUT", f"/bundles/{'0' * 64}.{'1' * 64}.zip", b"PK", "is no zip archive"),
        ("POST", "/trust/root", b'{"metadata": "{}"}', "cannot be read"),
        ("POST", "/trust/targets", b'{"metadata": "[]"}', "cannot be read"),
        ("POST", "/trust/targets", b'{"other": 1}', "unknown field"),
    ):
        status, _, raw = world.client.raw(method, f"/api/v1{path}", body)
        assert status == 400, raw
        assert said in json.loads(raw)["error"]["sentence"]
        assert Client(world.client.url).raw(method, f"/api/v1{path}", body)[0] == 401
    assert trust(world) == before
    stored = PlatformPlaces(world.folder / "state").bundles / "targets"
    assert not [path for path in stored.iterdir() if path.name.startswith(".")]


def _wanted(world: World, instance: str = "heat.1") -> dict[str, Any]:
    found = json.loads(PlatformPlaces(world.folder / "state").spark_wanted.read_text())["flows"].get(instance)
    return found if isinstance(found, dict) else {}


def _wanted_once(
    world: World, instance: str = "heat.1", is_so: Callable[[dict[str, Any]], bool] = bool
) -> dict[str, Any]:
    """What Spark's host is told of an instance, once it is so: control writes it behind its answer."""
    found = _wanted(world, instance)

    def has_come() -> bool:
        nonlocal found
        found = _wanted(world, instance)
        return is_so(found)

    until(has_come)
    return found


def _runs(code: str) -> Callable[[dict[str, Any]], bool]:
    return lambda told: Path(told.get("bundle", "")).name == code


def _has_revision(number: int) -> Callable[[dict[str, Any]], bool]:
    return lambda told: bool(told.get("revision", 1) == number)


def check_update_and_rollback(world: World, first: str) -> None:
    assert "was not updated" in world.gear("rollback", "heat", "--no-wait", code=2)
    assert "runs this code already" in world.gear("update", "heat", str(world.project()), "--no-wait", code=2)
    changed = world.project(flow=FLOW.replace("value: float", "value: float\n    unit: str"))
    said = world.gear("update", "heat", str(changed), "--no-wait", code=2)
    assert "had no field unit, now have one" in said
    assert Path(_wanted(world)["bundle"]).name == first
    said = world.gear("update", "heat", str(world.project("LIMIT = 40.0\n")), "--no-wait")
    second = Path(
        _wanted_once(world, is_so=lambda told: bool(told) and not _runs(first)(told))["bundle"]
    ).name
    assert f"heat.1 will run code {second[:12]} in place of {first[:12]}" in said
    assert (Path(_wanted(world)["bundle"]) / "secretflow" / "limits.py").read_text() == "LIMIT = 40.0\n"
    assert _wanted(world)["attempt"] == 2
    assert world.client.get("/devices/truck-1")["serial"] >= 3
    device = Device(world, world.folder / "truck-1.pem")
    assert (
        files_of(device.bundle(world.folder / "device", second))["secretflow/limits.py"] == b"LIMIT = 40.0\n"
    )
    world.gear("rollback", "heat", "--no-wait")
    _wanted_once(world, is_so=_runs(first))
    world.gear("rollback", "heat", "--no-wait")
    _wanted_once(world, is_so=_runs(second))
    assert "there is no app cold" in world.gear(
        "update", "cold", str(world.folder / "project"), "--no-wait", code=2
    )


MORE = FLOW.replace(
    'readings.filter(hot).sink("all", Table("heat"))',
    'kept = readings.filter(hot)\nkept.sink("all", Table("heat"))\nkept.sink("again", Table("again"))',
)


def host_says(world: World, **flow: Any) -> None:
    """Play the Spark host: it has come to all that it was told."""
    places = PlatformPlaces(world.folder / "state")
    told = read_report(places.spark_wanted)["serial"]
    flows = {"heat.1": {"state": "running", "run": 1, "revision": 1, "prepared": 1, **flow}}
    write_report(places.spark_status, {"serial": told, "flows": flows})


def host_lets_go(world: World) -> None:
    """Play the Spark host: it has no flow any more, whatever it is told from now on."""
    write_report(PlatformPlaces(world.folder / "state").spark_status, {"serial": 1_000_000, "flows": {}})


def until(condition: Callable[[], bool]) -> None:
    for _ in range(300):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come")


def revision_of_log(world: World) -> int:
    found = changed(RosterReader(PlatformPlaces(world.folder / "state").log).after())
    return found["heat.1"].revision


def check_named_steps(world: World) -> None:
    """Updates of named steps are refused where they would change others, or not these."""
    more = str(world.project("LIMIT = 40.0\n", flow=MORE))
    for words, says in (
        (("attach", "heat", more, "other"), "not named: again attached"),
        (("attach", "heat", more, "again", "all"), "would not be attached by this flow: all"),
        (("replace", "heat", more, "all"), "otherwise than asked: again attached"),
        (("attach", "heat", more, "again", "--from", "soon"), "--from soon: write now, earliest or a time"),
        (("remove", "heat", "again"), "has no step 'again'"),
        (("remove", "heat", "all"), "no sink would be left"),
    ):
        before = _wanted(world)
        assert says in world.gear(*words, "--no-wait", code=2)
        assert _wanted(world) == before


def check_a_step_is_removed(world: World) -> None:
    """What runs goes on without a step, with the code that it has, and back."""
    before = _wanted(world)
    said = world.gear("remove", "heat", "again", "--dry-run")
    assert "again removed" in said
    assert "nothing was changed" in said
    world.gear("remove", "heat", "again", "--drain", "--no-wait")
    wanted = _wanted_once(world, is_so=_has_revision(3))
    assert (wanted["without"], wanted["drain"]) == (["again"], True)
    assert wanted["bundle"] == before["bundle"]
    assert "revision 3 is given up" in world.gear("rollback", "heat", "--no-wait")
    _wanted_once(world, is_so=before.__eq__)


def check_revisions(world: World) -> None:
    """Steps are attached and taken away while the app runs; the test plays the Spark host."""
    more = str(world.project("LIMIT = 40.0\n", flow=MORE))
    refused = world.gear("update", "heat", more, "--no-wait", code=2)
    assert "it is starting, and only an app that runs goes over" in refused
    host_says(world)
    until(lambda: bool(world.client.get("/apps/heat")["state"] == "running"))
    before = _wanted(world)
    said = world.gear("update", "heat", more, "--dry-run")
    assert "again attached" in said
    assert "table again: is made with the first row" in said
    assert "nothing was changed" in said
    assert "as revision 2" in said
    refused = world.gear("update", "heat", more, "--only", "replace", "--only", "remove", code=2)
    assert "steps would change otherwise than asked: " in refused
    other = world.project(flow=FLOW.replace("readings.filter(hot)", "readings"))
    said = world.gear("update", "heat", str(other), "--dry-run")
    assert "all replaced it read hot, now reads readings hot removed" in said
    assert _wanted(world) == before
    check_named_steps(world)
    world.gear("attach", "heat", more, "again", "--no-wait")
    wanted = _wanted_once(world, is_so=_has_revision(2))
    assert (len(wanted["former"]), wanted["attempt"]) == (1, before["attempt"])
    assert wanted["former"][0]["bundle"] == before["bundle"] != wanted["bundle"]
    assert "2 being prepared" in world.gear("revisions", "heat")
    assert "1, in force; revision 2 is being prepared" in world.gear("info", "heat")
    assert "is to go over to revision 2" in world.gear("replay", "heat", code=2)
    assert "revision 2 is given up" in world.gear("rollback", "heat", "--no-wait")
    _wanted_once(world, is_so=before.__eq__)
    world.gear("update", "heat", more, "--no-wait")
    _wanted_once(world, is_so=_has_revision(2))
    serial = world.client.get("/devices/truck-1")["serial"]
    assert revision_of_log(world) == 1
    host_says(world, prepared=2)
    until(lambda: revision_of_log(world) == 2)
    assert world.client.get("/devices/truck-1")["serial"] == serial + 1
    refused = world.gear("rollback", "heat", "--no-wait", code=2)
    assert "revision 2 is not in force yet" in refused
    host_says(world, stuck=2, why="revision 2: its code raises")
    world.gear("rollback", "heat", "--no-wait")  # which passes over it
    wanted = _wanted_once(world, is_so=_has_revision(3))
    assert (wanted["follows"], wanted["bundle"]) == (1, before["bundle"])
    host_says(world, prepared=3, revision=2)  # it came into force all the same
    until(lambda: "follows" not in _wanted(world))
    assert (_wanted(world)["revision"], revision_of_log(world)) == (2, 2)
    host_says(world, prepared=2, revision=2)
    assert "revision number: 2, in force" in world.gear("info", "heat")
    check_a_step_is_removed(world)
    listed = json.loads(world.gear("revisions", "heat", "--json"))
    assert [(one["number"], one["state"]) for one in listed] == [(2, "in force"), (1, "former")]
    said = world.gear("rollback", "heat", "--dry-run")
    assert "again removed" in said
    assert "table again: stays as it is" in said
    world.gear("rollback", "heat", "--no-wait")
    assert _wanted_once(world, is_so=_has_revision(3))["bundle"] == before["bundle"]
    host_says(world, prepared=3, revision=3)
    until(lambda: revision_of_log(world) == 3)
    host_lets_go(world)
    world.gear("kill", "heat", "--now")
    assert "only an app that runs goes over" in world.gear("rollback", "heat", "--no-wait", code=2)


def check_keys_are_taken_away(world: World) -> None:
    public = world.gear("key", "show", by="bob")
    device = Device(world, world.folder / "truck-1.pem")
    assert "are not taken any more" in world.gear("key", "distrust", public)
    assert "does not trust this key" in world.gear("key", "distrust", public, code=2)
    other = world.project("LIMIT = 1.0\n", name="bobs")
    said = world.gear("submit", str(other), "--name", "stolen", "--no-wait", by="bob", code=2)
    assert "does not trust the keys of bob" in said
    last = Path(_wanted(world, "bobs.1")["bundle"]).name
    assert files_of(device.bundle(world.folder / "device", last))["secretflow/limits.py"] == b"LIMIT = 99.0\n"
    own = world.gear("key", "show")
    assert "the only one" in world.gear("key", "distrust", own, code=2)
