"""Where the files of a platform's bundles lie, and under which names they are served.

Under the repository. Guarantees: a name that comes from elsewhere leads to no other file than those that are
served.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_METADATA = re.compile(r"[1-9][0-9]{0,9}\.(?:root|targets|snapshot)\.json|timestamp\.json")
_STORED = re.compile(r"([0-9a-f]{64})\.([0-9a-f]{64})\.zip")
_TARGET = re.compile(r"([0-9a-f]{64})\.zip")


@dataclass(frozen=True, slots=True)
class BundleFiles:
    """The files below one folder."""

    folder: Path

    @property
    def metadata(self) -> Path:
        """Metadata of TUF's roles, each version of which stays."""
        return self.folder / "metadata"

    @property
    def stored(self) -> Path:
        """Archives, each by its own hash and that of its code."""
        return self.folder / "targets"

    @property
    def code(self) -> Path:
        """Bundles that were unpacked for the platform's own use, by the hash of their code."""
        return self.folder / "code"

    @property
    def timestamp(self) -> Path:
        """The one file of metadata that is replaced: what it names is in force."""
        return self.metadata / "timestamp.json"

    def key(self, role: str) -> Path:
        """The platform's key of a role."""
        return self.folder / "keys" / f"{role}.pem"

    def version(self, role: str, number: int) -> Path:
        """A version of a role's metadata."""
        return self.metadata / f"{number}.{role}.json"

    def served_metadata(self, name: str) -> Path | None:
        """The file of metadata that is served under a name; None for a name that none has."""
        return self.metadata / name if _METADATA.fullmatch(name) else None

    def served_bundle(self, name: str) -> Path | None:
        """The archive that is served under a name; None for a name that none has."""
        return self.stored / name if _STORED.fullmatch(name) else None


def stored_name(digest: str, path: str) -> str:
    """The name of the archive with this sha256, which metadata call `path`."""
    return f"{digest}.{path}"


def split_stored(name: str) -> tuple[str, str] | None:
    """The sha256 of an archive and the hash of its code, out of its name; None for another name."""
    found = _STORED.fullmatch(name)
    return None if found is None else (found[1], found[2])


def code_of_target(path: str) -> str:
    """The hash of the code of the bundle that metadata call `path`; empty for what is none."""
    found = _TARGET.fullmatch(path)
    return "" if found is None else found[1]
