"""The revision that a folder was begun with, in a file of it: no other fits its checkpoints and tables.

Beside the record's path. Guarantees: a folder that was killed before it had one gets it at its next start.
"""

from __future__ import annotations

from pathlib import Path

from geartrain.adapters.files import write_private
from geartrain.errors import ConfigError
from geartrain.revision import Revision

REVISION_FILE = "revision.json"


def read_revision(folder: Path) -> Revision | None:
    """The revision that a folder was begun with, None where it says none; raises `ConfigError`."""
    path = folder / REVISION_FILE
    try:
        return Revision.from_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def write_revision(folder: Path, revision: Revision) -> None:
    """Note what a folder is begun with; raises `ConfigError`."""
    try:
        write_private(folder / REVISION_FILE, revision.to_json() + "\n")
    except OSError as error:
        raise ConfigError(f"{folder / REVISION_FILE} cannot be written: {error.strerror}") from None
