"""The revisions of the apps that run: what each ran before, what it runs, and what it is to go over to.

Between REST, the reconciler and the control store. Guarantees: numbers go up by one, and the log is told of
each at most once. What the log was told stays. Only the next one may be replaced or given up, of which the
log was not told.
"""

from __future__ import annotations

from msgspec.structs import replace

from geartrain_cloud.control_store.database import ControlDatabase, to_row
from geartrain_cloud.control_store.model import Instance, Planned

REVISIONS_MAX = 1_000
"""Of one instance."""


class Revisions:
    """Those of all instances of a platform."""

    def __init__(self, database: ControlDatabase) -> None:
        self._database = database

    # Changes

    def plan(self, planned: Planned) -> None:
        """Note what an instance is to go over to next, in place of what was noted before."""
        with self._database.change() as database:
            row = to_row(planned)
            places = ", ".join("?" * len(row))
            database.execute(f"INSERT OR REPLACE INTO revisions VALUES ({places})", row)  # noqa: S608

    def give_up(self, instance: Instance) -> bool:
        """Forget what the instance was to go over to next; whether there was such."""
        with self._database.change() as database:
            forgotten = database.execute(
                "DELETE FROM revisions WHERE instance = ? AND number > ?",
                (instance.instance, instance.revision),
            )
            return forgotten.rowcount > 0

    def retire(self, instance: Instance) -> None:
        """Note what the instance runs as a former revision, and forget the next one, which it becomes. By
        this order events tell it from one that is given up.
        """
        with self._database.change():
            self.plan(
                Planned(
                    instance.instance,
                    instance.revision,
                    instance.flow,
                    instance.cut,
                    instance.options,
                    instance.device_options,
                    instance.outline,
                    instance.drops,
                    instance.made_us,
                )
            )
            self.give_up(instance)

    def drop(self, instance: str) -> None:
        """Forget all revisions of an instance."""
        with self._database.change() as database:
            database.execute("DELETE FROM revisions WHERE instance = ?", (instance,))

    # Questions

    def next_of(self, instance: Instance) -> Planned | None:
        """What the instance is to go over to next, while the log was not told of it."""
        return next((one for one in self._others(instance) if one.number > instance.revision), None)

    def former(self, instance: Instance) -> list[Planned]:
        """What the instance ran before, from the first on."""
        return [one for one in self._others(instance) if one.number < instance.revision]

    def in_force_before(self, instance: Instance) -> list[Planned]:
        """As `former`, without those that were passed over since they never came into force."""
        found: list[Planned] = []
        number = instance.outline.follows or instance.revision - 1
        for one in reversed(self.former(instance)):
            if one.number == number:
                found.append(one)
                number = one.outline.follows or one.number - 1
        return found[::-1]

    def told(self, instance: Instance) -> Instance:
        """The instance as its devices are told of it: as it was before, until a revision is in force to which
        they go over.
        """
        if not instance.outline.crosses or not self._database.rows(
            "SELECT 1 FROM cut_changes WHERE instance = ? AND number = ?",
            (instance.instance, instance.revision),
        ):
            return instance
        one = self.in_force_before(instance)[-1]
        return replace(
            instance,
            revision=one.number,
            flow=one.flow,
            cut=one.cut,
            options=one.options,
            device_options=one.device_options,
            outline=one.outline,
            drops=one.drops,
        )

    def dropped(self, instance: Instance) -> dict[str, int]:
        """By step the number of the newest revision by which it has lost what it kept, of those that the
        instance has run; instance: as its devices are told of it.
        """
        ran = [(one.number, one.drops) for one in self.in_force_before(instance)]
        return {
            step: number for number, drops in (*ran, (instance.revision, instance.drops)) for step in drops
        }

    def _others(self, instance: Instance) -> list[Planned]:
        question = "SELECT * FROM revisions WHERE instance = ? ORDER BY number"
        return self._database.read(Planned, question, (instance.instance,))

    def with_others(self) -> set[str]:
        """The instances that have, had or will have more than one revision."""
        return {row[0] for row in self._database.rows("SELECT DISTINCT instance FROM revisions")}

    def codes(self) -> set[str]:
        """The signed code of all revisions that are kept here."""
        rows = self._database.rows(
            "SELECT DISTINCT json_extract(outline, '$.code') FROM revisions "
            "WHERE json_extract(outline, '$.bundled')"
        )
        return {row[0] for row in rows}
