"""Questions to the steps that run on devices, and what devices tell.

Beside the control lane, over a connection of its own. Guarantees: nothing is sent again, and nobody waits for
longer than said; a question that was lost is asked anew by who asked. What is heard of nobody's question is
counted and left. Of a device that is away the last answers are kept, so many at the most.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from geartrain.concurrency.client_id import client_id
from geartrain.concurrency.connecting import DENIED_S, Backoff, Connector
from geartrain.control.questions import (
    DeviceAnswer,
    DeviceQuestion,
    decode_answer,
    encode_question,
)
from geartrain.errors import NetError, WireError
from geartrain.ports import Clock, Connection, Incoming, Net, Randomness
from geartrain.printable import printable
from geartrain.wire.topics import ask_topic, parse_told, told_filter

_LOG = logging.getLogger("geartrain.control")

LAST_MAX = 1_000
"""Answers that are kept for when their device is away."""
_BACKOFF = Backoff(0.25, 10.0, 1.0, DENIED_S)


@dataclass(frozen=True, slots=True)
class Heard:
    """What a device told, and when that came, microseconds since 1970."""

    device: str
    answer: DeviceAnswer
    at_us: int


@dataclass(slots=True)
class _Open:
    """A question that somebody waits with: who has not answered yet, and what was heard."""

    instance: str
    missing: set[str]
    heard: list[Heard]
    came: asyncio.Event


class DeviceQuestions:
    """Those of one platform; `run` keeps the connection."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._connection: Connection | None = None
        self._open: dict[str, _Open] = {}
        self._last: OrderedDict[tuple[str, str, str, str | None], Heard] = OrderedDict()
        self.counters: dict[str, int] = {}

    async def run(self, net: Net, randomness: Randomness) -> None:
        """Stay connected and hear what devices tell, forever."""
        connector = Connector(self._clock, randomness, _BACKOFF)

        def lost(error: NetError) -> None:
            if news := connector.news(error):
                _LOG.warning("questions to devices: %s", printable(news))

        async def session() -> None:
            async with net.connect(client_id("asking", randomness.token(4).hex())) as connection:
                await connection.subscribe(told_filter())
                connector.is_connected, self._connection = True, connection
                try:
                    async for incoming in connection.incoming():
                        self._take(incoming)
                finally:
                    self._connection = None
                raise NetError("the connection has ended")

        await connector.stay(session, lost)

    async def ask(
        self,
        instance: str,
        devices: Collection[str],
        step: str,
        key: str | None,
        wait_s: float,
        is_enough: Callable[[Heard], bool],
    ) -> tuple[list[Heard], set[str]]:
        """Ask these devices: what they told, and who is silent.

        Waits until one has told what `is_enough`, all have answered, or `wait_s` has passed. Raises
        `NetError` where the broker is away.
        """
        if self._connection is None:
            raise NetError("the broker is away")
        question = DeviceQuestion(secrets.token_hex(16), step, key)
        payload = encode_question(question)
        waiting = self._open[question.id] = _Open(instance, set(devices), [], asyncio.Event())
        try:
            for device in devices:
                await self._connection.publish(ask_topic(device, instance), payload)
            until_s = self._clock.monotonic_s() + wait_s
            while waiting.missing and not any(map(is_enough, waiting.heard)):
                waiting.came.clear()
                try:
                    async with asyncio.timeout(until_s - self._clock.monotonic_s()):
                        await waiting.came.wait()
                except TimeoutError:
                    break
        finally:
            del self._open[question.id]
        for heard in waiting.heard:
            self._keep((instance, heard.device, step, key), heard)
        return waiting.heard, waiting.missing

    def last(self, instance: str, device: str, step: str, key: str | None) -> Heard | None:
        """What a device told the last time it was asked for this key, as far as that is known."""
        return self._last.get((instance, device, step, key))

    def _keep(self, which: tuple[str, str, str, str | None], heard: Heard) -> None:
        self._last[which] = heard
        self._last.move_to_end(which)
        while len(self._last) > LAST_MAX:
            self._last.popitem(last=False)

    def _take(self, incoming: Incoming) -> None:
        try:
            device, instance = parse_told(incoming.topic)
            answer = decode_answer(incoming.payload)
        except WireError as error:
            self._count("answers_not_decoded")
            _LOG.warning("an answer of a device cannot be read: %s", printable(str(error)))
            return
        waiting = self._open.get(answer.id)
        if waiting is None or waiting.instance != instance or device not in waiting.missing:
            self._count("answers_to_nobody")
            return
        waiting.missing.discard(device)
        waiting.heard.append(Heard(device, answer, self._clock.now_us()))
        waiting.came.set()

    def _count(self, name: str) -> None:
        self.counters[name] = self.counters.get(name, 0) + 1
