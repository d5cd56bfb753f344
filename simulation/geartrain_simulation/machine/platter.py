"""A node's disk: when the power goes, its un-synced writes are lost, torn or out of order.

It lies under every simulated store, and outlives processes. Guarantees: a kill leaves everything written
so far (the page cache survives it); power loss leaves of un-synced writes what a real disk may leave.
Model: a file's content is durable at its fsync. Each change of a name (create, rename, remove) is durable
at the fsync of that name; until then each may or may not survive power loss, by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from random import Random

from geartrain.errors import DiskError

SECTOR_BYTES = 512
"""What a real disk writes whole or not at all."""
LOSSES = ("lost", "torn", "reordered")
"""What power loss may do to the un-synced writes of a file, beside leaving them: take them all; take all from
some point on; take any of their sectors.
"""


@dataclass(slots=True, eq=False)
class _File:
    """content: what a reader sees; durable: what the medium surely holds; writes: those of late, as
    (offset, data), an offset of -1 for one that empties the file; doomed: from where on a sync of them has
    failed, so that none of it is ever made durable unless it is written again, or -1.
    """

    content: bytes = b""
    durable: bytes = b""
    writes: list[tuple[int, bytes]] = field(default_factory=list)
    doomed: int = -1

    @property
    def is_durable(self) -> bool:
        return not self.writes and self.doomed < 0


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """A change of names: `added` now names `file`, `dropped` names nothing. Either may be empty."""

    added: str
    dropped: str
    file: _File | None

    @property
    def names(self) -> set[str]:
        return {self.added, self.dropped} - {""}

    def apply(self, names: dict[str, _File]) -> None:
        if self.dropped:
            names.pop(self.dropped, None)
        if self.added and self.file is not None:
            names[self.added] = self.file


class Platter:
    """The medium of one node."""

    def __init__(
        self, random: Random, *, losses: tuple[str, ...] = LOSSES, sector_bytes: int = SECTOR_BYTES
    ) -> None:
        """`losses`: which of `LOSSES` may happen; without any, power loss takes nothing."""
        self._random, self.losses, self._sector_bytes = random, losses, sector_bytes
        self._seen: dict[str, _File] = {}
        self._durable: dict[str, _File] = {}
        self._pending: list[_Change] = []
        self.power_losses = 0

    def put(self, name: str, data: bytes) -> None:
        """Create or replace the content of `name`."""
        file = self._created(name)
        if file.content:
            file.writes.append((-1, b""))
        file.content, file.doomed = data, -1
        file.writes.append((0, data))

    def put_at(self, name: str, offset: int, data: bytes) -> None:
        """Write `data` at `offset`, which is not beyond the end."""
        file = self._created(name)
        file.content = _written(file.content, offset, data)
        if offset <= file.doomed:
            file.doomed = -1
        file.writes.append((offset, data))

    def _created(self, name: str) -> _File:
        file = self._seen.get(name)
        if file is None:
            file = self._seen[name] = _File()
            self._pending.append(_Change(name, "", file))
        return file

    def sync(self, name: str) -> None:
        """Make content and name durable, with the earlier changes of names that they rest on."""
        file = self._found(name)
        if file.doomed < 0:
            file.durable = file.content
            file.writes.clear()
        names, kept, due = {name}, [], []
        for change in reversed(self._pending):
            if change.names & names:
                names |= change.names
                due.append(change)
            else:
                kept.append(change)
        for change in reversed(due):
            change.apply(self._durable)
        self._pending = kept[::-1]

    def fail_sync(self, name: str) -> None:
        """A sync that reports an error: readers see the writes still, and no later sync makes them durable
        (as Linux has it: their pages count as clean from then on).
        """
        file = self._found(name)
        if file.writes and file.doomed < 0:
            file.doomed = max(min(offset for offset, _ in file.writes), 0)

    def rename(self, old: str, new: str) -> None:
        """Give the file `old` the name `new`."""
        change = _Change(new, old, self._found(old))
        change.apply(self._seen)
        self._pending.append(change)

    def remove(self, name: str) -> None:
        """Delete `name` where it exists."""
        if name in self._seen:
            change = _Change("", name, None)
            change.apply(self._seen)
            self._pending.append(change)

    def read(self, name: str) -> bytes:
        """The content as a reader sees it."""
        return self._found(name).content

    def matching(self, prefix: str = "") -> list[str]:
        """All names that start with `prefix`, sorted."""
        return sorted(name for name in self._seen if name.startswith(prefix))

    def durable(self, name: str) -> bytes | None:
        """What of `name` is sure to survive power loss: its content, or None if its name or a part is not."""
        file = self._durable.get(name)
        shaky = any(name in change.names for change in self._pending)
        return None if file is None or shaky or not file.is_durable else file.durable

    def save(self) -> dict[str, bytes]:
        """A copy of all files, as a backup takes it."""
        return {name: file.content for name, file in self._seen.items()}

    def restore(self, files: Mapping[str, bytes]) -> None:
        """Put these files in the place of all others, durably."""
        self._seen = {name: _File(data, data) for name, data in files.items()}
        self._durable, self._pending = dict(self._seen), []

    def power_loss(self) -> None:
        """Lose what was not durable, as far as `losses` says."""
        self.power_losses += 1
        names = dict(self._durable)
        for change in self._pending:
            if not self.losses or self._random.random() < 0.5:
                change.apply(names)
        for file in names.values():
            file.content = file.durable = self._remains(file)
            file.writes.clear()
            file.doomed = -1
        self._seen, self._durable, self._pending = dict(names), names, []

    def crash_states(self, count: int) -> Iterator[dict[str, bytes]]:
        """Up to `count` different contents that a loss of power may leave now, without losing it.

        First come, in any order, every cut of an un-synced file at a sector's bound, and every single sector
        that alone is or is not there. Then come draws of all that may be.
        """
        seen: set[bytes] = set()
        for files in islice(self._crash_states(), 4 * count):
            key = hashlib.blake2b(repr(sorted(files.items())).encode(), digest_size=16).digest()
            if key not in seen:
                seen.add(key)
                yield files
                if len(seen) == count:
                    return

    def _crash_states(self) -> Iterator[dict[str, bytes]]:
        whole = dict(self._seen)
        shaky = [file for file in whole.values() if not file.is_durable]
        for file in shaky:
            cuts = list(self._cuts(file))
            self._random.shuffle(cuts)
            for content in cuts:
                yield {name: content if one is file else one.content for name, one in whole.items()}
        while shaky or self._pending:
            names = dict(self._durable)
            for change in self._pending:
                if self._random.random() < 0.5:
                    change.apply(names)
            yield {name: self._remains(file) for name, file in names.items()}
        yield {name: file.content for name, file in whole.items()}

    def _cuts(self, file: _File) -> Iterator[bytes]:
        step, old, new = self._sector_bytes, file.durable, file.content
        differ = [at for at in range(0, len(new), step) if old[at : at + step] != new[at : at + step]]
        for at in differ:
            yield new[:at] + old[at:]
            if at >= len(old):
                yield new[:at]
            until = at + step
            yield new[:at] + old[at:until].ljust(len(new[at:until]), b"\0") + new[until:]
            yield old[:at].ljust(at, b"\0") + new[at:until] + old[until:]

    def _remains(self, file: _File) -> bytes:
        if file.is_durable:
            return file.durable
        kind = self._random.choice(("kept", *self.losses))
        if file.doomed >= 0 and self.losses:
            kind = "lost"
        if kind == "kept":
            return file.content
        if kind == "lost":
            return file.durable
        if kind == "torn":
            return self._torn(file)
        return self._reordered(file)

    def _torn(self, file: _File) -> bytes:
        kept = self._random.randrange(len(file.writes))
        content = file.durable
        for offset, data in file.writes[:kept]:
            content = _written(content, offset, data)
        offset, data = file.writes[kept]
        if offset < 0:
            return content
        sectors = range(0, offset % self._sector_bytes + len(data), self._sector_bytes)
        cut = self._random.choice(sectors) - offset % self._sector_bytes if sectors else 0
        return _written(content, offset, data[: max(cut, 0)])

    def _reordered(self, file: _File) -> bytes:
        """The new length, with each sector as it was or as it is; where nothing was, there are zeros."""
        size, step, parts = len(file.content), self._sector_bytes, []
        for at in range(0, size, step):
            old, new = file.durable[at : at + step], file.content[at : at + step]
            parts.append(new if self._random.random() < 0.5 else old[: len(new)].ljust(len(new), b"\0"))
        return b"".join(parts)

    def _found(self, name: str) -> _File:
        try:
            return self._seen[name]
        except KeyError:
            raise DiskError(f"{name}: there is no such file") from None


def _written(content: bytes, offset: int, data: bytes) -> bytes:
    return b"" if offset < 0 else content[:offset] + data + content[offset + len(data) :]
