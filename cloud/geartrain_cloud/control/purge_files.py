"""What a platform's files hold of a device, and how it goes out of them while ingest and Spark stand still.

Under `purging`, in a thread. Guarantees: nothing is touched while ingest or the Spark host runs. A kill at
any moment leaves whole stores, and the next call goes on. Apps that are replayed then share a query that is
made anew, since that of before keeps what its steps have kept.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from geartrain.adapters.file_lock import is_held
from geartrain.errors import LedgerError
from geartrain_cloud.control.pausing import INGEST, SPARK
from geartrain_cloud.errors import StateError
from geartrain_cloud.hosting.places import HostPlaces
from geartrain_cloud.ingest.erasure import Erased, erase_device
from geartrain_cloud.log.opening import stopped_log
from geartrain_cloud.log.tables import LEDGER_FILE
from geartrain_cloud.platform.held_files import erasable_files
from geartrain_cloud.platform.places import PlatformPlaces
from geartrain_cloud.spark.lock import LOCK_FILE, no_reader

PARENT_LOCK = "parent.lock"
"""In the folder of a device of this machine, held by the process that runs it."""
STOPPED = (INGEST, SPARK)
"""The processes that stand still meanwhile."""
_OF_GROUPS = ("failures", "questions")


def has_log(places: PlatformPlaces) -> bool:
    """Whether ingest has ever run here."""
    return (places.log / LEDGER_FILE).is_file()


def is_quiet(places: PlatformPlaces, device: str) -> bool:
    """Whether ingest, the Spark host, and the device where it is one of this machine have ended."""
    try:
        with stopped_log(places.log), no_reader([places.spark / LOCK_FILE]):
            return not is_held(places.device(device) / PARENT_LOCK)
    except (LedgerError, StateError):
        return False


def erase_on_disk(places: PlatformPlaces, device: str, *, anew: bool = False) -> Erased:
    """Take what a device has sent out of the log, and out of what Spark and the device keep beside.

    anew: apps that come share another query from now on.

    Returns what went out of the log. Raises `LedgerError`, `OSError`, and `StateError` also while a
    backup is made.
    """
    with no_reader([places.spark / LOCK_FILE]), erasable_files(places.folder):
        found = erase_device(places.log, device) if has_log(places) else Erased()
        for group in places.spark.glob("groups/*"):
            for name in _OF_GROUPS:
                _empty(group / name)
        if anew:
            HostPlaces(places.spark).share_anew()
        _empty(places.questions)
        for log in (
            places.spark_log,
            *(places.process_log(name) for name in (*STOPPED, f"device {device}")),
        ):
            log.unlink(missing_ok=True)
            log.with_name(f"{log.name}.1").unlink(missing_ok=True)
    for folder in _instances(places.device(device)):
        shutil.rmtree(folder)
    return found


def _instances(device: Path) -> list[Path]:
    """The folders in which a device of this machine keeps something of apps."""
    if not device.is_dir():
        return []
    own = ("secrets", "programs", "identity")
    return [
        path for path in device.iterdir() if path.is_dir() and not path.is_symlink() and path.name not in own
    ]


def _empty(folder: Path) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
