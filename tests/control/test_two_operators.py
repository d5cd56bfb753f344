"""Two operators at once on one app: each request is done whole or refused in one sentence.

Here the update and the move are such as are always refused; purge, backup and secret are accepted.
"""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from itertools import combinations
from pathlib import Path
from typing import Any

from geartrain_cloud.platform.places import PlatformPlaces
from tests.control.platform_client import Client, control_process
from tests.drawing import drawn
from tests.supervisor.test_up import until

STOCKS = "geartrain_examples.stocks.flow:flow"
Asked = tuple[str, str, dict[str, Any]]
COMMANDS: dict[str, Callable[[str], Asked]] = {
    "update": lambda _: ("POST", "/apps/stocks/update", {"flow": STOCKS, "code": "00"}),
    "move": lambda _: ("POST", "/apps/stocks/cut", {"cut": "cloud"}),
    "purge": lambda name: ("POST", f"/devices/{name}/purge", {}),
    "backup": lambda name: ("POST", "/backups", {"name": name}),
    "secret": lambda name: ("PUT", f"/apps/stocks/secrets/{name}", {"value": "v"}),
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


def _check(client: Client, state: Path, command: str, name: str, is_done: bool) -> None:
    """All of a command is there where it was accepted, and nothing where it was refused."""
    if command == "backup" and is_done:
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


def test_each_of_two_commands_at_once_is_done_whole_or_refused_in_a_sentence(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with control_process(state) as (_, client):
        body = {"name": "stocks", "flow": STOCKS, "devices": "all", "set": {"quotes.path": "p.csv"}}
        client.ask("POST", "/apps", body, expect=202)
        for number, pair in enumerate(drawn("pairs of operators", PAIRS, 6)):
            names = [f"d{number}{letter}" for letter in "ab"]
            for name in names:
                client.ask("POST", "/devices", {"name": name, "local": True}, expect=201)
            commands = random.Random(number).sample(pair, 2)
            asked = [COMMANDS[one](name) for one, name in zip(commands, names, strict=True)]
            for command, name, (status, said) in zip(commands, names, _at_once(client, asked), strict=True):
                assert status < 300 or 400 <= status < 500, (pair, said)
                assert status < 300 or said["error"]["sentence"].isprintable()
                _check(client, state, command, name, is_done=status < 300)
        with closing(sqlite3.connect(PlatformPlaces(state).control)) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
