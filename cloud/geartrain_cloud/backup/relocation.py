"""What of a checkpoint names the folder that it lies in, and how it is told another one.

While a backup is brought back. Spark notes in the metadata of each stateful operator where the schemas of its
state are, by their whole paths. Everything else in a state folder finds its neighbours by itself. Guarantees:
a file of another form stays as it is.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

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


def _moved(path: str, operator: Path) -> str:
    _, separator, inside = path.rpartition(_SCHEMAS)
    return f"file:{operator}{_SCHEMAS}{inside}" if separator else path
