"""A device goes over to another revision of its flow: other steps from one commit on, over the same spool."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from geartrain import Context, Flow, Record, State, Table, Task
from geartrain.planning import Plan, make_plan
from geartrain.records.event_time import SECOND_US
from geartrain.state.keyed import NEVER, due_of
from geartrain.testing import TestingSource
from geartrain_edge.agent.crossing import NUMBERS, Numbers, migrated
from geartrain_edge.errors import ChangedFlowError
from geartrain_edge.settings import AgentSettings
from geartrain_edge.spool.marking import MarkingSpool
from geartrain_edge.spool.spool import SqliteSpool
from tests.edge.agents import SETTINGS, KilledError, MortalSpool, agent_of, run, until
from tests.edge.network import MemoryNet, NaiveIngest, Troubles

ROWS = 120


class Reading(Record):
    sensor: str
    level: int


class Sum(Record):
    sensor: str
    number: int
    total: int


class Held(State):
    number: int = 0
    total: int = 0


class Wider(State):
    number: int = 0
    total: int = 0
    last: int = 0


class Sums(Task[Reading, Sum]):
    state: ClassVar[type] = Held
    factor: int = 1

    def on_next(self, reading: Reading, ctx: Context[Sum, Held]) -> None:
        ctx.state.number += 1
        ctx.state.total += self.factor * reading.level
        ctx.emit(Sum(reading.sensor, ctx.state.number, ctx.state.total))


class WiderSums(Sums):
    state: ClassVar[type] = Wider


def widened(held: Held) -> Wider:
    return Wider(held.number, held.total, last=7)


def refused(held: Held) -> Wider:
    raise ValueError(f"{held.total} is too much")


class Migrating(Sums):
    state: ClassVar[type] = Wider
    migrate: ClassVar[Mapping[type, Callable[[Any], Any]]] = {Held: widened}


class Refusing(Migrating):
    migrate: ClassVar[Mapping[type, Callable[[Any], Any]]] = {Held: refused}


class Tenths(Record):
    sensor: str
    tenths: int
    upgrade: ClassVar[Mapping[type, Callable[[Any], Any]]] = {
        Reading: lambda one: Tenths(one.sensor, 10 * one.level)
    }


def of_type(kind: Any, factor: int) -> Plan:
    """All readings, as records of a type."""
    given = [(number * SECOND_US, kind(f"s{number % 3}", factor * (number % 10))) for number in range(ROWS)]
    flow = Flow("fleet")
    flow.source("readings", TestingSource(items=given), out=kind).sink("each", Table("each"))
    return make_plan(flow.graph(), "cloud")


def plan_of(sums: Sums | None = None, *, high: bool = False) -> Plan:
    """Sums by sensor on the device, and readings that are high, where they are asked for."""
    given = [(number * SECOND_US, Reading(f"s{number % 3}", number % 10)) for number in range(ROWS)]
    flow = Flow("fleet")
    readings = flow.source("readings", TestingSource(items=given), out=Reading, partitioned_by="sensor")
    if sums is not None:
        readings.key_by("sensor").process("sums", sums, out=Sum).sink("each", Table("each"))
    if high:
        readings.filter(is_high, name="high").sink("warm", Table("warm"))
    return make_plan(flow.graph(), "edge")


def is_high(reading: Reading) -> bool:
    return reading.level >= 5


FIRST, SECOND, WITHOUT = plan_of(Sums()), plan_of(Sums(factor=10), high=True), plan_of(high=True)


def of_revision(number: int, **drops: int) -> AgentSettings:
    return replace(SETTINGS, revision=number, drops=drops)


def ingest_of(*plans: Plan) -> NaiveIngest:
    ingest = NaiveIngest(plans[0])
    for plan in plans[1:]:
        ingest.add(plan)
    return ingest


def half_way(path: Path, ingest: NaiveIngest, plan: Plan, settings: AgentSettings, rows: int) -> None:
    """Run until so many rows were read, and stop."""
    agent = agent_of(plan, path, MemoryNet(ingest), settings)

    async def story() -> None:
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().records_read >= rows or agent.status().ended)
        agent.stop()
        await task

    run(story())


def expected(ends: list[int], factors: list[int], dropped: int = -1) -> list[tuple[str, int, int]]:
    """The sums of plain Python. ends: where each revision ends; factors: of each, 0 for none; dropped: the
    record before which nothing was kept.
    """
    numbers, totals, found, begin = Counter[str](), Counter[str](), [], 0
    for end, factor in zip(ends, factors, strict=True):
        for at in range(begin, end):
            if at == dropped:
                numbers.clear()
                totals.clear()
            if factor:
                sensor = f"s{at % 3}"
                numbers[sensor] += 1
                totals[sensor] += factor * (at % 10)
                found.append((sensor, numbers[sensor], totals[sensor]))
        begin = end
    return found


def sums_of(ingest: NaiveIngest) -> list[tuple[str, int, int]]:
    return [(row[0].sensor, row[0].number, row[0].total) for row in ingest.rows["sums"]]


def test_steps_are_replaced_and_attached_and_what_they_keep_stays(tmp_path: Path) -> None:
    path, ingest = tmp_path / "spool.sqlite", ingest_of(FIRST, SECOND)
    half_way(path, ingest, FIRST, of_revision(1), 30)
    assert run(
        agent_of(SECOND, path, MemoryNet(ingest, Troubles(0.1, 0.1, 0.1, 0.02, 3)), of_revision(2)).run()
    )
    high = [row[3] for row in ingest.rows["high"]]
    found = sums_of(ingest)
    (at, *_) = [one for one in range(1, ROWS) if found == expected([one, ROWS], [1, 10])]
    assert high == [number for number in range(at, ROWS) if number % 10 >= 5]
    assert ingest.crossings == [(1, tuple(sorted(SECOND.edge)))]


def test_a_kill_at_any_write_around_it_changes_nothing(tmp_path: Path) -> None:
    for after in (False, True):
        for writes in range(1, 5):
            path, ingest = tmp_path / f"{writes}-{after}.sqlite", ingest_of(FIRST, SECOND)
            half_way(path, ingest, FIRST, of_revision(1), 30)
            mortal = agent_of(
                SECOND, MortalSpool(path, writes, after=after), MemoryNet(ingest), of_revision(2)
            )
            with pytest.raises(KilledError):
                run(mortal.run())
            assert run(agent_of(SECOND, path, MemoryNet(ingest), of_revision(2), seed=2).run())
            assert [number for number, _ in ingest.crossings] == [1]
            assert any(sums_of(ingest) == expected([at, ROWS], [1, 10]) for at in range(1, ROWS))


def test_rows_of_the_former_type_stay_so_in_a_spool_that_goes_over_to_another(tmp_path: Path) -> None:
    former, later = of_type(Reading, 1), of_type(Tenths, 10)
    for writes in range(5):
        path, ingest = tmp_path / f"{writes}.sqlite", ingest_of(former, later)
        ingest.silent = True  # nothing is acked, so that the spool keeps all of it over the crossing
        half_way(path, ingest, former, of_revision(1), 30)
        ingest.speak()
        if writes:
            mortal = agent_of(later, MortalSpool(path, writes), MemoryNet(ingest), of_revision(2))
            with pytest.raises(KilledError):
                run(mortal.run())
        assert run(agent_of(later, path, MemoryNet(ingest), of_revision(2), seed=2).run())
        found = [row[0] for row in ingest.rows["readings"]]
        at = sum(isinstance(one, Reading) for one in found)
        assert 0 < at < ROWS
        wanted = [(Reading if row < at else Tenths, row) for row in range(ROWS)]
        assert found == [kind(f"s{n % 3}", n % 10 * (1 if kind is Reading else 10)) for kind, n in wanted]
        assert [number for number, _ in ingest.crossings] == [1]


def test_a_step_that_is_removed_takes_its_state_along_and_begins_empty_when_it_is_back(
    tmp_path: Path,
) -> None:
    path, ingest = tmp_path / "spool.sqlite", ingest_of(FIRST, WITHOUT)
    half_way(path, ingest, FIRST, of_revision(1), 30)
    half_way(path, ingest, WITHOUT, of_revision(2), 60)
    agent = agent_of(FIRST, path, MemoryNet(ingest), of_revision(3))
    assert run(agent.run())
    assert agent.status().counters["cells_dropped.sums"] == 3
    assert agent.status().counters["crossings"] == 2
    numbers = [row[3] for row in ingest.rows["sums"]]
    (end,) = [at for at in range(1, len(numbers)) if numbers[at] != numbers[at - 1] + 1]
    begin = numbers[end]
    assert sums_of(ingest) == expected([end], [1]) + expected([begin, ROWS], [0, 1])


def test_state_goes_by_a_persons_word_and_else_only_where_it_fits(tmp_path: Path) -> None:
    other = plan_of(WiderSums())
    path, ingest = tmp_path / "spool.sqlite", ingest_of(FIRST, other)
    half_way(path, ingest, FIRST, of_revision(1), 30)
    before = path.read_bytes()
    with pytest.raises(ChangedFlowError, match="step sums cannot keep its state, since its state type"):
        run(agent_of(other, path, MemoryNet(ingest), of_revision(2)).run())
    assert path.read_bytes() == before
    assert run(agent_of(other, path, MemoryNet(ingest), of_revision(2, sums=2)).run())
    assert any(sums_of(ingest) == expected([at, ROWS], [1, 1], at) for at in range(1, ROWS))
    assert ingest.crossings[0][0] == 1


@pytest.mark.parametrize(("task", "lost"), [(Migrating(), 0), (Refusing(), 3)])
def test_state_of_another_type_is_what_the_task_makes_of_the_former_one(
    tmp_path: Path, task: Sums, lost: int
) -> None:
    other = plan_of(task)
    for writes in (0, 1, 2):
        path, ingest = tmp_path / f"{writes}.sqlite", ingest_of(FIRST, other)
        half_way(path, ingest, FIRST, of_revision(1), 30)
        if writes:
            mortal = agent_of(other, MortalSpool(path, writes), MemoryNet(ingest), of_revision(2))
            with pytest.raises(KilledError):
                run(mortal.run())
        agent = agent_of(other, path, MemoryNet(ingest), of_revision(2), seed=2)
        assert run(agent.run())
        assert agent.status().counters.get("cells_dropped.sums", 0) == lost
        ends = range(1, ROWS)
        assert any(sums_of(ingest) == expected([at, ROWS], [1, 1], at if lost else -1) for at in ends)
        assert [number for number, _ in ingest.crossings] == [1]


@pytest.mark.parametrize("revision", [1, 2])
def test_a_task_that_gets_timers_goes_on_with_its_state_and_so_it_does_without(
    tmp_path: Path, revision: int
) -> None:
    """revision: the same one, whose code was exchanged, or a later one."""

    def on_notify(task: Sums, time: int, ctx: Context[Sum, Held]) -> None:
        raise AssertionError("nothing sets one")

    same = {"__qualname__": Sums.__qualname__, "__module__": Sums.__module__}
    timed = plan_of(type("Sums", (Sums,), {"on_notify": on_notify, **same})())
    path, ingest = tmp_path / "spool.sqlite", ingest_of(FIRST, timed)
    half_way(path, ingest, FIRST, of_revision(1), 30)
    half_way(path, ingest, timed, of_revision(revision), 60)
    agent = agent_of(FIRST, path, MemoryNet(ingest), of_revision(2 * revision - 1))
    assert run(agent.run())
    assert agent.status().counters.get("cells_dropped.sums", 0) == 0
    assert sums_of(ingest) == expected([ROWS], [1])


def test_equal_steps_begin_anew_where_a_revision_says_so_and_no_other(tmp_path: Path) -> None:
    path, ingest = tmp_path / "spool.sqlite", ingest_of(FIRST)
    half_way(path, ingest, FIRST, of_revision(2, sums=2), 30)
    half_way(path, ingest, FIRST, of_revision(3, sums=2), 60)
    assert ingest.crossings == []
    assert run(agent_of(FIRST, path, MemoryNet(ingest), of_revision(4, sums=4)).run())
    assert [number for number, _ in ingest.crossings] == [1]
    assert any(sums_of(ingest) == expected([at, ROWS], [1, 1], at) for at in range(1, ROWS))


def test_no_revision_is_gone_over_to_that_the_platform_has_not_named(tmp_path: Path) -> None:
    path, ingest = tmp_path / "spool.sqlite", ingest_of(FIRST, SECOND)
    half_way(path, ingest, FIRST, of_revision(2), 30)
    for number in (0, 1, 2):
        with pytest.raises(ChangedFlowError, match="another revision of flow fleet"):
            run(agent_of(SECOND, path, MemoryNet(ingest), of_revision(number)).run())
    assert ingest.crossings == []


def test_code_that_has_gone_over_is_marked_before_it_does(tmp_path: Path) -> None:
    path, mark, ingest = tmp_path / "spool.sqlite", tmp_path / "committed", ingest_of(FIRST, SECOND)
    half_way(path, ingest, FIRST, of_revision(1), 30)
    mortal = MortalSpool(path, 1)
    agent = agent_of(SECOND, MarkingSpool(mortal, mark, "b" * 64), MemoryNet(ingest), of_revision(2))
    with pytest.raises(KilledError):
        run(agent.run())
    assert mark.read_text() == "b" * 64

    async def stored() -> Numbers:
        spool = SqliteSpool(path)
        image = await spool.open("d1", "fleet", b"e" * 16)
        await spool.close()
        return Numbers.of(image.state[NUMBERS], is_fresh=False)

    assert run(stored()).revision == 1


def lived(ttl_s: int | None) -> Plan:
    """The sums of each sensor, which are forgotten so long after its last reading."""
    given = [(number * SECOND_US, Reading(f"s{number % 3}", number % 10)) for number in range(ROWS)]
    flow, ttl = Flow("fleet"), None if ttl_s is None else timedelta(seconds=ttl_s)
    readings = flow.source("readings", TestingSource(items=given), out=Reading, partitioned_by="sensor")
    readings.key_by("sensor").process("sums", Sums(), out=Sum, ttl=ttl).sink("each", Table("each"))
    return make_plan(flow.graph(), "edge")


def test_a_time_to_live_that_changes_counts_from_the_last_reading_of_each_sensor(tmp_path: Path) -> None:
    path = tmp_path / "spool.sqlite"
    half_way(path, ingest_of(lived(3_600)), lived(3_600), of_revision(1), 30)

    async def kept() -> Mapping[tuple[str, bytes], bytes]:
        spool = SqliteSpool(path)
        try:
            return dict((await spool.open("d1", "fleet", b"epoch..8")).state)
        finally:
            await spool.close()

    state = run(kept())
    cells = {at: cell for at, cell in state.items() if at[0] == "sums"}
    assert len(cells) == 3

    def dues(ttl_s: int | None, revision: int) -> dict[tuple[str, bytes], int]:
        made = migrated(state, lived(ttl_s), of_revision(revision), is_fresh=False)
        return {at: due_of(cell) for at, cell in made.items() if cell is not None}

    for ttl_s in (60, 7_200):
        assert dues(ttl_s, 2) == {at: due_of(c) + (ttl_s - 3_600) * SECOND_US for at, c in cells.items()}
    assert dues(None, 2) == dict.fromkeys(cells, NEVER)
    assert dues(3_600, 1) == dues(3_600, 2) == {}
