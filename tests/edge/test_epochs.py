"""New epochs: a spool that was copied, restored or damaged goes on under another one, and once only."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

from geartrain.errors import SourceError
from geartrain.ports import Incoming, SplitProgress, SpooledBatch
from geartrain.wire.control import encode_control
from geartrain.wire.envelope import Ack, Control, Offer, Welcome
from geartrain.wire.topics import ack_topic
from geartrain_edge.errors import AlarmError
from geartrain_edge.spool.format import image_of
from geartrain_edge.spool.spool import SqliteSpool
from tests.edge.agents import QUICK, SETTINGS, KilledError, MortalSpool, agent_of, run, until
from tests.edge.flows import Row, expected, items, plan_of
from tests.edge.network import MemoryNet, NaiveIngest

PLAN = plan_of(items(80))
OFTEN = replace(SETTINGS, uplink=replace(QUICK, flip_window_s=0))


def spooled(path: Path) -> int:
    """Have an agent that nobody hears fill a spool; returns its last seq."""
    agent = agent_of(PLAN, path, MemoryNet(NaiveIngest(PLAN), swallow=lambda header: True))

    async def story() -> int:
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().ended)
        agent.stop()
        await task
        return agent.status().spooled_seq

    return int(run(story()))


def epoch_of(path: Path) -> bytes:
    database = sqlite3.connect(path)
    try:
        return image_of(database).epoch
    finally:
        database.close()


def held(path: Path) -> list[SpooledBatch]:
    async def read() -> list[SpooledBatch]:
        spool = SqliteSpool(path)
        await spool.open("d1", "fleet", b"unused!!")
        found = await spool.read(0, 10_000)
        await spool.close()
        return found

    batches: list[SpooledBatch] = run(read())
    return batches


def elsewhere(path: Path, seq: int) -> NaiveIngest:
    """An ingest that knows another history of the spool's epoch, up to `seq`."""
    ingest = NaiveIngest(PLAN)
    ingest.epoch, ingest.seq, ingest.digest = epoch_of(path), seq, b"another history."
    ingest.ordinal = 1
    return ingest


@pytest.mark.parametrize("beyond", [False, True])
def test_what_is_not_acked_is_queued_again_under_a_new_epoch(tmp_path: Path, beyond: bool) -> None:
    path = tmp_path / "spool.sqlite"
    last = spooled(path)
    old = epoch_of(path)
    ingest = elsewhere(path, last + 1_000 if beyond else 3)
    agent = agent_of(PLAN, path, MemoryNet(ingest))
    assert run(agent.run())
    assert ingest.closed == [old]
    assert ingest.sorted_rows() == expected(PLAN)
    status = agent.status()
    assert status.epoch == ingest.epoch.hex() != old.hex()
    assert status.counters["epochs_minted"] == 1
    assert (status.acked_seq, status.spool_bytes) == (ingest.seq, 0)


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_write_around_a_new_epoch_changes_nothing(tmp_path: Path, after: bool) -> None:
    original = tmp_path / "original.sqlite"
    last, killed = spooled(original), 0
    for writes in range(1, 8):
        path = tmp_path / f"{writes}.sqlite"
        shutil.copy(original, path)
        ingest = elsewhere(path, last + 5)
        try:  # acks that come together are trimmed by one write, so that the last kills may find none
            assert run(agent_of(PLAN, MortalSpool(path, writes, after=after), MemoryNet(ingest)).run())
        except KilledError:
            killed += 1
            assert run(agent_of(PLAN, path, MemoryNet(ingest), seed=2).run())
        assert ingest.sorted_rows() == expected(PLAN)
        assert len(ingest.closed) == 1
    assert killed >= 4


def test_a_second_new_epoch_within_the_window_stops_the_agent_even_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "spool.sqlite"
    last = spooled(path)
    ingest = elsewhere(path, last + 1)
    ingest.silent = True
    agent = agent_of(
        PLAN,
        path,
        MemoryNet(
            ingest, meddle=lambda payload, answers: [Ack("fleet", epoch_of_agent(), 9_999, b"?" * 16, 1)]
        ),
    )

    def epoch_of_agent() -> bytes:
        return bytes.fromhex(agent.status().epoch)

    with pytest.raises(AlarmError, match="acks batch 9999"):
        run(agent.run())
    again = agent_of(PLAN, path, MemoryNet(elsewhere(path, 9_999)), seed=2)
    with pytest.raises(AlarmError, match="acks batch 9999"):
        run(again.run())
    late = elsewhere(path, 9_999)
    assert run(agent_of(PLAN, path, MemoryNet(late), OFTEN, seed=3).run())
    assert late.sorted_rows() == expected(PLAN)


def test_of_two_agents_with_one_spool_the_first_to_flip_twice_stops(tmp_path: Path) -> None:
    first, second = tmp_path / "first.sqlite", tmp_path / "second.sqlite"
    spooled(first)
    shutil.copy(first, second)
    ingest = NaiveIngest(PLAN)
    assert run(agent_of(PLAN, first, MemoryNet(ingest)).run())
    # The clone's batches are the same ones: nothing tells them apart, and nothing has to.
    assert run(agent_of(PLAN, second, MemoryNet(ingest), seed=2).run())
    assert ingest.sorted_rows() == expected(PLAN)
    assert ingest.doubles > 0


def test_schemas_are_sent_again_to_an_ingest_that_lacks_them(tmp_path: Path) -> None:
    ingest = NaiveIngest(PLAN)

    def meddle(payload: bytes, answers: list[Control]) -> list[Control]:
        if ingest.seq in (3, 9) and ingest.announced_again < 2:
            ingest.forget_schemas()
        return answers

    agent = agent_of(PLAN, tmp_path / "spool.sqlite", MemoryNet(ingest, meddle=meddle))
    assert run(agent.run())
    assert ingest.announced_again >= 2
    assert agent.status().counters["schemas_sent_again"] >= 2
    assert ingest.sorted_rows() == expected(PLAN)


def damage(path: Path, seq: int, column: str, value: bytes) -> int:
    """Change what the disk holds of a batch; returns its rows."""
    database = sqlite3.connect(path)
    with database:
        (count,) = database.execute("SELECT count FROM batches WHERE seq = ?", (seq,)).fetchone()
        database.execute(f"UPDATE batches SET {column} = ? WHERE seq = ?", (value, seq))
    database.close()
    return int(count)


def missing(ingest: NaiveIngest) -> dict[str, list[Row]]:
    """Rows of each channel that did not come; those that came are as they should be."""
    whole, came = expected(PLAN), ingest.sorted_rows()
    for channel, rows in came.items():
        assert all(row in whole[channel] for row in rows)
    return {channel: [row for row in whole[channel] if row not in came[channel]] for channel in whole}


@pytest.mark.parametrize("column", ["body", "header", "digest"])
def test_a_batch_damaged_on_the_disk_is_declared_and_the_others_go_on(tmp_path: Path, column: str) -> None:
    path = tmp_path / "spool.sqlite"
    spooled(path)
    seq = next(b.seq for b in held(path) if b.seq > 3 and b.count > 1)
    count = damage(path, seq, column, b"\x08\x01damaged........."[:16])
    ingest = NaiveIngest(PLAN)
    agent = agent_of(PLAN, path, MemoryNet(ingest))
    assert run(agent.run())
    lost = {channel: len(rows) for channel, rows in missing(ingest).items()}
    assert lost == ingest.dropped
    # With its digest the batch behind it is in doubt too: what follows on a wrong one cannot be told.
    assert sum(lost.values()) >= count
    assert ingest.gap_records == agent.status().counters["batches_damaged"] <= 2
    raised = agent.status().counters
    assert {c: raised.get(f"rows_damaged.{c}", 0) for c in lost} == lost
    assert agent.status().epoch == epoch_of(path).hex() == ingest.epoch.hex()
    assert ingest.closed == []


@pytest.mark.parametrize("dies", [4, 7, 10, 12])
def test_a_fresh_spool_goes_on_where_its_device_stood(tmp_path: Path, dies: int) -> None:
    """The disk is lost in mid-run: nothing is missing, keyed state is as it was, and no more comes twice than
    the rows of one commit that had arrived in part.
    """
    ingest, killed = NaiveIngest(PLAN), 0
    for life in range(3):
        store = MortalSpool(tmp_path / f"{life}.sqlite", dies if life < 2 else None, after=True)
        agent = agent_of(PLAN, store, MemoryNet(ingest), seed=life)
        if life < 2:
            try:  # acks that come together are trimmed by one write, so that the last kill may find none
                assert run(agent.run())
            except KilledError:
                killed += 1
        else:
            assert run(agent.run())
    assert killed == 2 or dies == 12
    assert (ingest.ordinal, len(ingest.closed)) == (3, 2)
    assert ingest.hellos == 3 + 2  # each after the first is offered the next ordinal before it is welcomed
    for channel, rows in expected(PLAN).items():
        came = ingest.sorted_rows()[channel]
        assert [row for at, row in enumerate(came) if row not in came[:at]] == rows
        assert len(came) - len(rows) <= 2 * SETTINGS.records_max


def test_nothing_is_read_before_the_welcome_and_the_hello_is_said_again(tmp_path: Path) -> None:
    ingest = NaiveIngest(PLAN)
    net = MemoryNet(ingest)
    lost: list[bytes] = []
    answer = net.answers

    def deaf_at_first(payload: bytes) -> list[Control]:
        if len(lost) < 4:
            lost.append(payload)
            return []
        return answer(payload)

    net.answers = deaf_at_first  # type: ignore[method-assign]
    agent = agent_of(PLAN, tmp_path / "spool.sqlite", net)

    async def story() -> bool:
        task = asyncio.create_task(agent.run())
        await until(lambda: len(lost) == 3)
        assert agent.status().state == "greeting"
        assert (agent.status().records_read, agent.status().spooled_seq) == (0, 1)
        assert net.published == []
        return await task

    assert run(story())
    assert len(set(lost)) == 1
    assert ingest.sorted_rows() == expected(PLAN)
    assert agent.status().counters["hellos_sent"] >= 4


def test_a_welcome_for_another_epoch_is_counted_and_ignored(tmp_path: Path) -> None:
    ingest = NaiveIngest(PLAN)
    net = MemoryNet(ingest)
    answer = net.answers
    far = {("readings", "d1"): SplitProgress(1_000, 0, True)}

    def with_strangers(payload: bytes) -> list[Control]:
        return [Welcome("fleet", b"another!", far, {}, 1), *answer(payload)]

    net.answers = with_strangers  # type: ignore[method-assign]
    agent = agent_of(PLAN, tmp_path / "spool.sqlite", net)
    assert run(agent.run())
    assert ingest.sorted_rows() == expected(PLAN)
    assert agent.status().counters["acks_of_others"] >= 1


def test_a_hello_of_a_lost_spool_that_comes_late_closes_nothing(tmp_path: Path) -> None:
    ingest = NaiveIngest(PLAN)
    slow: list[bytes] = []
    deaf = MemoryNet(ingest)

    def lose(payload: bytes) -> list[Control]:
        slow.append(payload)
        return []

    deaf.answers = lose  # type: ignore[method-assign]
    never = agent_of(PLAN, tmp_path / "lost.sqlite", deaf, seed=1)

    async def unheard() -> None:
        task = asyncio.create_task(never.run())
        await until(lambda: len(slow) >= 1)
        never.stop()
        await task

    run(unheard())
    arrived: list[list[Control]] = []

    def meddle(payload: bytes, answers: list[Control]) -> list[Control]:
        if ingest.seq in (2, 5, 9):
            arrived.append(ingest.take(slow[0]))
            answers = [*arrived[-1], *answers]
        return answers

    agent = agent_of(PLAN, tmp_path / "spool.sqlite", MemoryNet(ingest, meddle=meddle), seed=2)
    assert run(agent.run())
    assert all(isinstance(answer, Offer) for answers in arrived for answer in answers)
    assert len(arrived) >= 3
    assert (ingest.closed, ingest.ordinal) == ([], 1)
    assert ingest.sorted_rows() == expected(PLAN)
    assert agent.status().counters["acks_of_others"] == len(arrived)


def test_a_damaged_answer_neither_begins_an_epoch_nor_stops_the_agent(tmp_path: Path) -> None:
    """Each bit of an ack in turn, among the good ones."""
    ingest, damaged = NaiveIngest(PLAN), 0

    def flip(payload: bytes, answers: list[Control]) -> list[Control]:
        nonlocal damaged
        assert net.live is not None
        for answer in answers:
            good = encode_control(answer)
            for bit in range(damaged % 8, len(good) * 8, 8):
                bad = bytearray(good)
                bad[bit // 8] ^= 1 << bit % 8
                damaged += 1
                net.live.deliver(Incoming(ack_topic("d1", "fleet"), bytes(bad)))
        return answers

    net = MemoryNet(ingest, meddle=flip)
    agent = agent_of(PLAN, tmp_path / "spool.sqlite", net)
    assert run(agent.run())
    counters = agent.status().counters
    assert 0 < counters["acks_not_decoded"] <= damaged  # the last ones came after its end
    assert not {"epochs_minted", "ack_refused", "epoch_closed"} & set(counters)
    assert ingest.closed == []
    assert ingest.sorted_rows() == expected(PLAN)


def test_a_source_that_has_shrunk_since_is_told(tmp_path: Path) -> None:
    ingest = NaiveIngest(PLAN)
    ingest.positions = {("readings", "d1"): SplitProgress(1_000, 0)}
    agent = agent_of(PLAN, tmp_path / "spool.sqlite", MemoryNet(ingest))
    with pytest.raises(SourceError, match="split readings/d1 was read up to 1000 in a former life"):
        run(agent.run())
