"""What of a platform names the folder that it lies in, and how it is told another one.

While a backup is brought back. Spark notes in the metadata of each stateful operator where the schemas of its
state are, by their whole paths. The control store notes so where files of history are. Everything else in a
state folder finds its neighbours by itself. Guarantees: a file of another form stays as it is.
"""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

from geartrain.adapters.sqlite import open_to_write, transaction, translated
from geartrain.operators.source import HISTORY
from geartrain_cloud.backup.errors import BackupError
from geartrain_cloud.platform.places import PlatformPlaces

_METADATA = re.compile(r"(?P<operator>spark/groups/[^/]+/spark/state/\d+)/_metadata/v2/\d+")
_SCHEMAS = "/_stateSchema/"
_BUSY_S = 10.0


def is_bound(name: str) -> bool:
    """Whether the file of this name below the state folder names that folder."""
    return _METADATA.fullmatch(name) is not None


def rebound(name: str, raw: bytes, state: Path) -> bytes:
    """The content of such a file, for the state folder `state`."""
    found = _METADATA.fullmatch(name)
    head, newline, body = raw.partition(b"\n")
    if found is None or not newline:
        return raw
    try:
        operator = json.loads(body)
        for store in operator["stateStoreInfo"]:
            paths = store["stateSchemaFilePaths"]
            store["stateSchemaFilePaths"] = [_moved(path, state / found["operator"]) for path in paths]
    except (ValueError, TypeError, KeyError):
        return raw
    return head + newline + json.dumps(operator, separators=(",", ":")).encode()


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


def _moved(path: str, operator: Path) -> str:
    _, separator, inside = path.rpartition(_SCHEMAS)
    return f"file:{operator}{_SCHEMAS}{inside}" if separator else path
