"""The network over MQTT 3.1.1: `geartrain.ports.Net` on aiomqtt, which stands on paho.

Between uplink and broker, and between broker and ingest. Guarantees: every failure is a `NetError` of one
sentence; all that waits is bounded in number, bytes and time; a connection that broke stays broken, and every
call says so. aiomqtt acknowledges a publish when it enters its queue, before any of our code sees it, and
drops what the queue cannot hold. Our own ack and resend cover both, and `counters` counts the drops.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiomqtt

from geartrain.adapters.network_faults import UNKNOWN, failure_of
from geartrain.adapters.paho_log import read_alert, read_failure
from geartrain.concurrency.cancelling import heed_cancellation
from geartrain.errors import DeniedError, HungUpError, NetError
from geartrain.ports.net import Incoming

_LOG = logging.getLogger("geartrain.mqtt")

_DENIALS = {
    133: "have the broker accept its client id",
    134: "put its user, its password or the broker's rules right",
    135: "put its user, its password or the broker's rules right",
}
"""What to do, by the broker's answer to a connect; every other answer may pass by itself."""
_CLOCK_CODES = frozenset({9, 10})
"""OpenSSL's `X509_V_ERR_CERT_NOT_YET_VALID` and `X509_V_ERR_CERT_HAS_EXPIRED`."""
_SAY_NOTHING = frozenset({0, 128})
"""Reasons of a disconnect that tell nothing: normal, and unspecified, which paho also says of a cut."""
_SEVERE = frozenset({0x04, 0x08})
"""Paho's levels of a warning and an error."""
INFLIGHT_MAX = 20
INCOMING_MAX = 1_000
INCOMING_BYTES_MAX = 32 << 20
DROPS_SAID_S = 60.0
"""Seconds between two warnings of publishes that found no room."""
UNREACHABLE_S = 4.0
"""Seconds without an answer after which a broker is said to be unreachable."""


class AiomqttNet:
    """A way to one broker; implements `geartrain.ports.Net`."""

    def __init__(
        self,
        host: str,
        port: int = 1883,
        *,
        username: str | None = None,
        password: str | None = None,
        tls_context: ssl.SSLContext | None = None,
        keepalive_s: int = 30,
        reply_timeout_s: float = 10.0,
        puback_timeout_s: float = 60.0,
        inflight_max: int = INFLIGHT_MAX,
        incoming_max: int = INCOMING_MAX,
        incoming_bytes_max: int = INCOMING_BYTES_MAX,
        keeps_id: bool = False,
    ) -> None:
        """`tls_context`: None for a plain connection. With one, a client's id ends in something that nobody
        else knows, unless `keeps_id`: a broker hands an id over to whoever connects with it, whatever
        certificate that one has.

        keepalive_s: a connection that is silent for up to twice this long is broken; reply_timeout_s: so is
        one on which a connect or subscribe is not answered in this time; puback_timeout_s: the same for a
        publish, which waits behind all that a slow link has yet to carry; inflight_max: publishes without
        puback; incoming_max, incoming_bytes_max: received publishes that wait to be iterated over.
        """
        self.host, self.port = host, port
        self.counters: dict[str, int] = {"incoming_dropped": 0}
        self._username, self._password, self._tls_context = username, password, tls_context
        self._keepalive_s, self._reply_timeout_s = keepalive_s, reply_timeout_s
        self._puback_timeout_s, self._inflight_max = puback_timeout_s, inflight_max
        self._incoming_max, self._incoming_bytes_max = incoming_max, incoming_bytes_max
        self._id_end = "" if tls_context is None or keeps_id else f"-{os.urandom(8).hex()}"
        self._leftover: set[asyncio.Task[object]] = set()
        self._said_dropped, self._said_dropped_s = 0, -math.inf

    @asynccontextmanager
    async def connect(self, client_id: str) -> AsyncIterator[MqttConnection]:
        """Open a connection (clean session) for the `async with` block; raises `NetError`."""
        client = self._client(client_id)
        await self._open(client)
        connection = MqttConnection(client, str(self), self._inflight_max, self._puback_timeout_s)
        try:
            yield connection
        finally:
            await connection.close()

    def _client(self, client_id: str) -> _Client:
        net = self

        class Inbox(asyncio.Queue[aiomqtt.Message]):
            """Drops what would exceed the bounds, and counts it."""

            waiting_bytes = 0

            def put_nowait(self, item: aiomqtt.Message) -> None:
                size = len(item.payload)
                if self.full() or (self.waiting_bytes + size > net._incoming_bytes_max and not self.empty()):
                    net._dropped()
                    return  # aiomqtt would log each QueueFull
                super().put_nowait(item)
                self.waiting_bytes += size

            def get_nowait(self) -> aiomqtt.Message:
                item = super().get_nowait()
                self.waiting_bytes -= len(item.payload)
                return item

        client = _Client(
            self.host,
            self.port,
            identifier=client_id + self._id_end,
            username=self._username,
            password=self._password,
            tls_context=self._tls_context,
            clean_session=True,
            keepalive=self._keepalive_s,
            timeout=self._reply_timeout_s,
            queue_type=Inbox,
            max_queued_incoming_messages=self._incoming_max,
            max_queued_outgoing_messages=self._inflight_max,
            max_inflight_messages=self._inflight_max,
        )
        # Above it aiomqtt warns; the window is the bound.
        client.pending_calls_threshold = self._inflight_max + 1
        return client

    def _dropped(self) -> None:
        """Count a publish that found no room, and say so once a minute."""
        self.counters["incoming_dropped"] += 1
        now_s = asyncio.get_running_loop().time()
        if now_s - self._said_dropped_s >= DROPS_SAID_S:
            count = self.counters["incoming_dropped"] - self._said_dropped
            self._said_dropped_s, self._said_dropped = now_s, self.counters["incoming_dropped"]
            _LOG.warning(
                "what the broker at %s sends comes faster than it is taken in: %d messages dropped since the "
                "last time, which our own resend covers",
                self,
                count,
            )

    async def _open(self, client: _Client) -> None:
        # aiomqtt connects in a thread, which no cancellation reaches: what it opens late must be closed late.
        opening: asyncio.Task[object] = asyncio.create_task(client.__aenter__())
        try:
            if not (await asyncio.wait([opening], timeout=UNREACHABLE_S))[0]:
                _LOG.warning("the broker at %s has not answered for %g s: still trying", self, UNREACHABLE_S)
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            client.give_up()
            self._leftover.add(opening)
            opening.add_done_callback(self._leftover.discard)
            opening.add_done_callback(lambda task: _close_late(client, task))
            raise
        except (aiomqtt.MqttError, OSError, ValueError) as error:
            was_closed = client.was_closed  # by the other side, before we do it
            client.hang_up()
            raise self._not_connected(client, error, was_closed=was_closed) from None

    def _not_connected(self, client: _Client, error: Exception, *, was_closed: bool) -> NetError:
        """Why there is no connection: a `DeniedError` only by what the broker, or TLS, has said.

        A broker that hangs up says nothing: it may be about to restart. That is a `HungUpError`.
        """
        said, cause = f"cannot connect to the broker at {self}: ", error.__context__
        code = getattr(error, "rc", None)
        if advice := _DENIALS.get(getattr(code, "value", 0), ""):
            return DeniedError(f"{said}it refuses this client ({code}): {advice}", str(code))
        if alert := read_alert(f"{client.receive_failed} {cause}"):
            advice = "see whether it is still good, and get a new one if it was revoked"
            return DeniedError(f"{said}it refuses this client's certificate ({alert}): {advice}", alert)
        if isinstance(cause, ssl.SSLCertVerificationError):
            said = f"{said}its certificate is not trusted ({cause.verify_message}): "
            if cause.verify_code in _CLOCK_CODES:
                advice = (
                    "see whether the clock of this machine is right, or give the broker a new certificate"
                )
                return NetError(f"{said}{advice}")
            return DeniedError(f"{said}see whether `ca` and the address are those of the broker")
        kind = HungUpError if was_closed and code is None else NetError
        return kind(f"{said}{_failure(error, 'its name or port cannot be one: correct host and port')}")

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class MqttConnection:
    """One live connection; implements `geartrain.ports.Connection`."""

    def __init__(self, client: _Client, broker: str, inflight_max: int, puback_timeout_s: float) -> None:
        """`client` is connected; `broker` is for people."""
        self._client, self._broker, self._puback_timeout_s = client, broker, puback_timeout_s
        self._window = asyncio.Semaphore(inflight_max)
        self._inflight: set[asyncio.Task[None]] = set()
        self._broken: NetError | None = None
        client.lost.add_done_callback(self._on_lost)

    async def publish(self, topic: str, payload: bytes) -> None:
        """Publish with QoS 1; waits while the window of publishes without puback is full, for nothing else.

        Raises `NetError` when the connection is broken, which a puback that does not come makes it, too.
        """
        self._check()
        await self._window.acquire()
        try:
            self._check()
        except NetError:
            self._window.release()
            raise
        publishing = self._client.publish(topic, payload, qos=1, timeout=self._puback_timeout_s)
        task = asyncio.create_task(publishing)
        self._inflight.add(task)
        task.add_done_callback(self._settle)

    async def drain(self) -> None:
        """Wait for the pubacks of all that was published; raises `NetError` when the connection breaks."""
        while self._inflight:
            await asyncio.wait(self._inflight)
        self._check()

    async def subscribe(self, topic_filter: str) -> None:
        """Subscribe with QoS 1; raises `NetError` when the broker refuses."""
        self._check()
        try:
            granted = await heed_cancellation(self._client.subscribe(topic_filter, qos=1))
        except (aiomqtt.MqttError, ValueError) as error:
            was_closed = self._client.was_closed
            why = _failure(error, "it is no filter that MQTT takes: correct the topic")
            broken = self._break(f"subscribing to {topic_filter} failed: {why}")
            raise (HungUpError(str(broken)) if was_closed else broken) from None
        for code in granted:
            # MQTT 3.1.1 knows one refusal, 0x80, which aiomqtt hands over like a granted QoS.
            if (code if isinstance(code, int) else code.value) >= 0x80:
                raise DeniedError(
                    f"the broker at {self._broker} refuses the subscription to {topic_filter} ({code}): have "
                    "its access rules (ACL) allow that"
                )

    async def incoming(self) -> AsyncIterator[Incoming]:
        """Received publishes in order of arrival; ends with `NetError` when the connection breaks."""
        try:
            async for received in self._client.messages:
                yield Incoming(str(received.topic), bytes(received.payload), bool(received.retain))
        except aiomqtt.MqttError as error:
            raise self._break(_loss(error.__cause__)) from None

    async def close(self) -> None:
        """Disconnect; what was published and not yet sent may be lost."""
        self._broken = self._broken or NetError(f"the connection to the broker at {self._broker} was closed")
        self._abandon()
        try:
            await heed_cancellation(self._client.__aexit__(None, None, None))
        except aiomqtt.MqttError:
            _LOG.info("the broker at %s did not answer the disconnect", self._broker)

    def _on_lost(self, lost: asyncio.Future[None]) -> None:
        self._break(_loss(None if lost.cancelled() else lost.exception()))

    def _settle(self, task: asyncio.Task[None]) -> None:
        self._inflight.discard(task)
        self._window.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            why = "its topic holds wildcards, or is empty or too long: correct it"
            self._break(f"a publish failed: {_failure(error, why)}")

    def _check(self) -> None:
        if self._broken is not None:
            raise NetError(str(self._broken))

    def _break(self, why: str) -> NetError:
        """Break the connection, wake all that wait for it, and return the error that says why it broke."""
        if self._broken is None:
            self._broken = NetError(f"broker at {self._broker}: {why}")
            self._abandon()
            self._client.hang_up()
        return NetError(str(self._broken))

    def _abandon(self) -> None:
        for task in self._inflight:
            task.cancel()


class _EndedError(aiomqtt.MqttError):
    """A connect has ended, in half a sentence of ours."""


def _failure(error: BaseException | None, mistake: str) -> str:
    """Why the broker was asked in vain: half a sentence of ours; mistake: where what was asked cannot be."""
    if isinstance(error, _EndedError):
        return str(error)
    if isinstance(error, ValueError):
        return mistake
    code = getattr(error, "rc", None)
    if code is not None and not isinstance(code, int):  # the broker's own answer, by a name of MQTT
        return f"it refuses that ({code}): see its log"
    cause = getattr(error, "__context__", None) or getattr(error, "__cause__", None)
    if code is not None and cause is None:
        return "the connection was lost"
    return failure_of(cause or error)


def _loss(error: BaseException | None) -> str:
    """That a connection was lost, and what the broker has said of that."""
    code = getattr(error, "rc", None)
    is_said = code is not None and not isinstance(code, int) and code.value not in _SAY_NOTHING
    return f"the connection was lost: the broker ended it ({code})" if is_said else "the connection was lost"


class _Client(aiomqtt.Client):
    """aiomqtt's client with what it keeps to itself: when it was cut off, how to hang up, how to give up a
    connect that is under way, and that a packet goes out at once.
    """

    _is_given_up = False
    was_closed = False
    """Whether the broker closed the connection, or the network did."""
    receive_failed = ""
    """What paho said of the last failure to receive, which it tells its log alone."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Its logger tells each lost connection as an error, and so does whoever uses the connection.
        self._client.disable_logger()
        self._client.on_log = self._on_log

    def _on_log(self, client: Any, userdata: Any, level: int, text: str) -> None:
        if (cause := read_failure(text)) is not None:
            self.receive_failed = cause
        elif level in _SEVERE:
            _LOG.warning("%s", text)

    def give_up(self) -> None:
        """Nobody waits for the connect any more: hang up as soon as there is a socket."""
        self._is_given_up = True

    def _on_socket_open(self, client: Any, userdata: Any, sock: Any) -> None:
        if not self._is_given_up:
            # Else a packet behind a puback waits for the other side's delayed acknowledgement: 40 ms each.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            super()._on_socket_open(client, userdata, sock)
            return
        # This is the thread of the connect. The loop may be about to end: a task or a reader that is made now
        # would outlive it, and be complained about with a trace.
        self._loop.call_soon_threadsafe(self._hang_up_early)

    def _hang_up_early(self) -> None:
        self.hang_up()
        self._fail_connect("it was given up")

    def _on_disconnect(self, client: Any, userdata: Any, flags: Any, reason_code: Any, *rest: Any) -> None:
        self.was_closed = True
        if self._connected.cancelled():
            return  # nobody waits for the connect any more, and aiomqtt would ask how it went
        # aiomqtt would wait for the answer to the connect to its end, though none can come any more.
        self._fail_connect("the connection was closed before the broker answered: see its log")
        super()._on_disconnect(client, userdata, flags, reason_code, *rest)

    def _fail_connect(self, why: str) -> None:
        if not self._connected.done():
            self._connected.set_exception(_EndedError(why))
            self._connected.exception()  # whoever waited may be gone: it is no error that nobody hears of it

    def _on_socket_register_write(self, client: Any, userdata: Any, sock: Any) -> None:
        # aiomqtt has the loop watch a descriptor that may be closed, or of another socket, by then.
        self._loop.call_soon_threadsafe(self._watch_writes, client, sock)

    def _watch_writes(self, client: Any, sock: Any) -> None:
        if sock is not None and sock.fileno() >= 0:  # paho hands over None for one that it has just closed
            self._loop.add_writer(sock.fileno(), self._write, client)

    def _write(self, client: Any) -> None:
        try:
            client.loop_write()
        except Exception as error:  # noqa: BLE001 - whatever it is, the connection is broken
            if not self._disconnected.done():
                self._disconnected.set_exception(error)

    @property
    def lost(self) -> asyncio.Future[None]:
        """Done when the connection has ended."""
        return self._disconnected

    def hang_up(self) -> None:
        """Send a disconnect and close the socket without waiting."""
        self._client.disconnect()


def _close_late(client: _Client, opening: asyncio.Task[object]) -> None:
    """End a connection that was opened after its caller had been cancelled."""
    if not opening.cancelled() and opening.exception() is not None:
        _LOG.info(
            "a connect that nobody waits for any more failed: %s", _failure(opening.exception(), UNKNOWN)
        )
    client.hang_up()
