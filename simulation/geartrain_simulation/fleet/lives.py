"""What the nodes of a fleet run: real agents and real ingests, with ports of their own in each life.

Between `Fleet`, which says what nodes there are and when they start, and the production classes. Guarantees:
the checkers watch each life from its first step. A program that ends before it is told to, or before all is
delivered, is started again. Of two agents of one device one may give the device up, by an alarm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from geartrain.planning import Plan
from geartrain.ports import Disk
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.ingest.ingest import Ingest
from geartrain_cloud.ingest.roster import Roster
from geartrain_edge.agent.agent import Agent
from geartrain_edge.errors import AlarmError
from geartrain_edge.settings import AgentSettings
from geartrain_edge.sources.untimed import UNTIMED
from geartrain_edge.spool.disk_floor import Room
from geartrain_simulation.checkers import Checkers
from geartrain_simulation.fleet.readings import Sensor
from geartrain_simulation.machine.broker import SimBroker
from geartrain_simulation.machine.clock import SimBootClock, SimClock
from geartrain_simulation.machine.disk import SimDisk
from geartrain_simulation.machine.net import SimNet
from geartrain_simulation.machine.platter import Platter
from geartrain_simulation.machine.randomness import SimRandomness
from geartrain_simulation.machine.world import Main, Node, Process, StoppedError
from geartrain_simulation.stores.ledger_book import LedgerBook
from geartrain_simulation.stores.ledgers import SimLedgerStore
from geartrain_simulation.stores.segments import encode_plain, merge_plain
from geartrain_simulation.stores.spools import SimSpoolStore, SpoolBook

LOOK_S = 0.5
"""Virtual seconds between two looks at whether something has ended."""


@dataclass(frozen=True, slots=True)
class Programs:
    """The classes that run; a test puts a broken one in the place of one of these."""

    agent: type[Agent] = Agent
    ingest: type[Ingest] = Ingest
    disk: Callable[[Process, Platter], Disk] = SimDisk


@dataclass(frozen=True, slots=True)
class Lives:
    """The programs of one fleet. ledger, platter: the log; copied: devices that a second agent runs for, too.

    rooms: what the disks of nodes leave their spools, where that is watched; retired: nodes that are to end
    for good; alarmed: devices of whose agents one has ended by an alarm; turns: given a node and the settings
    of its agent, those and the plan of its next life, where these change; mends: whether somebody has seen to
    a device that an alarm has stopped, so that it may be started again.
    """

    programs: Programs
    plan: Plan
    broker: SimBroker
    checkers: Checkers
    ledger: LedgerBook
    platter: Platter
    copied: Collection[str]
    rooms: dict[str, Room] = field(default_factory=dict)
    retired: set[str] = field(default_factory=set)
    alarmed: set[str] = field(default_factory=set)
    turns: Callable[[str, AgentSettings], tuple[AgentSettings, Plan]] | None = None
    mends: Callable[[str, AlarmError], bool] | None = None

    def agent(self, settings: AgentSettings, node: str, book: SpoolBook) -> Main:
        """What a device's node runs. `node`: by the device's name, or by that of its copy."""
        name, flow = settings.device, self.plan.graph.name
        if node == name:
            self.checkers.watch(name, flow, book, settings)
        else:
            self.checkers.watch_copy(name, flow, book, settings)

        async def main(process: Process) -> None:
            mine = (settings, self.plan) if self.turns is None else self.turns(node, settings)
            agent = self.programs.agent(
                *mine,
                SimSpoolStore(process, book),
                SimNet(process, self.broker),
                SimClock(process),
                SimRandomness(process),
                room=self.rooms.get(node),
                boots=SimBootClock(process),
            )
            process.on_stop = agent.stop
            self.checkers.watch_agent(agent, settings, node)
            try:
                if not await agent.run():
                    if name in self.retired and not _holds(book):
                        return
                    raise StoppedError(name)
            except AlarmError as error:
                if self.mends is not None and self.mends(node, error):
                    raise StoppedError(name) from None
                self._stopped_for_good(name, error)
                return
            self.checkers.check_end(agent.status(), book, drains=name not in self.copied)

        return main

    def _stopped_for_good(self, name: str, error: AlarmError) -> None:
        """One of two agents of one device may end by an alarm, so that the other has its name for itself."""
        if name not in self.copied or name in self.alarmed:
            raise AssertionError(f"{name} was stopped for good: {error}") from error
        self.alarmed.add(name)

    async def ingest(self, process: Process, config: IngestConfig, roster: Roster, count: int = 1) -> None:
        """One life of an ingest; count: how many share the log."""
        ledger, disk = SimLedgerStore(process, self.ledger), self.programs.disk(process, self.platter)
        net, clock, randomness = SimNet(process, self.broker), SimClock(process), SimRandomness(process)
        ports = ledger, disk, net, clock, encode_plain, randomness, merge_plain
        ingest = self.programs.ingest(config, roster, *ports)
        process.on_stop = ingest.stop
        name = process.node.name
        self.checkers.watch_ingest(name, ingest, config, count)
        await ingest.run()
        if name not in self.retired:
            raise StoppedError(name)

    async def end(self, node: Node) -> None:
        """Stop a program for good, in whichever of its lives it can."""
        self.retired.add(node.name)
        while not node.finished.done():
            node.stop()
            await asyncio.sleep(LOOK_S)

    async def retire(self, agent: Node, book: SpoolBook, sensor: Sensor) -> None:
        """Stop a live device for good, when its sensor has given all and its spool nothing more to say."""
        while not agent.finished.done():
            await asyncio.sleep(LOOK_S)
            replayed = all(at.ended for (step, _), at in book.positions.items() if step == "readings")
            if not sensor.left and replayed and book.last_seq and not _holds(book):
                await self.end(agent)


def _holds(book: SpoolBook) -> bool:
    """Whether a spool has rows that are not acked yet, or have no time yet."""
    return any(batch.rows for batch in book.batches.values()) or any(
        step == UNTIMED for step, _ in book.state
    )
