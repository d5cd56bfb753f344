"""Records as JSON to an HTTP address, one POST after the other, for programs that have no broker.

A store beside the flow's own tables. Guarantees at least once: a request that was not answered with success
is made again, and so is all of a micro-batch that a crash cut short. Each request has a key, the same in
every repetition, so a receiver that keeps keys has each record once. A record that the receiver refuses is a
dead letter. While it is away, nothing is lost and nothing is skipped: the flow waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime

import aiohttp
import msgspec

from geartrain.adapters.network_faults import failure_of
from geartrain.declarations.cloud_sink import WebhookSink
from geartrain.declarations.sink import Sink
from geartrain.printable import printable
from geartrain.records.codes import Code, Refusal
from geartrain.schema import ColumnBatch, Schema
from geartrain_cloud.sinks.evolution import Evolution
from geartrain_cloud.sinks.layout import AwayError, Layout
from geartrain_cloud.sinks.receiver import Receiver, receiver_of
from geartrain_cloud.sinks.rows import message_rows, take_rows
from geartrain_cloud.sinks.secrets import NONE, SinkSecrets
from geartrain_cloud.sinks.store import Rows

_LOG = logging.getLogger("geartrain.sinks")

BODY_BYTES_MAX = 1_000_000
"""Of one request, unless a single record takes more."""
AWAY_S_MAX = 20.0
"""How long one call waits for a receiver that does not take records, before the flow is held by name."""
PAUSE_S_MAX = 10.0
RETRY_AFTER_S_MAX = 300.0
_PAUSE_S = 0.5
_SAID_BYTES = 2_000
_SAID_CHARS = 200
_CONFLICT = 409
_WAITS = frozenset((401, 403, 404, 405, 407, 408, _CONFLICT, 410, 421, 425, 426, 429))
"""Answers that say nothing about the record: the address, who asks or the moment is wrong."""


class _LaterError(Exception):
    """A request to make again: why, and how many seconds the receiver asks to wait."""

    def __init__(self, why: str, after_s: float = 0.0, *, conflict: bool = False) -> None:
        super().__init__(why)
        self.after_s, self.conflict = after_s, conflict


@dataclass
class _Delivery:
    """What a micro-batch brings to one sink, in canonical order, and how far that is.

    places: batch and row of each record; todo: the requests still to make, first and last record of each;
    refused: records that the receiver does not take, and why; due: not before then, on the monotonic clock,
    and trouble: why not.
    """

    sink: str
    key: str
    places: list[tuple[ColumnBatch, int]]
    bodies: list[bytes]
    todo: list[tuple[int, int]]
    refused: dict[int, str] = field(default_factory=dict)
    failures: int = 0
    due: float = 0.0
    trouble: str = ""


@dataclass
class _Portion:
    """One micro-batch of a query."""

    batch_id: int
    positions: dict[str, int]
    deliveries: list[_Delivery]


class Webhooks:
    """The webhooks of one flow. Used from one thread at a time."""

    def __init__(self, secrets: SinkSecrets = NONE) -> None:
        self._secrets = secrets
        self._sinks: dict[str, tuple[WebhookSink, Schema]] = {}
        self._bound: dict[str, str] = {}
        self._portions: dict[str, _Portion] = {}

    def check(self, layout: Layout) -> None:
        """Raise `TableError` for options that cannot be."""
        if isinstance(layout.table, WebhookSink):
            layout.check_complete()
            receiver_of(layout.sink, layout.table, None)

    def declare(self, sink_id: str, sink: Sink, schema: Schema) -> None:
        """Say what comes; raises `TableError` for options that cannot be."""
        self.check(Layout(sink_id, sink, schema))
        if isinstance(sink, WebhookSink):
            self._sinks[sink_id] = (sink, schema)

    def planned(self, layouts: Sequence[Layout]) -> list[Evolution]:
        """An address has no columns; raises `TableError` for options that cannot be."""
        for layout in layouts:
            self.check(layout)
        return []

    def evolve(self, layouts: Sequence[Layout]) -> None:
        """Have the sinks be these; raises `TableError`."""
        self._sinks = {}
        for layout in layouts:
            self.declare(layout.sink, layout.table, layout.schema)

    def attach(self, query: str, checkpoint: str, *, has_run: bool) -> None:
        """Note of which checkpoint the query is: it is a part of each key."""
        self._bound[query] = checkpoint
        self._portions.pop(query, None)

    def refused(self, sink_id: str, rows: ColumnBatch) -> Mapping[int, Refusal]:
        """None: only the receiver knows."""
        return {}

    def write(self, query: str, batch_id: int, positions: Mapping[str, int], rows: Rows) -> None:
        """Make the requests of a micro-batch; raises `AwayError` where the receiver does not take them.

        Called again with the same one, it goes on where it was.
        """
        portion = self._portions.get(query)
        if portion is None or (portion.batch_id, portion.positions) != (batch_id, dict(positions)):
            key = f"{self._bound[query]}-{batch_id}"
            deliveries = [self._delivery(sink, key, batches) for sink, batches in rows.items()]
            portion = self._portions[query] = _Portion(batch_id, dict(positions), deliveries)
        if any(one.todo for one in portion.deliveries):
            asyncio.run(self._deliver(portion))

    def returned(self, query: str, batch_id: int) -> Sequence[tuple[str, Refusal, ColumnBatch]]:
        """(sink, refusal, row) of each record that its receiver refused."""
        portion = self._portions.get(query)
        if portion is None or portion.batch_id != batch_id:
            return []
        return [
            (
                one.sink,
                Refusal(Code.STORE_REFUSED, why),
                take_rows(one.places[number][0], [one.places[number][1]]),
            )
            for one in portion.deliveries
            for number, why in sorted(one.refused.items())
        ]

    def close(self) -> None:
        """Nothing is open."""

    def _delivery(self, sink_id: str, key: str, batches: Sequence[ColumnBatch]) -> _Delivery:
        sink, schema = self._sinks[sink_id]
        found = []
        for batch in batches:
            for row, message in enumerate(message_rows(schema, batch)):
                path = b"" if batch.paths is None else batch.paths[row]
                order = (batch.times[row], batch.names[row], batch.numbers[row], path)
                found.append((order, (batch, row), msgspec.json.encode(message)))
        found.sort(key=lambda one: one[0])  # so that a repetition makes the same requests
        places, bodies = [place for _, place, _ in found], [body for _, _, body in found]
        return _Delivery(sink_id, f"{key}-{sink_id}", places, bodies, _requests(bodies, sink.rows_max))

    async def _deliver(self, portion: _Portion) -> None:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
            for delivery in portion.deliveries:
                if delivery.todo:
                    await self._to_one(session, delivery)

    async def _to_one(self, session: aiohttp.ClientSession, delivery: _Delivery) -> None:
        sink = self._sinks[delivery.sink][0]
        receiver = receiver_of(delivery.sink, sink, self._secrets)
        deadline = time.monotonic() + AWAY_S_MAX
        while delivery.todo:
            if delivery.due > deadline:
                raise AwayError(delivery.trouble)
            await asyncio.sleep(delivery.due - time.monotonic())
            first, last = delivery.todo[0]
            try:
                why = await _post(session, receiver, sink, delivery, first, last)
            except _LaterError as later:
                pause = min(_PAUSE_S * 2.0 ** min(delivery.failures, 10), PAUSE_S_MAX)
                delivery.failures += 1
                delivery.due = time.monotonic() + max(pause, later.after_s)
                delivery.trouble = (
                    f"sink {delivery.sink!r}: {receiver.name} {later}: it is asked again, no record is lost"
                )
                if delivery.due <= deadline:
                    _LOG.warning("%s", delivery.trouble)
                    continue
                if not later.conflict:
                    raise AwayError(delivery.trouble) from None
                why = str(later)
            delivery.failures, delivery.due, deadline = 0, 0.0, time.monotonic() + AWAY_S_MAX
            delivery.todo[:1] = _after(delivery, receiver, first, last, why)


def _after(delivery: _Delivery, receiver: Receiver, first: int, last: int, why: str) -> list[tuple[int, int]]:
    """The requests in the place of one that has its answer: its halves, where it is refused."""
    if why and first == last:
        delivery.refused[first] = f"{receiver.name} {why}"
    if not why or first == last:
        return []
    middle = (first + last) // 2
    return [(first, middle), (middle + 1, last)]


def _requests(bodies: Sequence[bytes], rows_max: int) -> list[tuple[int, int]]:
    """First and last record of each request."""
    found: list[tuple[int, int]] = []
    first, size = 0, 0
    for number, body in enumerate(bodies):
        if number > first and (number - first >= rows_max or size + len(body) > BODY_BYTES_MAX):
            found.append((first, number - 1))
            first, size = number, 0
        size += len(body)
    return [*found, (first, len(bodies) - 1)] if bodies else found


async def _post(
    session: aiohttp.ClientSession,
    receiver: Receiver,
    sink: WebhookSink,
    delivery: _Delivery,
    first: int,
    last: int,
) -> str:
    """Make a request; why the receiver does not take its records, "" where it has them. Raises
    `_LaterError`.
    """
    body = b",".join(delivery.bodies[first : last + 1])
    key = f"{delivery.key}-{first}" if first == last else f"{delivery.key}-{first}.{last}"
    own = {"Content-Type": "application/json", "User-Agent": "geartrain", "Idempotency-Key": key}
    try:
        async with session.post(
            receiver.url,
            data=body if sink.rows_max == 1 else b"[" + body + b"]",
            headers={**receiver.headers, **own},
            ssl=receiver.tls or True,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=sink.timeout_s),
        ) as answer:
            if 200 <= answer.status < 300:
                return ""
            said = await answer.content.read(_SAID_BYTES)
            status, after = answer.status, answer.headers.get("Retry-After", "")
    except TimeoutError:
        raise _LaterError(f"does not answer within {sink.timeout_s:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
        raise _LaterError(f"does not answer: {failure_of(cause)}") from None
    text = receiver.hide(" ".join(said.decode("utf-8", "replace").split()))
    why = f"answers {status}" + (f" ({printable(text, _SAID_CHARS)})" if text else "")
    if status in _WAITS or not 400 <= status < 500:
        raise _LaterError(why, _seconds(after), conflict=status == _CONFLICT)
    return why


def _seconds(retry_after: str) -> float:
    """What the header Retry-After asks for, in seconds: it is a number, or a date."""
    if retry_after.isascii() and retry_after.isdecimal():
        return min(float(retry_after[:9]), RETRY_AFTER_S_MAX)
    try:
        date = parsedate_to_datetime(retry_after)
        left = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0
    return min(max(0.0, left), RETRY_AFTER_S_MAX)
