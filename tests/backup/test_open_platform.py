"""A backup of a platform that is open to other machines: its authority, signed bundles and outboxes go on.

What is restored is compared with what was there, and then used as devices, authors and the sender use it.
"""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime
from pathlib import Path

from geartrain_cloud.backup.restoring import restore
from geartrain_cloud.backup.writing import back_up
from geartrain_cloud.bundles.repository import Repository
from geartrain_cloud.downlink.outbox import SqliteOutbox
from geartrain_cloud.downlink.store import Lane, OutBatch
from geartrain_cloud.platform.config import FleetSection
from geartrain_cloud.platform.places import PlatformPlaces
from tests.bundles.signed import author, begin, publish, seen_by
from tests.bundles.test_repository import ONE
from tests.control.enrolled import DAY_S, Key, opened
from tests.down.world import World, plan_of

OTHER = {name: data + b"\n" for name, data in ONE.items()}


async def waiting(path: Path) -> dict[str, tuple[Lane, list[OutBatch]]]:
    """By device, what an outbox has for it; the first batch of each is acked then."""
    one = SqliteOutbox(path, "loop")
    await one.open()
    found = {}
    for lane in await one.changed():
        batches = list(await one.read(lane.device, lane.acked_seq, 100))
        found[lane.device] = (lane, batches)
        await one.trim(lane.device, lane.epoch, batches[0].seq, batches[0].digest)
    await one.close()
    return found


def fill_outbox(folder: Path, goal: Path) -> None:
    world = World(folder, plan_of(), devices=("d1", "d2"))
    for number in range(3):
        world.write([("d1", 2 * number), ("d2", 2 * number + 1)], number)
    goal.parent.mkdir(parents=True)
    shutil.copy(world.outbox, goal)


def test_devices_authors_and_the_sender_go_on_with_what_is_restored(tmp_path: Path) -> None:
    state, again = tmp_path / "state", tmp_path / "again"
    alice, lost, joined = author(tmp_path / "keys"), Key(), Key()

    def repository(folder: Path) -> Repository:
        return Repository(PlatformPlaces(folder).bundles, lambda: datetime.now(UTC))

    async def before() -> tuple[Path, str, FleetSection]:
        async with opened(state) as world:
            for name in ("truck-1", "truck-2", "truck-3"):
                world.store.devices.add(name, {})
            identity = (await world.join(joined)).rename(tmp_path / "identity.pem")
            await world.join(lost, "truck-2")
            world.enrolment.revoke("truck-2")
            token = world.enrolment.invite("truck-3", DAY_S)["token"]
            first = repository(state)
            begin(first, alice, datetime.now(UTC))
            code = publish(first, alice, ONE, tmp_path, datetime.now(UTC))
            assert seen_by(first, tmp_path / "device", code)
            fill_outbox(tmp_path / "loop", PlatformPlaces(state).outbox("loop.1"))
            back_up(state, tmp_path / "copy.tar", lambda: 1)
            assert await world.ask("GET", "/v1/who", None, identity) == (200, {"device": "truck-1"})
            return identity, f"{code} {token}", world.config.fleet

    async def after(identity: Path, token: str, fleet: FleetSection) -> None:
        async with opened(again, fleet) as world:
            ask = world.ask
            assert await ask("GET", "/v1/who", None, identity) == (200, {"device": "truck-1"})
            status, renewed = await ask("POST", "/v1/renew", {"request": joined.request}, identity)
            assert status == 200
            newer = world.keep(joined, renewed["certificate"])
            assert await ask("GET", "/v1/who", None, newer) == (200, {"device": "truck-1"})
            issued = {one.name: one.revoked_at is None for one in world.enrolment.fleet.issued()}
            assert (issued["truck-1"], issued["truck-2"]) == (True, False)
            third = {"token": token, "request": Key().request}
            assert (await ask("POST", "/v1/join", third))[0] == 200
            assert (await ask("POST", "/v1/join", {**third, "request": Key().request}))[0] == 403

    identity, said, fleet = asyncio.run(before())
    code, token = said.split()
    there = asyncio.run(waiting(PlatformPlaces(state).outbox("loop.1")))
    assert sorted(there) == ["d1", "d2"]
    restore(tmp_path / "copy.tar", again)
    shutil.rmtree(state)
    asyncio.run(after(identity, token, fleet))
    # The lanes are those of the moment, byte for byte, and go on.
    place = PlatformPlaces(again).outbox("loop.1")
    assert asyncio.run(waiting(place)) == there
    left = asyncio.run(waiting(place))
    assert {name: batches for name, (_, batches) in left.items()} == {
        name: batches[1:] for name, (_, batches) in there.items()
    }
    # A device that has seen the metadata takes them, and what the author signs next.
    restored = repository(again)
    assert seen_by(restored, tmp_path / "device", code)
    following = publish(restored, alice, OTHER, tmp_path, datetime.now(UTC), (code,))
    assert seen_by(restored, tmp_path / "device", following) != seen_by(restored, tmp_path / "device", code)
    assert restored.unpacked(code) is not None
