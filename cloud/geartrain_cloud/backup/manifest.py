"""The manifest of a backup: which files it holds, each with its size and SHA-256. It is written last.

Between the writing and the reading side. Guarantees: without a manifest there is no backup, so one that was
killed is none. A name leads to no file outside of the folder that it is brought back to.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

import msgspec

from geartrain.adapters.layouts import FileLayout
from geartrain_cloud.backup.errors import BackupError

LAYOUT = FileLayout("geartrain-backup", 1, BackupError, "restore another one")
MANIFEST = "backup.json"
MANIFEST_BYTES_MAX = 1 << 30


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """One file: its name below the state folder, its bytes, and their SHA-256 in hexadecimal."""

    name: str
    size: Annotated[int, msgspec.Meta(ge=0)]
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """layout: of the backup; version: of Geartrain; made_us: when its moment was,
    microseconds since 1970 UTC; micro_batches: by group of flows, the last one that Spark had committed;
    files: all that it holds.
    """

    layout: str
    version: str
    made_us: int
    micro_batches: dict[str, int]
    files: list[Kept]


def encode_manifest(manifest: Manifest) -> bytes:
    """Its bytes."""
    return msgspec.json.encode(manifest) + b"\n"


def decode_manifest(raw: bytes, place: str) -> Manifest:
    """The manifest of the backup at `place`.

    Raises:
        BackupError: it cannot be read, is of another layout, or names a file outside of the folder.
    """
    try:
        LAYOUT.check_json(raw, f"the backup {place}")
        manifest = msgspec.json.decode(raw, type=Manifest)
    except msgspec.DecodeError as error:
        raise BackupError(
            f"the backup {place} is damaged: its {MANIFEST} cannot be read ({error}): take another one"
        ) from None
    for kept in manifest.files:
        if not is_inside(kept.name):
            raise BackupError(
                f"the backup {place} names the file {kept.name!r}, which would lie outside of the "
                "state folder: it was not made by gear backup; take another one"
            )
    return manifest


def is_inside(name: str) -> bool:
    """Whether a name can only lead to a file below the folder that it is joined to."""
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and "\0" not in name
