"""`gear agent upgrade` against a real gear-control: wheels become a program that devices are served."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest

from geartrain.bundle import ProgramArchive
from tests.bundles.test_over_http import Device, World
from tests.control.platform_client import control_process
from tests.flash.made_wheels import own_parts, wheel, write_wheels
from tests.ports import free_port

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder, port = tmp_path_factory.mktemp("programs"), free_port()
    state = folder / "state"
    state.mkdir()
    (state / "platform.toml").write_text(f'[fleet]\naddress = "localhost"\ndevice_port = {port}\n')
    with pytest.MonkeyPatch.context() as patch, control_process(state) as (_, client):
        patch.setenv("PIP_NO_INDEX", "1")
        yield World(folder, client, port)


def shelf(world: World, version: str) -> str:
    """A folder with the wheels of a version."""
    folder = world.folder / f"wheels-{version}"
    write_wheels(folder, *own_parts(["tool"], version=version), ("tool", "1.2", wheel("tool", "1.2")))
    return str(folder)


def wanted(world: World, name: str) -> tuple[str, str, str]:
    agent = world.client.get(f"/devices/{name}")["agent"]
    return agent["wanted"], agent["wanted_version"], agent["state"]


def test_wheels_become_a_signed_program_that_devices_are_to_run(world: World) -> None:
    world.gear("key", "new")
    identity = world.join("truck-1")
    world.join("truck-2")
    world.client.ask("POST", "/devices", {"name": "here", "local": True}, expect=201)
    asked = ("--devices", "all", "--arch", "arm64", "--python", "3.11")
    said = world.gear("agent", "upgrade", "--to", "0.9.0", "--wheels", shelf(world, "0.9.0"), *asked)
    assert "here is left out: gear up runs it" in said
    assert "fetching wheels of Geartrain 0.9.0 for arm64, Python 3.11" in said
    assert "applied by 0 of 2 devices; truck-1, truck-2 out of contact: they change when they come" in said
    program, version, state = wanted(world, "truck-1")
    assert (version, state) == ("0.9.0", "offline")
    assert wanted(world, "truck-2") == (program, version, state)
    assert wanted(world, "here")[0] == ""
    device = Device(world, identity)
    raw = device.bundle(world.folder / "seen", program)
    assert raw is not None
    manifest = ProgramArchive(io.BytesIO(raw)).manifest
    assert (manifest.version, manifest.machine, manifest.code) == ("0.9.0", "3.11 aarch64", program)
    assert "geartrain_edge/agent/process.py" in manifest.files
    assert "tool-1.2.dist-info/METADATA" in manifest.files
    listed = world.gear("agent", "ls")
    assert f"truck-1 0.9.0 {program[:8]} offline never" in listed
    items = json.loads(world.gear("agent", "ls", "--devices", "truck-2", "--json"))
    assert [(one["name"], one["wanted"], one["online"]) for one in items] == [("truck-2", program, False)]
    assert f"agent: not known; 0.9.0 {program[:8]} is wanted: offline" in world.gear(
        "device", "show", "truck-1"
    )
    # A former version comes the same way, and the program between is kept, as the devices may go back to it.
    world.gear(
        *("agent", "upgrade", "--to", "0.8.0", "--wheels", shelf(world, "0.8.0"), "--no-wait"),
        *("--devices", "truck-1", "--arch", "arm64", "--python", "3.11"),
    )
    assert wanted(world, "truck-1")[1] == "0.8.0"
    assert {program, wanted(world, "truck-1")[0]} <= set(world.client.get("/trust")["used"])
    assert device.bundle(world.folder / "seen", program) == raw


def test_what_cannot_be_is_refused_in_a_sentence(world: World) -> None:
    world.gear("key", "new", by="bob")
    for name, more in (("far", {}), ("own", {"local": True})):
        world.client.ask("POST", "/devices", {"name": name, **more}, expect=201)
    upgrade = ("agent", "upgrade", "--wheels", shelf(world, "0.9.0"))
    for arguments, said in (
        (("--to", "latest", "--devices", "far"), "--to latest: write a version, such as 0.3.0"),
        (("--to", "0.9.0", "--devices", "kind=plane"), "no device fits"),
        (("--to", "0.9.0", "--devices", "far"), "far was not heard yet"),
        (("--to", "0.9.0", "--devices", "own"), "gear up runs all of these devices itself"),
    ):
        assert said in world.gear(*upgrade, *arguments, by="bob", code=2)
    kind = ("--arch", "arm64", "--python", "3.11")
    assert "gear key new" in world.gear(
        *upgrade, "--to", "0.9.0", "--devices", "far", *kind, by="nobody", code=2
    )
    assert "cannot be had" in world.gear(
        *upgrade, "--to", "0.7.0", "--devices", "far", *kind, by="bob", code=1
    )
    one = "1" * 64
    for body, status, said in (
        (
            {"program": one, "devices": ["far"]},
            409,
            "there is no program 111111111111 that an author has signed",
        ),
        ({"program": one, "devices": []}, 400, "name 1 to 1,000"),
        ({"program": one}, 400, "devices"),
    ):
        found = world.client.refusal("POST", "/agents/upgrade", body)
        assert found[0] == status
        assert said in found[2]
    program = wanted(world, "truck-2")[0]
    for name, status, said in (
        ("none", 404, "there is no device none"),
        ("own", 409, "device own is run by gear up"),
        ("far", 409, "device far has not joined by a token"),
    ):
        body = {"program": program, "devices": ["truck-1", name]}
        found = world.client.refusal("POST", "/agents/upgrade", body)
        assert found[0] == status
        assert said in found[2]
    assert wanted(world, "truck-1")[1] == "0.8.0"
    status, answer = world.client.ask(
        "POST", "/agents/upgrade", {"program": program, "devices": ["truck-1"]}, key="once"
    )
    assert (status, answer["version"], answer["changed"]) == (202, "0.9.0", ["truck-1"])
    again = world.client.ask(
        "POST", "/agents/upgrade", {"program": program, "devices": ["truck-1"]}, key="once"
    )
    assert again == (202, answer)
    assert world.client.raw("PUT", f"/api/v1/programs/{one}.{one}.zip", b"no archive")[0] == 400
