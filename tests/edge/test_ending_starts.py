"""Starts of an app that do not succeed: the parent is ended meanwhile, or they fail again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from geartrain.adapters.system import SystemClock, SystemRandomness
from geartrain.control.states import App, AppState, State
from geartrain.errors.reason import Reason
from geartrain_edge.errors import StartError
from geartrain_edge.parent.apps import Apps, AppsPolicy, Health
from geartrain_edge.parent.measuring import Spent
from tests.waiting import WAIT_S, in_time


class Agent:
    """A process that ends when it is asked to; asked: how, in order."""

    def __init__(self, asked: list[str]) -> None:
        self._asked, self._code = asked, None if "deaf" in asked else 0
        self._over = asyncio.Event()
        self._is_over = False

    def ended(self) -> int | None:
        return (-9 if self._code is None else 0) if self._is_over else None

    async def wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return

    def state(self) -> tuple[AppState, str]:
        return AppState.RUNNING, ""

    def reasons(self) -> tuple[Reason, ...]:
        return ()

    def lacks(self) -> tuple[str, ...] | None:
        return None

    def health(self) -> Health:
        return Health()

    def spent(self) -> Spent | None:
        return None

    def sentence(self) -> str:
        return ""

    def speaks(self) -> bool:
        return False

    def terminate(self) -> None:
        self._asked.append("terminate")
        if self._code is not None:
            self._end()

    def kill(self) -> None:
        self._asked.append("kill")
        self._end()

    def _end(self) -> None:
        self._is_over = True
        self._over.set()


class SlowStarter:
    """Begins to start an app, and goes on when the test lets it."""

    def __init__(self, start: Callable[[], Agent]) -> None:
        self._start = start
        self.has_begun, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.was_given_up = False

    async def start(self, app: App) -> Agent:
        self.has_begun.set()
        try:
            await self.may_go_on.wait()
        except asyncio.CancelledError:
            self.was_given_up = True
            raise
        return self._start()

    async def rehearse(self, app: App) -> Agent:
        return self._start()

    def committed(self, instance: str) -> str:
        return ""

    async def drain(self, instance: str) -> None:
        """Nothing drains here."""

    async def purge(self, instance: str) -> None:
        """Nothing is kept here."""


async def ended_in_a_start(starter: SlowStarter, stop_s: float, *, goes_on: bool, cancels: int = 1) -> None:
    """Have the parent's apps end while one is being started, and the start go on only then."""
    policy = AppsPolicy(look_s=0.01, stop_s=stop_s)
    apps = Apps(starter, SystemClock(), SystemRandomness(), policy)
    running = asyncio.create_task(apps.run())
    apps.apply(State(1, (App("stocks.1", "m:f"),)))
    await starter.has_begun.wait()
    for _ in range(cancels):
        running.cancel()
        await asyncio.sleep(0)
    if goes_on:
        assert not running.done()
        starter.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running


def story(work: Coroutine[None, None, None]) -> None:
    asyncio.run(in_time("the end of the parent", work))


@pytest.mark.parametrize(("asked", "how"), [([], ["terminate"]), (["deaf"], ["deaf", "terminate", "kill"])])
def test_an_app_that_is_being_started_is_asked_to_end_and_waited_for(
    asked: list[str], how: list[str]
) -> None:
    async def work() -> None:
        starter = SlowStarter(lambda: Agent(asked))
        await ended_in_a_start(starter, 0.1 if asked else WAIT_S, goes_on=True)
        assert not starter.was_given_up

    story(work())
    assert asked == how


def test_a_start_that_fails_or_does_not_come_back_holds_up_no_end() -> None:
    def fail() -> Agent:
        raise StartError("no process can be forked")

    async def work() -> None:
        await ended_in_a_start(SlowStarter(fail), WAIT_S, goes_on=True)
        stuck = SlowStarter(fail)
        await ended_in_a_start(stuck, 0.05, goes_on=False)
        assert stuck.was_given_up

    story(work())


def test_an_app_that_fails_again_and_again_is_logged_once_for_each_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    has_failed_often = asyncio.Event()
    whys = ["no process can be forked"] * 3 + ["the disk is full"] * 2

    def fail() -> Agent:
        why = whys.pop(0)
        if not whys:
            whys.append(why)
            has_failed_often.set()
        raise StartError(why)

    async def work() -> None:
        starter = SlowStarter(fail)
        starter.may_go_on.set()
        policy = AppsPolicy(restart_s=0.001, restart_s_max=0.002)
        apps = Apps(starter, SystemClock(), SystemRandomness(), policy)
        running = asyncio.create_task(apps.run())
        apps.apply(State(1, (App("stocks.1", "m:f"),)))
        await has_failed_often.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    story(work())
    assert [record.getMessage() for record in caplog.records] == [
        "app stocks.1: no process can be forked",
        "app stocks.1: the disk is full",
    ]
