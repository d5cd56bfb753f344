"""What must hold at every step and at the end, watched from outside while agents and ingest run.

Stand beside the simulated ports, which tell them of each publish, trim and commit. Guarantees: a breach ends
the run there and then with a `ViolationError` that names the rule; what they see is not changed by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, TypeVar

import msgspec

from geartrain.errors import DiskError
from geartrain.event_time import END_OF_TIME, START_OF_TIME
from geartrain.graph import DEAD_LETTERS
from geartrain.ports import Entry, LedgerChange
from geartrain.wire.codec import decode_control, decode_envelope, decode_header
from geartrain.wire.envelope import Ack, Envelope, Header
from geartrain_edge.status import AgentStatus
from geartrain_simulation.broker import SimBroker
from geartrain_simulation.disk import Platter
from geartrain_simulation.segments import LoggedRow, Row, decode_plain
from geartrain_simulation.stores import LedgerBook, SpoolBook
from geartrain_simulation.world import World

Epoch = tuple[str, str, bytes]
"""(device, flow, epoch)."""
T = TypeVar("T")


class ViolationError(AssertionError):
    """Something that must always hold did not. `rule` says which, in a few words."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule


class Checkers:
    """All rules about the way from spool to log. One for each world."""

    def __init__(
        self,
        world: World,
        broker: SimBroker,
        platter: Platter,
        ledger: LedgerBook,
        *,
        every_step: bool = True,
    ) -> None:
        """`platter`, `ledger`: where ingest keeps the log; `every_step`: else only the end is checked."""
        self._world, self._platter, self._ledger = world, platter, ledger
        self._spools: dict[tuple[str, str], SpoolBook] = {}
        self._contents: dict[Epoch, dict[int, Envelope]] = {}
        self._headers: dict[bytes, Header] = {}
        self._durable: dict[Epoch, int] = {}
        self._acked: dict[Epoch, int] = {}
        self._clocks: dict[tuple[str, str, int], int] = {}
        self._every_step = every_step
        if every_step:
            broker.observers.append(self._published)
            ledger.on_commit = self._committed

    def watch(self, device: str, flow: str, spool: SpoolBook) -> None:
        """Take a device's spool into the rules."""
        self._spools[device, flow] = spool
        if self._every_step:
            spool.on_trim = lambda epoch, through_seq: self._trimmed((device, flow, epoch), through_seq)

    # At every step

    def _published(self, node: str, topic: str, payload: bytes) -> None:
        *_, device, flow, kind = topic.split("/")
        if kind == "up":
            self._sent(device, flow, decode_envelope(payload))
        elif kind == "ack":
            control = decode_control(payload)
            if isinstance(control, Ack):
                self._acknowledged((device, flow, control.epoch), control)

    def _sent(self, device: str, flow: str, envelope: Envelope) -> None:
        header = self._headers.get(envelope.header)
        if header is None:
            header = self._headers[envelope.header] = decode_header(envelope.header)
        batch = f"{device} {header.epoch.hex()} {header.seq}"
        if (header.device, header.flow) != (device, flow):
            self._breach("identity", f"{batch} is sent on the topic of {device} {flow}")
        first = self._contents.setdefault((device, flow, header.epoch), {}).setdefault(header.seq, envelope)
        if (first.header, first.body, first.digest) != (envelope.header, envelope.body, envelope.digest):
            self._breach("one content", f"{batch} is sent with two contents")
        spool = self._spools[device, flow]
        if header.epoch == spool.epoch and header.seq > spool.last_seq:
            self._breach("sent <= committed", f"{batch} is sent, the spool ends at {spool.last_seq}")

    def _acknowledged(self, epoch: Epoch, ack: Ack) -> None:
        durable = self._durable.get(epoch, 0)
        if ack.seq > durable:
            self._breach("acked <= durable", f"{epoch[0]} is told {ack.seq}, durable is {durable}")
        sent = self._contents.get(epoch, {}).get(ack.seq)
        if sent is None or sent.digest != ack.digest:
            self._breach("one content", f"{epoch[0]} is acked {ack.seq} with a digest that is not its own")
        self._acked[epoch] = max(self._acked.get(epoch, 0), ack.seq)

    def _trimmed(self, epoch: Epoch, through_seq: int) -> None:
        acked = self._acked.get(epoch, 0)
        if through_seq > acked:
            self._breach("trimmed <= acked", f"{epoch[0]} trims up to {through_seq}, acked is {acked}")

    def _committed(self, change: LedgerChange) -> None:
        for entry in change.entries:
            place = (entry.flow, entry.channel, entry.partition)
            if entry.segment and self._platter.durable(entry.segment) is None:
                self._breach("named => durable", f"entry {entry.number} of {place} names {entry.segment}")
            if entry.clock < self._clocks.get(place, START_OF_TIME):
                self._breach("clock", f"entry {entry.number} of {place} sets the clock back to {entry.clock}")
            self._clocks[place] = entry.clock
        for cursor in change.cursors:
            epoch = (cursor.device, cursor.flow, cursor.epoch)
            if cursor.seq < self._durable.get(epoch, 0):
                self._breach(
                    "cursor", f"{cursor.device} falls back to {cursor.seq} from {self._durable[epoch]}"
                )
            self._durable[epoch] = cursor.seq

    # At the end

    def check_end(self, status: AgentStatus, spool: SpoolBook) -> None:
        """Compare what a finished agent says of itself with its spool, which has nothing more to send."""
        said = (status.finished, status.spooled_seq, status.acked_seq, status.spool_bytes)
        if said != (True, spool.last_seq, spool.acked_seq, 0) or spool.batches:
            self._breach("agent's end", f"{status.device} says {said}, its spool ends at {spool.last_seq}")

    def check_log(self, expected: Mapping[str, Mapping[str, Sequence[Row]]]) -> None:
        """Compare the log with what each device should have sent: by device and channel, the rows in order.

        All rows, each once, in order per device, none of them late or overtaken; the clock at its end.
        """
        logged = self.logged()
        wanted = {(device, channel): rows for device, by in expected.items() for channel, rows in by.items()}
        for place in sorted(wanted.keys() | logged.keys()):
            found = logged.get(place, [])
            rows = [one.row for one in found]
            due, came = _by_step(place[1], wanted.get(place, ())), _by_step(place[1], rows)
            for step in sorted(due.keys() | came.keys()):
                self._compare(" ".join((*place, step)), due.get(step, []), came.get(step, []))
            if any(one.late or one.overtaken for one in found):
                self._breach("in time", f"{' '.join(place)} has rows that count as late or overtaken")
        for (_, channel, _), entries in sorted(self._ledger.entries.items()):
            if entries[-1].clock != END_OF_TIME:
                self._breach("clock", f"{channel} ends at {entries[-1].clock}")

    def logged(self) -> dict[tuple[str, str], list[LoggedRow]]:
        """What is in the log: by (device, channel), in the order of the entries."""
        found: dict[tuple[str, str], list[LoggedRow]] = {}
        for entry in self._ledger.all_entries():
            for row in self._rows(entry):
                found.setdefault((row.device, entry.channel), []).append(row)
        return found

    def _rows(self, entry: Entry) -> list[LoggedRow]:
        if not entry.segment:
            return []
        try:
            rows = decode_plain(self._platter.read(entry.segment))
        except (DiskError, msgspec.MsgspecError) as error:
            self._breach("readable", f"entry {entry.number} of {entry.channel}: {entry.segment}: {error}")
        rows = rows[entry.first_row : entry.first_row + entry.count]
        if len(rows) != entry.count or any((r.device, r.seq) != (entry.device, entry.seq) for r in rows):
            self._breach("entry", f"entry {entry.number} of {entry.channel} does not hold its rows")
        return rows

    def _compare(self, where: str, wanted: list[Row], found: list[Row]) -> None:
        if found == wanted:
            return
        lost = _without(wanted, found)
        more = _without(found, wanted)
        if lost or more:
            self._breach(
                "exactly once",
                f"{where}: {len(lost)} of {len(wanted)} rows lost, {len(more)} doubled or foreign; "
                f"first lost {lost[:1]}, first other {more[:1]}",
            )
        self._breach("in order", f"{where}: all {len(wanted)} rows are there, but not in their order")

    def _breach(self, rule: str, detail: str) -> NoReturn:
        error = ViolationError(rule, detail)
        self._world.fail(error)
        raise error


def _without(rows: Sequence[T], others: Sequence[T], key: Callable[[T], object] = repr) -> list[T]:
    """The rows that are not among the others, each as often as it is missing there."""
    counts: dict[object, int] = {}
    for other in others:
        counts[key(other)] = counts.get(key(other), 0) + 1
    missing = []
    for row in rows:
        if counts.get(key(row), 0) > 0:
            counts[key(row)] -= 1
        else:
            missing.append(row)
    return missing


def _by_step(channel: str, rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of a channel in order, those of dead letters by the step that refused: between steps they
    have no order, because each step hands them over by the batch.
    """
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(row.fields[0] if channel == DEAD_LETTERS else "", []).append(row)
    return parts
