"""The downlink of a platform: the outboxes of all apps that send to devices, over one connection.

Between the outboxes and the broker, an `OutboxSender` for each app. Guarantees: apps come and go while the
others go on. An outbox that is locked, damaged or missing is said in the status of its app, is tried again
every `RETRY_S`, and holds up no other. The simulator runs this class, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from geartrain.concurrency.groups import first_of
from geartrain.concurrency.waiting import first_done
from geartrain.errors import GeartrainError
from geartrain.ports import Clock, Net, Randomness
from geartrain.printable import printable
from geartrain_cloud.downlink.errors import MissingOutboxError
from geartrain_cloud.downlink.sender import OutboxSender, SenderSettings, down_connection, opened
from geartrain_cloud.downlink.store import OutboxStore

_LOG = logging.getLogger("geartrain.down")

RETRY_S = 2.0
"""Between two attempts to open an outbox."""


class Downlink:
    """`run` is called once, `follow` as often as something else is wanted, and `stop` ends it."""

    def __init__(
        self,
        net: Net,
        clock: Clock,
        randomness: Randomness,
        store: Callable[[str, Path], OutboxStore],
        settings: SenderSettings | None = None,
    ) -> None:
        """`store`: that of an app, by its instance and the path of its outbox."""
        self._clock, self._randomness, self._store = clock, randomness, store
        self._settings = settings or SenderSettings()
        self._shared = down_connection(net, clock, randomness, self._settings)
        self._wanted: dict[str, Path] = {}
        self._apps: dict[str, _App] = {}
        self._told, self._is_stopping = asyncio.Event(), False

    @property
    def connected(self) -> bool:
        """Whether the broker is there."""
        return self._shared.is_connected

    @property
    def counters(self) -> dict[str, int]:
        """Of the connection."""
        return dict(self._shared.counters)

    def follow(self, outboxes: Mapping[str, Path]) -> None:
        """Send these outboxes from now on, by instance, and no others."""
        self._wanted = dict(outboxes)
        self._told.set()

    def stop(self) -> None:
        """End; what is not acked stays in the outboxes."""
        self._is_stopping = True
        self._told.set()

    def status(self) -> dict[str, dict[str, Any]]:
        """How each app is that has not left: `state`, a sentence `why` where it does not send, batches
        `waiting` for each device, and `counters`.

        It is `starting`, then `sending`; `missing` where there is no outbox yet, `failed` where it cannot be
        used.
        """
        return {name: app.status() for name, app in sorted(self._apps.items())}

    async def run(self) -> None:
        """Send until `stop`."""
        async with asyncio.TaskGroup() as group:
            connection = group.create_task(self._shared.run())
            while not self._is_stopping or self._apps:
                self._told.clear()
                wanted = {} if self._is_stopping else self._wanted
                for name, app in self._apps.items():
                    if wanted.get(name) != app.outbox:
                        app.stop()
                for name, outbox in wanted.items():
                    if name not in self._apps:
                        app = self._apps[name] = _App(name, outbox)
                        group.create_task(self._keep(app))
                await self._told.wait()
            connection.cancel()

    async def _keep(self, app: _App) -> None:
        """Send the outbox of an app until it is not wanted any more."""
        try:
            while not app.is_leaving:
                try:
                    await self._send(app)
                except* GeartrainError as group:
                    app.failed(first_of(group))
                if not app.is_leaving:
                    await app.pause(self._clock)
        finally:
            del self._apps[app.name]
            self._told.set()

    async def _send(self, app: _App) -> None:
        async with opened(self._store(app.name, app.outbox)) as store:
            totals = await store.totals()
            await app.send(
                OutboxSender(
                    app.name, store, self._shared, self._clock, self._randomness, self._settings, totals
                )
            )


class _App:
    """An app whose outbox is sent, or tried."""

    def __init__(self, name: str, outbox: Path) -> None:
        self.name, self.outbox = name, outbox
        self._state, self._why = "starting", ""
        self._sender: OutboxSender | None = None
        self._left = asyncio.Event()

    @property
    def is_leaving(self) -> bool:
        return self._left.is_set()

    def stop(self) -> None:
        self._left.set()
        if self._sender is not None:
            self._sender.stop()

    async def send(self, sender: OutboxSender) -> None:
        """Send until the app leaves; raises what the outbox raises."""
        if self.is_leaving:
            return
        self._sender, self._state, self._why = sender, "sending", ""
        _LOG.info("app %s: sending its outbox", self.name)
        try:
            await sender.run()
        finally:
            self._sender = None
        if sender.waiting:
            _LOG.warning("app %s: %d batches are not acked", self.name, sum(sender.waiting.values()))

    def failed(self, error: BaseException) -> None:
        why = printable(" ".join(str(error).split()))
        self._state = "missing" if isinstance(error, MissingOutboxError) else "failed"
        if why != self._why and self._state == "failed":
            _LOG.error("app %s: %s", self.name, why)
        self._why = why

    async def pause(self, clock: Clock) -> None:
        """Wait until the outbox is to be tried again, or the app leaves."""
        await first_done(clock.sleep(RETRY_S), self._left.wait())

    def status(self) -> dict[str, Any]:
        sender = self._sender
        return {
            "state": self._state,
            "why": self._why,
            "waiting": {} if sender is None else sender.waiting,
            "counters": {} if sender is None else dict(sender.counters),
        }
