"""`gear submit`: checks and plans a flow here, hands it to a platform, and waits until it runs.

Guarantees: what cannot be planned is refused before anything is sent. The platform gets the revision document
of the code that is installed here, and refuses the flow where other code is installed there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from geartrain import __version__
from geartrain.control.states import ADAPTIVE
from geartrain.errors import ConfigError
from geartrain.flow.loading import load_flow
from geartrain.operators.sink import check_sinks
from geartrain.operators.source import check_sources
from geartrain.planning.mixed import make_mixed_plan
from geartrain.printable import printable
from geartrain.revision import code_of, revision_of
from geartrain_client.cli.waiting import until_runs, wait_until
from geartrain_client.flow_folder import flow_of
from geartrain_client.rest.answers import ENDED, AppInfo, Submitted, answer_as
from geartrain_client.rest.platform import SUBMIT_TIMEOUT_S, Platform, segment
from geartrain_client.signing.folder import authors, keys_folder
from geartrain_client.terminal.screen import notices, print_json, results

DEVICES_SHOWN = 5
Settings = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class SubmitWishes:
    """What the user asked for.

    name: None for that of the flow; settings: by step and option; own: those of single devices, by device;
    unchecked: take the code that is installed on the platform, unseen; seconds: how long to wait until it
    runs, None for not at all; isolation: `own` for a query of Spark to itself; key: whose keys sign the code,
    None for the only ones that are here, if there are any; device_cuts: pairs of a selector and the cut of
    the devices that it means, `adaptive` for one that follows them, the last that means one holds; retain_s,
    retain_bytes, retain_tables_s: how long rows stay in the log, and in tables, 0 for as long as those of all
    apps; allow_none: the app may wait for a device that its selector means.
    """

    name: str | None = None
    devices: str = "all"
    cut: str = "auto"
    settings: Settings = field(default_factory=dict)
    own: Mapping[str, Settings] = field(default_factory=dict)
    unchecked: bool = False
    seconds: float | None = None
    as_json: bool = False
    isolation: str = "shared"
    key: str | None = None
    device_cuts: Sequence[tuple[str, str]] = ()
    retain_s: float = 0.0
    retain_bytes: int = 0
    retain_tables_s: float = 0.0
    allow_none: bool = False


def submit_flow(platform: Platform, flow: str, wishes: SubmitWishes) -> None:
    """Submit the flow and say what the platform did; raises `GeartrainError`."""
    name = flow_of(flow, loads=not wishes.unchecked)
    body = body_of(name, wishes)
    if not wishes.unchecked:
        sign_where_keys(platform, name, body["name"], wishes.key)
    answer = platform.change("POST", "/apps", body, SUBMIT_TIMEOUT_S)
    made = answer_as(Submitted, answer)
    notice = notices()
    revision = f", revision {made.revision[:12]}" if made.revision else ""
    notice.print(
        printable(f"submitted {made.instance}{revision}, for {_listed(made.devices)}"), soft_wrap=True
    )
    if made.note:
        notice.print(printable(f"{made.instance}: {made.note}"), soft_wrap=True)
    if wishes.seconds is None:
        if wishes.as_json:
            print_json(answer)
        return
    wait_until(platform, made.name, until_runs(made.instance), wishes.seconds)
    found = platform.get(f"/apps/{segment(made.name)}")
    if wishes.as_json:
        print_json(found)
    else:
        results().print(printable(standing(answer_as(AppInfo, found))), soft_wrap=True)


def sign_where_keys(platform: Platform, flow: str, app: str, key: str | None) -> None:
    """Sign the code and bring it to the platform, where there are keys here; raises `GeartrainError`."""
    if key is None and not authors(keys_folder()):
        return
    from geartrain_client.cli.signing import sign_flow  # only who has keys waits for their libraries

    sign_flow(platform, flow, app, key)


def body_of(flow: str, wishes: SubmitWishes) -> dict[str, Any]:
    """What is sent; raises what loading and planning the flow raise."""
    revision: dict[str, Any] = {}
    name = wishes.name
    if not wishes.unchecked:
        graph = load_flow(flow).graph().with_options(wishes.settings)
        check_sources(graph)
        check_sinks(graph, is_complete=True)
        for device, settings in wishes.own.items():
            _check_own(graph, device, settings)
        cuts = [cut for _, cut in wishes.device_cuts if cut != ADAPTIVE]
        plan = make_mixed_plan(graph, wishes.cut, cuts)
        made = revision_of(flow, plan, wishes.settings, code_of(flow), __version__)
        revision = json.loads(made.to_json())
        name = name or graph.name
    if not name:
        raise ConfigError("--unchecked: the flow is not loaded here, so give the app a name with --name")
    own = {device: _flat(settings) for device, settings in wishes.own.items()}
    own_cuts = [{"devices": selector, "cut": cut} for selector, cut in wishes.device_cuts]
    return {
        "name": name,
        "flow": flow,
        "cut": wishes.cut,
        "devices": wishes.devices,
        "set": _flat(wishes.settings),
        "revision": revision,
        **({"device_set": own} if own else {}),
        **({"device_cuts": own_cuts} if own_cuts else {}),
        **({"isolation": wishes.isolation} if wishes.isolation != "shared" else {}),
        **({"retain_s": wishes.retain_s} if wishes.retain_s else {}),
        **({"retain_bytes": wishes.retain_bytes} if wishes.retain_bytes else {}),
        **({"retain_tables_s": wishes.retain_tables_s} if wishes.retain_tables_s else {}),
        **({"allow_none": True} if wishes.allow_none else {}),
    }


def standing(app: AppInfo) -> str:
    """Where an app stands, in a sentence."""
    counts = app.devices
    if app.state == ENDED:
        letters = f"; dead letters: {app.dead_letters:,}, see gear deadletters ls" if app.dead_letters else ""
        return f"{app.instance} has ended: all its sources came to their end{letters}"
    where = f"{app.instance} is {app.state}, applied by {counts.applied} of {counts.assigned} devices"
    if not counts.assigned:
        return f"{where}: it starts on each one that is added and fits its selector"
    away = counts.assigned - counts.online
    return f"{where}; {away} out of contact: these start it when they come" if away > 0 else where


def _check_own(graph: Any, device: str, settings: Settings) -> None:
    graph.with_options(settings, where=f"--device-set of {device}")


def _flat(settings: Settings) -> dict[str, Any]:
    return {
        f"{step}.{option}": str(value) if isinstance(value, str) else value
        for step, options in settings.items()
        for option, value in options.items()
    }


def _listed(devices: list[str]) -> str:
    if not devices:
        return "no device yet: none fits its selector. Add one by gear device add, or label one"
    more = "" if len(devices) <= DEVICES_SHOWN else f" and {len(devices) - DEVICES_SHOWN:,} more"
    noun = "1 device" if len(devices) == 1 else f"{len(devices):,} devices"
    return f"{noun}: {', '.join(devices[:DEVICES_SHOWN])}{more}"
