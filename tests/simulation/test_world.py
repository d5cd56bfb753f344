"""Crashes: the dead do nothing more, whatever their code tries, and the node comes back as a new process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from geartrain.errors import NetError
from geartrain_simulation.machine.clock import Offset, SimClock
from geartrain_simulation.machine.faults import Faults
from geartrain_simulation.machine.randomness import SimRandomness
from geartrain_simulation.machine.world import Killed, OutOfTimeError, Process, StoppedError, World


def test_a_finished_program_ends_its_node(world: World) -> None:
    async def main(process: Process) -> None:
        await asyncio.sleep(2)
        process.point("work")

    async def story() -> None:
        node = world.node("a", main)
        node.start()
        await node.finished

    world.run(story())
    assert [line.split(" ", 1)[1] for line in world.trace.tail()] == ["a.1 start", "a.1 work", "a.1 finished"]


def test_a_killed_process_does_nothing_more_and_starts_again(world: World) -> None:
    ticks: list[int] = []

    async def main(process: Process) -> None:
        while True:
            await asyncio.sleep(1)
            process.point("tick")
            ticks.append(process.generation)

    async def story() -> None:
        node = world.node("a", main, restart_s=(0.5, 0.5))
        node.start()
        await asyncio.sleep(3.5)
        node.crash()
        await asyncio.sleep(3)

    world.run(story())
    assert ticks == [1, 1, 1, 2, 2]


def test_a_kill_raises_at_once_in_every_task(world: World) -> None:
    last: list[tuple[str, float]] = []

    async def wait(name: str) -> None:
        try:
            await asyncio.sleep(100)
        except BaseException as error:
            last.append((f"{name} {type(error).__name__}", world.loop.time()))
            raise

    async def main(process: Process) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait("one"))
            group.create_task(wait("two"))
            await wait("main")

    async def story() -> list[tuple[str, float]]:
        node = world.node("a", main)
        node.start()
        await asyncio.sleep(3)
        node.crash()
        return list(last)  # before anything else could run

    at_once = world.run(story())
    assert sorted(at_once) == [("main Killed", 3.0), ("one Killed", 3.0), ("two Killed", 3.0)]


def test_the_task_that_runs_when_the_kill_strikes_is_stopped_there(world: World) -> None:
    """The trap: a running task that is merely cancelled would act on until its next await."""
    done: list[str] = []

    async def main(process: Process) -> None:
        process.point("first")
        if process.generation == 1:
            process.node.crash()
            done.append("acted after death")
        done.append(f"life {process.generation}")

    async def story() -> None:
        node = world.node("a", main)
        node.start()
        await node.finished

    world.run(story())
    assert done == ["life 2"]


async def stubborn(process: Process, tried: list[str]) -> None:
    """Swallows its death and tries everything."""
    try:
        process.point("before")
        process.node.crash()
    except BaseException:
        tried.append("woke")
        with pytest.raises(Killed):
            process.point("after death")
        with pytest.raises(Killed):
            await process.pause(process.random("x"), Faults())
        asyncio.get_running_loop().call_soon(tried.append, "callback")
        asyncio.get_running_loop().call_later(1, tried.append, "timer")
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(asyncio.sleep(0))
        await asyncio.sleep(1)
        tried.append("acted after death")


def test_dead_code_that_swallows_its_death_reaches_nothing(world: World) -> None:
    tried: list[str] = []

    async def main(process: Process) -> None:
        if process.generation == 1:
            await stubborn(process, tried)

    async def story() -> None:
        node = world.node("a", main, restart_s=(5, 5))
        node.start()
        await node.finished

    world.run(story())
    assert tried == ["woke"]


def test_unwinding_passes_through_finally_blocks_that_wait(world: World) -> None:
    order: list[str] = []

    @asynccontextmanager
    async def opened(process: Process) -> AsyncIterator[None]:
        try:
            yield
        finally:
            order.append("closing")
            await asyncio.sleep(1)
            order.append("closed")

    async def main(process: Process) -> None:
        if process.generation == 1:
            async with opened(process):
                await asyncio.sleep(100)

    async def story() -> None:
        node = world.node("a", main)
        node.start()
        await asyncio.sleep(1)
        node.crash()
        await node.finished

    world.run(story())
    assert order == ["closing"]


@pytest.mark.parametrize("number", range(1, 7))
def test_every_point_can_be_the_last(number: int) -> None:
    world = World(1)
    reached: list[str] = []

    async def main(process: Process) -> None:
        for step in range(6):
            process.point("step", str(step))
            if process.generation == 1:
                reached.append(str(step))
            await asyncio.sleep(0.1)

    async def story() -> None:
        node = world.node("a", main)
        node.kill_at_point(number)
        node.start()
        await node.finished
        assert node.crashes == 1

    world.run(story())
    world.close()
    assert reached == [str(step) for step in range(number - 1)]


def test_power_loss_tells_the_media(world: World) -> None:
    lost: list[float] = []

    async def main(process: Process) -> None:
        await asyncio.sleep(100 if process.generation == 1 else 0)

    async def story() -> None:
        node = world.node("a", main)
        node.on_power_loss(lambda: lost.append(world.loop.time()))
        node.start()
        await asyncio.sleep(1)
        node.crash()
        await asyncio.sleep(0.01)
        node.crash(power=True)  # of a machine whose program is down already
        await node.finished

    world.run(story())
    assert lost == [1.01]


def test_a_known_error_restarts_and_an_unknown_one_fails_the_run(world: World) -> None:
    async def main(process: Process) -> None:
        if process.generation < 3:
            raise NetError("refused")
        raise ZeroDivisionError("a bug")

    async def story() -> None:
        node = world.node("a", main)
        node.start()
        await node.finished

    with pytest.raises(ZeroDivisionError, match="a bug"):
        world.run(story())
    assert world.nodes["a"].generation == 3


def test_an_error_in_a_forgotten_task_fails_the_run(world: World) -> None:
    async def broken() -> None:
        raise ZeroDivisionError("nobody awaits this")

    async def main(process: Process) -> None:
        asyncio.create_task(broken()).add_done_callback(lambda done: None)
        await asyncio.sleep(1)

    async def story() -> None:
        world.node("a", main).start()
        await asyncio.sleep(5)

    with pytest.raises(ZeroDivisionError, match="nobody awaits this"):
        world.run(story())


def test_a_run_has_an_end(world: World) -> None:
    async def main(process: Process) -> None:
        await asyncio.sleep(1_000)

    async def story() -> None:
        node = world.node("slow", main)
        node.start()
        await node.finished

    with pytest.raises(OutOfTimeError, match="after 60 s of virtual time not finished: slow"):
        world.run(story(), limit_s=60)


def test_each_node_has_its_own_time_and_numbers(world: World) -> None:
    seen: dict[str, tuple[int, float, bytes]] = {}
    offset = Offset(-5_000_000)

    async def main(process: Process) -> None:
        clock = SimClock(process, offset if process.node.name == "late" else Offset())
        randomness = SimRandomness(process)
        begin = clock.monotonic_s()
        offset.jump(1)
        await clock.sleep(2)
        passed = round(clock.monotonic_s() - begin, 6)
        seen[process.node.name] = (clock.now_us(), passed, randomness.token(8))

    async def story() -> None:
        for name in ("right", "late"):
            world.node(name, main).start()
        for node in world.nodes.values():
            await node.finished

    world.run(story())
    assert seen["right"][0] - seen["late"][0] == 5_000_000 - 2
    assert seen["right"][1] == seen["late"][1] == 2
    assert seen["right"][2] != seen["late"][2]


def test_a_program_that_is_asked_to_end_starts_again(world: World) -> None:
    async def main(process: Process) -> None:
        asked = asyncio.Event()
        process.on_stop = asked.set
        if process.generation == 1:
            await asked.wait()
            raise StoppedError("before its work was done")

    async def story() -> None:
        node = world.node("n", main)
        node.start()
        await asyncio.sleep(1)
        node.stop()
        await node.finished
        assert node.crashes == 0

    world.run(story())
    assert world.nodes["n"].generation == 2


def test_a_program_that_does_not_end_when_asked_fails_the_run(world: World) -> None:
    async def main(process: Process) -> None:
        process.on_stop = lambda: None
        await asyncio.sleep(1_000)

    async def story() -> None:
        node = world.node("n", main)
        node.start()
        await asyncio.sleep(1)
        node.stop()
        await node.finished

    with pytest.raises(OutOfTimeError, match=r"n\.1 was asked to stop 60 s ago and goes on"):
        world.run(story())
