"""Which flow of a group does harm: what marks of workers and failures of flows say, strike by strike.

Spark's own errors name no flow. Beside the record's path: it reads what workers have left, and decides
nothing. Guarantees: a micro-batch that comes through clears all that had a part in it.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from geartrain.adapters.files import whole_files
from geartrain_cloud.hosting.marks import forget_mark, seen_marks
from geartrain_cloud.hosting.places import GroupPlaces

STRIKES = 2
"""So often a flow's code may end a worker or raise, in one micro-batch, before the flow is put out: a worker
may also die for another's memory.
"""


class Watch:
    """Over the flows of one group."""

    def __init__(self, places: GroupPlaces, hang_s: float) -> None:
        """hang_s: how long a flow's code may take for one pack of rows."""
        self._places, self._hang_s = places, hang_s
        self._seen = -1
        self._strikes: Counter[str] = Counter()
        self._why: dict[str, str] = {}
        self._pids: dict[str, set[int]] = {}

    def look(self, batch_id: int) -> None:
        """Take note of what has happened; batch_id: the last micro-batch that has come through."""
        if batch_id != self._seen:
            self._seen = batch_id
            self.forget()
        for path in whole_files(self._places.failures):
            with suppress(FileNotFoundError):
                self._strike(path.name.rpartition(".")[0], path.read_text(encoding="utf-8"))
                path.unlink()
        for mark in seen_marks(self._places.marks):
            if not mark.is_alive:
                self._strike(mark.name, "its code ended the process that ran it")
                forget_mark(self._places.marks, mark.pid)
            elif mark.seconds > self._hang_s:
                why = f"its code did not come back within {self._hang_s:g} s"
                self._strike(mark.name, why, STRIKES)
                self._pids.setdefault(mark.name, set()).add(mark.pid)

    def _strike(self, name: str, why: str, times: int = 1) -> None:
        self._strikes[name] += times
        self._why[name] = why

    def guilty(self, least: int) -> dict[str, str]:
        """The generations with so many strikes, and why."""
        return {name: self._why[name] for name, count in self._strikes.items() if count >= least}

    def kill(self, names: Iterable[str]) -> None:
        """End the workers that hang in the code of these generations."""
        for name in names:
            for pid in self._pids.get(name, ()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def forget(self) -> None:
        """Begin anew: nobody has done harm."""
        self._strikes.clear()
        self._why.clear()
        self._pids.clear()
        for path in whole_files(self._places.failures):
            path.unlink(missing_ok=True)
