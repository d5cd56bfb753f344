"""The folder of authors' keys: where it is, and whose keys are there.

Before a key is read. Guarantees: it loads no library for keys, so that who has none does not wait for one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from geartrain.adapters.home import home_folder

KEYS = "GEARTRAIN_KEYS"
"""The environment variable that names the folder."""
ROOT, TARGETS = "root", "targets"


def keys_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Where keys lie; environment: None for that of this process."""
    told = os.environ if environment is None else environment
    if named := told.get(KEYS):
        return Path(named)
    base = told.get("XDG_CONFIG_HOME")
    return (Path(base) if base else home_folder(KEYS) / ".config") / "geartrain" / "keys"


def authors(folder: Path) -> list[str]:
    """The names of those who have keys in the folder."""
    return sorted(path.name.removesuffix(f".{TARGETS}.pem") for path in folder.glob(f"*.{TARGETS}.pem"))
