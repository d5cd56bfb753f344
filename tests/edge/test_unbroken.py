"""What must not be torn: a new epoch or a gap that a lost connection meets half-way, and an agent's end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from geartrain.concurrency.shield import shield
from geartrain.ports import Incoming, Rewrite, SpoolCommit, SpoolTip
from geartrain.wire.control import encode_control
from geartrain.wire.envelope import Ack
from geartrain.wire.topics import ack_topic
from tests.edge.agents import QUICK, SETTINGS, MortalSpool, agent_of, run
from tests.edge.flows import expected
from tests.edge.network import MemoryNet, NaiveIngest
from tests.edge.test_epochs import PLAN, damage, elsewhere, epoch_of, held, missing, spooled

HASTY = replace(SETTINGS, uplink=replace(QUICK, silence_ms=50))
"""A connection is given up while a slow spool is at its work."""


class SlowSpool(MortalSpool):
    """A spool whose new epochs, gaps and trims take long, so that much happens before or behind them."""

    def __init__(self, path: Path, *, before: bool) -> None:
        super().__init__(path)
        self._before = before
        self.during: Callable[[], None] = lambda: None
        self.after_trim: Callable[[int], bool] = lambda through_seq: False

    async def _slowly(self) -> None:
        self.during()
        await asyncio.sleep(0.15)

    async def renew(self, epoch: bytes, rewrite: Rewrite, change: SpoolCommit) -> SpoolTip:
        if self._before:
            await self._slowly()
        tip = await super().renew(epoch, rewrite, change)
        if not self._before:
            await self._slowly()
        return tip

    async def commit(self, change: SpoolCommit) -> None:
        if change.gaps and self._before:
            await self._slowly()
        await super().commit(change)
        if change.gaps and not self._before:
            await self._slowly()

    async def trim(self, through_seq: int) -> None:
        await super().trim(through_seq)
        if self.after_trim(through_seq):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("before", [True, False])
def test_a_connection_lost_in_the_midst_of_a_new_epoch_tears_nothing(tmp_path: Path, before: bool) -> None:
    """The headers said the new epoch and the uplink took answers of the old one only, for ever."""
    path = tmp_path / "spool.sqlite"
    last = spooled(path)
    ingest = elsewhere(path, last + 5)
    net = MemoryNet(ingest)
    agent = agent_of(PLAN, SlowSpool(path, before=before), net, HASTY)
    assert run(agent.run())
    assert net.connects >= 2
    assert ingest.sorted_rows() == expected(PLAN)
    assert agent.status().epoch == epoch_of(path).hex() == ingest.epoch.hex()
    assert agent.status().counters["epochs_minted"] == 1


@pytest.mark.parametrize("before", [True, False])
def test_a_connection_lost_in_the_midst_of_a_gap_leaves_the_sizes_right(tmp_path: Path, before: bool) -> None:
    path = tmp_path / "spool.sqlite"
    spooled(path)
    seq = next(b.seq for b in held(path) if b.seq > 3 and b.count > 1)
    damage(path, seq, "body", b"damaged")
    ingest = NaiveIngest(PLAN)
    ingest.silent = True
    net, store = MemoryNet(ingest), SlowSpool(path, before=before)
    store.during = ingest.speak
    agent = agent_of(PLAN, store, net, HASTY)
    assert run(agent.run())
    assert net.connects >= 2
    assert {channel: len(rows) for channel, rows in missing(ingest).items()} == ingest.dropped
    assert agent.status().spool_bytes == 0
    assert agent.status().counters["batches_damaged"] == 1


def test_an_agent_ends_with_nothing_unsent_whatever_it_hears_last(tmp_path: Path) -> None:
    """The ack of another history, behind the last one of its own."""
    path = tmp_path / "spool.sqlite"
    ingest = NaiveIngest(PLAN)
    net, store = MemoryNet(ingest), SlowSpool(path, before=False)
    agent = agent_of(PLAN, store, net)
    delivered: list[Ack] = []

    def deliver_foreign_ack(through_seq: int) -> bool:
        """Once, when all is acked: what is not is sent again in the new epoch, and taken twice here."""
        status = agent.status()
        due = status.state == "draining" and through_seq == status.spooled_seq and not delivered
        if due and net.live is not None:
            delivered.append(Ack("fleet", ingest.epoch, 9_999, b"another history.", 1))
            net.live.deliver(Incoming(ack_topic("d1", "fleet"), encode_control(delivered[0])))
        return due

    store.after_trim = deliver_foreign_ack
    assert run(agent.run())
    assert agent.status().counters["ack_refused"] == 1
    assert held(path) == []
    assert agent.status().epoch == epoch_of(path).hex() == ingest.epoch.hex()
    assert ingest.sorted_rows() == expected(PLAN)


def test_unbroken_work_is_done_before_its_cancellation_is_heard() -> None:
    done: list[str] = []

    async def work(fails: bool) -> str:
        for part in ("one", "two", "three"):
            await asyncio.sleep(0.005)
            done.append(part)
        if fails:
            raise ValueError("in the end")
        return "result"

    async def story(fails: bool, cancels: int) -> asyncio.Task[str]:
        done.clear()
        task = asyncio.create_task(shield(work(fails)))
        for _ in range(cancels):
            await asyncio.sleep(0.002)
            task.cancel()
        await asyncio.wait([task])
        return task

    for cancels in (0, 1, 3):
        task = run(story(False, cancels))
        assert done == ["one", "two", "three"]
        assert task.cancelled() if cancels else task.result() == "result"
        assert "in the end" in str(run(story(True, cancels)).exception())
