"""`--state DIR`: where the log of a running or stopped deployment lies.

Used by all that looks into it. Guarantees: a folder that holds no log gives one sentence.
"""

from __future__ import annotations

from pathlib import Path

from geartrain_cloud.errors import StateError
from geartrain_cloud.log.tables import LEDGER_FILE


def log_folder(state: Path) -> Path:
    """The log's folder in `state`, a demo's state folder or a log folder itself; raises `StateError`."""
    for folder in (state, state / "log"):
        if (folder / LEDGER_FILE).is_file():
            return folder
    raise StateError(
        f"there is no log in {state}: give --state the folder of a run, or the folder that ingest's "
        "configuration calls log"
    )


def run_folder(state: Path) -> Path:
    """The folder of the whole run that `state` names; a log folder outside of a run is its own."""
    folder = log_folder(state).absolute()
    return folder.parent if folder.name == "log" else folder
