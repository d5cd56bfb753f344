"""Devices that take a step with its state from the cloud, and leave it to it again, whatever else befalls.

Beside the usual worlds, with their kills, losses of power, new epochs, full disks, packets lost, doubled and
late. Each life of an agent runs the totals of its sensors, or leaves them to the host, which may die between
any two steps as its downlink may. Around claims spools are lost or set back, and the outbox is lost. Rules:
the tables of the host are, byte for byte, those of the flow whose totals never moved. Twice comes what the
log has of a commit of which the rest was lost with its spool, and nothing else. No policy of a full spool
gives up a claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from random import Random

from msgspec.structs import replace

from geartrain.graph.graph import CLAIMS, STATE, Graph
from geartrain.planning import Plan
from geartrain.planning.mixed import make_mixed_plan
from geartrain.ports import SpoolCommit
from geartrain.records.batch import origin_name
from geartrain.revision import Revision
from geartrain.state.claims import ASKS, HAS
from geartrain_cloud.downlink.downlink import Downlink
from geartrain_cloud.downlink.sender import SenderSettings
from geartrain_cloud.log.entry_reasons import EntryCode
from geartrain_cloud.ports import EntryKind
from geartrain_edge.agent.crossing import CLAIM, NUMBERS, REVISION, LastClaim, Numbers
from geartrain_edge.settings import AgentSettings, Policy
from geartrain_simulation.fleet.claiming_flow import (
    HOURS,
    READINGS,
    TABLES,
    TOTALS,
    CountingAnew,
    claiming_graph,
    in_order,
    rows_of_columns,
    undisturbed,
)
from geartrain_simulation.fleet.cuts_fleet import CLOUD, EDGE, CutsFleet
from geartrain_simulation.fleet.devices import Device, partitions_of
from geartrain_simulation.fleet.fleet import Outcome
from geartrain_simulation.fleet.host_model import HostModel
from geartrain_simulation.fleet.readings import Readings
from geartrain_simulation.fleet.revision_fleet import CROSSING_POINTS
from geartrain_simulation.fleet.spark_model import SparkModel
from geartrain_simulation.fleet.troubles import HEALED_S, READER, Fault
from geartrain_simulation.machine.clock import SimClock
from geartrain_simulation.machine.journal import framed, records_in
from geartrain_simulation.machine.net import SimNet
from geartrain_simulation.machine.randomness import SimRandomness
from geartrain_simulation.machine.world import Node, Process, StoppedError
from geartrain_simulation.stores.outboxes import OutboxBook, SimOutboxStore
from geartrain_simulation.stores.segments import Row
from geartrain_simulation.stores.spools import SpoolBook, record_of

DOWNLINK = "downlink"
LOST, SET_BACK = "lost", "set back"
"""What befalls spools."""
TOO_LARGE = "too large"
"""What befalls claims: more is there than moves at once."""
_TOO_LARGE = 0.1
"""How likely that is so of all claims of a world."""
_LAST_STOP_S = 20.0
_TURNS = 0.6
"""How likely a life of an agent has another cut than the one before."""
_DOWN_POINTS = ("outbox.read", "outbox.trim", "outbox.trim done", "net.publish", "net.publish done")
_HOST_POINTS = ("spark.plan done", "spark.give", "spark.give done", "spark.write done", "spark.commit done")


class ClaimingFleet(CutsFleet):
    """One run. Ingest and the host know the channels of both cuts."""

    host: HostModel
    drops: Collection[str] = ()
    """The steps that begin empty with each revision that the log brings."""
    next_code_p = 0.5
    """How likely the host goes over to code that keeps another type of state; devices do not hear of it."""

    def __init__(self, seed: int, befalls: str = "") -> None:
        """befalls: what each claim meets, `LOST`, `SET_BACK` or `TOO_LARGE`; "" for what the seed draws."""
        random, devices, faults = Random(f"{seed}/claiming"), list[Device](), list[Fault]()
        self._pause_s = random.choice((1.0, 1.5, 2.0))
        self._claim_ms = random.choice((1_000, 4_000, 20_000))
        self._last: dict[str, str] = {}
        for number in range(1, random.choice((1, 2, 2, 3)) + 1):
            policy = random.choice((Policy.BLOCK, Policy.BLOCK, Policy.BLOCK, Policy.DROP_OLDEST))
            size = random.choice((2_000, 10_000, 1 << 20))
            devices.append(Device(f"device-{number}", random.choice((60, 120)), 0, None, policy, size))
            name, stops = devices[-1].name, random.choice((4, 7, 10))
            faults += [Fault("stop", name, at_s=random.uniform(0.5, _LAST_STOP_S)) for _ in range(stops)]
        for node, points in ((READER, _HOST_POINTS), (DOWNLINK, _DOWN_POINTS)):
            for _ in range(random.choice((0, 1, 3))):
                point, nth = random.choice(points), random.randint(1, 12)
                faults.append(Fault("kill", node, point=point, nth=nth))
        self._befalls = Random(f"{seed}/claiming/spools")
        self._doomed = self._befalls.random() < 0.8 or bool(befalls)
        self._only = befalls
        drawn = not befalls and Random(f"{seed}/claiming/size").random() < _TOO_LARGE
        self._is_too_large = drawn or befalls == TOO_LARGE
        self._stays = set[str]()
        """Devices whose life has found that more is there than moves at once."""
        self._struck = set[str]()
        self.befallen = Counter[str]()
        super().__init__(seed, devices, faults)

    # What there is

    def _graph(self) -> Graph:
        self._source = Readings(seed=self._seed, records=self.records, pause_s_max=self._pause_s)
        return claiming_graph(self._source)

    def _known_to_ingest(self, graph: Graph) -> Plan:
        return make_mixed_plan(graph, CLOUD, [EDGE])

    def _reader(self) -> SparkModel:
        self.outbox = OutboxBook(self.flow)
        world = self.world, self.ledger, self.platter, self.checkers, self.climate
        partitions = partitions_of(self._seed)
        random, later = Random(f"{self._seed}/claiming/code"), None
        if random.random() < self.next_code_p:
            later = make_mixed_plan(claiming_graph(self._source, CountingAnew), CLOUD, [EDGE])
        self.host = HostModel(
            *world,
            plan=self._plan,
            partitions=partitions,
            outbox=self.outbox,
            later=later,
            gifts=random.choice((1, 2, 4)),
            drops=self.drops,
        )
        return self.host

    def _arrange(self) -> None:
        self._down = self.world.node(DOWNLINK, self._send)
        self._down.faults = self.climate
        self.world.later(self.world.random("downlink").uniform(0, 2), self._down.start)
        super()._arrange()
        if self._befalls.random() < 0.3:
            self.world.later(self._befalls.uniform(1, HEALED_S), self._lose_outbox)

    def _agent_node(self, device: Device, node: str, book: SpoolBook) -> Node:
        made, name, inner = super()._agent_node(device, node, book), device.name, book.on_commit

        def committed(change: SpoolCommit) -> None:
            inner(change)
            said = LastClaim.of(change.state.get(CLAIM))
            self._check_asks(name, said, refused="claims_too_large" in change.counters)
            if said.says in (ASKS, HAS) and self._doomed and self.world.loop.time() < HEALED_S:
                self._doom(name, book, change, said)

        book.on_commit = committed
        return made

    async def _story(self) -> None:
        await super()._story()
        await self.lives.end(self._down)

    async def _send(self, process: Process) -> None:
        random = Random(f"{self._seed}/downlink/settings")
        settings = SenderSettings(
            window=random.choice((1, 16)), resend_ms=random.choice((200, 1_000)), silence_ms=5_000
        )
        net, clock, chance = SimNet(process, self.broker), SimClock(process), SimRandomness(process)
        downlink = Downlink(
            net, clock, chance, lambda name, path: SimOutboxStore(process, self.outbox), settings
        )
        process.on_stop = downlink.stop
        downlink.follow({self.flow: Path(self.flow)})
        await downlink.run()
        if DOWNLINK not in self.lives.retired:
            raise StoppedError(DOWNLINK)

    # What happens

    def _doom(self, name: str, book: SpoolBook, change: SpoolCommit, said: LastClaim) -> None:
        """A device has written something of a claim: now and then, its spool is lost or set back soon."""
        in_s, kind = self._befalls.choice((0.02, 0.1, 0.3, 1.0)), self._befalls.random()
        what = self._only or (LOST if kind < 0.4 else SET_BACK)
        if what == LOST:
            self.world.later(in_s, self._lose, name, book)
        elif said.says == ASKS and name not in self._struck:
            records = records_in(book.platter.save().get("spool.journal", b""))
            if records[-1:] == [record_of("commit", change)]:
                before = records[:-1], change.batches[0].seq - 1
                self.world.later(in_s, self._set_back, name, book, before, said)

    def _lose(self, name: str, book: SpoolBook) -> None:
        """The disk of a device is gone, where nothing of what its step keeps is on it or on its way."""
        node, held = self.world.nodes[name], book.state.get(REVISION)
        if node.finished.done() or held is None or self.world.loop.time() >= HEALED_S:
            return
        number = Numbers.of(book.state.get(NUMBERS), is_fresh=False).number
        known = next((one.crossing for one in self.ledger.cursors.values() if one.device == name), 0)
        moves = any(row[1] == STATE for batch in book.batches.values() for row in batch.rows)
        if TOTALS in Revision.from_json(held).cut or number != known or moves:
            return
        self._put_back(name, book, {}, LOST)

    def _set_back(self, name: str, book: SpoolBook, before: tuple[list[bytes], int], said: LastClaim) -> None:
        """A spool is what it was before a claim, while the device waits for what it has claimed.

        before: that, and its last seq. All up to there is trimmed, as it may have been: else its rows would
        come twice.
        """
        now, (records, last) = LastClaim.of(book.state.get(CLAIM)), before
        heard = [one.seq for one in self.ledger.cursors.values() if one.epoch == book.epoch]
        is_late = (now.number, now.says) != (said.number, ASKS) or max(heard, default=0) < last
        if self.world.nodes[name].finished.done() or is_late or self.world.loop.time() >= HEALED_S:
            return
        records = [*records, record_of("trim", last)]
        self._struck.add(name)
        self._put_back(name, book, {"spool.journal": b"".join(map(framed, records))}, SET_BACK)

    def _put_back(self, name: str, book: SpoolBook, files: dict[str, bytes], what: str) -> None:
        self.world.note("world", what, name)
        self.befallen[what] += 1
        self.world.nodes[name].crash()
        self.checkers.repeats(name, self.flow, is_lost=not files)
        book.put_back(files)

    def _lose_outbox(self) -> None:
        """The outbox is gone with all that waits in it, and begins anew."""
        self.world.note("world", "outbox lost")
        self.befallen["outbox lost"] += 1
        for node in (self._down, self.host.node):
            if not node.finished.done():
                node.crash()
        self.outbox.reset()

    def _next_cut(self, node: str, settings: AgentSettings) -> tuple[AgentSettings, Plan]:
        settings, plan = super()._next_cut(node, settings)
        self._stays.discard(node)
        cells_max = 0 if self._is_too_large else settings.claim_cells_max
        return (
            replace(settings, base_cut=(CLOUD,), claim_ms=self._claim_ms, claim_cells_max=cells_max),
            plan,
        )

    def _cut_of(self, node: str, life: int) -> str:
        random = Random(f"{self._seed}/{node}/{life}/cut")
        if random.random() < 0.3 and self.world.loop.time() < HEALED_S:
            self._strike_at(node, random)
        last = self._last.get(node, random.choice((CLOUD, EDGE)))
        other = EDGE if last == CLOUD else CLOUD
        cut = self._last[node] = other if random.random() < _TURNS else last
        return cut

    def _strike_at(self, node: str, random: Random) -> None:
        """A device is to die about as it claims or goes over."""
        point, nth = random.choice(CROSSING_POINTS), random.randint(1, 6)
        self.world.nodes[node].kill_at_next(nth, point, power=random.random() < 0.5)

    # The rules

    def run(self) -> Outcome:
        """Run to the end; raises the first breach of a rule, or any other failure."""
        outcome = super().run()
        if not self.loses:
            self._check_tables()
        counters = {**outcome.counters, "cells_given": self.host.cells_given}
        counters["next_code"] = self.host.over >= 0
        counters["come_twice"] = self._come_twice().total()
        counters |= {f"spools {what}": count for what, count in self.befallen.items()}
        for what in ("cells_taken", "claims_too_large"):
            counters[what] = sum(book.counters.get(what, 0) for book in self.spools.values())
        return Outcome(
            outcome.digest, outcome.steps, outcome.virtual_s, outcome.crashes, outcome.faults, counters
        )

    def _check_asks(self, name: str, said: LastClaim, *, refused: bool) -> None:
        """A life of a device does not claim once more what is too large."""
        if said.says == ASKS and name in self._stays:
            self.checkers.breach("asks no more", f"{name}: claim {said.number} after one that was too large")
        if refused:
            self._stays.add(name)

    def _check(self, device: Device) -> None:
        for channel in (CLAIMS, STATE):
            if shed := self.spools[device.name].counters.get(f"shed.{channel}", 0):
                detail = f"{device.name}: its full spool has given up {shed} rows of {channel}"
                self.checkers.breach("state kept", detail)
        logged = self.checkers.logged()
        for channel in self._channels_of(READINGS, TOTALS, HOURS):
            rows = [one.row for one in logged.get((device.name, channel), ()) if one.overtaken]
            if rows and device.name not in self.checkers.clocks.excused | self.checkers.clocks.latecomers:
                detail = f"{device.name}: {len(rows)} rows of {channel} came below the clock: {rows[:1]}"
                self.checkers.breach("in time", detail)

    def _channels_of(self, *streams: str) -> list[str]:
        """The channels on which records of some steps come up."""
        return [one.id for one in self._plan.channels if one.stream in streams]

    def _come_twice(self) -> Counter[tuple[str, int]]:
        """The readings of commits that had arrived in part when their spools were lost, by their origins: how
        far a commit has come stands in its last batch.
        """
        twice, sent = Counter[tuple[str, int]](), dict[str, list[Row]]()
        for entry in self.ledger.all_entries():
            if entry.kind is EntryKind.CROSSING and entry.reason.code == EntryCode.FRESH_SPOOL:
                begun = self.checkers.opened[entry.epoch]
                stood = {origin_name(*split): at.position for split, at in begun.items()}
                rows = sent.pop(entry.device, [])
                twice.update((row.name, row.number) for row in rows if row.number >= stood.get(row.name, 0))
            elif entry.channel == READINGS:
                rows = [one.row for one in self.checkers.rows_of(entry)]
                sent.setdefault(entry.device, []).extend(rows)
        return twice

    def _check_tables(self) -> None:
        due = undisturbed(self.plans[CLOUD], self._source, self.records, self._come_twice())
        for table in TABLES:
            rows = [row for batch in self.host.tables.get(table, ()) for row in rows_of_columns(batch)]
            found = in_order(rows)
            if found != due[table]:
                lacks = [row for row in due[table] if row not in found]
                detail = f"{table}: {len(found)} rows; {len(lacks)} of {len(due[table])} lack: {lacks[:2]}"
                self.checkers.breach("same results", detail)
