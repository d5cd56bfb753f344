"""Archives as they are read: a zip from anywhere, whose every bound is checked before a byte is inflated.

Between the bytes of a bundle, or of a wheel that goes into one, and the files that are made of it.
Guarantees: whatever the bytes are, the only error is a `BundleError`. Memory and work are bounded: by the
size of the archive, by the count that its end declares, by names, and by the declared sizes, which nothing
exceeds. No name leads out of the folder in which the files are put.
"""

from __future__ import annotations

import hashlib
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Generic, Protocol, TypeVar

import msgspec

from geartrain.bundle.manifest import FILES_MAX, MANIFEST, MANIFEST_BYTES_MAX, Manifest
from geartrain.errors import BundleError
from geartrain.printable import printable

ARCHIVE_BYTES_MAX = 64 << 20
"""Of an archive as it travels."""
UNPACKED_BYTES_MAX = 64 << 20
"""Of all its files."""
FILE_BYTES_MAX = 16 << 20
RATIO_MAX = 200
"""How much larger than its packed form a file above `RATIO_FROM` may be."""
RATIO_FROM = 1 << 20
NAME_CHARS_MAX = 240
DEPTH_MAX = 32

_END = struct.Struct("<4s4H2LH")
_END_MARK = b"PK\x05\x06"
_ENTRY_BYTES = 46
"""Of an entry in the directory of a zip, without its name."""
_EXTRA_BYTES_MAX = 1_024
_CHUNK = 1 << 16
_FLAGS = 0x1 | 0x20 | 0x40
"""Encrypted or patched."""
_ODD = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError),
    *(ValueError, RuntimeError, OverflowError, LookupError),
)
"""What `zipfile` raises for bytes that are no archive of ours."""


class Bounds(msgspec.Struct, frozen=True):
    """What an archive may have. archive_bytes: as it travels; unpacked_bytes: all its files; file_bytes: one
    of them; files: how many, its manifest not counted.
    """

    archive_bytes: int = ARCHIVE_BYTES_MAX
    unpacked_bytes: int = UNPACKED_BYTES_MAX
    file_bytes: int = FILE_BYTES_MAX
    files: int = FILES_MAX


BUNDLE_BOUNDS = Bounds()


class Listed(Protocol):
    """A manifest."""

    @property
    def files(self) -> dict[str, str]:
        """sha256 of each file by its path in the archive."""
        ...

    @property
    def code(self) -> str:
        """The hash that names the archive."""
        ...

    def to_json(self) -> bytes:
        """Equal bytes for equal manifests."""
        ...


M = TypeVar("M", bound=Listed)


class ManifestArchive(Generic[M]):
    """An archive with a manifest in a file that can be sought; used by one thread."""

    def __init__(
        self, file: BinaryIO, name: str, read: Callable[[bytes], M], what: str, bounds: Bounds
    ) -> None:
        """Check its form and read its manifest; raises `BundleError`. name: of the manifest in the archive;
        what: names the archive in a sentence.
        """
        self._zip, found = _opened(file, f"the {what}", bounds)
        self._name, self._what = name, what
        names = {info.filename: info for info in found}
        if (listed := names.pop(name, None)) is None:
            raise BundleError(f"the {what} has no {name}")
        if listed.file_size > MANIFEST_BYTES_MAX:
            raise BundleError(f"the manifest has more than {MANIFEST_BYTES_MAX:,} bytes")
        self._infos = names
        self.manifest = read(b"".join(_chunks(self._zip, listed)))
        if odd := sorted(names.keys() ^ self.manifest.files.keys())[:1]:
            where = "archive" if odd[0] in names else "manifest"
            raise BundleError(f"file {printable(odd[0])!r} is in the {where} of the {what} alone")

    @property
    def unpacked_bytes(self) -> int:
        """Of all its files; what is read of each is no more than it declares here."""
        return sum(info.file_size for info in self._infos.values())

    def files(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Each file by its path, and its content in pieces of at most 64 KiB, the manifest at last.

        The pieces must be taken to their end before the next file. They raise `BundleError` there where the
        content is not what the manifest says.
        """
        for name, digest in self.manifest.files.items():
            yield name, self._checked(name, digest)
        yield self._name, iter([self.manifest.to_json()])

    def check(self) -> None:
        """Read every file; raises `BundleError` for one that is not what the manifest says."""
        for _, content in self.files():
            for _ in content:
                pass

    def _checked(self, name: str, digest: str) -> Iterator[bytes]:
        found = hashlib.sha256()
        for part in _chunks(self._zip, self._infos[name]):
            found.update(part)
            yield part
        if found.hexdigest() != digest:
            raise BundleError(f"file {printable(name)!r} of the {self._what} is not what its manifest says")


class Archive(ManifestArchive[Manifest]):
    """A bundle in a file that can be sought; used by one thread."""

    def __init__(self, file: BinaryIO) -> None:
        """Check its form and read its manifest; raises `BundleError`."""
        super().__init__(file, MANIFEST, Manifest.from_json, "bundle", BUNDLE_BOUNDS)


def entries_of(file: BinaryIO, what: str, bounds: Bounds = BUNDLE_BOUNDS) -> Iterator[tuple[str, bytes]]:
    """The files of any zip, such as a wheel, by their paths, whole. what: names it in a sentence.

    Raises `BundleError`.
    """
    opened, found = _opened(file, what, bounds)
    for info in found:
        yield info.filename, b"".join(_chunks(opened, info))


def check_names(files: Iterable[str], folders: Iterable[str], what: str) -> None:
    """Raise `BundleError` for a name that may not be a file's below a folder, and for two that cannot be
    there together.
    """
    named, seen = list(files), set[str]()
    for name in (*named, *folders):
        parts = name.split("/")
        if (
            not name.isprintable()
            or len(name) > NAME_CHARS_MAX
            or len(parts) > DEPTH_MAX
            or any(part in ("", ".", "..") or len(part.encode()) > 255 for part in parts)
            or set(name) & set('\\:"')
        ):
            raise BundleError(
                f"{what} has a file {printable(name[:80])!r}: its name may not be that of a file"
            )
        if name in seen:
            raise BundleError(f"{what} has the file {name!r} twice")
        seen.add(name)
    are_files = set(named)
    for name in seen:
        above = name.rpartition("/")[0]
        while above:
            if above in are_files:
                raise BundleError(f"{what} has {above!r} as a file and as a folder")
            above = above.rpartition("/")[0]


def _opened(file: BinaryIO, what: str, bounds: Bounds) -> tuple[zipfile.ZipFile, list[zipfile.ZipInfo]]:
    """An archive and its files, without its folders, when all that it declares is within the bounds."""
    try:
        size = file.seek(0, 2)
        count = _declared(file, size, what, bounds)
        opened = zipfile.ZipFile(file)
        found = opened.infolist()
    except _ODD as error:
        raise BundleError(f"{what} is no zip archive that can be read: {printable(str(error))}") from None
    if len(found) != count:
        raise BundleError(f"{what} declares {count:,} entries and has {len(found):,}")
    files = [info for info in found if not info.filename.endswith("/")]
    folders = [info.filename.removesuffix("/") for info in found if info.filename.endswith("/")]
    check_names((info.filename for info in files), folders, what)
    if sum(info.compress_size for info in found) > size:
        raise BundleError(f"{what} has entries that lie over one another")
    if sum(info.file_size for info in files) > bounds.unpacked_bytes:
        most = bounds.unpacked_bytes >> 20
        raise BundleError(f"{what} would be larger than {most} MiB when it is unpacked")
    for info in files:
        _check_entry(info, what, bounds)
    return opened, files


def _declared(file: BinaryIO, size: int, what: str, bounds: Bounds) -> int:
    """How many entries the end of the archive declares, where these are within the bounds."""
    if size > bounds.archive_bytes:
        raise BundleError(f"{what} has {size:,} bytes; {bounds.archive_bytes:,} are the most")
    if size < _END.size:
        raise BundleError(f"{what} is no zip archive: it has {size} bytes")
    file.seek(size - _END.size)
    mark, disk, first_disk, here, count, directory, offset, comment = _END.unpack(file.read(_END.size))
    if mark != _END_MARK or comment or disk or first_disk or here != count:
        raise BundleError(f"{what} is no zip archive in one part without a comment")
    if count > bounds.files + 1:
        raise BundleError(f"{what} has {count:,} entries; {bounds.files:,} files are the most")
    if (
        directory > count * (_ENTRY_BYTES + 4 * NAME_CHARS_MAX + _EXTRA_BYTES_MAX)
        or directory + offset > size
    ):
        raise BundleError(f"{what} has a directory of {directory:,} bytes for {count:,} entries")
    return int(count)


def _check_entry(info: zipfile.ZipInfo, what: str, bounds: Bounds) -> None:
    name = info.filename
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise BundleError(f"{what}: {name!r} is no plain file but a link or a device")
    if info.flag_bits & _FLAGS or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BundleError(f"{what}: {name!r} is encrypted, or packed in a way that is not known here")
    if info.file_size > bounds.file_bytes:
        raise BundleError(f"{what}: {name!r} has more than {bounds.file_bytes >> 20} MiB")
    if info.file_size > RATIO_FROM and info.file_size > RATIO_MAX * max(1, info.compress_size):
        raise BundleError(f"{what}: {name!r} is more than {RATIO_MAX} times as large as its packed form")


def _chunks(opened: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """The content of an entry, never more than it declares."""
    count = 0
    try:
        with opened.open(info) as file:
            while part := file.read(_CHUNK):
                count += len(part)
                yield part
    except _ODD as error:
        raise BundleError(f"file {info.filename!r} cannot be unpacked: {printable(str(error))}") from None
    if count != info.file_size:
        raise BundleError(f"file {info.filename!r} has {count:,} bytes, and {info.file_size:,} are declared")
