"""A moment of a platform that runs: its databases as they are then, and its files held by hard links.

Between the state folder and what writes a backup. Nothing is stopped and no process is asked. The order makes
the moment consistent:

1. Look which micro-batch each group of flows has committed last.
2. Parked rows and what belongs to the hosted flows, then all tables and outboxes: each a read transaction.
3. List the micro-batches that were planned. Whatever a table holds was planned before it was written.
4. The ledger and its roster, read transactions too. Whatever was planned was in the ledger before.
5. The control store, then look at the committed micro-batches again. Where one has moved on, all begins anew.

So tables are at the committed micro-batch, or one further that Spark runs again with the same positions. The
ledger has all entries up to there. Since no query has told it of a later micro-batch, retention has removed
nothing that Spark still reads. Guarantees: what is given is such a moment, or nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from geartrain.adapters.files import make_private_folder
from geartrain.adapters.sqlite import open_to_read, translated
from geartrain_cloud.backup.contents import SPARK, Contents
from geartrain_cloud.backup.errors import BackupError
from geartrain_cloud.control_store.purges import device_of_purge
from geartrain_cloud.hosting.group_file import stages_of
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.log.tables import LAYOUT, LEDGER_FILE
from geartrain_cloud.platform.held_files import FROZEN, held_files
from geartrain_cloud.spark.checkpoint import Checkpoint
from geartrain_cloud.spark.errors import TornError
from geartrain_cloud.spark.whole import check_whole, numbers

WITHIN_S = 300.0
"""How long a moment between two micro-batches is looked for."""
_PAUSE_S = 0.02
_BUSY_S = 10.0
_NUMBERED = re.compile(r"(\d+)(_.*)?\.(zip|changelog|delta|snapshot)")
"""Spark's files of one version of its state."""

Notice = Callable[[str], None]


class _MovedError(Exception):
    """A micro-batch was committed meanwhile, or a file has gone."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """Of a group: the last micro-batch that was committed (-1 for none), and those that were planned."""

    committed: int
    planned: frozenset[int] = frozenset()


@dataclass(slots=True)
class Moment:
    """made_us: when it was, on the wall clock; files: by name below the state folder, a link to each;
    databases: by name, a connection in a read transaction; micro_batches: by group, the last committed one.
    """

    made_us: int
    files: dict[str, Path] = field(default_factory=dict)
    databases: dict[str, sqlite3.Connection] = field(default_factory=dict)
    micro_batches: Mapping[str, int] = field(default_factory=dict)


@contextmanager
def moment_of(
    state: Path, now_us: Callable[[], int], notice: Notice = lambda said: None, within_s: float = WITHIN_S
) -> Iterator[Moment]:
    """A moment of the platform in `state`, for one block; afterwards nothing is held.

    Args:
        state: the state folder of a platform that runs, or does not.
        now_us: tells the wall clock, microseconds.
        notice: told what is being done, for people.
        within_s: how long to look for a moment between two micro-batches.

    Raises:
        BackupError: another backup is being made, what a device sent is being erased, there was no such
            moment in time, or a store is damaged.
    """
    folder = state / FROZEN
    with held_files(state, BackupError):
        contents, deadline = Contents(state), time.monotonic() + within_s
        try:
            while True:
                shutil.rmtree(folder, ignore_errors=True)  # of one that was killed, or has moved
                taking = _Taking(contents, folder, now_us, notice)
                with closing(taking):
                    try:
                        moment = taking.take()
                    except (_MovedError, FileNotFoundError) as error:
                        if time.monotonic() > deadline:
                            raise BackupError(
                                f"no moment between two micro-batches was found in {within_s:g} s ({error}): "
                                "try again while there is less to do, or after gear down"
                            ) from None
                    else:
                        yield moment
                        return
                time.sleep(_PAUSE_S)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class _Taking:
    """One attempt."""

    def __init__(self, contents: Contents, folder: Path, now_us: Callable[[], int], notice: Notice) -> None:
        self._contents, self._folder, self._notice = contents, folder, notice
        self._state = contents.places.folder
        self._now_us = now_us
        self._open: dict[Path, sqlite3.Connection] = {}
        self._moment = Moment(0)

    def close(self) -> None:
        for database in self._open.values():
            database.close()

    def take(self) -> Moment:
        """The moment; raises `_MovedError`, `FileNotFoundError` or `BackupError`."""
        contents = self._contents
        self._notice("looks for a moment between two micro-batches")
        stores, log, control = contents.stores(), contents.log(), contents.control()
        for path in (*stores, *log, *control):
            self._connect(path)
        before, served = self._committed(), contents.served()
        self._link(contents.beside_micro_batches())
        self._begin(stores)
        planned = {
            name: _Planned(last, frozenset(numbers(self._spark(name) / "offsets")))
            for name, last in before.items()
        }
        self._begin(log)
        self._begin(control)
        self._check_purge()
        self._moment.made_us = self._now_us()
        if self._committed() != before or contents.stores() != stores:
            raise _MovedError("micro-batches follow one another too fast")
        self._moment.micro_batches = before
        self._notice("holds the files of that moment")
        self._link(self._segments())
        for name, group in planned.items():
            self._link(_of_checkpoint(self._spark(name), group))
        self._link(contents.that_stay())
        self._link(contents.platform())
        if contents.served() != served:  # files of the former run may have gone
            raise _MovedError("a run took the place of a former one")
        self._check(before)
        return self._moment

    def _spark(self, group: str) -> Path:
        return self._contents.places.spark / "groups" / group / SPARK

    def _committed(self) -> dict[str, int]:
        return {
            group.name: max(numbers(group / SPARK / "commits"), default=-1)
            for group in self._contents.groups()
        }

    def _connect(self, path: Path) -> None:
        with translated(BackupError, str(path)):
            try:
                self._open[path] = open_to_read(path, busy_s=_BUSY_S)
            except sqlite3.OperationalError:
                if not path.exists():
                    raise _MovedError(f"{path} has gone") from None
                raise

    def _begin(self, paths: Iterable[Path]) -> None:
        """Have these databases stay as they are now, for this connection."""
        for path in paths:
            database = self._open[path]
            with translated(BackupError, str(path)):
                database.execute("BEGIN")
                database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            self._moment.databases[path.relative_to(self._state).as_posix()] = database

    def _check_purge(self) -> None:
        """Raise `BackupError` where the copy would hold what is being erased."""
        control = self._open.get(self._contents.places.control)
        with translated(BackupError, "the control store"):
            device = device_of_purge(control) if control is not None else ""
        if device:
            raise BackupError(
                f"what device {device} sent is being erased, and a copy would hold it: wait for it"
            )

    def _segments(self) -> list[Path]:
        path = self._contents.places.log / LEDGER_FILE
        ledger, subject = self._open.get(path), f"the ledger {path}"
        with translated(BackupError, subject):
            if ledger is None or not LAYOUT.is_made(ledger, subject):
                return []
            named = ledger.execute(
                "SELECT name FROM segments UNION SELECT segment FROM entries WHERE segment <> ''"
            ).fetchall()
        return [self._contents.places.log / name for (name,) in named]

    def _link(self, paths: Iterable[Path]) -> None:
        """Hold files that are replaced or removed, but never changed; raises `FileNotFoundError`."""
        for path in paths:
            name = path.relative_to(self._state)
            held = self._folder / name
            make_private_folder(held.parent)
            try:
                os.link(path, held)
            except FileNotFoundError:
                raise
            except OSError:  # another file system, or one without hard links
                shutil.copyfile(path, held)
                held.chmod(0o600)
            self._moment.files[name.as_posix()] = held

    def _check(self, committed: Mapping[str, int]) -> None:
        """Raise `_MovedError` where Spark has removed a file of a checkpoint before it was held."""
        for group in committed:
            folder = self._folder / "spark" / "groups" / group
            stages = stages_of(HostPlaces(self._contents.places.spark).group(group))
            try:
                check_whole(Checkpoint(f"group {group}", folder), stages=stages)
            except TornError as error:
                with suppress(TornError):
                    here = Checkpoint(f"group {group}", self._spark(group).parent)
                    check_whole(here, stages=stages)
                    raise _MovedError(str(error)) from None
                raise BackupError(
                    f"a checkpoint cannot be backed up: {error}: start the platform again, which mends it"
                ) from None


def _of_checkpoint(spark: Path, group: _Planned) -> Iterator[Path]:
    """What Spark needs to go on behind the last committed micro-batch.

    Files of later versions of the state are left out: Spark writes them again when it runs these batches.
    """
    for path in sorted(spark.rglob("*")) if spark.is_dir() else ():
        name, inside = path.name, path.relative_to(spark).parts
        if not path.is_file() or name.startswith("."):
            continue
        if inside[0] == "commits":
            if name.isdecimal() and int(name) <= group.committed:
                yield path
        elif inside[0] == "offsets":
            if name.isdecimal() and int(name) in group.planned:
                yield path
        elif (version := _NUMBERED.fullmatch(name)) is None or int(version[1]) <= group.committed + 1:
            yield path
