"""`gear log`, `quarantine`, `deadletters` and `certs` over REST: the same as of its folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from geartrain.records.letters import Letter
from geartrain.schema import ColumnBatch
from geartrain_client.cli import main
from geartrain_client.rest import door
from geartrain_cloud.certs import DEVICE, Fleet
from geartrain_cloud.inspecting import entries
from geartrain_cloud.log.queries import register
from geartrain_cloud.platform.places import PlatformPlaces
from geartrain_cloud.sinks.sqlite import SqliteTables
from tests.cloud.fleet import FLOW, Running, TestDevice
from tests.cloud.test_state_commands import letters, play
from tests.control.platform_client import Client, control_process

pytestmark = pytest.mark.slow

Capture = pytest.CaptureFixture[str]
HEAT = "heat.1"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A platform with a log, a quarantine, dead letters of the log and of two apps, and an authority."""
    folder = tmp_path_factory.mktemp("platform")
    places = PlatformPlaces(folder)
    written = [Letter("quotes", "not_a_record", f"no row\x1b[2J {number}", b"A;4.5") for number in range(5)]

    def spoil(world: Running) -> None:
        world.net.deliver(TestDevice().topic, b"\xff no batch")

    play(
        places.log,
        lambda d: d.quotes(1.0, 2.0),
        lambda d: d.quotes(3.0),
        lambda d: letters(d, *written, time=95),
        after=spoil,
    )
    register(places.log, "old@1", FLOW, ["0"])
    for instance in (HEAT, "cold.2"):
        places.app(instance).mkdir(parents=True)
        tables = SqliteTables(places.tables(instance))
        tables.attach("keyed", "identity", has_run=False)
        rows = ColumnBatch([["hot"], ["user_error"], ["it raised"], [b"1"]], [25], ["a/b c"], [7], [b"\x01"])
        tables.write("keyed", 0, {"readings": 1}, {"_dead_letters": [rows]})
        tables.close()
    fleet = Fleet(places.fleet)
    fleet.init("test")
    for name in ("d1", "d2"):
        fleet.issue(DEVICE, name)
    return folder


@pytest.fixture(scope="module")
def client(state: Path) -> Iterator[Client]:
    with control_process(state) as (_, one):
        yield one


def gear(capsys: Capture, *arguments: str, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    got = main(arguments)
    said = capsys.readouterr()
    assert got == code, said.err
    return said.out, said.err


@pytest.fixture
def both(
    client: Client, state: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Any:
    """Runs a command by REST and on the folder; what both have printed, which is the same."""
    monkeypatch.setenv(door.STATE, str(state))
    monkeypatch.chdir(tmp_path)
    for name in (door.URL, door.TOKEN, door.TOKEN_FILE):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, place: tuple[str, str] = ("--state", str(state))) -> str:
        by_rest = gear(capsys, *arguments)[0]
        assert gear(capsys, *arguments, *place)[0] == by_rest
        return by_rest

    return run


def test_a_command_says_the_same_by_rest_and_of_the_folder(both: Any, state: Path) -> None:
    (quotes,) = [one for one in json.loads(both("log", "ls", "--json")) if one["channel"] == "quotes"]
    assert quotes["rows"] == 3
    shown = json.loads(both("log", "show", f"{FLOW}/quotes", "--rows", "--json"))
    assert [row["price"] for entry in shown for row in entry["rows"]] == [1.0, 2.0, 3.0]
    for arguments in (
        ["show", FLOW],
        ["show", FLOW, "--after", "1", "--limit", "2"],
        ["devices"],
        ["queries"],
        ["ls"],
    ):
        both("log", *arguments)
        both("log", *arguments, "--json")
    assert json.loads(both("log", "verify", "--json"))["whole"]
    assert "the log is whole" in both("log", "verify")
    (held,) = json.loads(both("quarantine", "ls", "--json"))
    both("quarantine", "ls")
    assert (
        json.loads(both("quarantine", "show", str(held["number"]), "--json"))["payload"]
        == b"\xff no batch".hex()
    )
    listed = json.loads(both("deadletters", "ls", "--json"))
    assert [one["id"] for one in listed[-2:]] == ["cold.2/hot@a/b c:7:01", "heat.1/hot@a/b c:7:01"]
    assert len(listed) == 7
    assert "and 4 older ones: --limit 7 shows them" in both("deadletters", "ls", "--limit", "3")
    for one in (listed[0], listed[-1]):
        both("deadletters", "show", one["id"])
    certs = ("--certs", str(PlatformPlaces(state).fleet))
    assert [one["name"] for one in json.loads(both("certs", "ls", "--json", place=certs))] == ["d1", "d2"]
    assert "valid" in both("certs", "ls", place=certs)


def test_pages_end_where_the_list_does_and_where_rows_fill_them(
    client: Client, both: Any, monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    whole = client.get("/deadletters?limit=1000")
    assert (whole["count"], whole["next"]) == (7, None)
    found = list[Any]()
    after: int | None = 0
    while after is not None:
        page = client.get(f"/deadletters?limit=3&after={after}")
        found, after = [*page["items"], *found], page["next"]
    assert found == whole["items"]
    assert client.get("/deadletters?app=heat")["items"] == whole["items"][-1:]
    one = client.get("/certs?limit=1")
    assert ([c["name"] for c in one["items"]], one["next"]) == (["d1"], 1)
    assert [c["name"] for c in client.get("/certs?limit=1&after=1")["items"]] == ["d2"]
    monkeypatch.setattr(entries, "ROWS_MAX", 1)
    page, following = entries.entries(PlatformPlaces(state).log, FLOW, "quotes", with_rows=True)
    assert ([e["count"] for e in page], following) == ([2], page[0]["position"])
    page, following = entries.entries(
        PlatformPlaces(state).log, FLOW, "quotes", with_rows=True, after=following
    )
    assert ([e["count"] for e in page], following) == ([1], None)
    both("log", "show", f"{FLOW}/quotes", "--rows")


def test_an_app_token_is_told_of_its_own_dead_letters_alone(client: Client) -> None:
    _, made = client.ask("POST", "/tokens", {"name": "heat", "role": "viewer", "app": "heat"}, expect=201)
    own = Client(client.url, made["token"])
    assert [one["flow"] for one in own.get("/deadletters?app=cold")["items"]] == [HEAT]
    assert own.get("/deadletters/heat.1%2Fhot@a%2Fb%20c:7:01")["raw"] == "1"
    assert own.refusal("GET", "/deadletters/cold.2%2Fhot@a%2Fb%20c:7:01")[0] == 404
    assert own.refusal("GET", "/quarantine")[0] == 403


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["log", "show", "x"], "has no 'x'"),
        (["log", "show", f"{FLOW}/quotes", "--partition", "3"], "partition 3 of the log has no"),
        (["log", "forget", "nobody"], "no query 'nobody' is registered"),
        (["log", "trim"], "say what may go"),
        (["quarantine", "show", "9"], "has no batch 9"),
        (["deadletters", "show", "x:0:1:1"], "there is no dead letter x:0:1:1"),
        (["deadletters", "show", "x@y:1"], "there is no dead letter x@y:1"),
        (["certs", "revoke", "device", "d9"], "has issued nothing to device d9"),
        (["certs", "revoke", "thing", "d1"], "thing"),
    ],
)
def test_a_mistake_is_the_same_sentence_and_code(
    both: Any, capsys: Capture, arguments: list[str], said: str
) -> None:
    assert said in gear(capsys, *arguments, code=2)[1]


def test_what_changes_something_is_for_admins_and_is_noted(
    client: Client, both: Any, capsys: Capture
) -> None:
    trimmed = json.loads(gear(capsys, "log", "trim", "--older-than", "0", "--json")[0])
    assert (trimmed["segments"], trimmed["held"] > 0) == (0, True)
    assert "nothing is kept for old@1" in gear(capsys, "log", "forget", "old@1")[0]
    assert json.loads(gear(capsys, "log", "queries", "--json")[0]) == []
    assert "revoked 1 of device d1" in gear(capsys, "certs", "revoke", "device", "d1")[0]
    assert "was revoked before" in gear(capsys, "certs", "revoke", "device", "d1")[0]
    noted = client.get("/audit?limit=4")["items"]
    assert [one["path"].removeprefix("/api/v1") for one in noted] == [
        "/certs/device/d1/revoke",
        "/certs/device/d1/revoke",
        "/log/queries/old@1/forget",
        "/log/trim",
    ]
    assert noted[3]["asked"] == {"older_than_s": 0.0}


def test_a_platform_without_a_log_or_an_authority_says_so(tmp_path: Path) -> None:
    with control_process(tmp_path) as (_, client):
        for path in ("/log", "/log/verify", "/quarantine", "/deadletters"):
            status, _, sentence = client.refusal("GET", path)
            assert (status, sentence) == (409, "the platform has no log yet: ingest has not started")
        assert "has no authority" in client.refusal("GET", "/certs")[2]
