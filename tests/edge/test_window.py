"""The window: in order, without a gap, and never ahead of what the reading side has noted."""

from __future__ import annotations

from pathlib import Path

from geartrain.ports import SpoolCommit, SpooledBatch
from geartrain.wire.digest import FIRST_DIGEST, next_digest
from geartrain_edge.spool.backlog import Backlog
from geartrain_edge.spool.spool import SqliteSpool
from geartrain_edge.uplink.window import Window
from tests.edge.agents import run


def batches(first: int, last: int) -> list[SpooledBatch]:
    made, digest = [], FIRST_DIGEST
    for seq in range(1, last + 1):
        digest = next_digest(digest, b"h", b"x" * 99)
        made.append(SpooledBatch(seq, b"h", b"x" * 99, digest, 1))
    return made[first - 1 :]


class Reader:
    """Reads a window as the uplink does: what follows on what was sent."""

    def __init__(self, window: Window) -> None:
        self._window, self.sent = window, 0

    async def next_seq(self) -> int | None:
        """The seq of the next batch, which is then sent."""
        batch = await self._window.after(self.sent)
        if batch is not None:
            self.sent = batch.seq
        return None if batch is None else batch.seq


async def opened(tmp_path: Path, count: int) -> tuple[SqliteSpool, Backlog]:
    spool = SqliteSpool(tmp_path / "s.sqlite")
    backlog = Backlog(await spool.open("d1", "fleet", b"epoch..8"))
    await spool.commit(SpoolCommit(batches(1, count)))
    return spool, backlog


def test_a_batch_is_not_sent_before_its_commit_was_noted(tmp_path: Path) -> None:
    async def story() -> list[int | None]:
        spool, backlog = await opened(tmp_path, 4)
        window = Window(spool, backlog, 10, 1_000_000)
        reader = Reader(window)
        found = [await reader.next_seq()]
        backlog.committed(batches(1, 2))
        found += [await reader.next_seq() for _ in range(3)]
        backlog.committed(batches(3, 4))
        found += [await reader.next_seq() for _ in range(3)]
        await spool.close()
        return found

    assert run(story()) == [None, 1, 2, None, 3, 4, None]


def test_acks_and_rewinds_move_it(tmp_path: Path) -> None:
    async def story() -> None:
        spool, backlog = await opened(tmp_path, 30)
        backlog.committed(batches(1, 30))
        window = Window(spool, backlog, 4, 1_000_000)
        reader = Reader(window)
        assert [await reader.next_seq() for _ in range(5)] == [1, 2, 3, 4, None]
        reader.sent = 2
        assert [await reader.next_seq() for _ in range(3)] == [3, 4, None]
        for seq in (2, 20):
            held = await window.held(seq)
            assert held is not None
            assert held.digest == batches(seq, seq)[0].digest
        assert await window.held(31) is None
        assert await window.ack(3) == 300
        reader.sent = 0  # what is acked is not sent again
        assert [await reader.next_seq() for _ in range(5)] == [4, 5, 6, 7, None]
        assert await window.ack(21) == 1_800  # most of them were sent in a former life
        assert [await reader.next_seq() for _ in range(2)] == [22, 23]
        await spool.close()

    run(story())
    assert (tmp_path / "s.sqlite").exists()


def test_what_was_forgotten_does_not_delay_what_comes_next(tmp_path: Path) -> None:
    async def story() -> list[int | None]:
        spool, backlog = await opened(tmp_path, 30)
        backlog.committed(batches(1, 30))
        window = Window(spool, backlog, 40, 1_000_000)
        reader = Reader(window)
        for _ in range(20):
            await reader.next_seq()
        await window.forget()
        found = [await reader.next_seq() for _ in range(11)]
        await spool.close()
        return found

    assert run(story()) == [*range(21, 31), None]


def test_bytes_bound_it_but_for_one_batch(tmp_path: Path) -> None:
    async def story() -> list[int | None]:
        spool, backlog = await opened(tmp_path, 9)
        backlog.committed(batches(1, 9))
        window = Window(spool, backlog, 100, 250)
        reader = Reader(window)
        found = [await reader.next_seq() for _ in range(4)]
        await window.ack(2)
        found += [await reader.next_seq() for _ in range(3)]
        await spool.close()
        return found

    assert run(story()) == [1, 2, 3, None, 4, 5, None]
