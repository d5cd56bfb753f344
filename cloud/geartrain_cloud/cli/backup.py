"""`gear backup` and `gear restore`: what they do and say. A platform that runs can make a backup, too."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from geartrain.printable import printable
from geartrain_client.cli.waiting import wait_for
from geartrain_client.errors import FailedError
from geartrain_client.rest.platform import Platform, segment
from geartrain_client.terminal.screen import ProgressLine, notices, print_json, results
from geartrain_cloud.backup.restoring import restore
from geartrain_cloud.backup.writing import back_up
from geartrain_cloud.platform.config import read_platform


def make_backup(state: Path | None, config: Path | None, output: Path, *, as_json: bool) -> None:
    """Back a platform up and say what was made; raises `GeartrainError`."""
    folder, notice = read_platform(config, state).state, notices()
    with ProgressLine(notice) as line:
        made = back_up(folder, output, _now_us, lambda said: line.show(lambda: said))
    for sentence in made.elsewhere:
        notice.print(printable(sentence), soft_wrap=True)
    if as_json:
        print_json(
            {
                "output": str(made.output),
                "made_us": made.made_us,
                "files": made.files,
                "bytes": made.size,
                "elsewhere": list(made.elsewhere),
            }
        )
        return
    said = f"{made.output} holds the platform as of {_time(made.made_us)}: {_amount(made.files, made.size)}"
    results().print(printable(said), soft_wrap=True)


def have_backup_made(platform: Platform, name: str, wait_s: float | None, *, as_json: bool) -> None:
    """Have a platform that runs make a backup on its own disk, and say how far it is.

    wait_s: how long to wait for it, seconds, None for not at all. Raises `GeartrainError`.
    """
    found = platform.change("POST", "/backups", {"name": name})
    path = f"/backups/{segment(name)}"
    if wait_s is not None:
        wait_for(f"backup {name}", lambda: _standing(platform.get(path)), "gear events", wait_s)
        found = platform.get(path)
    for sentence in found["elsewhere"]:
        notices().print(printable(sentence), soft_wrap=True)
    if as_json:
        print_json(found)
        return
    if found["made_us"] is None:
        said = f"{found['file']} is being made on the platform's machine"
    else:
        amount = _amount(found["files"], found["bytes"])
        said = f"{found['file']} holds the platform as of {_time(found['made_us'])}: {amount}"
    results().print(printable(said), soft_wrap=True)


def _standing(found: Mapping[str, Any]) -> str:
    if found["state"] == "failed":
        raise FailedError(f"it has failed: {printable(found['why'])}")
    return "" if found["state"] == "made" else f"it {printable(found['doing'])}"


def bring_back(backup: Path, state: Path, *, as_json: bool) -> None:
    """Restore a platform and say what follows; raises `GeartrainError`."""
    notice = notices()
    with ProgressLine(notice) as line:
        found = restore(backup, state, lambda said: line.show(lambda: said))
    if as_json:
        print_json(
            {
                "state": str(found.state),
                "made_us": found.made_us,
                "version": found.version,
                "files": found.files,
                "bytes": found.size,
            }
        )
        return
    amount = _amount(found.files, found.size)
    said = (
        f"{found.state} holds the platform as of {_time(found.made_us)}: {amount}\n"
        f"go on with gear up --state {found.state}; devices then send what they still have of later times\n"
        "what they no longer have is lost: gear log show names it, and the counter losses counts it\n"
        "tokens and certificates that were revoked since then are good again: revoke them once more, see "
        "gear token ls and gear certs ls"
    )
    for one in said.splitlines():
        results().print(printable(one), soft_wrap=True)


def _now_us() -> int:
    return time.time_ns() // 1_000


def _time(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _amount(files: int, size: int) -> str:
    return f"{files:,} files, {size / 1e6:,.1f} MB"
