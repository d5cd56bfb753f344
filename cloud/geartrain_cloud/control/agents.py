"""The agents of devices: which program each is to run, and how far that is.

Between REST, the bundles and the control store. Guarantees: only a program that an author has signed is
wanted, and only of devices that can run it and take signed programs. A wish is for all devices that it names,
or for none. What is shown is what devices say themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web

from geartrain.bundle import ProgramManifest
from geartrain.control.codec import decode_reported
from geartrain.control.states import INSTALLED_PROGRAM
from geartrain.printable import printable
from geartrain_cloud.control.trust import Trust
from geartrain_cloud.control_store.errors import ConflictError, InvalidError
from geartrain_cloud.control_store.idempotency import Answer
from geartrain_cloud.control_store.model import Device
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.requests import UpgradeBody, body_of, key_of
from geartrain_cloud.rest.routes import route

DEVICES_MAX = 1_000
"""Of one wish."""
AS_WANTED, WAITING, OFFLINE, WENT_BACK = "as wanted", "waiting", "offline", "went back"
_TEXT_CHARS_MAX, _VERSION_CHARS_MAX = 400, 40


class Agents:
    """Those of one platform."""

    def __init__(
        self,
        store: ControlStore,
        trust: Trust,
        changed: Callable[[], None],
        has_joined: Callable[[str], bool] | None = None,
    ) -> None:
        """`changed`: called after each change; `has_joined`: whether a device takes what is signed, None
        where none does.
        """
        self._store, self._trust, self._changed, self._has_joined = store, trust, changed, has_joined

    @route("POST", "/agents/upgrade", "admin", answers.Upgraded, statuses=(202,), body=UpgradeBody)
    async def upgrade(self, request: web.Request) -> Answer:
        """Have devices run a program, by its hash, or the one that is `installed`: all of them, or none."""
        body, asked = await body_of(request, UpgradeBody)
        key = key_of(request)
        if key and (known := self._store.answers.recall(key, asked)) is not None:
            return known
        if not 1 <= len(body.devices) <= DEVICES_MAX:
            raise InvalidError(f"devices: name 1 to {DEVICES_MAX:,} of them")
        is_installed = body.program == INSTALLED_PROGRAM
        program = None if is_installed else await asyncio.to_thread(self._trust.program, body.program)
        if program is None and not is_installed:
            raise ConflictError(
                f"there is no program {printable(body.program[:12])} that an author has signed: gear agent "
                "upgrade signs it and brings it here"
            )

        def work() -> Answer:
            for name in body.devices:
                self._check(self._store.devices.active(name), program)
            version = program.version if program else ""
            changed = self._store.programs.want(body.devices, body.program, version)
            return 202, {"program": body.program, "version": version, "changed": changed}

        answer = self._store.answers.once(key, asked, work)
        self._changed()
        return answer

    def _check(self, device: Device, program: ProgramManifest | None) -> None:
        """Raise `ConflictError` where the device could not take or run the program, None for the installed
        one.
        """
        if device.local:
            raise ConflictError(
                f"device {device.device} is run by gear up, with the program that is installed on the "
                "platform's own machine: upgrade that one"
            )
        if self._has_joined is None or not self._has_joined(device.device):
            raise ConflictError(
                f"device {device.device} has not joined by a token, so that it takes no signed program: "
                "bring the new one there by hand"
            )
        said = self._store.reports.last(device.device)
        report = decode_reported(said) if said else None
        if report is None:  # it sees for itself whether it can run the program
            return
        if program is not None and report.machine != program.machine:
            raise ConflictError(
                f"device {device.device} has Python {printable(report.machine)}, and the program is for "
                f"Python {printable(program.machine)}"
            )


def standing_of(store: ControlStore, device: Device, *, online: bool) -> dict[str, Any]:
    """Which program a device runs, which one it is to run, and how far that is: one of the words above."""
    raw, known = store.reports.last(device.device), store.programs.of(device.device)
    report = decode_reported(raw) if raw else None
    is_told = report is not None and device.applied >= known.serial
    why = printable(report.program_why, _TEXT_CHARS_MAX) if report is not None and is_told else ""
    runs = report.program_code if report else ""
    runs_wanted = report is not None and (runs or INSTALLED_PROGRAM) == known.wanted
    if not known.wanted or runs_wanted:
        state, why = AS_WANTED, ""
    elif report is not None and is_told and report.program_went_back:
        state = WENT_BACK
    else:
        state = WAITING if online else OFFLINE
    return {
        "version": printable(report.program, _VERSION_CHARS_MAX) if report else "",
        "program": runs,
        "machine": printable(report.machine, _VERSION_CHARS_MAX) if report else "",
        "wanted": known.wanted,
        "wanted_version": known.version,
        "state": state,
        "why": why,
    }
