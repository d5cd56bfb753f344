"""Good bytes spoiled at random and thrown at what reads them: `python -m tests.security.fuzz COUNT`.

Four readers: the decoders of the wire, a spool that is opened, publishes that ingest takes, and a page's
requests. Guarantees: input `n` of a reader is the same in every run; a reader passes if nothing but its own
errors came out, and if memory did not grow by more than 64 MiB from when it was warm.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from aiohttp import web

from geartrain.errors import SpoolError, WireError
from geartrain.wire.body import decode_rows
from geartrain.wire.codec import decode_control, decode_envelope, decode_gap, decode_header, decode_schemas
from geartrain_cloud.ingest.counters import Counter
from geartrain_cloud.pages.server import make_app, runner_of
from geartrain_edge.spool import SqliteSpool
from geartrain_examples.stocks.demo import DEMO
from tests.cloud.fleet import TestDevice, make_config, running
from tests.pages.conftest import tables_of, write_prices
from tests.proofs.test_bit_flips_spool import make_spool
from tests.wire import golden_batches as golden

GROWTH_BYTES_MAX = 64 << 20
WARM_SHARE = 0.2
"""How much of a run fills caches, before memory is compared."""
SEED = 20_260_101
_REST = b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
_LAST = b"\r\n\r\nGET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_INTERESTING = (
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\xff\xff\xff\xff\x0f",
    b"\xff" * 9 + b"\x01",
    b"%00",
    b"../",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the inputs of a reader: taken, or refused; and how much memory grew."""

    reader: str
    taken: int
    refused: int
    growth_bytes: int


class Memory:
    """This process's memory, from when it is warm."""

    def __init__(self, count: int) -> None:
        self._process, self._warm_at, self._warm_bytes = psutil.Process(), int(count * WARM_SHARE), 0

    def look(self, number: int) -> None:
        """Take the measure once, at the input from which on it is warm."""
        if number == self._warm_at:
            self._warm_bytes = self._process.memory_info().rss

    def growth_bytes(self) -> int:
        """How much it has grown since."""
        return int(self._process.memory_info().rss) - self._warm_bytes


def spoiled(seeds: list[bytes], count: int) -> Iterator[tuple[int, bytes]]:
    """`count` inputs: good bytes, bits flipped, parts cut out, doubled, exchanged or put in; and noise."""
    for number in range(count):
        rng = random.Random(SEED + number)
        if rng.random() < 0.05:
            yield number, rng.randbytes(rng.randrange(200))
            continue
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 8))):
            _spoil(rng, data, seeds)
        yield number, bytes(data)


def _spoil(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    at, way = rng.randrange(len(data) + 1), rng.randrange(6)
    if way == 0 and data:
        data[at % len(data)] ^= 1 << rng.randrange(8)
    elif way == 1:
        del data[at:]
    elif way == 2:
        del data[at : at + rng.randrange(1, 16)]
    elif way == 3:
        data[at:at] = rng.choice(_INTERESTING)
    elif way == 4:
        data[at:at] = data[at : at + rng.randrange(1, 64)]
    else:
        other = rng.choice(seeds)
        data[at:] = other[min(at, len(other)) :]


def kept(name: str) -> bytes:
    """A golden file."""
    return (golden.FOLDER / f"{name}.bin").read_bytes()


def wire(count: int) -> Outcome:
    """Everything that is decoded from the wire."""
    files = sorted(golden.FOLDER.glob("*.bin"))
    decoders: list[Callable[[bytes], object]] = [
        decode_header,
        decode_envelope,
        decode_control,
        decode_schemas,
        lambda data: decode_gap(golden.GAP_HEADER, data),
        lambda data: decode_rows(golden.QUOTE, golden.FEW_HEADER, data),
        lambda data: decode_rows(golden.QUOTE, golden.MANY_HEADER, data),
    ]
    memory, refused = Memory(count), 0
    for number, data in spoiled([path.read_bytes() for path in files], count):
        memory.look(number)
        try:
            decoders[number % len(decoders)](data)
        except WireError:
            refused += 1
    return Outcome("wire", count - refused, refused, memory.growth_bytes())


def spool(count: int) -> Outcome:
    """A spool's file, spoiled, opened and read."""
    with tempfile.TemporaryDirectory() as folder:
        made = make_spool(Path(folder))
        return asyncio.run(_spool(count, made.path, made.path.read_bytes()))


async def _spool(count: int, path: Path, whole: bytes) -> Outcome:
    memory, refused = Memory(count), 0
    for number, data in spoiled([whole], count):
        memory.look(number)
        _replace(path, data)
        opened = SqliteSpool(path)
        try:
            await opened.open("d1", "fleet", b"epoch--2")
            await opened.read(0, 100)
        except SpoolError:
            refused += 1
        finally:
            with suppress(SpoolError):
                await opened.close()
    return Outcome("spool", count - refused, refused, memory.growth_bytes())


def _replace(path: Path, data: bytes) -> None:
    for name in ("", "-wal", "-shm"):
        Path(f"{path}{name}").unlink(missing_ok=True)
    path.write_bytes(data)


def publishes(count: int) -> Outcome:
    """Publishes that ingest takes, on its own files."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_publishes(count, Path(folder)))


async def _publishes(count: int, folder: Path) -> Outcome:
    device, memory = TestDevice(), Memory(count)
    seeds = [
        device.hello(),
        device.schemas(),
        device.quotes(1.0, 2.0),
        device.quotes(3.0),
        device.advance(99),
    ]
    topics = [device.topic] * 6 + ["geartrain/v1/zz/device-1/stocks/up", "a/\x1b[2J/b", device.topic[:-1]]
    config = make_config(folder / "log", quarantine_batches_max=1_000, quarantine_bytes_max=1 << 20)
    async with running(config) as run:
        for number, data in spoiled(seeds, count):
            memory.look(number)
            run.net.deliver(topics[number % len(topics)], data)
            if number % 200 == 199:
                await _taken(run.ingest, number + 1)
                run.net.sent.clear()  # what this test's own network keeps is not ingest's memory
                run.journal.clear()
        await _taken(run.ingest, count)
        refusing = (Counter.FOREIGN_TOPICS, Counter.MALFORMED_BATCHES, Counter.IDENTITY_MISMATCHES)
        refused = sum(run.ingest.counter(one) for one in refusing)
    return Outcome("publishes", count - refused, refused, memory.growth_bytes())


async def _taken(ingest: Any, count: int) -> None:
    async with asyncio.timeout(300):
        while ingest.counter(Counter.BATCHES_RECEIVED) < count:  # noqa: ASYNC110 - nothing tells of a counter
            await asyncio.sleep(0.001)


def requests(count: int) -> Outcome:
    """Requests to a page, as bytes on a socket."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_requests(count, Path(folder)))


async def _requests(count: int, folder: Path) -> Outcome:
    prices = write_prices(folder / "prices.csv", [("A", "2008-01-01", 2.0), ("A", "2008-01-02", 1.0)])
    runner = runner_of(make_app(DEMO.page, await asyncio.to_thread(tables_of, prices, folder)))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port, memory, refused = runner.addresses[0][1], Memory(count), 0
    paths = (b"/", b"/api/symbols", b"/api/report/A?period=2008", b"/page.js", b"/api/%2e%2e/x?%F0=%")
    seeds = [b"GET " + path + _REST for path in paths] + [b"POST /api/symbols" + _REST]
    try:
        for number, data in spoiled(seeds, count):
            memory.look(number)
            status = await _ask(port, data)
            assert status != 500, f"input {number}: the page failed to answer {data!r}"
            refused += status != 200
    finally:
        await runner.cleanup()
    return Outcome("requests", count - refused, refused, memory.growth_bytes())


async def _ask(port: int, data: bytes) -> int:
    """The first status that a page answers to bytes; 0 where it just closes the connection.

    What ends the bytes makes a request of whatever is unfinished before it.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data + _LAST)
        async with asyncio.timeout(60):
            words = (await reader.readline()).split()
    except ConnectionError:
        return 0
    finally:
        writer.close()
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0


READERS: dict[str, Callable[[int], Outcome]] = {
    "wire": wire,
    "spool": spool,
    "publishes": publishes,
    "requests": requests,
}


def main(arguments: list[str] | None = None) -> int:
    """Fuzz, and print a line for each reader; 1 if one grew too much."""
    parser = argparse.ArgumentParser(description="Throw spoiled bytes at whatever reads bytes of others.")
    parser.add_argument("count", type=int, help="inputs for each reader")
    parser.add_argument("--only", choices=READERS, help="one reader")
    options = parser.parse_args(arguments)
    fat = 0
    for name in [options.only] if options.only else READERS:
        found = READERS[name](options.count)
        fat |= found.growth_bytes > GROWTH_BYTES_MAX
        grown = found.growth_bytes / (1 << 20)
        print(
            f"{name:10} {found.taken:>10,} taken {found.refused:>10,} refused {grown:>8.1f} MiB more",
            flush=True,
        )
    return fat


if __name__ == "__main__":
    sys.exit(main())
