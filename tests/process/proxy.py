"""A fault proxy: it stands between MQTT clients and their broker and does to their packets what networks do.

In the test's own process, one `FaultProxy` for the agents and one for ingest. Guarantees: seeded, so that the
same packets in the same order meet the same faults; all that it does to a packet is in its trace; what it
holds is bounded, and beyond that its clients wait as they would for a full socket.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from tests.process.link import Direction, Pipe
from tests.process.packets import FramingError, Kind, Packet, read_packet

TRACE_MAX = 50_000
LOOPBACK = "127.0.0.1"


class Action(StrEnum):
    """What happens to a packet."""

    PASS = "pass"
    DROP = "drop"
    DUPLICATE = "duplicate"
    DELAY = "delay"
    REORDER = "reorder"
    CUT = "cut"
    SILENCE = "silence"


@dataclass(frozen=True, slots=True)
class Rule:
    """A fault for some packets: those of `kinds` (none: all) that go in `direction` (None: both) and whose
    topic fits `topic` (a PUBLISH only, unless it is `*`), with `chance`, at most `times` of them.

    delay_s: for DELAY, up to how long; others pass meanwhile. CUT: the connection is reset at this packet,
    which is not forwarded.
    """

    action: Action
    chance: float = 1.0
    kinds: frozenset[Kind] = frozenset()
    direction: Direction | None = None
    topic: str = "*"
    times: int = 1 << 60
    delay_s: float = 0.2
    only: Callable[[Packet], bool] | None = None
    """What else must be so of a packet."""

    def fits(self, direction: Direction, packet: Packet) -> bool:
        """Whether it is about such a packet."""
        return (
            (not self.kinds or packet.kind in self.kinds)
            and self.direction in (None, direction)
            and fnmatchcase(packet.topic, self.topic)
            and (self.only is None or self.only(packet))
        )


@dataclass(frozen=True, slots=True)
class Step:
    """What was done to one packet."""

    at_s: float
    connection: int
    direction: Direction
    kind: Kind
    topic: str
    packet_id: int
    size: int
    action: Action


@dataclass(eq=False, slots=True)
class _Session:
    """One client's connection and the one to the broker behind it."""

    number: int
    writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()

    def close(self) -> None:
        for writer in self.writers:
            writer.close()


@dataclass(slots=True)
class _Knobs:
    """How a direction is at the moment."""

    silent: bool = False
    stalled: bool = False
    bytes_per_s: float = 0.0
    latency_s: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class FaultProxy:
    """Listens on a free port of the loopback interface and forwards to the broker at `port`."""

    def __init__(self, port: int, seed: int, name: str = "") -> None:
        self.broker_port, self.name = port, name
        self.port = 0
        self.rules: list[Rule] = []
        self.trace: deque[Step] = deque(maxlen=TRACE_MAX)
        self.counts: Counter[Action] = Counter()
        self.connections = 0
        self.watch: Callable[[Direction, Packet, Action], None] | None = None
        """Told of every packet as it comes, and what is done to it."""
        self._random = random.Random(f"{seed}/{name}")
        self._server: asyncio.Server | None = None
        self._sessions: set[_Session] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._knobs = {direction: _Knobs() for direction in Direction}
        self._used: Counter[Rule] = Counter()
        self._refuses = False

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, LOOPBACK, 0, backlog=2_048)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and end every connection."""
        if self._server is not None:
            self._server.close()
        for session in list(self._sessions):
            session.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What a network does

    def cut(self) -> None:
        """Reset every connection; new ones are taken."""
        if self._sessions:
            self.counts[Action.CUT] += len(self._sessions)
        for session in list(self._sessions):
            session.abort()

    async def ended(self) -> None:
        """Wait until every connection has ended: what a client sent before it died has passed by then."""
        while self._sessions:  # noqa: ASYNC110 - they end by themselves
            await asyncio.sleep(0.005)

    def refuse(self, *, on: bool = True) -> None:
        """Reset every connection, and every new one as soon as it is made, until it is told otherwise."""
        self._refuses = on
        if on:
            self.cut()

    def silence(self, *directions: Direction, on: bool = True) -> None:
        """Swallow every packet of `directions` (none: both), for ever; connections stay as they are."""
        for direction in directions or tuple(Direction):
            self._knobs[direction].silent = on

    def stall(self, *directions: Direction, on: bool = True) -> None:
        """Let nothing pass; all of it comes later, as TCP has it across a short partition."""
        for direction in directions or tuple(Direction):
            knobs = self._knobs[direction]
            knobs.stalled = on
            knobs.changed.set()

    def throttle(self, bytes_per_s: float, *directions: Direction) -> None:
        """Let so many bytes a second of each connection through; 0 for as many as come."""
        for direction in directions or tuple(Direction):
            self._knobs[direction].bytes_per_s = bytes_per_s

    def latency(self, seconds: float) -> None:
        """Have every packet come so much later, in order."""
        for knobs in self._knobs.values():
            knobs.latency_s = seconds

    @property
    def latency_s(self) -> float:
        """What every packet to the client takes."""
        return self._knobs[Direction.DOWN].latency_s

    def forget(self, rule: Rule) -> None:
        """Count the packets of a rule from nothing again."""
        del self._used[rule]

    def heal(self) -> None:
        """End every fault; what was swallowed stays so."""
        self.rules = []
        self._refuses = False
        for knobs in self._knobs.values():
            knobs.silent = knobs.stalled = False
            knobs.bytes_per_s = knobs.latency_s = 0.0
            knobs.changed.set()

    # Connections

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        try:
            broker_reader, broker_writer = await asyncio.open_connection(LOOPBACK, self.broker_port)
        except OSError:  # the client learns of it as it would without us
            writer.transport.abort()
            return
        self.connections += 1
        session = _Session(self.connections, (writer, broker_writer))
        self._sessions.add(session)
        try:
            # Whatever ends one side ends the other, and both at once.
            with suppress(ConnectionError, FramingError, TimeoutError):
                await self._join(session, reader, broker_reader)
                session.close()  # a goodbye: what was written still goes out
                return
            session.abort()
        except asyncio.CancelledError:
            session.abort()
            raise
        finally:
            self._sessions.discard(session)

    async def _join(
        self, session: _Session, client: asyncio.StreamReader, broker: asyncio.StreamReader
    ) -> None:
        up = Pipe(session.writers[1], self._knobs[Direction.UP])
        down = Pipe(session.writers[0], self._knobs[Direction.DOWN])
        works = [
            asyncio.ensure_future(self._pump(session, client, Direction.UP, up)),
            asyncio.ensure_future(self._pump(session, broker, Direction.DOWN, down)),
            asyncio.ensure_future(up.drain()),
            asyncio.ensure_future(down.drain()),
        ]
        try:
            done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            for work in done:
                work.result()
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)

    async def _pump(
        self, session: _Session, reader: asyncio.StreamReader, direction: Direction, pipe: Pipe
    ) -> None:
        while (packet := await read_packet(reader)) is not None:
            rule = self._rule_for(direction, packet)
            action = Action.PASS if rule is None else rule.action
            if self._knobs[direction].silent:
                action = Action.SILENCE
            self._note(session, direction, packet, action)
            if action is Action.CUT:
                raise ConnectionResetError
            if action in (Action.DROP, Action.SILENCE):
                continue
            if action is Action.REORDER:
                pipe.hold(packet.data)
                continue
            delay_s = self._random.uniform(0, rule.delay_s) if rule and action is Action.DELAY else 0.0
            await pipe.put(packet.data, delay_s)
            if action is Action.DUPLICATE:
                await pipe.put(packet.repeated)
        await pipe.flush()  # a client that says goodbye and hangs up is heard to the end

    def _rule_for(self, direction: Direction, packet: Packet) -> Rule | None:
        for rule in self.rules:
            if not rule.fits(direction, packet) or self._used[rule] >= rule.times:
                continue
            if rule.chance < 1 and self._random.random() >= rule.chance:
                continue
            self._used[rule] += 1
            return rule
        return None

    def _note(self, session: _Session, direction: Direction, packet: Packet, action: Action) -> None:
        self.counts[action] += 1
        if self.watch is not None:
            self.watch(direction, packet, action)
        self.trace.append(
            Step(
                asyncio.get_running_loop().time(),
                session.number,
                direction,
                packet.kind,
                packet.topic,
                packet.packet_id,
                len(packet.data),
                action,
            )
        )


def seen(steps: Sequence[Step], kind: Kind, direction: Direction) -> list[Step]:
    """The steps of one kind and direction, in their order."""
    return [step for step in steps if (step.kind, step.direction) == (kind, direction)]
