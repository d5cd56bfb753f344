"""The revisions of the apps that run: what each ran before, what it runs, and what it is to go over to.

Between REST, the reconciler and the control store. Guarantees: numbers go up by one, and the log is told of
each at most once. What the log was told stays. Only the next one may be replaced or given up, of which the
log was not told.
"""

from __future__ import annotations

from msgspec.structs import replace

from geartrain_cloud.control_store.canaries import Canaries
from geartrain_cloud.control_store.database import ControlDatabase, to_row
from geartrain_cloud.control_store.model import Canary, CanaryStage, Instance, Planned

REVISIONS_MAX = 1_000
"""Of one instance."""


class Revisions:
    """Those of all instances of a platform."""

    def __init__(self, database: ControlDatabase) -> None:
        self._database, self.canaries = database, Canaries(database)

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

    def told(self, instance: Instance, device: str = "") -> Instance:
        """The instance as a device is told of it: as it is `in_force`. Those of a canary are told what that
        runs. The others stay with the number before it, as long as the instance runs the same. device: "" for
        one that has no part in a canary.
        """
        told = self.in_force(instance)
        canary = self.canaries.of(instance.instance)
        if canary is None or not canary.began_us or told.revision < canary.number:
            return told
        if device in canary.devices:
            return _as(told, canary.runs) if told.revision == canary.number else told
        went_back = canary.stage is CanaryStage.BACK and told.revision == canary.number + 1
        if canary.stay and (told.revision == canary.number or went_back):
            before = next(one for one in self.former(told) if one.number == canary.number - 1)
            return replace(told, revision=before.number, drops=before.drops)
        return told

    def canary_of(self, instance: Instance) -> Canary | None:
        """The canary of an instance that is not over: the log was not told of what comes after it."""
        canary = self.canaries.of(instance.instance)
        if canary is None or instance.revision > canary.number or not instance.is_to_run:
            return None
        return canary if canary.began_us or not canary.stage.is_decided else None

    def in_force(self, instance: Instance) -> Instance:
        """The instance as it was before, until a revision is in force to which devices go over."""
        if not instance.outline.crosses or not self._database.rows(
            "SELECT 1 FROM cut_changes WHERE instance = ? AND number = ?",
            (instance.instance, instance.revision),
        ):
            return instance
        return _as(instance, self.in_force_before(instance)[-1])

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


def _as(instance: Instance, one: Planned) -> Instance:
    """The instance with what one of its revisions runs."""
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
