"""`gear events` against a real gear-control: each change is a line, once, also where control is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from geartrain_client.cli import main
from geartrain_client.cli.events import line_of
from geartrain_client.errors import FailedError, UnreachableError
from geartrain_client.rest import door
from geartrain_client.rest.answers import Event
from geartrain_client.rest.door import Door
from geartrain_client.rest.following import AGAIN_S, follow
from geartrain_client.rest.platform import Platform
from tests.client.talking import HOSTILE, Capture
from tests.control.platform_client import Client, control_process
from tests.supervisor.test_up import own_port
from tests.waiting import WAIT_S

STOCKS = "geartrain_examples.stocks.flow:flow"


@contextmanager
def gear_events(state: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command as a user runs it."""
    command = [sys.executable, "-m", "geartrain_client.cli", "events", "--state", str(state), *arguments]
    told = {name: value for name, value in os.environ.items() if name not in (door.URL, door.TOKEN)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=told
    ) as one:
        try:
            yield one
        finally:
            one.kill()


def next_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr and process.stderr.read()
    found: dict[str, Any] = json.loads(line)
    return found


def add(client: Client, name: str) -> None:
    client.ask("POST", "/devices", {"name": name, "labels": {"site": "north"}}, expect=201)


@pytest.mark.slow
def test_each_change_is_a_line_across_a_kill_of_control(tmp_path: Path) -> None:
    own_port(tmp_path)
    with control_process(tmp_path) as (process, client):
        add(client, "d1")
        body: dict[str, Any] = {"name": "heat", "flow": STOCKS, "set": {"quotes.path": "p.csv"}}
        body |= {"devices": "site=south", "allow_none": True}
        client.ask("POST", "/apps", body, expect=202)
        with gear_events(tmp_path, "--json", "--since", "1h") as events:
            first = next_of(events)
            assert (first["kind"], first["device"], first["number"]) == ("device", "d1", 1)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(WAIT_S)
            with control_process(tmp_path) as (_, again):
                assert again.url == client.url
                add(again, "d2")
                numbers = [first["number"]]
                while (one := next_of(events))["device"] != "d2":
                    assert one["kind"] == "app"
                    numbers.append(one["number"])
                assert [*numbers, one["number"]] == list(range(1, len(numbers) + 2))
                with gear_events(tmp_path, "--app", "heat", "--since", "1h") as heat:
                    assert heat.stdout is not None
                    words = heat.stdout.readline().split()
                    assert words[1:5] == ["app", "heat", "submitted,", "revision"]
                    heat.send_signal(signal.SIGINT)
                    assert heat.wait(WAIT_S) == 130
            events.send_signal(signal.SIGINT)
            assert events.wait(WAIT_S) == 130
            assert events.stderr is not None
            said = events.stderr.read()
    assert "gear tries again" in said
    assert "Traceback" not in said


def test_what_is_wrong_is_a_sentence(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(door.URL, raising=False)
    assert main(["events", "--state", str(tmp_path)]) != 0
    assert "no platform was started in" in capsys.readouterr().err
    assert main(["events", "--url", "http://127.0.0.1:9", "--since", "yesterday"]) == 2
    assert "--since yesterday: write a length of time" in capsys.readouterr().err
    assert main(["events", "--url", "http://127.0.0.1:9"]) != 0
    assert "does not answer" in capsys.readouterr().err


class Scripted(Platform):
    """A platform whose connections are given; what is an error is raised."""

    def __init__(self, *connections: list[bytes | Exception]) -> None:
        super().__init__(Door("127.0.0.1", 9))
        self.connections, self.asked = list(connections), list[dict[str, str]]()

    def lines(
        self, path: str, headers: Mapping[str, str], bytes_max: int, silence_s: float, /, **parameters: Any
    ) -> Iterator[bytes]:
        self.asked.append(dict(headers))
        for one in self.connections.pop(0) if self.connections else [UnreachableError("away")]:
            if isinstance(one, Exception):
                raise one
            yield from one.split(b"\n")


def test_it_goes_on_behind_the_last_one_and_gives_up_in_the_end() -> None:
    def said(number: int, kind: str) -> bytes:
        return b'id: %d\nevent: %s\ndata: {"number":%d,"at_us":1,"kind":"%s"}\n' % (
            *(number, kind.encode()),
            *(number, kind.encode()),
        )

    now_s = [0.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    platform = Scripted(
        [said(4, "begin"), said(5, "app"), b"id: 9\n", UnreachableError("cut off")],
        [FailedError("not now", 503)],
        [
            said(9, "begin"),
            b": a comment\n",
            b"id: 9\n",
            said(12, "missed"),
            said(13, "device"),
            said(13, "end"),
        ],
    )
    lost, found = list[str](), list[int]()
    with pytest.raises(UnreachableError, match="away"):
        found.extend(
            one.number for one in follow(platform, lost=lost.append, monotonic=lambda: now_s[0], sleep=sleep)
        )
    assert found == [5, 12, 13]
    assert lost[:3] == ["cut off", "not now", "the platform at http://127.0.0.1:9 has ended the connection"]
    last = [one.get("Last-Event-ID") for one in platform.asked]
    assert last[:4] == [None, "9", "9", "13"]
    assert AGAIN_S < now_s[0] < AGAIN_S + 60


@pytest.mark.parametrize("data", [b"data: {}\n", b"data: \xff\n", b"data: 1\n", b"id: x\n"])
def test_what_is_no_event_is_a_sentence(data: bytes) -> None:
    with pytest.raises(FailedError, match="install the same version of both"):
        next(follow(Scripted([data]), lost=lambda _: None))


@pytest.mark.parametrize(
    ("kind", "said", "shown"),
    [
        ("app", {"state": "failed", "number": 2, "run": 1, "why": HOSTILE}, "failed, revision 2, run 1: a"),
        ("app", {"removed": True, "number": 1, "run": 3}, "purged, revision 1, run 3"),
        ("revision", {"number": 3, "stage": "in force"}, "revision 3 is in force"),
        ("cut", {"number": 3, "waits": True}, "devices wait for revision 3"),
        (
            "canary",
            {"number": 2, "selector": "kind=a", "stage": "went back", "why": "d1 has failed"},
            "revision 2 on kind=a went back: d1 has failed",
        ),
        ("applied", {"state": "running", "lacks": ["gps"]}, "running, without gps"),
        ("device", {"labels": {"a": "b"}, "serial": 4, "applied": 3}, "applied 3 of 4, a=b"),
        ("device", {"retired": True}, "retired"),
        ("contact", {"online": False, "seen_us": 0}, "offline since ever"),
        ("contact", {"online": True, "seen_us": 5}, "in contact"),
        ("agent", {"runs": "", "wanted": "ab"}, "runs the installed program, ab is wanted"),
        ("missed", {}, "older events are gone"),
        ("of tomorrow", {"a": 1}, '{"a": 1}'),
    ],
)
def test_an_event_is_read_by_a_person(kind: str, said: dict[str, Any], shown: str) -> None:
    assert shown in line_of(Event(1, 0, kind, "heat", "d1", said))
