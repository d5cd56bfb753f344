"""`gear device purge`: what a device has sent is erased from a running platform.

Guarantees: nothing is changed before a person has said yes, by `--yes` or at a terminal. What does not go is
said, a line each.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from geartrain.errors import ConfigError
from geartrain.printable import printable
from geartrain_client.cli.waiting import wait_for
from geartrain_client.errors import FailedError
from geartrain_client.rest.platform import Platform, segment
from geartrain_client.terminal.screen import print_json, results


def purge_device(
    platform: Platform,
    device: str,
    leave: Sequence[str],
    *,
    dry_run: bool,
    yes: bool,
    wait_s: float | None,
    as_json: bool,
) -> None:
    """Erase what a device has sent.

    leave: apps that stay as they are; wait_s: how long to wait for the end, seconds, None for not at all.

    Raises `GeartrainError`, among it `FailedError` where it has failed or time is up.
    """
    path, body = f"/devices/{segment(device)}/purge", {"leave": list(leave)}
    if dry_run or not yes:
        planned = platform.change("POST", path, {**body, "dry_run": True})
        if dry_run:
            _show(planned, "would be erased", as_json=as_json)
            return
        _ask(planned)
    found = platform.change("POST", path, body)
    if wait_s is not None:
        wait_for(f"erasing {device}", lambda: _standing(platform, path), "gear audit", wait_s)
        found = platform.get(path)
    _show(found, "were erased" if found["step"] == "done" else "are being erased", as_json=as_json)


def _ask(planned: Mapping[str, Any]) -> None:
    if not sys.stdin.isatty():
        raise ConfigError("there is no way back, and nobody to ask: look with --dry-run, then add --yes")
    _show(planned, "would be erased", as_json=False)
    if not typer.confirm(f"Erase what {printable(planned['device'])} has sent? There is no way back."):
        raise ConfigError("nothing was changed")


def _standing(platform: Platform, path: str) -> str:
    found = platform.get(path)
    if found["step"] == "failed":
        raise FailedError(f"it has failed: {printable(found['why'])}")
    if found["step"] == "done":
        return ""
    stops = " and ".join(found["stops"])
    return printable("; ".join(found["waits_for"])) or f"{stops} stand still while files are written anew"


def _show(found: Mapping[str, Any], verb: str, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    what = f"{found['rows']:,} rows and {found['quarantined']:,} quarantined batches"
    lines = [f"{what} of {found['device']} {verb}"]
    lines += [f"{one} makes its tables anew" for one in found["replays"]]
    lines += [f"in the way: {one}" for one in found["obstacles"]]
    lines += [f"not reached: {one}" for one in found["not_reached"]]
    for line in [*lines, *filter(None, [found["why"]])]:
        results().print(printable(line), soft_wrap=True)
