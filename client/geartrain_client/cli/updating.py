"""`gear update` and `gear rollback`: an app goes on with other code.

Guarantees: what cannot be loaded is refused before anything is sent. The code is signed where there are keys,
before the platform is asked to run it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from geartrain.flow.loading import load_flow
from geartrain.printable import printable
from geartrain.revision import code_of
from geartrain_client.cli.submitting import sign_where_keys
from geartrain_client.cli.waiting import until_runs, wait_until
from geartrain_client.flow_folder import flow_of
from geartrain_client.rest.answers import answer_as
from geartrain_client.rest.platform import SUBMIT_TIMEOUT_S, Platform, segment
from geartrain_client.terminal.screen import print_json, results


class _Updated(msgspec.Struct, frozen=True):
    name: str
    instance: str
    code: str = ""
    former: str = ""
    devices: list[str] = []


def update_app(
    platform: Platform, name: str, flow: str, key: str | None, *, seconds: float | None, as_json: bool
) -> None:
    """Have the app go on with the code of the flow as it is here; raises `GeartrainError`."""
    spec = flow_of(flow)
    load_flow(spec).graph()
    platform.get(f"/apps/{segment(name)}")  # nothing is signed for an app that is not there
    sign_where_keys(platform, spec, name, key)
    body = {"flow": spec, "code": code_of(spec).hash}
    _exchange(platform, name, "update", body, seconds=seconds, as_json=as_json)


def rollback_app(platform: Platform, name: str, *, seconds: float | None, as_json: bool) -> None:
    """Have the app go on with the code before its last update; raises `GeartrainError`."""
    _exchange(platform, name, "rollback", {}, seconds=seconds, as_json=as_json)


def _exchange(
    platform: Platform, name: str, verb: str, body: dict[str, Any], *, seconds: float | None, as_json: bool
) -> None:
    answer = platform.change("POST", f"/apps/{segment(name)}/{verb}", body, SUBMIT_TIMEOUT_S)
    made = answer_as(_Updated, answer)
    if seconds is not None:
        wait_until(platform, name, until_runs(made.instance), seconds)
    if as_json:
        print_json(answer)
        return
    words = "will run" if seconds is None else "runs"
    noun = "device" if len(made.devices) == 1 else "devices"
    text = f"{made.instance} {words} code {made.code[:12]} in place of {made.former[:12]}"
    results().print(
        printable(f"{text}, for {len(made.devices):,} {noun}: see gear info {name}"), soft_wrap=True
    )
