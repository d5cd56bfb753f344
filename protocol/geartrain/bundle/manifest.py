"""The manifest of a bundle: its files by their hashes, and the versions that can run them.

The one entry of an archive that is not the user's. Guarantees: the hash of the code follows from the manifest
alone, and is the one that `geartrain.revision` gives for the same files. What is read is bounded.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, TypeVar

import msgspec

from geartrain.errors import BundleError
from geartrain.printable import printable

MANIFEST = "geartrain-bundle.json"
"""Its name in the archive, and in the folder of an unpacked one."""
FORMAT = 1
MANIFEST_BYTES_MAX = 2 << 20
FILES_MAX = 5_000
"""Files of one bundle."""

_RANGE = re.compile(r"(>=|<)(\d{1,6}(?:\.\d{1,6}){0,3})")
_VERSION = re.compile(r"\d{1,6}(?:\.\d{1,6}){0,3}")

M = TypeVar("M")
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Range = Annotated[str, msgspec.Meta(max_length=100)]


def code_hash(files: Mapping[str, str]) -> str:
    """64 hexadecimal digits that name the code: sha256 of the files' names and hashes."""
    listed = "".join(f"{name}\n{digest}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(listed.encode()).hexdigest()


AUTHOR_FIELD = "x-geartrain-author"
"""Of a key in signed metadata: whose it is."""


def target_path(code: str) -> str:
    """What signed metadata call the bundle of this code."""
    return f"{code}.zip"


class Manifest(msgspec.Struct, frozen=True, dict=True):
    """What a bundle holds.

    files: sha256 of each by its path in the archive; geartrain, python: the versions that can run it, such as
    `>=0.2,<0.3`, "" for any.
    """

    files: dict[str, Digest]
    geartrain: Range = ""
    python: Range = ""
    format: int = FORMAT

    @cached_property
    def code(self) -> str:
        """The hash of the code, by which the control lane and the name of the archive call it."""
        return code_hash(self.files)

    def to_json(self) -> bytes:
        """Equal bytes for equal manifests."""
        return msgspec.json.encode(self, order="deterministic")

    @staticmethod
    def from_json(raw: bytes) -> Manifest:
        """Raises `BundleError`."""
        found = read_manifest(raw, Manifest, "the manifest")
        if found.format != FORMAT:
            raise BundleError(
                f"the bundle has format {found.format}, and this version of Geartrain knows {FORMAT}: bring "
                "Geartrain up to date here"
            )
        check_count(found.files)
        for text in (found.geartrain, found.python):
            check_range(text)
        return found

    def check_fits(self, geartrain: str, python: str) -> None:
        """Raise `BundleError` where these versions, such as `0.2.0` and `3.11`, cannot run it."""
        for name, have, wanted in (("Geartrain", geartrain, self.geartrain), ("Python", python, self.python)):
            if not is_in(have, wanted):
                raise BundleError(f"the bundle needs {name} {wanted}, and {name} {have} is here")


def read_manifest(raw: bytes, kind: type[M], name: str) -> M:
    """A manifest of this kind; name: how a sentence calls it. Raises `BundleError`."""
    try:
        if len(raw) > MANIFEST_BYTES_MAX:
            raise BundleError(f"the manifest has more than {MANIFEST_BYTES_MAX:,} bytes")
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"{name} cannot be read: {printable(str(error))}") from None


def check_count(files: Mapping[str, str]) -> None:
    """Raise `BundleError` for a manifest with more files than `FILES_MAX`."""
    if len(files) > FILES_MAX:
        raise BundleError(f"the manifest names more than {FILES_MAX:,} files")


def check_range(text: str) -> None:
    """Raise `BundleError` for a text that is no range of versions."""
    if text and not all(_RANGE.fullmatch(part.strip()) for part in text.split(",")):
        raise BundleError(f'{printable(text)!r} is no range of versions: write one such as ">=0.2,<0.3"')


def is_in(version: str, wanted: str) -> bool:
    """Whether a version lies in a range; what stands behind the numbers, such as `rc1`, does not count."""
    begin = _VERSION.match(version)
    have = _numbers(begin[0]) if begin else ()
    for part in filter(None, wanted.split(",")):
        if (bound := _RANGE.fullmatch(part.strip())) is None:
            return False
        least = _numbers(bound[2])
        if (have >= least) != (bound[1] == ">="):
            return False
    return True


def _numbers(text: str) -> tuple[int, ...]:
    """Equal for `1.2` and `1.2.0`."""
    found = [int(part) for part in text.split(".")]
    while found and found[-1] == 0:
        found.pop()
    return tuple(found)
