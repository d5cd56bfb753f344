"""Other cuts for devices of an app that wait for a revision of its part in the data centre.

Between REST, the reconciler and the control store. Guarantees: an instance has one at a time. It waits while
the revision is prepared and logged, and goes with that revision where it is given up.
"""

from __future__ import annotations

import msgspec

from geartrain_cloud.control_store.database import ControlDatabase, as_text
from geartrain_cloud.control_store.model import CutChange, CutRule


class CutChanges:
    """Those of all instances of a platform."""

    def __init__(self, database: ControlDatabase) -> None:
        self._database = database

    # Changes

    def note(self, change: CutChange) -> None:
        """Let devices wait for these cuts."""
        row = (change.instance, change.number, as_text(change.cuts), as_text(change.rules))
        with self._database.change() as database:
            database.execute("INSERT OR REPLACE INTO cut_changes VALUES (?, ?, ?, ?)", row)

    def drop(self, instance: str, above: int = 0) -> None:
        """Forget what devices of the instance wait for, if that is a revision above this number."""
        with self._database.change() as database:
            database.execute("DELETE FROM cut_changes WHERE instance = ? AND number > ?", (instance, above))

    # Questions

    def of(self, instance: str) -> CutChange | None:
        """What devices of the instance wait for."""
        question = "SELECT instance, number, cuts, rules FROM cut_changes WHERE instance = ?"
        for name, number, cuts, rules in self._database.rows(question, (instance,)):
            told = msgspec.json.decode(rules, type=tuple[CutRule, ...])
            return CutChange(name, number, msgspec.json.decode(cuts, type=dict[str, str]), told)
        return None

    def waiting(self) -> set[str]:
        """The instances of which devices wait for another cut."""
        return {row[0] for row in self._database.rows("SELECT instance FROM cut_changes")}
