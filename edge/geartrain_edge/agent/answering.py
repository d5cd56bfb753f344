"""Answers to who asks a flow on this device for what a step keeps of a key.

Beside a record's path, over the uplink's connection. Guarantees: an answer is the state of one commit, read
from the spool between two of them, with its place. Nothing is opened, fed or changed. At most `WAITING_MAX`
questions wait; what does not fit is counted and left, for who hears nothing asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from geartrain.errors import QuestionError, SchemaError, WireError
from geartrain.planning import Plan
from geartrain.ports import Connection, SpoolStore
from geartrain.records.event_time import START_OF_TIME
from geartrain.wire.topics import ask_topic, told_topic
from geartrain_edge.spool.backlog import Counters

if TYPE_CHECKING:
    from geartrain.control.questions import DeviceAnswer, DeviceQuestion, ToldByDevice
    from geartrain_edge.agent.session import Session

_LOG = logging.getLogger("geartrain.agent")

WAITING_MAX = 20


class Answering:
    """Of one flow; what it needs for an answer is imported with the first question."""

    def __init__(
        self, device: str, plan: Plan, store: SpoolStore, session: Session, counters: Counters
    ) -> None:
        self._plan, self._store, self._session, self._counters = plan, store, session, counters
        flow = plan.graph.name
        self._topic, self._told_topic = ask_topic(device, flow), told_topic(device, flow)
        self._waiting, self._came = deque[bytes](), asyncio.Event()

    @property
    def topic(self) -> str:
        """Where questions come in."""
        return self._topic

    def hear(self, payload: bytes) -> None:
        """Take a question; one too many is counted and left."""
        if len(self._waiting) >= WAITING_MAX:
            self._counters.add("questions_dropped")
            return
        self._waiting.append(payload)
        self._came.set()

    async def speak(self, connection: Connection) -> None:
        """Answer, forever; raises `NetError`."""
        from geartrain.control.questions import encode_answer

        while True:
            await self._came.wait()
            self._came.clear()
            while self._waiting:
                answer = await self._answer(self._waiting.popleft())
                if answer is not None:
                    await connection.publish(self._told_topic, encode_answer(answer))

    async def _answer(self, payload: bytes) -> DeviceAnswer | None:
        from geartrain.control.questions import DeviceAnswer, decode_question

        try:
            question = decode_question(payload)
        except WireError as error:
            self._counters.add("questions_not_decoded")
            _LOG.warning("a question cannot be read: %r", str(error))
            return None
        session = self._session
        async with session.backlog.lock:  # no commit is under way
            told = await self._told(question)
            epoch, seq = session.backlog.epoch, session.backlog.last_seq
            clock = self._clock(question.step)
        return DeviceAnswer(question.id, epoch, seq, clock, told)

    async def _told(self, question: DeviceQuestion) -> ToldByDevice:
        import msgspec

        from geartrain.control.questions import KEYS_MAX, TOLD_BYTES_MAX, ToldByDevice
        from geartrain.runtime.asking import check_asked, keys_of, shown_key, tell

        graph, step = self._plan.graph, question.step
        try:
            check_asked(graph, step)
            if step not in self._plan.cut.edge:
                raise QuestionError(
                    f"step {step!r} does not run on this device: its state is in the data centre"
                )
            if question.key is None:
                keys = [shown_key(key) for key, _ in await self._store.cells(step, None, KEYS_MAX)]
                some = ToldByDevice(keys=keys, found=bool(keys))
                while len(msgspec.json.encode(some)) > TOLD_BYTES_MAX:
                    keys.pop()
                return some
            meant = keys_of(graph, step, question.key)
            found = await self._store.cells(step, meant, 1)
            if not found:
                return ToldByDevice(shown_key(meant[0]))
            told = ToldByDevice(shown_key(found[0][0]), found=True, told=tell(graph, step, *found[0]))
            if (size := len(msgspec.json.encode(told))) > TOLD_BYTES_MAX:
                raise QuestionError(
                    f"step {step!r}: the state of this key has {size:,} bytes as JSON; {TOLD_BYTES_MAX:,} "
                    "are the most that a device tells: send what you need of it to a table"
                )
            return told
        except (QuestionError, SchemaError) as error:
            return ToldByDevice(refused=str(error))

    def _clock(self, step: str) -> int | None:
        """How far the sources above a step had come at the last commit, None where nothing is known."""
        graph, marks = self._plan.graph, self._session.committed.source_watermarks
        if all(one.id != step for one in graph.steps):
            return None
        least = min(
            (marks.get(one, START_OF_TIME) for one in graph.sources_above()[step]), default=START_OF_TIME
        )
        return None if least == START_OF_TIME else least
