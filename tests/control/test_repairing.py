"""What ingest must be stopped for, on a platform that runs: it pauses, and comes back whatever happens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from geartrain.records.letters import Letter
from geartrain_client.cli import main
from geartrain_client.rest import door
from geartrain_cloud.control.pausing import INGEST, SPARK, STOP_S, Pauses
from geartrain_cloud.control_store.errors import ConflictError
from geartrain_cloud.ingest.erasure import erasable
from geartrain_cloud.log.opening import shared_log
from geartrain_cloud.log.reader import LogReader
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from tests.cloud.fleet import FLOW, Running, TestDevice
from tests.cloud.test_state_commands import letters, play
from tests.control.platform_client import Client, control_process

Capture = pytest.CaptureFixture[str]
GOOD = b'{"symbol":"A","price":4.5}'


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A platform whose log has rows, a dead letter of a source, one of a step, and a batch that is none."""
    folder = tmp_path_factory.mktemp("platform")

    def spoil(world: Running) -> None:
        world.net.deliver(TestDevice().topic, b"\xff no batch")

    written = (
        Letter("quotes", "not_a_record", "in the future", GOOD),
        Letter("drawdown", "not_a_record", "it raised", GOOD),
    )
    play(folder / "log", lambda d: d.quotes(1.0), lambda d: letters(d, *written), after=spoil)
    return folder


@pytest.fixture(scope="module")
def client(state: Path) -> Iterator[Client]:
    with control_process(state) as (_, one):
        yield one


@pytest.fixture
def gear(
    client: Client, state: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Any:
    """Runs a command by REST: what it has printed, or said where it has failed."""
    monkeypatch.setenv(door.STATE, str(state))
    monkeypatch.chdir(tmp_path)
    for name in (door.URL, door.TOKEN, door.TOKEN_FILE):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        got = main(arguments)
        said = capsys.readouterr()
        assert got == code, said.err
        return said.out if code == 0 else said.err

    return run


def test_a_dead_letter_is_logged_once_and_the_others_are_refused(
    gear: Any, state: Path, client: Client
) -> None:
    listed = json.loads(gear("deadletters", "ls", "--json"))
    (good, step) = (one["id"] for one in listed)
    done = json.loads(gear("deadletters", "resubmit", good, "--json"))
    reader = LogReader(state / "log")
    entry = reader.entries(FLOW, "0", done["position"] - 1, done["position"])[0]
    assert [(row["symbol"], row["price"]) for row in reader.table(entry).to_pylist()] == [("A", 4.5)]
    assert "was resubmitted before" in gear("deadletters", "resubmit", good, code=2)
    assert "only what a source refused" in gear("deadletters", "resubmit", step, code=2)
    assert "there is no dead letter x:0:1:1" in gear("deadletters", "resubmit", "x:0:1:1", code=2)
    assert "there is no dead letter x@y:1" in gear("deadletters", "resubmit", "x@y:1", code=2)
    assert "was never acked" in gear("quarantine", "resubmit", "1", code=2)
    assert "has no batch 9" in gear("quarantine", "resubmit", "9", code=2)
    assert client.refusal("POST", "/quarantine/one/resubmit")[0] == 404
    assert read_report(PlatformPlaces(state).paused).get("processes", []) == []
    told = [one for one in client.get("/audit?limit=20")["items"] if one["path"].endswith("/resubmit")]
    assert {one["result"] for one in told} == {"ok", "conflict", "not_found"}


def test_an_answer_is_given_again_by_its_key_without_another_change(client: Client, state: Path) -> None:
    path = "/log/devices/device-9/erase"
    first = client.ask("POST", path, {}, key="k1", expect=200)
    assert first == client.ask("POST", path, {}, key="k1", expect=200)
    assert client.refusal("POST", "/log/devices/device-9/erase", {"dry_run": "false"})[0] == 400


def test_what_a_device_sent_is_erased_from_the_log(gear: Any, state: Path, client: Client) -> None:
    device = TestDevice().name
    held = erasable(state / "log", device)
    assert held.rows > 0
    said = json.loads(gear("log", "erase", device, "--json"))
    assert (said["changed"], said["rows"], tuple(said["flows"])) == (False, held.rows, held.flows)
    assert erasable(state / "log", device).rows == held.rows
    said = gear("log", "erase", device, "--yes")
    assert f"{held.rows:,} rows" in said
    assert f"of {FLOW} still hold it: gear replay {FLOW}" in said
    assert erasable(state / "log", device).rows == 0
    assert read_report(PlatformPlaces(state).paused).get("processes", []) == []


class Stepping:
    """A clock that goes on by what is slept."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now_us(self) -> int:
        return round(self.now_s * 1e6)

    def monotonic_s(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_nothing_is_done_while_ingest_runs_which_is_then_let_go_on(tmp_path: Path) -> None:
    places = PlatformPlaces(tmp_path)
    play(places.log, lambda d: d.quotes(1.0))
    clock = Stepping()
    pauses = Pauses(places, clock)

    async def work() -> None:
        async with pauses.paused("me", (INGEST, SPARK)):
            raise AssertionError("ingest runs")

    pauses.want("another", (SPARK,))
    with (
        shared_log(places.log),
        pytest.raises(ConflictError, match="ingest and spark have not ended within 120 s: gear up runs"),
    ):
        asyncio.run(work())
    assert clock.now_s >= STOP_S
    assert read_report(places.paused) == {"processes": [SPARK]}
    pauses.want("another", ())
    assert read_report(places.paused) == {"processes": []}


def test_processes_stand_still_for_as_long_as_anybody_wants_it(tmp_path: Path) -> None:
    places = PlatformPlaces(tmp_path)
    play(places.log, lambda d: d.quotes(1.0))
    pauses = Pauses(places, Stepping())

    async def work() -> list[str]:
        async with pauses.paused("me", (INGEST,)):
            pauses.want("purge", ())
            return list(read_report(places.paused)["processes"])

    assert asyncio.run(work()) == [INGEST]
    assert read_report(places.paused) == {"processes": []}
