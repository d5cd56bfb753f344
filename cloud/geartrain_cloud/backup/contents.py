"""What of a state folder a backup holds, in the order in which a moment of it is taken.

Under `moment`. Guarantees: what is not named here is made anew by a platform that starts, or is a device's
own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from geartrain_cloud.bundles.files import BundleFiles
from geartrain_cloud.hosting.places import ASIDE, HostPlaces
from geartrain_cloud.log.roster import ROSTER_FILE
from geartrain_cloud.log.tables import LEDGER_FILE
from geartrain_cloud.platform.config import CONFIG_FILE
from geartrain_cloud.platform.places import PlatformPlaces
from geartrain_cloud.platform.runs import served_run

SPARK = "spark"
"""In the folder of a group: Spark's own part of its checkpoint."""
_TRANSIENT = frozenset({SPARK, ASIDE, "running", "questions"})
"""In the folder of a group: what its processes make anew; Spark's part is taken by itself, and a torn one not
at all.
"""


class Contents:
    """The files of one state folder, by how they are taken."""

    def __init__(self, folder: Path) -> None:
        self.places = PlatformPlaces(folder)
        self._host = HostPlaces(self.places.spark)

    def groups(self) -> list[Path]:
        """The folders of the groups of flows, by name."""
        folder = self._host.groups
        return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []

    def stores(self) -> list[Path]:
        """Tables and outboxes of all apps: what a micro-batch writes in a transaction."""
        return sorted((self.places.folder / "apps").glob("*/*.sqlite"))

    def served(self) -> dict[Path, int]:
        """The run of each app that is served, by the app's folder."""
        return {
            app: served_run(self.places.tables(app.name))
            for app in sorted((self.places.folder / "apps").glob("*"))
        }

    def log(self) -> list[Path]:
        """The ledger, and the roster that ingest follows."""
        return _there(self.places.log / LEDGER_FILE, self.places.log / ROSTER_FILE)

    def control(self) -> list[Path]:
        """What is wanted, who may join, and who has changed what."""
        return _there(self.places.control, self.places.joins, self.places.audit)

    def beside_micro_batches(self) -> Iterator[Path]:
        """Small files that change with micro-batches and with what is hosted, parked rows among them."""
        for group in self.groups():
            for path in sorted(group.iterdir()):
                if path.name not in _TRANSIENT:
                    yield from _files(path)
        for app in sorted((self.places.folder / "apps").glob("*")):
            yield from (path for path in _files(app) if path.suffix != ".parquet" and _is_no_database(path))

    def that_stay(self) -> Iterator[Path]:
        """Files that never change once they are there: code, plans, histories, rows in Parquet."""
        yield from (path for path in _files(self.places.histories) if path.suffix != ".part")
        for folder in (self._host.plans, self._host.code):
            yield from _files(folder)
        for app in sorted((self.places.folder / "apps").glob("*")):
            yield from (path for path in _files(app) if path.suffix == ".parquet")

    def platform(self) -> Iterator[Path]:
        """Keys, what authors have signed, and what the platform is told and tells.

        What names others comes first where these are never removed, and last where they are written before.
        """
        bundles, fleet = self.places.bundles, self.places.fleet
        yield from _there(BundleFiles(bundles).timestamp)
        yield from (path for path in _files(bundles) if path != BundleFiles(bundles).timestamp)
        registers = {fleet / "issued.json", fleet / "crl.pem"}
        yield from (path for path in _files(fleet) if path not in registers)
        own = self.places.token, self.places.secrets_key, self.places.broker
        yield from _there(*sorted(registers), *own)
        yield from _there(self.places.folder / CONFIG_FILE)


def _there(*paths: Path) -> list[Path]:
    return [path for path in paths if path.is_file()]


def _is_no_database(path: Path) -> bool:
    return not path.name.endswith((".sqlite", ".sqlite-wal", ".sqlite-shm"))


def _files(top: Path) -> Iterator[Path]:
    """The files at or below `top`, sorted, without drafts: their names begin with a dot."""
    if top.is_symlink() or top.name.startswith("."):
        return
    if top.is_file():
        yield top
    elif top.is_dir():
        for path in sorted(top.iterdir()):
            yield from _files(path)
