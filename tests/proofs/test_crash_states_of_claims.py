"""Power lost at every step of the commits by which a device claims state and takes it, on real files.

The real agent claims on a real spool, from the real stages over a real outbox. Each state that the disk may
leave of a commit that says something of the claim is taken up by another agent, beside another cloud that
reads the same log. It goes on to the end, and the sums are those of the step that never moved.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from geartrain.ports import SpoolCommit, SpoolImage
from geartrain.state.claims import ASKS, HAS
from geartrain.wire.envelope import Control
from geartrain_edge.agent.crossing import CLAIM, REVISION, LastClaim
from geartrain_edge.spool.spool import SqliteSpool
from tests.down.test_claiming import HELD, ROWS, LoggingIngest, beside, check, claim_of, cloud_of, due
from tests.edge.agents import KilledError, agent_of, run
from tests.proofs.test_crash_states import SPOOL, Mirror

pytestmark = pytest.mark.slow

STATES = 5
"""Of each step."""
CROSSES = "crosses"
"""What the commit of the crossing is called here, which settles the claim."""


class Recording(LoggingIngest):
    """Keeps what it was sent, so that another one can be brought to where it is."""

    taken: tuple[bytes, ...] = ()

    def take(self, payload: bytes) -> list[Control]:
        self.taken = (*self.taken, payload)
        return super().take(payload)


class MirroredSpool(SqliteSpool):
    """The spool of the agent that claims, which dies with the commit of its crossing."""

    def __init__(self, path: Path, mirror: Mirror) -> None:
        super().__init__(path)
        self.mirror = mirror

    async def open(self, device: str, flow: str, fresh_epoch: bytes) -> SpoolImage:
        image = await super().open(device, flow, fresh_epoch)
        self._note()
        return image

    async def commit(self, change: SpoolCommit) -> None:
        async with self.mirror.turn:
            await super().commit(change)
            if CLAIM in change.state:
                says = LastClaim.of(change.state[CLAIM]).says or CROSSES
                await self.mirror.database(SPOOL, says)
            self._note()
        if REVISION in change.state:
            raise KilledError

    async def trim(self, through_seq: int) -> None:
        async with self.mirror.turn:
            await super().trim(through_seq)
            self._note()

    def _note(self) -> None:
        """The disk has all of it."""
        for name in SPOOL:
            if self.mirror.take(name):
                self.mirror.platter.sync(name)


def test_a_loss_of_power_around_a_claim_leaves_each_cell_in_one_place(tmp_path: Path) -> None:
    world, met = cloud_of(tmp_path, ingest=Recording), Counter[str]()
    ingest = world.ingest
    assert isinstance(ingest, Recording)

    async def recovered(folder: Path, acked: int) -> None:
        path = folder / SPOOL[0]
        met[(await claim_of(path)).says] += 1
        other = cloud_of(folder, ingest=Recording)
        for payload in ingest.taken:
            other.ingest.take(payload)
        assert await beside(other, agent_of(other.edge, path, other.broker, HELD, seed=3))
        assert len(other.ingest.crossings) == 1
        check(other)

    async def story() -> None:
        folder = tmp_path / "spool"
        folder.mkdir()
        path = folder / SPOOL[0]
        await beside(world, agent_of(world.cloud, path, world.broker, HELD), until_read=ROWS // 3)
        mirror = Mirror(folder, STATES, recovered, lambda: 0)
        store = MirroredSpool(path, mirror)
        with suppress(KilledError):
            await beside(world, agent_of(world.edge, store, world.broker, HELD, seed=2))
        steps = {step.partition(":")[0] for step in mirror.counts}
        assert steps == {ASKS, HAS, CROSSES}, mirror.counts

    assert due()  # before there is a loop
    run(story(), 900.0)
    assert min(met[ASKS], met[HAS], met[""]) >= 2, met
