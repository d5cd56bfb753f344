"""A flow on a device is asked for what it keeps, over its own connection, while ingest acks nothing."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from geartrain.adapters.system import SystemClock
from geartrain.control.questions import (
    KEYS_MAX,
    TOLD_BYTES_MAX,
    DeviceQuestion,
    decode_question,
    encode_question,
)
from geartrain.errors import NetError, WireError
from geartrain.ports import Connection, Incoming
from geartrain.records.event_time import SECOND_US
from geartrain.testing import SeededRandomness
from geartrain.wire.topics import ask_topic, told_filter
from geartrain_cloud.control.device_questions import DeviceQuestions, Heard
from geartrain_edge.agent.agent import Agent
from geartrain_edge.agent.answering import WAITING_MAX
from geartrain_edge.spool.spool import SqliteSpool
from tests.edge.agents import SETTINGS, run, until
from tests.edge.flows import Reading, plan_of
from tests.edge.network import MemoryNet, NaiveIngest

DEVICE, FLOW = "d1", "fleet"
ITEMS: list[Any] = [(n * SECOND_US, Reading(f"s{n % 3}", n / 4)) for n in range(1, 41)]


class Exchange:
    """A broker of two connections: the agent's, over a net in memory, and that of who asks."""

    def __init__(self, net: MemoryNet) -> None:
        self._net = net
        self.told: asyncio.Queue[Incoming] = asyncio.Queue()
        self.filters: list[str] = []

    @asynccontextmanager
    async def connect(self, client_id: str) -> AsyncIterator[Connection]:
        if client_id.startswith("asking"):
            yield Asker(self)
            return
        async with self._net.connect(client_id) as connection:
            publish = connection.publish

            async def divert(topic: str, payload: bytes) -> None:
                if topic.endswith("/told"):
                    self.told.put_nowait(Incoming(topic, payload))
                else:
                    await publish(topic, payload)

            connection.publish = divert  # type: ignore[method-assign]
            yield connection

    def ask(self, topic: str, payload: bytes) -> None:
        if self._net.live is not None:
            self._net.live.deliver(Incoming(topic, payload))


class Asker:
    """`Connection`."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def publish(self, topic: str, payload: bytes) -> None:
        self._exchange.ask(topic, payload)

    async def subscribe(self, topic_filter: str) -> None:
        self._exchange.filters.append(topic_filter)

    async def incoming(self) -> AsyncIterator[Incoming]:
        while True:
            yield await self._exchange.told.get()


class Asking:
    """An agent that has committed all of `ITEMS`, and who asks it."""

    def __init__(self, folder: Path, items: list[Any] = ITEMS) -> None:
        plan = plan_of(items)
        net = MemoryNet(NaiveIngest(plan), swallow=lambda header: True)
        self.exchange = Exchange(net)
        self.store = SqliteSpool(folder / "d1.spool")
        self.agent = Agent(
            SETTINGS, plan, self.store, self.exchange, SystemClock(), SeededRandomness(1), answers=True
        )
        self.questions = DeviceQuestions(SystemClock())

    async def __aenter__(self) -> Asking:
        self._tasks = [
            asyncio.create_task(self.agent.run()),
            asyncio.create_task(self.questions.run(self.exchange, SeededRandomness(2))),
        ]
        await until(lambda: self.agent.status().state == "draining" and bool(self.exchange.filters))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.agent.stop()
        self._tasks[1].cancel()
        await asyncio.wait(self._tasks)
        assert self._tasks[0].result() is False

    async def ask(self, step: str, key: str | None, devices: tuple[str, ...] = (DEVICE,)) -> Any:
        return await self.questions.ask(FLOW, devices, step, key, 2.0 if len(devices) == 1 else 0.2, _never)


def _never(_: Heard) -> bool:
    return False


def test_a_device_tells_what_a_step_keeps_at_its_last_commit(tmp_path: Path) -> None:
    places: set[tuple[bytes, int]] = set()

    async def story() -> None:
        async with Asking(tmp_path) as asking:
            assert asking.exchange.filters == [told_filter()]
            for sensor in ("s0", "s1", "s2"):
                levels = [reading.level for _, reading in ITEMS if reading.sensor == sensor]
                [heard], silent = await asking.ask("totals", sensor)
                assert not silent
                told = heard.answer.told
                assert (heard.device, told.key, told.found, told.refused) == (DEVICE, sensor, True, "")
                assert told.told["state"] == {"count": len(levels), "level": sum(levels)}
                places.add((heard.answer.epoch, heard.answer.seq))
                assert asking.questions.last(FLOW, DEVICE, "totals", sensor) == heard

    run(story())
    with closing(sqlite3.connect(tmp_path / "d1.spool")) as database:
        assert database.execute("SELECT epoch, last_seq FROM spool").fetchall() == [*places]


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    async def story() -> None:
        async with Asking(tmp_path) as asking:
            [heard], _ = await asking.ask("totals", "s9")
            assert (heard.answer.told.found, heard.answer.told.key) == (False, "s9")
            [heard], _ = await asking.ask("totals", None)
            assert sorted(heard.answer.told.keys) == ["s0", "s1", "s2"]
            [heard], _ = await asking.ask("sums", "s1")
            assert "keeps no state" in heard.answer.told.refused
            [heard], _ = await asking.ask("levels_of", "s1")
            assert heard.answer.told.refused.startswith("there is no step 'levels_of'")
            heards, silent = await asking.ask("totals", "s1", (DEVICE, "d2"))
            assert ([one.device for one in heards], silent) == ([DEVICE], {"d2"})

    run(story())


def test_no_more_keys_are_named_than_an_answer_holds(tmp_path: Path) -> None:
    names = {f"{n}{'s' * 30_000}" for n in range(KEYS_MAX)}
    items = [(SECOND_US, Reading(name, 1.0)) for name in sorted(names)]

    async def story() -> None:
        async with Asking(tmp_path, items) as asking:
            [heard], _ = await asking.ask("totals", None)
            keys = heard.answer.told.keys
            assert 0 < len(keys) == TOLD_BYTES_MAX // 30_100 < len(names)
            assert set(keys) < names
            [heard], _ = await asking.ask("totals", None)
            assert heard.answer.told.keys == keys

    run(story())


def test_what_cannot_be_read_or_is_too_much_is_counted(tmp_path: Path) -> None:
    async def story() -> dict[str, int]:
        async with Asking(tmp_path) as asking:
            topic = ask_topic(DEVICE, FLOW)
            good = encode_question(DeviceQuestion("0" * 32, "totals", "s1"))
            asking.exchange.ask(topic, good[:-1] + b"\x00")
            for _ in range(3 * WAITING_MAX):
                asking.exchange.ask(topic, good)
            await until(lambda: asking.questions.counters.get("answers_to_nobody", 0) > 0)
            await asking.ask("totals", "s1")
            counters = dict(asking.agent.status().counters)
            assert asking.questions.counters["answers_to_nobody"] <= 3 * WAITING_MAX
        return counters

    counters = run(story())
    assert counters["questions_not_decoded"] == 1


def test_nobody_is_asked_without_a_broker() -> None:
    with pytest.raises(NetError, match="the broker is away"):
        run(DeviceQuestions(SystemClock()).ask(FLOW, [DEVICE], "totals", None, 1.0, _never))


@pytest.mark.parametrize(
    "question",
    [
        DeviceQuestion("0" * 31, "totals"),
        DeviceQuestion("g" * 32, "totals"),
        DeviceQuestion("0" * 32, ""),
        DeviceQuestion("0" * 32, "totals", "k" * 1_001),
    ],
)
def test_a_question_beyond_the_caps_is_refused(question: DeviceQuestion) -> None:
    with pytest.raises(WireError):
        encode_question(question)


@pytest.mark.parametrize("junk", [b"", b"\xff" * 40, b"\x08\x01"])
def test_junk_is_no_question(junk: bytes) -> None:
    with pytest.raises(WireError):
        decode_question(junk)
