"""Two operators at once on one app: each request is done whole or refused in one sentence.

Each pair has an app of its own, with signed code and another cut to go to: alone, each command is accepted.
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from geartrain_cloud.platform.places import PlatformPlaces, read_report, write_report
from tests import forked
from tests.control.platform_client import Client, control_process
from tests.drawing import drawn
from tests.proofs.test_platform import FLOW
from tests.supervisor.test_up import until

HEAT = "heat:flow"
Asked = tuple[str, str, dict[str, Any]]
COMMANDS: dict[str, Callable[[str, str, str], Asked]] = {
    "update": lambda app, _, code: ("POST", f"/apps/{app}/update", {"flow": HEAT, "code": code}),
    "move": lambda app, *_: ("POST", f"/apps/{app}/cut", {"cut": "edge"}),
    "purge": lambda _, name, __: ("POST", f"/devices/{name}/purge", {}),
    "backup": lambda _, name, __: ("POST", "/backups", {"name": name}),
    "secret": lambda app, name, _: ("PUT", f"/apps/{app}/secrets/{name}", {"value": "v"}),
}
PAIRS = tuple(combinations(COMMANDS, 2))


def _at_once(client: Client, asked: list[Asked]) -> list[tuple[int, Any]]:
    """The answers to requests that are sent at the same time."""
    found: list[tuple[int, Any]] = [(0, None)] * len(asked)
    gate = threading.Barrier(len(asked))

    def ask(at: int) -> None:
        gate.wait()
        found[at] = client.ask(*asked[at])

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(len(asked))]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return found


def _check(client: Client, state: Path, command: str, about: tuple[str, str, str], *, is_done: bool) -> None:
    """All of a command is there where it was accepted, and nothing where it was refused."""
    app, name, code = about
    if command == "update":
        (newest, *_) = client.get(f"/apps/{app}/revisions")["items"]
        assert (newest["code"] == code) is is_done
    elif command == "move":
        about_app = client.get(f"/apps/{app}")
        is_on_its_way = about_app["cut_change"] is not None
        assert (is_on_its_way or [one["cut"] for one in about_app["cuts"]] != ["cloud"]) is is_done
    elif command == "backup" and is_done:
        until(lambda: client.get(f"/backups/{name}")["state"] != "running", "the end of the backup")
        made = client.get(f"/backups/{name}")
        assert (made["state"] == "made") == Path(made["file"]).exists() == (made["why"] == ""), made
    elif command == "backup":
        assert client.ask("GET", f"/backups/{name}")[0] == 404
    elif command == "purge":
        if is_done:
            until(lambda: client.get(f"/devices/{name}/purge")["step"] == "done", "the end of the purge")
        assert client.get(f"/devices/{name}")["retired"] is is_done
    elif command == "secret":
        held = [one["name"] for one in client.get("/secrets?limit=100")["items"]]
        assert (name in held) is is_done


def _gear(folder: Path, *arguments: str) -> None:
    done = forked.run(forked.GEAR, arguments, environment=os.environ, folder=folder)
    assert done.returncode == 0, done.stderr


def _submit(state: Path, client: Client, apps: list[str]) -> str:
    """Submit the signed flow under each name; the hash of other code of it, signed as well."""
    file, changed = state.parent / "heat.py", FLOW + "# changed\n"
    for content, names in ((FLOW, apps), (changed, ["other"])):
        file.write_text(content, encoding="utf-8")
        for name in names:
            own = ("--name", name, "--cut", "cloud", "--set", "readings.path=p.csv")
            _gear(file.parent, "submit", HEAT, "--devices", "all", "--no-wait", "--state", str(state), *own)
    (made,) = client.get("/apps/other/revisions")["items"]
    return str(made["code"])


def _all_run(state: Path, client: Client, apps: list[str]) -> None:
    """Say as the Spark host that it runs the apps, and wait until control has taken it."""
    places = PlatformPlaces(state)
    wanted = until(
        lambda: (found := read_report(places.spark_wanted)).get("flows", {}).keys() >= set(apps) and found,
        "what the host is to run",
    )
    runs = {name: {"state": "running", "run": 1, "revision": 1, "prepared": 1} for name in wanted["flows"]}
    write_report(places.spark_status, {"serial": wanted["serial"], "flows": runs})
    until(lambda: all(one["state"] == "running" for one in client.get("/apps")["items"]), "apps that run")


def test_each_of_two_commands_at_once_is_done_whole_or_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEARTRAIN_KEYS", str(tmp_path / "keys"))
    _gear(tmp_path, "key", "new")
    state, pairs = tmp_path / "state", drawn("pairs of operators", PAIRS, 6)
    apps = [f"heat{number}" for number in range(len(pairs))]
    with control_process(state) as (_, client):
        client.ask("POST", "/devices", {"name": "stays", "local": True}, expect=201)
        code = _submit(state, client, apps)
        _all_run(state, client, [f"{app}.1" for app in apps])
        for app, pair in zip(apps, pairs, strict=True):
            names = [f"{app}{letter}" for letter in "ab"]
            for name in names:
                client.ask("POST", "/devices", {"name": name, "local": True}, expect=201)
            commands = random.Random(app).sample(pair, 2)
            asked = [COMMANDS[one](app, name, code) for one, name in zip(commands, names, strict=True)]
            answers = _at_once(client, asked)
            assert any(status < 300 for status, _ in answers), (pair, answers)
            for command, name, (status, said) in zip(commands, names, answers, strict=True):
                assert status < 300 or 400 <= status < 500, (pair, said)
                assert status < 300 or said["error"]["sentence"].isprintable()
                _check(client, state, command, (app, name, code), is_done=status < 300)
        with closing(sqlite3.connect(PlatformPlaces(state).control)) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
