"""Backups by REST: made whole on the platform's own disk, one at a time, bounded, and never sent."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from geartrain_client.cli import main
from geartrain_cloud.backup.restoring import restore
from geartrain_cloud.control.backups import BACKUPS_MAX
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.platform.places import PlatformPlaces
from tests.control.platform_client import Client, control_process
from tests.waiting import Wait

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("above") / "platform"


@pytest.fixture(scope="module")
def client(state: Path) -> Iterator[Client]:
    with control_process(state) as (_, one):
        yield one


def ended(client: Client, name: str) -> Any:
    wait = Wait("a backup to end")
    while (found := client.get(f"/backups/{name}"))["state"] == "running":
        wait.check()
        time.sleep(0.05)
    return found


def test_a_backup_is_made_whole_beside_the_state_folder(
    client: Client, state: Path, tmp_path: Path, capsys: Capture
) -> None:
    client.ask("POST", "/devices", {"name": "d1"}, expect=201)
    assert main(["backup", "--name", "monday", "--state", str(state), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["state"], said["why"], said["elsewhere"]) == ("made", "", [])
    file = Path(said["file"])
    assert (file, file.stat().st_mode & 0o077) == (state.with_name("platform.backups") / "monday.tar", 0)
    assert file.parent.stat().st_mode & 0o077 == 0
    found = restore(file, tmp_path / "again", lambda said: None)
    assert (found.made_us, found.files, found.size) == (said["made_us"], said["files"], said["bytes"])
    store = ControlStore(PlatformPlaces(found.state).control, lambda: 1)
    assert store.devices.get("d1").device == "d1"
    store.close()
    assert client.refusal("POST", "/backups", {"name": "monday"})[0] == 409
    assert [one["name"] for one in client.get("/backups")["items"]] == ["monday"]
    client.ask("POST", "/backups/monday/remove", {}, expect=200)
    assert not file.exists()
    assert client.refusal("GET", "/backups/monday")[0] == 404
    assert client.refusal("POST", "/backups/monday/remove")[0] == 404


@pytest.mark.parametrize("name", ["", "..", "../up", "a/b", ".hidden", "A", "ä", "x" * 64, "a\u0000", "-x"])
def test_a_name_that_could_leave_the_folder_is_refused(client: Client, name: str) -> None:
    status, _, sentence = client.refusal("POST", "/backups", {"name": name})
    assert (status, "a backup cannot be called" in sentence) == (400, True)


def test_one_asked_for_again_by_its_key_is_made_once(client: Client) -> None:
    first = client.ask("POST", "/backups", {"name": "once"}, key="k", expect=202)[1]
    assert client.ask("POST", "/backups", {"name": "once"}, key="k", expect=202)[1] == first
    assert ended(client, "once")["state"] == "made"


def test_one_that_control_has_not_lived_to_see_made_has_failed(client: Client, state: Path) -> None:
    folder = state.with_name("platform.backups")
    folder.mkdir(exist_ok=True)
    (folder / "cut.json").write_text(json.dumps({"state": "running", "begun_us": 5}))
    (folder / ".cut.tar.draft").write_bytes(b"half")
    found = client.get("/backups/cut")
    assert (found["state"], found["why"]) == ("failed", "control has ended before it was made")
    client.ask("POST", "/backups", {"name": "cut"}, expect=202)
    assert ended(client, "cut")["state"] == "made"
    assert not (folder / ".cut.tar.draft").exists()


def test_what_cannot_be_backed_up_fails_in_a_sentence_and_leaves_nothing(client: Client, state: Path) -> None:
    folder = state.with_name("platform.backups")
    (PlatformPlaces(state).app("heat.1")).mkdir(parents=True)
    tables = PlatformPlaces(state).tables("heat.1")
    tables.write_bytes(b"no database" * 100)
    try:
        client.ask("POST", "/backups", {"name": "bad"}, expect=202)
        found = ended(client, "bad")
        assert found["state"] == "failed"
        assert "tables.sqlite" in found["why"]
        assert sorted(path.name for path in folder.glob("*bad*")) == ["bad.json"]
    finally:
        tables.unlink()


def test_so_many_are_kept_at_the_most(client: Client, state: Path) -> None:
    folder = state.with_name("platform.backups")
    folder.mkdir(exist_ok=True)
    for number in range(BACKUPS_MAX):
        (folder / f"old-{number}.json").write_text("{}")
    assert "which is all that are kept" in client.refusal("POST", "/backups", {"name": "more"})[2]


@pytest.mark.parametrize("arguments", [[], ["--name", "a", "--output", "b"], ["--output", "b", "--url", "c"]])
def test_the_command_wants_one_place(arguments: list[str], capsys: Capture) -> None:
    assert main(["backup", *arguments]) == 2
    assert "--name" in capsys.readouterr().err
