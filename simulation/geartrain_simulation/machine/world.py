"""The world: nodes on one virtual clock, each a process that can be killed at any step and started again.

It stands between the loop and the simulated ports. Guarantees: a kill raises `Killed` at once in every
task of the process. From then on the loop runs no callback of that process, and its ports, which know to
whose life they belong, refuse it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from random import Random
from typing import Any, TypeVar

from geartrain.errors import GeartrainError
from geartrain_simulation.machine.clock import Offset
from geartrain_simulation.machine.faults import Faults
from geartrain_simulation.machine.loop import NumberedTask, VirtualLoop
from geartrain_simulation.machine.trace import Trace

T = TypeVar("T")
STOP_S_MAX = 60.0
"""Virtual seconds within which a process that is asked to end has ended."""

Main = Callable[["Process"], Coroutine[Any, Any, object]]

_process: ContextVar[Process | None] = ContextVar("process", default=None)


class Killed(BaseException):
    """Raised in a process that is dead. No `except Exception` stops it."""


class StoppedError(GeartrainError):
    """A program ended because it was asked to, before its work was done; it is started again."""


class OutOfTimeError(AssertionError):
    """The run did not come to its end within its limit of virtual time."""


class Process:
    """One life of a node. Its ports ask it before and after each effect."""

    def __init__(self, node: Node, generation: int) -> None:
        self.node, self.generation = node, generation
        self.world = node.world
        self.name = f"{node.name}.{generation}"
        """The node's name and the generation, as the trace shows it."""
        self.alive = True
        self.killed = False
        self.on_end: list[Callable[[], None]] = []
        self.on_stop: Callable[[], None] | None = None

    def random(self, purpose: str) -> Random:
        """A generator of this life alone."""
        return self.world.random(f"{self.name}/{purpose}")

    def point(self, what: str, detail: str = "") -> None:
        """A point of the trace, before or after an effect: the dead are refused here, the doomed die here."""
        if not self.alive:
            raise Killed(f"{self.name} is dead: {what} {detail}")
        self.world.trace.add(self.world.loop.time(), self.name, what, detail)
        self.node.reached_point(what)

    async def pause(self, random: Random, faults: Faults) -> None:
        """Let the time pass that one effect takes."""
        await asyncio.sleep(faults.pause_s(random))
        if not self.alive:
            raise Killed(self.name)


class Node:
    """A machine that runs one program, and starts it again after a crash."""

    def __init__(self, world: World, name: str, main: Main, restart_s: tuple[float, float]) -> None:
        self.world, self.name = world, name
        self._main, self._restart_s = main, restart_s
        self._random = world.random(f"{name}/node")
        self._on_power_loss: list[Callable[[], None]] = []
        self.faults = Faults()
        """What its disk and stores meet at this time."""
        self.offset = Offset()
        """How far its wall clock is off."""
        self.boots, self.booted_s = 0, 0.0
        """How often it lost power, and when it last did, virtual seconds."""
        self.process: Process | None = None
        self.generation = 0
        self.points = 0
        self.crashes = 0
        self._doomed: dict[tuple[str, int], bool] = {}
        self._reached: dict[str, int] = {}
        self.finished: asyncio.Future[None] = world.loop.create_future()
        self.comes_to_ends = True
        """Whether what its program reads may come to its end."""
        self.start_again = True
        """Whether somebody starts it after a crash."""

    def on_power_loss(self, hook: Callable[[], None]) -> None:
        """Have `hook` called when the node loses power: what was only in memory is gone then."""
        self._on_power_loss.append(hook)

    @property
    def keeps_files(self) -> bool:
        """Whether it has something to lose with its power."""
        return bool(self._on_power_loss)

    def kill_at_point(self, number: int, what: str = "", *, power: bool = False) -> None:
        """Crash at the `number`-th point of the trace (from 1), or of those called `what`, over all lives."""
        self._doomed[what, number] = power

    def kill_at_next(self, number: int, what: str, *, power: bool = False) -> None:
        """Crash at the `number`-th point called `what` from now on."""
        self.kill_at_point(self._reached.get(what, 0) + number, what, power=power)

    def spare(self) -> None:
        """Take back all crashes that were planned."""
        self._doomed.clear()

    def reached_point(self, what: str) -> None:
        """Count a point, and die there if that was planned."""
        self.points += 1
        self._reached[what] = self._reached.get(what, 0) + 1
        if self._doomed:
            for place in (("", self.points), (what, self._reached[what])):
                if place in self._doomed:
                    self.crash(power=self._doomed.pop(place))

    def start(self) -> None:
        """Begin a new life."""
        if self.process is not None or self.finished.done():
            return
        self.generation += 1
        process = self.process = Process(self, self.generation)
        self.world.note(process.name, "start")
        context = self.world.outside()
        context.run(_process.set, process)
        task = self.world.loop.create_task(self.live(process), name=process.name, context=context)
        task.add_done_callback(lambda done: self._ended(process, done), context=self.world.outside())

    async def live(self, process: Process) -> None:
        """Run the program for one life; what it raises has this function in its traceback."""
        await self._main(process)

    def crash(self, *, power: bool = False) -> None:
        """Kill the process now (kill -9), with `power` lose what was not yet durable; it starts again later.

        Called by code of the process itself, it does not return: it raises `Killed`.
        """
        process = self.process
        self.world.note(self.name, "power loss" if power else "kill")
        if process is not None:
            self.crashes += 1
            process.killed = True
            self._end(process)
            self._start_later()
        if power:
            self.boots, self.booted_s = self.boots + 1, self.world.loop.time()
            for hook in self._on_power_loss:
                hook()
        if process is not None and _process.get() is process:
            self.world.loop.call_soon(self._unwind, process, context=self.world.outside())
            raise Killed(process.name)

    def stop(self) -> None:
        """Ask the process to end in good order (SIGTERM); the run fails when it takes `STOP_S_MAX`."""
        process = self.process
        if process is not None and process.on_stop is not None:
            self.world.note(process.name, "stop")
            process.on_stop()
            self.world.later(STOP_S_MAX, self._stopped, process)

    def _stopped(self, process: Process) -> None:
        if process.alive:
            self.world.fail(
                OutOfTimeError(f"{process.name} was asked to stop {STOP_S_MAX:g} s ago and goes on")
            )

    def _end(self, process: Process) -> None:
        process.alive = False
        self.process = None
        for hook in process.on_end:
            hook()
        self._unwind(process)

    def _unwind(self, process: Process) -> None:
        self.world.loop.unwind(lambda context: context.get(_process) is process, Killed)

    def _start_later(self) -> None:
        if self.start_again:
            self.world.later(self._random.uniform(*self._restart_s), self.start)

    def _ended(self, process: Process, task: asyncio.Task[Any]) -> None:
        """The program returned or raised by itself: done, or started again as its supervisor would."""
        error = None if task.cancelled() else task.exception()
        if not process.alive:
            return
        self._end(process)
        if task.cancelled():
            self.world.fail(AssertionError(f"{process.name} cancelled itself"))
        elif error is None:
            self.world.note(process.name, "finished")
            self.finished.set_result(None)
        elif isinstance(error, GeartrainError):
            self.world.note(process.name, "exit", f"{type(error).__name__}: {error}")
            self._start_later()
        else:
            self.world.fail(error)


def running_process() -> Process | None:
    """The process whose code runs, None for the world's own."""
    return _process.get()


def current_node() -> Node:
    """The node whose program calls."""
    process = _process.get()
    if process is None:
        raise RuntimeError("no node's program runs")
    return process.node


class World:
    """Nodes, one clock, one seed, one trace."""

    def __init__(self, seed: int, *, shuffle: bool = True) -> None:
        """`shuffle`: let the seed order what is ready at one time, too."""
        self.seed = seed
        self.trace = Trace()
        self.nodes: dict[str, Node] = {}
        self.loop = VirtualLoop(self.random("loop") if shuffle else None, admits=_admits)
        self.loop.set_exception_handler(self._unhandled)
        self._verdict: asyncio.Future[Any] = self.loop.create_future()
        self.failure: BaseException | None = None

    def random(self, purpose: str) -> Random:
        """The generator for one purpose: its numbers depend on the seed and its name alone."""
        return Random(f"{self.seed}/{purpose}")

    def outside(self) -> Context:
        """A context that belongs to no process."""
        context = contextvars.copy_context()
        context.run(_process.set, None)
        return context

    def node(self, name: str, main: Main, *, restart_s: tuple[float, float] = (0.05, 2.0)) -> Node:
        """Add a node that runs `main(process)`; it starts again a time within `restart_s` after a crash."""
        node = self.nodes[name] = Node(self, name, main, restart_s)
        return node

    def note(self, who: str, what: str, detail: str = "") -> None:
        """Add a line to the trace."""
        self.trace.add(self.loop.time(), who, what, detail)

    def later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> None:
        """Have the world itself call `callback`, whoever dies meanwhile."""
        self.loop.call_later(delay_s, callback, *args, context=self.outside())

    def fail(self, error: BaseException) -> None:
        """End the run with `error`, unless another came first."""
        if self.failure is None:
            self.failure = error
            self.note("world", "failure", f"{type(error).__name__}: {error}")
            if not self._verdict.done():
                self._verdict.set_exception(error)

    def run(self, story: Coroutine[Any, Any, T], limit_s: float = 3_600.0) -> T:
        """Run `story` outside of all nodes to its end and return what it returns.

        Raises the first failure of the run, or `OutOfTimeError` after `limit_s` of virtual time.
        """
        task = self.loop.create_task(story, name="story", context=self.outside())
        task.add_done_callback(self._told, context=self.outside())
        self.later(limit_s, self._late, limit_s)
        result: T = self.loop.run_until_complete(self._verdict)
        return result

    def close(self) -> None:
        """Kill every process and close the loop."""
        for node in self.nodes.values():
            if node.process is not None:
                node.process.alive = False
        self.loop.close()

    def _told(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self.fail(AssertionError("the story was cancelled"))
        elif (error := task.exception()) is not None:
            self.fail(error)
        elif not self._verdict.done():
            self._verdict.set_result(task.result())

    def _late(self, limit_s: float) -> None:
        waiting = ", ".join(node.name for node in self.nodes.values() if not node.finished.done())
        self.fail(OutOfTimeError(f"after {limit_s:g} s of virtual time not finished: {waiting or 'none'}"))

    def _unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        task = context.get("task") or context.get("future")
        owner = task.context.get(_process) if isinstance(task, NumberedTask) else None
        if isinstance(error, Killed) or (owner is not None and owner.killed):
            return  # the last words of the dead
        self.fail(error if error is not None else AssertionError(context["message"]))


def _admits(context: Context) -> bool:
    process = context.get(_process)
    return process is None or process.alive
