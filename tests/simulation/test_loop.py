"""The virtual loop: time that costs nothing, an order from the seed, and waits without end that are found."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

import pytest

from geartrain_simulation.machine.loop import DeadlockError, LivelockError, VirtualLoop

T = TypeVar("T")


def run(story: Coroutine[Any, Any, T], random: Random | None = None, **caps: Any) -> T:
    loop = VirtualLoop(random, **caps)
    try:
        return loop.run_until_complete(story)
    finally:
        loop.close()


def test_an_hour_passes_at_once() -> None:
    async def story() -> float:
        await asyncio.sleep(3_600)
        return asyncio.get_running_loop().time()

    begin = time.monotonic()
    assert run(story()) == 3_600
    assert time.monotonic() - begin < 1


def test_timers_fire_at_their_times_and_in_order() -> None:
    fired: list[tuple[float, str]] = []

    async def one(name: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        fired.append((asyncio.get_running_loop().time(), name))

    async def story() -> None:
        await asyncio.gather(one("c", 0.3), one("a", 0.1), one("b", 0.2))

    run(story(), Random(7))
    assert fired == [(0.1, "a"), (0.2, "b"), (0.3, "c")]


def test_a_wait_that_nothing_ends_is_a_deadlock() -> None:
    async def story() -> None:
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError, match=r"at 0\.000000 s nothing can happen any more; tasks: task-1"):
        run(story())


def test_a_timeout_ends_a_wait() -> None:
    async def story() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run(story()) == 5


def test_spinning_while_the_time_stands_is_a_livelock() -> None:
    async def story() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    with pytest.raises(LivelockError, match="1000 callbacks have run while the time stood"):
        run(story(), standing_steps_max=1_000)


def test_running_on_without_end_is_a_livelock() -> None:
    async def story() -> None:
        for second in itertools.count():
            await asyncio.sleep(second)

    with pytest.raises(LivelockError, match="1000 callbacks have run, at"):
        run(story(), steps_max=1_000)


def order_of(seed: int | None) -> list[int]:
    order: list[int] = []

    async def one(number: int) -> None:
        await asyncio.sleep(0)
        order.append(number)

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(one(number))

    run(story(), None if seed is None else Random(seed))
    return order


def test_the_seed_orders_what_is_ready() -> None:
    assert order_of(None) == list(range(8))
    assert sorted(order_of(3)) == list(range(8))
    assert len({tuple(order_of(seed)) for seed in range(10)}) == 10
    assert order_of(3) == order_of(3)


def test_a_task_group_cancels_in_an_order_that_the_seed_alone_decides() -> None:
    def cancelled(seed: int) -> list[int]:
        order: list[int] = []

        async def one(number: int) -> None:
            try:
                await asyncio.sleep(10)
            finally:
                order.append(number)

        async def story() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(one(number))
                await asyncio.sleep(1)
                raise ValueError("enough")

        with pytest.raises(ExceptionGroup):
            run(story(), Random(seed))
        return order

    assert cancelled(1) == cancelled(1) != cancelled(2)


def test_call_soon_threadsafe_runs() -> None:
    async def story() -> str:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon_threadsafe(future.set_result, "heard")
        return str(await future)

    assert run(story()) == "heard"


def test_a_thread_is_refused() -> None:
    async def story() -> None:
        await asyncio.to_thread(print, "never")

    with pytest.raises(RuntimeError, match="go through a port"):
        run(story())


def test_an_abandoned_generator_is_closed() -> None:
    closed: list[bool] = []

    async def numbers() -> Any:
        try:
            yield 1
        finally:
            closed.append(True)

    async def story() -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(1)

    run(story())
    assert closed == [True]
