"""The cells of state that were refused are counted by step and reason, and no other dead letter is."""

from __future__ import annotations

from pathlib import Path

import pytest

from geartrain.schema import ColumnBatch
from geartrain_cloud.sinks.app_tables import AppTables
from geartrain_cloud.sinks.refused_state import REASONS_MAX
from tests.postgres_server import Postgres

HELD = ("sums", "state_not_taken", "the key is held for a device")
LETTERS = [
    HELD,
    HELD,
    ("means", "state_not_taken", "it is cut off"),
    ("sums", "user_error", "it raised ValueError"),
    ("sums", "user_error", "it raised state_not_taken"),
]


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.postgres)])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> AppTables:
    store = ""
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        store = server.database("geartrain_refused_state")
    return AppTables(tmp_path / "tables.sqlite", store)


def test_refused_cells_are_told_by_step_and_reason(app: AppTables) -> None:
    if not app.store:
        assert app.refused_state(1) == []
    own = app.open("heat.1", 1, 5.0)
    own.attach("keyed", "identity", has_run=False)
    assert app.refused_state(1) == []
    letters = LETTERS + [("odd", "state_not_taken", f"reason {number:03}") for number in range(50)]
    steps, codes, reasons = (list(column) for column in zip(*letters, strict=True))
    count = len(letters)
    places = ([9] * count, ["d1/_state"] * count, list(range(count)), [b""] * count)
    batch = ColumnBatch([steps, codes, reasons, [b"cell"] * count], *places)
    own.write("keyed", 0, {"0": 1}, {"_dead_letters": [batch]})
    own.close()
    told = app.refused_state(1)
    assert told[:2] == [("sums", "the key is held for a device", 2), ("means", "it is cut off", 1)]
    assert len(told) == REASONS_MAX
