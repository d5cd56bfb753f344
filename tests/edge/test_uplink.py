"""The uplink: acks it takes and refuses, NACKs, resends, the window, and the pauses between connections."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from geartrain.adapters.system import SystemClock
from geartrain.errors import DeniedError
from geartrain.ports import Incoming, SpoolCommit
from geartrain.testing import SeededRandomness
from geartrain.wire.codec import decode_envelope, decode_header, encode_control
from geartrain.wire.envelope import Ack, Control, Header, Nack, NackReason
from geartrain.wire.topics import ack_topic
from geartrain_edge.agent.agent import Agent
from geartrain_edge.errors import AlarmError
from geartrain_edge.settings import UplinkSettings
from geartrain_edge.spool.backlog import Identity
from geartrain_edge.spool.gaps import replacement
from geartrain_edge.spool.spool import SqliteSpool
from tests.edge.agents import QUICK, SETTINGS, agent_of, run, until
from tests.edge.flows import expected, items, plan_of
from tests.edge.network import MemoryConnection, MemoryNet, NaiveIngest

SLOW = replace(QUICK, resend_ms=60_000, resend_ms_max=60_000, probe_ms_min=60_000)
"""No timer comes to the rescue."""

Meddle = Callable[[bytes, list[Control]], list[Control]]


def counter(path: Path, name: str) -> int:
    """A counter as the closed spool holds it."""
    database = sqlite3.connect(path)
    try:
        found = database.execute("SELECT total FROM counters WHERE name = ?", (name,)).fetchone()
    finally:
        database.close()
    return found[0] if found else 0


def header_of(payload: bytes) -> Header:
    return decode_header(decode_envelope(payload).header)


def alarmed(tmp_path: Path, meddle: Meddle) -> tuple[Agent, str]:
    """An agent that such answers stop, and its alarm."""
    plan = plan_of(items(80))
    agent = agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(NaiveIngest(plan), meddle=meddle))
    with pytest.raises(AlarmError) as caught:
        run(agent.run())
    status = agent.status()
    assert (status.state, status.alarm) == ("failed", str(caught.value))
    return agent, str(caught.value)


def test_an_ack_with_another_digest_is_refused_and_trims_nothing(tmp_path: Path) -> None:
    def meddle(payload: bytes, answers: list[Control]) -> list[Control]:
        seq = header_of(payload).seq
        return [replace(a, digest=b"?" * 16) if isinstance(a, Ack) and seq >= 4 else a for a in answers]

    agent, alarm = alarmed(tmp_path, meddle)
    assert alarm.startswith("ingest acks another batch 4 than this spool holds: the spool of device d1")
    assert agent.status().acked_seq <= 3
    assert counter(tmp_path / "spool.sqlite", "ack_refused") == 2


def test_an_ack_beyond_the_last_batch_is_refused(tmp_path: Path) -> None:
    def meddle(payload: bytes, answers: list[Control]) -> list[Control]:
        return [replace(a, seq=1_000) if isinstance(a, Ack) else a for a in answers]

    agent, alarm = alarmed(tmp_path, meddle)
    assert alarm.startswith("ingest acks batch 1000, but this spool ends at ")
    assert agent.status().acked_seq == 0
    assert counter(tmp_path / "spool.sqlite", "ack_refused") == 2


def test_a_closed_epoch_stops_the_agent(tmp_path: Path) -> None:
    def meddle(payload: bytes, answers: list[Control]) -> list[Control]:
        header = header_of(payload)
        return [Nack("fleet", header.epoch, header.seq, NackReason.CLOSED, 1)]

    _, alarm = alarmed(tmp_path, meddle)
    assert "closed the epoch of device d1" in alarm
    assert counter(tmp_path / "spool.sqlite", "epoch_closed") == 2


def test_a_digest_refused_again_and_again_stops_the_agent(tmp_path: Path) -> None:
    def meddle(payload: bytes, answers: list[Control]) -> list[Control]:
        header = header_of(payload)
        return [Nack("fleet", header.epoch, 3, NackReason.DIGEST, 1)] if header.seq >= 3 else answers

    _, alarm = alarmed(tmp_path, meddle)
    assert "refused the digest of batch 3 of device d1 4 times" in alarm
    assert counter(tmp_path / "spool.sqlite", "digests_refused") == 8


def test_a_digest_refused_once_is_sent_again(tmp_path: Path) -> None:
    refused: list[int] = []

    def meddle(payload: bytes, answers: list[Control]) -> list[Control]:
        header = header_of(payload)
        if header.seq in (3, 5) and header.seq not in refused:
            refused.append(header.seq)
            return [Nack("fleet", header.epoch, header.seq, NackReason.DIGEST, 1)]
        return answers

    plan = plan_of(items(80))
    ingest = NaiveIngest(plan)
    assert run(agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest, meddle=meddle)).run())
    assert refused == [3, 5]
    assert ingest.sorted_rows() == expected(plan)


class Unknowing(NaiveIngest):
    """An ingest that knows no channel until it is told of it."""

    knows, tries = False, 0

    def take(self, payload: bytes) -> list[Control]:
        header = header_of(payload)
        is_next = header.seq == self.seq + 1
        if self.knows or not header.seq or header.seq <= self.seq or (is_next and not header.count):
            return super().take(payload)
        self.tries += is_next
        return [Nack(header.flow, header.epoch, self.seq + 1, NackReason.HOLD, 1)]


def test_rows_that_ingest_does_not_know_wait_in_the_spool_and_the_status_names_their_channel(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_of(items(80))
    ingest = Unknowing(plan)
    settings = replace(SETTINGS, uplink=replace(QUICK, resend_ms_max=100))
    agent = agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest), settings)

    async def story() -> bool:
        task = asyncio.create_task(agent.run())
        await until(lambda: ingest.tries >= 5)
        status = agent.status()
        ((channel, count),) = status.held.items()
        assert count > 0
        assert f"it does not take the rows of channel {channel}, which stay in the spool" in status.alarm
        assert status.acked_seq <= ingest.seq < status.spooled_seq
        ingest.knows = True
        return await task

    assert run(story())
    assert ingest.sorted_rows() == expected(plan)
    assert (agent.status().held, agent.status().alarm) == ({}, "")
    said = [one.getMessage() for one in caplog.records if "was told of another flow" in one.getMessage()]
    assert len(said) == 1
    assert counter(tmp_path / "spool.sqlite", "holds") >= 5


def test_acks_that_change_nothing_are_counted_and_ignored(tmp_path: Path) -> None:
    def meddle(payload: bytes, answers: list[Control]) -> list[Control]:
        (ack,) = answers
        assert isinstance(ack, Ack)
        if ack.seq != 5:
            return [ack]
        strangers = [
            replace(ack, epoch=b"otherone"),
            replace(ack, flow="another"),
            replace(ack, epoch=b"\0" * 8),
        ]
        return [*strangers, ack, replace(ack, seq=2, digest=b"?" * 16), ack]

    plan = plan_of(items(80))
    ingest = NaiveIngest(plan)
    agent = agent_of(
        plan, tmp_path / "spool.sqlite", MemoryNet(ingest, meddle=meddle), replace(SETTINGS, uplink=SLOW)
    )
    assert run(agent.run())
    counters = agent.status().counters
    assert (counters["acks_of_others"], counters["acks_stale"]) == (3, 2)
    assert ingest.sorted_rows() == expected(plan)


def test_bytes_that_are_no_ack_are_counted_and_ignored(tmp_path: Path) -> None:
    plan = plan_of(items(1_000))
    ingest = NaiveIngest(plan)
    net = MemoryNet(ingest)
    agent = agent_of(plan, tmp_path / "spool.sqlite", net)

    async def story() -> bool:
        task = asyncio.create_task(agent.run())
        await until(lambda: ingest.seq > 2)
        assert net.live is not None
        topic = ack_topic("d1", "fleet")
        net.live.deliver(Incoming(topic, b"\x1b[2J not an ack"))
        bad = Ack("fleet", ingest.epoch, 1_000_000, b"?" * 16, 1)
        net.live._inbox.put_nowait(Incoming("geartrain/v1/00/other/fleet/ack", encode_control(bad)))
        return await task

    assert run(story())
    counters = agent.status().counters
    assert (counters["acks_not_decoded"], counters["acks_of_others"]) == (1, 1)


@pytest.mark.parametrize("lost", [1, 2, 7])
def test_a_nack_of_a_gap_sends_again_from_there(tmp_path: Path, lost: int) -> None:
    seen: list[int] = []

    def swallow(header: Header) -> bool:
        seen.append(header.seq)
        return header.seq == lost and seen.count(lost) == 1

    plan = plan_of(items(80))
    ingest = NaiveIngest(plan)
    net = MemoryNet(ingest, swallow=swallow)
    assert run(agent_of(plan, tmp_path / "spool.sqlite", net, replace(SETTINGS, uplink=SLOW)).run())
    assert ingest.gaps > 0
    assert seen.count(lost) == 2
    assert seen[seen.index(lost) + 1 :].count(lost) == 1
    assert ingest.sorted_rows() == expected(plan)


def test_the_timer_sends_all_that_is_unacked_again_and_backs_off(tmp_path: Path) -> None:
    plan = plan_of(items(15))
    ingest = NaiveIngest(plan)
    ingest.silent = True
    nobody = agent_of(plan, tmp_path / "spool.sqlite", MemoryNet(ingest, swallow=lambda header: True))

    async def spool_all() -> None:
        task = asyncio.create_task(nobody.run())
        await until(lambda: nobody.status().state == "draining")
        nobody.stop()
        await task

    run(spool_all())
    net = MemoryNet(ingest)
    patient = replace(QUICK, resend_ms=300, resend_ms_max=600)  # all is sent before it fires
    agent = agent_of(plan, tmp_path / "spool.sqlite", net, replace(SETTINGS, uplink=patient), seed=2)

    async def story() -> bool:
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().counters.get("resends", 0) >= 3)
        ingest.silent = False
        return await task

    assert run(story())
    sent = [seq for seq, _ in net.published]
    whole = list(range(1, ingest.seq + 1))
    assert sent[: 3 * len(whole)] == whole * 3  # in order from the oldest, each time
    assert all(oldest == 1 for _, oldest in net.published[: 3 * len(whole)])
    assert ingest.sorted_rows() == expected(plan)


@pytest.mark.parametrize("loses", ["the batch", "its ack"])
def test_what_goes_last_and_is_lost_is_sent_again_long_before_the_resend_timer(
    tmp_path: Path, loses: str
) -> None:
    plan = plan_of(items(80))
    ingest, lost = NaiveIngest(plan), set[int]()

    def is_lost(header: Header) -> bool:
        """Everything from the fifth on, once: nothing comes later that would show it."""
        first = header.seq > 4 and header.seq not in lost
        lost.update([header.seq] if first else [])
        return first

    if loses == "the batch":
        net = MemoryNet(ingest, swallow=is_lost)
    else:
        net = MemoryNet(ingest, meddle=lambda payload, found: [] if is_lost(header_of(payload)) else found)
    uplink = replace(SLOW, probe_ms_min=20)
    assert run(agent_of(plan, tmp_path / "spool.sqlite", net, replace(SETTINGS, uplink=uplink)).run())
    assert lost
    assert counter(tmp_path / "spool.sqlite", "probes")
    assert not counter(tmp_path / "spool.sqlite", "resends")
    assert ingest.sorted_rows() == expected(plan)


def test_oldest_seq_is_that_of_the_moment_of_sending(tmp_path: Path) -> None:
    plan = plan_of(items(80))
    ingest = NaiveIngest(plan)
    net = MemoryNet(ingest)
    assert run(agent_of(plan, tmp_path / "spool.sqlite", net, replace(SETTINGS, uplink=SLOW)).run())
    assert [seq for seq, _ in net.published] == list(range(1, ingest.seq + 1))
    assert [oldest for _, oldest in net.published] == sorted(oldest for _, oldest in net.published)
    assert net.published[-1][1] > 1


@pytest.mark.parametrize(
    ("settings", "most"), [(replace(SLOW, window=3), 3), (replace(SLOW, window_bytes=1), 1)]
)
def test_no_more_than_the_window_is_unacked(tmp_path: Path, settings: UplinkSettings, most: int) -> None:
    plan = plan_of(items(80))
    ingest = NaiveIngest(plan)
    ingest.silent = True
    net = MemoryNet(ingest)
    agent = agent_of(plan, tmp_path / "spool.sqlite", net, replace(SETTINGS, uplink=settings))

    async def story() -> bool:
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().ended and len(net.published) >= most)
        await asyncio.sleep(0.05)
        assert [seq for seq, _ in net.published] == list(range(1, most + 1))
        ingest.silent = False
        assert net.live is not None
        net.live.deliver(Incoming(ack_topic("d1", "fleet"), encode_control(ingest.ack())))
        return await task

    assert run(story())
    assert ingest.sorted_rows() == expected(plan)


def test_a_full_window_keeps_back_no_gap_that_ingest_stands_in(tmp_path: Path) -> None:
    """Batches 1 to 10 and a gap for all others, of which ingest took 11 and 12 when they were batches. Its
    acks name neither the three of the window nor the gap's end.
    """
    plan, path = plan_of(items(80)), tmp_path / "spool.sqlite"
    ingest = NaiveIngest(plan)
    deaf = MemoryNet(ingest, meddle=lambda payload, answers: [], swallow=lambda header: header.seq > 12)

    async def spool_all() -> int:
        agent = agent_of(plan, path, deaf, replace(SETTINGS, uplink=replace(QUICK, window=100)))
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().ended and ingest.seq == 12)
        agent.stop()
        await task
        spool = SqliteSpool(path)
        image = await spool.open("d1", "fleet", b"another.")
        held = await spool.read(10, 1_000)
        rows = tuple(row for batch in held for row in batch.rows)
        whole = replace(held[-1], first_seq=11, rows=rows)
        await spool.commit(SpoolCommit(gaps=[replacement(Identity("d1", "fleet", image.epoch), whole)]))
        await spool.close()
        return image.last_seq

    last = run(spool_all())
    assert ingest.seq == 12 < last - 1
    uplink = replace(SLOW, window=3)
    assert run(agent_of(plan, path, MemoryNet(ingest), replace(SETTINGS, uplink=uplink), seed=2).run())
    assert (ingest.seq, ingest.gap_records) == (last, 1)
    for channel, rows in expected(plan).items():
        assert len(ingest.rows[channel]) + ingest.dropped[channel] == len(rows)
    assert counter(path, "acks_inside_gaps")


def test_a_puback_trims_nothing(tmp_path: Path) -> None:
    plan = plan_of(items(40))
    ingest = NaiveIngest(plan)
    ingest.silent = True
    path = tmp_path / "spool.sqlite"

    async def story() -> int:
        settings = replace(SETTINGS, uplink=replace(QUICK, window=100))
        agent = agent_of(plan, path, MemoryNet(ingest), settings)
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().ended and ingest.seq == agent.status().spooled_seq)
        agent.stop()
        assert not await task
        assert (agent.status().acked_seq, agent.status().state) == (0, "stopped")
        return agent.status().spooled_seq

    last = run(story())

    async def held() -> list[int]:
        spool = SqliteSpool(path)
        await spool.open("d1", "fleet", b"unused!!")
        found = [batch.seq for batch in await spool.read(0, 1_000)]
        await spool.close()
        return found

    assert run(held()) == list(range(1, last + 1))


def test_an_ack_for_what_a_former_life_sent_is_taken(tmp_path: Path) -> None:
    plan = plan_of(items(200))
    ingest = NaiveIngest(plan)
    ingest.silent = True
    path = tmp_path / "spool.sqlite"
    settings = replace(SETTINGS, uplink=replace(SLOW, window=1_000))

    async def first() -> int:
        agent = agent_of(plan, path, MemoryNet(ingest), settings)
        task = asyncio.create_task(agent.run())
        await until(lambda: agent.status().ended and ingest.seq == agent.status().spooled_seq)
        agent.stop()
        await task
        return agent.status().spool_bytes

    assert run(first()) > 0
    ingest.silent = False  # its answer to the first resend acks the whole of the former life
    again = agent_of(plan, path, MemoryNet(ingest), replace(SETTINGS, uplink=replace(SLOW, window=2)))
    assert run(again.run())
    assert ingest.doubles <= 2
    assert (again.status().spool_bytes, again.status().acked_seq) == (0, ingest.seq)


def test_silence_makes_a_new_connection(tmp_path: Path) -> None:
    plan = plan_of(items(15))
    ingest = NaiveIngest(plan)
    ingest.silent = True
    net = MemoryNet(ingest)
    settings = replace(SETTINGS, uplink=replace(QUICK, silence_ms=60))

    async def story() -> bool:
        task = asyncio.create_task(agent_of(plan, tmp_path / "spool.sqlite", net, settings).run())
        await until(lambda: net.connects >= 3)
        ingest.silent = False
        return await task

    assert run(story())


class ClosingNet(MemoryNet):
    """Its first connection takes so many publishes, as where pubacks were lost, and answers none of them."""

    PUBLISHES = 5

    @asynccontextmanager
    async def connect(self, client_id: str) -> AsyncIterator[MemoryConnection]:
        async with super().connect(client_id) as connection:
            if self.connects == 1:
                taken, publish = 0, connection.publish

                async def limited(topic: str, payload: bytes) -> None:
                    nonlocal taken
                    taken += 1
                    if taken > self.PUBLISHES:
                        await asyncio.Event().wait()
                    self.ingest.silent = taken > 1
                    await publish(topic, payload)

                connection.publish = limited  # type: ignore[method-assign]
            else:
                self.ingest.silent = False
            yield connection


def test_a_connection_that_takes_no_more_publishes_is_silent_too(tmp_path: Path) -> None:
    plan = plan_of(items(100))
    net = ClosingNet(NaiveIngest(plan))
    settings = replace(SETTINGS, uplink=replace(QUICK, silence_ms=200))
    assert run(agent_of(plan, tmp_path / "spool.sqlite", net, settings).run())
    assert net.connects == 2


class RecordingClock(SystemClock):
    """Sleeps no time and remembers how long it was asked to."""

    def __init__(self) -> None:
        self.slept_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        await asyncio.sleep(0)


class Highest(SeededRandomness):
    """Draws the upper end and remembers the range."""

    def __init__(self) -> None:
        super().__init__(1)
        self.ranges: list[tuple[float, float]] = []

    def uniform(self, low: float, high: float) -> float:
        self.ranges.append((low, high))
        return high


@pytest.mark.parametrize(("at_once_ms", "bound_ms"), [(5_000, 5_000), (9_000, 5_000), (800, 800)])
def test_pauses_before_a_new_connection_grow_to_a_bound_with_full_jitter(
    tmp_path: Path, at_once_ms: int, bound_ms: int
) -> None:
    """One that is refused at once has a bound of its own."""
    plan = plan_of(items(15))
    ingest = NaiveIngest(plan)
    net = MemoryNet(ingest)
    net.refuse_connects = 10
    clock, chance = RecordingClock(), Highest()
    uplink = UplinkSettings(
        backoff_ms=100,
        backoff_ms_max=5_000,
        refused_ms_max=at_once_ms,
        resend_ms=1_000_000,
        resend_ms_max=1_000_000,
    )
    store = SqliteSpool(tmp_path / "spool.sqlite")
    agent = Agent(replace(SETTINGS, uplink=uplink), plan, store, net, clock, chance)
    assert run(agent.run())
    grown_ms = (200, 400, 800, 1_600, 3_200, *[5_000] * 5)
    assert chance.ranges == [(0, min(ms, bound_ms) / 1_000) for ms in grown_ms]
    assert [s for s in clock.slept_s if s in (0.2, 0.4, 0.8, 1.6, 3.2, 5.0)] == [
        high for _, high in chance.ranges
    ]
    assert agent.status().counters["connections_lost"] == 10


class DenyingNet(MemoryNet):
    """A broker that does not accept the device for its first tries; `seen` is looked at before each."""

    def __init__(self, ingest: NaiveIngest, denials: int, look: Callable[[], str]) -> None:
        super().__init__(ingest)
        self._denials, self._look, self.seen = denials, look, list[str]()

    @asynccontextmanager
    async def connect(self, client_id: str) -> AsyncIterator[MemoryConnection]:
        self.seen.append(self._look())
        if len(self.seen) <= self._denials:
            raise DeniedError("the broker refuses this client: put its password right")
        async with super().connect(client_id) as connection:
            yield connection


def test_an_agent_that_is_denied_says_what_to_do_and_pauses_for_longer(tmp_path: Path) -> None:
    plan = plan_of(items(15))
    uplink = UplinkSettings(backoff_ms=100, refused_ms_max=1_000, denied_ms_max=5_000, resend_ms=1_000_000)
    agents: list[Agent] = []
    net = DenyingNet(NaiveIngest(plan), 8, lambda: agents[0].status().alarm)
    chance = Highest()
    store = SqliteSpool(tmp_path / "spool.sqlite")
    agents.append(Agent(replace(SETTINGS, uplink=uplink), plan, store, net, RecordingClock(), chance))
    assert run(agents[0].run())
    says = "refused: the broker refuses this client: put its password right; records stay in the spool"
    assert net.seen == ["", *[says] * 8]
    assert [high for _, high in chance.ranges] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert agents[0].status().alarm == ""
