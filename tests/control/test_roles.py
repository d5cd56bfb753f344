"""Who may ask what of REST, at a real control: each request by each role, and who is told of afterwards."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sqlite3
import stat
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any
from urllib.parse import urlsplit

import pytest

from geartrain_cloud import control
from geartrain_cloud.control_store.bearers import LOCAL, ROLES, Bearer
from geartrain_cloud.control_store.errors import StoreError
from geartrain_cloud.rest import audit
from geartrain_cloud.rest.audit import AuditLog, told
from geartrain_cloud.rest.requests import DeviceCut, SubmitBody
from geartrain_cloud.rest.routes import Route, declared
from tests.control.platform_client import Client, control_process
from tests.waiting import WAIT_S

STOCKS = "geartrain_examples.stocks.flow:flow"
SECRET = "a-password-that-nobody-may-see"


def every_route() -> list[Route]:
    """All that control answers, whoever declares it."""
    modules = [import_module(f"{control.__name__}.{one.name}") for one in iter_modules(control.__path__)]
    kinds = {one for module in modules for one in vars(module).values() if isinstance(one, type)}
    return sorted(declared(kinds), key=lambda made: made.name)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("platform")


@pytest.fixture(scope="module")
def admin(state: Path) -> Iterator[Client]:
    with control_process(state) as (_, one):
        yield one


@pytest.fixture(scope="module")
def tokens(admin: Client) -> dict[tuple[str, str], Client]:
    """A client for each role, and for the app heat."""
    made: dict[tuple[str, str], Client] = {}
    for role, app in [*((one, "") for one in ROLES), ("viewer", "heat"), ("operator", "heat")]:
        name = f"{role}-{app or 'all'}"
        _, found = admin.ask("POST", "/tokens", {"name": name, "role": role, "app": app}, expect=201)
        made[role, app] = Client(admin.url, found["token"])
    return made


def status_of(client: Client, made: Route, name: str) -> tuple[int, str]:
    """The status of a request that finds nothing, and the sentence of its refusal."""
    path = "/api/v1" + made.path.format_map(Names(name))
    where = urlsplit(client.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port or 0, timeout=WAIT_S)
    try:
        headers = {"Authorization": f"Bearer {client.token}"}
        connection.request(made.method, path, None if made.body is None else b"{}", headers)
        answer = connection.getresponse()
        sentence = json.loads(answer.read())["error"]["sentence"] if answer.status >= 400 else ""
        return answer.status, sentence
    finally:
        connection.close()


class Names(dict[str, str]):
    """What stands in a path for each of its names."""

    def __init__(self, app: str) -> None:
        super().__init__(name=app)

    def __missing__(self, key: str) -> str:
        return "1"


def test_each_request_has_a_role_and_is_answered_to_those_that_have_it(
    tokens: dict[tuple[str, str], Client],
) -> None:
    routes = every_route()
    assert len(routes) > 35
    needed = {made.name: made.role for made in routes}
    for name in ("GET /audit", "GET /tokens", "POST /tokens", "POST /trust/root", "POST /devices"):
        assert needed[name] == "admin"
    for made in routes:
        assert made.role in ROLES
        assert made.method == "GET" or made.role != "viewer"
        for (role, app), client in tokens.items():
            for named in ("heat", "cold"):
                status, sentence = status_of(client, made, named)
                may = ROLES.index(role) >= ROLES.index(made.role)
                reaches = not app or (made.for_app if not made.is_below_app else named == app)
                if may and reaches:
                    assert status not in (401, 403), (made.name, role, app, named, sentence)
                else:
                    assert status == 403, (made.name, role, app, named)
                    assert f"the role {role if may and made.is_below_app else made.role}" in sentence
                if not made.is_below_app:
                    break


def test_without_a_good_token_no_request_is_answered(admin: Client) -> None:
    for made in every_route():
        assert status_of(Client(admin.url, "nobody"), made, "heat")[0] == 401


def test_a_token_for_an_app_sees_and_submits_that_app_alone(
    admin: Client, tokens: dict[tuple[str, str], Client]
) -> None:
    for name in ("heat", "cold"):
        body = {"name": name, "flow": STOCKS, "set": {"quotes.path": "p.csv"}}
        if name == "cold":
            status, code, sentence = tokens["operator", "heat"].refusal("POST", "/apps", body)
            assert (status, code) == (403, "forbidden")
            assert "token operator-heat is for app heat" in sentence
        admin.ask("POST", "/apps", body, expect=202)
    assert [one["name"] for one in tokens["viewer", "heat"].get("/apps")["items"]] == ["heat"]
    assert {"heat", "cold"} <= {one["name"] for one in tokens["viewer", ""].get("/apps")["items"]}
    assert tokens["viewer", "heat"].get("/apps?after=heat")["items"] == []
    tokens["operator", "heat"].ask("POST", "/apps/heat/kill", {"mode": "now"}, expect=202)
    status, code, _ = tokens["operator", "heat"].refusal("POST", "/apps/cold/kill", {"mode": "now"})
    assert (status, code) == (403, "forbidden")


def test_a_token_ends_when_it_is_revoked_and_its_like_may_come_again(admin: Client) -> None:
    body = {"name": "once", "role": "viewer", "expires_s": 1}
    _, first = admin.ask("POST", "/tokens", body, key="a-key", expect=201)
    _, again = admin.ask("POST", "/tokens", body | {"expires_s": 3_600}, key="a-key", expect=201)
    assert Client(admin.url, first["token"]).ask("GET", "/status")[0] == 401
    client = Client(admin.url, again["token"])
    client.get("/status")
    [told_of] = [one for one in admin.get("/tokens?limit=1000")["items"] if one["name"] == "once"]
    assert told_of.pop("used_us") > again.pop("used_us") == 0
    assert told_of == {k: v for k, v in again.items() if k != "token"}
    assert (told_of["made_by"], told_of["app"]) == (LOCAL, "")
    admin.ask("POST", "/tokens/once/revoke", {}, expect=200)
    assert client.ask("GET", "/status")[0] == 401
    assert admin.refusal("POST", "/tokens/once/revoke", {})[0] == 404


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"name": "a"}, "missing required field 'role'"),
        ({"name": "a", "role": "root"}, "role: invalid enum value 'root'"),
        ({"name": "a b", "role": "viewer"}, "use a name of 1 to 64"),
        ({"name": LOCAL, "role": "viewer"}, "other than local"),
        ({"name": "a", "role": "viewer", "app": "../x"}, "use a name of 1 to 48"),
        ({"name": "a", "role": "viewer", "expires_s": 0}, "expires_s"),
        ({"name": "a", "role": "viewer", "expires_s": 1e300}, "expires_s"),
        ({"name": "a", "role": "admin", "app": "heat"}, "leave the app out"),
    ],
)
def test_what_no_token_can_be_is_a_sentence(admin: Client, body: Any, said: str) -> None:
    status, _, sentence = admin.refusal("POST", "/tokens", body)
    assert status == 400
    assert said in sentence


def test_hostile_tokens_get_nothing_and_break_nothing(admin: Client) -> None:
    for word in (b"gear_", b"\xff\xfe", b"x" * 7_000, b"a b", b"' OR '1'='1", b"%00", b"null"):
        status, headers, raw = Client(admin.url).raw(
            "POST",
            "/api/v1/apps",
            b"{}",
            {"Authorization": b"Bearer " + word},  # type: ignore[dict-item]
        )
        assert status == 401, word
        assert headers["www-authenticate"] == "Bearer"
        assert json.loads(raw)["error"]["code"] == "unauthorized"
    admin.get("/status")


def test_two_operators_at_once_make_each_change_once_and_both_are_told_of(
    admin: Client, tokens: dict[tuple[str, str], Client]
) -> None:
    _, found = admin.ask("POST", "/tokens", {"name": "second", "role": "operator"}, expect=201)
    operators = [tokens["operator", ""], Client(admin.url, found["token"])]
    admin.ask("POST", "/devices", {"name": "both"}, expect=201)
    codes: list[list[int]] = [[], []]

    def work(index: int) -> None:
        for number in range(5):
            body = {"name": f"race{number}", "flow": STOCKS, "set": {"quotes.path": "p.csv"}}
            codes[index].append(operators[index].ask("POST", "/apps", body)[0])
            labels = {f"of-{index}": str(number)}
            codes[index].append(operators[index].ask("PATCH", "/devices/both", {"labels": labels})[0])

    both = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert sorted(code for one in codes for code in one[::2]) == [202] * 5 + [409] * 5
    assert [code for one in codes for code in one[1::2]] == [200] * 10
    assert admin.get("/devices/both")["labels"] == {"of-0": "4", "of-1": "4"}
    noted = [
        one for one in admin.get("/audit?limit=1000")["items"] if one["asked"].get("name", "")[:4] == "race"
    ]
    assert {one["token"] for one in noted} == {"operator-all", "second"}
    assert sorted(one["result"] for one in noted) == ["conflict"] * 5 + ["ok"] * 5


def test_the_audit_log_tells_who_did_what_and_no_secret(
    admin: Client, tokens: dict[tuple[str, str], Client], state: Path
) -> None:
    operator = tokens["operator", ""]
    settings = {"set": {"quotes.path": SECRET}, "device_set": {"s9": {"quotes.path": SECRET}}}
    operator.ask("POST", "/apps", {"name": "told", "flow": STOCKS, **settings}, expect=202)
    operator.ask("POST", "/apps/told/kill", {"mode": "now", "purge": True}, expect=202)
    assert tokens["viewer", ""].ask("POST", "/devices/s9/retire", {})[0] == 403
    admin.ask("POST", "/devices", "no object")
    answered = admin.get("/audit?limit=4")
    refused, denied, killed, submitted = answered["items"]
    assert answered["next"] == submitted["number"]
    assert (submitted["token"], submitted["role"], submitted["method"]) == (
        "operator-all",
        "operator",
        "POST",
    )
    assert (submitted["path"], submitted["status"], submitted["result"]) == ("/api/v1/apps", 202, "ok")
    assert submitted["address"] == "127.0.0.1"
    assert submitted["asked"]["set"] == ["quotes.path"]
    assert submitted["asked"]["device_set"] == ["s9"]
    assert (killed["app"], killed["asked"]) == ("told", {"mode": "now", "purge": True})
    assert (denied["token"], denied["device"], denied["result"]) == ("viewer-all", "s9", "forbidden")
    assert (refused["token"], refused["status"], refused["asked"]) == (LOCAL, 400, {})
    assert [one["number"] for one in admin.get(f"/audit?limit=1&after={killed['number']}")["items"]] == [
        submitted["number"]
    ]
    assert admin.get(f"/audit?since_us={refused['time_us'] + 1}")["items"] == []
    files = [path for path in state.iterdir() if path.name.startswith("audit.sqlite")]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    kept = b"".join(path.read_bytes() for path in files)
    assert b"quotes.path" in kept
    for word in (SECRET, *(one.token for one in tokens.values()), admin.token):
        assert word.encode() not in kept


def test_a_kill_loses_no_entry_and_tokens_go_on(tmp_path: Path) -> None:
    with control_process(tmp_path) as (process, client):
        _, found = client.ask("POST", "/tokens", {"name": "ci", "role": "operator"}, expect=201)
        client.ask("POST", "/devices", {"name": "d1"}, expect=201)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(WAIT_S)
    with control_process(tmp_path) as (_, client):
        Client(client.url, found["token"]).get("/devices/d1")
        assert [(one["path"], one["status"]) for one in client.get("/audit")["items"]] == [
            ("/api/v1/devices", 201),
            ("/api/v1/tokens", 201),
        ]


def test_an_entry_without_an_end_says_that_nobody_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "ENTRIES_MAX", 3)
    ticks = iter(range(1, 100))
    log = AuditLog(tmp_path / "audit.sqlite", lambda: next(ticks))
    for number in range(5):
        made = log.begin(Bearer("alice", "operator"), "POST", f"/x\x1b{number}", ("a", ""), "::1")
        if number != 3:
            log.end(made, 200, "ok", {})
    found, following = log.page(10, 1_000, 0)
    assert [(one["number"], one["status"], one["result"]) for one in found] == [
        (5, 200, "ok"),
        (4, 0, ""),
        (3, 200, "ok"),
    ]
    assert all(one["path"].isprintable() for one in found)
    assert following is None
    log.close()
    with sqlite3.connect(tmp_path / "audit.sqlite") as newer:
        newer.execute("PRAGMA user_version = 9")
    newer.close()
    with pytest.raises(StoreError, match="has layout 9, and this version of Geartrain knows 1"):
        AuditLog(tmp_path / "audit.sqlite", lambda: 1)


def test_what_is_told_of_a_body_is_bounded() -> None:
    cuts = [DeviceCut(f"d{number}", "x" * 500) for number in range(50)]
    body = SubmitBody(
        "a", "f:flow", devices="y" * 5_000, set={f"s.{n}": "z" for n in range(50)}, device_cuts=cuts
    )
    found = told(body)
    assert len(found["devices"]) <= audit.TEXT_CHARS_MAX + 3
    assert found["set"][-1] == "and 30 more"
    assert len(found["device_cuts"]) == audit.LIST_MAX + 1
    assert "z" not in json.dumps(found["set"])
