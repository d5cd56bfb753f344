"""One agent with a source that can be read again and one that cannot: each is treated as it needs."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from geartrain import Flow, Table
from geartrain.planning import Plan, make_plan
from geartrain.ports import SpoolCommit
from geartrain.records.event_time import END_OF_TIME, SECOND_US
from geartrain.source import Batch, Reject, Source, Split
from geartrain.testing import TestingSource
from geartrain.wire.envelope import Control
from geartrain_edge.settings import Policy
from tests.edge.agents import SETTINGS, KilledError, MortalSpool, agent_of, run, until
from tests.edge.flows import Reading, Running, items
from tests.edge.network import MemoryNet, NaiveIngest, Troubles
from tests.edge.test_policies import stored

DROPS = replace(SETTINGS, policy=Policy.DROP_NEWEST)
KNOCKS = 60


class Door(Source[Reading]):
    """Knocks on its own account: what is read is gone. Every knock has a level that no other has."""

    pausable: ClassVar[bool] = False
    bounded: ClassVar[bool] = True
    serial: ClassVar[Any] = itertools.count()
    last: ClassVar[int] = KNOCKS
    bound_us: ClassVar[int] = 0

    def open(self, device: str, step: str, out: Any) -> Sequence[Split]:
        return [_Knocking(device, self.bound_us)]


class PatientDoor(Door):
    """None of its knocks is late, so that steps have to put them in order."""

    bound_us: ClassVar[int] = 3 * SECOND_US


class _Knocking:
    def __init__(self, name: str, bound_us: int) -> None:
        self.name, self.out_of_orderness_us = name, bound_us

    async def read(self, position: int, limit: int) -> Batch:
        await asyncio.sleep(0)
        knock = next(Door.serial)
        if knock % 7 == 5:
            return Batch([], [], [], position + 1, [Reject(position, "a bad knock", b"%d" % knock)])
        time = (knock if knock % 7 != 3 else knock - 2) * SECOND_US
        return Batch([Reading("door", knock)], [time], [position], position + 1, ended=knock >= Door.last)

    async def close(self) -> None:
        """Nothing to release."""


ENDLESS = 10**9
"""More knocks than any life of an agent can read: one that is to be stopped must not end before."""


@pytest.fixture(autouse=True)
def _afresh() -> None:
    Door.serial, Door.last = itertools.count(), KNOCKS


def knock_on(more: int) -> None:
    """Let the door end after so many more knocks, however many were read before."""
    Door.last = next(Door.serial) + more


def mixed(count: int = 60) -> Plan:
    flow = Flow("fleet")
    readings = flow.source(
        "readings", TestingSource(items=items(count)), out=Reading, partitioned_by="sensor"
    )
    readings.sink("levels", Table("levels"))
    flow.source("door", Door(), out=Reading).sink("knocks", Table("knocks"))
    return make_plan(flow.graph(), "edge")


def knocks(ingest: NaiveIngest) -> list[float]:
    """The knocks that arrived, on whatever channel, each by its own level."""
    found = [row[0].level for row in ingest.rows["door"]]
    refused = [row for row in (*ingest.rows["_late"], *ingest.rows["_dead_letters"]) if row[0].step == "door"]
    return found + [
        float(row[0].raw) if row[0].reason == "a bad knock" else row[1] / SECOND_US + 2 for row in refused
    ]


def origins(ingest: NaiveIngest, name: str) -> list[tuple[Any, ...]]:
    return [row[2:] for rows in ingest.rows.values() for row in rows if row[2] == name]


def readings_of(ingest: NaiveIngest) -> list[Any]:
    return sorted(origins(ingest, "readings/d1"))


def test_the_one_waits_for_the_welcome_and_the_other_does_not(tmp_path: Path) -> None:
    plan = mixed()
    ingest = NaiveIngest(plan)
    net = MemoryNet(ingest)
    answer, heard = net.answers, False

    def deaf(payload: bytes) -> list[Control]:
        return answer(payload) if heard else []

    net.answers = deaf  # type: ignore[method-assign]
    agent = agent_of(plan, tmp_path / "spool.sqlite", net, DROPS)

    async def story() -> bool:
        nonlocal heard
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().counters.get("rows.door", 0) > 20)
        assert agent.status().state == "greeting"
        assert agent.status().counters.get("rows.readings", 0) == 0
        assert net.published == []
        heard = True
        return await task

    assert run(story())
    assert len(readings_of(ingest)) == 60
    assert sorted(knocks(ingest)) == list(range(KNOCKS + 1))
    assert {origin[2] for origin in origins(ingest, "door/d1")} == {ingest.epoch}
    assert {origin[2] for origin in origins(ingest, "readings/d1")} == {b""}
    assert set(ingest.watermarks.values()) == {END_OF_TIME}


def louder(knock: Reading) -> Reading:
    return Reading(knock.sensor, 1_000 + knock.level)


def door_of(cut: str) -> Plan:
    """Knocks, from the device as they are, or as a step there makes them."""
    flow = Flow("fleet")
    flow.source("door", Door(), out=Reading).map(louder, name="louder").sink("loud", Table("loud"))
    return make_plan(flow.graph(), cut)


class Unanswered(MemoryNet):
    """What it is sent arrives, or does not; nothing is answered."""

    def __init__(self, ingest: NaiveIngest, *, arrives: bool) -> None:
        super().__init__(ingest)
        self.arrives, self.hellos = arrives, 0

    def answers(self, payload: bytes) -> list[Control]:
        self.hellos += 1
        return super().answers(payload)[:0] if self.arrives else []


@pytest.mark.parametrize("heard", [False, True])
def test_a_device_goes_over_with_its_first_welcome_and_reads_nothing_before(
    tmp_path: Path, heard: bool
) -> None:
    """What it had read by then stands before the crossing, whether ingest has heard of it or not."""
    cloud, edge = door_of("cloud"), door_of("edge")
    path, ingest = tmp_path / "spool.sqlite", NaiveIngest(cloud)
    ingest.add(edge)
    Door.last = ENDLESS
    first = agent_of(cloud, path, Unanswered(ingest, arrives=heard))
    net = Unanswered(ingest, arrives=False)
    second = agent_of(edge, path, net, seed=2)

    async def unanswered() -> None:
        task = asyncio.create_task(first.run())
        await until(lambda: first.status().counters.get("rows.door", 0) > 20)
        first.stop()
        await task
        knocked = next(Door.serial)
        task = asyncio.create_task(second.run())
        await until(lambda: net.hellos > 1)
        assert second.status().state == "greeting"
        second.stop()
        await task
        assert next(Door.serial) == knocked + 1

    run(unanswered())
    assert bool(ingest.begun) == heard
    knock_on(60)
    assert run(agent_of(edge, path, MemoryNet(ingest), seed=3).run())
    assert ingest.begun == [tuple(sorted(cloud.edge))]
    assert ingest.crossings == [(1, tuple(sorted(edge.edge)))]
    assert len(ingest.rows["door"]) == first.status().counters["rows.door"]
    assert len(ingest.rows["louder"]) > 20


def test_origins_stay_unique_when_a_spool_is_lost_and_counts_anew(tmp_path: Path) -> None:
    """Three spools one after the other; what cannot be read again says of which one it is."""
    plan = mixed()
    ingest = NaiveIngest(plan)
    for life in range(3):
        agent = agent_of(plan, tmp_path / f"{life}.sqlite", MemoryNet(ingest), DROPS, seed=life)
        before = len(origins(ingest, "door/d1"))
        Door.last = ENDLESS
        if life == 2:
            knock_on(15)

        async def story(agent: Any = agent, life: int = life, before: int = before) -> None:
            task = asyncio.create_task(agent.run())
            if life < 2:
                await until(lambda: len(origins(ingest, "door/d1")) >= before + 15)
                agent.stop()
            await task

        run(story())
    came = origins(ingest, "door/d1")
    assert len(set(came)) == len(came)
    assert len({(name, number) for name, number, _ in came}) < len(came)  # the counter alone is not enough
    assert {path for _, _, path in came} == {*ingest.closed, ingest.epoch}
    assert len(set(knocks(ingest))) == len(knocks(ingest))
    assert len(set(readings_of(ingest))) == 60


@pytest.mark.parametrize("policy", [Policy.DROP_NEWEST, Policy.DROP_OLDEST])
@pytest.mark.parametrize("after", [False, True])
def test_kills_lose_only_what_was_not_accepted(tmp_path: Path, policy: Policy, after: bool) -> None:
    plan = mixed()
    for writes in (1, 2, 3, 5, 8):
        Door.serial = itertools.count()
        ingest, path = NaiveIngest(plan), tmp_path / f"{writes}.sqlite"
        settings = replace(SETTINGS, policy=policy, spool_bytes_max=3_000)
        for life in range(1, 4):
            store = MortalSpool(path, writes * life if life < 3 else None, after=after)
            net = MemoryNet(ingest, Troubles(lose=0.1, double=0.2, seed=writes))
            with suppress(KilledError):
                assert run(agent_of(plan, store, net, settings, life).run()) or life < 3
        counters = stored(path)
        for channel, rows in ingest.rows.items():
            assert counters.get(f"rows.{channel}", 0) == len(rows) + ingest.dropped[channel], channel
        assert counters["rows.readings"] == sum(number % 17 not in (5, 9) for number in range(60))
        assert len(set(knocks(ingest))) == len(knocks(ingest))
        assert ingest.closed == []


def merged(count: int = 60) -> Plan:
    """Both in one stream, with a keyed step that wants canonical order, on the device. The readings are far
    ahead in time.
    """
    flow = Flow("fleet")
    ahead: TestingSource[Reading] = TestingSource(
        items=[(number * 100 * SECOND_US, Reading("s0", number)) for number in range(count)]
    )
    readings = flow.source("readings", ahead, out=Reading, partitioned_by="sensor")
    door = flow.source("door", Door(), out=Reading, partitioned_by="sensor")
    totals = readings.merge("both", door).key_by("sensor").process("totals", Running())
    totals.sink("sums", Table("sums", key=("sensor",)))
    return make_plan(flow.graph(), "edge")


class Deaf(MemoryNet):
    """An ingest that is not there until it has been turned to."""

    heard = False

    def answers(self, payload: bytes) -> list[Control]:
        return super().answers(payload) if self.heard else []


def test_a_fresh_spool_throws_away_no_row_of_its_own_life(tmp_path: Path) -> None:
    """Rows of the sensor wait in a keyed step for the other source's time. What they wait for is there at the
    welcome, and what comes out then is of this life and was never sent.
    """
    plan = merged()
    assert {"both", "totals"} < set(plan.edge)
    ingest = NaiveIngest(plan)

    async def story(life: int) -> dict[str, int]:
        net = Deaf(ingest)
        agent = agent_of(plan, tmp_path / f"{life}.sqlite", net, DROPS, seed=life)
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().records_read > 20)
        assert agent.status().state == "greeting"
        net.heard = True
        if not life:
            await until(lambda: len(ingest.rows["totals"]) > 30)
            agent.stop()
        await task
        return agent.status().counters

    Door.last = ENDLESS
    run(story(0))
    before = len(ingest.rows["totals"])
    knock_on(400)
    counters = run(story(1))
    assert counters["rows.totals"] == len(ingest.rows["totals"]) - before
    came = [row[2:] for rows in ingest.rows.values() for row in rows if row[4][:8] == ingest.epoch]
    assert len(set(came)) == len(came)
    assert sorted(number for _, number, _ in came) == list(range(len(came)))
    # Each total follows from one knock of this life, and none was made twice or of half the knocks.
    knocked = [row[0].count for row in ingest.rows["totals"] if row[4][:8] == ingest.epoch]
    assert sorted(knocked) == list(range(1, len(knocked) + 1))


def apart() -> Plan:
    """Each with a table of its own, the door's by a keyed step that wants canonical order, on the device."""
    flow = Flow("fleet")
    readings = flow.source("readings", TestingSource(items=items(60)), out=Reading, partitioned_by="sensor")
    readings.sink("levels", Table("levels"))
    door = flow.source("door", PatientDoor(), out=Reading, partitioned_by="sensor")
    door.key_by("sensor").process("totals", Running()).sink("sums", Table("sums", key=("sensor",)))
    return make_plan(flow.graph(), "edge")


def counted(ingest: NaiveIngest) -> list[int]:
    """What the totals of the open epoch have counted, one knock each."""
    return [row[0].count for row in ingest.rows["totals"] if row[4][:8] == ingest.epoch]


def test_a_spool_is_lost_and_the_clock_set_back_and_no_row_of_the_new_life_is(tmp_path: Path) -> None:
    """What the sensor says before the welcome lies below all that the former life had come to. It waits in a
    keyed step, whose output of before the welcome is thrown away where a former life has sent it.
    """
    plan = apart()
    ingest = NaiveIngest(plan)

    async def story(life: int) -> None:
        net = Deaf(ingest)
        agent = agent_of(plan, tmp_path / f"{life}.sqlite", net, DROPS, seed=life)
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().records_read > 20)
        assert agent.status().state == "greeting"
        net.heard = True
        if not life:
            await until(lambda: len(counted(ingest)) > 100)
            agent.stop()
        await task

    Door.last = ENDLESS
    run(story(0))
    Door.serial, Door.last = itertools.count(), 60
    run(story(1))
    assert len(ingest.closed) == 1
    knocked = sum(knock % 7 != 5 and knock != 13 for knock in range(Door.last + 1))  # 13 is refused
    assert counted(ingest) == list(range(1, knocked + 1))


class Opening(MortalSpool):
    """A spool whose process dies right after, or before, it has noted that its epoch is open."""

    def __init__(self, path: Path, *, after: bool) -> None:
        super().__init__(path)
        self._dies_after = after

    async def commit(self, change: SpoolCommit) -> None:
        opens = change.state.get(("_agent", b"hello"), b"") is None
        if opens and not self._dies_after:
            raise KilledError
        await super().commit(change)
        if opens:
            raise KilledError


@pytest.mark.parametrize("after", [False, True])
def test_who_dies_at_the_opening_says_no_watermark_ahead_of_the_rows_that_wait(
    tmp_path: Path, after: bool
) -> None:
    """`NaiveIngest` refuses a row below a watermark that its channel has said before."""
    plan, path = apart(), tmp_path / "spool.sqlite"
    ingest = NaiveIngest(plan)
    Door.last = ENDLESS

    async def story() -> None:
        net = Deaf(ingest)
        agent = agent_of(plan, Opening(path, after=after), net, DROPS)
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().records_read > 20)
        net.heard = True
        await task

    with pytest.raises(KilledError):
        run(story())
    knock_on(30)
    agent = agent_of(plan, path, MemoryNet(ingest), DROPS, seed=2)
    assert run(agent.run())
    assert ingest.closed == []
    assert counted(ingest) == list(range(1, len(counted(ingest)) + 1))
    assert len(counted(ingest)) > 40
    assert set(ingest.watermarks.values()) == {END_OF_TIME}
