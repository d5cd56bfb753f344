"""The disk: power loss takes what was not durable, whole, in part or out of order; a kill takes nothing."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from geartrain.errors import DiskError
from geartrain_simulation.machine.disk import SimDisk
from geartrain_simulation.machine.faults import Faults
from geartrain_simulation.machine.platter import Platter
from geartrain_simulation.machine.world import Process, World


def platters() -> list[Platter]:
    return [Platter(Random(seed), sector_bytes=1) for seed in range(400)]


def remains(platter: Platter) -> dict[str, bytes]:
    return {name: platter.read(name) for name in platter.matching()}


def test_what_was_synced_stays() -> None:
    for platter in platters():
        platter.put("folder/a", b"safe")
        assert platter.durable("folder/a") is None
        platter.sync("folder/a")
        assert platter.durable("folder/a") == b"safe"
        platter.power_loss()
        assert remains(platter) == {"folder/a": b"safe"}


def test_what_was_not_synced_is_lost_torn_or_whole() -> None:
    outcomes = set()
    for platter in platters():
        platter.put("a", b"abcd")
        platter.power_loss()
        outcomes.add(remains(platter).get("a"))
    assert {None, b"", b"a", b"ab", b"abc", b"abcd"} <= outcomes
    # Whatever sector is missing has nothing but zeros where others behind it are there.
    assert all(set(found) <= set(b"abcd\0") for found in outcomes if found)
    assert b"a\0cd" in outcomes


def test_without_tearing_it_is_all_or_nothing() -> None:
    outcomes = set()
    for seed in range(100):
        platter = Platter(Random(seed), losses=("lost",))
        platter.put("a", b"abcd")
        platter.power_loss()
        outcomes.add(remains(platter).get("a"))
    assert outcomes == {None, b"", b"abcd"}


def test_an_overwrite_without_sync_may_keep_the_old() -> None:
    outcomes = set()
    for platter in platters():
        platter.put("a", b"old")
        platter.sync("a")
        platter.put("a", b"new!")
        assert platter.durable("a") is None
        platter.power_loss()
        outcomes.add(remains(platter)["a"])
    assert {b"old", b"new!", b"", b"ne", b"nld\0", b"oew!"} <= outcomes
    # No byte is of neither: a sector is what it was, or what it was to become.
    for found in outcomes:
        for one, old, new in zip(found, b"old\0", b"new!", strict=False):
            assert one in {old, new, 0}


def test_a_rename_is_durable_after_the_sync_of_the_new_name() -> None:
    for platter in platters():
        platter.put("new.part", b"data")
        platter.sync("new.part")
        platter.rename("new.part", "new")
        platter.sync("new")
        platter.power_loss()
        assert remains(platter) == {"new": b"data"}


def test_a_rename_before_the_content_is_synced_may_leave_an_empty_file() -> None:
    outcomes = set()
    for platter in platters():
        platter.put("a.part", b"data")
        platter.rename("a.part", "a")
        platter.power_loss()
        outcomes.add(remains(platter).get("a"))
    assert {None, b"", b"data"} <= outcomes


def test_renames_are_not_ordered_among_each_other() -> None:
    outcomes = set()
    for platter in platters():
        for name in ("a", "b"):
            platter.put(f"{name}.part", b"x")
            platter.sync(f"{name}.part")
            platter.rename(f"{name}.part", name)
        platter.power_loss()
        outcomes.add(tuple(platter.matching()))
    assert outcomes == {("a", "b"), ("a", "b.part"), ("a.part", "b"), ("a.part", "b.part")}


def test_a_removed_file_may_come_back() -> None:
    outcomes = set()
    for platter in platters():
        platter.put("a", b"x")
        platter.sync("a")
        platter.remove("a")
        platter.remove("never there")
        platter.power_loss()
        outcomes.add(tuple(platter.matching()))
    assert outcomes == {(), ("a",)}


def test_a_kill_keeps_what_was_written_and_power_loss_does_not() -> None:
    def after(power: bool, seed: int) -> tuple[str, ...]:
        world = World(seed)
        platter = Platter(world.random("platter"))
        seen: list[tuple[str, ...]] = []

        async def main(process: Process) -> None:
            disk = SimDisk(process, platter)
            if process.generation == 1:
                await disk.write("a", b"data")
                process.node.crash(power=power)
            seen.append(tuple(await disk.list()))

        async def story() -> None:
            node = world.node("n", main)
            node.on_power_loss(platter.power_loss)
            node.start()
            await node.finished

        world.run(story())
        world.close()
        return seen[0]

    assert {after(power=False, seed=seed) for seed in range(20)} == {("a",)}
    assert {after(power=True, seed=seed) for seed in range(20)} == {("a",), ()}


def test_a_kill_in_the_middle_of_a_write_leaves_its_beginning(world: World) -> None:
    platter = Platter(world.random("platter"))
    seen: list[bytes] = []

    async def main(process: Process) -> None:
        disk = SimDisk(process, platter)
        if process.generation == 1:
            await disk.write("a", b"abcdef")
        seen.append(await disk.read("a"))

    async def story() -> None:
        node = world.node("n", main)
        node.kill_at_point(2)  # 1 is the begin of the write
        node.start()
        await node.finished

    world.run(story())
    assert seen == [b"abc"]


def test_the_port_does_what_it_says(world: World) -> None:
    platter = Platter(world.random("platter"))

    async def main(process: Process) -> None:
        disk = SimDisk(process, platter)
        await disk.write("logs/2.part", b"two")
        await disk.write("logs/1", b"one")
        await disk.rename("logs/2.part", "logs/2")
        await disk.fsync("logs/2")
        assert await disk.list("logs/") == ["logs/1", "logs/2"]
        assert await disk.read("logs/2") == b"two"
        await disk.remove("logs/1")
        await disk.remove("logs/1")
        assert await disk.list() == ["logs/2"]
        for call in (disk.read("x"), disk.fsync("x"), disk.rename("x", "y")):
            with pytest.raises(DiskError, match="x: there is no such file"):
                await call

    async def story() -> None:
        node = world.node("n", main)
        node.start()
        await node.finished

    world.run(story())
    assert platter.durable("logs/2") == b"two"


def test_a_disk_that_fails_says_so(world: World) -> None:
    async def main(process: Process) -> None:
        disk = SimDisk(process, Platter(world.random("platter")), Faults(disk_error=1.0))
        with pytest.raises(DiskError, match="a: the disk reports an error"):
            await disk.write("a", b"")

    async def story() -> None:
        node = world.node("n", main)
        node.start()
        await node.finished

    world.run(story())
    assert any("disk.error" in line for line in world.trace.tail())


def test_sectors_are_written_whole_or_not_at_all() -> None:
    outcomes = set()
    for seed in range(200):
        platter = Platter(Random(seed), sector_bytes=4)
        platter.put("a", b"aaaabb")
        platter.sync("a")
        platter.put_at("a", 6, b"BBCCCC")
        platter.power_loss()
        outcomes.add(platter.read("a"))
    whole, old = b"aaaabbBBCCCC", b"aaaabb"
    assert outcomes == {whole, old, whole[:8], b"aaaabb\0\0CCCC", b"aaaabbBB\0\0\0\0", b"aaaabb\0\0\0\0\0\0"}


def test_what_a_failed_sync_did_not_write_no_later_one_does() -> None:
    for platter in platters()[:50]:
        platter.put("a", b"old")
        platter.sync("a")
        platter.put_at("a", 3, b"new")
        platter.fail_sync("a")
        platter.sync("a")
        assert (platter.read("a"), platter.durable("a")) == (b"oldnew", None)
        platter.power_loss()
        assert platter.read("a") == b"old"
        platter.put_at("a", 3, b"new")
        platter.fail_sync("a")
        platter.put_at("a", 3, b"NEW")
        platter.sync("a")
        assert platter.durable("a") == b"oldNEW"


def test_the_states_that_a_loss_of_power_may_leave_are_counted_without_losing_it() -> None:
    platter = Platter(Random(1), sector_bytes=2)
    platter.put("a", b"aa")
    platter.sync("a")
    platter.put_at("a", 2, b"bbcc")
    states = list(platter.crash_states(100))
    assert len({one["a"] for one in states}) == len(states)
    assert {one["a"] for one in states} >= {b"aa", b"aabb", b"aabbcc", b"aa\0\0cc", b"aabb\0\0"}
    assert platter.read("a") == b"aabbcc"
    platter.sync("a")
    assert list(platter.crash_states(100)) == [{"a": b"aabbcc"}]


def test_a_disk_without_losses_keeps_all() -> None:
    platter = Platter(Random(1), losses=())
    platter.put("a", b"x")
    platter.power_loss()
    assert remains(platter) == {"a": b"x"}


def test_a_backup_takes_the_place_of_all() -> None:
    platter = Platter(Random(1))
    platter.put("a", b"x")
    backup = platter.save()
    platter.put("b", b"y")
    platter.restore(backup)
    platter.power_loss()
    assert remains(platter) == {"a": b"x"}


def test_a_call_that_is_cancelled_stays_so_when_what_was_handed_over_fails() -> None:
    """Of that failure nobody hears any more: no real disk puts it in the place of the cancellation."""
    ends = set[bool | str]()
    for seed in range(20):
        world = World(seed)

        async def main(process: Process) -> None:
            disk = SimDisk(process, Platter(Random(1)), Faults(write_error=1.0, slow=1.0))
            task = asyncio.create_task(disk.write("a", b"data"))
            await asyncio.sleep(0.0001)
            task.cancel()
            await asyncio.wait([task])
            ends.add(task.cancelled())

        async def story(world: World = world) -> None:
            node = world.node("n", main)
            node.start()
            await node.finished

        world.run(story())
        if any("disk.error" in line for line in world.trace.tail()):
            ends.add("failed unheard")
    assert ends == {True, "failed unheard"}
