"""Making a backup: what a moment holds goes into a folder or a tar file, with a manifest at the end.

Beside the record's path; the platform runs on. Guarantees: a backup that was killed is no backup, and leaves
at most a draft. Every file is checked against the manifest when it is brought back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from geartrain import __version__
from geartrain.adapters.sqlite import translated
from geartrain_cloud.backup.elsewhere import check_elsewhere
from geartrain_cloud.backup.errors import BackupError
from geartrain_cloud.backup.manifest import LAYOUT, Manifest, encode_manifest
from geartrain_cloud.backup.moment import Moment, Notice, moment_of
from geartrain_cloud.backup.target import Target, open_target

_PAGES = 2_048
"""Of a database at a time."""


@dataclass(frozen=True, slots=True)
class Made:
    """A backup: made_us: its moment, microseconds since 1970 UTC; files and size: how many, and their bytes;
    elsewhere: sentences on what is not in it.
    """

    output: Path
    made_us: int
    files: int
    size: int
    elsewhere: tuple[str, ...] = ()


def back_up(state: Path, output: Path, now_us: Callable[[], int], notice: Notice = lambda said: None) -> Made:
    """Back up the platform in a state folder, which may run.

    Args:
        state: the state folder.
        output: what is made: a folder, or a file whose name ends in `.tar`.
        now_us: tells the wall clock, microseconds.
        notice: told again and again what is being done, for people.

    Raises:
        BackupError: there is no platform, something is in the way, or a store cannot be read.
    """
    state, output = state.absolute(), output.absolute()
    if not (state / "control.sqlite").is_file():
        raise BackupError(f"there is no platform in {state}: give --state the folder of gear up")
    if output == state or state in output.parents:
        raise BackupError(f"{output} lies in the state folder itself: give --output a place outside of it")
    elsewhere = check_elsewhere(state)
    target = open_target(output)
    try:
        with moment_of(state, now_us, notice) as moment:
            manifest = _write(moment, target, notice)
        target.finish(encode_manifest(manifest))
    except OSError as error:
        target.abandon()
        raise BackupError(f"{output} cannot be written: {error.strerror or error}: make room") from error
    except BaseException:
        target.abandon()
        raise
    size = sum(kept.size for kept in manifest.files)
    return Made(output, manifest.made_us, len(manifest.files), size, elsewhere)


def _write(moment: Moment, target: Target, notice: Notice) -> Manifest:
    files = []
    # First the databases: while one is held, its write-ahead log only grows.
    for name, database in moment.databases.items():
        notice(f"copies {name}")
        files.append(target.make(name, partial(_copy, database, name)))
        database.execute("COMMIT")
    for number, (name, path) in enumerate(moment.files.items()):
        notice(f"copies file {number + 1} of {len(moment.files)}")
        files.append(target.add(name, path))
    return Manifest(LAYOUT.text, __version__, moment.made_us, dict(moment.micro_batches), files)


def _copy(source: sqlite3.Connection, what: str, path: Path) -> None:
    with (
        translated(BackupError, what),
        closing(sqlite3.connect(path, isolation_level=None)) as copy,
    ):
        copy.execute("PRAGMA synchronous = OFF")  # it is synced as a whole
        source.backup(copy, pages=_PAGES)
