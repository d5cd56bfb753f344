"""What is lost on its way and sent again: how long until it is there.

Among the recoveries. Between agent and broker every packet takes 25 ms each way; the settings are the
defaults. A batch that is lost in a stream of others is missed by ingest; of one that goes alone only the
agent can tell that no ack comes. Guarantees: exactly one packet is dropped in a run, and its own batch, or an
ack that says as much, is what ends the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from msgspec.structs import asdict

from geartrain.wire.codec import decode_control, decode_envelope, decode_header
from geartrain.wire.envelope import Ack
from geartrain_edge.settings import AgentSettings, UplinkSettings
from tests.process.link import Direction
from tests.process.oracle import LETTERS, Account, account, missing_numbers
from tests.process.packets import Kind, Packet
from tests.process.proxy import Action, FaultProxy, Rule
from tests.process.timings import Runs, recovery
from tests.process.world import ScenarioError, World
from tests.waiting import WAIT_S

ONE_WAY_S = 0.025
BAR_S = 0.1
PER_SECOND = 100
_WARM_UP = 60
_BEFORE, _BETWEEN = 12, 2
_DROPS_A_CONNECTION = 5
"""A publish without puback takes a place in its connection's window until the connection ends."""

_AGENT = AgentSettings("")
_NO_KEYS = ("digest_retries_max", "trim_rest_ms")
"""Settings that no file names."""
UPLINK_DEFAULTS = {k: v for k, v in asdict(UplinkSettings()).items() if k not in _NO_KEYS}
COMMIT_DEFAULTS = {"records_max": _AGENT.records_max, "interval_ms": _AGENT.interval_ms}


class Eye:
    """Sees batches and acks of one flow go by, and when: the seq of what was dropped, and its arrival."""

    def __init__(self, near: FaultProxy, far: FaultProxy) -> None:
        """`near`: on the agent's side, where the packet is dropped; `far`: on ingest's."""
        self._near, self._newest = near, {"up": 0, "ack": 0}
        self._place = ("", 0)
        self._dropped: asyncio.Future[float] | None = None
        self._arrived: asyncio.Future[float] | None = None
        near.watch = self._see_near
        far.watch = self._see_far

    def arm(self) -> None:
        """Wait for the next drop."""
        loop = asyncio.get_running_loop()
        self._dropped, self._arrived = loop.create_future(), loop.create_future()

    def is_fresh(self, packet: Packet) -> bool:
        """Whether it is a batch or an ack that never passed before: the loss of another would not matter."""
        found = place_of(packet)
        return found is not None and found[1] > self._newest[found[0]]

    def _see_near(self, direction: Direction, packet: Packet, action: Action) -> None:
        if packet.kind is not Kind.PUBLISH or not (found := place_of(packet)):
            return
        kind, seq = found
        self._newest[kind] = max(self._newest[kind], seq)
        now_s = asyncio.get_running_loop().time()
        if action is Action.DROP and self._dropped is not None:
            self._place = found
            self._dropped.set_result(now_s)
        elif kind == "ack" == self._place[0] and seq >= self._place[1]:
            self._come(now_s + self._near.latency_s)

    def _see_far(self, direction: Direction, packet: Packet, action: Action) -> None:
        if direction is Direction.DOWN and packet.kind is Kind.PUBLISH and place_of(packet) == self._place:
            self._come(asyncio.get_running_loop().time())

    def _come(self, at_s: float) -> None:
        is_awaited = self._dropped is not None and self._dropped.done()
        if is_awaited and self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(at_s)

    async def seconds(self) -> float:
        """From the drop to the arrival."""
        assert self._dropped is not None
        assert self._arrived is not None
        async with asyncio.timeout(WAIT_S):
            return await self._arrived - await self._dropped


def place_of(packet: Packet) -> tuple[str, int] | None:
    """("up" or "ack", seq) of a publish that is a sequenced batch or an ack; None for others."""
    kind = packet.topic.rpartition("/")[2]
    if kind == "up":
        seq = decode_header(decode_envelope(packet.payload).header).seq
        return (kind, seq) if seq else None
    if kind == "ack":
        control = decode_control(packet.payload)
        return (kind, control.seq) if isinstance(control, Ack) else None
    return None


def plain(world: World, **source: Any) -> None:
    """Have one agent of default settings deliver the flow of one channel, closed to begin with."""
    world.flows, world.records = ("plain",), 1 << 40
    world.prepare("d1", gate=0, source=source, uplink=UPLINK_DEFAULTS, commit=COMMIT_DEFAULTS)


async def settled(world: World) -> Account:
    """Let no more in, wait until all is acked, end agent and ingest, and count; fails where one was not
    delivered once and in order.
    """
    world.open_gate(0)
    await still(lambda: world.alive("d1").get("records_read"))
    await world.until("all is acked", lambda: world.is_idle("d1"))
    await asyncio.to_thread(world.agents["d1"].terminate)
    await world.end_ingest()
    said = world.status("d1")
    rows = {k.removeprefix("rows."): v for k, v in said["counters"].items() if k.startswith("rows.")}
    found, seen = account(world.seen("plain"), rows), world.seen("plain")
    if not found.is_exact or rows.keys() - {"numbers", LETTERS}:
        raise ScenarioError(f"not each record once and in order: {found}")
    if missing := missing_numbers(seen, "numbers/d1", found.accepted):
        raise ScenarioError(f"records {sorted(missing)[:10]} are nowhere")
    return found


async def still(reading: Callable[[], int | None]) -> None:
    """Return when a figure of a status file is there and has stopped to change."""
    before = None
    while before != (before := reading()) or before is None:  # noqa: ASYNC110 - it changes in another process
        await asyncio.sleep(1.5)  # longer than the program takes to say how it is


async def _warmed_up(world: World, **source: Any) -> None:
    plain(world, **source)
    await world.launch()
    world.near.latency(ONE_WAY_S)
    world.open_gate(_WARM_UP)
    await world.until_logged(_WARM_UP)


async def _repair(world: World, eye: Eye, rule: Rule, number: int, upto: int | None) -> float:
    """One run: `upto` opens the gate for what is lost, None where a stream goes on anyway."""
    if number % _DROPS_A_CONNECTION == 0 and number:
        world.near.cut()
        await world.until("it is connected again", lambda: world.is_idle("d1") or upto is None)
        await asyncio.sleep(2)
    await asyncio.sleep(world.random.uniform(0.2, 0.4))
    eye.arm()
    world.near.rules = [replace(rule, only=eye.is_fresh)]
    world.near.forget(world.near.rules[0])
    if upto is not None:
        world.open_gate(upto)
    took_s = await eye.seconds()
    world.near.rules = []
    return took_s


PUBLISH_LOST = Rule(Action.DROP, 1, frozenset({Kind.PUBLISH}), Direction.UP, "geartrain/*/up", times=1)
ACK_LOST = Rule(Action.DROP, 1, frozenset({Kind.PUBLISH}), Direction.DOWN, "geartrain/*/ack", times=1)


async def _in_a_stream(world: World, runs: Runs, rule: Rule) -> Account:
    await _warmed_up(world, per_second=PER_SECOND)
    world.open_gate(1 << 60)
    eye = Eye(world.near, world.far)
    await asyncio.sleep(1)
    for number in range(runs.wanted):
        runs.seconds.append(await _repair(world, eye, rule, number, None))
    return await settled(world)


async def _alone(world: World, runs: Runs, rule: Rule) -> Account:
    await _warmed_up(world)
    upto, eye = _WARM_UP, Eye(world.near, world.far)
    for number in range(runs.wanted):
        for _ in range(_BETWEEN if number or runs.small else _BEFORE):
            upto += 1
            await _one_more(world, upto)
        upto += 1
        runs.seconds.append(await _repair(world, eye, rule, number, upto))
    return await settled(world)


async def _one_more(world: World, upto: int) -> None:
    """One that is not lost, and goes alone too: how long an ack takes is known from such ones."""
    await asyncio.sleep(world.random.uniform(0.05, 0.15))
    world.open_gate(upto)
    await world.until_logged(upto)
    await world.until("all is acked", lambda: world.is_idle("d1"))


@recovery("publish lost in a stream", BAR_S)
async def publish_in_a_stream(world: World, runs: Runs) -> Account:
    """Ingest asks for it when the next one comes."""
    return await _in_a_stream(world, runs, PUBLISH_LOST)


@recovery("publish lost that goes alone", BAR_S)
async def publish_alone(world: World, runs: Runs) -> Account:
    """Nothing follows that would show it."""
    return await _alone(world, runs, PUBLISH_LOST)


@recovery("ack lost in a stream", BAR_S)
async def ack_in_a_stream(world: World, runs: Runs) -> Account:
    """The next one says as much."""
    return await _in_a_stream(world, runs, ACK_LOST)


@recovery("ack lost that goes alone", BAR_S)
async def ack_alone(world: World, runs: Runs) -> Account:
    """The batch is sent again, and acked again."""
    return await _alone(world, runs, ACK_LOST)
