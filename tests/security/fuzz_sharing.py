"""What one app says to another of a sensor that both read, as bytes on a socket: hellos and items.

One of the readers of `tests.security.fuzz`. Both ends are the real ones; only the socket is in memory.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from random import Random
from typing import Any

import msgspec

from geartrain_devices.live import Framed
from geartrain_devices.serial_lines import SerialLines
from geartrain_devices.sharing import ExclusiveSplit, Hello, _framed, _Links, _NonsenseError, _Sharing
from tests.security.measured import Memory, Outcome, fast_folder, run_inline
from tests.security.spoil import SEED, spoiled

_HEADER = struct.Struct(">II")
_READS = 256


class _Writer:
    """The writing half of a socket that nobody reads."""

    def __init__(self) -> None:
        self.transport = self
        self.closed = False

    def write(self, data: bytes) -> None:
        """Nobody reads it."""

    async def drain(self) -> None:
        """There is always room."""

    def close(self) -> None:
        """Hang up."""
        self.closed = True

    def abort(self) -> None:
        """Hang up."""
        self.closed = True


def sharing(numbers: range) -> Outcome:
    """Spoiled bytes at the owner of a sensor, and at an app that hears it from another."""
    with fast_folder() as folder:
        logging.disable(logging.WARNING)
        try:
            return run_inline(_sharing(numbers, folder))
        finally:
            logging.disable(logging.NOTSET)


async def _sharing(numbers: range, folder: str) -> Outcome:
    async def listen(hear: Any) -> None:
        await asyncio.Event().wait()

    source = SerialLines[Any](port=f"{folder}/port")
    split = ExclusiveSplit("source a", "d", "a", source, Framed, listen, lambda item: (0, item.raw))
    reader = _Sharing(split, folder=folder, app="reader")  # type: ignore[arg-type]
    items = [msgspec.msgpack.encode(Framed(b"+ 12.5 kg", said)) for said in ("", "it is no line")]
    good = [_HEADER.pack(len(one), lost) + one for one in items for lost in (0, 7)]
    whole = b"".join(good)
    hello = _framed(Hello("owner", reader._hello.options))
    memory, refused = Memory(numbers), 0
    for number in numbers:
        memory.look(number)
        rng = Random(SEED + number)
        stream = asyncio.StreamReader(limit=1 << 18)
        if number % 2:
            stream.feed_data(spoiled(rng, [whole, *good]))
            stream.feed_eof()
            taken = await _heard(reader, split, stream)
        else:
            stream.feed_data(spoiled(rng, [hello]))
            stream.feed_eof()
            taken = await _served(_Links(reader._hello), stream)
        refused += not taken
        if number % _READS == 0:
            await _emptied(split)
    return Outcome("sharing", len(numbers) - refused, refused, memory.growth_bytes())


async def _heard(reader: Any, split: Any, stream: asyncio.StreamReader) -> bool:
    """Whether an app takes all that it hears."""
    try:
        await reader._hear_all(stream, "owner")
    except asyncio.IncompleteReadError as error:
        return not error.partial
    except _NonsenseError:
        return False
    return True


async def _served(links: _Links, stream: asyncio.StreamReader) -> bool:
    """Whether the owner takes an app for a reader: it sends to it until it ends."""
    writer: Any = _Writer()
    link_opened = False

    async def watch() -> None:
        nonlocal link_opened
        while not writer.closed:
            link_opened |= any(link._is_open for link in links._links.values())
            await asyncio.sleep(0)

    await asyncio.gather(links.serve(stream, writer), watch())
    return link_opened


async def _emptied(split: Any) -> None:
    """Take what was heard, as the agent does; its driver is none."""
    if split._task is None:
        split._task = asyncio.ensure_future(asyncio.Event().wait())
    while (await split.read(0, 10_000)).position:
        pass
