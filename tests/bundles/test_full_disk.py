"""A device's disk is full while it takes code: nothing begins anew, nothing is left half, and it goes on by
itself once there is room.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.errors import DiskError
from geartrain_edge.bundles import fetch as fetching
from geartrain_edge.bundles.folder import BundleFolder
from geartrain_edge.bundles.request import Request
from geartrain_edge.parent.bundled import FetchPolicy
from geartrain_edge.parent.upgrading import Upgrade
from geartrain_edge.programs.choice import INSTALLED, Choice, asked
from tests.waiting import WAIT_S, in_time

A, B = "a" * 64, "b" * 64
FULL = "what programs this device runs cannot be kept: No space left on device: make room on its disk"


class World:
    """The ports of an upgrade; left_s: as the launcher has set it."""

    def __init__(self, choice: Choice, left_s: float = 0.0) -> None:
        self.choice, self.is_full, self.tries = choice, True, 0
        self.left, self.changed, self.saved = left_s, asyncio.Event(), asyncio.Event()

    def upgrade(self, running: str) -> Upgrade:
        policy = FetchPolicy(0.001, 0.002)
        shelf, clock, chance = self, SystemClock(), SystemRandomness()
        return Upgrade(running, shelf, self, self, tuple, self.changed, clock, chance, policy)

    def has(self, code: str) -> bool:
        return True

    async def fetch(self, code: str, keep: Collection[str]) -> None:
        assert not code

    def load(self) -> Choice:
        return self.choice

    def save(self, choice: Choice) -> None:
        self.tries += 1
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.choice = choice
        self.saved.set()

    def left_s(self) -> float:
        return self.left

    def disarm(self) -> None:
        self.left = 0.0


def test_a_choice_that_cannot_be_kept_is_tried_again_and_nothing_begins_anew_before() -> None:
    async def story(before: Choice) -> None:
        world = World(before)
        upgrade = world.upgrade(INSTALLED)
        upgrade.want(B)
        runs = asyncio.create_task(upgrade.run())
        async with asyncio.timeout(WAIT_S):
            while world.tries < 5:
                await asyncio.sleep(0.001)
                assert not runs.done()
        assert (upgrade.why, world.choice) == (FULL, before)
        world.is_full = False
        await in_time("the upgrade", runs)
        assert world.choice.tried == B

    asyncio.run(story(Choice()))
    # It was on trial already, and the launcher could not count another start of it.
    asyncio.run(story(asked(Choice(), B, ())))
    asyncio.run(story(Choice(refused=A)))


def test_a_program_whose_success_cannot_be_kept_says_so_at_its_deadline() -> None:
    async def story() -> None:
        world = World(replace(asked(Choice(proved=A), B, ()), tries=1), 0.05)
        upgrade = world.upgrade(B)
        upgrade.heard()
        await in_time("the upgrade", upgrade.run())
        assert upgrade.why == FULL
        assert world.choice.tried == B

    asyncio.run(story())


def test_the_program_that_runs_is_asked_for_again_and_none_is_on_trial_any_more() -> None:
    async def story() -> None:
        world = World(replace(asked(Choice(proved=A), B, ()), tries=1))
        world.is_full = False
        upgrade = world.upgrade(A)
        upgrade.want(A)
        runs = asyncio.create_task(upgrade.run())
        await in_time("a choice that is saved", world.saved.wait())
        assert (world.choice, upgrade.why) == (Choice(proved=A), "")
        runs.cancel()

    asyncio.run(story())


def test_what_was_fetched_by_half_takes_no_room_until_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(request: Request, folder: BundleFolder, _: object) -> None:
        (folder.root / ".new-archive").write_bytes(b"as it came")
        folder.draft(request.code, [("half.py", [b"1"])])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetching, "_get", fails)
    folder = BundleFolder(tmp_path / "programs")
    folder.draft(A, [("whole.py", [b"1"])])
    folder.install(A)
    with pytest.raises(DiskError, match="No space left on device"):
        fetching.fetch(Request(str(tmp_path / "bundles"), code=B, keep=(A,), programs=str(folder.root)))
    assert [path.name for path in folder.root.iterdir()] == [A]
