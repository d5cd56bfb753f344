"""A fleet that gets commands from the cloud: real agents, downlink and ingest over simulated ports.

It covers the path from the outboxes of one or two apps to the sinks of devices. Guarantees: the run is a
function of its seed; kills, power losses, cuts and a rough broker strike at random, and an app leaves the
downlink for a while. The run ends when every agent has finished; then the file of each device holds what was
dealt to it, each once and in order. At every step, what is sent was committed and is of the app that the
topic names, what is acked is in a spool, and what is trimmed was acked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from geartrain.records.batch import Batch
from geartrain.records.event_time import END_OF_TIME, START_OF_TIME
from geartrain.runtime.fragment import Fragment
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.wire.codec import decode_control, decode_envelope, decode_header
from geartrain.wire.envelope import Ack
from geartrain_cloud.downlink.downlink import Downlink
from geartrain_cloud.downlink.sender import SenderSettings
from geartrain_cloud.ingest.config import IngestConfig
from geartrain_cloud.ingest.ingest import Ingest
from geartrain_edge.agent.agent import Agent
from geartrain_edge.downlink.applying import PLACE, Place
from geartrain_edge.settings import AgentSettings, UplinkSettings
from geartrain_simulation.fleet.devices import Device, draw_ingest
from geartrain_simulation.fleet.down_flow import FileBook, Order, SimFiles, draw_batches, make_down_plan
from geartrain_simulation.fleet.readings import members
from geartrain_simulation.machine.broker import SimBroker
from geartrain_simulation.machine.clock import SimClock
from geartrain_simulation.machine.disk import SimDisk
from geartrain_simulation.machine.faults import Faults
from geartrain_simulation.machine.net import SimNet
from geartrain_simulation.machine.platter import Platter
from geartrain_simulation.machine.randomness import SimRandomness
from geartrain_simulation.machine.violation import ViolationError
from geartrain_simulation.machine.world import Node, Process, StoppedError, World
from geartrain_simulation.stores.ledger_book import LedgerBook
from geartrain_simulation.stores.ledgers import SimLedgerStore
from geartrain_simulation.stores.outboxes import OutboxBook, SimOutboxStore
from geartrain_simulation.stores.rosters import RosterBook, SimRoster
from geartrain_simulation.stores.segments import encode_plain, merge_plain
from geartrain_simulation.stores.spools import SimSpoolStore, SpoolBook

LIMIT_S = 900.0
"""Virtual seconds after which a run counts as stuck."""
_TROUBLE_S = 30.0
_LOOK_S = 0.5


class DownApp:
    """One app: its plan, what its driver writes for which devices, and its outbox."""

    def __init__(self, name: str, seed: int, devices: Sequence[str]) -> None:
        self.name, self.devices = name, list(devices)
        plan = make_down_plan()
        self.plan = msgspec.structs.replace(plan, graph=plan.graph.named(name))
        self.batches = draw_batches(seed, self.devices)
        self.outbox = OutboxBook(name)


class DownFleet:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.seed, self.world = seed, World(seed)
        random = Random(f"{seed}/down")
        names = [f"device-{n}" for n in range(1, random.choice((1, 2, 3)) + 1)]
        apps = [DownApp("down.1", seed, names)]
        if Random(f"{seed}/apps").random() < 0.4:
            apps.append(DownApp("down.2", seed + 1_000_000, names[:1]))
        self.apps = {app.name: app for app in apps}
        self._wanted = set(self.apps)
        self.climate = Faults.climate(random)
        self.broker = SimBroker(self.world, self.climate)
        for app in apps:
            app.outbox.on_trim = partial(self._check_trim, app.name)
        self._agents = {f"{device} {app.name}": (app, device) for app in apps for device in app.devices}
        self._platters = {n: Platter(self.world.random(f"{n}/platter")) for n in (*self._agents, "ingest")}
        self.spools = {name: SpoolBook(self._platters[name]) for name in self._agents}
        self.files = {name: FileBook() for name in self._agents}
        self._ledger = LedgerBook(self._platters["ingest"])
        self._ending = False
        self._codec = RowCodec(Order)
        self.broker.observers.append(self._observe)

    @property
    def outbox(self) -> OutboxBook:
        """That of the first app."""
        return self.apps["down.1"].outbox

    def run(self) -> int:
        """Run to the end; raises the first breach of a rule, or any other failure; the crashes it had."""
        try:
            self.world.run(self._story(), LIMIT_S)
            for name, (app, device) in self._agents.items():
                found, want = self.files[name].numbers(), self._expected(app, device)
                if found != want:
                    raise ViolationError("each once, in order", f"{name} has {found} and should have {want}")
            return sum(node.crashes for node in self.world.nodes.values())
        finally:
            self.world.close()

    async def _story(self) -> None:
        agents = [self.world.node(name, self._agent(name)) for name in self._agents]
        drivers = [
            self.world.node(f"driver {name}", partial(self._drive, app)) for name, app in self.apps.items()
        ]
        beside = [self.world.node("ingest", self._ingest), self.world.node("sender", self._send)]
        nodes = [*agents, *drivers, *beside]
        for node in nodes:
            node.faults = self.climate
            if node.name in self._platters:
                node.on_power_loss(self._platters[node.name].power_loss)
            self.world.later(self.world.random("starts").uniform(0, 2), node.start)
        self._trouble(nodes)
        for node in (*agents, *drivers):
            await node.finished
        self._ending = True
        for node in beside:
            while not node.finished.done():
                node.stop()
                await asyncio.sleep(_LOOK_S)

    def _trouble(self, nodes: Sequence[Node]) -> None:
        """Let things go wrong for a while."""
        random = self.world.random("trouble")
        rough = Faults(
            drop=random.choice((0.0, 0.1, 0.3)),
            duplicate=random.choice((0.0, 0.1, 0.3)),
            reorder=random.choice((0.0, 0.2)),
            delay=random.choice((0.0, 0.02)),
            delay_s_max=20.0,
            latency_s_max=self.climate.latency_s_max,
            pause_s_max=self.climate.pause_s_max,
        )
        for name in self.apps:
            if random.random() < 0.5:
                self.world.later(random.uniform(0, _TROUBLE_S / 2), self._wanted.discard, name)
                self.world.later(_TROUBLE_S, self._wanted.add, name)
        self.broker.faults = rough
        self.world.later(_TROUBLE_S, setattr, self.broker, "faults", self.climate)
        for _ in range(random.randint(0, 12)):
            node, at_s = random.choice(nodes), random.uniform(0, _TROUBLE_S)
            kind = random.choice(("kill", "kill", "power", "cut", "broker", "silence", "forget"))
            if kind in ("kill", "power"):
                if random.random() < 0.5:
                    node.kill_at_point(random.randint(1, 400), power=kind == "power" and node.keeps_files)
                else:
                    self.world.later(at_s, self._crash, node, kind == "power" and node.keeps_files)
            elif kind == "broker":
                self.world.later(at_s, self.broker.crash, random.uniform(0, 3))
            elif kind == "forget":
                self.world.later(at_s, self.broker.forget, node.name)
            else:
                what = self.broker.cut if kind == "cut" else self.broker.silence
                self.world.later(at_s, what, node.name, random.uniform(0, 5))

    @staticmethod
    def _crash(node: Node, power: bool) -> None:
        if not node.finished.done():
            node.crash(power=power)

    # The programs

    def _agent(self, name: str) -> Any:
        random = Random(f"{self.seed}/{name}/settings")
        uplink = UplinkSettings(resend_ms=random.choice((200, 1_000)), silence_ms=5_000, backoff_ms_max=2_000)
        app, device = self._agents[name]
        settings = AgentSettings(device, records_max=random.choice((1, 5, 50)), uplink=uplink)

        async def main(process: Process) -> None:
            store, net = SimSpoolStore(process, self.spools[name]), SimNet(process, self.broker)
            clock, chance = SimClock(process), SimRandomness(process)
            files = SimFiles(process, self.files[name])
            agent = Agent(settings, app.plan, store, net, clock, chance, files=files)
            process.on_stop = agent.stop
            if not await agent.run():
                raise StoppedError(name)

        return main

    async def _send(self, process: Process) -> None:
        random = Random(f"{self.seed}/sender/settings")
        settings = SenderSettings(
            window=random.choice((1, 2, 16)),
            resend_ms=random.choice((200, 1_000)),
            resend_ms_max=4_000,
            silence_ms=5_000,
        )
        downlink = Downlink(
            SimNet(process, self.broker),
            SimClock(process),
            SimRandomness(process),
            lambda name, path: SimOutboxStore(process, self.apps[path.name].outbox),
            settings,
        )
        process.on_stop = downlink.stop
        async with asyncio.TaskGroup() as group:
            follows = group.create_task(self._follow(downlink))
            await downlink.run()
            follows.cancel()
        if not self._ending:
            raise StoppedError("sender")

    async def _follow(self, downlink: Downlink) -> None:
        """Tell the downlink what is wanted, as its wanted.json does."""
        while True:
            downlink.follow({name: Path(name) for name in sorted(self._wanted)})
            await asyncio.sleep(_LOOK_S)

    async def _ingest(self, process: Process) -> None:
        roster, drawn = RosterBook(), list[IngestConfig]()
        for app in self.apps.values():
            devices = [Device(name) for name in app.devices]
            config, document = draw_ingest(self.seed, app.plan, members(app.plan, app.devices), devices)
            drawn.append(config)
            roster.put(app.name, document)
        ledger = SimLedgerStore(process, self._ledger)
        disk, net = SimDisk(process, self._platters["ingest"]), SimNet(process, self.broker)
        clock, chance = SimClock(process), SimRandomness(process)
        followed = SimRoster(process, roster, self.climate)
        ingest = Ingest(drawn[0], followed, ledger, disk, net, clock, encode_plain, chance, merge_plain)
        process.on_stop = ingest.stop
        await ingest.run()
        if not self._ending:
            raise StoppedError("ingest")

    async def _drive(self, app: DownApp, process: Process) -> None:
        """Write one micro-batch after the other; one that was not committed is made again."""
        random, (channel,) = process.random("driver"), app.plan.down
        while app.outbox.written < len(app.batches):
            number = app.outbox.written
            await asyncio.sleep(random.uniform(0, 4))
            process.point("driver.stage", str(number))
            before = app.batches[number - 1].clock_us if number else START_OF_TIME
            marks = {channel.id: before}, {channel.id: app.batches[number].clock_us}
            rows = {name: self._columns(app, number, name) for name in app.devices}
            app.outbox.stage(channel.id, self._codec.schema, rows, marks, lambda: random.randbytes(8))
            process.on_end.append(app.outbox.staged.clear)
            await process.pause(random, self.climate)
            process.point("driver.commit", str(number))
            rows = {name: self._columns(app, number, name) for name in app.devices}
            app.outbox.stage(channel.id, self._codec.schema, rows, marks, lambda: random.randbytes(8))
            app.outbox.commit()
            process.point("driver.commit done", str(number))

    def _columns(self, app: DownApp, number: int, device: str) -> ColumnBatch:
        chosen = [(n, time) for name, n, time in app.batches[number].rows if name == device]
        fields = self._codec.to_columns([Order(device, n) for n, _ in chosen])
        return ColumnBatch(
            fields, [time for _, time in chosen], ["made"] * len(chosen), [n for n, _ in chosen]
        )

    # The rules

    def _expected(self, app: DownApp, device: str) -> list[int]:
        """The numbers that one fragment puts out, fed with everything at once."""
        fragment, (channel,) = Fragment(app.plan.graph, app.plan.edge), app.plan.down
        chosen = [(n, time) for b in app.batches for name, n, time in b.rows if name == device]
        values = [Order(device, n) for n, _ in chosen]
        times, numbers = [time for _, time in chosen], [n for n, _ in chosen]
        fragment.feed(channel.id, Batch(values, times, ["made"] * len(values), numbers))
        fragment.advance(channel.id, END_OF_TIME)
        found = fragment.take().batches.get("valve", [])
        return [value.number for batch in found for value in batch.values]

    def _observe(self, node: str, topic: str, payload: bytes) -> None:
        if topic.endswith("/down"):
            envelope = decode_envelope(payload)
            header = decode_header(envelope.header)
            flow = topic.split("/")[-2]
            if header.flow != flow:
                self.world.fail(ViolationError("of its app", f"{header.flow} was sent to agents of {flow}"))
            if header.seq and (header.device, envelope.header) not in self.apps[flow].outbox.ever:
                self.world.fail(ViolationError("sent <= committed", f"{header.device}, batch {header.seq}"))
        elif topic.endswith("/downack"):
            control = decode_control(payload)
            if isinstance(control, Ack):
                self._check_durable("acked <= durable", node, control.epoch, control.seq)

    def _check_trim(self, app: str, device: str, epoch: bytes, seq: int) -> None:
        self._check_durable("trimmed <= acked", f"{device} {app}", epoch, seq)

    def _check_durable(self, rule: str, agent: str, epoch: bytes, seq: int) -> None:
        stored = self.spools[agent].state.get(PLACE)
        place = Place() if stored is None else msgspec.json.decode(stored, type=Place)
        if place.epoch == epoch and place.seq < seq:
            self.world.fail(ViolationError(rule, f"{agent} holds {place.seq} of this epoch, not {seq}"))
