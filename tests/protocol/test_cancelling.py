"""A cancellation that a library loses is heard behind its call."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress

import pytest

from geartrain.concurrency.cancelling import end_task, heed_cancellation
from tests.waiting import in_time


async def lose_a_cancellation(error: Exception | None = None) -> int:
    """As `asyncio.wait_for` of Python 3.11 does where what it waits for is there by then."""
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    if error is not None:
        raise error
    return 1


def assert_cancelled(work: Coroutine[None, None, None]) -> None:
    """A task that is cancelled in mid-work ends so."""

    async def story() -> None:
        task = asyncio.create_task(work)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(in_time("the end of the task", story()))


@pytest.mark.parametrize("error", [None, ConnectionError()])
def test_a_task_ends_whose_library_loses_its_cancellation(error: Exception | None) -> None:
    async def go_on() -> None:
        while True:
            with suppress(ConnectionError):
                await heed_cancellation(lose_a_cancellation(error))

    assert_cancelled(go_on())


def test_a_task_that_was_cancelled_before_may_call_a_library_to_clean_up() -> None:
    closed = list[int]()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            closed.append(await heed_cancellation(asyncio.sleep(0, 2)))

    assert_cancelled(work())
    assert closed == [2]


def test_a_call_that_is_not_cancelled_is_as_it_is() -> None:
    async def fail() -> None:
        raise ConnectionError("gone")

    async def story() -> None:
        assert await heed_cancellation(asyncio.sleep(0, 3)) == 3
        with pytest.raises(ConnectionError, match="gone"):
            await heed_cancellation(fail())

    asyncio.run(story())


def test_who_waits_for_the_end_of_a_task_hears_its_own_cancellation() -> None:
    async def end_late() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await may_end.wait()
        raise ConnectionError("gone")

    may_end = asyncio.Event()

    async def story() -> None:
        task = asyncio.create_task(end_late())
        await asyncio.sleep(0)
        closing = asyncio.create_task(end_task(task))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        may_end.set()
        await asyncio.wait([task])
        await end_task(task)  # it has ended, and its error is passed over
        assert isinstance(task.exception(), ConnectionError)

    asyncio.run(in_time("the end of the task", story()))
