"""Other code for a flow while a joined device runs it: an update, a rollback, code that goes back.

A real platform with Spark, and a device that has a folder of its own and shares no import path with the
flow's author. Each row names the code that made it, on the device and in the cloud. The table is compared
with plain Python: each record once, its count going on through every exchange, and the codes in their order.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from geartrain_client.signing.keys import new_author
from geartrain_cloud.platform.places import PlatformPlaces
from geartrain_cloud.platform.runs import tables_of_run
from geartrain_cloud.sinks.layout import TableError
from geartrain_cloud.sinks.tables import rows
from geartrain_edge.bundles.choice import short
from tests.control.platform_client import Client, client_of
from tests.proofs.test_open_platform import join, open_platform, running
from tests.proofs.test_over_the_air import FLOW, gear, project
from tests.proofs.test_platform import until, until_ended
from tests.supervisor.test_up import platform

pytestmark = [pytest.mark.slow, pytest.mark.spark]

ITEMS = 30_000
DEVICE, APP = "truck-1", "air"
SLOW = "time.sleep(0.02)"
WORK = {"A": SLOW, "B": SLOW, "C": SLOW, "D": "pass"}
"""What each code does for a record on the device. Only the last one would come to the end within minutes."""
RAISES = 'import sys\nif "geartrain_edge" in sys.modules: raise RuntimeError("no such sensor")\n'
"""What C begins with: it can be loaded by the platform, and not by a device."""
SMALL_COMMITS = "[commit]\nrecords_max = 25\n"
"""In the device's file: half a second of such records."""


def project_of(folder: Path, letter: str) -> str:
    """The flow's project with the code of this letter."""
    place = project(folder, ord(letter))
    changed = FLOW.replace("time.sleep(0.001)", WORK[letter]).replace("range(2500)", f"range({ITEMS})")
    assert WORK[letter] in changed
    assert f"range({ITEMS})" in changed
    (place / "secretflow" / "flow.py").write_text((RAISES if letter == "C" else "") + changed)
    return str(place)


class Author:
    """Who submits and updates, and sees what comes of it."""

    def __init__(self, folder: Path, client: Client) -> None:
        self.folder, self.client, self.state = folder, client, folder / "state"

    def gear(self, *arguments: str) -> str:
        return gear(self.state, self.folder / "keys", *arguments)

    def update(self, letter: str) -> None:
        self.gear("update", APP, project_of(self.folder, letter), "--no-wait")

    def asks_the_device(self) -> None:
        """What the step on the device keeps is as much as has come of it, or more."""
        least = len(self.found())
        told = json.loads(self.gear("query", APP, "seeing", "s", "--timeout", "50s", "--json"))
        assert (told["device"], told["found"], told["silent"]) == (DEVICE, True, [])
        assert least <= told["state"]["count"] <= ITEMS

    def found(self) -> list[tuple[Any, ...]]:
        """(number, letter of the device, letter of the cloud, count) of each row so far, by number."""
        path = tables_of_run(PlatformPlaces(self.state).tables(f"{APP}.1"), 1)
        try:
            made = rows(path, "counted")
        except TableError:
            return []  # Spark has still to begin it
        return sorted((row["number"], chr(row["device"]), chr(row["cloud"]), row["count"]) for row in made)

    def until_seen(self, device: str, cloud: str) -> None:
        """Wait until the code of one letter makes rows on the device, and that of another takes them."""
        until(
            lambda: (device, cloud) in {row[1:3] for row in self.found()[-1:]}, f"rows of {device}, {cloud}"
        )

    def why(self) -> str:
        """What the device says of the app."""
        apps = self.client.get(f"/devices/{DEVICE}")["apps"]
        return str(apps[0]["why"]) if apps else ""

    @property
    def code(self) -> str:
        """Which code the app is to run."""
        return short(str(self.client.get(f"/apps/{APP}")["code"]))


def test_a_device_runs_other_code_in_mid_run_and_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing, state = tmp_path / "nothing", tmp_path / "state"
    nothing.mkdir()
    monkeypatch.chdir(nothing)
    new_author(tmp_path / "keys", "alice")
    open_platform(state)
    with platform(state):
        author = Author(tmp_path, client_of(state))
        device = join(state, DEVICE, tmp_path / "devices")
        device.write_text(device.read_text() + SMALL_COMMITS)
        with running(device, nothing):
            author.gear("submit", project_of(tmp_path, "A"), "--no-wait")
            author.until_seen("A", "A")
            first = author.code
            author.asks_the_device()
            author.update("B")
            author.until_seen("B", "B")
            author.gear("rollback", APP, "--no-wait")
            author.until_seen("A", "A")
            assert author.code == first
            author.update("C")
            said = f"bundle {author.code} went back to {first}: "
            until(lambda: said in author.why(), "what the device says of the code that raises")
            assert "no such sensor" in author.why()
            author.until_seen("A", "C")
            assert len(author.found()) < ITEMS, "all of it was in mid-run"
            author.update("D")
            until_ended(author.client, APP)
            assert author.why() == ""
            found = author.found()
    assert [(number, count) for number, _, _, count in found] == [(n, n + 1) for n in range(ITEMS)]
    on_device, in_cloud = (
        "".join(letter for letter, _ in groupby(row[at] for row in found)) for at in (1, 2)
    )
    assert on_device == "ABAD"
    assert in_cloud == "ABACD"
