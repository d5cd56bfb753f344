"""The secrets that a platform has put on a device: `FOLDER/APP/NAME`, mode 0600, with their versions.

On a joined device the process that opens sealed secrets writes here, on the platform's own devices control
does. Apps read. Guarantees: a value is there whole or not at all, and is durable when `put` returns. An older
value never takes the place of a newer one, also after the newer one was removed. Files that others have
written there stay.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import msgspec

from geartrain.adapters.files import fsync_path, make_private_folder, write_durable

_NOTE = ".versions"
"""In an app's folder, beside the values: the newest version of each that was ever there."""
_GONE_MAX = 256
"""Of those that are not there any more, the newest are noted."""

Place = tuple[str, str]
"""An app and the name of its secret."""


class SecretShelf:
    """The secrets below `folder`; all methods raise `OSError`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def versions(self) -> dict[Place, int]:
        """The version of each secret that the platform has put here and that is here."""
        if not self._folder.is_dir():
            return {}
        return {
            (app.name, name): version
            for app in sorted(self._folder.iterdir())
            for name, version in self._noted(app.name).items()
            if (app / name).is_file()
        }

    def put(self, app: str, name: str, version: int, value: bytes) -> str:
        """Have this value from now on; a sentence where a later version is known, else empty."""
        noted = self._noted(app)
        if version < noted.get(name, 0):
            return f"version {version} is older than version {noted[name]}, which this device has or had"
        path = self._folder / app / name
        make_private_folder(path.parent)
        write_durable(path, value)  # before its version is noted: one that is killed between does it again
        self._note(app, noted | {name: version})
        return ""

    def keep(self, wanted: Collection[Place]) -> list[Place]:
        """Remove all others that the platform has put here; returns them."""
        gone = [place for place in self.versions() if place not in wanted]
        for app, name in gone:
            for path in (self._folder / app / name, self._folder / app / f".{name}.new"):
                path.unlink(missing_ok=True)
            fsync_path(self._folder / app)
        return gone

    def _noted(self, app: str) -> dict[str, int]:
        try:
            found = msgspec.json.decode((self._folder / app / _NOTE).read_bytes(), type=dict[str, int])
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except msgspec.MsgspecError as error:
            raise OSError(f"{self._folder / app / _NOTE} is damaged: {error}: remove it") from None
        return {name: version for name, version in found.items() if os.sep not in name}

    def _note(self, app: str, noted: dict[str, int]) -> None:
        gone = [name for name in noted if not (self._folder / app / name).is_file()]
        old = sorted(gone, key=lambda name: noted[name])[: max(0, len(gone) - _GONE_MAX)]
        left = {name: version for name, version in noted.items() if name not in old}
        write_durable(self._folder / app / _NOTE, msgspec.json.encode(left, order="sorted"))
