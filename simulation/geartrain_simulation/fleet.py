"""A fleet in a world: real agents and a real ingest over simulated ports, with troubles and checkers.

The whole path from the source to the log. Guarantees: the run is a function of its seed; it ends when every
agent has finished and, after one more loss of power, the log holds just what the devices should have sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from geartrain.placement import make_plan
from geartrain.ports import Disk, LedgerStore
from geartrain_cloud.ingest.config import FlowConfig, IngestConfig
from geartrain_cloud.ingest.ingest import Ingest
from geartrain_edge.agent import Agent
from geartrain_edge.errors import AlarmError
from geartrain_edge.settings import AgentSettings, UplinkSettings
from geartrain_simulation.broker import SimBroker
from geartrain_simulation.checkers import Checkers
from geartrain_simulation.clock import Offset, SimClock
from geartrain_simulation.disk import SimDisk
from geartrain_simulation.faults import Faults
from geartrain_simulation.ledgers import LedgerBook, SimLedgerStore
from geartrain_simulation.net import SimNet
from geartrain_simulation.platter import LOSSES, Platter
from geartrain_simulation.randomness import SimRandomness
from geartrain_simulation.readings import expected_rows, make_graph
from geartrain_simulation.segments import encode_plain
from geartrain_simulation.spark_model import SparkModel
from geartrain_simulation.spools import SimSpoolStore, SpoolBook
from geartrain_simulation.troubles import Troubles, arrange
from geartrain_simulation.world import Node, Process, StoppedError, World


@dataclass(frozen=True, slots=True)
class Programs:
    """The classes that run; a test puts a broken one in the place of one of these."""

    agent: type[Agent] = Agent
    ingest: type[Ingest] = Ingest
    disk: Callable[[Process, Platter, Faults], Disk] = SimDisk


SECTOR_BYTES = 64
"""Of simulated disks: so small that the short records of a small world are torn, too."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much there is of everything; limit_s: virtual seconds after which a run counts as stuck."""

    devices: int = 2
    records: int = 24
    limit_s: float = 300.0
    troubles: Troubles = field(default_factory=Troubles)


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


def _draw_troubles(fleet: Fleet) -> None:
    arrange(fleet.world, fleet.broker, fleet.size.troubles)
    fleet.spark.doom()


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
    ) -> None:
        """`plot`: what goes wrong, in place of the faults and troubles drawn from the seed.

        every_step: check the rules at every step, else only what the log holds in the end.
        """
        self.world = World(seed)
        self._programs = programs if programs is not None else Programs()
        self.size = size if size is not None else Size()
        self._plot = plot if plot is not None else _draw_troubles
        self._faults = Faults() if plot is not None else Faults.drawn(self.world.random("faults"))
        self._plan = make_plan(make_graph(seed, self.size.records, self._faults.read_s_max))
        self._devices = tuple(f"device-{number}" for number in range(1, self.size.devices + 1))
        self.broker = SimBroker(self.world, self._faults)
        self.platters = {node: self._platter(node) for node in (*self._devices, "ingest")}
        self.platter = self.platters["ingest"]
        self.ledger = LedgerBook(self.platter)
        self.spools = {device: SpoolBook(self.platters[device]) for device in self._devices}
        self.checkers = Checkers(self.world, self.broker, self.platter, self.ledger, every_step=every_step)
        self.spark = SparkModel(self.world, self.ledger, self.platter, self.checkers, self._faults)
        self._settings = {device: self._drawn_settings(device) for device in self._devices}
        self._config = self._drawn_config()

    def _platter(self, node: str) -> Platter:
        losses = LOSSES if self._faults.torn else ("lost",)
        return Platter(self.world.random(f"{node}/platter"), losses=losses, sector_bytes=SECTOR_BYTES)

    def run(self) -> Outcome:
        """Run to the end; raises the first breach of a rule, or any other failure."""
        try:
            self.world.run(self._story(), self.size.limit_s)
            self.checkers.check_log({device: expected_rows(self._plan, device) for device in self._devices})
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
            self.world.close()

    async def _story(self) -> None:
        agents = [self._agent_node(device) for device in self._devices]
        ingest = self.world.node("ingest", self._ingest)
        for node in (*agents, ingest):
            node.on_power_loss(self.platters[node.name].power_loss)
        self._plot(self)
        random = self.world.random("starts")
        for node in (*agents, ingest, self.spark.node):
            self.world.later(random.uniform(0, 2), node.start)
        for agent in agents:
            await agent.finished
        await self.spark.drained()
        ingest.crash(power=True)

    def _agent_node(self, device: str) -> Node:
        book, offset = self.spools[device], Offset(self.world.random(device).randint(-(10**12), 10**12))
        self.checkers.watch(device, self._plan.graph.name, book, self._settings[device])

        async def main(process: Process) -> None:
            agent = self._programs.agent(
                self._settings[device],
                self._plan,
                SimSpoolStore(process, book, self._faults),
                SimNet(process, self.broker),
                SimClock(process, offset),
                SimRandomness(process),
            )
            process.on_stop = agent.stop
            self.checkers.watch_agent(agent, self._settings[device])
            try:
                if not await agent.run():
                    raise StoppedError(device)
            except AlarmError as error:
                raise AssertionError(f"{device} was stopped for good: {error}") from error
            self.checkers.check_end(agent.status(), book)

        return self.world.node(device, main)

    async def _ingest(self, process: Process) -> None:
        ledger: LedgerStore = SimLedgerStore(process, self.ledger, self._faults)
        disk = self._programs.disk(process, self.platter, self._faults)
        net, clock, randomness = SimNet(process, self.broker), SimClock(process), SimRandomness(process)
        ingest = self._programs.ingest(self._config, ledger, disk, net, clock, encode_plain, randomness)
        process.on_stop = ingest.stop
        self.checkers.watch_ingest("ingest", ingest, self._config)
        await ingest.run()
        raise StoppedError("ingest")

    def _drawn_settings(self, device: str) -> AgentSettings:
        random = self.world.random(f"{device}/settings")
        uplink = UplinkSettings(
            window=random.choice((1, 3, 16, 64)),
            resend_ms=random.choice((200, 1_000, 2_000)),
            resend_ms_max=random.choice((2_000, 10_000)),
            backoff_ms_max=random.choice((500, 10_000)),
        )
        return AgentSettings(
            device,
            spool_bytes_max=random.choice((2_000, 10_000, 1 << 20)),
            records_max=random.choice((1, 5, 50)),
            interval_ms=random.choice((10, 200)),
            uplink=uplink,
        )

    def _drawn_config(self) -> IngestConfig:
        random = self.world.random("ingest/config")
        channels = {channel.id: self._devices for channel in self._plan.channels}
        return IngestConfig(
            {self._plan.graph.name: FlowConfig.of(self._devices, channels)},
            group_commit_ms=random.choice((1, 20, 100)),
            group_rows_max=random.choice((1, 20, 50_000)),
            waiting_batches_max=random.choice((2, 16, 256)),
            nack_interval_ms=random.choice((10, 100)),
            status_interval_ms=5_000,
        )
