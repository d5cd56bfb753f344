"""What goes of apps' tables by age: control removes rows beside the Spark host, a few at a time.

Beside every record's path. Guarantees: the event time of a row counts, against the wall clock. Rows go from
the tables of every run that has some, of apps that have ended, too. What cannot be removed now is said, and
tried again in the next round.
"""

from __future__ import annotations

import asyncio
import logging

from geartrain.ports import Clock
from geartrain_cloud.control_store.model import Instance
from geartrain_cloud.control_store.store import ControlStore
from geartrain_cloud.platform.config import PlatformConfig
from geartrain_cloud.platform.runs import runs_with_tables
from geartrain_cloud.sinks.app_tables import AppTables
from geartrain_cloud.sinks.layout import TableError

_LOG = logging.getLogger("geartrain.control")

EVERY_S = 30.0
REST = 20
"""A round that took long is followed by so many times its length without one."""
PAUSE_S = 0.05
"""Between two transactions on the same tables, so that the host's writes go between them."""


def tables_age_s(instance: Instance, config: PlatformConfig) -> float | None:
    """How old rows of an app's tables become, seconds: the stricter of its own limit and the platform's."""
    return min(filter(None, (instance.retain_tables_s, config.tables.retain_s)), default=None)


class Aging:
    """One for a control store."""

    def __init__(self, store: ControlStore, config: PlatformConfig, clock: Clock) -> None:
        """`clock`: whose wall clock the age is counted by."""
        self._store, self._config, self._clock = store, config, clock

    async def run(self) -> None:
        """One round after another, until it is cancelled; raises `StoreError`."""
        while True:
            began_s = self._clock.monotonic_s()
            await self.round()
            took_s = self._clock.monotonic_s() - began_s
            await self._clock.sleep(max(EVERY_S, REST * took_s))

    async def round(self) -> None:
        """Remove all that is older than it may become; raises `StoreError`."""
        for instance in self._store.apps.every():
            age_s = tables_age_s(instance, self._config)
            if age_s is None:
                continue
            first = self._config.places.tables(instance.instance)
            tables = AppTables(first, self._config.tables.store)
            before_us = self._clock.now_us() - round(age_s * 1e6)
            for run in sorted(runs_with_tables(first)):
                try:
                    sweep = tables.sweep(run, before_us)
                    while sweep is not None and await asyncio.to_thread(sweep.step):
                        await self._clock.sleep(PAUSE_S)
                except TableError as error:
                    _LOG.warning("old rows of app %s stay for now: %s", instance.name, error)
