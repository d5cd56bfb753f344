"""The rules of the end: what the log holds is what the spools took in, to the unit, and the counters say so.

They check I2: per channel `accepted = delivered + declared_dropped + quarantined + dead_lettered`, each
record once and in order per (device, epoch); and every figure that ingest and agents show is true.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from geartrain.errors import WireError
from geartrain.records.event_time import START_OF_TIME
from geartrain.wire.codec import decode_envelope, decode_header
from geartrain_cloud.ingest.counters import DROPPED_PREFIX, ROWS_PREFIX, Counter
from geartrain_cloud.ports import Entry, EntryKind
from geartrain_simulation.checkers.accepted import Accepted, Identity, identity
from geartrain_simulation.checkers.clocks import TIMELESS
from geartrain_simulation.machine.violation import Breach
from geartrain_simulation.stores.segments import LoggedRow
from geartrain_simulation.stores.stores import LedgerBook, SpoolBook


@dataclass(frozen=True, slots=True)
class Logged:
    """An entry of rows, and its rows."""

    entry: Entry
    rows: Sequence[LoggedRow]


def dropped_by(entries: Sequence[Entry], device: str, flow: str, channel: str) -> int:
    """Records of a device that the log says were dropped on a channel of a flow."""
    return sum(
        int(entry.reason["count"])
        for entry in entries
        if entry.kind is EntryKind.DROPPED
        and (entry.device, entry.flow, entry.channel) == (device, flow, channel)
    )


def quarantined_by(ledger: LedgerBook, device: str, flow: str, channel: str) -> int:
    """Records of a device that were quarantined in their place in a channel of a flow, and acked."""
    count = 0
    for one in ledger.quarantined:
        if one.acked and (one.device, one.flow) == (device, flow):
            try:
                header = decode_header(decode_envelope(one.payload).header)
            except WireError:
                continue  # it was acked by its place, so that its header could be read: not this one
            count += one.count if header.channel == channel else 0
    return count


class Balance:
    """Compares one log with what was accepted."""

    def __init__(
        self, breach: Breach, ledger: LedgerBook, logged: Sequence[Logged], ended: Collection[str] = ()
    ) -> None:
        """`ended`: flows that live no more, of which what still came was dropped without an entry."""
        self._breach, self._ledger, self._logged = breach, ledger, logged
        self._entries, self._ended = ledger.all_entries(), ended
        self._disowned = 0
        self._is_disowned_known = True

    def check_device(self, accepted: Accepted, spool: SpoolBook) -> None:
        """The equation of I2 and the order, for each channel of one device."""
        place = accepted.device, accepted.flow
        channels = {e.entry.channel for e in self._logged if (e.entry.device, e.entry.flow) == place}
        undeclared, held = accepted.undeclared(spool), self._held(accepted, spool)
        for channel in sorted(channels | accepted.channels.keys() | undeclared.keys()):
            self._each_once(accepted, channel)
            self._check_order(accepted, channel)
            self._equation(accepted, channel, undeclared.get(channel, 0) + held.get(channel, 0))

    def _held(self, accepted: Accepted, spool: SpoolBook) -> Mapping[str, int]:
        """Records by channel that a spool holds and the log has not taken: its agent was stopped for good."""
        cursor = self._ledger.cursors.get((accepted.device, accepted.flow))
        done = cursor.seq if cursor is not None and cursor.epoch == spool.epoch else 0
        held: dict[str, int] = {}
        for seq, batch in spool.batches.items():
            header = decode_header(batch.header)
            if seq > done and header.channel:
                held[header.channel] = held.get(header.channel, 0) + header.count
        return held

    def _each_once(self, accepted: Accepted, channel: str) -> None:
        taken, seen = accepted.taken(channel), set[Identity]()
        where = f"{accepted.device} {channel}"
        for one in self._of(accepted, channel):
            for logged in one.rows:
                name = identity(logged.row)
                if logged.row not in (taken.rows.get(name), *taken.former.get(name, ())):
                    self._breach("exactly once", f"{where}: {logged.row} was never accepted")
                if name in seen and not accepted.may_repeat:
                    self._breach("exactly once", f"{where}: {logged.row} is in the log twice")
                seen.add(name)

    def _check_order(self, accepted: Accepted, channel: str) -> None:
        """Of an epoch the batches come in the order of their seqs, each with its rows as they stood in it.

        A spool that was set back may have made two batches of one seq, of which one is in the log. Both may
        hold a row, each in an order of its own: steps order the rows of a key, and the keys of one commit
        follow on each other, which other commits come in a former life than in the next.
        """
        where, newest = f"{accepted.device} {channel}", dict[bytes, int]()
        for one in self._of(accepted, channel):
            epoch, seq = one.entry.epoch, one.entry.seq
            if seq <= newest.get(epoch, 0):
                self._breach(
                    "in order", f"{where}: batch {seq} comes behind {newest.get(epoch, 0)} of its epoch"
                )
            newest[epoch] = seq
            came = [identity(logged.row) for logged in one.rows]
            if came not in accepted.contents.get((channel, epoch, seq), ()):
                self._breach("in order", f"{where}: rows are not in the order of their batch {seq}")

    def _equation(self, accepted: Accepted, channel: str, kept: int) -> None:
        """`kept`: what the device has not told or sent yet."""
        device, flow, taken = accepted.device, accepted.flow, accepted.taken(channel)
        delivered = sum(len(one.rows) for one in self._of(accepted, channel))
        dropped = dropped_by(self._entries, device, flow, channel)
        quarantined = quarantined_by(self._ledger, device, flow, channel)
        due = len(taken.rows) + taken.unsealed
        found = delivered + dropped + quarantined + kept
        if accepted.may_repeat:
            self._is_disowned_known = self._is_disowned_known and flow not in self._ended
            return  # what a lost spool held is unknown by its nature; each record once was checked above
        if flow in self._ended and found <= due:
            self._disowned += due - found
            return
        if due != found:
            self._breach(
                "I2",
                f"{device} {channel}: accepted {due}, but delivered {delivered} + dropped {dropped} "
                f"+ quarantined {quarantined} + kept {kept} = {found}",
            )

    def check_counters(self) -> None:
        """Compare ingest's totals with what the ledger and the segments hold."""
        rows = self._ledger_rows()
        entries, ledger = self._entries, self._ledger
        truth = {f"{ROWS_PREFIX}{flow}/{channel}": count for (flow, channel), count in rows.items()}
        truth[Counter.RECORDS_LOGGED] = sum(rows.values())
        truth[Counter.RECORDS_OVERTAKEN] = sum(row.overtaken for one in self._logged for row in one.rows)
        dropped: dict[str, int] = {}
        for entry in entries:
            if entry.kind is EntryKind.DROPPED:
                name = f"{DROPPED_PREFIX}{entry.flow}/{entry.channel}"
                dropped[name] = dropped.get(name, 0) + int(entry.reason["count"])
        truth |= dropped
        if self._is_disowned_known:
            truth[Counter.RECORDS_DROPPED] = sum(dropped.values()) + self._disowned
        truth[Counter.EPOCHS_OPENED] = self._epochs_opened()
        losses = [e for e in entries if e.kind is EntryKind.LOSS and not e.channel]
        lost = {(e.device, e.flow, e.epoch, e.seq) for e in losses}
        truth[Counter.LOSSES] = len(lost)
        truth[Counter.RECORDS_REMOVED] = sum(e.count for e in entries if e.kind is EntryKind.REMOVED)
        truth[Counter.QUARANTINED_BATCHES] = len(ledger.quarantined)
        truth[Counter.QUARANTINE_BYTES] = sum(len(one.payload) for one in ledger.quarantined)
        for name, count in sorted(truth.items()):
            said = ledger.counters.get(str(name), 0)
            if said != count:
                self._breach("counters = truth", f"ingest's {name} says {said}, but it is {count}")
        taken = ledger.counters.get(Counter.BATCHES_APPENDED, 0) + ledger.counters.get(
            Counter.BATCHES_DROPPED, 0
        )
        taken += ledger.counters.get(Counter.BATCHES_LOST, 0)
        seqs = sum(c.seq for c in ledger.cursors.values()) + sum(c.seq for c in ledger.closed.values())
        if taken != seqs:
            self._breach("counters = truth", f"ingest counts {taken} batches taken, its cursors {seqs}")

    def _epochs_opened(self) -> int:
        """How many epochs the cursors count; each is an entry, but for those of flows that had ended."""
        counts = {place: cursor.ordinal for place, cursor in self._ledger.cursors.items()}
        opened = {
            (e.device, e.flow, e.epoch)
            for e in self._entries
            if e.kind in (EntryKind.JOINED, EntryKind.EPOCH)
        }
        for place, count in sorted(counts.items()):
            noted = sum(one[:2] == place for one in opened)
            if noted != count and (place[1] not in self._ended or noted > count):
                self._breach("counters = truth", f"{place} has {count} epochs, and entries of {noted}")
        return sum(counts.values())

    def check_overtaken(self, above: Mapping[str, Collection[str]]) -> None:
        """A row counts as overtaken where it lies below what readers had seen of its channel: the clocks of
        the entry before its own, of whatever channel. `above`: the sources of each channel.
        """
        seen = {(e.flow, e.partition, e.number): e for e in self._entries}
        for one in self._logged:
            entry = one.entry
            before = seen.get((entry.flow, entry.partition, entry.number - 1))
            clock = START_OF_TIME
            if before is not None and entry.channel not in TIMELESS:
                if entry.channel not in above:
                    self._breach("channels", f"rows stand in {entry.channel!r}, which no plan has")
                clock = before.clock(above[entry.channel])
            for logged in one.rows:
                if logged.overtaken != (logged.row.time < clock):
                    self._breach(
                        "overtaken",
                        f"{entry.device} {entry.channel}: {logged.row} counts as overtaken: "
                        f"{logged.overtaken}, but readers had seen {clock}",
                    )
        unknown = self._ledger.counters.get(Counter.WATERMARKS_UNKNOWN, 0)
        if unknown:
            self._breach("watermark", f"{unknown} watermarks were of sources that their devices do not have")

    def check_agent(self, accepted: Accepted, spool: SpoolBook) -> None:
        """Compare an agent's totals with what its spool took in."""
        if accepted.may_repeat:
            return  # the totals of a lost spool are gone with it
        for channel, taken in sorted(accepted.channels.items()):
            undeclared = accepted.undeclared(spool).get(channel, 0)
            unsealed = taken.unsealed + undeclared
            for name, count in (("rows", len(taken.rows) + unsealed), ("dropped", unsealed)):
                said = spool.counters.get(f"{name}.{channel}", 0)
                if said != count:
                    detail = f"{accepted.device}'s {name}.{channel} says {said}, but it is {count}"
                    self._breach("counters = truth", detail)

    def _ledger_rows(self) -> Mapping[tuple[str, str], int]:
        rows: dict[tuple[str, str], int] = {}
        for one in self._logged:
            place = (one.entry.flow, one.entry.channel)
            rows[place] = rows.get(place, 0) + len(one.rows)
        return rows

    def _of(self, accepted: Accepted, channel: str) -> list[Logged]:
        place = accepted.device, accepted.flow, channel
        return [e for e in self._logged if (e.entry.device, e.entry.flow, e.entry.channel) == place]
