"""Which processes `gear up` leaves out for now, because their files are worked on.

Between those who work on files of a platform that runs and `gear up`, which reads the list. Guarantees: a
process is left out for as long as anybody wants it so. Control that starts anew wants none so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from geartrain.errors import LedgerError
from geartrain.ports import Clock
from geartrain_cloud.control_store.errors import ConflictError
from geartrain_cloud.errors import StateError
from geartrain_cloud.log.opening import stopped_log
from geartrain_cloud.platform.places import PlatformPlaces, write_report
from geartrain_cloud.spark.lock import LOCK_FILE, no_reader

_LOG = logging.getLogger("geartrain.control")

INGEST, SPARK = "ingest", "spark"
"""The processes that can be left out."""
STOP_S = 120.0
"""So long they may take to end before who wants it gives up."""
LOOK_S = 0.5


class Pauses:
    """Those of one platform."""

    def __init__(self, places: PlatformPlaces, clock: Clock) -> None:
        self._places, self._clock = places, clock
        self._wanted: dict[str, tuple[str, ...]] = {}

    def want(self, who: str, names: tuple[str, ...]) -> None:
        """Have `gear up` leave these processes out, for `who`, who wants no others so."""
        self._wanted[who] = names
        every = sorted({name for one in self._wanted.values() for name in one})
        if not every and not self._places.paused.exists():
            return
        try:
            write_report(self._places.paused, {"processes": every})
        except OSError as error:
            _LOG.error("%s cannot be written: %s", self._places.paused, error)

    def have_ended(self, names: tuple[str, ...]) -> bool:
        """Whether these processes run no more."""
        try:
            if INGEST in names:
                with stopped_log(self._places.log):
                    pass
            if SPARK in names:
                with no_reader([self._places.spark / LOCK_FILE]):
                    pass
        except (LedgerError, StateError):
            return False
        return True

    @asynccontextmanager
    async def paused(self, who: str, names: tuple[str, ...]) -> AsyncIterator[None]:
        """A block during which these processes stand still; raises `ConflictError` where they do not end."""
        self.want(who, names)
        end_s = self._clock.monotonic_s() + STOP_S
        try:
            while not await asyncio.to_thread(self.have_ended, names):
                if self._clock.monotonic_s() >= end_s:
                    raise ConflictError(f"{not_ended(names)}, and nothing was changed")
                await self._clock.sleep(LOOK_S)
            yield
        finally:
            self.want(who, ())


def not_ended(names: tuple[str, ...]) -> str:
    """What is said of processes that do not end."""
    have = "has" if len(names) == 1 else "have"
    return (
        f"{' and '.join(names)} {have} not ended within {STOP_S:g} s: gear up runs "
        f"{'it' if len(names) == 1 else 'them'}, or stop {'it' if len(names) == 1 else 'them'}"
    )
