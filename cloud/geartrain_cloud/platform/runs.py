"""The runs of an instance over its log: where the tables of each lie, and which run is served.

Beside the record's path: the Spark host says which run is served, and control reads it. Guarantees: to serve
another run is one durable step, so a kill leaves either the one or the other. An instance of which nothing is
said serves its first run. Two runs share no file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from geartrain.adapters.files import write_durable
from geartrain_cloud.platform.places import read_report

SERVED = "served.json"
"""Beside the tables: the run whose tables are served."""

_FILES = (".delta", ".parquet")
"""How the folders are named in which sinks write files."""
_LATER = re.compile(r"(.+)\.run-([1-9][0-9]{0,9})")


def tables_of_run(tables: Path, run: int) -> Path:
    """Where the tables of a run lie; tables: those of the first."""
    return tables if run == 1 else tables.with_name(f"{tables.stem}.run-{run}{tables.suffix}")


def note_of_run(tables: Path, run: int) -> Path:
    """Where it is noted in which schema of PostgreSQL the tables of a run are; tables: those of the first."""
    return tables_of_run(tables, run).with_suffix(".postgresql")


def files_of_run(tables: Path, run: int) -> Path:
    """The folder for files of other sinks of a run; tables: those of the first.

    The first run has them beside its tables, each other one has a folder.
    """
    return tables.parent if run == 1 else tables.with_name(f"run-{run}")


def folders_of_files(folder: Path) -> list[Path]:
    """The folders of files that sinks have made there, by name."""
    return sorted(path for ending in _FILES for path in folder.glob(f"*{ending}") if path.is_dir())


def served_run(tables: Path) -> int:
    """The run that is served; tables: those of the first run."""
    run = read_report(tables.with_name(SERVED)).get("run", 1)
    return run if isinstance(run, int) and run >= 1 else 1


def serve_run(tables: Path, run: int) -> None:
    """Have `run` be served from now on, durably; raises `OSError`."""
    write_durable(tables.with_name(SERVED), json.dumps({"run": run}).encode())


def runs_with_tables(tables: Path) -> set[int]:
    """The runs of which there is a file or a note; tables: those of the first run."""
    found = {1} if tables.exists() or note_of_run(tables, 1).exists() else set()
    for path in tables.parent.glob(f"{tables.stem}.run-*"):
        said = _LATER.fullmatch(path.stem)
        if said is not None and path in (
            tables_of_run(tables, int(said[2])),
            note_of_run(tables, int(said[2])),
        ):
            found.add(int(said[2]))
    return found
