"""`gear agent`: which devices get which program, how long is waited, and who is said to have gone back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from geartrain.bundle import ProgramManifest
from geartrain_client.cli import agents
from geartrain_client.flash.target import Target
from tests.client.fake_platform import FakePlatform
from tests.client.talking import HOSTILE, SHOWN, Capture, gear

ARM, AMD = Target("arm64", "3.11"), Target("amd64", "3.13")
CODES = {ARM: "a" * 64, AMD: "b" * 64}


@pytest.fixture(autouse=True)
def _made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs without wheels, which are signed by nobody."""

    def program(target: Target, version: str, _: Any) -> tuple[ProgramManifest, bytes]:
        manifest = ProgramManifest({}, version, target.python, target.machine)
        manifest.__dict__["code"] = CODES[target]
        return manifest, b"archive"

    monkeypatch.setattr(agents, "_program", program)
    monkeypatch.setattr(agents, "check_author", lambda key: None)
    monkeypatch.setattr(agents, "sign_program", lambda *given: None)


def device(platform: FakePlatform, name: str, machine: str = "3.11 aarch64", **more: Any) -> None:
    agent = {"version": "0.2.0", "machine": machine, "state": "as wanted", **more.pop("agent", {})}
    platform.devices[name] = {"name": name, "labels": {}, "online": True, "agent": agent, **more}


def asked(platform: FakePlatform) -> dict[str, list[str]]:
    return {body["program"]: body["devices"] for _, path, _, body in platform.asked if "upgrade" in path}


def test_each_kind_of_machine_gets_its_program_and_all_are_waited_for(
    platform: FakePlatform, capsys: Capture
) -> None:
    device(platform, "a")
    device(platform, "b", "3.13 x86_64")
    device(platform, "c")
    device(platform, "d", local=True)
    device(platform, "e", retired=True)
    done = {"state": "as wanted", "version": "0.3.0"}
    platform.agents.extend([{}, {}, {}, {}, {"a": done}, {}, {}, {}, {"b": done, "c": done}])
    out, err = gear(capsys, "agent", "upgrade", "--to", "0.3", "--devices", "all")
    assert asked(platform) == {CODES[ARM]: ["a", "c"], CODES[AMD]: ["b"]}
    assert out == "applied by 3 of 3 devices\n"
    assert "d is left out: gear up runs it" in err


def test_the_installed_program_is_asked_for_by_its_word(platform: FakePlatform, capsys: Capture) -> None:
    device(platform, "a")
    device(platform, "b", "3.13 x86_64")
    out = gear(capsys, "agent", "upgrade", "--to", "installed", "--devices", "all", "--no-wait")[0]
    assert asked(platform) == {"installed": ["a", "b"]}
    assert out == "applied by 0 of 2 devices\n"
    err = gear(capsys, "agent", "upgrade", "--to", "former", "--devices", "all", code=2)[1]
    assert "--to former: write a version, such as 0.3.0, or installed" in err


def test_one_that_went_back_is_named_and_the_exit_code_says_so(
    platform: FakePlatform, capsys: Capture
) -> None:
    for name in ("a", "b", "c"):
        device(platform, name)
    back = {"state": "went back", "why": HOSTILE}
    now = {"a": {"state": "as wanted"}, "b": back, "c": {"state": "offline"}}
    platform.agents.extend([{}] * 4 + [now])
    out, err = gear(capsys, "agent", "upgrade", "--to", "0.3.0", "--devices", "all", code=1)
    assert out == "applied by 1 of 3 devices; c out of contact: they change when they come\n"
    assert f"b went back to the program before; b: {SHOWN}" in err
    listed = gear(capsys, "agent", "ls")[0]
    assert f"went back: {SHOWN}" in listed
    given = json.loads(gear(capsys, "agent", "ls", "--devices", "b", "--json")[0])
    assert [(one["name"], one["state"]) for one in given] == [("b", "went back")]


def test_what_is_not_done_in_time_is_said(platform: FakePlatform, capsys: Capture) -> None:
    device(platform, "a")
    platform.agents.extend([{}, {}] + [{"a": {"why": "it is being fetched"}}] * 100)
    err = gear(
        *(capsys, "agent", "upgrade", "--to", "0.3.0", "--devices", "a", "--timeout", "100ms"), code=1
    )[1]
    assert "agents: not done within 0.1 s (applied by 0 of 1 devices; a at it" in err
    assert "(a: it is being fetched)" in err
    assert "see gear agent ls --devices a" in err


def test_a_machine_that_no_wheel_is_for_is_refused_before_anything_is_sent(
    platform: FakePlatform, capsys: Capture
) -> None:
    device(platform, "b", "3.11 armv7l")
    assert "msgspec" in gear(capsys, "agent", "upgrade", "--to", "0.3.0", "--devices", "b", code=2)[1]
    assert asked(platform) == {}


def test_no_device_is_said(platform: FakePlatform, capsys: Capture) -> None:
    assert "no device was added yet" in gear(capsys, "agent", "ls")[0]
    device(platform, "a")
    assert gear(capsys, "agent", "ls", "--devices", "kind=plane")[0] == "no device fits\n"
