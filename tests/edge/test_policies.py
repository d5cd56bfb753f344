"""Full spools: whatever the policy drops is declared to the unit, and all else comes once, in order."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest
from msgspec.structs import replace

from geartrain import Flow, Table
from geartrain.errors import ConfigError
from geartrain.planning import make_plan
from geartrain.records.event_time import END_OF_TIME
from geartrain.runtime.fragment import Fragment
from geartrain.testing import FakeClock, TestingSource
from geartrain.wire.envelope import BatchKind, Header
from geartrain_edge.settings import AgentSettings, Policy
from geartrain_edge.sources.intake import Intake
from geartrain_edge.spool.admission import DECLARED, check_policy, settled_policy
from geartrain_edge.spool.backlog import Counters
from tests.edge.agents import SETTINGS, KilledError, MortalSpool, agent_of, run, until
from tests.edge.flows import Reading, Row, expected, items, plan_of
from tests.edge.network import MemoryNet, NaiveIngest, Troubles

DROPPING = [Policy.DROP_NEWEST, Policy.DROP_OLDEST, Policy.DOWNSAMPLE]
CAP = 4_000
PLAN = plan_of(items(250))
WHOLE = expected(PLAN)


def settings_of(policy: Policy) -> AgentSettings:
    return replace(SETTINGS, policy=policy, spool_bytes_max=CAP, downsample_keep=3)


def balance(ingest: NaiveIngest, counters: dict[str, int], whole: dict[str, list[Row]] = WHOLE) -> int:
    """Check that accepted = delivered + declared as dropped, for each channel; returns what was dropped."""
    for channel, rows in whole.items():
        came = ingest.rows[channel]
        assert len(set(map(repr, came))) == len(came), "doubled"
        assert all(row in rows for row in came), "foreign"
        numbers = [row[3:] for row in came if channel not in ("_dead_letters", "_late")]
        assert numbers == sorted(numbers), "out of order"
        assert counters.get(f"rows.{channel}", 0) == len(rows)
        assert len(came) + ingest.dropped[channel] == len(rows), channel
    assert set(ingest.watermarks.values()) == {END_OF_TIME}
    return sum(ingest.dropped.values())


@pytest.mark.parametrize("policy", DROPPING)
@pytest.mark.parametrize("seed", range(3))
def test_a_bad_network_and_a_full_spool_lose_only_what_is_declared(
    tmp_path: Path, policy: Policy, seed: int
) -> None:
    ingest = NaiveIngest(PLAN)
    troubles = Troubles(lose=0.2, double=0.2, delay=0.15, cut=0.05 if seed % 2 else 0.0, seed=seed)
    store = MortalSpool(tmp_path / "spool.sqlite")
    full = False

    def until_it_drops(header: Header) -> bool:
        """Nothing arrives before the spool was full once, however slow its disk is."""
        nonlocal full
        full = full or any(name.startswith(("dropped.", "shed.")) for name in agent.status().counters)
        return not full

    agent = agent_of(
        PLAN, store, MemoryNet(ingest, troubles, swallow=until_it_drops), settings_of(policy), seed
    )
    assert run(agent.run(), 60)
    status = agent.status()
    assert balance(ingest, status.counters) > 0
    assert status.spool_bytes == 0
    if policy is Policy.DROP_OLDEST:
        shed = sum(count for name, count in status.counters.items() if name.startswith("shed."))
        assert sum(ingest.dropped.values()) <= shed + sum(
            count for name, count in status.counters.items() if name.startswith("dropped.")
        )


def stored(path: Path) -> dict[str, int]:
    """The counters as the closed spool holds them."""
    database = sqlite3.connect(path)
    try:
        return dict(database.execute("SELECT name, total FROM counters").fetchall())
    finally:
        database.close()


@pytest.mark.parametrize("policy", DROPPING)
@pytest.mark.parametrize("after", [False, True])
def test_kills_at_durable_writes_keep_the_balance(tmp_path: Path, policy: Policy, after: bool) -> None:
    for writes in (2, 7, 15):
        ingest = NaiveIngest(PLAN)
        path = tmp_path / f"{writes}.sqlite"
        troubles = Troubles(lose=0.2, double=0.2, delay=0.1, seed=writes)
        for life in range(1, 4):
            store = MortalSpool(path, writes * life if life < 3 else None, after=after)
            agent = agent_of(PLAN, store, MemoryNet(ingest, troubles), settings_of(policy), life)
            if life == 1:
                with pytest.raises(KilledError):
                    run(agent.run(), 60)
            elif life == 2:
                with suppress(KilledError):  # what is left may need fewer writes than that
                    run(agent.run(), 60)
            else:
                assert run(agent.run(), 60)
        assert ingest.closed == []
        balance(ingest, stored(path))


@pytest.mark.parametrize("policy", DROPPING)
def test_the_cap_holds_while_nobody_acks(tmp_path: Path, policy: Policy) -> None:
    ingest = NaiveIngest(PLAN)
    blocked = True

    def swallow(header: Header) -> bool:
        return blocked

    store = MortalSpool(tmp_path / "spool.sqlite")
    agent = agent_of(PLAN, store, MemoryNet(ingest, swallow=swallow), settings_of(policy))
    highest = 0

    async def story() -> bool:
        nonlocal blocked, highest
        task = asyncio.create_task(agent.run())
        while not agent.status().ended:
            await asyncio.sleep(0.001)
            highest = max(highest, agent.status().spool_bytes)
        blocked = False
        return await task

    assert run(story(), 60)
    assert balance(ingest, agent.status().counters) > 0
    assert CAP // 2 < highest < CAP + 4_096 + 1_000  # the reserve, and the one batch that overflows it


LONG = plan_of(items(3_000))
LONG_WHOLE = expected(LONG)


@pytest.mark.parametrize("policy", [Policy.DROP_NEWEST, Policy.DOWNSAMPLE])
def test_the_reserve_is_used_up_and_what_was_dropped_meanwhile_is_still_declared(
    tmp_path: Path, policy: Policy
) -> None:
    """Not even a batch without rows has room for most of the run, and kills come in that time: what is not
    declared yet waits in the spool, and the first batch that has room says it.
    """
    ingest, path = NaiveIngest(LONG), tmp_path / "spool.sqlite"
    blocked, sizes = True, list[int]()
    settings = settings_of(policy)

    async def until_full(store: MortalSpool) -> None:
        agent = agent_of(LONG, store, MemoryNet(ingest, swallow=lambda header: blocked), settings)
        store.on_write = lambda: sizes.append(agent.status().spool_bytes)
        await agent.run()

    with pytest.raises(KilledError):
        run(until_full(MortalSpool(path, 100)), 60)
    before = declared_later(path)
    assert sum(before.values()) > 0
    with pytest.raises(KilledError):
        run(until_full(MortalSpool(path, 100, after=True)), 60)
    assert sum(declared_later(path).values()) > sum(before.values())
    assert sum(stored(path)[f"dropped.{channel}"] for channel in before) > sum(before.values())
    assert max(sizes) < CAP + 4_096 + 1_000
    last = sizes[-1]
    assert sizes.count(last) > 50  # it is full to the brim, and stays so

    async def to_the_end() -> None:
        nonlocal blocked
        agent = agent_of(LONG, path, MemoryNet(ingest, swallow=lambda header: blocked), settings, 3)
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().ended)
        blocked = False
        assert await task

    run(to_the_end(), 60)
    assert declared_later(path) == {}
    assert balance(ingest, stored(path), LONG_WHOLE) > len(LONG_WHOLE["readings"]) // 2


def declared_later(path: Path) -> dict[str, int]:
    """What a closed spool has dropped and not declared yet."""
    database = sqlite3.connect(path)
    try:
        found = database.execute("SELECT value FROM state WHERE (step, key) = (?, ?)", DECLARED).fetchone()
    finally:
        database.close()
    return json.loads(found[0]) if found else {}


@pytest.mark.parametrize("policy", DROPPING)
@pytest.mark.parametrize("dies", [None, 1, 2, 3])
def test_a_new_epoch_takes_over_gaps_and_declared_drops(
    tmp_path: Path, policy: Policy, dies: int | None
) -> None:
    """A full spool, with gaps and rows that it has declared as dropped, turns out to be a copy of another."""
    path, settings = tmp_path / "spool.sqlite", settings_of(policy)
    nobody = agent_of(PLAN, path, MemoryNet(NaiveIngest(PLAN), swallow=lambda header: True), settings)

    async def fill() -> None:
        task = asyncio.create_task(nobody.run())
        await until(lambda: nobody.status().ended)
        nobody.stop()
        await task

    run(fill())
    dropped_before = sum(count for name, count in stored(path).items() if name.startswith(("drop", "shed")))
    assert dropped_before > 0
    ingest = NaiveIngest(PLAN)
    ingest.epoch, ingest.ordinal = bytes.fromhex(nobody.status().epoch), 1
    ingest.seq, ingest.digest = 10_000, b"another history."
    if dies is not None:
        with pytest.raises(KilledError):
            run(agent_of(PLAN, MortalSpool(path, dies), MemoryNet(ingest), settings, 2).run(), 60)
    troubles = Troubles(lose=0.1, double=0.1, seed=3)
    agent = agent_of(PLAN, path, MemoryNet(ingest, troubles), settings, 3)
    assert run(agent.run(), 60)
    assert (len(ingest.closed), ingest.ordinal) == (1, 2)
    assert stored(path)["epochs_minted"] == 1
    assert balance(ingest, stored(path)) > 0


def test_oldest_go_and_newest_stay(tmp_path: Path) -> None:
    ingest = NaiveIngest(PLAN)
    kinds: list[BatchKind] = []
    blocked = True

    def swallow(header: Header) -> bool:
        kinds.append(header.kind)
        return blocked

    agent = agent_of(
        PLAN,
        MortalSpool(tmp_path / "spool.sqlite"),
        MemoryNet(ingest, swallow=swallow),
        settings_of(Policy.DROP_OLDEST),
    )

    async def story() -> bool:
        nonlocal blocked
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().ended)
        blocked = False
        return await task

    assert run(story(), 60)
    assert BatchKind.GAP in kinds
    assert ingest.rows["readings"][-1] == max(WHOLE["readings"], key=lambda row: row[3])
    assert ingest.rows["readings"][0] != WHOLE["readings"][0]
    assert balance(ingest, agent.status().counters) > 0


class Sensor(TestingSource[Reading]):
    """It goes on whether anybody reads it or not."""

    pausable: ClassVar[bool] = False


def test_a_source_that_cannot_wait_needs_another_policy_than_block() -> None:
    plan = plan_of([], source=Sensor(items=[]))
    with pytest.raises(ConfigError, match="source readings cannot wait while the spool is full"):
        check_policy(plan, Policy.BLOCK)
    for policy in DROPPING:
        check_policy(plan, policy)
    check_policy(PLAN, Policy.BLOCK)
    check_policy(plan, None)
    assert (settled_policy(plan, None), settled_policy(PLAN, None)) == (Policy.DROP_OLDEST, Policy.BLOCK)
    assert settled_policy(plan, Policy.DROP_NEWEST) is Policy.DROP_NEWEST


def test_sources_that_can_wait_leave_room_to_those_that_cannot() -> None:
    flow = Flow("fleet")
    for step, kind in (("sensor", Sensor), ("file", TestingSource)):
        items = [(number, Reading(step, float(number))) for number in range(3)]
        flow.source(step, kind(items=items), out=Reading).sink(f"{step}_out", Table(step))
    plan = make_plan(flow.graph(), "edge")
    intake, counters = Intake(plan, "d1", 10, 10, FakeClock()), Counters({})
    fragment = Fragment(plan.graph, plan.edge)
    intake.restore({})

    async def read() -> int:
        return await intake.read(fragment, counters, 100)

    intake.spares_room = True
    assert asyncio.run(read()) == 3
    intake.spares_room = False
    assert asyncio.run(read()) == 3
