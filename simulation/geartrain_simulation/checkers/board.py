"""What must always hold at every step and at the end, watched from outside while agents and ingest run.

The simulated ports tell the board of each publish, trim and commit. Guarantees: a breach ends the run at once
with a `ViolationError` that names the rule; watching changes nothing in the run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NoReturn

import msgspec

from geartrain.errors import DiskError
from geartrain.ports import SplitProgress, SpoolCommit, SpooledBatch
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.ingest.ingest import Ingest
from geartrain_cloud.ports import NO_SOURCE, AckCursor, Entry, EntryKind, LedgerChange
from geartrain_edge.agent.agent import Agent
from geartrain_edge.agent.status import AgentStatus
from geartrain_edge.settings import AgentSettings
from geartrain_simulation.checkers.accepted import Accepted
from geartrain_simulation.checkers.balance import Balance, Logged
from geartrain_simulation.checkers.births import Births
from geartrain_simulation.checkers.caps import Caps, agent_holds, ingest_holds, ledger_holds
from geartrain_simulation.checkers.clocks import Clocks
from geartrain_simulation.checkers.delivery import Delivery
from geartrain_simulation.checkers.drain import Drain
from geartrain_simulation.checkers.expected import Due, Expected
from geartrain_simulation.checkers.members import Members
from geartrain_simulation.machine.broker import SimBroker
from geartrain_simulation.machine.platter import Platter
from geartrain_simulation.machine.violation import ViolationError
from geartrain_simulation.machine.world import World
from geartrain_simulation.stores.segments import LoggedRow, decode_plain
from geartrain_simulation.stores.stores import LedgerBook, SpoolBook


class Checkers:
    """All rules about the way from spool to log. One for each world."""

    def __init__(
        self,
        world: World,
        broker: SimBroker,
        platter: Platter,
        ledger: LedgerBook,
        above: Mapping[str, Collection[str]],
        *,
        every_step: bool = True,
    ) -> None:
        """`platter`, `ledger`: where ingest keeps the log; above: the sources of each channel; `every_step`:
        else only the end is checked.
        """
        self._above = above
        self._world, self._platter, self._ledger = world, platter, ledger
        self._spools: dict[tuple[str, str], SpoolBook] = {}
        self._settings: dict[tuple[str, str], AgentSettings] = {}
        self._accepted: dict[tuple[str, str], Accepted] = {}
        self.caps = Caps(self.breach)
        self.drain = Drain(self.breach, world)
        self.delivery = Delivery(self.breach, self._spools, platter, ledger)
        self.clocks = Clocks(self.breach, self._spools, self._accepted, self.delivery.durable, above)
        self.members = Members(self.breach)
        self.births = Births(self.breach)
        self._remembered: dict[tuple[str, int, int], list[LoggedRow]] | None = None
        self._every_step = every_step
        self.opened: dict[bytes, Mapping[tuple[str, str], SplitProgress]] = {}
        """By epoch, how far its device had come as ingest opened it."""
        self.stands = set[str]()
        """Sources whose clocks need not end: nothing reads them any more, and a device that never had
        them says nothing of them.
        """
        ledger.on_commit = self._committed
        if every_step:
            broker.observers.append(self._published)

    def watch(self, device: str, flow: str, spool: SpoolBook, settings: AgentSettings | None = None) -> None:
        """Take a device's spool into the rules; a further call says that the device lost its former one."""
        place = (device, flow)
        if place in self._spools:
            self.repeats(device, flow, is_lost=True)
        self._spools[place] = spool
        self._accepted.setdefault(place, Accepted(device, flow, self.breach))
        if settings is not None:
            self._settings[place] = settings
        self._hear(place, spool)

    def watch_copy(self, device: str, flow: str, spool: SpoolBook, settings: AgentSettings) -> None:
        """Take the second spool of a device that has two into the rules."""
        self._settings[device, flow] = settings
        self._hear((device, flow), spool)

    def _hear(self, place: tuple[str, str], spool: SpoolBook) -> None:
        device, flow = place
        spool.on_commit = lambda change: self._spooled(place, spool, change)
        spool.on_renew = lambda batches: self._renewed(place, spool, batches)
        if self._every_step:
            spool.on_trim = lambda epoch, through_seq: self.delivery.trimmed(
                (device, flow, epoch), through_seq
            )

    def repeats(self, device: str, flow: str, *, is_lost: bool = False, is_copied: bool = False) -> None:
        """Say that a device's spool was copied or restored, or lost: its records may come in again."""
        if is_copied:
            self._accepted[device, flow].may_repeat = True
        else:
            self._accepted[device, flow].begin_again(is_lost=is_lost)
        self.delivery.doubles.add(device)
        self.clocks.excused.add(device)

    def watch_agent(self, agent: Agent, settings: AgentSettings, node: str = "") -> None:
        """Take what an agent holds in memory into the rules, in place of the node's former one; node: by
        default that of the device's name.
        """
        self.caps.watch(node or settings.device, lambda: agent_holds(agent, settings))

    def watch_ingest(self, name: str, ingest: Ingest, config: IngestConfig, ingests: int = 1) -> None:
        """Take what an ingest holds in memory into the rules, in place of the node's former one; ingests: how
        many share the ledger.
        """
        self.caps.watch(name, lambda: ingest_holds(ingest, config, self._rows_in_batch_max))
        self.caps.watch("the ledger", lambda: ledger_holds(self._ledger, config, ingests))

    def remember_rows(self) -> None:
        """Keep the rows of every entry that is committed: retention takes them out of the log."""
        self._remembered = {}

    def _rows_in_batch_max(self) -> int:
        return max((one.rows_in_batch_max for one in self._accepted.values()), default=1)

    # At every step

    def _published(self, node: str, topic: str, payload: bytes) -> None:
        self.delivery.published(topic, payload)
        *_, device, flow, kind = topic.split("/")
        if kind == "up" and (device, flow) in self._spools:
            self.drain.sent(f"{device}/{flow}", len(self._spools[device, flow].batches))
        self.caps.check()

    def _spooled(self, place: tuple[str, str], spool: SpoolBook, change: SpoolCommit) -> None:
        self._accepted[place].committed(spool, change)
        self.births.committed(place[0], change)
        if not self._every_step:
            return
        if change.batches:
            self.drain.fed("/".join(place), len(spool.batches) - len(change.batches), len(change.batches))
        if place in self._settings:
            self.caps.check_spool(self._settings[place], spool, change)
        self.caps.check()

    def _renewed(self, place: tuple[str, str], spool: SpoolBook, batches: Sequence[SpooledBatch]) -> None:
        self._accepted[place].renewed(spool, batches)
        self.caps.renewed(spool)

    def _committed(self, change: LedgerChange) -> None:
        if self._every_step:
            self.delivery.committed(change)
            self.members.committed(change)
            self.clocks.committed(change)
            for cursor in change.cursors:
                if not cursor.seq:
                    self._opened(cursor)
            self.caps.check()
        if self._remembered is not None:
            rows = {_place(entry): self.rows_of(entry) for entry in change.entries if entry.segment}
            self._remembered.update(rows)

    def _opened(self, cursor: AckCursor) -> None:
        self.opened.setdefault(cursor.epoch, cursor.positions)
        if accepted := self._accepted.get((cursor.device, cursor.flow)):
            accepted.opened(cursor.epoch, cursor.positions)

    # At the end

    def check_end(self, status: AgentStatus, spool: SpoolBook, *, drains: bool = True) -> None:
        """Compare what a finished agent says of itself with its spool, which has nothing more to send.

        drains: in bounded time; two agents of one name throw each other out of the broker while both live.
        """
        said = (status.finished, status.spooled_seq, status.acked_seq, status.spool_bytes)
        if said != (True, spool.last_seq, spool.acked_seq, 0) or spool.batches:
            self.breach("agent's end", f"{status.device} says {said}, its spool ends at {spool.last_seq}")
        if self._every_step and drains:
            self.drain.emptied(f"{status.device}/{status.flow}")

    def check_log(self, expected: Due, *, bounded: bool = True, ended: Collection[str] = ()) -> None:
        """Compare the log with what was accepted, and with what each device should have sent.

        expected: the rows of the devices of which these are known. All of them are there, each once, in order
        per device, none late or overtaken, but for those declared as dropped or quarantined; bounded: the
        clock is at its end; ended: flows that live no more.
        """
        logged = self._all_logged()
        balance = Balance(self.breach, self._ledger, logged, ended)
        for place, accepted in sorted(self._accepted.items()):
            balance.check_device(accepted, self._spools[place])
            balance.check_agent(accepted, self._spools[place])
        balance.check_counters()
        balance.check_overtaken(self._above)
        excused = self.clocks.excused | self.clocks.latecomers
        Expected(self.breach, self._ledger, self._accepted, excused).check(expected, logged)
        if bounded:
            self._check_clocks()

    def _check_clocks(self) -> None:
        """Where all sources have ended, so has the clock of each that some device has, in every partition."""
        for (_, partition, source), clock in self._ends().items():
            if clock != END_OF_TIME and source not in self.stands:
                self.breach("clock", f"{source} ends at {clock} in partition {partition}")

    def clocks_have_ended(self) -> bool:
        """Whether the clocks of every partition are at the end of time."""
        return all(clock == END_OF_TIME for clock in self._ends().values())

    def _ends(self) -> dict[tuple[str, int, str], int]:
        """Where the clock of each source that some device has stands in each partition."""
        entries, found = self._ledger.entries, dict[tuple[str, int, str], int]()
        all_entries = self._ledger.all_entries()
        assigned = [e for e in all_entries if e.kind is EntryKind.ASSIGNED and e.source != NO_SOURCE]
        members = {(e.flow, e.source, e.device) for e in assigned}
        members -= {(e.flow, e.source, e.device) for e in all_entries if e.kind is EntryKind.LACKS}
        members &= self.members.all
        for flow, source in sorted({member[:2] for member in members}):
            for partition in range(max(len(self._ledger.terms), 1)):
                held = entries.get((flow, partition))
                found[flow, partition, source] = held[-1].clock([source]) if held else START_OF_TIME
        return found

    def sequence(self) -> Iterator[tuple[int, str, LoggedRow]]:
        """What is in the log: (partition, channel, row), in the order of each partition's entries."""
        for one in self._all_logged():
            for row in one.rows:
                yield one.entry.partition, one.entry.channel, row

    def logged(self) -> dict[tuple[str, str], list[LoggedRow]]:
        """The same by (device, channel), in the order of the entries."""
        found: dict[tuple[str, str], list[LoggedRow]] = {}
        for _, channel, row in self.sequence():
            found.setdefault((row.device, channel), []).append(row)
        return found

    def _all_logged(self) -> list[Logged]:
        return [
            Logged(entry, self.rows_of(entry))
            for entry in self._ledger.all_entries()
            if entry.segment or entry.kind is EntryKind.REMOVED
        ]

    def rows_of(self, entry: Entry) -> list[LoggedRow]:
        """The rows of an entry, none where it has none; those that retention has removed as they were."""
        if not entry.segment:
            if entry.kind is not EntryKind.REMOVED:
                return []
            if (rows := (self._remembered or {}).get(_place(entry))) is None:
                detail = f"entry {entry.number} of {entry.channel} was removed, and its rows were never there"
                self.breach("entry", detail)
            return rows
        try:
            rows = decode_plain(self._platter.read(entry.segment))
        except (DiskError, msgspec.MsgspecError) as error:
            self.breach("readable", f"entry {entry.number} of {entry.channel}: {entry.segment}: {error}")
        rows = rows[entry.first_row : entry.first_row + entry.count]
        if len(rows) != entry.count or any((r.device, r.seq) != (entry.device, entry.seq) for r in rows):
            self.breach("entry", f"entry {entry.number} of {entry.channel} does not hold its rows")
        return rows

    def breach(self, rule: str, detail: str) -> NoReturn:
        """End the run with a breach of a rule."""
        error = ViolationError(rule, detail)
        self._world.fail(error)
        raise error


def _place(entry: Entry) -> tuple[str, int, int]:
    return entry.flow, entry.partition, entry.number
