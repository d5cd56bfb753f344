"""A broker of MQTT publishes that loses, doubles, delays and reorders them, forgets sessions and vanishes.

It stands between the simulated nodes and belongs to none of them. It is harsher than a real broker on
purpose: nothing above it may rest on a puback (I3). It guarantees only what `geartrain.ports.Net` does:
what arrives was published, on a topic that was subscribed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from geartrain.errors import DeniedError, NetError
from geartrain.ports import Incoming
from geartrain_simulation.machine.faults import Faults
from geartrain_simulation.machine.trace import short_digest
from geartrain_simulation.machine.world import Process, World

Observer = Callable[[str, str, bytes], None]
INBOX_MAX = 1_000
"""Publishes that wait for one client; more are dropped, as mosquitto does at its default."""


def matches(topic_filter: str, topic: str) -> bool:
    """Whether an MQTT topic filter (with `+` and `#`) takes a topic."""
    if "+" not in topic_filter and "#" not in topic_filter:
        return topic_filter == topic  # as most do, where each of a thousand devices has one of its own
    wanted, given = topic_filter.split("/"), topic.split("/")
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(given) or level not in ("+", given[index]):
            return False
    return len(wanted) == len(given)


class Session:
    """What the broker knows of one connected client; gone with its connection (clean session)."""

    def __init__(self, process: Process, client_id: str) -> None:
        self.process, self.client_id = process, client_id
        self.filters: list[str] = []
        self.inbox: deque[Incoming] = deque()
        self.broken = ""
        self.newest_arrival_s = 0.0
        self._waiter: asyncio.Future[None] | None = None

    def close(self, reason: str) -> None:
        """Break the connection; what waits in its inbox is lost."""
        if not self.broken:
            self.broken = reason
            self.inbox.clear()
            self._wake()

    def check(self) -> None:
        """Raise `NetError` when the connection is broken."""
        if self.broken:
            raise NetError(f"the connection to the broker is gone: {self.broken}")

    def takes(self, topic: str) -> bool:
        """Whether the client has subscribed to a topic."""
        return any(matches(one, topic) for one in self.filters)

    def arrive(self, incoming: Incoming) -> None:
        """Put a publish into the inbox."""
        self.inbox.append(incoming)
        self._wake()

    async def next(self) -> Incoming:
        """The next publish; raises `NetError` when the connection breaks."""
        while True:
            self.check()
            if self.inbox:
                return self.inbox.popleft()
            self._waiter = self.process.world.loop.create_future()
            await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class SimBroker:
    """The broker of a world. `observers` see (node, topic, payload) of each publish before any fault can."""

    def __init__(self, world: World, faults: Faults | None = None) -> None:
        self.world = world
        self.faults = faults if faults is not None else Faults()
        self.observers: list[Observer] = []
        self.counters: dict[str, int] = {}
        self._random = world.random("broker")
        self._sessions: dict[str, Session] = {}
        self._down_until_s = 0.0
        self._cut_until_s: dict[str, float] = {}
        self._denied_until_s: dict[str, float] = {}
        self.denied_s: dict[str, list[float]] = {}
        """By node, when it was denied a connection."""
        self.tried_s: dict[str, float] = {}
        """By node, when it last tried to connect."""
        self._silent_until_s: dict[tuple[str, str], float] = {}
        self._retained: dict[str, bytes] = {}
        self.inbox_max = INBOX_MAX
        self._life = 0

    # What happens to it

    def crash(self, down_s: float) -> None:
        """Forget every session and all that is under way, and be away for `down_s`."""
        self._note("crash", f"{down_s:.3f}")
        self._life += 1
        self._down_until_s = self.world.loop.time() + down_s
        for session in list(self._sessions.values()):
            self._drop_session(session, "the broker is down")

    def cut(self, node: str, for_s: float) -> None:
        """Break the node's connections, and refuse it for `for_s`."""
        self._note("cut", f"{node} {for_s:.3f}")
        self._cut_until_s[node] = self.world.loop.time() + for_s
        for session in self._sessions_of(node):
            self._drop_session(session, "the network was cut")

    def deny(self, node: str, for_s: float) -> None:
        """Break the node's connections, and do not accept it for `for_s`, as one that is revoked."""
        self._note("deny", f"{node} {for_s:.3f}")
        self._denied_until_s[node] = self.world.loop.time() + for_s
        for session in self._sessions_of(node):
            self._drop_session(session, "the broker was told of what is revoked")

    def silence(self, node: str, for_s: float, ways: tuple[str, ...] = ("up", "down")) -> None:
        """Lose all that the node publishes (up) or should receive (down) for `for_s`, and let nobody
        notice.
        """
        self._note("silence", f"{node} {for_s:.3f} {' '.join(ways)}")
        for way in ways:
            self._silent_until_s[node, way] = self.world.loop.time() + for_s

    def forget(self, node: str) -> None:
        """Forget what the node has subscribed to, and keep its connections: it is not told."""
        for session in self._sessions_of(node):
            self._note("forget", session.client_id)
            session.filters.clear()

    def take_over(self, node: str) -> None:
        """Let another client come with the node's id: its connections are broken."""
        for session in self._sessions_of(node):
            self._note("take over", session.client_id)
            self._drop_session(session, f"another client took the id {session.client_id}")

    def retain(self, topic: str, payload: bytes) -> None:
        """Deliver this to whoever subscribes to its topic from now on: nobody of ours asks for that."""
        self._retained[topic] = payload

    def subscribed(self, session: Session, topic_filter: str) -> None:
        """A client has subscribed: what is retained there comes at once."""
        for topic, payload in self._retained.items():
            if matches(topic_filter, topic):
                self._deliver(session, topic, payload)

    def inject(self, topic: str, payload: bytes) -> None:
        """Deliver what nobody published now, as a rogue client does that sends an old one again."""
        self._note("inject", f"{topic} {short_digest(payload)}")
        self._route(self._life, topic, payload)

    def _sessions_of(self, node: str) -> list[Session]:
        return [session for session in self._sessions.values() if session.process.node.name == node]

    # What clients do

    def open(self, process: Process, client_id: str) -> Session:
        """A session for a client; one of the same id is thrown out. Raises `NetError` without a way."""
        now, node = self.world.loop.time(), process.node.name
        self.tried_s[node] = now
        if now < self._down_until_s:
            raise NetError("the broker does not answer")
        if now < self._cut_until_s.get(node, 0.0):
            raise NetError("the network is unreachable")
        if now < self._denied_until_s.get(node, 0.0):
            self.denied_s.setdefault(node, []).append(now)
            raise DeniedError("the broker does not accept this client")
        former = self._sessions.get(client_id)
        if former is not None:
            self._drop_session(former, f"another client took the id {client_id}")
        session = self._sessions[client_id] = Session(process, client_id)
        process.on_end.append(lambda: self.leave(session))
        return session

    def leave(self, session: Session) -> None:
        """The client closed its connection, or died."""
        self._drop_session(session, "it was closed")

    def accept(self, session: Session, topic: str, payload: bytes) -> None:
        """Take a publish, and let the two legs of its way meet their fates."""
        if self._lost(session, "drop up", topic, payload):
            return
        for _ in range(self._copies(topic)):
            leg_s = self._delay_s() or self._random.uniform(0, self.faults.latency_s_max)
            self.world.later(leg_s, self._route, self._life, topic, payload)

    def _route(self, life: int, topic: str, payload: bytes) -> None:
        if life != self._life:
            self._count("forgotten", topic)
            return
        for session in list(self._sessions.values()):
            if session.takes(topic) and not self._lost(session, "drop down", topic, payload):
                for _ in range(self._copies(topic)):
                    self.world.later(
                        self._arrival_in_s(session, topic), self._deliver, session, topic, payload
                    )

    def _arrival_in_s(self, session: Session, topic: str) -> float:
        """In order with what was sent to the session before, unless the seed says otherwise."""
        now = self.world.loop.time()
        if delay_s := self._delay_s():
            return delay_s
        arrival_s = max(session.newest_arrival_s, now + self._random.uniform(0, self.faults.latency_s_max))
        if self._random.random() < self.faults.reorder:
            self._count("reorder", topic)
            return arrival_s - now + self._random.uniform(0, self.faults.late_s_max)
        session.newest_arrival_s = arrival_s
        return arrival_s - now

    def _delay_s(self) -> float:
        """How long one publish is held back, while others pass it: minutes at times, 0 as a rule."""
        faults = self.faults
        if not faults.delay or self._random.random() >= faults.delay:
            return 0.0
        delay_s = self._random.uniform(0, faults.delay_s_max)
        self._count("delay", f"{delay_s:.3f}")
        self.world.later(delay_s, self._note, "delay", "it arrives now")
        return delay_s

    def _deliver(self, session: Session, topic: str, payload: bytes) -> None:
        if session.broken:
            self._count("undelivered", topic)
        elif len(session.inbox) >= self.inbox_max:
            self._count("overflow", topic)
        else:
            payload = self._as_it_arrives(topic, payload)
            self._note("deliver", f"{session.client_id} {topic} {short_digest(payload)}")
            session.arrive(Incoming(topic, payload))

    def _as_it_arrives(self, topic: str, payload: bytes) -> bytes:
        faults = self.faults
        if not payload or self._random.random() >= faults.damage or not matches(faults.damage_filter, topic):
            return payload
        self._count("damage", topic)
        bit = self._random.randrange(8 * len(payload))
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        return bytes(damaged)

    def _lost(self, session: Session, what: str, topic: str, payload: bytes) -> bool:
        way = (session.process.node.name, what.removeprefix("drop "))
        silent = self.world.loop.time() < self._silent_until_s.get(way, 0.0)
        lost = silent or self._random.random() < self.faults.drop
        if lost:
            self._count(what, f"{topic} {short_digest(payload)}")
        return lost

    def _copies(self, topic: str) -> int:
        if self._random.random() >= self.faults.duplicate:
            return 1
        self._count("duplicate", topic)
        return 2

    def _drop_session(self, session: Session, reason: str) -> None:
        if self._sessions.get(session.client_id) is session:
            del self._sessions[session.client_id]
        session.close(reason)

    def _count(self, what: str, detail: str) -> None:
        self.counters[what] = self.counters.get(what, 0) + 1
        self._note(what, detail)

    def _note(self, what: str, detail: str) -> None:
        self.world.note("broker", what, detail)
