"""A program archive: all that runs on a device, as one zip that is signed and sent along like a bundle.

It stands before every record: packed where `gear agent upgrade` is called, unpacked on devices. It holds the
unpacked wheels of a device, compiled modules too, so it is for one minor version of Python and one processor.
Guarantees: an archive is a pure function of its files. What is read is bounded before anything is unpacked,
and whatever bytes come, nothing but a `BundleError` is raised.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, BinaryIO

import msgspec

from geartrain.bundle.archive import Bounds, ManifestArchive, entries_of
from geartrain.bundle.manifest import Digest, check_count, code_hash, read_manifest
from geartrain.bundle.packing import zipped
from geartrain.errors import BundleError
from geartrain.printable import printable

PROGRAM = "geartrain-program.json"
"""The manifest's name in the archive, and in the folder of an unpacked one."""
FORMAT = 1
ENTRY = "geartrain_edge/agent/process.py"
"""What is started of a program: without it, it is none."""
PROGRAM_BOUNDS = Bounds(archive_bytes=96 << 20, unpacked_bytes=192 << 20, file_bytes=64 << 20)

_DATA = re.compile(r"[^/]+\.data/([^/]+)/(.+)")
_PLACED = ("purelib", "platlib")

Word = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


class ProgramManifest(msgspec.Struct, frozen=True, dict=True):
    """What a program archive holds.

    files: sha256 of each by its path; version: of Geartrain, such as `0.3.0`; python: the minor version that
    runs it, `3.11`; architecture: the processor, as the system names it, `aarch64` or `x86_64`.
    """

    files: dict[str, Digest]
    version: Word
    python: Word
    architecture: Word
    format: int = FORMAT

    @cached_property
    def code(self) -> str:
        """The hash of the files, by which the control lane and the name of the archive call the program."""
        return code_hash(self.files)

    @property
    def machine(self) -> str:
        """Where it can run, as `geartrain.adapters.machine.machine` says of a device."""
        return f"{self.python} {self.architecture}"

    def to_json(self) -> bytes:
        """Equal bytes for equal manifests."""
        return msgspec.json.encode(self, order="deterministic")

    @staticmethod
    def from_json(raw: bytes) -> ProgramManifest:
        """Raises `BundleError`."""
        found = read_manifest(raw, ProgramManifest, "the manifest of the program")
        if found.format != FORMAT:
            raise BundleError(
                f"the program has format {found.format}, and this version of Geartrain knows {FORMAT}: "
                "upgrade to a version between them first"
            )
        check_count(found.files)
        return found

    def check_fits(self, here: str) -> None:
        """Raise `BundleError` where a machine, such as `3.11 aarch64`, cannot run it."""
        if here != self.machine:
            raise BundleError(
                f"the program is for Python {printable(self.machine)}, and Python {here} is here: "
                "pack it for this device"
            )


class ProgramArchive(ManifestArchive[ProgramManifest]):
    """A program archive in a file that can be sought; used by one thread."""

    def __init__(self, file: BinaryIO) -> None:
        """Check its form and read its manifest; raises `BundleError`."""
        super().__init__(file, PROGRAM, ProgramManifest.from_json, "program", PROGRAM_BOUNDS)
        if ENTRY not in self.manifest.files:
            raise BundleError(f"the program has no {ENTRY}: it is not one of a device")


def pack_program(
    files: Mapping[str, bytes], *, version: str, python: str, architecture: str
) -> tuple[ProgramManifest, bytes]:
    """A program archive, and its manifest; raises `BundleError`.

    files: contents by path; the rest as in `ProgramManifest`.
    """
    named = dict(sorted(files.items()))
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in named.items()}
    manifest = ProgramManifest(digests, version, python, architecture)
    raw = zipped(((PROGRAM, manifest.to_json()), *named.items()))
    ProgramArchive(io.BytesIO(raw))
    return manifest, raw


def unpacked_wheels(wheels: Iterable[tuple[str, BinaryIO]]) -> dict[str, bytes]:
    """The files of wheels, by file name of the wheel, as they lie once they are installed.

    Programs and headers that a wheel would put elsewhere are left out. Raises `BundleError`, also for two
    wheels with one path.
    """
    found: dict[str, bytes] = {}
    for what, file in wheels:
        for name, content in entries_of(file, what, PROGRAM_BOUNDS):
            place: str | None = name
            if (elsewhere := _DATA.fullmatch(name)) is not None:
                place = elsewhere[2] if elsewhere[1] in _PLACED else None
            if place is None:
                continue
            if found.get(place, content) != content:
                raise BundleError(f"{what} has a file {printable(place)!r} that another wheel has, too")
            found[place] = content
    return found
