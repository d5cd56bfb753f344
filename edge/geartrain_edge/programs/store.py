"""What a device knows of its programs: `choice.json` in `STATE/programs`, 0600, and their files beside it.

Under the launcher and the parent. It decodes with the standard library. Guarantees: a crash leaves the old
choice or the new one, and what `save` returned from is durable. A damaged choice is one of nothing: the
installed program runs, and what is asked for is tried anew. A program loses its name where its files are not
what its manifest says, or where Python here has become another that cannot run it.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from geartrain.adapters.machine import machine
from geartrain_edge.bundles.bytecode import BYTECODE, LIST_BYTES_MAX
from geartrain_edge.bundles.folder import Files, SystemFiles
from geartrain_edge.programs.choice import Choice

FOLDER = "programs"
"""Of a device's state folder."""
FILE, DRAFT = "choice.json", ".choice.new"
MANIFEST = "geartrain-program.json"
BYTES_MAX = 65_536
MANIFEST_BYTES_MAX = 2 << 20
_CHUNK = 1 << 20
_FIELDS = frozenset(field.name for field in fields(Choice))
"""A later version may have kept more."""


class ProgramStore:
    """The folder of a device's programs."""

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self.root, self._files = root, files or SystemFiles()

    def path(self, program: str) -> Path:
        """Where a program is, or would be."""
        return self.root / program

    def load(self) -> Choice:
        """What was saved last; nothing where nothing was, or where it cannot be read."""
        try:
            with (self.root / FILE).open("rb") as file:
                found = json.loads(file.read(BYTES_MAX))
            if zlib.crc32(_text(found["choice"])) != found["checksum"]:
                return Choice()
            content = {name: value for name, value in found["choice"].items() if name in _FIELDS}
            return Choice(**{**content, "ran": tuple(content["ran"])})
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return Choice()

    def save(self, choice: Choice) -> None:
        """Replace it; raises `OSError`."""
        content = asdict(choice)
        data = json.dumps({"checksum": zlib.crc32(_text(content)), "choice": content}).encode()
        draft = self.root / DRAFT
        if not self.root.exists():
            self._files.make_folder(self.root)
            self._files.sync(self.root.parent)
        if draft.exists():
            self._files.remove(draft)
        self._files.write(draft, [data])
        self._files.sync(draft)
        self._files.rename(draft, self.root / FILE)
        self._files.sync(self.root)

    def version(self, program: str) -> str:
        """The version of Geartrain that a program is, empty where its manifest does not say one."""
        try:
            found = self._manifest(program)["version"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return ""
        return found if isinstance(found, str) else ""

    def is_whole(self, program: str) -> bool:
        """Whether a program is there, can run here, and is as its manifest says; one that is not goes."""
        with suppress(OSError):  # it is not started, and what cannot be moved is found damaged again
            if not self.path(program).is_dir():
                return False
            if self._is_right(program):
                return True
            self._files.rename(self.path(program), self.root / f".gone-{program}")
            self._files.sync(self.root)
        return False

    def _manifest(self, program: str) -> dict[str, Any]:
        with (self.path(program) / MANIFEST).open("rb") as file:
            found: dict[str, Any] = json.loads(file.read(MANIFEST_BYTES_MAX))
        return found

    def _bytecode(self, folder: Path) -> dict[str, str]:
        """The hashes of the bytecode that was made here, by path; none where it was not made."""
        with suppress(FileNotFoundError), (folder / BYTECODE).open("rb") as file:
            found: dict[str, str] = json.loads(file.read(LIST_BYTES_MAX))
            return found
        return {}

    def _is_right(self, program: str) -> bool:
        folder = self.path(program)
        try:
            found = self._manifest(program)
            files: dict[str, str] = found["files"]
            if f"{found['python']} {found['architecture']}" != machine():
                return False
            listed = "".join(f"{name}\n{digest}\n" for name, digest in sorted(files.items()))
            if hashlib.sha256(listed.encode()).hexdigest() != program:
                return False
            files |= self._bytecode(folder)
            return all(_digest(folder / name) == digest for name, digest in files.items())
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return False


def _text(content: object) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_CHUNK):
            found.update(part)
    return found.hexdigest()
