"""The agent: reads a device's sources, runs the edge's steps on them, commits, and has the uplink send.

It drives the whole path of a record on the device. Guarantees: positions, state, counters and outgoing
batches are committed in one transaction, so a restart continues exactly after the last commit. Sources wait
while the spool is full. Every loop, queue and retry is bounded. An error in any part stops the agent, and
`run` raises it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from geartrain.concurrency.groups import first_of
from geartrain.concurrency.waiting import first_done
from geartrain.graph.conform import describe
from geartrain.planning import Plan
from geartrain.ports import Clock, Net, Randomness, SpoolCommit, SpooledBatch, SpoolStore
from geartrain.ports.boot_clock import BootClock
from geartrain.ports.buggify import buggify
from geartrain.revision import Revision, revision_of
from geartrain.wire.envelope import EPOCH_BYTES, Welcome
from geartrain_edge.agent.claiming import Claiming
from geartrain_edge.agent.crossing import first_of_two
from geartrain_edge.agent.epochs import greet, hello, opened, renew
from geartrain_edge.agent.session import FRESH, HELLO, Kept, Opening, Session
from geartrain_edge.agent.status import DISK_IS_LOW, AgentStatus, status_of
from geartrain_edge.errors import AlarmError
from geartrain_edge.settings import AgentSettings, Policy
from geartrain_edge.sources.intake import Intake
from geartrain_edge.sources.secrets import Secrets, SecretStore
from geartrain_edge.spool.admission import settled_policy
from geartrain_edge.spool.disk_floor import Room, Unlimited
from geartrain_edge.spool.sealing import Positions
from geartrain_edge.uplink.priority import Priority
from geartrain_edge.uplink.uplink import Effects, Hooks

if TYPE_CHECKING:
    from geartrain_edge.sinks.delivering import LineFiles

_LOG = logging.getLogger("geartrain.agent")

_IDLE_S_MIN = 0.001
_DISK_LOOK_S = 1.0
_CLAIM_LOOK_S = 0.5
_FEW_ROWS = 32
_SPARED = 0.8
"""So full is a spool when sources that can wait leave what is left of its room to those that cannot."""
"""A read that gives less may be of a source that waits for its next records itself."""


class Agent:
    """One device's part of one flow. Takes ports only: production and a simulator run the same class."""

    def __init__(
        self,
        settings: AgentSettings,
        plan: Plan,
        store: SpoolStore,
        net: Net,
        clock: Clock,
        randomness: Randomness,
        priority: Priority | None = None,
        files: LineFiles | None = None,
        revision: Revision | None = None,
        room: Room | None = None,
        boots: BootClock | None = None,
        *,
        answers: bool = False,
        secrets: SecretStore | None = None,
    ) -> None:
        """`priority`: what the agents of one process share, each of which runs another flow; `files`: for
        sinks on the device that write some; `revision`: of the plan, with the code of its flow; `room`: what
        its disk leaves the spool; `boots`: None where the wall clock is always right; `answers`: whether it
        tells who asks what its steps keep; `secrets`: for sources that ask for some, None where none is had.
        """
        # Where nobody chose, sources that can wait do so for the sake of those that cannot.
        self._spares_room = settings.policy is None
        self._settings = settings = replace(settings, policy=settled_policy(plan, settings.policy))
        self._plan = plan
        self._revision, self._room, self._boots = revision, room or Unlimited(), boots
        self._answers = answers
        self._secrets = None if secrets is None else Secrets(secrets, clock)
        shared = priority or Priority()
        self._turn = shared.turn(plan.graph.name, is_urgent=settings.urgent)
        self._effects, self._files = Effects(store, net, clock, randomness), files
        self._state, self._reason = "starting", ""
        self._stopping, self._stop_asked = False, asyncio.Event()
        self._draining = False
        self._committed_s = self._disk_look_s = -math.inf
        self._taken_s: float | None = None
        self._session: Session | None = None

    async def run(self) -> bool:
        """Work until all sources have ended and all is acked (True), or until `stop` or what `drain` asks
        for (False).

        Raises what stopped it: `SourceError`, `FlowError`, `SpoolError`, `AlarmError`, or the error of a
        defect.
        """
        try:
            if (plan := await self._with_secrets()) is None:
                self._state = "stopped"
                return False
            while await self._live(plan):
                pass
        except BaseException as error:  # noqa: BLE001 - raised again, without the groups around it
            cause = first_of(error, AlarmError)
            if self._secrets is not None:
                self._secrets.hide_in(cause)
            cancelled = isinstance(cause, asyncio.CancelledError)
            self._state, self._reason = ("stopped", "") if cancelled else ("failed", describe(cause))
            raise cause from None
        drained = self._draining and not (self._session and self._has_ended(self._session))
        self._state = "stopped" if self._stopping else "drained" if drained else "finished"
        return self._state == "finished"

    async def _with_secrets(self) -> Plan | None:
        """The plan whose sources can be opened, once their secrets are there; None after `stop`."""
        if self._secrets is None:
            return self._plan
        graph = await self._secrets.put_into(self._plan.graph, self._waits)
        return None if graph is None else replace(self._plan, graph=graph)

    def _waits(self, why: str) -> bool:
        if why and why != self._reason:
            _LOG.warning("device %s: flow %s %s", self._settings.device, self._plan.graph.name, why)
        self._reason = why
        return not self._stopping

    def stop(self) -> None:
        """End after the commit at hand; what is not acked stays in the spool."""
        self._stopping = True
        self._stop_asked.set()
        if self._session is not None:
            self._session.backlog.shrunk.set()

    def drain(self) -> None:
        """Read nothing after the commit at hand, send what the spool holds, and end once all is acked.

        Nobody is told that a source has ended: none has.
        """
        self._draining = True
        if self._session is not None:
            self._session.backlog.shrunk.set()

    async def _live(self, plan: Plan) -> bool:
        """One session with the spool; whether there has to be another, which goes over to `plan`."""
        settings, clock, effects = self._settings, self._effects.clock, self._effects
        store, revision = effects.store, self._revision or revision_of("", plan)
        try:
            fresh = effects.randomness.token(EPOCH_BYTES)
            image = await store.open(settings.device, plan.graph.name, fresh)
            claiming = Claiming.of(image, plan, revision, settings, clock)
            first = None
            if claiming is not None:
                plan, revision = await self._opened(claiming.former), claiming.held
            elif first := first_of_two(image.state, plan, revision, settings, is_fresh=image.last_seq == 0):
                plan, revision = await self._opened(first[0]), first[1]
            names_max = settings.limits.names_max
            intake = Intake(
                plan,
                settings.device,
                settings.read_max,
                names_max,
                clock,
                self._boots,
                settings.shared,
                image.epoch.hex(),
            )
            try:
                given = None if claiming is None else claiming.take
                session = self._session = Session(
                    settings, plan, effects, self._turn, self._files, intake, image, given
                )
                session.goes_further = first is not None
                return await self._run_session(session, plan, revision, claiming)
            finally:
                await intake.close()
        finally:
            await store.close()

    async def _opened(self, plan: Plan) -> Plan:
        """A plan whose sources have their secrets, which were there before."""
        if self._secrets is None:
            return plan
        graph = await self._secrets.put_into(plan.graph, self._waits)
        return plan if graph is None else replace(plan, graph=graph)

    async def _run_session(
        self, session: Session, plan: Plan, revision: Revision, claiming: Claiming | None
    ) -> bool:
        """Work until there is nothing more to do, or until the next crossing can be made (True)."""
        self._answer(session, plan)
        hooks = Hooks(
            partial(renew, session, self._effects, self._settings),
            session.sealer.schemas,
            partial(hello, session),
            partial(self._hear, session),
        )
        try:
            await greet(session, self._effects, plan, self._settings, revision)
            async with asyncio.TaskGroup() as group:
                beside = [group.create_task(session.uplink.run(hooks))]
                if session.down is not None:
                    await session.down.prepare()
                    beside.append(group.create_task(session.down.run()))
                work = group.create_task(self._work(session, claiming))
                beside.append(group.create_task(self._give_up(work)))
                if self._secrets is not None:
                    beside.append(group.create_task(self._secrets.watch()))
                await asyncio.wait([work])
                for task in beside:
                    task.cancel()
            session.fragment.close()
            return not work.cancelled() and work.result()
        finally:
            # All of them: a commit that was cancelled on its way may have taken some along.
            if raised := session.uplink_counters.raised():
                await self._effects.store.commit(SpoolCommit(counters=raised))

    def _answer(self, session: Session, plan: Plan) -> None:
        """Have who asks be told what the steps keep, where some keep anything."""
        device = self._settings.device
        if self._answers and any(s.operator.stateful for s in plan.graph.steps if s.id in plan.cut.edge):
            from geartrain_edge.agent.answering import Answering

            store = self._effects.store
            session.uplink.beside.append(Answering(device, plan, store, session, session.counters))

    def _hear(self, session: Session, welcome: Welcome) -> None:
        """Note that the epoch is open, and where the device stands, for the reading side."""
        session.welcome = welcome
        session.heard.set()

    async def _open(self, session: Session, welcome: Welcome) -> None:
        """Note that the epoch is open; the splits that had to wait for it start where a former session of the
        device has ended.

        That note and what comes of the first watermarks are one transaction: a session that finds the note
        takes its steps to have been told of all that the positions say.
        """
        moved: Positions = {}
        if session.handshake == FRESH:
            await self._commit(session)
            moved = await self._release(session, welcome)
        await self._commit(session, Opening(welcome, moved))

    async def _release(self, session: Session, welcome: Welcome) -> Positions:
        moved = await session.intake.release(welcome.positions, session.fragment)
        session.intake.advance(session.fragment)  # those that have ended before move the watermarks now
        _LOG.info("device %s: ingest knows %d of its splits", self._settings.device, len(moved))
        return moved

    async def _go_over(self, session: Session) -> None:
        """Have a device that is to go over hear where it stands, and do so with that; else do nothing.

        It reads nothing before: what it has read so far went through the former steps.
        """
        moved: Positions | None = None if session.handshake == FRESH else {}
        while self._is_unheard(session) and not self._stopping:
            self._state = "greeting"
            session.heard.clear()
            if (welcome := session.welcome) is None:
                await first_done(session.heard.wait(), self._stop_asked.wait())
                continue
            if moved is None:
                moved = await self._release(session, welcome)
            await self._commit(session, Opening(welcome, moved))

    @staticmethod
    def _is_unheard(session: Session) -> bool:
        """Whether a device is to go over that has not heard where it stands."""
        return session.change is not None and session.going_over is None

    async def _work(self, session: Session, claiming: Claiming | None) -> bool:
        """Read and commit until the sources have ended, then wait for the last ack; or until what is claimed
        is there, or the first of two crossings is committed (True).
        """
        await self._go_over(session)
        if self._is_unheard(session):
            return False  # it was stopped before
        idle_s = _IDLE_S_MIN
        while not self._is_ending() and not self._has_ended(session):
            if session.welcome is not None:
                await self._open(session, session.welcome)
                continue
            if session.goes_further and session.change is None:
                return True
            if claiming is not None and claiming.is_due(session) and await self._claim(session, claiming):
                return True
            await self._wait_for_room(session)
            await self._turn.give_way()
            rows = await self._gather(session)
            self._taken_s = self._effects.clock.monotonic_s() if rows else None
            writes = rows > 0 or self._may_cross(session)
            if (writes and await self._commit(session, records=rows)) or rows:
                idle_s = _IDLE_S_MIN
            else:
                await (
                    self._effects.clock.sleep(idle_s) if session.down is None else session.down.wait(idle_s)
                )
                idle_s = min(idle_s * 2, self._settings.idle_ms_max / 1_000)
        self._state = "draining"
        session.intake.is_reading = False
        while session.intake.untimed.count and not self._stopping:  # what has no time yet cannot be sent
            if not await session.intake.read(session.fragment, session.counters, session.batch_size.records):
                await self._effects.clock.sleep(self._settings.idle_ms_max / 1_000)
            await self._commit(session)
        if (self._stopping or self._draining) and session.down is not None:
            await self._commit(session)  # what sinks were given is noted, so that they are not given it again
        await self._flush(session)
        while not self._stopping and not await self._is_done(session):
            await session.backlog.wait_for_room()
        return False

    async def _claim(self, session: Session, claiming: Claiming) -> bool:
        """Claim what the cloud keeps of steps that come, and read nothing until it is there, or for too long;
        whether it is there.
        """
        down = session.down
        if down is None:
            return False
        await self._commit(session)
        await claiming.claim(session, self._effects)
        self._state = "moving"
        while claiming.waits and not self._is_ending() and session.welcome is None:
            if not down.feed(session.backlog.epoch):
                await down.wait(_CLAIM_LOOK_S)
            await self._commit(session)
        return await claiming.settle(session, self._effects, self._settings.device)

    def _is_ending(self) -> bool:
        """Whether nothing more is to be read, because somebody asked for that."""
        return self._stopping or self._draining

    @staticmethod
    def _has_ended(session: Session) -> bool:
        """Whether nothing comes any more, from the sources or from the cloud."""
        return session.intake.ended and (session.down is None or session.down.ended)

    async def _is_done(self, session: Session) -> bool:
        """Whether all is acked, and stays so: a new epoch is there by now, or does not begin any more."""
        async with session.backlog.lock:
            session.is_done = session.backlog.acked_seq == session.backlog.last_seq
            return session.is_done

    async def _give_up(self, work: asyncio.Task[bool]) -> None:
        """After `stop`, end what does not end by itself, such as a source that is long at a read."""
        await self._stop_asked.wait()
        await self._effects.clock.sleep(self._settings.stop_ms / 1_000)
        work.cancel()

    async def _wait_for_room(self, session: Session) -> None:
        """Policy `block`: sources wait while the spool is full, or its disk nearly is."""
        backlog = session.backlog
        self._look_at_disk(session)
        if backlog.is_full() and self._settings.policy is Policy.BLOCK and not self._is_ending():
            self._state = "blocked"
            session.counters.add("blocked")
            _LOG.warning("device %s: the spool is full, its sources wait for acks", self._settings.device)
            while backlog.is_full() and not self._is_ending():
                # Others may free the disk; nobody says when.
                looks = [self._effects.clock.sleep(_DISK_LOOK_S)] if session.disk_is_low else []
                await first_done(backlog.wait_for_room(), *looks)
                self._look_at_disk(session)
        self._state = "greeting" if session.intake.holds else "running"

    def _look_at_disk(self, session: Session) -> None:
        """Have the spool hold no more than its disk leaves it, and say so when that changes; now and then."""
        now_s = self._effects.clock.monotonic_s()
        if now_s < self._disk_look_s:
            return
        self._disk_look_s, bytes_max = now_s + _DISK_LOOK_S, self._settings.spool_bytes_max
        session.backlog.bytes_max = self._room.now(bytes_max)
        is_low = session.backlog.bytes_max < bytes_max
        if is_low and not session.disk_is_low:
            session.counters.add("disk_low")
            _LOG.error("ALARM: device %s: %s", self._settings.device, DISK_IS_LOW)
        elif session.disk_is_low and not is_low:
            _LOG.warning(
                "device %s: its disk has room again, the spool grows as before", self._settings.device
            )
        session.disk_is_low = is_low

    async def _gather(self, session: Session) -> int:
        """Read until a commit is due: enough rows, enough time, or nothing there.

        A source that gives a few at a time, soon after a commit, is given `linger_ms` since then: if it has
        more by then, it waits for the world, and all of it is committed at once instead of row by row. With
        `durability_ms` nothing is due before so long since the last commit, unless the commit is full.
        """
        clock, settings, rows, few = self._effects.clock, self._settings, 0, 0
        durable_s = self._committed_s + settings.durability_ms / 1_000
        due_s = max(clock.monotonic_s() + settings.interval_ms / 1_000, durable_s)
        idle_s = _IDLE_S_MIN
        down = None if session.intake.holds else session.down
        came_down = down is not None and down.feed(session.backlog.epoch) > 0
        if down is not None and (not down.has_room or (came_down and clock.monotonic_s() >= durable_s)):
            return 0  # committed at once; while the sinks have no room, nothing more is read
        while rows < session.batch_size.records and not self._is_ending():
            session.intake.spares_room = self._spares_room and session.backlog.is_full(_SPARED)
            came = await session.intake.read(
                session.fragment, session.counters, session.batch_size.records - rows
            )
            rows += came
            now_s = clock.monotonic_s()
            if now_s < durable_s and not session.has_news and not session.intake.ended:
                idle_s = _IDLE_S_MIN if came else min(idle_s * 2, settings.idle_ms_max / 1_000)
                await clock.sleep(min(idle_s, durable_s - now_s))
                await self._turn.give_way()
                continue
            if not came or now_s >= due_s or 0 < few < came or buggify("early flush", 0.3):
                break
            linger_s = self._committed_s + settings.linger_ms / 1_000 - now_s
            if came < _FEW_ROWS and not few and linger_s > 0:
                few = came
                await clock.sleep(linger_s)
            elif came >= settings.read_max:  # acks and urgent flows wait for one read, not for a commit
                await clock.sleep(0)
                await self._turn.give_way()
        return rows

    async def _commit(self, session: Session, opening: Opening | None = None, records: int = 0) -> bool:
        """Write what was gathered of so many records in one transaction, and what `opening` says; False where
        there is nothing to write, or the device is to go over with the welcome of another epoch.
        """
        async with session.backlog.lock:
            if opening is not None and session.change is not None and session.welcome is not opening.welcome:
                return False
            after, admission, sealer = session.intake.progress(), session.admission, session.sealer
            down, beside = session.down, Kept()
            if down is None:
                output = session.fragment.take()
            else:
                output, beside = down.take(session.backlog.epoch)
            parts = sealer.encode(admission.thin(output))
            admitted = await admission.admit(parts, sealer.header_bytes)
            batches: list[SpooledBatch] = []
            positions, numbers, said = session.intake.moved(), session.numbers, Kept()
            if opening is not None:
                positions.update(opening.positions)
                numbers, said = opened(session, opening, after)
            if admitted.parts or not admission.is_closed:
                batches = sealer.number(admitted.parts, session.progress, after, admission.dropped)
            if batches:
                admission.declared()
            noted = {**session.intake.untimed.changes(), **session.intake.notes.changes()}
            state = {**session.fragment.changes(), **admission.state(), **noted, **beside, **said}
            says_more = bool(batches)
            batches, state = session.with_crossing(batches, state)
            if not (batches or positions or state):
                self._taken_s = None
                return False
            session.counters.take(session.fragment.counters)
            counters = session.counters.changes() | session.uplink_counters.changes()
            change = SpoolCommit(batches, positions, state, counters, admitted.gaps)
            await self._effects.store.commit(change)
            self._committed_s, self._taken_s = self._effects.clock.monotonic_s(), None
            session.batch_size.committed(records, batches)
            if down is not None:
                down.committed()
            session.committed_crossing()
            session.committed = after
            if says_more:
                session.progress = after
            if opening is not None:
                session.handshake = said[HELLO] or b""
                session.welcome = session.welcome if session.handshake else None
                session.numbers, sealer.crossing = numbers, numbers.number
            session.backlog.committed(batches)
            if batches:
                session.uplink.come_first()
            if admitted.gaps:
                session.backlog.replaced(admitted.freed_bytes)
                await session.uplink.replaced(admitted.gaps)
        return True

    def _may_cross(self, session: Session) -> bool:
        """Whether a crossing that waits is committed though no records have come behind it."""
        going, is_last = session.going_over, self._draining or session.intake.ended
        return going is None or is_last or self._effects.clock.monotonic_s() >= going.due_s

    async def _flush(self, session: Session) -> None:
        """Have the last watermarks, and what was dropped, stand in a batch, as soon as there is room."""
        while not self._stopping:
            await self._commit(session)
            is_said = session.intake.progress().has_time_of(session.progress)
            if is_said and not session.admission.dropped:
                return
            await session.backlog.wait_for_room()

    @property
    def step(self) -> str:
        """The step at work, "" between two calls."""
        return "" if self._session is None else self._session.fragment.at

    def status(self) -> AgentStatus:
        """The agent at this moment."""
        clock, taken_s = self._effects.clock, self._taken_s
        device, flow = self._settings.device, self._plan.graph.name
        status = status_of(self._session, device, flow, self._state, self._reason, clock.now_us())
        kept = {step: size for step, size in self._effects.store.kept().items() if not step.startswith("_")}
        uncommitted_s = 0.0 if taken_s is None else clock.monotonic_s() - taken_s
        return replace(status, uncommitted_s=uncommitted_s, kept=kept)
