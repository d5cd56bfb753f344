"""Devices that go over from one revision of their steps to the next, while all else goes wrong.

Beside the usual worlds, with their faults: kills, losses of power, packets lost, doubled and out of order.
The roster names revision after revision. Once the log has brought one, its devices are told, some of them
late, and some before, as nobody should be. Guarantees: the run is a function of its seed. The log has the
crossings of a device in order, each behind the revision that it goes over to. It has the rows that plain
Python makes of the device's records, given the places where it has gone over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import msgspec
from msgspec.structs import replace as with_fields

from geartrain.graph.graph import DEAD_LETTERS, Graph
from geartrain.planning import Plan
from geartrain.ports import SplitProgress, SpoolCommit, SpooledBatch
from geartrain.revision import Revision
from geartrain.wire.codec import decode_header
from geartrain.wire.crossing import decode_crossing
from geartrain.wire.envelope import BatchKind
from geartrain_cloud.ingest.flow import SYSTEM_CHANNELS
from geartrain_cloud.log.entry_reasons import EntryCode, entry_sentence, number_of
from geartrain_cloud.log.part import partition_of
from geartrain_cloud.log.roster import RosterDocument
from geartrain_cloud.ports import Entry, EntryKind, LedgerChange
from geartrain_edge.agent.crossing import NUMBERS, REVISION, Numbers
from geartrain_edge.agent.session import HELLO
from geartrain_edge.errors import AlarmError
from geartrain_edge.settings import AgentSettings, Policy
from geartrain_simulation.fleet.devices import Device
from geartrain_simulation.fleet.fleet import Fleet, Outcome
from geartrain_simulation.fleet.readings import Readings, expected_rows
from geartrain_simulation.fleet.revision_flow import (
    Form,
    Leg,
    draw_forms,
    expected,
    graph_of,
    make_versions,
    records_of,
)
from geartrain_simulation.fleet.troubles import HEALED_S, INGEST, LOG_POINTS, SPOOLS, Fault, draw_faults
from geartrain_simulation.machine.world import Node
from geartrain_simulation.stores.rosters import document_of
from geartrain_simulation.stores.segments import Row
from geartrain_simulation.stores.spools import SpoolBook

SOURCE, DOORS = "readings", "doors"
CROSSING_POINTS = (
    *("spool.open done", "spool.commit", "spool.write half", "spool.write done", "spool.fsync done"),
    *("spool.commit done", "net.publish", "net.publish done"),
)
"""Where a device is killed that has been told to go over."""
WELCOME_POINTS = ("spool.commit", "spool.write done", "net.publish", "net.publish done")
"""Where one is killed that has a fresh spool."""
_LOOK_S = 0.1


class RevisionFleet(Fleet):
    """One run."""

    stale_p = 0.08
    """How likely a life runs a former revision."""

    def __init__(self, seed: int) -> None:
        self._random = random = Random(f"{seed}/revisions")
        self.forms, self._pause_s = self._drawn_forms(seed), random.choice((0.6, 1.0, 1.5))
        self._lives = dict[str, int]()
        devices = [_drawn(seed, number) for number in range(1, random.choice((1, 2, 2, 3)) + 1)]
        self._newest = {device.name: 1 for device in devices}
        self._runs = dict(self._newest)
        self._begun: dict[bytes, int] = {}
        """By epoch, the revision that a spool was begun with that does not know of a crossing."""
        self._doors: dict[tuple[str, int], int] = {}
        """By device and number of a crossing, where the second source stood."""
        self._sealed: dict[bytes, tuple[int, Leg]] = {}
        """By the digest of a crossing, its number, and what begins there."""
        self._crossed: dict[tuple[str, int], Leg] = {}
        """By device and number, what begins at a crossing that is in the log."""
        self.legs: dict[str, list[Leg]] = {}
        self.held, self.stale, self.behind, self.unheard = 0, 0, 0, 0
        """Devices that were told too soon; lives with a former revision; revisions that devices left out; and
        crossings that came with the first welcome of their spools.
        """
        faults = [one for one in draw_faults(seed, devices) if one.kind not in SPOOLS]
        spoilt = [one for one in devices if self._random.random() < 0.3]
        faults += [_spool_fault(self._random, device.name) for device in spoilt]
        self.spoilt = {device.name for device in spoilt}
        self.restored = {fault.node for fault in faults if fault.kind == "restore"}
        super().__init__(seed, devices=devices, faults=faults)
        self.lives = replace(self.lives, turns=self._turn, mends=self._mend)
        inner = self.ledger.on_commit

        def heard(change: LedgerChange) -> None:
            for one in change.digests:
                if one.digest in self._sealed:
                    number, leg = self._sealed[one.digest]
                    self._crossed[one.device, number] = leg
            inner(change)

        self.ledger.on_commit = heard

    # What there is

    def _drawn_forms(self, seed: int) -> list[Form]:
        """The revisions."""
        return draw_forms(seed)

    def _graph(self) -> Graph:
        records = {device.name: device.records for device in self.devices}
        self.source = Readings(seed=self._seed, records=records, pause_s_max=self._pause_s)
        return graph_of(self.forms[0], self.source)

    def _cut(self, graph: Graph) -> Plan:
        self.versions = make_versions(self.forms, self.source)
        channels = {channel.id: channel for one in self.versions for channel in one.plan.channels}
        return msgspec.structs.replace(self.versions[0].plan, channels=tuple(channels.values()))

    def _told(self, document: RosterDocument) -> RosterDocument:
        """The roster knows the first revision."""
        self._first = document
        return self._document_of(1)

    def _agent_node(self, device: Device, node: str, book: SpoolBook) -> Node:
        made = super()._agent_node(device, node, book)
        on_commit, on_renew = book.on_commit, book.on_renew

        def committed(change: SpoolCommit) -> None:
            # With its first welcome a spool stands where its device does, and reads again what is before.
            is_first = HELLO in change.state
            for batch in change.batches:
                self._hear(device.name, book, batch, is_anew=is_first and bool(change.positions))
                self.unheard += is_first and decode_header(batch.header).kind is BatchKind.CROSSING
            on_commit(change)

        def renewed(batches: Sequence[SpooledBatch]) -> None:
            self._note_begun(book)
            held = [
                self._sealed[one.digest] for one in book.former_batches.values() if one.digest in self._sealed
            ]
            anew = {number for number, leg in held if leg.is_fresh}
            for batch in batches:
                header = decode_header(batch.header)
                if header.kind is BatchKind.CROSSING:
                    self._note_crossing(device.name, batch, is_anew=header.crossing in anew)
            on_renew(batches)

        book.on_commit, book.on_renew = committed, renewed
        return made

    # What happens

    def _arrange(self) -> None:
        super()._arrange()
        self._begin(self._random.random() < 0.2)

    def _begin(self, is_hasty: bool) -> None:
        """The next revisions come once all devices have been heard of; in some runs, sooner."""
        if is_hasty or len(self.ledger.cursors) == len(self.devices):
            self._later_revision(2)
        else:
            self.world.later(_LOOK_S, self._begin, is_hasty)

    def _later_revision(self, number: int) -> None:
        if number > len(self.versions):
            return
        in_s = self._random.uniform(0.2, 2.0)
        name = self._random.choice(self.devices).name
        if self._random.random() < 0.25:
            self.world.later(in_s, self._tell, name, number)
            in_s += 3.0
        self.world.later(in_s, self._revise, number)

    def _revise(self, number: int) -> None:
        """The roster names the revision; sometimes ingest dies over it."""
        self.world.note("world", "revision", f"{number} {self.forms[number - 1]}")
        self.roster.put(self.flow, self._document_of(number))
        if self._random.random() < 0.4:
            point, nth = self._random.choice(LOG_POINTS), self._random.randint(1, 3)
            self.world.nodes[INGEST].kill_at_next(nth, point, power=self._random.random() < 0.5)
        self._wait(number)

    def _document_of(self, number: int) -> RosterDocument:
        """What the roster says from a revision on."""
        plans = [one.plan for one in self.versions[:number]]
        names = [device.name for device in self.devices]
        return with_fields(document_of(plans, self._first, names, SOURCE), revision=number)

    def _wait(self, number: int) -> None:
        """Tell the devices once the log has brought the revision, and the data centre has gone over."""
        if not self._is_brought(number):
            self.world.later(_LOOK_S, self._wait, number)
            return
        for device in self.devices:
            late_s = self._random.choice((0.3, 1.0, 8.0))
            if device.name in self.spoilt and self._random.random() < 0.5:
                late_s = 20.0
            self.world.later(self._random.uniform(0, late_s), self._tell, device.name, number)
        self._later_revision(number + 1)

    def _is_brought(self, number: int) -> bool:
        return self.checkers.members.have_brought(self.flow, self._configs[INGEST].partitions, number)

    def _tell(self, name: str, number: int) -> None:
        """A device hears of a revision; its agent is started again with that, and may die as it goes over."""
        if number <= self._newest[name]:
            return
        self.held += not self._is_brought(number)
        self.behind += number - self._newest[name] - 1
        self._newest[name] = number
        self.world.note("world", "told", f"{name} {number}")
        node = self.world.nodes[name]
        if self._random.random() < 0.6:
            point, nth = self._random.choice(CROSSING_POINTS), self._random.randint(1, 3)
            node.kill_at_next(nth, point, power=self._random.random() < 0.5)
        node.stop()

    def _turn(self, node: str, settings: AgentSettings) -> tuple[AgentSettings, Plan]:
        """What the next life of a node runs: the newest that it was told, seldom one of before."""
        life = self._lives[node] = self._lives.get(node, 0) + 1
        number, random = self._newest[node], Random(f"{self._seed}/{node}/{life}/stale")
        if number > 1 and random.random() < self.stale_p:
            number, self.stale = random.randrange(1, number), self.stale + 1
        self.world.note(node, "revision", str(number))
        self._runs[node] = number
        one = self.versions[number - 1]
        return with_fields(settings, revision=number, drops=one.drops), one.plan

    def _hear(self, name: str, book: SpoolBook, batch: SpooledBatch, *, is_anew: bool) -> None:
        """Note where a device begins, and where it goes over; all of that is one commit."""
        header = decode_header(batch.header)
        if batch.seq == 1:
            self._note_begun(book)
            self._surprise(name)
        if header.kind is not BatchKind.CROSSING:
            return
        said, place = decode_crossing(batch.body)[0], _position(header.positions)
        numbers = Numbers.of(book.state.get(NUMBERS), is_fresh=False)
        stored = Revision.from_json(book.state[REVISION]).hash
        if (numbers.number, numbers.revision, stored) != (header.crossing, said.number, said.revision):
            detail = f"{name}: crossing {header.crossing} to {said}, but the spool says {numbers}"
            self.checkers.breach("one commit", detail)
        stands = book.positions if is_anew else book.former_positions
        if place != (split := _position(stands)):
            self.checkers.breach("boundary", f"{name}: a crossing at {place} of records up to {split}")
        self._doors[name, header.crossing] = _position(stands, DOORS)
        self._note_crossing(name, batch, is_anew=is_anew)

    def _surprise(self, name: str) -> None:
        """Have a device with a fresh spool die about as it is welcomed, and hear of a revision then; with the
        healing at the latest, which takes deaths back.
        """
        number = self._newest[name] + 1
        if number > len(self.versions) or not self._is_brought(number) or self._random.random() < 0.2:
            return
        self._newest[name] = number
        self.world.note("world", "told", f"{name} {number}")
        point, nth = self._random.choice(WELCOME_POINTS), self._random.randint(1, 2)
        self.world.nodes[name].kill_at_next(nth, point, power=self._random.random() < 0.5)
        if (in_s := HEALED_S - self.world.loop.time()) > 0:
            self.world.later(in_s, self._start_again, name, number)

    def _start_again(self, name: str, number: int) -> None:
        if self._runs[name] < number:
            self.world.nodes[name].stop()

    def _note_begun(self, book: SpoolBook) -> None:
        numbers = Numbers.of(book.state.get(NUMBERS), is_fresh=False)
        if not numbers.is_known:
            self._begun[book.epoch] = numbers.revision

    def _note_crossing(self, name: str, batch: SpooledBatch, *, is_anew: bool) -> None:
        header = decode_header(batch.header)
        place, doors = _position(header.positions), self._doors.get((name, header.crossing), 0)
        leg = Leg(place, decode_crossing(batch.body)[0].number, is_fresh=is_anew, doors=doors)
        self._sealed[batch.digest] = header.crossing, leg

    def _mend(self, node: str, error: AlarmError) -> bool:
        """As of any fleet, but only a spool that was set back may be taken for one."""
        return node in self.restored and super()._mend(node, error)

    # The end

    def run(self) -> Outcome:
        """Run to the end; raises the first breach of a rule, or any other failure."""
        outcome = super().run()
        refused = [one for one in self.ledger.quarantined if one.device not in self.spoilt]
        if refused:
            self.checkers.breach("none quarantined", f"{refused[0].device}: {refused[0].reason}")
        return outcome

    def _expected(self) -> dict[tuple[str, str], dict[str, list[Row]]]:
        found = {}
        for device in self.devices:
            legs = self.legs[device.name] = self._check_way(device.name)
            rows = expected(records_of(self.source, device.name), legs, self.forms)
            letters = expected_rows(self.versions[0].plan, device.name).get(DEAD_LETTERS)
            found[device.name, self.flow] = {**rows, **({DEAD_LETTERS: letters} if letters else {})}
        return found

    def _check_way(self, name: str) -> list[Leg]:
        """The way of a device, entry by entry of its partition: the log alone tells it."""
        number, brought, legs = 0, 1, list[Leg]()
        for entry in self._partition_of(name):
            if entry.kind is EntryKind.REVISION:
                brought = entry.seq
            elif entry.device != name:
                continue
            elif entry.kind is EntryKind.JOINED or entry.reason.code == EntryCode.FRESH_SPOOL:
                stood = self.checkers.opened[entry.epoch]
                place, doors = _position(stood), _position(stood, DOORS)
                legs.append(Leg(place, self._begins(entry, brought), is_fresh=True, doors=doors))
            elif entry.kind is EntryKind.CROSSING:
                legs.append(self._goes_over(entry, brought, legs[-1]))
            elif entry.kind in (EntryKind.ROWS, EntryKind.REMOVED) and entry.channel not in SYSTEM_CHANNELS:
                form = self.forms[legs[-1].number - 1]
                if entry.channel not in form.channels:
                    detail = f"{name}: rows of {entry.channel} stand behind crossing {number} to {form}"
                    self.checkers.breach("steps", detail)
            if entry.kind is EntryKind.CROSSING:
                if entry.seq != number + 1:
                    self.checkers.breach("crossing", f"{name}: crossing {entry.seq} follows on {number}")
                number = entry.seq
        return legs

    def _begins(self, entry: Entry, brought: int) -> int:
        """The revision of a fresh spool, as the entry of its epoch or crossing says it."""
        revision, said = self._said(entry, brought), entry_sentence(entry.reason)
        if revision != (begun := self._begun.get(entry.epoch)):
            self.checkers.breach("begun", f"{entry.device}: {said}, and was begun with {begun}")
        return revision

    def _goes_over(self, entry: Entry, brought: int, before: Leg) -> Leg:
        """What begins at a crossing of a device that was in `before`."""
        name, revision = entry.device, self._said(entry, brought)
        said = entry_sentence(entry.reason)
        if revision <= before.number:
            self.checkers.breach("forward", f"{name} goes over from {before.number} to {said}")
        leg = self._crossed.get((name, entry.seq))
        if leg is None or leg.number != revision or leg.begin < before.begin:
            self.checkers.breach("boundary", f"{name}: {said} behind {before}, but it made {leg}")
        return leg

    def _said(self, entry: Entry, brought: int) -> int:
        """The revision that an entry says that its device runs."""
        revision = number_of(entry.reason)
        if revision > brought:
            detail = f"{entry.device} runs {revision}, and the log has brought {brought}"
            self.checkers.breach("cloud first", detail)
        if not revision:
            self.checkers.breach("begun", f"{entry.device}: {entry.reason} names no revision")
        return revision

    def _partition_of(self, name: str) -> list[Entry]:
        part = partition_of(name, self._configs[INGEST].partitions)
        return [entry for entry in self.ledger.all_entries() if entry.partition == part]


def _drawn(seed: int, number: int) -> Device:
    random = Random(f"{seed}/device-{number}/revisions")
    policy = random.choice((*[Policy.BLOCK] * 5, Policy.DROP_OLDEST, Policy.DROP_NEWEST, Policy.DOWNSAMPLE))
    size = random.choice((2_000, 10_000, 1 << 20))
    return Device(f"device-{number}", random.choice((40, 80)), policy=policy, spool_bytes_max=size)


def _spool_fault(random: Random, name: str) -> Fault:
    """A spool that is lost, or set back to what it was some seconds before."""
    kind, at_s = random.choice(("restore", "restore", "delete")), random.uniform(2, 6)
    return Fault(kind, name, at_s=round(at_s, 3), for_s=round(random.uniform(1, 6), 3))


def _position(positions: Mapping[tuple[str, str], SplitProgress], source: str = SOURCE) -> int:
    """Of the one split that a device has of a source."""
    return next((at.position for (step, _), at in positions.items() if step == source), 0)
