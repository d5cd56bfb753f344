"""Events: each change is told once, in the order of the store, to who follows by REST, whatever is killed."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from geartrain_cloud.control.server import listen, make_app
from geartrain_cloud.control.streaming import HEARTBEAT_S, STREAMS_MAX, STREAMS_OF_TOKEN_MAX, Streams
from geartrain_cloud.control_store import events
from geartrain_cloud.control_store.errors import ConflictError
from geartrain_cloud.control_store.model import (
    ONLINE_US,
    Channel,
    Mode,
    Outline,
    Planned,
    Report,
    SourceOutline,
    State,
    Submission,
)
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.platform.config import ControlSection
from geartrain_cloud.rest import answers
from geartrain_cloud.rest.audit import AuditLog
from tests.control.platform_client import Client, control_process
from tests.waiting import WAIT_S, in_time

OUTLINE = Outline("heat", [Channel("readings", ["probes"])], [SourceOutline("probes", bounded=True)], "r1")
ASKED = Submission("heat", "mill:app", "auto", "all")
STOCKS = "geartrain_examples.stocks.flow:flow"


class Watch:
    """A store whose clock the test moves, and what its events said since the last look."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now_us, self.seen = folder, 1_000_000_000, 0
        self.store = self.open()

    def open(self) -> ControlStore:
        return ControlStore(self.folder / "control.sqlite", lambda: self.now_us)

    def restart(self) -> None:
        self.store.close()
        self.store = self.open()

    def told(self, app: str = "") -> list[events.Event]:
        found, self.seen = self.store.events.after(self.seen, 1_000, app)
        assert [one.number for one in found] == sorted({one.number for one in found})
        assert all(one.at_us == self.now_us for one in found)
        return found

    def said(self) -> list[tuple[str, str, str, dict[str, Any]]]:
        return [(one.kind, one.app, one.device, one.said) for one in self.told()]

    def kinds(self) -> list[tuple[str, str]]:
        return [(one.kind, one.app or one.device) for one in self.told()]


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    one = Watch(tmp_path)
    yield one
    one.store.close()


def test_each_change_is_told_once(watch: Watch) -> None:
    store = watch.store
    store.devices.add("d1", {"kind": "stock"})
    device = {"labels": {"kind": "stock"}, "retired": False, "serial": 1, "applied": 0}
    assert watch.said() == [("device", "", "d1", device)]
    made = store.apps.submit(ASKED, OUTLINE)
    app, again = watch.said()
    assert (app[:3], app[3]["state"]) == (("app", "heat", ""), "submitted")
    assert (again[:3], again[3]["serial"]) == (("device", "", "d1"), 2)
    report = Report("d1", made.instance, "failed", why="x" * 1_000, serial=2)
    store.reports.heard("d1", b"x", 2, [report])
    device_told, applied = watch.said()
    assert (device_told[0], device_told[3]["applied"]) == ("device", 2)
    assert applied[:3] == ("applied", "heat", "d1")
    assert (applied[3]["state"], applied[3]["why"]) == ("failed", "x" * 400)
    store.reports.heard("d1", b"x", 2, [report])
    assert watch.said() == []  # what is said again changes nothing
    store.apps.enter(made.instance, State.RUNNING)
    assert [said["state"] for *_, said in watch.said()] == ["running"]
    store.apps.retain("heat", 3_600.0, None)
    assert [(one[0], one[3]["retain_s"]) for one in watch.said()] == [("app", 3_600.0)]
    assert store.programs.want(["d1"], "installed", "") == ["d1"]
    store.programs.heard("d1", "0123")
    assert watch.kinds() == [("device", "d1"), ("agent", "d1"), ("agent", "d1")]
    secret = store.secrets.set("heat", "password", "open sesame")
    store.secrets.remove("heat", "password")
    named = {"name": "password", "version": secret.version}
    assert watch.said() == [("secret", "heat", "", named | {"removed": gone}) for gone in (False, True)]
    store.devices.retire("d1")
    assert [said["retired"] for *_, said in watch.said()] == [True, True]
    store.apps.kill("heat", Mode.NOW, purge=True)
    store.apps.forget(made.instance)
    told = watch.said()
    assert {one[:2] for one in told} == {("app", "heat")}
    assert [said["removed"] for *_, said in told] == [False] * (len(told) - 1) + [True]


def test_a_revision_is_told_from_its_preparation_on(watch: Watch) -> None:
    watch.store.apps.submit(ASKED, OUTLINE)
    watch.store.apps.enter("heat.1", State.RUNNING)
    watch.seen = watch.store.events.newest

    def stages() -> list[tuple[int, str]]:
        return [(said["number"], said["stage"]) for kind, *_, said in watch.said() if kind == "revision"]

    def plan(number: int) -> None:
        planned = Planned("heat.1", number, "mill:app", "auto", {}, {}, OUTLINE, (), 7)
        watch.store.apps.plan("heat", planned)

    plan(2)
    assert stages() == [(2, "prepared")]
    watch.store.apps.cross("heat.1")
    assert stages() == [(2, "logged")]
    watch.store.events.look({"heat.1": 2, "gone.7": 1})
    assert stages() == [(2, "in force")]
    watch.store.events.look({"heat.1": 2})
    watch.restart()
    watch.store.events.look({"heat.1": 2})
    assert watch.said() == []
    plan(3)
    assert watch.store.apps.give_up("heat", "heat.1")
    assert stages() == [(3, "prepared"), (3, "given up")]
    watch.store.apps.enter("heat.1", State.ENDED)
    watch.store.apps.forget("heat.1")
    assert stages() == []
    assert watch.store.database.rows("SELECT * FROM told") == []


def test_whether_a_device_is_in_contact_is_told_once_across_restarts(watch: Watch) -> None:
    watch.store.devices.add("d1", {})
    watch.store.reports.heard("d1", b"x", 1, [])
    seen_us = watch.now_us
    watch.seen = watch.store.events.newest
    watch.store.events.look({})
    assert watch.said() == [("contact", "", "d1", {"online": True, "seen_us": seen_us})]
    for step in (ONLINE_US, 0):
        watch.now_us += step
        watch.store.events.look({})
        watch.restart()
    assert watch.said() == []
    watch.now_us += 1
    for _ in range(3):
        watch.store.events.look({})
        watch.restart()
    assert watch.said() == [("contact", "", "d1", {"online": False, "seen_us": seen_us})]
    watch.store.reports.heard("d1", b"x", 1, [])
    watch.store.events.look({})
    assert [(one[0], one[3]["online"]) for one in watch.said()] == [("contact", True)]


def test_a_change_that_fails_leaves_no_event_and_numbers_only_rise(watch: Watch) -> None:
    watch.store.devices.add("d1", {})
    watch.said()

    def two() -> None:
        with watch.store.database.change():
            watch.store.devices.add("d2", {})
            watch.store.devices.add("d1", {})

    with pytest.raises(ConflictError):
        two()
    assert watch.said() == []
    number = watch.store.events.newest
    watch.restart()
    watch.store.devices.add("d3", {})
    assert watch.store.events.newest == number + 1


def test_the_newest_are_kept_for_a_time(watch: Watch) -> None:
    store = watch.store
    with store.database.change() as database:
        add = "INSERT INTO events (at_us, kind, app, device, said) VALUES (?, 'app', 'a', '', '{}')"
        database.executemany(add, [(number,) for number in range(events.EVENTS_MAX)])
    assert (store.events.begin, store.events.newest) == (0, events.EVENTS_MAX)
    assert store.events.before(0) == 0
    store.devices.add("d1", {})
    assert (store.events.begin, store.events.newest) == (1, events.EVENTS_MAX + 1)
    assert store.events.before(0) == 0  # which is below `begin`: some are gone
    assert store.events.before(500) == 500
    assert store.events.before(watch.now_us + 1) == store.events.newest
    assert len(store.events.after(0, 2 * events.EVENTS_MAX)[0]) == events.EVENTS_MAX
    watch.now_us = events.AGE_US_MAX + 5_000
    store.events.look({})
    assert store.events.begin == 5_000
    watch.now_us = 3 * events.AGE_US_MAX
    store.events.look({})
    assert store.events.begin == store.events.newest == events.EVENTS_MAX + 1
    watch.restart()
    assert watch.store.events.begin == watch.store.events.newest == events.EVENTS_MAX + 1
    watch.store.devices.add("d2", {})
    assert watch.store.events.newest == events.EVENTS_MAX + 2


def test_an_app_has_its_own_events(watch: Watch) -> None:
    watch.store.devices.add("d1", {})
    for name in ("heat", "cold"):
        watch.store.apps.submit(Submission(name, "mill:app", "auto", "all"), OUTLINE)
    watch.store.reports.heard("d1", b"x", 1, [Report("d1", "cold.1", "running")])
    assert {(one.kind, one.app) for one in watch.told("heat")} == {("app", "heat")}
    assert watch.seen == watch.store.events.newest  # also past what others' events are
    watch.seen = 0
    assert [one.kind for one in watch.told("cold")] == ["app", "applied"]


# By REST


class Stream:
    """The events that come over a connection."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.response = response

    def next(self) -> answers.Event:
        """The next event; what only tells the place is passed over."""
        found: dict[str, str] = {}
        while line := self.response.readline():
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                found[name] = value
            elif "data" in found:
                one = msgspec.json.decode(found["data"], type=answers.Event)
                assert (found["id"], found["event"]) == (str(one.number), one.kind)
                return one
            else:
                found.clear()
        raise EOFError

    def until(self, kind: str, name: str) -> answers.Event:
        while (found := self.next()).kind != kind or name not in (found.app, found.device):
            assert found.kind != "end", found.said
        return found


@contextmanager
def following(client: Client, last: str | None = None, question: str = "") -> Iterator[Stream]:
    where = urlsplit(client.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port or 0, timeout=WAIT_S)
    headers = {"Authorization": f"Bearer {client.token}"} | ({} if last is None else {"Last-Event-ID": last})
    try:
        connection.request("GET", f"/api/v1/events{question}", headers=headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        assert response.getheader("Content-Type") == "text/event-stream"
        yield Stream(response)
    finally:
        connection.close()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with control_process(tmp_path_factory.mktemp("platform")) as (_, one):
        yield one


def add_device(client: Client, name: str) -> None:
    client.ask("POST", "/devices", {"name": name}, expect=201)


def token(client: Client, name: str, app: str = "") -> Client:
    body = {"name": name, "role": "viewer", "app": app}
    return Client(client.url, client.ask("POST", "/tokens", body, expect=201)[1]["token"])


def test_two_are_told_the_same_and_go_on_where_they_were(client: Client) -> None:
    with following(client) as stream, following(client) as other:
        begin = stream.next()
        assert (begin.kind, begin.said) == ("begin", {})
        add_device(client, "d1")
        added = stream.until("device", "d1")
        assert other.until("device", "d1") == added
    client.ask("PATCH", "/devices/d1", {"labels": {"site": "north"}}, expect=200)
    for last, question in ((str(added.number), "?after=0"), (None, f"?after={added.number}")):
        with following(client, last, question) as stream:
            assert (stream.next().kind, stream.next().said["labels"]) == ("begin", {"site": "north"})
    with following(client, "999999999") as stream:
        assert [stream.next().kind for _ in range(2)] == ["begin", "missed"]
        add_device(client, "d2")
        assert stream.until("device", "d2").number > added.number
    for since, kind in ((added.at_us, "device"), (added.at_us - 1, "device")):
        with following(client, question=f"?since_us={since}") as stream:
            found = [stream.next() for _ in range(2)]
            assert [one.kind for one in found] == ["begin", kind]
            assert found[1] == added


@pytest.mark.parametrize("last", ["", "-1", "1e3", "1" * 19, "\xb2", "\xff\xfe", "1 OR 1", "1, 2", "0x1"])
def test_a_place_that_is_none_is_refused(client: Client, last: str) -> None:
    status, headers, raw = client.raw("GET", "/api/v1/events", headers={"Last-Event-ID": last})
    assert status == 400
    assert json.loads(raw)["error"]["sentence"].isprintable()
    assert headers["content-type"].startswith("application/json")


def test_parameters_that_are_wrong_are_refused(client: Client) -> None:
    for question in ("after=-1", "after=x", "since_us=1e9", "app=../x", "other=1"):
        assert client.refusal("GET", f"/events?{question}")[0] == 400


def test_a_token_for_an_app_is_told_of_that_app_alone(client: Client) -> None:
    heat = token(client, "of-heat", "heat")
    with following(heat) as stream, following(token(client, "of-cold", "cold")) as cold:
        for name in ("cold", "heat"):
            body = {"name": name, "flow": STOCKS, "set": {"quotes.path": "p.csv"}}
            client.ask("POST", "/apps", body, expect=202)
        assert [stream.next().kind for _ in range(1)] == ["begin"]
        assert stream.next().app == "heat"
        assert [cold.next().kind, cold.next().app] == ["begin", "cold"]
    with following(heat, question="?after=0&app=heat") as stream:
        assert (stream.next().kind, stream.next().app) == ("begin", "heat")
    assert heat.refusal("GET", "/events?app=cold")[:2] == (403, "forbidden")
    with following(client, question="?app=cold&after=0") as stream:
        assert (stream.next().kind, stream.next().app) == ("begin", "cold")


def test_an_app_that_never_was_is_not_found_and_one_that_was_purged_has_its_events(
    client: Client, tmp_path: Path
) -> None:
    status, code, sentence = client.refusal("GET", "/events?app=nosuch")
    assert (status, code) == (404, "not_found")
    assert sentence == "there is no app nosuch, and no event of one: see gear list"
    store = ControlStore(tmp_path / "control.sqlite", lambda: 1)
    store.events.note("app", "gone", "", {"removed": True})
    assert [store.events.knows(name) for name in ("gone", "nosuch", "")] == [True, False, False]
    store.close()


def test_only_so_many_follow_by_one_token_and_in_all(client: Client) -> None:
    own = [token(client, f"follower-{number}") for number in range(STREAMS_MAX // STREAMS_OF_TOKEN_MAX)]
    with ExitStack() as held:
        for one in own:
            for _ in range(STREAMS_OF_TOKEN_MAX):
                assert held.enter_context(following(one)).next().kind == "begin"
            status, code, sentence = one.refusal("GET", "/events")
            assert (status, code) == (429, "too_many")
            assert "by token follower-" in sentence
        assert client.refusal("GET", "/events")[2].startswith(f"{STREAMS_MAX} follow events")
        client.get("/status")
    with following(own[0]) as stream:  # whoever leaves makes room
        assert stream.next().kind == "begin"


def test_a_stream_ends_with_its_token(client: Client) -> None:
    own = token(client, "short")
    with following(own) as stream:
        assert stream.next().kind == "begin"
        client.ask("POST", "/tokens/short/revoke", {}, expect=200)
        end = stream.next()
        assert (end.kind, "revoked" in end.said["why"]) == ("end", True)
        with pytest.raises(EOFError):
            stream.next()


def test_nothing_is_told_twice_or_lost_where_control_is_killed(tmp_path: Path) -> None:
    """One reader is at the end when control dies by kill -9, the other behind; both go on where they were."""
    numbers: dict[str, list[int]] = {"quick": [], "slow": []}
    for life in range(3):
        with control_process(tmp_path) as (process, client):
            add_device(client, f"d{life}")
            for name, last in (("quick", f"d{life}"), ("slow", f"d{life - 1}")):
                told = numbers[name]
                with following(client, str(told[-1]) if told else "0") as stream:
                    assert stream.next().kind == "begin"
                    while last != "d-1":
                        one = stream.next()
                        assert one.kind == "device"
                        told.append(one.number)
                        if one.device == last:
                            break
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(WAIT_S)
    assert numbers == {"quick": [1, 2, 3], "slow": [1, 2]}


def test_a_server_that_ends_ends_its_streams_with_the_reason(tmp_path: Path) -> None:
    with control_process(tmp_path) as (process, client), following(client) as stream:
        stream.next()
        process.send_signal(signal.SIGTERM)
        end = stream.next()
        assert (end.kind, end.said["why"].startswith("the platform's control ends")) == ("end", True)
        with pytest.raises(EOFError):
            stream.next()
        assert process.wait(WAIT_S) == 0


def test_a_slow_reader_is_let_go_with_the_reason_and_holds_up_nobody(tmp_path: Path) -> None:
    said = asyncio.run(slow_reader(tmp_path))
    assert said.count(b"event: app") < events.EVENTS_MAX
    assert said.count(b"event: end") == 1
    assert b"took nothing for 0.5 s: follow again, and read faster" in said


class Heard(logging.Handler):
    """Whether anything was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.anything = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.anything.set()


async def quiet_app(folder: Path) -> tuple[int, float]:
    """How often the place alone was sent to who follows an app of which nothing is told, while all is told
    of another one every five seconds of a clock that the test moves; and how far that was moved.
    """
    now, beats = [100.0], list[bytes]()
    store, audit = ControlStore(folder / "control.sqlite", lambda: 1), AuditLog(folder / "audit", lambda: 1)
    store.events.note("app", "quiet", "", {})
    streams = Streams(store.events, dict, store.bearers.check, now_s=lambda: now[0])
    app = make_app(partial(store.bearers.look, own="own"), lambda _: None, audit, [streams])
    app.on_shutdown.append(streams.end)
    runner, port, _ = await listen(app, ControlSection())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def read() -> None:
        async for line in reader:
            beats.extend([line] * (before[0].startswith(b"id:") and line == b"\n"))
            before[0] = line

    before, reading = [b""], asyncio.create_task(read())
    try:
        path = "/api/v1/events?app=quiet&after=1"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer own\r\n\r\n".encode())
        for _ in range(ROUNDS_MAX):
            await asyncio.sleep(0.1)
            if len(beats) >= BEATS:
                break
            now[0] += 5
            store.events.note("app", "busy", "", {"why": "more"})
        return len(beats), now[0] - 100
    finally:
        reading.cancel()
        writer.close()
        await runner.cleanup()
        store.close()
        audit.close()


BEATS, ROUNDS_MAX = 4, 600


def test_who_follows_a_quiet_app_hears_that_control_is_there_while_others_are_busy(tmp_path: Path) -> None:
    beats, passed_s = asyncio.run(quiet_app(tmp_path))
    assert BEATS <= beats <= passed_s / HEARTBEAT_S


async def slow_reader(folder: Path) -> bytes:
    """What one has read that begins to read when he is given up; another one reads all meanwhile."""
    store, audit = ControlStore(folder / "control.sqlite", lambda: 1), AuditLog(folder / "audit", lambda: 1)
    streams = Streams(store.events, dict, store.bearers.check, write_s=0.5, leave_s=120)
    heard, log = Heard(), logging.getLogger("geartrain.control")
    app = make_app(partial(store.bearers.look, own="own"), lambda _: None, audit, [streams])
    app.on_shutdown.append(streams.end)
    runner, port, _ = await listen(app, ControlSection())
    log.addHandler(heard)  # it may have said already that its port is taken
    try:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        await asyncio.to_thread(slow.connect, ("127.0.0.1", port))
        head = "GET /api/v1/events?after=0 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer own\r\n\r\n"
        await asyncio.to_thread(slow.sendall, head.encode())
        with store.database.change() as database:
            add = "INSERT INTO events (at_us, kind, app, device, said) VALUES (1, 'app', 'a', '', ?)"
            database.executemany(add, [(json.dumps({"why": "x" * 1_000}),)] * events.EVENTS_MAX)
        quick = await asyncio.to_thread(read_all, Client(f"http://127.0.0.1:{port}", "own"))
        assert quick == list(range(1, events.EVENTS_MAX + 1))
        await in_time("what the platform says", heard.anything.wait())
        slow.settimeout(WAIT_S)
        with slow, slow.makefile("rb") as file:
            return await asyncio.to_thread(file.read)
    finally:
        log.removeHandler(heard)
        await runner.cleanup()
        store.close()
        audit.close()


def read_all(client: Client) -> list[int]:
    with following(client, question="?after=0") as stream:
        assert stream.next().kind == "begin"
        return [stream.next().number for _ in range(events.EVENTS_MAX)]
