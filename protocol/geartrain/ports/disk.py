"""Files as a port: what ingest needs of a disk to keep a log, each call one effect that can fail or be lost.

Names are relative paths with `/` below one root. Nothing is durable before `fsync` of the file and of its
folder. All calls raise `DiskError` naming the file.
"""

from __future__ import annotations

from typing import Protocol


class Disk(Protocol):
    """One folder of files."""

    async def write(self, name: str, data: bytes) -> None:
        """Create or replace the file `name` with `data`, making parent folders; not durable yet. Mode
        0600.
        """
        ...

    async def fsync(self, name: str) -> None:
        """Make the content of `name` and its entry in its folder (and new parent folders) durable."""
        ...

    async def rename(self, old: str, new: str) -> None:
        """Atomically give `old` the name `new`; durable after `fsync(new)`."""
        ...

    async def read(self, name: str) -> bytes:
        """The whole content of `name`."""
        ...

    async def remove(self, name: str) -> None:
        """Delete `name`; no error where it is already gone."""
        ...

    async def list(self, prefix: str = "") -> list[str]:
        """Names of all files whose name starts with `prefix`, sorted."""
        ...
