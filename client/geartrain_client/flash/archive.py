"""Tar archives whose bytes depend on their files alone: sorted, of one time, owned by root.

The installer is one, and so is each layer of a container. Guarantees: the same files give the same bytes, on
any machine and at any time.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass

EPOCH_S = 1_704_067_200
"""The time of all files, 2024-01-01T00:00:00Z: after all clocks that begin in 1970 or 1980."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, a folder (content None) or a symbolic link (link not empty). owner: user and group id."""

    content: bytes | None = None
    mode: int = 0o644
    link: str = ""
    owner: int = 0


def tar(entries: Mapping[str, Entry]) -> bytes:
    """A tar archive of the entries by their paths; folders above them are made 0755."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, entry in sorted(_with_folders(entries).items()):
            info = tarfile.TarInfo(path)
            info.mtime, info.uid, info.gid = EPOCH_S, entry.owner, entry.owner
            if entry.link:
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.link, 0o777
                archive.addfile(info)
            elif entry.content is None:
                info.type, info.mode = tarfile.DIRTYPE, entry.mode
                archive.addfile(info)
            else:
                info.size, info.mode = len(entry.content), entry.mode
                archive.addfile(info, io.BytesIO(entry.content))
    return out.getvalue()


def gzipped(content: bytes) -> bytes:
    """`content` as gzip, without a name or a time in it."""
    return gzip.compress(content, compresslevel=6, mtime=0)


def _with_folders(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    found = dict(entries)
    for path in entries:
        above = path.rpartition("/")[0]
        while above and above not in found:
            found[above] = Entry(mode=0o755)
            above = above.rpartition("/")[0]
    return found
