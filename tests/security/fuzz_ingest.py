"""Publishes that ingest takes, on its own files: spoiled as a whole, and in parts that all proofs fit again.

One of the readers of `tests.security.fuzz`. The second kind stands at its seq under the right digest, so
that it is appended, and what is spoiled in it is decoded. Every `EPOCH_INPUTS` inputs another device begins
anew, because some say that nothing more will come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from msgspec.structs import replace

from geartrain.errors import WireError
from geartrain.wire.codec import decode_header, encode_envelope, encode_gap
from geartrain.wire.digest import FIRST_DIGEST, next_digest
from geartrain.wire.envelope import Ack, BatchKind, Control, Envelope, Header, Offer, Welcome
from geartrain_cloud.ingest.counters import Counter
from tests.cloud.fleet import QUOTE, Running, TestDevice, make_config, running
from tests.security.measured import Memory, Outcome, fast_folder
from tests.security.spoil import SEED, shaken, spoiled
from tests.waiting import WAIT_S

AT_ONCE = 50
_PATIENCE_S = 0.25
EPOCH_INPUTS = 500
DEVICES = tuple(f"device-{n}" for n in range(8))
_FOREIGN = ("geartrain/v1/zz/device-1/stocks/up", "a/\x1b[2J/b", "geartrain/v1/00/stranger/stocks/up", "")


def publishes(numbers: range) -> Outcome:
    """Publishes that ingest takes, on its own files."""
    logging.getLogger("geartrain").setLevel(logging.CRITICAL)
    with fast_folder() as folder:
        return asyncio.run(_publishes(numbers, Path(folder)))


async def _publishes(numbers: range, folder: Path) -> Outcome:
    memory = Memory(numbers)
    config = make_config(folder / "log", DEVICES, quarantine_batches_max=1_000, quarantine_bytes_max=1 << 20)
    async with running(config) as run:
        session = Session(run)
        for number in numbers:
            memory.look(number)
            rng = Random(SEED + number)
            fresh = number == numbers.start or number % EPOCH_INPUTS == 0
            if fresh or (number % AT_ONCE == 0 and not await session.is_followed()):
                await session.begin(number)
            if rng.random() < 0.5:
                topic = rng.choice(_FOREIGN) if rng.random() < 0.02 else session.device.topic
                session.deliver(topic, spoiled(rng, session.good))
            else:
                session.deliver(session.device.topic, session.fitting(rng))
            if number % AT_ONCE == AT_ONCE - 1:
                await session.taken()
        await session.taken()
        refusing = (Counter.FOREIGN_TOPICS, Counter.MALFORMED_BATCHES, Counter.IDENTITY_MISMATCHES)
        refused = sum(run.ingest.counter(one) for one in refusing)
        # What is all refused before it is decoded tests little.
        assert run.ingest.counter(Counter.BATCHES_APPENDED) > len(numbers) // 10, session.begun
        assert run.ingest.counter(Counter.UNDECODABLE_BATCHES) > len(numbers) // 100
    return Outcome("publishes", len(numbers) - refused, refused, memory.growth_bytes())


class Session:
    """One device after the other, with the epoch, seq and digest that ingest expects of it next."""

    def __init__(self, run: Running) -> None:
        self._run, self._delivered, self.begun = run, 0, 0
        self.device, self.good = TestDevice(DEVICES[0]), list[bytes]()

    def deliver(self, topic: str, payload: bytes) -> None:
        """Bring a publish to ingest."""
        self._delivered += 1
        self._run.net.deliver(topic, payload)

    async def begin(self, number: int) -> None:
        """A new epoch of the next device, opened by as many hellos as it takes, with its schema."""
        await self.taken()
        self.begun += 1
        self.device = device = TestDevice(DEVICES[self.begun % len(DEVICES)], self.begun.to_bytes(8, "big"))
        ordinal = 1
        for _ in range(3):
            self.deliver(device.topic, device.hello(ordinal))
            answer = await self._answered(lambda one: isinstance(one, Welcome | Offer))
            assert answer is not None, f"input {number}: ingest does not answer a hello"
            if not isinstance(answer, Offer):
                break
            ordinal = answer.ordinal
        self.deliver(device.topic, device.schemas())
        self.good = [device.hello(ordinal), device.payload(1)]
        self.good += [device.quotes(1.0, 2.0), device.quotes(*range(40)), device.advance(99)]
        for payload in self.good[2:]:
            self.deliver(device.topic, payload)

    def fitting(self, rng: Random) -> bytes:
        """A publish whose header, body or both are spoiled, at the seq and with the digest that are due."""
        device, rows = self.device, rng.choice((1, 3, 40))
        before = (device.seq, device.digest)
        way = rng.random()
        if way < 0.1:
            device.schemas()
        elif way < 0.2:
            first = device.seq + 1
            gap = replace(device.header(BatchKind.GAP), first_seq=first, digest_after=device.digest)
            device.batch(gap, encode_gap([(first, "quotes", 3)]))
        else:
            device.quotes(*[rng.random() for _ in range(rows)])
        good = device.batches.pop(device.seq)
        header, body, seeds = good.header, good.body, [good.header, good.body]
        if rng.random() < 0.3:
            header = shaken(rng, header, seeds)
        if rng.random() < 0.8:
            body = shaken(rng, body, seeds)
        digest = next_digest(FIRST_DIGEST, header, body)
        due = self._due(header, before[0] + 1)
        if due is None:
            device.seq, device.digest = before
        elif due.kind is BatchKind.GAP:  # has a digest of its own, and says which one follows
            device.digest = due.digest_after
        else:
            device.digest = digest = next_digest(before[1], header, body)
        try:
            return encode_envelope(Envelope(header, body, digest, 1))
        except WireError:  # as large as only a foreign agent sends it
            device.seq, device.digest = before
            return header + body

    def _due(self, raw: bytes, seq: int) -> Header | None:
        """The header, if ingest will take a batch with it as the next."""
        try:
            header = decode_header(raw)
        except WireError:
            return None
        named = (header.device, header.flow, header.epoch, header.seq)
        due = (self.device.name, self.device.flow, self.device.epoch, seq)
        # One of another schema waits until that was asked for.
        return header if named == due and header.schema_id in ("", QUOTE.schema.schema_id) else None

    async def is_followed(self) -> bool:
        """Whether ingest has acked the last batch that it should have taken."""
        seq = self.device.seq
        acked = await self._answered(lambda one: isinstance(one, Ack) and one.seq == seq)
        self._run.net.sent.clear()  # what this test's own network keeps is not ingest's memory
        self._run.journal.clear()
        return acked is not None

    async def _answered(self, wanted: Callable[[Control], bool]) -> Control | None:
        epoch, found = self.device.epoch, list[Control]()

        def came() -> bool:
            found[:] = [one for _, one in self._run.net.sent if one.epoch == epoch and wanted(one)]
            return bool(found)

        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._run.net.until(came)
        return found[-1] if found else None

    async def taken(self) -> None:
        """Wait until ingest has looked at all that was delivered."""
        async with asyncio.timeout(WAIT_S):
            while self._run.ingest.counter(Counter.BATCHES_RECEIVED) < self._delivered:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.0005)
