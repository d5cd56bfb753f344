"""A canary over the air: a joined device runs other steps first, goes back, and is followed; with Spark.

The device is killed as it goes over. Code that ends its process is taken back by control itself. The tables
are compared with what plain Python makes of the same records, given the places where devices have gone over.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from geartrain_client.signing.keys import new_author
from geartrain_cloud.log.entry_reasons import number_of
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.ports import EntryKind
from tests.control.platform_client import Client, client_of
from tests.proofs.test_open_platform import join
from tests.proofs.test_other_steps_over_the_air import Truck, open_for_a_day
from tests.proofs.test_platform import gear, until, until_ended
from tests.proofs.test_platform_device_revisions import FIRST, NAME, World
from tests.supervisor.test_up import platform

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.mosquitto]

TENFOLD = FIRST.replace("Sums(), out", "Sums(factor=10), out")
BAD = "import os\n" + FIRST.replace("lambda r: r.value > 50", "lambda r: os._exit(7)")
"""Its filter, which a device runs, ends the process of the app with its first record."""


def crossings(world: World) -> dict[str, list[tuple[int, int]]]:
    """By device, the number of each revision that it has gone over to, and how many records it had sent."""
    log, found, sent = (
        LogReader(world.places.log),
        defaultdict[str, list[tuple[int, int]]](list),
        Counter[str](),
    )
    (key,) = log.keys()
    for entry in log.entries(NAME, key, 0, log.positions(NAME)[key]):
        if entry.kind is EntryKind.CROSSING:
            found[entry.device].append((number_of(entry.reason), sent[entry.device]))
        elif entry.kind is EntryKind.ROWS and entry.channel == "sums":
            sent[entry.device] += entry.count
    return found


def expected(world: World, ways: dict[str, list[tuple[int, int]]]) -> dict[str, list[Any]]:
    """What the tables are to hold: from each of its crossings on a device counts in the other way."""
    tables = defaultdict[str, list[Any]](list)
    for device, records in world.records.items():
        numbers, totals = Counter[str](), Counter[str]()
        for at, (sensor, value) in enumerate(records):
            is_tenfold = sum(place <= at for _, place in ways[device]) % 2 == 1
            numbers[sensor] += 1
            totals[sensor] += value * (10 if is_tenfold else 1)
            tables["each"].append((sensor, numbers[sensor], totals[sensor]))
            if value > 50:
                tables["warm"].append((sensor, value))
    return tables


def check(world: World, client: Client) -> None:
    """The devices went over where they should, and the tables are those of plain Python."""
    ways = crossings(world)
    assert {name: [number for number, _ in way] for name, way in ways.items()} == {
        "d1": [2, 3, 7],
        "d2": [6],
    }
    for table, wanted in expected(world, ways).items():
        page = client.get(f"/apps/meadow/tables/{table}?limit=10000")
        assert sorted(map(tuple, page["rows"])) == sorted(wanted), table


@pytest.mark.long
def test_one_device_runs_other_steps_first_goes_back_and_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    monkeypatch.chdir(nothing)
    monkeypatch.setenv("GEARTRAIN_KEYS", str(tmp_path / "keys"))
    new_author(tmp_path / "keys", "alice")
    world = World(tmp_path)
    state, project = world.state, str(world.project)
    open_for_a_day(state)
    with platform(state), ExitStack() as ends:
        client = client_of(state)
        trucks = {name: Truck(join(state, name, tmp_path / "devices"), nothing) for name in world.files}
        for truck in trucks.values():
            ends.callback(truck.end)
            truck.start()
        own = [f"--device-set={name}:readings.path={path}" for name, path in world.files.items()]
        world.install(FIRST)
        gear(state, "submit", project, "--name", "meadow", "--cut", "sums,high", *own, "--timeout", "10m")
        world.grow(100)
        until(lambda: client.get("/apps/meadow/tables/each?limit=10000")["rows"], "rows")

        def canary() -> dict[str, Any]:
            found: dict[str, Any] = client.get("/apps/meadow")["canary"]
            return found

        def update(device: str, flow: str, looks: str = "6d") -> None:
            world.install(flow)
            gear(state, "update", "meadow", project, "--canary", device, "--for", looks, "--no-wait")

        def is_whole() -> bool:
            found = client.get("/apps/meadow")
            return bool(not found["canary"]["is_open"] and not found["change"] and not found["crossing"])

        with world.growing():
            update("d1", TENFOLD)
            trucks["d1"].kill_once(f"{NAME}/agent.toml", "revision = 2")
            until(lambda: canary()["crossed"] == 1, "d1 runs it")
            until(lambda: len(crossings(world)["d1"]) == 1, "d1 has gone over")
            world.grow(20)
            gear(state, "rollback", "meadow", "--no-wait")
            until(is_whole, "d1 has gone back")
            update("d1", BAD)
            until(lambda: canary()["stage"] == "went back", "control takes it back")
            assert "device d1 does not run it: bundle " in canary()["why"]
            assert "ended with 7" in canary()["why"]
            until(is_whole, "d1 runs as before")
            update("d2", TENFOLD, "30s")
            until(lambda: canary()["stage"] == "promoted", "it is promoted by itself")
            assert canary()["why"] == "1 of 1 devices have run it well for 30 s"
            until(is_whole, "d1 has followed")
            until(lambda: len(crossings(world)["d1"]) == 3, "d1 sends so")
        world.grow(50, last="end\n")
        until_ended(client, "meadow")
        check(world, client)
