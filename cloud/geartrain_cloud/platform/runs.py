"""The runs of an instance over its log: where the tables of each lie, and which run is served.

Beside the record's path: the Spark host says which run is served, and control reads it. Guarantees: to serve
another run is one durable step, so a kill leaves either the one or the other. An instance of which nothing is
said serves its first run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from geartrain.adapters.files import write_durable
from geartrain_cloud.platform.places import read_report

SERVED = "served.json"
"""Beside the tables: the run whose tables are served."""

_LATER = re.compile(r"(.+)\.run-([1-9][0-9]{0,9})")


def tables_of_run(tables: Path, run: int) -> Path:
    """Where the tables of a run lie; tables: those of the first."""
    return tables if run == 1 else tables.with_name(f"{tables.stem}.run-{run}{tables.suffix}")


def served_run(tables: Path) -> int:
    """The run that is served; tables: those of the first run."""
    run = read_report(tables.with_name(SERVED)).get("run", 1)
    return run if isinstance(run, int) and run >= 1 else 1


def serve_run(tables: Path, run: int) -> None:
    """Have `run` be served from now on, durably; raises `OSError`."""
    write_durable(tables.with_name(SERVED), json.dumps({"run": run}).encode())


def runs_with_tables(tables: Path) -> set[int]:
    """The runs of which there is a file; tables: those of the first run."""
    found = {1} if tables.exists() else set()
    for path in tables.parent.glob(f"{tables.stem}.run-*{tables.suffix}"):
        said = _LATER.fullmatch(path.stem)
        if said is not None:
            found.add(int(said[2]))
    return found


def remove_tables(tables: Path, run: int) -> None:
    """Remove the tables of a run that nobody writes any more; raises `OSError`."""
    path = tables_of_run(tables, run)
    for ending in ("-wal", "-shm", ""):
        path.with_name(path.name + ending).unlink(missing_ok=True)
