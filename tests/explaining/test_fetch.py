"""`gear fetch` and `gear run --fetched`: the tables of what was fetched, against those of the whole flow."""

from __future__ import annotations

import json
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from geartrain.records.event_time import format_time
from geartrain_client.cli import main
from geartrain_client.cli.fetching import META_FILE, RECORDS_FILE
from geartrain_client.rest import door
from geartrain_cloud.log.queries import commit
from geartrain_cloud.log.retention import Retention, retain
from geartrain_cloud.platform.places import PlatformPlaces
from tests.control.platform_client import Client, control_process
from tests.explaining.heat_world import FLOW, MINUTE_US, Heat, heat

pytestmark = pytest.mark.slow

Capture = pytest.CaptureFixture[str]
TABLES = ("every", "means", "highest", "pairs", "counted", "dead_letters", "late")


class Here:
    """A platform's folder with the log of an app, its control, and the tables of the whole flow."""

    def __init__(self, folder: Path, client: Client, whole: Path, world: Heat) -> None:
        self.folder, self.client, self.whole, self.world = folder, client, whole, world


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    folder, world = tmp_path_factory.mktemp("platform"), heat(11)
    whole = world.run(tmp_path_factory.mktemp("whole")).parent
    with control_process(folder) as (_, client):
        client.ask("POST", "/apps", {"name": "heat", "flow": FLOW, "cut": "cloud"}, expect=202)
        world.write_log(PlatformPlaces(folder).log, "heat.1").close()
        yield Here(folder, client, whole, world)


@pytest.fixture(autouse=True)
def _state(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(door.STATE, str(here.folder))


def gear(capsys: Capture, *arguments: str, code: int = 0) -> tuple[str, str]:
    got = main(arguments)
    said = capsys.readouterr()
    assert got == code, said.err
    return said.out, said.err


def run(capsys: Capture, folder: Path, *fetch: str) -> Path:
    """Fetch into a folder, run what was fetched; the folder of its tables."""
    out = gear(capsys, "fetch", "heat", "--output", str(folder), *fetch)[0]
    assert f"gear run {FLOW} --fetched {folder} --output DIR" in out
    gear(capsys, "run", FLOW, "--fetched", str(folder), "--output", str(folder / "tables"))
    return folder / "tables"


def held(folder: Path, table: str, first: int) -> list[tuple[Any, ...]]:
    """The rows of a table from an event time on, with their places."""
    with closing(sqlite3.connect(folder / "tables.sqlite")) as db:
        return sorted(db.execute(f"SELECT * FROM {table} WHERE _event_time >= ?", (first,)))


def test_all_that_was_fetched_gives_the_same_tables(here: Here, capsys: Capture, tmp_path: Path) -> None:
    tables = run(capsys, tmp_path / "all")
    for name in TABLES:
        assert (tables / f"{name}.json").read_bytes() == (here.whole / f"{name}.json").read_bytes()
    for name in (META_FILE, RECORDS_FILE):
        assert stat.S_IMODE((tmp_path / "all" / name).stat().st_mode) == 0o600
    records = [json.loads(line) for line in (tmp_path / "all" / RECORDS_FILE).read_text().splitlines()]
    assert len(records) == len(here.world.readings) + len(here.world.limits)
    assert json.loads((tmp_path / "all" / META_FILE).read_text())["records"] == len(records)


def test_a_later_range_has_the_windows_wholly_in_it_and_with_state_all(
    here: Here, capsys: Capture, tmp_path: Path
) -> None:
    begin = here.world.readings[0][0] // MINUTE_US * MINUTE_US + 4 * MINUTE_US
    end = begin + 3 * MINUTE_US
    span = ("--from", format_time(begin), "--to", format_time(end))
    without = run(capsys, tmp_path / "without", *span)
    windows = held(without, "means", begin)
    assert windows
    assert windows == [row for row in held(here.whole, "means", begin) if row[-4] < end]
    assert held(without, "highest", begin) != held(here.whole, "highest", begin)
    state = run(capsys, tmp_path / "state", *span, "--with-state")
    for name in ("every", "means", "pairs"):
        assert held(state, name, 0) == [row for row in held(here.whole, name, begin) if row[-4] < end]
    highs = {row[0]: row for row in held(state, "highest", 0)}
    assert highs.items() >= {r[0]: r for r in held(here.whole, "highest", begin) if r[-4] < end}.items()


def test_mistakes_are_sentences_and_nothing_is_left(here: Here, capsys: Capture, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    new = str(tmp_path / "new")
    for arguments, said in (
        (["fetch", "none", "--output", new], "there is no app none"),
        (["fetch", "heat", "--output", str(full)], "is not empty: name a new folder"),
        (["fetch", "heat", "--output", new, "--from", "soon"], "--from: 'soon' is not an ISO 8601"),
        (["fetch", "heat", "--output", new, "--from", "2026-01-02", "--to", "2026-01-01"], "before --to"),
        (["fetch", "heat", "--output", new, "--limit", "10"], "more than 10 records: name a shorter range"),
        (["run", FLOW, "--fetched", new], "has written whole: No such file or directory;"),
    ):
        _, err = gear(capsys, *arguments, code=2)
        assert said in err
        assert err.count("\n") == 1
    assert not list(Path(new).iterdir())
    for path, said in (
        ("/apps/heat/records?from_us=x", "from_us: give a whole number from"),
        ("/apps/heat/records?after=1", "after: give what the page before has as after"),
    ):
        assert said in here.client.refusal("GET", path)[2]


def test_records_that_name_no_type_are_refused_in_one_sentence(
    here: Here, capsys: Capture, tmp_path: Path
) -> None:
    folder = tmp_path / "range"
    gear(capsys, "fetch", "heat", "--output", str(folder))
    lines = (folder / RECORDS_FILE).read_text(encoding="utf-8").splitlines()
    untyped = [json.dumps({k: v for k, v in json.loads(one).items() if k != "schema"}) for one in lines]
    (folder / RECORDS_FILE).write_text("\n".join(untyped) + "\n", encoding="utf-8")
    err = gear(capsys, "run", FLOW, "--fetched", str(folder), "--output", str(folder / "tables"), code=2)[1]
    assert f"are of a type that {META_FILE} does not name: fetch again" in err


def test_what_retention_has_removed_is_said_at_last(here: Here, capsys: Capture, tmp_path: Path) -> None:
    log = PlatformPlaces(here.folder).log
    commit(log, "host", "heat.1", {"0": 5})
    assert retain(log, Retention(bytes_max=0), 0).segments
    out = gear(capsys, "fetch", "heat", "--output", str(tmp_path / "rest"))[0]
    assert "retention has removed records of readings up to entry" in out
