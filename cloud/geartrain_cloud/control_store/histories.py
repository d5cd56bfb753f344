"""Files of history that a control store names by the folder they lie in, and how it is told another one.

When a state folder lies elsewhere than before: moved while nothing ran, or brought back from a backup. What
Spark notes of the folder is told by `spark.schema_paths`. Everything else in a state folder finds its
neighbours by itself. Guarantees: a file that somebody else has named stays where it is looked for.
"""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

from geartrain.operators.source import HISTORY

FILE_NAME = re.compile(r"[0-9a-f]{64}\.((csv|tsv|jsonl|ndjson|log|txt)(\.gz)?|parquet)")
"""What a file of history is called once it is the platform's: by its digest."""
_COLUMNS = {
    "instances": ("options", "device_options"),
    "revisions": ("options", "device_options"),
    "canaries": ("runs",),
}


def move_histories(database: sqlite3.Connection, folder: Path) -> set[str]:
    """Have a control store name files of history where they lie, in `folder`.

    In the caller's transaction. Returns the instances of which it named them elsewhere. Raises
    `sqlite3.Error`.
    """
    found = set[str]()
    for table, columns in _COLUMNS.items():
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
            continue  # the store was killed before it had any
        for column in columns:
            query = f"SELECT instance, {column} FROM {table} WHERE {column} LIKE '%\"{HISTORY}\"%'"  # noqa: S608
            for instance, text in database.execute(query).fetchall():
                held = json.loads(text)
                moved = _with_histories(held, folder)
                if moved != held:
                    change = f"UPDATE {table} SET {column} = ? WHERE instance = ? AND {column} = ?"  # noqa: S608
                    database.execute(change, (json.dumps(moved, separators=(",", ":")), instance, text))
                    found.add(instance)
    return found


def _with_histories(options: Any, folder: Path) -> Any:
    """Options of steps, or of those of devices, whose histories lie in `folder`."""
    if not isinstance(options, dict):
        return options
    found = {name: _with_histories(value, folder) for name, value in options.items()}
    past = found.get(HISTORY)
    if isinstance(past, dict) and isinstance(past.get("files"), list):
        found[HISTORY] = {**past, "files": [_moved(one, folder) for one in past["files"]]}
    return found


def _moved(path: str, folder: Path) -> str:
    name = Path(path).name
    return str(folder / name) if FILE_NAME.fullmatch(name) else path
