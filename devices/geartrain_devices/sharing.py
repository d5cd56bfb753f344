"""One owner of a sensor, several readers: apps of one device that are processes of their own.

Between a driver and `LiveBufferSplit`. The first that locks a file named after the sensor opens it, and
serves the others over a socket beside that file. Guarantees: the lock ends with its process, and the next one
opens the sensor. What waits for a reader is bounded; what it has no room for is counted and told to it, and
stops nobody. What comes over a socket is data of another app: it is capped before it is decoded.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import logging
import os
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Generic, Protocol, TypeVar

import msgspec

from geartrain.adapters.file_lock import open_lock, try_lock
from geartrain.concurrency.cancelling import end_task
from geartrain.errors import SourceError
from geartrain.source import Source
from geartrain_devices.live import LiveBufferSplit

_LOG = logging.getLogger("geartrain.devices")

READERS_MAX = 16
WAITING_MAX = 1_000
"""Items that wait for one reader, at the most."""
WAITING_BYTES_MAX = 1 << 20
"""Bytes of them, unless it is one item alone."""
ITEM_BYTES_MAX = 8 << 20
_HELLO_BYTES_MAX = 1 << 18
_HELLO_S = 5.0
_LOOK_S = 1.0
_PAUSE_S, _PAUSE_S_MAX = 0.02, 1.0
_HEADER = struct.Struct(">II")
"""Before each item: its bytes, 0 for none, and how many before it were dropped for this reader."""
_SIZE = struct.Struct(">I")
_LOST_MAX = (1 << 32) - 1
_PATH_BYTES_MAX = 100
"""Of a socket's path; a longer one is reached through its open folder."""


class Item(Protocol):
    """What a driver hears, before it is a record: a struct of msgspec."""

    @property
    def raw(self) -> bytes:
        """Its bytes, which stand in a dead letter."""
        ...


I = TypeVar("I", bound=Item)  # noqa: E741


class Hello(msgspec.Struct, frozen=True):
    """What owner and reader say first. options: those by which the sensor is opened."""

    app: Annotated[str, msgspec.Meta(max_length=256)]
    options: dict[str, Any]


class _NonsenseError(Exception):
    """Another app has sent what no app of this version sends."""


class ExclusiveSplit(LiveBufferSplit, Generic[I]):
    """A split of what only one may open. Alone it opens it itself."""

    def __init__(
        self,
        where: str,
        device: str,
        step: str,
        source: Source[Any],
        items: type[I],
        listen: Callable[[Callable[[I], None]], Awaitable[None]],
        read: Callable[[I], tuple[int, Any]],
        *,
        out_of_orderness_us: int = 0,
    ) -> None:
        """where: how sentences call the source; items: the type of what is heard; listen: opens the sensor
        and hands over what it says until cancelled; read: makes the event time, microseconds, and the record
        of an item, and raises `ValueError` with a sentence.
        """
        super().__init__(device, step, lambda _: listen(self.hear), out_of_orderness_us=out_of_orderness_us)
        self.where, self.source, self.items = where, source, items
        self.listen, self._read_item = listen, read

    def hear(self, item: I) -> None:
        """Take one item."""
        self.push(item.raw, lambda _: self._read_item(item))

    def share(self, folder: Path, app: str) -> None:
        """Before the first read: share the sensor with the other apps that have this folder."""
        sharing = _Sharing(self, folder, app)
        self._drive = lambda _: sharing.run()


class _Sharing(Generic[I]):
    """One app's part: it owns the sensor or reads what the owner hears."""

    def __init__(self, split: ExclusiveSplit[I], folder: Path, app: str) -> None:
        self._split, self._folder = split, folder
        self._hello = Hello(app, _options(split.source))
        self._items = msgspec.msgpack.Decoder(split.items)

    async def run(self) -> None:
        """Hear the sensor until cancelled; raises `SourceError` where the owner opens it otherwise."""
        pause_s = _PAUSE_S
        while True:
            key = self._key()
            with _locked(self._folder / f"{key}.lock") as is_ours:
                if is_ours:
                    with _address(self._folder, key) as address:
                        await self._own(key, address)
                    pause_s = _PAUSE_S
            if not is_ours and await self._follow(key):
                pause_s = _PAUSE_S
                continue
            await asyncio.sleep(pause_s)
            if pause_s < _PAUSE_S_MAX <= 2 * pause_s:
                _LOG.warning(
                    "%s: another app has locked it and does not say what it hears", self._split.where
                )
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _key(self) -> str:
        """The sensor, by whatever name it is called; it is another when it is plugged in elsewhere."""
        named = [str(getattr(self._split.source, name)) for name in self._split.source.exclusive]
        real = [os.path.realpath(name) if name.startswith("/") else name for name in named]
        return hashlib.sha256("\0".join(real).encode()).hexdigest()[:24]

    async def _own(self, key: str, address: str) -> None:
        """Open the sensor and serve the others, until it is another; raises what the driver raises."""
        links = _Links(self._hello)

        def hear(item: I) -> None:
            self._split.hear(item)
            links.tell(item)

        with suppress(FileNotFoundError):
            os.unlink(address)  # noqa: PTH108 - of an owner that is gone
        server = await asyncio.start_unix_server(links.serve, path=address, limit=_HELLO_BYTES_MAX)
        listening = asyncio.ensure_future(self._split.listen(hear))
        try:
            while not listening.done() and self._key() == key:
                await asyncio.wait([listening], timeout=_LOOK_S)
            if listening.done():
                listening.result()
        finally:
            server.close()
            links.close()
            await end_task(listening)

    async def _follow(self, key: str) -> bool:
        """Hear what the owner hears until it is gone; False where there is none to hear."""
        try:
            with _address(self._folder, key) as address:
                stream, writer = await asyncio.open_unix_connection(address)
        except OSError:
            return False
        owner = ""
        try:
            async with asyncio.timeout(_HELLO_S):
                writer.write(_framed(self._hello))
                theirs = await _hello_of(stream)
            if problem := _difference(self._hello, theirs):
                named = " and ".join(self._split.source.exclusive)
                raise SourceError(
                    f"{self._split.where}: {problem}, and both have one {named}: give both the same"
                )
            owner = theirs.app
            await self._hear_all(stream, owner)
        except (OSError, EOFError, _NonsenseError, TimeoutError) as error:
            if isinstance(error, _NonsenseError):
                _LOG.warning("%s: app %s, which has opened it, sends nonsense", self._split.where, owner)
                await asyncio.sleep(_PAUSE_S_MAX)
        finally:
            writer.close()
        if owner:
            self._split.push(b"", lambda _: _missed(owner))
        return bool(owner)

    async def _hear_all(self, stream: asyncio.StreamReader, owner: str) -> None:
        while True:
            size, lost = _HEADER.unpack(await stream.readexactly(_HEADER.size))
            if size > ITEM_BYTES_MAX:
                raise _NonsenseError
            body = await stream.readexactly(size)
            if lost:
                self._split.lost(
                    lost, f"because this app did not keep up with app {owner}, which has opened it"
                )
            if size:
                try:
                    item = self._items.decode(body)
                except (msgspec.MsgspecError, RecursionError, UnicodeError):
                    raise _NonsenseError from None
                self._split.hear(item)


class _Links:
    """The owner's side of all readers."""

    def __init__(self, hello: Hello) -> None:
        self._hello = hello
        self._links = dict[asyncio.StreamWriter, _Link]()

    def tell(self, item: Item) -> None:
        """Have every reader get an item, or count it for those that are behind."""
        if self._links:
            body = msgspec.msgpack.encode(item)
            for link in self._links.values():
                link.tell(body)

    def close(self) -> None:
        """Leave all readers."""
        for writer in self._links:
            writer.transport.abort()

    async def serve(self, stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One reader, until it is gone."""
        if len(self._links) >= READERS_MAX:
            _LOG.warning("app %s: it has %d readers of one sensor: no more", self._hello.app, READERS_MAX)
            writer.transport.abort()
            return
        link = self._links[writer] = _Link(writer)
        watching: asyncio.Future[bytes] | None = None
        try:
            async with asyncio.timeout(_HELLO_S):
                writer.write(_framed(self._hello))
                theirs = await _hello_of(stream)
            if _difference(self._hello, theirs):
                await writer.drain()
                return  # the reader says it: it has the same two
            watching = asyncio.ensure_future(stream.read(1))  # it has nothing more to say: this is its end
            watching.add_done_callback(link.end)
            await link.send()
        except (OSError, EOFError, _NonsenseError, TimeoutError):
            pass
        finally:
            del self._links[writer]
            if watching is not None:
                watching.cancel()
            writer.close()


class _Link:
    """What waits for one reader."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._bytes = self._lost = 0
        self._is_open, self._is_over = False, False
        self._news = asyncio.Event()

    def tell(self, body: bytes) -> None:
        """Take an item for it, or count it as lost."""
        if not self._is_open:
            return
        fits = len(self._waiting) < WAITING_MAX and self._bytes + len(body) <= WAITING_BYTES_MAX
        if len(body) > ITEM_BYTES_MAX or not (fits or not self._waiting):
            self._lost = min(self._lost + 1, _LOST_MAX)
        else:
            self._waiting.append((self._lost, body))
            self._bytes += len(body)
            self._lost = 0
        self._news.set()

    def end(self, said: asyncio.Future[bytes]) -> None:
        """The reader is gone, or says more than it may."""
        if not said.cancelled():
            said.exception()  # which is how a connection may end
        self._is_over = True
        self._writer.transport.abort()
        self._news.set()

    async def send(self) -> None:
        """Send from now on until `end`; raises `OSError` when the reader is gone."""
        self._is_open = True
        while not self._is_over:
            while self._waiting:
                lost, body = self._waiting.popleft()
                self._bytes -= len(body)
                self._writer.write(_HEADER.pack(len(body), lost) + body)
                await self._writer.drain()
            if self._lost:
                self._writer.write(_HEADER.pack(0, self._lost))
                self._lost = 0
            self._news.clear()
            await self._news.wait()


def _options(source: Source[Any]) -> dict[str, Any]:
    """The options by which a source opens its sensor, as they are compared."""
    found = {one.name: getattr(source, one.name) for one in dataclasses.fields(source)}
    apart = {*source.exclusive, *source.each_its_own}
    opened = {name: value for name, value in found.items() if name not in apart}
    plain: dict[str, Any] = msgspec.to_builtins({"source": type(source).__name__} | opened)
    return plain


def _difference(mine: Hello, theirs: Hello) -> str:
    """How the two open one sensor otherwise, as the beginning of a sentence; empty where they agree."""
    for name in sorted({*mine.options, *theirs.options}):
        ours, other = mine.options.get(name), theirs.options.get(name)
        if type(ours) is not type(other) or ours != other:
            return (
                f"app {theirs.app} opens it with {name} = {_shown(other)}, app {mine.app} with "
                f"{name} = {_shown(ours)}"
            )
    return ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _missed(owner: str) -> tuple[int, Any]:
    raise ValueError(
        f"app {owner} does not have it open any more: what was said until it is open again is missing"
    )


def _framed(hello: Hello) -> bytes:
    body = msgspec.msgpack.encode(hello)
    return _SIZE.pack(len(body)) + body


async def _hello_of(stream: asyncio.StreamReader) -> Hello:
    """What the other one says first; raises `_NonsenseError`."""
    (size,) = _SIZE.unpack(await stream.readexactly(_SIZE.size))
    if size > _HELLO_BYTES_MAX:
        raise _NonsenseError
    try:
        return msgspec.msgpack.decode(await stream.readexactly(size), type=Hello)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raise _NonsenseError from None


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Hold the lock, if it is free: whether it is held. It ends with the process at the latest."""
    handle = open_lock(path)
    try:
        yield try_lock(handle)
    finally:
        os.close(handle)


@contextmanager
def _address(folder: Path, key: str) -> Iterator[str]:
    """The path of the socket, which the system limits to some 100 bytes."""
    path = str(folder / f"{key}.sock")
    if len(os.fsencode(path)) <= _PATH_BYTES_MAX:
        yield path
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{key}.sock"
    finally:
        os.close(handle)
