"""Syslog that others send: RFC 5424 over UDP, TCP and TLS, as records.

A source without positions: senders neither wait for an answer nor send again. Guarantees: over TCP and TLS a
sender has to wait while the agent does not keep up. Over UDP what does not fit is lost, and a dead letter
says how many messages, those that the kernel dropped too, where it tells. Connections are bounded in number,
in all and of each sender, messages in bytes. A sender that floods leaves room for the others. What is no
message leaves as a dead letter with its sender and bytes.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec

from geartrain.adapters.tls import listening_context
from geartrain.declarations.options import Count, FilePath
from geartrain.errors import ConfigError, SourceError
from geartrain.records.event_time import format_time
from geartrain.source import Source, Split
from geartrain_devices.json_fields import JsonFields, now_us
from geartrain_devices.json_values import ValueOptions
from geartrain_devices.live import Framed, LiveBufferSplit
from geartrain_devices.no_record import NoRecordError, code_of
from geartrain_devices.syslog_frames import Stream, too_long
from geartrain_devices.syslog_messages import parse
from geartrain_devices.syslog_times import SentTime, SentTimes
from geartrain_devices.text_bytes import check_encoding
from geartrain_devices.written_times import NoTimeError

T = TypeVar("T")
_LOG = logging.getLogger("geartrain.devices")

_PAUSE_S_MAX = 30.0
_HANDSHAKE_S_MAX = 10.0
_READ_BYTES = 1 << 14
_DATAGRAM_BYTES_MAX = 1 << 16
_BUFFER_BYTES = 1 << 20
_TURN = 64
_LOOK_S = 1.0
_SO_MEMINFO, _MEMINFO = 55, struct.Struct("9I")  # of Linux; the last number is the drops of the socket

Off = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
"""The number of a port, 0 for none."""


class Syslog(ValueOptions, Source[T]):
    """Records of type `T` from the syslog messages that others send to this device.

    A message has the fields `facility`, `severity`, `host`, `app`, `process`, `message_id`, `message`, `data`
    (texts by element and parameter), `version` (0 for RFC 3164), `sent` (ISO 8601), `sender`, `port` and
    `transport`. What it leaves out is None. The options of `ValueOptions` say how its times and numbers are
    written.

    Args:
        host: the address to listen at; `0.0.0.0` or `::` for all.
        udp: the port for UDP, 0 for none.
        tcp: the port for TCP, 0 for none.
        tls: the port for TLS, 0 for none.
        certificate: the file of the certificate for TLS.
        key: the file of its private key.
        ca: the file of the authority that senders' certificates must be of; empty to ask for none.
        fields: paths by field, such as `data.origin.ip`, for those that are not found by their own name.
        time: whether the event time is when a message was `received`, or `sent`, as it says. Clocks of
            senders differ, so the latter needs `out_of_orderness_ms`. A message that does not say is of the
            time when it was received.
        connections_max: connections at one time; more are refused.
        sender_connections_max: of these, from one address.
        message_bytes_max: bytes of a message; a longer one is a dead letter with so many of its bytes.
        encoding: how the texts of messages are written, such as `cp1252`; empty for UTF-8.
        out_of_orderness_ms: how far a record may lie behind the newest and not be late.
    """

    pausable: ClassVar[bool] = False
    since_1970 = True

    host: str = "127.0.0.1"
    udp: Off = 0
    tcp: Off = 0
    tls: Off = 0
    certificate: FilePath = ""
    key: FilePath = ""
    ca: FilePath = ""
    fields: dict[str, str] = field(default_factory=dict)
    time: Literal["received", "sent"] = "received"
    connections_max: Annotated[int, msgspec.Meta(ge=1, le=1_024)] = 64
    sender_connections_max: Annotated[int, msgspec.Meta(ge=1, le=1_024)] = 16
    message_bytes_max: Annotated[int, msgspec.Meta(ge=480, le=1 << 16)] = 1 << 14
    encoding: str = ""
    out_of_orderness_ms: Count = 0

    def check_settings(self, step: str, out: type[T]) -> None:
        """As of a `Source`."""
        where = f"source {step}"
        if self.tls and self.tls == self.tcp:
            raise SourceError(f"{where}: tcp and tls are both port {self.tcp}: give each its own")
        check_encoding(where, self.encoding)
        JsonFields(where, out, "", self, self.fields)
        SentTimes(where, self)

    def open(self, device: str, step: str, out: type[T]) -> Sequence[Split]:
        """The one split of this device; raises `SourceError` naming the option."""
        where = f"source {step}"
        if not self.udp and not self.tcp and not self.tls:
            raise SourceError(
                f"{where} listens nowhere: set udp, tcp or tls under [sources.{step}] to a port"
            )
        self.check_settings(step, out)
        context = None
        if self.tls:
            try:
                context = listening_context(self.certificate, self.key, self.ca, f"sources.{step}")
            except ConfigError as error:
                raise SourceError(str(error)) from None
        fields, times = JsonFields(where, out, "", self, self.fields), SentTimes(where, self)
        reader = _Reader(fields, times, self.time == "sent", self.message_bytes_max, self.encoding)
        ports = {"udp": self.udp, "tcp": self.tcp, "tls": self.tls}
        most = (self.connections_max, self.sender_connections_max)
        listener = _Listener(where, self.host, reader, *most, context)
        drive = partial(listener.drive, {name: port for name, port in ports.items() if port})
        bound_us = self.out_of_orderness_ms * 1_000
        return [LiveBufferSplit(device, step, drive, out_of_orderness_us=bound_us)]


class Sender(msgspec.Struct, frozen=True):
    """Who sent a message: address, port, and over what."""

    address: str
    port: int
    transport: str

    def __str__(self) -> str:
        return f"{self.transport} from {self.address}, port {self.port}"


class _Reader:
    """Messages as records."""

    def __init__(
        self, fields: JsonFields, times: SentTimes, is_sent: bool, bytes_max: int, encoding: str
    ) -> None:
        self._fields, self._times, self._is_sent, self.bytes_max = fields, times, is_sent, bytes_max
        self._encoding = encoding

    def read(self, sender: Sender, problem: str, raw: bytes) -> tuple[int, Any]:
        """(event time, record) of a message; raises `ValueError` that begins with the sender."""
        try:
            if problem:
                raise ValueError(problem)
            message = parse(raw, self._encoding, self._times)
            document: dict[str, Any] = {name: getattr(message, name) for name in message.__struct_fields__}
            sent = message.sent or SentTime("")
            if self._is_sent and sent.problem:
                raise NoTimeError(f"its time {sent.problem}")
            time_us = sent.time if self._is_sent and sent.time is not None else now_us()
            document["sent"] = None if sent.time is None else format_time(sent.time)
            document["sent_text"] = sent.text or None
            document |= {"sender": sender.address, "port": sender.port, "transport": sender.transport}
            return time_us, self._fields.pick(document)[1]
        except ValueError as error:
            raise NoRecordError(f"{sender}: {error}", code_of(error)) from None

    def framed(self, data: bytes) -> Framed:
        """A datagram as the one message that it is."""
        passed = max(0, len(data) - self.bytes_max)
        problem = too_long(len(data), self.bytes_max) if passed else ""
        return Framed(data[: self.bytes_max].rstrip(b"\r\n\0"), problem, passed)

    def push(self, split: LiveBufferSplit, sender: Sender, found: Framed) -> bool:
        """Hand one message to a split; whether there was room for it."""
        return split.push(found.raw, partial(self.read, sender, found.problem), sender.address)


class _Listener:
    """The ports of one source."""

    def __init__(
        self,
        where: str,
        host: str,
        reader: _Reader,
        connections_max: int,
        sender_connections_max: int,
        context: ssl.SSLContext | None,
    ) -> None:
        self._where, self._host, self._reader = where, host, reader
        self._connections_max, self._sender_connections_max = connections_max, sender_connections_max
        self._context = context
        self._open: dict[asyncio.Task[None], str] = {}
        self._refused, self._told_s = 0, 0.0
        self._lost, self._lost_told_s = 0, 0.0

    async def drive(self, ports: Mapping[str, int], split: LiveBufferSplit) -> None:
        """Listen until cancelled; raises `SourceError` where that is not allowed."""
        failure: Exception | None = None
        try:
            async with asyncio.TaskGroup() as group:
                for transport, port in ports.items():
                    serve = self._udp if transport == "udp" else self._stream
                    group.create_task(self._again(transport, port, partial(serve, transport), split))
        except* SourceError as errors:
            failure = errors.exceptions[0]
        finally:
            for task in self._open:
                task.cancel()
        if failure is not None:
            raise failure

    async def _again(
        self, transport: str, port: int, serve: Callable[..., Any], split: LiveBufferSplit
    ) -> None:
        """Serve one port, and open it again where that fails."""
        pause_s, kind = 1.0, socket.SOCK_DGRAM if transport == "udp" else socket.SOCK_STREAM
        while True:
            try:
                with await self._bound(port, kind) as listening:
                    pause_s = 1.0
                    await serve(listening, split)
            except PermissionError:
                raise SourceError(
                    f"{self._where}: port {port} of {transport} needs rights that this process lacks: "
                    "set one above 1023, or give it CAP_NET_BIND_SERVICE"
                ) from None
            except OSError as error:
                what = error.strerror or error
                _LOG.warning(
                    "%s: %s port %d: %s; again in %.0f s", self._where, transport, port, what, pause_s
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _bound(self, port: int, kind: socket.SocketKind) -> socket.socket:
        loop = asyncio.get_running_loop()
        family, *_, address = (await loop.getaddrinfo(self._host, port, type=kind))[0]
        found = socket.socket(family, kind)
        try:
            found.setblocking(False)
            if kind == socket.SOCK_DGRAM:
                found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            else:
                found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            if kind == socket.SOCK_STREAM:
                found.listen(self._connections_max)
        except BaseException:
            found.close()
            raise
        return found

    async def _udp(self, transport: str, listening: socket.socket, split: LiveBufferSplit) -> None:
        loop, turn = asyncio.get_running_loop(), 0
        port = listening.getsockname()[1]
        watching = asyncio.ensure_future(_watch_drops(listening, port, split))
        try:
            while True:
                data, (address, sender_port, *_) = await loop.sock_recvfrom(listening, _DATAGRAM_BYTES_MAX)
                found = self._reader.framed(data)
                if not self._reader.push(split, Sender(address, sender_port, transport), found):
                    self._lose(address)
                turn += 1
                if turn % _TURN == 0:
                    await asyncio.sleep(0)  # a datagram that is there is taken without a turn of the loop
        finally:
            watching.cancel()

    async def _stream(self, transport: str, listening: socket.socket, split: LiveBufferSplit) -> None:
        loop = asyncio.get_running_loop()
        context = self._context if transport == "tls" else None
        while True:
            connection, (address, port, *_) = await loop.sock_accept(listening)
            same = sum(1 for other in self._open.values() if other == address)
            if same >= self._sender_connections_max or len(self._open) >= self._connections_max:
                connection.close()
                self._refuse(address, same)
                continue
            sender = Sender(address, port, transport)
            task = asyncio.ensure_future(self._connected(connection, context, sender, split))
            self._open[task] = address
            task.add_done_callback(self._open.pop)

    def _refuse(self, address: str, same: int) -> None:
        self._refused += 1
        if time.monotonic() - self._told_s >= _PAUSE_S_MAX:
            self._told_s = time.monotonic()
            is_own = same >= self._sender_connections_max
            option = "sender_connections_max" if is_own else "connections_max"
            _LOG.warning(
                "connections_refused: %s: %d connections are open, %d of them of %s, so one more of it was "
                "refused, %d so far; set %s higher",
                *(self._where, len(self._open), same, address, self._refused, option),
            )

    def _lose(self, address: str) -> None:
        self._lost += 1
        if time.monotonic() - self._lost_told_s >= _PAUSE_S_MAX:
            self._lost_told_s = time.monotonic()
            _LOG.warning(
                "sender_lost: %s: %s sends faster than the agent keeps up; %d messages were dropped so far",
                *(self._where, address, self._lost),
            )

    async def _connected(
        self,
        connection: socket.socket,
        context: ssl.SSLContext | None,
        sender: Sender,
        split: LiveBufferSplit,
    ) -> None:
        """All messages of one connection."""
        reader, stream = asyncio.StreamReader(limit=_READ_BYTES), Stream(self._reader.bytes_max)
        transport: asyncio.BaseTransport | None = None
        try:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: asyncio.StreamReaderProtocol(reader),
                connection,
                ssl=context,
                ssl_handshake_timeout=_HANDSHAKE_S_MAX if context is not None else None,
            )
            while data := await reader.read(_READ_BYTES):
                await self._push(stream.feed(data), sender, split)
            await self._push(stream.end(), sender, split)
        except OSError as error:
            _LOG.warning("%s: %s: %s", self._where, sender, error.strerror or error)
            await self._push(stream.end(), sender, split)
        finally:
            if transport is None:
                connection.close()
            elif isinstance(transport, asyncio.Transport):
                transport.abort()

    async def _push(self, found: Sequence[Framed], sender: Sender, split: LiveBufferSplit) -> None:
        for one in found:
            await split.room(len(one.raw), sender.address)
            self._reader.push(split, sender, one)


async def _watch_drops(listening: socket.socket, port: int, split: LiveBufferSplit) -> None:
    """Tell what the kernel drops because nobody took it in time."""
    before = 0
    while True:
        await asyncio.sleep(_LOOK_S)
        try:
            raw = listening.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
            drops = _MEMINFO.unpack(raw)[-1]
        except (OSError, struct.error):
            return  # this kernel does not say
        if drops != before:
            lost = (drops - before) % (1 << 32)
            split.lost(lost, f"because the kernel's buffer of UDP port {port} was full")
            _LOG.warning("udp_lost: source %s: the kernel dropped %d messages", split.label, lost)
        before = drops
