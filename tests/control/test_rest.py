"""REST of a real gear-control process, asked by a real HTTP client: what it answers, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from geartrain_cloud.control import server
from geartrain_cloud.control.server import Api
from geartrain_cloud.log.roster import RosterReader, changed
from geartrain_cloud.platform.places import PlatformPlaces, read_report
from geartrain_cloud.rest.answering import sentences
from geartrain_cloud.rest.openapi import ROOT
from geartrain_cloud.rest.requests import BODY_BYTES_MAX
from geartrain_cloud.rest.routes import add_routes
from tests.control.platform_client import Client, control_process
from tests.waiting import WAIT_S

STOCKS = "geartrain_examples.stocks.flow:flow"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("platform")


@pytest.fixture(scope="module")
def client(state: Path) -> Iterator[Client]:
    with control_process(state) as (_, one):
        yield one


def submit(client: Client, name: str, devices: str = "all", key: str = "", **more: Any) -> tuple[int, Any]:
    body = {"name": name, "flow": STOCKS, "devices": devices, "set": {"quotes.path": "p.csv"}, **more}
    return client.ask("POST", "/apps", body, key)


def test_an_app_goes_from_submit_to_kill(client: Client, state: Path) -> None:
    client.ask("POST", "/devices", {"name": "s1", "labels": {"kind": "stock"}}, expect=201)
    own: dict[str, Any] = {"isolation": "own", "device_set": {"s1": {"quotes.select": ["IBM"]}}}
    status, made = submit(client, "stocks", "kind=stock", **own)
    assert status == 202, made
    assert made["instance"] == "stocks.1"
    assert (made["devices"], made["isolation"], made["note"]) == (["s1"], "own", "")
    places = PlatformPlaces(state)
    (item,) = [one for one in client.get("/apps")["items"] if one["name"] == "stocks"]
    assert item["isolation"] == client.get("/apps/stocks")["isolation"] == "own"
    assert item["devices"] == {"assigned": 1, "applied": 0, "online": 0}
    info = client.get("/apps/stocks")
    assert info["state"] in ("submitted", "starting")
    assert info["options"] == {"quotes": {"path": "p.csv"}}
    assert info["sources"] == [{"id": "quotes", "bounded": True, "devices": "all"}]
    assert [one["state"] for one in info["applied"]] == ["offline"]
    assert "s1 is offline" in info["waits_for"]
    kept = {"retain_s": 60.0, "retain_bytes": 9}
    told = client.ask("POST", "/apps/stocks/retain", {"tables_age_s": 7}, expect=202)[1]
    assert (told["tables_age_s"], told["age_s"]) == (7, 0)
    assert client.get("/apps/stocks")["retention"]["tables_age_s"] == 7
    assert client.ask("POST", "/apps/stocks/retain", {"age_s": 60, "bytes": 9}, expect=202)[1]["age_s"] == 60
    client.ask("POST", "/apps/stocks/retain", {}, expect=202)
    retention = client.get("/apps/stocks")["retention"]
    assert (retention["age_s"], retention["bytes"], retention["log_bytes"]) == (60, 9, 0)
    limited = _eventually(
        lambda: (held := changed(RosterReader(places.log).after()).get("stocks.1")) and held.retain_s and held
    )
    assert {name: getattr(limited, name) for name in kept} == kept
    client.ask("POST", "/apps/stocks/retain", {"age_s": 0, "bytes": 0}, expect=202)
    assert client.get("/apps/stocks")["retention"]["age_s"] is None
    roster = _eventually(lambda: changed(RosterReader(places.log).after()).get("stocks.1"))
    assert (roster.devices, roster.bounded) == ({"s1": ("quotes",)}, True)
    assert {one.sources for one in roster.channels.values()} == {("quotes",)}
    wanted = _eventually(lambda: read_report(places.spark_wanted).get("flows", {}).get("stocks.1"))
    assert (wanted["flow"], wanted["isolation"]) == (STOCKS, "own")
    assert wanted["sources"] == {"quotes": {"path": "p.csv"}}
    assert client.refusal("POST", "/apps", {"name": "stocks", "flow": STOCKS})[:2] == (409, "conflict")
    status, killed = client.ask("POST", "/apps/stocks/kill", {"mode": "now"})
    assert (status, killed["state"]) == (202, "draining")
    _eventually(lambda: client.get("/apps/stocks")["state"] == "ended")
    assert read_report(places.spark_wanted)["flows"] == {}
    ended = _eventually(lambda: changed(RosterReader(places.log).after())["stocks.1"])
    assert (ended.devices, ended.ended) == ({}, True)
    assert submit(client, "stocks", "kind=stock")[1]["instance"] == "stocks.2"
    client.ask("POST", "/apps/stocks/kill", {"mode": "now", "purge": True}, expect=202)
    _eventually(lambda: client.ask("GET", "/apps/stocks")[0] == 404)
    _eventually(lambda: changed(RosterReader(places.log).after())["stocks.2"].ended)


def test_cuts_that_follow_devices_from_the_submit_on_outlive_control(tmp_path: Path) -> None:
    cuts = [{"devices": "all", "cut": "adaptive"}, {"devices": "s2", "cut": "cloud"}]
    with control_process(tmp_path / "platform") as (_, client):
        for name in ("s1", "s2", "s3"):
            client.ask("POST", "/devices", {"name": name}, expect=201)
        status, made = submit(client, "stocks", cut="cloud", device_cuts=cuts)
        assert status == 202, made
        assert client.get("/apps/stocks")["adaptive"] == {"devices": 2, "moves": []}
    with control_process(tmp_path / "platform") as (_, client):
        assert client.get("/apps/stocks")["adaptive"] == {"devices": 2, "moves": []}


def _eventually(condition: Any) -> Any:
    for _ in range(200):
        if found := condition():
            return found
        _pause()
    raise AssertionError("it did not come")


def _pause() -> None:
    subprocess.run(["sleep", "0.1"], check=True)


def test_a_machine_without_the_agent_takes_no_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "AGENT", "no_such_package")

    async def story() -> tuple[int, Any]:
        app = web.Application(middlewares=[sentences(ROOT, BODY_BYTES_MAX)])
        add_routes(app, ROOT, [Api.__new__(Api)])
        async with TestClient(TestServer(app)) as asked:
            answer = await asked.post(f"{ROOT}/devices", json={"name": "here", "local": True})
            return answer.status, await answer.json()

    status, answer = asyncio.run(story())
    assert (status, answer["error"]["code"]) == (409, "conflict")
    assert "cannot run devices: run pip install geartrain-edge there" in answer["error"]["sentence"]


def test_a_key_makes_one_instance(client: Client) -> None:
    first = submit(client, "once", "all", key="a-key")
    assert submit(client, "once", "all", key="a-key") == first
    assert first[0] == 202
    status, refused = submit(client, "twice", "all", key="a-key")
    assert (status, refused["error"]["code"]) == (409, "conflict")
    assert client.ask("GET", "/apps/twice")[0] == 404


def test_devices_are_added_labelled_listed_in_pages_and_retired(client: Client) -> None:
    for number in range(5):
        client.ask("POST", "/devices", {"name": f"page-{number}", "labels": {"page": "yes"}}, expect=201)
    found, after = list[str](), ""
    while True:
        page = client.get(f"/devices?label={quote('page=yes')}&limit=2&after={after}")
        assert len(page["items"]) <= 2
        found += [one["name"] for one in page["items"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert found == [f"page-{number}" for number in range(5)]
    _, one = client.ask("PATCH", "/devices/page-0", {"labels": {"site": "north", "page": None}}, expect=200)
    assert one["labels"] == {"site": "north"}
    client.ask("POST", "/devices/page-0/retire", expect=202)
    assert client.get("/devices/page-0")["retired"] is True
    assert client.refusal("POST", "/devices/page-0/retire")[0] == 404
    assert client.refusal("POST", "/devices", {"name": "page-1"})[:2] == (409, "conflict")
    assert "is not refused" in client.refusal("POST", "/devices/page-1/accept")[2]
    assert client.refusal("POST", "/devices/nowhere/accept")[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("POST", "/apps", {"name": "a/b", "flow": STOCKS}, 400, "use a name of"),
        ("POST", "/apps", {"name": "a.1", "flow": STOCKS}, 400, "use a name of"),
        ("POST", "/apps", {"name": "\x1b[31m", "flow": STOCKS}, 400, "use a name of"),
        ("POST", "/apps", {"name": "a"}, 400, "missing required field 'flow'"),
        ("POST", "/apps", {"name": "a", "flow": STOCKS, "x": 1}, 400, "unknown field 'x'; its fields: name"),
        ("POST", "/apps", {"name": 3, "flow": STOCKS}, 400, "name: expected 'str', got 'int'"),
        ("POST", "/apps", [], 400, "the body: expected 'object', got 'array'"),
        ("POST", "/apps", {"name": "a", "flow": STOCKS, "devices": "a,b"}, 400, "no device has two names"),
        ("POST", "/apps", {"name": "a", "flow": STOCKS, "set": {"nodot": 1}}, 400, "write STEP.OPTION"),
        ("POST", "/apps", {"name": "a", "flow": "nowhere:flow"}, 422, "there is no module 'nowhere'"),
        ("POST", "/apps", {"name": "a", "flow": STOCKS, "cut": "none"}, 422, "none"),
        ("POST", "/apps", {"name": "a", "flow": STOCKS, "set": {"quotes.x": "1"}}, 422, "no option 'x'"),
        ("GET", "/apps/none", None, 404, "there is no app none"),
        ("GET", "/apps/none%2F..%2Fx", None, 404, "there is no"),
        ("GET", "/apps?limit=0", None, 400, "limit: give a whole number from 1 to 1000"),
        ("GET", "/apps?limit=1001", None, 400, "limit: give a whole number"),
        ("GET", "/apps?limit=%C2%B2", None, 400, "limit: give a whole number"),
        ("GET", "/apps?limit=1&limit=2", None, 400, "is given twice"),
        ("GET", "/apps?colour=red", None, 400, "there is no parameter 'colour'"),
        ("GET", "/nothing", None, 404, "there is nothing of this name"),
        ("DELETE", "/apps", None, 405, "it takes GET, POST, not DELETE"),
        ("POST", "/apps/none/kill", {"mode": "softly"}, 400, "mode: invalid enum value 'softly'"),
        ("POST", "/apps/none/kill", {}, 404, "there is no app none"),
        ("POST", "/apps/none/retain", {"age_s": 1}, 404, "there is no app none"),
        ("POST", "/apps/none/retain", {"bytes": -1}, 400, "bytes: expected 'int' >= 0"),
        ("POST", "/apps/none/replay", {"from": "1999"}, 400, "a replay begins at the log's beginning"),
        ("POST", "/devices", {"name": "a b"}, 400, "use a name of 1 to 64"),
        ("POST", "/devices", {"name": "all"}, 400, "cannot be called"),
        ("POST", "/devices", {"name": "d", "labels": {"a": "b c"}}, 400, "use a value of"),
        ("POST", "/devices", {"name": "d", "labels": {f"k{n}": "v" for n in range(33)}}, 400, "at most 32"),
        ("PATCH", "/devices/none", {"labels": {}}, 404, "there is no device none"),
        ("GET", "/devices?label=a%3D", None, 400, "use a value of"),
    ],
)
def test_a_mistake_is_one_sentence(
    client: Client, method: str, path: str, body: Any, status: int, said: str
) -> None:
    found = client.refusal(method, path, body)
    assert found[0] == status
    assert said in found[2]
    assert len(found[2]) < 500


def test_without_the_token_nothing_is_answered(client: Client) -> None:
    for token in ("", "wrong", client.token[:-1], client.token + "x", "ä"):
        for method, path in (("GET", "/status"), ("GET", "/nothing"), ("POST", "/apps"), ("GET", "/apps/a")):
            status, headers, body = Client(client.url, "").raw(
                method, f"/api/v1{path}", headers={"Authorization": f"Bearer {token}"} if token else {}
            )
            assert status == 401
            assert headers["www-authenticate"] == "Bearer"
            assert json.loads(body)["error"]["code"] == "unauthorized"
    basic = {"Authorization": f"Basic {client.token}"}
    assert Client(client.url).raw("GET", "/api/v1/status", headers=basic)[0] == 401
    assert Client(client.url).raw("GET", f"/api/v1/status?token={client.token}")[0] == 401


def test_a_method_that_is_not_served_is_told_those_that_are(client: Client) -> None:
    for method in ("TRACE", "PUT", "OPTIONS"):
        status, headers, _ = client.raw(method, "/api/v1/apps")
        assert (status, headers["allow"]) == (405, "GET, POST")


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{}", "text/plain", 415),
        (b"{}", "application/json; charset=utf-8", 404),
        (b"", "text/plain", 415),
        (b'{"mode": ' + b'{"a": ' * 50_000 + b"1" + b"}" * 50_001, "application/json", 400),
        (b'{"mode": 1' + b"0" * 5_000 + b"}", "application/json", 400),
        (b'{"mode": "drain", "mode": "now"}', "application/json", 404),
        (b'{"purge": "true"}', "application/json", 400),
    ],
)
def test_a_hostile_body_is_refused_in_a_sentence(client: Client, body: bytes, kind: str, status: int) -> None:
    found, _, said = client.raw("POST", "/api/v1/apps/none/kill", body, {"Content-Type": kind})
    assert found == status
    assert json.loads(said)["error"]["sentence"].isprintable()


def test_numbers_and_texts_beyond_all_bounds_are_refused_or_kept(client: Client) -> None:
    deep: Any = 1
    for _ in range(500):
        deep = {"a": deep}
    values: tuple[Any, ...] = (
        10**400,
        -(10**30),
        1e308,
        "\x00",
        "\ud800",
        "a" * 1_000_000,
        deep,
        [[]] * 1_000,
    )
    for value in values:
        status, _ = submit(client, "bounds", "kind=nothing", allow_none=True, set={"quotes.path": value})
        assert status in (202, 400, 422), value
        if status == 202:
            client.ask("POST", "/apps/bounds/kill", {"mode": "now", "purge": True}, expect=202)
            _eventually(lambda: client.ask("GET", "/apps/bounds")[0] == 404)
    for path in (
        "/apps/x/logs?lines=1" + "0" * 400,
        "/apps?after=%00",
        "/devices?after=%ED%A0%80",
        "/apps/%00",
    ):
        assert client.ask("GET", path)[0] in (200, 400, 404), path


def test_another_hosts_name_is_refused(client: Client) -> None:
    status, _, body = client.raw("GET", "/api/v1/status", headers={"Host": "evil.example"})
    assert status == 421
    assert "answers only to" in json.loads(body)["error"]["sentence"]


def test_a_body_that_is_too_large_or_no_json_is_refused(client: Client) -> None:
    status, _, body = client.raw("POST", "/api/v1/apps", b"x" * (5 << 20))
    assert status == 413
    assert "at most 4,194,304 bytes" in json.loads(body)["error"]["sentence"]
    for raw in (b"{", b"\xff\xfe", b"[" * 100_000, b'{"name": "\\ud800"}', b"NaN", b"null"):
        status, _, body = client.raw("POST", "/api/v1/apps", raw)
        assert status == 400, raw[:20]
        assert json.loads(body)["error"]["code"] == "invalid"


@pytest.mark.parametrize(
    "raw",
    [
        b"GARBAGE\r\n\r\n",
        b"GET /api/v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer \xff\xfe\r\n\r\n",
        b"POST /api/v1/apps HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"\x00" * 100,
    ],
)
def test_bytes_that_are_no_request_do_not_stop_it(client: Client, raw: bytes) -> None:
    where = urlsplit(client.url)
    with socket.create_connection((where.hostname or "", where.port or 0), timeout=WAIT_S) as connection:
        connection.sendall(raw)
        connection.settimeout(WAIT_S)
        answer = HTTPResponse(connection)
        answer.begin()
        error = json.loads(answer.read())["error"]
    assert 400 <= answer.status < 500
    assert error.keys() == {"code", "sentence"}
    assert client.get("/status")["url"] == client.url


def test_the_token_and_the_door_are_private(client: Client, state: Path) -> None:
    places = PlatformPlaces(state)
    for path in (places.token, places.door, places.control):
        assert path.stat().st_mode & 0o777 == 0o600
    assert read_report(places.door)["url"] == client.url


def test_a_second_control_on_the_folder_says_so(client: Client, state: Path) -> None:
    assert client.get("/status")
    command = [sys.executable, "-m", "geartrain_cloud.control.main", "--state", str(state)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 1
    assert "control.sqlite is in use by another program" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_killed_control_goes_on_where_it_stood(tmp_path: Path) -> None:
    with control_process(tmp_path) as (process, client):
        client.ask("POST", "/devices", {"name": "d1"}, expect=201)
        first = submit(client, "heat", key="k")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with control_process(tmp_path) as (process, client):
        assert submit(client, "heat", key="k") == first
        assert client.get("/apps/heat")["instance"] == "heat.1"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
