"""Files of history that a control store names by the folder they lie in, and how it is told another one.

While a backup is brought back. What Spark notes of the folder is told by `spark.schema_paths`. Everything
else in a state folder finds its neighbours by itself.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

from geartrain.adapters.sqlite import open_to_write, transaction, translated
from geartrain.operators.source import HISTORY
from geartrain_cloud.backup.errors import BackupError
from geartrain_cloud.platform.places import PlatformPlaces

_BUSY_S = 10.0


def move_histories(control: Path, state: Path) -> None:
    """Have a control store name files of history where they lie below `state`; raises `BackupError`."""
    folder = PlatformPlaces(state).histories
    with (
        translated(BackupError, f"the control store {control}"),
        closing(open_to_write(control, busy_s=_BUSY_S)) as database,
        transaction(database),
    ):
        for table in ("instances", "revisions"):
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
                continue  # of a former release
            for column in ("options", "device_options"):
                query = f"SELECT DISTINCT {column} FROM {table} WHERE {column} LIKE '%\"{HISTORY}\"%'"  # noqa: S608
                for (held,) in database.execute(query).fetchall():
                    moved = json.dumps(_with_histories(json.loads(held), folder), separators=(",", ":"))
                    change = f"UPDATE {table} SET {column} = ? WHERE {column} = ?"  # noqa: S608
                    database.execute(change, (moved, held))


def _with_histories(options: Any, folder: Path) -> Any:
    """Options of steps, or of those of devices, whose histories lie in `folder`."""
    if not isinstance(options, dict):
        return options
    found = {name: _with_histories(value, folder) for name, value in options.items()}
    past = found.get(HISTORY)
    if isinstance(past, dict) and isinstance(past.get("files"), list):
        found[HISTORY] = {**past, "files": [str(folder / Path(one).name) for one in past["files"]]}
    return found
