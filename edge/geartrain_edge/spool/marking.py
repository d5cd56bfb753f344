"""A spool that says, before the first commit of records or of a crossing with new code, that it commits now.

Around the spool of an agent that runs from a bundle. The parent reads the mark: code that has it does not go
back. Guarantees: the mark is durable before the commit is begun, so there is no such commit without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from geartrain.adapters.files import write_durable
from geartrain.errors import SpoolError
from geartrain.ports import SpoolCommit, SpooledBatch, SpoolImage, SpoolStore
from geartrain.ports.spool import Rewrite, SpoolTip, StateSize

RECORDS = "records_read"
"""The counter that a commit has raised if it holds what was read from a source."""
CROSSED = "crossings"
"""The counter that a commit has raised by which the device goes over to another cut or revision: what the
spool holds from then on is not for the code before.
"""
_PROOFS = frozenset({RECORDS, CROSSED})


class MarkingSpool:
    """`SpoolStore` over another one."""

    def __init__(self, spool: SpoolStore, mark: Path, code: str) -> None:
        """`mark`: the file that is to name `code`."""
        self._spool, self._mark, self._code = spool, mark, code
        self._is_marked = False

    async def open(self, device: str, flow: str, fresh_epoch: bytes) -> SpoolImage:
        """As `SpoolStore.open`."""
        image = await self._spool.open(device, flow, fresh_epoch)
        try:
            self._is_marked = self._mark.read_text() == self._code
        except (OSError, ValueError):
            self._is_marked = False
        return image

    async def commit(self, change: SpoolCommit) -> None:
        """As `SpoolStore.commit`."""
        if not self._is_marked and not _PROOFS.isdisjoint(change.counters):
            try:
                write_durable(self._mark, self._code.encode())
            except OSError as error:
                raise SpoolError(f"{self._mark} cannot be written: {error.strerror or error}") from None
            self._is_marked = True
        await self._spool.commit(change)

    async def read(self, after_seq: int, limit: int) -> list[SpooledBatch]:
        """As `SpoolStore.read`."""
        return await self._spool.read(after_seq, limit)

    async def cells(self, step: str, keys: Sequence[bytes] | None, limit: int) -> list[tuple[bytes, bytes]]:
        """As `SpoolStore.cells`."""
        return await self._spool.cells(step, keys, limit)

    def kept(self) -> Mapping[str, StateSize]:
        """As `SpoolStore.kept`."""
        return self._spool.kept()

    async def trim(self, through_seq: int) -> None:
        """As `SpoolStore.trim`."""
        await self._spool.trim(through_seq)

    async def renew(self, epoch: bytes, rewrite: Rewrite, change: SpoolCommit) -> SpoolTip:
        """As `SpoolStore.renew`."""
        return await self._spool.renew(epoch, rewrite, change)

    async def close(self) -> None:
        """As `SpoolStore.close`."""
        await self._spool.close()
