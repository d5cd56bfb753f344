"""Where things lie in a platform's state folder, and the small files by which its processes find each other.

All processes of a platform use it. Guarantees: paths are made here and nowhere else. A file that others read
is replaced in one step, with mode 0600.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geartrain.adapters.files import write_private
from geartrain.adapters.home import home_folder
from geartrain.adapters.secret_shelf import SecretShelf
from geartrain.control.sealed import SPARK_PROCESS
from geartrain_cloud.bundles.files import BundleFiles

SECRETS_KEY = "secrets.key"
"""Beside the control store."""
SECRETS = "secrets"
"""In the folder of a device of this machine, and in the Spark host's."""
STATUS_FILE = "status.json"
"""What an agent says of itself, in its folder."""
STATE_VARIABLE = "GEARTRAIN_STATE"
"""The environment variable that names the state folder where no option does."""

SPARK_LOG_FILE = "spark.log"
"""What Spark says, in the folder of its session."""
RESTORING = "restoring"
"""In a state folder that a backup is being brought back to: what else is there is not whole yet."""


@dataclass(frozen=True, slots=True)
class PlatformPlaces:
    """The files and folders below a platform's state folder."""

    folder: Path

    @property
    def log(self) -> Path:
        """Ingest's ledger and segments."""
        return self.folder / "log"

    @property
    def logs(self) -> Path:
        """What the processes print, one file each."""
        return self.folder / "logs"

    @property
    def control(self) -> Path:
        """The control store."""
        return self.folder / "control.sqlite"

    @property
    def audit(self) -> Path:
        """The audit log: who has changed what."""
        return self.folder / "audit.sqlite"

    @property
    def fleet(self) -> Path:
        """The fleet's authority, and the certificates of this machine's programs."""
        return self.folder / "fleet"

    @property
    def joins(self) -> Path:
        """The tokens by which devices join."""
        return self.folder / "joins.sqlite"

    @property
    def secrets_key(self) -> Path:
        """The key under which the control store keeps the secrets of apps."""
        return self.folder / SECRETS_KEY

    @property
    def bundles(self) -> Path:
        """What authors have signed, and the platform's own keys of its metadata."""
        return self.folder / "bundles"

    @property
    def histories(self) -> Path:
        """Files of history that devices of this machine read."""
        return self.folder / "histories"

    @property
    def unpacked(self) -> Path:
        """Unpacked bundles, by the hash of their code."""
        return BundleFiles(self.bundles).code

    def code(self, code: str) -> Path:
        """The unpacked bundle of this code."""
        return self.unpacked / code

    @property
    def token(self) -> Path:
        """The bearer token of REST."""
        return self.folder / "control.token"

    @property
    def door(self) -> Path:
        """Where REST answers, as `geartrain_cloud.platform.door` writes it."""
        return self.folder / "platform.json"

    @property
    def broker(self) -> Path:
        """Where the broker is that `gear up` started: `{"address", "certs"}`."""
        return self.folder / "broker.json"

    @property
    def processes(self) -> Path:
        """Who runs under which process id, as the supervisor says."""
        return self.folder / "processes.json"

    @property
    def paused(self) -> Path:
        """Which processes `gear up` is to leave out for now."""
        return self.folder / "paused.json"

    @property
    def spark(self) -> Path:
        """The Spark host's folder: checkpoints and plans."""
        return self.folder / "spark"

    @property
    def spark_log(self) -> Path:
        """What the Spark host's Spark says."""
        return self.spark / SPARK_LOG_FILE

    @property
    def spark_wanted(self) -> Path:
        """What the Spark host is to run."""
        return self.spark / "wanted.json"

    @property
    def spark_status(self) -> Path:
        """What the Spark host says of itself."""
        return self.spark / "status.json"

    @property
    def questions(self) -> Path:
        """Questions to running apps, and their answers."""
        return self.spark / "questions"

    @property
    def downlink(self) -> Path:
        """The folder of the downlink."""
        return self.folder / "downlink"

    @property
    def downlink_wanted(self) -> Path:
        """Which outboxes the downlink is to send."""
        return self.downlink / "wanted.json"

    @property
    def downlink_status(self) -> Path:
        """What the downlink says of itself."""
        return self.downlink / "status.json"

    @property
    def ingest_status(self) -> Path:
        """What ingest says of itself."""
        return self.log / "status.json"

    @property
    def agents(self) -> Path:
        """The devices of this machine."""
        return self.folder / "agents"

    @property
    def agents_wanted(self) -> Path:
        """Which processes of devices `gear up` is to run on this machine."""
        return self.agents / "wanted.json"

    def app(self, instance: str) -> Path:
        """The folder of an instance's tables."""
        return self.folder / "apps" / instance

    def tables(self, instance: str) -> Path:
        """The tables of an instance."""
        return self.app(instance) / "tables.sqlite"

    def outbox(self, instance: str) -> Path:
        """What an instance has for devices, beside its tables."""
        return self.app(instance) / "outbox.sqlite"

    def device(self, device: str) -> Path:
        """The folder of a device of this machine."""
        return self.agents / device

    def secrets_of(self, device: str) -> SecretShelf:
        """The secrets of a device of this machine, where its agents look for them, or of the Spark host."""
        return SecretShelf((self.spark if device == SPARK_PROCESS else self.device(device)) / SECRETS)

    def agent(self, device: str, instance: str) -> Path:
        """The folder of an instance on a device of this machine."""
        return self.agents / device / instance

    def process_log(self, name: str) -> Path:
        """What the process `name` prints."""
        return self.logs / f"{name.replace(' ', '.')}.log"


def default_state() -> Path:
    """The state folder where nobody names one: that of the environment, else the user's own."""
    if named := os.environ.get(STATE_VARIABLE):
        return Path(named)
    base = os.environ.get("XDG_STATE_HOME")
    where = Path(base) if base else home_folder(f"--state or {STATE_VARIABLE}") / ".local" / "state"
    return where / "geartrain" / "platform"


def read_report(path: Path) -> dict[str, Any]:
    """A JSON object that another process replaces in one step; empty where there is none yet."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_report(path: Path, content: Mapping[str, Any]) -> bool:
    """Replace the file unless it holds `content` already; whether it was written. Raises `OSError`."""
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        if path.read_text(encoding="utf-8") == text:
            return False
    except (OSError, ValueError):
        pass
    write_private(path, text)
    return True
