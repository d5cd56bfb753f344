"""Power lost at every step of a commit by which a device goes over to other steps, on real files.

The real agent goes over on a real spool, and each state that the disk may leave is taken up by another one.
It goes on to the end, and the rows are compared with plain Python that is given the place.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from geartrain.planning import Plan
from geartrain.ports import SpoolCommit, SpoolImage
from geartrain.revision import Revision
from geartrain.wire.codec import decode_header
from geartrain.wire.envelope import BatchKind, Control
from geartrain_edge.agent.crossing import NUMBERS, REVISION, Numbers
from geartrain_edge.settings import AgentSettings
from geartrain_edge.spool.spool import SqliteSpool
from tests.edge.agents import KilledError, agent_of, run, until
from tests.edge.network import MemoryNet, NaiveIngest
from tests.edge.test_other_steps import (
    FIRST,
    ROWS,
    SECOND,
    WITHOUT,
    expected,
    of_revision,
    sums_of,
)
from tests.proofs.test_crash_states import SPOOL, Mirror

pytestmark = pytest.mark.slow

STATES = 24
"""Of each step."""
HEARD = 4
"""Batches of the first revision that ingest has; the others wait in the spool."""


@dataclass(frozen=True)
class Case:
    """What a device goes over to. factor: of its sums behind that, 0 for none; drops: they begin anew."""

    plan: Plan
    settings: AgentSettings
    factor: int
    drops: bool = False
    high: bool = True

    def rows(self, at: int) -> tuple[list[tuple[str, int, int]], list[int]]:
        """The sums, and which records are high, of a device that goes over behind `at` records."""
        sums = expected([at, ROWS], [1, self.factor], at if self.drops else -1)
        return sums, [number for number in range(at, ROWS) if self.high and number % 10 >= 5]


CASES = {
    "kept": Case(SECOND, of_revision(2), 10),
    "begun anew": Case(SECOND, of_revision(2, sums=2), 10, drops=True),
    "removed": Case(WITHOUT, of_revision(2), 0, drops=True),
}


class Recording(NaiveIngest):
    """Keeps what it was sent, so that another one can be brought to where it is."""

    def __init__(self, *plans: Plan) -> None:
        super().__init__(plans[0])
        for plan in plans[1:]:
            self.add(plan)
        self.plans, self.taken = plans, list[bytes]()

    def take(self, payload: bytes) -> list[Control]:
        self.taken.append(payload)
        return super().take(payload)

    def again(self) -> Recording:
        """Another one that was sent the same."""
        other = Recording(*self.plans)
        for payload in self.taken:
            other.take(payload)
        return other


class MirroredSpool(SqliteSpool):
    """The spool of the agent that goes over; after its first commits every state of each is taken up."""

    def __init__(self, path: Path, mirror: Mirror, commits: int) -> None:
        super().__init__(path)
        self.mirror, self.left = mirror, commits

    async def open(self, device: str, flow: str, fresh_epoch: bytes) -> SpoolImage:
        image = await super().open(device, flow, fresh_epoch)
        for name in SPOOL:
            if self.mirror.take(name):
                self.mirror.platter.sync(name)
        return image

    async def commit(self, change: SpoolCommit) -> None:
        if not self.left:
            raise KilledError
        async with self.mirror.turn:
            self.left -= 1
            await super().commit(change)
            await self.mirror.database(SPOOL, "commit")

    async def trim(self, through_seq: int) -> None:
        async with self.mirror.turn:
            await super().trim(through_seq)
            await self.mirror.database(SPOOL, "trim")


async def begun(path: Path, ingest: NaiveIngest) -> int:
    """Run the first revision, of which ingest hears the beginning; returns how many records it took."""
    net = MemoryNet(ingest, swallow=lambda header: header.seq > HEARD)
    agent = agent_of(FIRST, path, net, of_revision(1))
    task = asyncio.create_task(agent.run())
    await until(lambda: agent.status().spooled_seq > HEARD + 1 and ingest.seq == HEARD)
    agent.stop()
    await task
    spool = SqliteSpool(path)
    image = await spool.open("d1", "fleet", b"e" * 16)
    await spool.close()
    return sum(at.position for at in image.positions.values())


async def check_whole(path: Path, case: Case) -> bool:
    """That a spool is of one revision in all that it says; whether of the second."""
    spool = SqliteSpool(path)
    image = await spool.open("d1", "fleet", b"e" * 16)
    kinds = [decode_header(one.header).kind for one in await spool.read(0, 1_000)]
    await spool.close()
    revision = Numbers.of(image.state[NUMBERS], is_fresh=False).revision
    steps = {step.id for step in Revision.from_json(image.state[REVISION]).steps}
    has_cells = any(step == "sums" for step, _ in image.state)
    assert (revision == 2) == ("high" in steps) == (kinds.count(BatchKind.CROSSING) == 1)
    assert has_cells or (revision == 2 and case.drops)
    return revision == 2


@pytest.mark.parametrize("name", CASES)
def test_a_loss_of_power_while_a_device_goes_over_leaves_one_revision_or_the_other(
    tmp_path: Path, name: str
) -> None:
    case, met, places = CASES[name], Counter[bool](), list[int]()
    ingest = Recording(FIRST, case.plan)

    async def recovered(folder: Path, acked: int) -> None:
        met[await check_whole(folder / SPOOL[0], case)] += 1
        other = ingest.again()
        assert await agent_of(case.plan, folder / SPOOL[0], MemoryNet(other), case.settings, seed=2).run()
        high = [row[3] for row in other.rows["high"]]
        assert (sums_of(other), high) == case.rows(*places)
        assert [number for number, _ in other.crossings] == [1]

    async def story() -> None:
        folder = tmp_path / "spool"
        folder.mkdir()
        places.append(await begun(folder / SPOOL[0], ingest))
        assert 0 < places[0] < ROWS
        mirror = Mirror(folder, STATES, recovered, lambda: 0)
        store = MirroredSpool(folder / SPOOL[0], mirror, commits=2)
        net = MemoryNet(ingest, swallow=lambda header: header.seq > HEARD)
        with suppress(KilledError):
            await agent_of(case.plan, store, net, case.settings).run()
        assert mirror.counts["commit: write-ahead log"] >= 6, mirror.counts

    run(story(), 600.0)
    assert met[False] >= 2, met
    assert met[True] >= 2, met
