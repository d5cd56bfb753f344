"""The roster in memory, as control has it committed, and ingest's way to it.

Beside the simulated ledger. Guarantees: a change is one transaction that raises the serial, and what an
instance has come to is what a document may be. A read may take its time, fail, or find a row that is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random

import msgspec

from geartrain.errors import LedgerError
from geartrain.planning import Plan
from geartrain_cloud.ingest.flow import SYSTEM_CHANNELS
from geartrain_cloud.log.roster import RosterChannel, RosterDocument, RosterRow
from geartrain_simulation.machine.faults import Faults
from geartrain_simulation.machine.world import Process


def document_of(
    plans: Sequence[Plan], first: RosterDocument, devices: Collection[str], source: str
) -> RosterDocument:
    """What the roster says of a flow of one source, which all of its devices have. plans: those of all its
    revisions up to now, since some device may still send what is gone; first: what
    says how long ingest waits.
    """
    found, texts = dict[str, RosterChannel](), dict[str, list[str]]()
    for plan in plans:
        for channel in plan.channels:
            if channel.id in SYSTEM_CHANNELS:
                continue
            text, known = channel.schema.to_json(), texts.setdefault(channel.id, [])
            former = tuple(other for other in known if other != text)
            known += [text] if text not in known else []
            sources = tuple(sorted(channel.sources))
            found[channel.id] = RosterChannel(sources, channel.schema.schema_id, former)
    has: dict[str, tuple[str, ...]] = dict.fromkeys(devices, (source,))
    return RosterDocument(
        found, (source,), has, join_timeout_s=first.join_timeout_s, idle_after_s=first.idle_after_s
    )


class RosterBook:
    """What the roster's file holds. `taken`: the newest serial behind which ingest has asked for more, so
    that it follows all up to there; `unreadable`: how often a read fails.
    """

    def __init__(self) -> None:
        self.rows: dict[str, RosterRow] = {}
        self.serial = 0
        self.taken = 0
        self.unreadable = 0.0

    def document(self, instance: str) -> RosterDocument:
        """Of an instance that can be read."""
        document = self.rows[instance].document
        assert document is not None
        return document

    def put(self, instance: str, document: RosterDocument) -> None:
        """Commit a document; raises `ConfigError` for one that cannot be."""
        self.serial += 1
        self.rows[instance] = RosterRow(instance, self.serial, document.checked(instance))

    def change(self, instance: str, change: Callable[[RosterDocument], RosterDocument]) -> None:
        """Commit a change of a document, unless it changes nothing."""
        before = self.document(instance)
        if (after := change(before)) != before:
            self.put(instance, after)

    def assign(self, instance: str, device: str, sources: tuple[str, ...]) -> None:
        """Give an instance a device."""
        self.change(instance, lambda d: msgspec.structs.replace(d, devices={**d.devices, device: sources}))

    def retire(self, instance: str, device: str) -> None:
        """Take a device out of an instance."""
        self.change(
            instance,
            lambda d: msgspec.structs.replace(
                d, devices={one: has for one, has in d.devices.items() if one != device}
            ),
        )

    def revise(self, instance: str) -> None:
        """Want the next revision of an instance."""
        self.change(instance, lambda d: msgspec.structs.replace(d, revision=d.revision + 1))

    def end(self, instance: str) -> None:
        """End an instance."""
        self.change(instance, lambda d: msgspec.structs.replace(d, devices={}, ended=True))


class SimRoster:
    """`geartrain_cloud.ingest.roster.Roster` of one process."""

    def __init__(self, process: Process, book: RosterBook, faults: Faults) -> None:
        self._process, self._book, self._faults = process, book, faults
        self._random: Random = process.random("roster")

    async def after(self, serial: int) -> list[RosterRow]:
        """What changed after `serial`; raises `LedgerError`."""
        self._book.taken = max(self._book.taken, serial)
        self._process.point("roster.read", str(serial))
        await self._process.pause(self._random, self._faults)
        if self._random.random() < self._book.unreadable:
            raise LedgerError("the roster is locked")
        rows = sorted(self._book.rows.values(), key=lambda row: row.serial)
        found = [row for row in rows if row.serial > serial]
        self._process.point("roster.read done", str(len(found)))
        return found
