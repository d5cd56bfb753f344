"""`gear explain` against a real gear-control, over a log and tables that lie in its state folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from geartrain_client.cli import main
from geartrain_client.rest import door
from geartrain_cloud.platform.places import PlatformPlaces
from geartrain_cloud.sinks.tables import rows
from tests.control.platform_client import Client, control_process
from tests.explaining.heat_world import FLOW, heat

pytestmark = pytest.mark.slow

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Client]]:
    """A platform's folder with an app that has run, and its control."""
    folder = tmp_path_factory.mktemp("platform")
    with control_process(folder) as (_, client):
        client.ask("POST", "/apps", {"name": "heat", "flow": FLOW, "cut": "cloud"}, expect=202)
        client.ask("POST", "/apps", {"name": "idle", "flow": FLOW}, expect=202)
        places, world = PlatformPlaces(folder), heat(9)
        world.write_log(places.log, "heat.1").close()
        world.run(places.app("heat.1"))
        yield folder, client


def gear(capsys: Capture, *arguments: str, code: int = 0) -> tuple[str, str]:
    got = main(arguments)
    said = capsys.readouterr()
    assert got == code, said.err
    return said.out, said.err


def test_a_row_is_explained(
    state: tuple[Path, Client], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, client = state
    monkeypatch.setenv(door.STATE, str(folder))
    row = rows(PlatformPlaces(folder).tables("heat.1"), "means")[0]
    key = f"{row['sensor']},{row['window_start']}"
    found = json.loads(gear(capsys, "explain", "heat", "means", key, "--json")[0])
    assert (found["app"], found["instance"], found["row"]) == ("heat", "heat.1", row)
    assert (found["records"]["count"], found["reproduced"]) == (row["n"], True)
    assert found["revision"] == client.get("/apps/heat")["revision"]
    text = gear(capsys, "explain", "heat", "means", key, "--limit", "2")[0]
    lines = text.splitlines()
    assert lines[0].startswith(f'means: sensor="{row["sensor"]}", window_start={row["window_start"]}, ')
    assert any(
        "from minutes (window_aggregate): each of the records of a key in a window" in one for one in lines
    )
    assert f"the last 2 of {row['n']} records:" in lines
    assert lines[-1] == "reproduced from these records alone: yes"


def test_what_cannot_be_explained_is_one_sentence(state: tuple[Path, Client]) -> None:
    _, client = state
    for path, status, said in (
        ("/apps/none/tables/means/explain?key=a", 404, "there is no app none"),
        ("/apps/idle/tables/means/explain?key=a", 404, "has no tables yet"),
        ("/apps/heat/tables/none/explain?key=a", 400, "there is no table 'none'; the tables: "),
        ("/apps/heat/tables/highest/explain?key=z", 400, "table highest has no row z"),
        ("/apps/heat/tables/highest/explain", 400, "key: this parameter is missing"),
        (
            f"/apps/heat/tables/highest/explain?key={quote('a' * 1_001)}",
            400,
            "key: give 1 to 1,000 characters, not 1,001",
        ),
        ("/apps/heat/tables/highest/explain?key=a&limit=0", 400, "limit: give a whole number"),
        ("/apps/heat/tables/highest/explain?key=a&colour=red", 400, "there is no parameter 'colour'"),
    ):
        found = client.refusal("GET", path)
        assert found[0] == status
        assert said in found[2]
