"""A device goes over to another cut: other channels from one commit on, and each record comes once."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace

from geartrain import Flow, Record, Table
from geartrain.graph.graph import STATE
from geartrain.operators.process import forms_of
from geartrain.planning import Plan, make_plan
from geartrain.planning.plan import state_channel
from geartrain.ports import SplitProgress
from geartrain.records.batch import Batch
from geartrain.records.event_time import SECOND_US
from geartrain.runtime.fragment import Fragment
from geartrain.state.moving import formed
from geartrain.testing import TestingSource
from geartrain_edge.errors import AlarmError, ChangedFlowError
from geartrain_edge.settings import AgentSettings, Policy
from tests.edge.agents import SETTINGS, KilledError, MortalSpool, agent_of, run, until
from tests.edge.flows import expected, items, plan_of
from tests.edge.network import MemoryNet, NaiveIngest, Troubles
from tests.edge.test_epochs import epoch_of

ROWS = 120


class Reading(Record):
    sensor: str
    level: int


def is_high(reading: Reading) -> bool:
    return reading.level >= 5


def cut_of(cut: str, count: int = ROWS, high: int = 5) -> Plan:
    """Readings of which the high ones go to a table, from the device or from the cloud."""
    given = [(number * SECOND_US, Reading(f"s{number % 3}", number % 10)) for number in range(count)]
    flow = Flow("fleet")
    readings = flow.source("readings", TestingSource(items=given), out=Reading)
    chosen = is_high if high == 5 else (lambda reading: reading.level >= high)
    readings.filter(chosen, name="high").sink("table", Table("high"))
    return make_plan(flow.graph(), cut)


CLOUD, EDGE = cut_of("cloud"), cut_of("edge")


def both() -> NaiveIngest:
    ingest = NaiveIngest(CLOUD)
    ingest.add(EDGE)
    return ingest


def went_over(ingest: NaiveIngest) -> int:
    """Check that the rows of the first cut end where those of the other begin; returns where."""
    plain, high = (sorted({row[3] for row in ingest.rows[name]}) for name in ("readings", "high"))
    at = len(plain)
    assert plain == list(range(at))
    assert high == [number for number in range(at, ROWS) if number % 10 >= 5]
    return at


def half_way(
    path: Path,
    ingest: NaiveIngest,
    settings: AgentSettings = SETTINGS,
    acked: bool = True,
    plan: Plan = CLOUD,
    rows: int = ROWS // 3,
) -> None:
    """Run for a while, and stop."""
    net = MemoryNet(ingest, swallow=None if acked else (lambda header: True))
    agent = agent_of(plan, path, net, settings)

    async def story() -> None:
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().records_read >= rows or agent.status().ended)
        if acked:
            await until(lambda: agent.status().acked_seq > 2)
        agent.stop()
        await task

    run(story())


@pytest.mark.parametrize("acked", [True, False])
def test_each_record_comes_once_through_the_channels_of_its_cut(tmp_path: Path, acked: bool) -> None:
    ingest, path = both(), tmp_path / "spool.sqlite"
    half_way(path, ingest, acked=acked)
    assert run(agent_of(EDGE, path, MemoryNet(ingest, Troubles(0.1, 0.1, 0.1, 0.02, 3))).run(), 60)
    assert 0 < went_over(ingest) < ROWS
    assert ingest.crossings == [(1, tuple(sorted(EDGE.edge)))]


def test_a_kill_at_any_write_around_it_changes_nothing(tmp_path: Path) -> None:
    for after in (False, True):
        for writes in range(1, 6):
            path, ingest = tmp_path / f"{writes}-{after}.sqlite", both()
            half_way(path, ingest, acked=False)
            with pytest.raises(KilledError):
                run(agent_of(EDGE, MortalSpool(path, writes, after=after), MemoryNet(ingest)).run())
            assert run(agent_of(EDGE, path, MemoryNet(ingest), seed=2).run())
            went_over(ingest)
            assert [number for number, _ in ingest.crossings] == [1]


def test_a_new_epoch_announces_what_its_backlog_holds_under_both_cuts(tmp_path: Path) -> None:
    path, ingest = tmp_path / "spool.sqlite", both()
    half_way(path, ingest, acked=False)
    ingest.epoch, ingest.seq, ingest.digest = epoch_of(path), 3, b"another history."
    ingest.ordinal = 1
    assert run(agent_of(EDGE, path, MemoryNet(ingest)).run())
    assert ingest.ordinal == 2
    assert 0 < went_over(ingest) < ROWS


def refuses_copies(ingest: NaiveIngest, copy: Path) -> None:
    """Copies of this spool stop by name with either cut, and end nothing at ingest."""
    for plan in (CLOUD, EDGE):
        older = copy.with_name(f"{len(plan.edge)}.sqlite")
        shutil.copy(copy, older)
        with pytest.raises(AlarmError, match="copied from before crossing 1 of flow fleet"):
            run(agent_of(plan, older, MemoryNet(ingest), seed=5).run())
    assert len(ingest.closed) == 0


def test_a_spool_from_before_a_crossing_stops_by_name_and_a_fresh_one_goes_on(tmp_path: Path) -> None:
    path, copy, ingest = tmp_path / "spool.sqlite", tmp_path / "copy.sqlite", both()
    half_way(path, ingest)
    shutil.copy(path, copy)
    half_way(path, ingest, plan=EDGE, rows=2 * ROWS // 3)
    assert [number for number, _ in ingest.crossings] == [1]
    refuses_copies(ingest, copy)
    fresh = tmp_path / "fresh.sqlite"
    assert run(agent_of(EDGE, fresh, MemoryNet(ingest), seed=6).run())
    high = tuple(sorted(EDGE.edge))
    assert ingest.crossings == [(1, high), (2, high)]
    came = sorted({row[3] for name in ("readings", "high") for row in ingest.rows[name]})
    assert {number for number in range(ROWS) if number % 10 >= 5} <= set(came)


def test_a_spool_from_before_its_first_welcome_stops_once_it_has_gone_over_elsewhere(tmp_path: Path) -> None:
    path, copy, ingest = tmp_path / "spool.sqlite", tmp_path / "copy.sqlite", both()
    with pytest.raises(KilledError):  # as it notes the welcome
        run(agent_of(CLOUD, MortalSpool(path, 2), MemoryNet(ingest)).run())
    assert ingest.hellos > 0
    shutil.copy(path, copy)
    half_way(path, ingest)
    half_way(path, ingest, plan=EDGE, rows=2 * ROWS // 3)
    assert [number for number, _ in ingest.crossings] == [1]
    refuses_copies(ingest, copy)


def test_it_goes_back_and_forth_with_numbers_that_go_up_by_one(tmp_path: Path) -> None:
    path, ingest = tmp_path / "spool.sqlite", both()
    for turn, plan in enumerate((CLOUD, EDGE, CLOUD, EDGE, CLOUD)):
        half_way(path, ingest, plan=plan, rows=20 * (turn + 1), acked=turn != 2)
    assert run(agent_of(EDGE, path, MemoryNet(ingest), seed=9).run())
    assert [number for number, _ in ingest.crossings] == [1, 2, 3, 4, 5]
    plain, high = ({row[3] for row in ingest.rows[name]} for name in ("readings", "high"))
    assert not plain & high
    assert {number for number in range(ROWS) if number % 10 >= 5} <= plain | high


def test_a_full_spool_sheds_rows_and_not_what_was_announced(tmp_path: Path) -> None:
    path, ingest = tmp_path / "spool.sqlite", both()
    settings = replace(SETTINGS, policy=Policy.DROP_OLDEST, spool_bytes_max=1_900)
    half_way(path, ingest, settings, acked=False)
    full = agent_of(EDGE, path, MemoryNet(ingest, swallow=lambda header: True), settings)

    async def fill() -> None:
        task = asyncio.create_task(full.run())
        await until(lambda: full.status().ended or "shed.high" in full.status().counters)
        full.stop()
        await task

    run(fill())
    last = agent_of(EDGE, path, MemoryNet(ingest), settings, seed=2)
    assert run(last.run())
    counters = last.status().counters
    assert [number for number, _ in ingest.crossings] == [1]
    for name in ("readings", "high"):
        assert len(ingest.rows[name]) + ingest.dropped[name] == counters[f"rows.{name}"]
        assert ingest.dropped[name] > 0


def test_what_is_kept_by_key_in_the_cloud_is_not_begun_anew(tmp_path: Path) -> None:
    given = items(80)
    edge, cloud = plan_of(given, "edge"), plan_of(given, "cloud")
    path, ingest = tmp_path / "spool.sqlite", NaiveIngest(cloud)
    ingest.add(edge)
    assert run(agent_of(cloud, path, MemoryNet(ingest)).run())
    assert run(agent_of(edge, path, MemoryNet(ingest)).run())
    assert not ingest.crossings
    assert not ingest.rows["totals"]
    assert run(agent_of(cloud, path, MemoryNet(ingest), seed=3).run())


def leaving(given: list[Any]) -> tuple[Plan, Plan, NaiveIngest]:
    """The plan with the totals on the device, that without, and an ingest that takes both, and state."""
    edge = plan_of(given, "edge")
    assert edge.whole is not None
    cloud = make_plan(edge.whole, "cloud", base="edge")
    ingest = NaiveIngest(edge)
    for plan in (cloud, edge, cloud):
        ingest.add(plan)
        ingest.add(structs.replace(plan, channels=(*plan.channels, state_channel(plan.graph))))
    return edge, cloud, ingest


LEAVING = replace(SETTINGS, base_cut=("edge",))


def check_left(edge: Plan, cloud: Plan, ingest: NaiveIngest, crossings: int = 1, revision: int = 0) -> None:
    """Check that the totals go on in the cloud from where the device left them with its last crossing;
    revision: that has kept them, 0 where nobody has said.
    """
    by_step = {channel.id: channel.stream for channel in cloud.channels}
    came = [row for name in ingest.rows if by_step.get(name) == "readings" for row in ingest.rows[name]]
    assert STATE in ingest.rows
    called = {row[0].step for row in ingest.rows[STATE]}
    assert called == {formed("totals", form, revision) for form in forms_of(edge.graph, {"totals"}).values()}
    cells = {("totals", row[0].key): row[0].cell for row in ingest.rows[STATE]}
    assert len(cells) == len(ingest.rows[STATE]) == 3
    assert [number for number, _ in ingest.crossings] == list(range(1, crossings + 1))
    fragment = Fragment(cloud.graph, cloud.cloud)
    fragment.take_in(cells)
    values, times, names, numbers, _ = (list(column) for column in zip(*came, strict=True))
    keyed = Batch(values, times, names, numbers)
    fragment.feed("readings", keyed)
    made = [
        (value, time, name, number, batch.paths[row] if batch.paths else b"")
        for batch in fragment.take().batches["sums"]
        for row, (value, time, name, number) in enumerate(
            zip(batch.values, batch.times, batch.names, batch.numbers, strict=True)
        )
    ]
    assert made
    assert ingest.rows["totals"]
    whole = sorted([*made, *ingest.rows["totals"]], key=lambda row: row[2:])
    assert whole == expected(edge)["totals"]


@pytest.mark.parametrize("acked", [True, False])
def test_state_leaves_with_its_step_in_the_commit_of_the_crossing(tmp_path: Path, acked: bool) -> None:
    edge, cloud, ingest = leaving(items(80))
    path = tmp_path / "spool.sqlite"
    half_way(path, ingest, LEAVING, acked=acked, plan=edge)
    troubles = MemoryNet(ingest, Troubles(0.1, 0.1, 0.1, 0.02, 3))
    assert run(agent_of(cloud, path, troubles, LEAVING).run(), 60)
    check_left(edge, cloud, ingest)


def test_a_kill_at_any_write_around_it_leaves_the_state_in_one_place(tmp_path: Path) -> None:
    for after in (False, True):
        for writes in range(1, 6):
            edge, cloud, ingest = leaving(items(80))
            path = tmp_path / f"{writes}-{after}.sqlite"
            half_way(path, ingest, LEAVING, acked=False, plan=edge)
            spool = MortalSpool(path, writes, after=after)
            with pytest.raises(KilledError):
                run(agent_of(cloud, spool, MemoryNet(ingest), LEAVING).run())
            assert run(agent_of(cloud, path, MemoryNet(ingest), LEAVING, seed=2).run())
            check_left(edge, cloud, ingest)


def test_state_on_its_way_goes_into_a_new_epoch(tmp_path: Path) -> None:
    edge, cloud, ingest = leaving(items(80))
    path = tmp_path / "spool.sqlite"
    half_way(path, ingest, LEAVING, acked=False, plan=edge)
    ingest.epoch, ingest.seq, ingest.digest = epoch_of(path), 3, b"another history."
    ingest.ordinal = 1
    assert run(agent_of(cloud, path, MemoryNet(ingest), LEAVING).run())
    assert ingest.ordinal == 2
    check_left(edge, cloud, ingest)


def test_a_full_spool_does_not_shed_state_on_its_way(tmp_path: Path) -> None:
    edge, cloud, ingest = leaving(items(80))
    path = tmp_path / "spool.sqlite"
    half_way(path, ingest, LEAVING, acked=False, plan=edge)
    settings = replace(LEAVING, policy=Policy.DROP_OLDEST, spool_bytes_max=1_900)
    full = agent_of(cloud, path, MemoryNet(ingest, swallow=lambda header: True), settings)

    async def fill() -> None:
        task = asyncio.create_task(full.run())
        await until(lambda: full.status().ended or "shed.totals" in full.status().counters)
        full.stop()
        await task

    run(fill())
    assert run(agent_of(cloud, path, MemoryNet(ingest), settings, seed=4).run())
    assert sum(count for name, count in ingest.dropped.items() if name != STATE) > 0
    assert ingest.dropped[STATE] == 0
    assert len(ingest.rows[STATE]) == 3


def test_another_step_and_another_cut_at_once_are_refused(tmp_path: Path) -> None:
    path, ingest = tmp_path / "spool.sqlite", both()
    half_way(path, ingest)
    other = cut_of("edge", high=7)
    with pytest.raises(ChangedFlowError, match="another revision of flow fleet"):
        run(agent_of(other, path, MemoryNet(ingest)).run())
    assert ingest.positions.keys() == {("readings", "d1")}
    assert isinstance(ingest.positions["readings", "d1"], SplitProgress)
