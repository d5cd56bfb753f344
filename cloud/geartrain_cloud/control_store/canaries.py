"""Canaries: which devices of an instance run its next code or steps before the others do.

Under the revisions, which say by it what a device is told. Guarantees: an instance has one at a time, and the
last one stays known. What its devices run is kept here until the instance is removed, so that they are told
the same after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from geartrain_cloud.control_store.database import ControlDatabase, as_text
from geartrain_cloud.control_store.model import Canary, CanaryStage, Planned

_COLUMNS = "instance, number, stage, selector, devices, for_s, began_us, positions, why, stay, runs"


class Canaries:
    """Those of all instances of a platform."""

    def __init__(self, database: ControlDatabase) -> None:
        self._database = database

    # Changes

    def note(self, canary: Canary) -> None:
        """Have the instance have this one, in place of its last one."""
        row = [canary.instance, canary.number, canary.stage, canary.selector, as_text(canary.devices)]
        row += [canary.for_s, canary.began_us, as_text(canary.positions), canary.why, canary.stay]
        row += [as_text(canary.runs)]
        with self._database.change() as database:
            database.execute("INSERT OR REPLACE INTO canaries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def start(self, instance: str, number: int, now_us: int) -> None:
        """Have devices be told of the one that waits for this number."""
        with self._database.change() as database:
            database.execute(
                "UPDATE canaries SET stage = ?, began_us = ? WHERE instance = ? AND number = ? AND stage = ?",
                (CanaryStage.RUNS, now_us, instance, number, CanaryStage.WAITS),
            )

    def place(self, instance: str, positions: Mapping[str, int]) -> None:
        """Note how far the log is as the devices begin."""
        with self._database.change() as database:
            database.execute(
                "UPDATE canaries SET positions = ? WHERE instance = ?", (as_text(positions), instance)
            )

    def decide(self, instance: str, stage: CanaryStage, why: str) -> None:
        """Note what becomes of it."""
        with self._database.change() as database:
            database.execute(
                "UPDATE canaries SET stage = ?, why = ? WHERE instance = ?", (stage, why, instance)
            )

    def release(self, instance: str) -> None:
        """Have the other devices be told the number that the instance has."""
        with self._database.change() as database:
            database.execute("UPDATE canaries SET stay = 0 WHERE instance = ?", (instance,))

    def drop(self, instance: str) -> None:
        """Forget that of an instance."""
        with self._database.change() as database:
            database.execute("DELETE FROM canaries WHERE instance = ?", (instance,))

    # Questions

    def of(self, instance: str) -> Canary | None:
        """The last one of an instance, also one that is over."""
        question = f"SELECT {_COLUMNS} FROM canaries WHERE instance = ?"  # noqa: S608
        for row in self._database.rows(question, (instance,)):
            name, number, stage, selector, devices, for_s, began_us, positions, why, stay, runs = row
            return Canary(
                *(name, number, CanaryStage(stage), selector),
                msgspec.json.decode(devices, type=tuple[str, ...]),
                *(for_s, began_us),
                msgspec.json.decode(positions, type=dict[str, int]),
                *(why, bool(stay)),
                msgspec.json.decode(runs, type=Planned),
            )
        return None

    def under_way(self) -> set[str]:
        """The instances whose canary is not decided."""
        question = "SELECT instance FROM canaries WHERE stage IN (?, ?)"
        return {row[0] for row in self._database.rows(question, (CanaryStage.WAITS, CanaryStage.RUNS))}

    def codes(self) -> set[str]:
        """The signed code that devices of canaries run, or ran."""
        rows = self._database.rows("SELECT DISTINCT json_extract(runs, '$.outline.code') FROM canaries")
        return {row[0] for row in rows}
