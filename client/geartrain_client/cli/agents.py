"""`gear agent`: which program devices run, and its exchange by another one.

Guarantees: wheels are resolved and checked by their hashes where `gear` runs, and signed there with the
author's key, before the platform is asked to want them. What a device cannot run is refused before anything
is fetched. The exit code says whether a device went back.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
from packaging.version import InvalidVersion, Version

from geartrain.bundle import ProgramManifest, pack_program, unpacked_wheels
from geartrain.control.states import INSTALLED_PROGRAM
from geartrain.errors import MistakeError
from geartrain.printable import printable
from geartrain_client.cli.fleet import PROGRAM_CHARS, ago
from geartrain_client.cli.signing import check_author, sign_program
from geartrain_client.cli.waiting import wait_for
from geartrain_client.errors import FailedError
from geartrain_client.flash.target import Target
from geartrain_client.flash.wheels import own_wheels, resolve
from geartrain_client.rest.answers import answer_as
from geartrain_client.rest.platform import SUBMIT_TIMEOUT_S, Platform
from geartrain_client.terminal.screen import notices, print_json, results, table_of

DEVICES_AT_ONCE = 1_000
NAMES_SHOWN = 5
WAITING, OFFLINE, WENT_BACK = "waiting", "offline", "went back"


class _Agent(msgspec.Struct, frozen=True):
    """What a platform says of a device's program."""

    version: str = ""
    program: str = ""
    machine: str = ""
    wanted: str = ""
    wanted_version: str = ""
    state: str = ""
    why: str = ""


class _Device(msgspec.Struct, frozen=True):
    name: str
    local: bool = False
    retired: bool = False
    online: bool = False
    seen_us: int | None = None
    agent: _Agent = _Agent()


@dataclass(frozen=True, slots=True)
class UpgradeWishes:
    """What the user asked for.

    version: of Geartrain, or `INSTALLED_PROGRAM`; devices: a selector; arch, python: of devices that have not
    said so, None for none; wheels: a folder to look into before the index; extras: sources with packages of
    their own; key: whose keys sign, None for the only ones; seconds: how long to wait, None for not at all.
    """

    version: str
    devices: str
    arch: str | None = None
    python: str | None = None
    wheels: Path | None = None
    extras: tuple[str, ...] = ()
    key: str | None = None
    seconds: float | None = None
    as_json: bool = False


def list_agents(platform: Platform, selector: str | None, *, as_json: bool) -> None:
    """Print what devices run and are to run; raises `GeartrainError`."""
    found = [(item, answer_as(_Device, item)) for item in platform.items("/devices", label=selector)]
    found = [(item, one) for item, one in found if not one.retired]
    if as_json:
        print_json([{"name": one.name, "online": one.online, **item.get("agent", {})} for item, one in found])
        return
    if not found:
        results().print("no device fits" if selector else "no device was added yet: gear device add NAME")
        return
    lines = [
        [
            one.name,
            _shown(one.agent.version, one.agent.program),
            _shown(one.agent.wanted_version, one.agent.wanted),
            f"{one.agent.state}: {one.agent.why}" if one.agent.why else one.agent.state,
            ago(one.seen_us, time.time()),
        ]
        for _, one in found
    ]
    results().print(table_of("", ["device", "runs", "wanted", "state", "in contact"], lines))


def _shown(version: str, program: str) -> str:
    """A program as a table names it: the installed one has no hash."""
    return f"{version} {program[:PROGRAM_CHARS]}".strip()


def upgrade_agents(platform: Platform, wishes: UpgradeWishes) -> None:
    """Have the devices that are meant run a version of Geartrain, or what was installed there; raises
    `GeartrainError`.
    """
    if wishes.version == INSTALLED_PROGRAM:
        names = [one.name for one in _fit(platform, wishes)]
        _want(platform, INSTALLED_PROGRAM, names)
    else:
        names = _bring(platform, wishes)
    if wishes.seconds is not None:
        see = f"gear agent ls --devices {wishes.devices}"
        wait_for("agents", lambda: _waits(_agents(platform, wishes, names)), see, wishes.seconds)
    _say(_agents(platform, wishes, names), wishes)


def _bring(platform: Platform, wishes: UpgradeWishes) -> list[str]:
    """Sign a version's programs and have devices run them; the devices' names. Raises `GeartrainError`."""
    try:
        version = str(Version(wishes.version))
    except InvalidVersion:
        wrong = f"--to {printable(wishes.version, 80)}"
        raise MistakeError(f"{wrong}: write a version, such as 0.3.0, or {INSTALLED_PROGRAM}") from None
    check_author(wishes.key)
    chosen: dict[Target, list[str]] = {}
    for one in _fit(platform, wishes):
        chosen.setdefault(_target(one, wishes), []).append(one.name)
    for target, devices in chosen.items():
        manifest, archive = _program(target, version, wishes)
        size = f"{len(archive) / 1e6:.1f} MB"
        notices().print(
            f"program {manifest.code[:PROGRAM_CHARS]}, {size}: signs it and brings it to the platform"
        )
        sign_program(platform, manifest, archive, wishes.key)
        _want(platform, manifest.code, devices)
    return [name for of in chosen.values() for name in of]


def _want(platform: Platform, program: str, devices: list[str]) -> None:
    """Tell the platform which program these devices are to run."""
    for begin in range(0, len(devices), DEVICES_AT_ONCE):
        body = {"program": program, "devices": devices[begin : begin + DEVICES_AT_ONCE]}
        platform.change("POST", "/agents/upgrade", body, SUBMIT_TIMEOUT_S)


def _fit(platform: Platform, wishes: UpgradeWishes) -> list[_Device]:
    """The devices that are meant and take a program over the air; raises `MistakeError`."""
    found = [answer_as(_Device, one) for one in platform.items("/devices", label=wishes.devices)]
    fit = [one for one in found if not one.retired]
    if not fit:
        raise MistakeError(f"--devices {printable(wishes.devices, 80)}: no device fits; see gear device ls")
    for one in fit:
        if one.local:
            said = f"{one.name} is left out: gear up runs it, with the program of the platform's own machine"
            notices().print(printable(said), soft_wrap=True)
    if all(one.local for one in fit):
        raise MistakeError("there is nothing to upgrade: gear up runs all of these devices itself")
    return [one for one in fit if not one.local]


def _target(device: _Device, wishes: UpgradeWishes) -> Target:
    python, _, machine = device.agent.machine.partition(" ")
    if machine:
        return Target.of_machine(machine, python)
    if wishes.arch is None or wishes.python is None:
        raise MistakeError(
            f"{device.name} was not heard yet, so that its architecture and its Python are not known: name "
            "them by --arch and --python, or leave it out of --devices"
        )
    return Target.of(wishes.arch, wishes.python)


def _program(target: Target, version: str, wishes: UpgradeWishes) -> tuple[ProgramManifest, bytes]:
    """The archive of a version's agent for a kind of machine; raises `GeartrainError`."""
    notices().print(f"fetching wheels of Geartrain {version} for {target.arch}, Python {target.python}")
    with tempfile.TemporaryDirectory(prefix="gear-agent-") as work:
        places = own_wheels(Path(work), wishes.wheels, version)
        _, wheels = resolve(target, wishes.extras, Path(work), places, version=version)
    files = unpacked_wheels((name, BytesIO(content)) for name, content in sorted(wheels.items()))
    return pack_program(files, version=version, python=target.python, architecture=target.machine)


def _agents(platform: Platform, wishes: UpgradeWishes, names: Iterable[str]) -> list[_Device]:
    """What the platform says of these devices now."""
    meant = set(names)
    found = [answer_as(_Device, one) for one in platform.items("/devices", label=wishes.devices)]
    return [one for one in found if one.name in meant]


def _waits(devices: list[_Device]) -> str:
    """What is waited for, empty for nothing: devices out of contact are not waited for."""
    left = [one for one in devices if one.agent.state == WAITING]
    why = next((f" ({one.name}: {one.agent.why})" for one in left if one.agent.why), "")
    return f"{_applied(devices)}; {_names([one.name for one in left])} at it{why}" if left else ""


def _applied(devices: list[_Device]) -> str:
    count = sum(1 for one in devices if one.agent.state not in (WAITING, OFFLINE, WENT_BACK))
    return f"applied by {count:,} of {len(devices):,} devices"


def _names(names: list[str]) -> str:
    more = "" if len(names) <= NAMES_SHOWN else f" and {len(names) - NAMES_SHOWN:,} more"
    return f"{', '.join(names[:NAMES_SHOWN])}{more}"


def _say(devices: list[_Device], wishes: UpgradeWishes) -> None:
    """Print how far it is; raises `FailedError` where a device went back."""
    if wishes.as_json:
        print_json([{"name": one.name, "online": one.online, **_fields(one.agent)} for one in devices])
    else:
        away = [one.name for one in devices if one.agent.state == OFFLINE]
        also = f"; {_names(away)} out of contact: they change when they come" if away else ""
        results().print(printable(f"{_applied(devices)}{also}"), soft_wrap=True)
    back = [one for one in devices if one.agent.state == WENT_BACK]
    if back and wishes.seconds is not None:
        first = back[0]
        raise FailedError(
            f"{_names([one.name for one in back])} went back to the program before; {first.name}: "
            f"{printable(first.agent.why)}"
        )


def _fields(agent: _Agent) -> dict[str, Any]:
    return msgspec.structs.asdict(agent)
