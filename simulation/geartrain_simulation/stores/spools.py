"""The spool on a simulated disk: what the agent's one transaction wrote is there after every crash.

`SpoolBook` is what the disk of a device holds, as readers see it; `SimSpoolStore` is one process's way to
it. Guarantees of each transaction: all of it
or nothing, in the order of the calls. A kill may strike in the middle of its write, or after it and before
its caller hears of it. It refuses what the SQLite form refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from geartrain.errors import SpoolError
from geartrain.ports import (
    Rewrite,
    SplitProgress,
    SpoolCommit,
    SpooledBatch,
    SpoolImage,
    SpoolTip,
    StateSize,
)
from geartrain.ports.spool import first_batches
from geartrain.wire.envelope import DIGEST_BYTES
from geartrain_simulation.machine.faults import Faults
from geartrain_simulation.machine.journal import Journal, Tail, Transactions, framed, records_in
from geartrain_simulation.machine.platter import Platter
from geartrain_simulation.machine.violation import tell
from geartrain_simulation.machine.world import Process

_DECODERS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "create": msgspec.msgpack.Decoder(tuple[str, str, bytes]),
    "commit": msgspec.msgpack.Decoder(SpoolCommit),
    "trim": msgspec.msgpack.Decoder(int),
    "flip": msgspec.msgpack.Decoder(SpooledBatch),
    "renew": msgspec.msgpack.Decoder(tuple[bytes, list[SpooledBatch], SpoolCommit]),
}
_encode = msgspec.msgpack.Encoder().encode


def record_of(name: str, what: Any) -> bytes:
    """A transaction as the file has it."""
    return name.encode() + b":" + _encode(what)


class SpoolBook:
    """What one (device, flow) has committed. `on_commit` is told of each commit and `on_renew` of the batches
    of each new epoch once they are durable, `on_trim` of (epoch, through_seq) before a trim.
    """

    def __init__(self, platter: Platter | None = None) -> None:
        """`platter`: the disk that it lies on."""
        self.platter = platter if platter is not None else Platter(Random(0))
        self.tail = Tail()
        self.owner: Process | None = None
        self.told = 0
        """Transactions that the hooks have heard of."""
        self.on_trim: Callable[[bytes, int], None] = lambda epoch, through_seq: None
        self.on_commit: Callable[[SpoolCommit], None] = lambda change: None
        self.on_renew: Callable[[Sequence[SpooledBatch]], None] = lambda batches: None
        self._begin()

    def _begin(self) -> None:
        self.device = self.flow = ""
        self.epoch = b""
        self.digest = self.acked_digest = bytes(DIGEST_BYTES)
        self.last_seq = self.acked_seq = 0
        self.batches: dict[int, SpooledBatch] = {}
        self.former_batches = self.batches
        """Those of the epoch before."""
        self.positions: dict[tuple[str, str], SplitProgress] = {}
        self.former_positions = self.positions
        """Those before the last commit."""
        self.state: dict[tuple[str, bytes], bytes] = {}
        self.counters: dict[str, int] = {}
        self._done = 0

    def load(self, records: Sequence[bytes]) -> None:
        """Hold what the disk holds; the hooks hear of what was made durable before its caller heard."""
        self._begin()
        for record in records:
            name, _, body = record.partition(b":")
            self.do(name.decode(), _DECODERS[name.decode()].decode(body))
        self.told = self._done

    def do(self, name: str, what: Any) -> None:
        """Carry out a transaction that is on the disk."""
        hooks, self._done = self._done >= self.told, self._done + 1
        if name == "create":
            self.device, self.flow, self.epoch = what
        elif name == "commit":
            self._commit(what)
            if hooks:
                tell(self.on_commit, what)
        elif name == "flip":
            self.batches[what.seq] = what
        elif name == "trim":
            if hooks:
                tell(self.on_trim, self.epoch, what)
            self._trim(what)
        else:
            self._renew(*what)
            if hooks:
                tell(self.on_renew, what[1])
        self.told = max(self.told, self._done)

    def put_back(self, files: Mapping[str, bytes]) -> None:
        """Put files in the place of all that the disk holds, durably: a backup, or nothing."""
        self.platter.restore(files)
        self.load(records_in(files.get("spool.journal", b"")))

    def flip(self, random: Random) -> int:
        """Flip a bit of the rows of a batch where it lies, which no checksum below the batch's own digest
        finds; returns its seq, 0 where there is none.
        """
        held = [batch for _, batch in sorted(self.batches.items()) if batch.count and batch.body]
        if not held:
            return 0
        batch = random.choice(held)
        bit, body = random.randrange(8 * len(batch.body)), bytearray(batch.body)
        body[bit // 8] ^= 1 << bit % 8
        flipped = replace(batch, body=bytes(body))
        record = framed(b"flip:" + _encode(flipped))
        self.platter.put_at("spool.journal", self.tail.at, record)
        self.platter.sync("spool.journal")
        self.tail.at += len(record)
        self.do("flip", flipped)
        return batch.seq

    def image(self) -> SpoolImage:
        """What a store gives when it is opened."""
        spooled_bytes = sum(batch.size for batch in self.batches.values())
        marks = (self.epoch, self.last_seq, self.acked_seq, self.digest, spooled_bytes)
        kept = (dict(self.positions), dict(self.state), dict(self.counters))
        return SpoolImage(*marks, *kept, self.acked_digest)

    def check(self, change: SpoolCommit) -> None:
        """Raise `SpoolError` when the batches of a commit do not follow on the last, or its gaps leave it."""
        for seq, batch in enumerate(change.batches, self.last_seq + 1):
            if batch.seq != seq:
                raise SpoolError(f"batch {batch.seq} does not follow on {seq - 1}")
        for gap in change.gaps:
            if not 1 <= gap.first_seq <= gap.seq <= self.last_seq + len(change.batches):
                raise SpoolError(f"a gap from {gap.first_seq} to {gap.seq} leaves what is held")

    def _commit(self, change: SpoolCommit) -> None:
        self.former_positions = dict(self.positions)
        for batch in change.batches:
            self.batches[batch.seq] = batch
            self.last_seq, self.digest = batch.seq, batch.digest
        for gap in change.gaps:
            replaced = [seq for seq in self.batches if gap.first_seq <= seq <= gap.seq]
            for seq in replaced:
                del self.batches[seq]
            if replaced:
                self.batches[gap.seq] = gap
        self._write_rest(change)

    def _write_rest(self, change: SpoolCommit) -> None:
        self.positions.update(change.positions)
        self.counters.update(change.counters)
        for at, value in change.state.items():
            if value is None:
                self.state.pop(at, None)
            else:
                self.state[at] = value

    def _trim(self, through_seq: int) -> None:
        if through_seq > self.acked_seq:
            self.acked_seq = through_seq
            self.acked_digest = self.batches[through_seq].digest if through_seq in self.batches else b""
        self.batches = {seq: batch for seq, batch in self.batches.items() if seq > through_seq}

    def made(self, rewrite: Rewrite) -> list[SpooledBatch]:
        """The batches of a new epoch; raises `SpoolError` when they are not numbered from 1."""
        held = [batch for _, batch in sorted(self.batches.items())]
        made = list(first_batches(rewrite))
        made += [batch for batch in map(rewrite, held) if batch is not None]
        if [batch.seq for batch in made] != list(range(1, len(made) + 1)):
            raise SpoolError("the batches of a new epoch are not numbered from 1")
        return made

    def _renew(self, epoch: bytes, made: Sequence[SpooledBatch], change: SpoolCommit) -> None:
        self.former_batches = self.batches
        self.epoch, self.batches = epoch, {batch.seq: batch for batch in made}
        self.last_seq, self.acked_seq = len(made), 0
        self.digest, self.acked_digest = made[-1].digest, bytes(DIGEST_BYTES)
        self._write_rest(change)


class SimSpoolStore:
    """`geartrain.ports.SpoolStore` of one process."""

    def __init__(self, process: Process, book: SpoolBook, faults: Faults | None = None) -> None:
        self._process, self._book = process, book
        self._journal = Journal(process, "spool", book.platter, book.tail, faults)
        self._transactions = Transactions(process, "spool", faults, SpoolError)

    async def open(self, device: str, flow: str, fresh_epoch: bytes) -> SpoolImage:
        """Open or create; raises `SpoolError` for another device or flow, or while it is in use."""

        def take() -> SpoolImage:
            book = self._book
            if book.owner is not None and book.owner.alive and book.owner is not self._process:
                raise SpoolError(f"the spool is in use by {book.owner.name}")
            book.load(self._journal.recover())
            if book.epoch and (book.device, book.flow) != (device, flow):
                raise SpoolError(f"the spool belongs to device {book.device}, flow {book.flow}")
            if not book.last_seq:
                self._write("create", (device, flow, fresh_epoch))
            book.owner = self._process
            self._transactions.is_open = True
            return book.image()

        return await self._transactions.run("open", take, f"{device} {flow}", syncs=True)

    def _write(self, name: str, what: Any) -> None:
        self._journal.append(record_of(name, what))
        self._book.do(name, what)

    async def commit(self, change: SpoolCommit) -> None:
        """Write in one durable transaction."""

        def put() -> None:
            self._book.check(change)
            self._write("commit", change)

        detail = f"{len(change.batches)} batches after {self._book.last_seq}"
        await self._transactions.run("commit", put, detail, syncs=True)

    async def read(self, after_seq: int, limit: int) -> list[SpooledBatch]:
        """Up to `limit` committed batches with seq > `after_seq`, in seq order."""

        def found() -> list[SpooledBatch]:
            return [batch for seq, batch in sorted(self._book.batches.items()) if seq > after_seq][:limit]

        return await self._transactions.run("read", found, f"{after_seq} {limit}")

    async def cells(self, step: str, keys: Sequence[bytes] | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` committed cells of a step, in the order of their keys; of `keys` where some are
        given.
        """

        def found() -> list[tuple[bytes, bytes]]:
            of_step = sorted((key, cell) for (one, key), cell in self._book.state.items() if one == step)
            return [one for one in of_step if keys is None or one[0] in keys][:limit]

        return await self._transactions.run("cells", found, step)

    def kept(self) -> Mapping[str, StateSize]:
        """How much the last commit has left of each step's state."""
        found: dict[str, StateSize] = {}
        for (step, _), cell in self._book.state.items():
            former = found.get(step, StateSize())
            found[step] = StateSize(former.cells + 1, former.bytes + len(cell))
        return found

    async def trim(self, through_seq: int) -> None:
        """Delete batches with seq <= `through_seq` and remember it as acked."""

        def cut() -> None:
            if through_seq > self._book.last_seq:
                raise SpoolError(f"cannot trim {through_seq}, the last batch is {self._book.last_seq}")
            self._write("trim", through_seq)

        await self._transactions.run("trim", cut, str(through_seq), syncs=True)

    async def renew(self, epoch: bytes, rewrite: Rewrite, change: SpoolCommit) -> SpoolTip:
        """Begin a new epoch in one transaction."""

        def begin() -> SpoolTip:
            made = self._book.made(rewrite)
            self._write("renew", (epoch, made, change))
            return SpoolTip(len(made), made[-1].digest, sum(batch.size for batch in made))

        return await self._transactions.run("renew", begin, epoch.hex(), syncs=True)

    async def close(self) -> None:
        """Release the store; a second call does nothing."""
        self._transactions.is_open = False
        if self._book.owner is self._process:
            self._book.owner = None
