"""A platform that is there, and how a test asks it."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from geartrain_client.cli import tables, waiting
from geartrain_client.rest import door
from tests.client.fake_platform import TOKEN, FakePlatform, running
from tests.client.talking import add

FLOW = """
    from geartrain import Flow, Record, Table
    from geartrain.testing import TestingSource

    class Reading(Record):
        sensor: str
        celsius: float

    flow = Flow("heat")
    readings = flow.source("readings", TestingSource(items=[]), out=Reading)
    readings.filter(lambda r: r.celsius > 30.0, name="hot").sink("highs", Table("highs"))
"""


@pytest.fixture
def flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a flow that is in the working directory."""
    (tmp_path / "heat_of_the_client.py").write_text(textwrap.dedent(FLOW), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "heat_of_the_client:flow"
    sys.modules.pop("heat_of_the_client", None)


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePlatform]:
    """A platform in a state folder that the environment names."""
    state = tmp_path / "state"
    state.mkdir()
    monkeypatch.setenv(door.STATE, str(state))
    monkeypatch.delenv(door.URL, raising=False)
    monkeypatch.delenv(door.TOKEN_FILE, raising=False)
    monkeypatch.delenv(door.TOKEN, raising=False)
    monkeypatch.setattr(waiting, "INTERVAL_S", 0.01)
    (state / "control.token").write_text(TOKEN + "\n", encoding="ascii")
    (state / "control.token").chmod(0o600)
    with running(FakePlatform()) as found:
        content = {"url": found.url, "token_file": "control.token"}
        (state / "platform.json").write_text(json.dumps(content), encoding="utf-8")
        yield found


@pytest.fixture
def highs(platform: FakePlatform, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The rows of the table `highs` of the app `heat`, read three at a time."""
    add(platform)
    rows: list[list[Any]] = [[f"s{number}", number / 2, None] for number in range(7)]
    platform.tables["highs"] = {"columns": ["sensor", "celsius", "note"], "rows": rows}
    platform.tables["late"] = {"columns": ["step"], "rows": []}
    monkeypatch.setattr(tables, "PAGE_ROWS", 3)
    monkeypatch.setattr(tables, "FOLLOW_S", 0.01)
    return rows
