"""A fleet in a world: real agents and a real ingest over simulated ports, with troubles and checkers.

The whole path from the source to the log. Guarantees: the run is a function of its seed, its devices
and its faults. It ends when every agent has finished. After one more loss of power, the log then holds just
what the spools have taken in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from msgspec.structs import replace as with_fields

from geartrain.graph.graph import Graph
from geartrain.planning import Plan, make_plan
from geartrain.ports.buggify import let_points_strike
from geartrain.wire.topics import BUCKETS
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.log.part import buckets_of
from geartrain_cloud.log.retention import Retention
from geartrain_cloud.log.roster import RosterDocument
from geartrain_edge.errors import AlarmCode, AlarmError
from geartrain_simulation.checkers import Checkers
from geartrain_simulation.fleet.devices import (
    Device,
    agent_settings,
    draw_devices,
    draw_ingest,
    recorded_devices,
)
from geartrain_simulation.fleet.lives import LOOK_S, Lives, Programs
from geartrain_simulation.fleet.readings import Sensor, expected_rows, make_graph, members
from geartrain_simulation.fleet.spark_model import SparkModel
from geartrain_simulation.fleet.strikes import Targets, arrange, copy_of
from geartrain_simulation.fleet.troubles import INGEST, SECOND, Fault, draw_faults
from geartrain_simulation.machine.broker import SimBroker
from geartrain_simulation.machine.faults import Faults
from geartrain_simulation.machine.platter import Platter
from geartrain_simulation.machine.world import Node, Process, World
from geartrain_simulation.stores.ledger_book import LedgerBook
from geartrain_simulation.stores.rosters import RosterBook, SimRoster
from geartrain_simulation.stores.segments import Row
from geartrain_simulation.stores.spools import SpoolBook

SECTOR_BYTES = 64
"""Of simulated disks: so small that the short records of a small world are torn, too."""
_LOOKS_MAX = 120


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is of everything, where it is not drawn: devices that replay, and rows of each; limit_s:
    virtual seconds after which a run counts as stuck.
    """

    devices: int = 2
    records: int = 24
    limit_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run that broke no rule was like: its trace's hash and figures that show what it went through."""

    digest: str
    steps: int
    virtual_s: float
    crashes: int
    faults: dict[str, int]
    counters: dict[str, int]


Plot = Callable[["Fleet"], None]
"""Arranges what goes wrong, when all nodes are there and none has started."""


class Fleet:
    """One run."""

    def __init__(
        self,
        seed: int,
        *,
        programs: Programs | None = None,
        size: Size | None = None,
        plot: Plot | None = None,
        every_step: bool = True,
        devices: Sequence[Device] | None = None,
        faults: Sequence[Fault] | None = None,
    ) -> None:
        """`devices`, `faults`: in place of those that are drawn from the seed, a part of them for instance;
        `plot`: in place of all faults, in a fleet of `size`.

        every_step: check the rules at every step, else only what the log holds in the end.
        """
        self._seed, self.world = seed, World(seed)
        self.set_back = 0
        """Spools that were put away, because they were of a time before a crossing."""
        self.size = size if size is not None else Size()
        self._plot, self._points = plot, set[str]()
        self._rare = self.world.random("buggify")
        if devices is None and (size is not None or plot is not None):
            devices = recorded_devices(self.size.devices, self.size.records, seed)
        self.devices = tuple(draw_devices(seed) if devices is None else devices)
        if faults is None:
            faults = () if plot is not None else draw_faults(seed, self.devices)
        self.faults = tuple(faults)
        self.climate = Faults() if plot is not None else Faults.climate(self.world.random("climate"))
        names = [device.name for device in self.devices]
        self.sensors = {d.name: Sensor(seed, d.name, d.readings) for d in self.devices if d.readings}
        self._plan = self._cut(self._graph())
        self.flow = self._plan.graph.name
        self.broker = SimBroker(self.world, self.climate)
        self.copied = {f.node for f in self.faults if f.kind == "copy" and f.node in names}
        copies = [copy_of(name) for name in sorted(self.copied)]
        self.platters = {node: self._platter(node) for node in (*names, *copies, INGEST)}
        self.platter = self.platters[SECOND] = self.platters[INGEST]
        self.ledger = LedgerBook(self.platter)
        self.spools = {name: SpoolBook(self.platters[name]) for name in names}
        self.copies = {name: SpoolBook(self.platters[copy_of(name)]) for name in sorted(self.copied)}
        above = {channel.id: channel.sources for channel in self._plan.channels}
        self.checkers = Checkers(
            self.world, self.broker, self.platter, self.ledger, above, every_step=every_step
        )
        log = self.ledger, self.platter
        self.lives = Lives(programs or Programs(), self._plan, self.broker, self.checkers, *log, self.copied)
        self.spark = self._reader()
        self._settings = {device.name: agent_settings(seed, device) for device in self.devices}
        self.roster, has = RosterBook(), members(self._plan, names)
        config, document = draw_ingest(seed, self._plan, has, self.devices)
        self.roster.put(self.flow, self._told(document))
        for fault in self.faults:
            if fault.kind == "retention":
                config = replace(config, retention=Retention(bytes_max=int(fault.reach)))
                self.checkers.remember_rows()
        self._configs = {INGEST: config}
        if any(fault.kind == "two ingests" for fault in self.faults):
            self._configs = _shared(config)
            self.checkers.delivery.shares_the_log = True

    def _reader(self) -> SparkModel:
        """What reads the log."""
        return SparkModel(self.world, self.ledger, self.platter, self.checkers, self.climate)

    def _cut(self, graph: Graph) -> Plan:
        """The plan that ingest is told of."""
        return make_plan(graph, "edge")

    def _graph(self) -> Graph:
        """The flow of the run: which sources it has, and which devices have splits of them."""
        records = {device.name: device.records for device in self.devices if device.records}
        others = {device.name: device.others for device in self.devices if device.others is not None}
        return make_graph(
            self._seed,
            records,
            self.climate.read_s_max,
            self.sensors,
            {name: count for name, count in others.items() if count} if others else None,
        )

    def _told(self, document: RosterDocument) -> RosterDocument:
        """What the roster says of the flow at first: in half of the runs as control does, which knows of no
        device what it lacks.
        """
        if Random(f"{self._seed}/told").random() < 0.5:
            return document
        return with_fields(document, devices=dict.fromkeys(document.devices, document.sources))

    def _platter(self, node: str) -> Platter:
        return Platter(self.world.random(f"{node}/platter"), sector_bytes=SECTOR_BYTES)

    def run(self) -> Outcome:
        """Run to the end; raises the first breach of a rule, or any other failure."""
        let_points_strike(self._strikes)
        try:
            self.world.run(self._story(), self.size.limit_s)
            self.checkers.check_log(self._expected(), bounded=not self.sensors)
            self._check_births()
            self.spark.check()
            return Outcome(
                self.world.trace.digest,
                self.world.loop.steps,
                self.world.loop.time(),
                sum(node.crashes for node in self.world.nodes.values()),
                dict(self.broker.counters),
                dict(self.ledger.counters),
            )
        finally:
            let_points_strike(None)
            self.world.close()

    def _check_births(self) -> None:
        logged = self.checkers.logged()
        for name, sensor in self.sensors.items():
            rows = [
                (channel, row)
                for (device, channel), found in logged.items()
                if device == name
                for row in found
            ]
            book, kinds = self.spools[name], {fault.kind for fault in self.faults if fault.node == name}
            dropped = any(key.startswith(("dropped.", "shed.", "rows_damaged.")) for key in book.counters)
            loses = (
                dropped
                or bool(kinds & {"restore", "delete", "flip"})
                or bool(self.ledger.counters.get("quarantined_records", 0))
            )
            self.checkers.births.check(name, sensor.births, rows, loses=loses, jumps="jump" in kinds)

    def _mend(self, node: str, error: AlarmError) -> bool:
        """Give a device a new state folder, as its alarm asks for."""
        if error.code != AlarmCode.SET_BACK:
            return False
        device = node.removesuffix(copy_of(""))
        if device in self.copied and device not in self.lives.alarmed:
            return False  # the other of its two agents goes on
        self.set_back += 1
        self.checkers.repeats(device, self.flow, is_lost=True)
        (self.spools if node == device else self.copies)[device].put_back({})
        return True

    def _strikes(self, name: str, p: float) -> bool:
        if name not in self._points or self._rare.random() >= p:
            return False
        self.world.note("world", "buggify", name)
        return True

    def _expected(self) -> dict[tuple[str, str], dict[str, list[Row]]]:
        """What is known beforehand: the rows of devices that only replay."""
        names = [device.name for device in self.devices if device.name not in self.sensors]
        return {(name, self.flow): expected_rows(self._plan, name) for name in names}

    async def _story(self) -> None:
        agents = [self._agent_node(device, device.name, self.spools[device.name]) for device in self.devices]
        agents += [
            self._agent_node(device, copy_of(device.name), self.copies[device.name])
            for device in self.devices
            if device.name in self.copied
        ]
        ingests = self._ingest_nodes()
        for node in agents:
            node.on_power_loss(self.platters[node.name].power_loss)
        for node in (*agents, *ingests):
            node.faults = self.climate
        if self._plot is not None:
            self._plot(self)
        else:
            self._arrange()
        random = self.world.random("starts")
        for node in (*agents[: len(self.devices)], *ingests, self.spark.node):
            self.world.later(random.uniform(0, 2), node.start)
        for agent in agents:
            if agent.name in self.sensors:
                await self.lives.retire(agent, self.spools[agent.name], self.sensors[agent.name])
            await agent.finished
        for _ in range(_LOOKS_MAX):  # of two ingests, one has to hear how far the other is
            if self.sensors or self.checkers.clocks_have_ended():
                break
            await asyncio.sleep(LOOK_S)
        for ingest in ingests:
            await self.lives.end(ingest)
        self.platter.power_loss()
        await self.spark.drained()

    def _arrange(self) -> None:
        arrange(
            Targets(
                self.world,
                self.flow,
                self.broker,
                self.platters,
                self.spools,
                self.checkers,
                self.climate,
                self._points,
                self.copies,
            ),
            self.faults,
        )

    def _ingest_nodes(self) -> list[Node]:
        """The ingests, all of them on one machine."""
        nodes = [self.world.node(name, self._ingest) for name in self._configs]
        for node in nodes:
            for other in nodes:
                if other is not node:
                    node.on_power_loss(other.crash)
            node.on_power_loss(self.platter.power_loss)
        return nodes

    def _agent_node(self, device: Device, node: str, book: SpoolBook) -> Node:
        """`node`: by the device's name, or by that of its copy."""
        return self.world.node(node, self.lives.agent(self._settings[device.name], node, book))

    async def _ingest(self, process: Process) -> None:
        config = self._configs.get(process.node.name, self._configs[INGEST])
        roster = SimRoster(process, self.roster, self.climate)
        await self.lives.ingest(process, config, roster, len(self._configs))


def _shared(config: IngestConfig) -> dict[str, IngestConfig]:
    """Two ingests on one log: the one serves its first partition, the other the rest."""
    first = len(buckets_of(0, config.partitions))
    halves = {INGEST: (0, first - 1), SECOND: (first, BUCKETS - 1)}
    return {name: replace(config, buckets=buckets) for name, buckets in halves.items()}
