"""A small flow whose commands go down, its outbox written by hand, and what must come of it on the device."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from geartrain import Context, Flow, Record, State, Table, Task, by_key
from geartrain.adapters.system import SystemClock
from geartrain.operators.deal import Deal
from geartrain.planning import Plan, make_plan
from geartrain.planning.dealt import waits_for_time
from geartrain.ports import Net, SpoolStore
from geartrain.records.codes import Refusal
from geartrain.records.event_time import END_OF_TIME
from geartrain.schema import ColumnBatch, RowCodec
from geartrain.sinks import Actuator, Delivery, JsonLinesFile
from geartrain.testing import SeededRandomness, TestingSource
from geartrain_cloud.downlink.outbox import SqliteOutbox
from geartrain_cloud.downlink.sender import OutboxSender, SenderSettings, down_connection
from geartrain_cloud.downlink.store import OutboxStore
from geartrain_cloud.downlink.writer import DownChannel, OutboxWriter
from geartrain_edge.agent.agent import Agent
from geartrain_edge.settings import AgentSettings, UplinkSettings
from geartrain_edge.sinks.delivering import LineFiles
from geartrain_edge.sinks.line_files import FolderFiles

QUICK = UplinkSettings(window=8, resend_ms=40, resend_ms_max=160, backoff_ms=2, backoff_ms_max=20, trim_ms=1)
SETTINGS = SenderSettings(window=4, resend_ms=40, resend_ms_max=160, poll_ms=2, backoff_ms_max=20)


class Reading(Record):
    tank: str
    level: float


class Command(Record):
    tank: str
    number: int


class Seen(State):
    count: int = 0
    total: int = 0


class Sums(Task[Command, Command]):
    """The running sum of the numbers, and at each full second of event time once more, by a timer."""

    state: ClassVar[type[Seen]] = Seen

    def on_next(self, value: Command, ctx: Context[Command, Seen]) -> None:
        ctx.state.count += 1
        ctx.state.total += value.number
        ctx.emit(Command(value.tank, ctx.state.total))
        ctx.notify_at(ctx.event_time // 1_000_000 * 1_000_000 + 1_000_000)

    def on_notify(self, time: int, ctx: Context[Command, Seen]) -> None:
        ctx.emit(Command(str(ctx.key), -ctx.state.total))


@dataclass(frozen=True)
class Valve(Actuator[Command]):
    """Notes what it is given; fails as often as `failures` says, by number."""

    calls: list[tuple[str, int]] = field(default_factory=list, compare=False)
    failures: dict[int, int] = field(default_factory=dict, compare=False)
    failure: BaseException = field(default=OSError("the valve is stuck"), compare=False)

    async def act(self, value: Command, at: Delivery) -> None:
        if self.failures.get(value.number, 0):
            self.failures[value.number] -= 1
            raise self.failure
        self.calls.append((str(at), value.number))


def command(reading: Reading) -> Command:
    return Command(reading.tank, int(reading.level))


def plan_of(*, actuator: Valve | None = None, timed: bool = False) -> Plan:
    """Readings go up, commands come down."""
    flow = Flow("loop")
    readings = flow.source("readings", TestingSource(items=[(1, Reading("d1", 1.0))]), out=Reading)
    readings.sink("readings_table", Table("readings"))
    made = readings.key_by("tank").map(command).at("cloud")
    if timed:
        sums = made.key_by("tank", name="by_tank").process("sums", Sums()).at("edge", device=by_key)
        sums.sink("valve", actuator or JsonLinesFile("valve"))
    else:
        passed = made.filter(lambda c: c.number >= 0, name="passed").at("edge", device="tank")
        passed.sink("valve", actuator or JsonLinesFile("valve"))
    return make_plan(flow.graph(), "edge")


@dataclass
class World:
    """The files of one outbox and of one device."""

    folder: Path
    plan: Plan
    devices: tuple[str, ...] = ("d1",)
    flow: str = "loop"
    written: int = 0
    clock_us: int = 0
    randomness: SeededRandomness = field(default_factory=lambda: SeededRandomness(7))

    @property
    def outbox(self) -> Path:
        return self.folder / "cloud" / "outbox.sqlite"

    @property
    def state(self) -> Path:
        return self.folder / "d1"

    def writer(self, *, lane_bytes_max: int = 1 << 20) -> OutboxWriter:
        """The outbox, as a driver has it."""
        (channel,) = self.plan.down
        deal = self.plan.graph[channel.id].operator
        assert isinstance(deal, Deal)
        timed = waits_for_time(self.plan.graph, channel.id)
        channels = {channel.id: DownChannel(deal, RowCodec(channel.kind), "keyed", timed)}
        found = OutboxWriter(
            self.outbox,
            self.flow,
            channels,
            lambda: self.devices,
            lambda query, positions: self.clock_us,
            self.randomness,
            lane_bytes_max,
        )
        found.attach("keyed", "checkpoint", has_run=self.written > 0)
        return found

    def write(self, rows: Sequence[tuple[str, int]], clock_us: int, *, batch_id: int | None = None) -> None:
        """One micro-batch of commands (device, number), at a second each, after which the clock stands so."""
        writer = self.writer()
        self.clock_us = clock_us
        number = self.written if batch_id is None else batch_id
        writer.write("keyed", number, {"readings": number}, {self.plan.down[0].id: [columns(rows)]})
        writer.close()
        self.written = max(self.written, number + 1)

    def end(self) -> None:
        """The last micro-batch: every source has ended."""
        self.write([], END_OF_TIME)

    def sender(
        self, net: Net, store: OutboxStore | None = None, seed: int = 1
    ) -> tuple[OutboxStore, OutboxSender]:
        """A sender over the outbox."""
        opened = store or SqliteOutbox(self.outbox, self.flow)
        clock, chance = SystemClock(), SeededRandomness(seed)
        shared = down_connection(net, clock, chance, SETTINGS)
        return opened, OutboxSender(self.flow, opened, shared, clock, chance, SETTINGS)

    def agent(self, store: SpoolStore, net: Net, files: LineFiles | None = None) -> Agent:
        """The agent of the first device."""
        settings = AgentSettings(self.devices[0], records_max=10, read_max=4, uplink=QUICK)
        clock, chance = SystemClock(), SeededRandomness(3)
        return Agent(settings, self.plan, store, net, clock, chance, files=files or FolderFiles(self.state))

    def lines(self) -> list[dict[str, Any]]:
        """What the file sink holds."""
        path = self.state / "valve.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def numbers(self) -> list[int]:
        """The numbers in it."""
        return [line["number"] for line in self.lines()]


def columns(rows: Sequence[tuple[str, int]]) -> ColumnBatch:
    """Commands as they leave Spark."""
    codec = RowCodec(Command)
    values = [Command(device, number) for device, number in rows]
    times = [number * 1_000_000 for _, number in rows]
    return ColumnBatch(codec.to_columns(values), times, ["s"] * len(rows), [n for _, n in rows], None)


def letters(refused: Mapping[int, Refusal]) -> str:
    """The reasons, as one text."""
    return "; ".join(one.reason for one in refused.values())
