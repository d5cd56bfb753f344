"""Where Spark notes the folder of its own checkpoints, and how it is told another one.

When a state folder lies elsewhere than before: moved while nothing ran, or brought back from a backup. Spark
notes in the metadata of each stateful operator where the schemas of its state are, by their whole paths.
Guarantees: a file of another form stays as it is.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from geartrain.adapters.files import write_durable

_METADATA = re.compile(r"(?P<operator>spark/groups/[^/]+/spark/state/\d+)/_metadata/v2/\d+")
_SCHEMAS = "/_stateSchema/"


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


def rebind(state: Path) -> None:
    """Have all checkpoints below a state folder name that folder; no query runs. Raises `OSError`."""
    for path in state.glob("spark/groups/*/spark/state/*/_metadata/v2/*"):
        name = path.relative_to(state).as_posix()
        if not is_bound(name):
            continue
        raw = path.read_bytes()
        if (moved := rebound(name, raw, state)) != raw:
            write_durable(path, moved)


def _moved(path: str, operator: Path) -> str:
    _, separator, inside = path.rpartition(_SCHEMAS)
    return f"file:{operator}{_SCHEMAS}{inside}" if separator else path
