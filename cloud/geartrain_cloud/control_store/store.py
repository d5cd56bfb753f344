"""The control store: what is wanted and what was reported, in one SQLite file.

It stands behind REST and the reconciler, and beside every record's path. Guarantees: each change is one
durable transaction, together with the answer that its idempotency key stands for. Every list of apps and of
devices is read in pages.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from geartrain_cloud.control_store.announcements import Announcements
from geartrain_cloud.control_store.apps import Apps
from geartrain_cloud.control_store.bearers import Bearers
from geartrain_cloud.control_store.cut_changes import CutChanges
from geartrain_cloud.control_store.database import ControlDatabase
from geartrain_cloud.control_store.desired import Desired
from geartrain_cloud.control_store.devices import Devices
from geartrain_cloud.control_store.events import Events
from geartrain_cloud.control_store.histories import move_histories
from geartrain_cloud.control_store.idempotency import Answers
from geartrain_cloud.control_store.programs import Programs
from geartrain_cloud.control_store.purges import Purges
from geartrain_cloud.control_store.reports import Reports
from geartrain_cloud.control_store.revisions import Revisions
from geartrain_cloud.control_store.secrets import Secrets
from geartrain_cloud.platform.places import SECRETS_KEY


class ControlStore:
    """The file at `path`, held by one process, and what is kept there; `now_us` tells the wall clock,
    microseconds.
    """

    def __init__(self, path: Path, now_us: Callable[[], int]) -> None:
        """Open or make it, with the key of its secrets beside it; raises `StoreError`."""
        self.database = ControlDatabase(path)
        self.events = Events(self.database, now_us)
        self.announcements = Announcements(self.database, self.events, now_us)
        self.answers, self.bearers = Answers(self.database), Bearers(self.database, now_us)
        self.desired = Desired(self.database)
        self.devices = Devices(self.database, self.desired)
        self.purges = Purges(self.database, self.devices, self.desired)
        self.programs = Programs(self.database, self.devices, self.desired)
        self.reports = Reports(self.database, self.devices, self.desired, now_us)
        self.revisions, self.cut_changes = Revisions(self.database), CutChanges(self.database)
        key = path.with_name(SECRETS_KEY)
        self.secrets = Secrets(self.database, self.desired, self.reports, key, now_us)
        own = (self.devices, self.desired, self.reports, self.revisions, self.cut_changes)
        self.apps = Apps(self.database, *own, now_us)

    def find_histories(self, folder: Path) -> None:
        """Name files of history where they lie, in `folder`, and have devices told where that is not where
        they lay. Raises `StoreError`.
        """
        with self.database.change() as database:
            for instance in sorted(move_histories(database, folder)):
                self.desired.tell_again(instance)

    def close(self) -> None:
        """Let the file go."""
        self.database.close()
