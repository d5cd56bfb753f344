"""The link of ingest to the broker: it connects, subscribes, and does so again whenever the link breaks.

Brings publishes to `Intake`, and acks and NACKs to the broker. Guarantees: publishes are handed over in
order, one after the other. After each new connection, ingest asks every device to continue after its last
durable batch. If nothing arrives for `resubscribe_ms`, ingest subscribes again, since the broker may have
forgotten the subscriptions. The pause between two attempts is bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from geartrain.concurrency.client_id import client_id
from geartrain.concurrency.connecting import DENIED_S, Backoff, Connector
from geartrain.concurrency.waiting import first_done
from geartrain.errors import NetError
from geartrain.ports import Clock, Connection, Incoming, Net, Randomness
from geartrain.wire.topics import up_filter
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.ingest.core import Core
from geartrain_cloud.ingest.counters import Counter

_LOG = logging.getLogger("geartrain.ingest")

_BACKOFF_S = 0.05
_FAREWELL_S = 2.0
_PUBLISH_S = 0.05
_TURN = 512

Take = Callable[[Core, Incoming], Awaitable[bool]]
"""Takes one publish in, once there is room for it; False where nothing is taken any more."""


class Link:
    """The link of one ingest."""

    def __init__(
        self, config: IngestConfig, net: Net, clock: Clock, randomness: Randomness, take: Take
    ) -> None:
        self._config, self._net, self._clock, self._randomness = config, net, clock, randomness
        self._take = take
        backoff = Backoff(_BACKOFF_S, config.backoff_ms_max / 1_000, denied_s=DENIED_S)
        self._connector = Connector(clock, randomness, backoff)
        self._arrivals = 0

    @property
    def is_connected(self) -> bool:
        """Whether the broker is there, and knows what it was asked for."""
        return self._connector.is_connected

    async def stay(self, core: Core) -> None:
        """Be connected, forever: again after each break, with a pause of `backoff_ms_max` at the most."""
        own_id = client_id("ingest", self._randomness.token(6).hex())

        def lost(error: NetError) -> None:
            core.counters.add(Counter.CONNECTIONS_LOST)
            core.alarm.warn(Counter.CONNECTIONS_LOST, "broker", str(error))

        await self._connector.stay(lambda: self._connect(core, own_id), lost)

    async def _connect(self, core: Core, own_id: str) -> None:
        async with self._net.connect(own_id) as connection:
            for topic_filter in _filters(self._config):
                await connection.subscribe(topic_filter)
            self._connector.is_connected = True
            core.membership.listen()
            core.ask()
            _LOG.info("connected to the broker")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(core.outbox.send_forever(connection))
                tasks.create_task(self._stay_subscribed(core, connection))
                async for incoming in connection.incoming():
                    self._arrivals += 1
                    if await self._take(core, incoming) and self._arrivals % _TURN == 0:
                        await asyncio.sleep(0)  # what queues here must not keep all else from its turn
                raise NetError("the broker ended the connection")

    async def _stay_subscribed(self, core: Core, connection: Connection) -> None:
        """Subscribe again when nothing has come for so long: the broker may have forgotten, and says nothing.

        It costs a healthy broker a packet for each filter. While ingest may have been deaf no device was
        silent; that is said once, since a fleet may as well be silent by itself.
        """
        known, is_silent = self._arrivals, False
        while True:
            await self._clock.sleep(self._config.resubscribe_ms / 1_000)
            if self._arrivals != known:
                known, is_silent = self._arrivals, False
                continue
            for topic_filter in _filters(self._config):
                await connection.subscribe(topic_filter)
            core.counters.add(Counter.SUBSCRIPTIONS_RENEWED)
            if not is_silent:
                core.membership.listen()
            is_silent = True

    async def farewell(self, core: Core) -> None:
        """Send the last acks, if the broker takes them in time."""
        if not self.is_connected:
            return
        await first_done(self._clock.sleep(_FAREWELL_S), core.outbox.wait_empty())
        # A publish that was handed over is not on its way yet.
        await self._clock.sleep(_PUBLISH_S)


def _filters(config: IngestConfig) -> list[str]:
    # Only our buckets: others on the same broker have an ingest of their own. Flows come and go, and devices
    # of those that have ended are still answered.
    first, last = config.buckets
    buckets = ["+"] if config.is_whole else [f"{number:02x}" for number in range(first, last + 1)]
    return [up_filter(bucket) for bucket in buckets]
