"""An asyncio event loop on virtual time, whose order of callbacks is drawn from a seed.

Everything that the simulator runs, runs on it. Guarantees: there is no real waiting and no real I/O; equal
seeds run equal callbacks in equal order, in any process. A wait that nothing can end is an error at once,
and so is a run that goes on without end. Tasks and futures hash by number, since asyncio itself iterates
sets of them.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from random import Random
from typing import Any, NamedTuple, NoReturn, TypeVar, TypeVarTuple, cast

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

UNWIND_STEPS_MAX = 100
"""How often a task that is unwound may wait for something else before that is taken for a bug."""


class DeadlockError(Exception):
    """Everything waits, and nothing is left that could end it."""


class LivelockError(Exception):
    """The run goes on without end: too many callbacks in all, or at one moment of virtual time."""


class _Closed(BaseException):
    """Raised in what still waits when the loop is closed. A task group would keep a cancellation back."""


class NumberedFuture(asyncio.Future[Any]):
    """A future whose hash is a number in order of creation, not its address."""

    def __init__(self, *, loop: VirtualLoop) -> None:
        self._number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class NumberedTask(asyncio.Task[Any]):
    """A task whose hash is a number in order of creation, not its address; `context` is what it runs in."""

    def __init__(self, coro: Any, *, loop: VirtualLoop, name: str | None, context: Context) -> None:
        self._number = loop.next_number()
        self.context = context
        super().__init__(coro, loop=loop, name=name or f"task-{self._number}", context=context)

    def __hash__(self) -> int:
        return self._number


class _Callback(NamedTuple):
    """What is to be called. The handle, which its caller holds, is only asked whether it was cancelled."""

    handle: asyncio.Handle
    context: Context
    callback: Callable[..., object]
    args: tuple[Any, ...]


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. Its time begins at 0 and leaps to the next timer whenever nothing is ready."""

    _stopping: bool

    def __init__(
        self,
        random: Random | None = None,
        *,
        admits: Callable[[Context], bool] = lambda context: True,
        steps_max: int = 5_000_000,
        standing_steps_max: int = 200_000,
    ) -> None:
        """`random` shuffles what is ready at a time (None: first in, first out); `admits` says of a
        callback's context whether it may still run; the two caps raise `LivelockError`.
        """
        self._numbers = 0
        super().__init__()
        self._random = random
        self._admits = admits
        self._steps_max, self._standing_steps_max = steps_max, standing_steps_max
        self._now = 0.0
        self._soon: list[_Callback] = []
        self._later: list[tuple[float, int, _Callback]] = []
        self._tasks: set[NumberedTask] = set()  # held, so that one that waits forever is not swept away
        self.steps = 0
        self.refused = 0
        self._standing_steps = 0

    def next_number(self) -> int:
        """Numbers for timers, tasks and futures, in order of creation."""
        self._numbers += 1
        return self._numbers

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    # What schedules

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run `callback` in the next round, in a place among the others that the seed decides."""
        context = contextvars.copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        self._soon.append(_Callback(handle, context, callback, args))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """The same as `call_soon`: there is one thread."""
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run `callback` at virtual time `when`."""
        context = contextvars.copy_context() if context is None else context
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._later, (when, self.next_number(), _Callback(handle, context, callback, args)))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run `callback` after `delay` seconds of virtual time."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return NumberedFuture(loop=self)

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None, **_options: Any
    ) -> asyncio.Task[Any]:
        """A task of this loop; for a context that is no longer admitted it is cancelled before it begins."""
        context = contextvars.copy_context() if context is None else context
        if not self._admits(context):
            coro.close()
            raise asyncio.CancelledError
        task = NumberedTask(coro, loop=self, name=None if name is None else str(name), context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard, context=context)
        return task

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> NoReturn:
        """Refuse: code above a port starts no thread (I7)."""
        raise RuntimeError(f"a thread was asked for to run {func!r}: go through a port instead")

    # What runs

    def select(self, timeout: float | None) -> None:
        """Wait as a selector would: leap to the next timer. With nothing to wait for: `DeadlockError`."""
        if timeout is None:
            names = ", ".join(task.get_name() for task in self._pending()[:20])
            raise DeadlockError(f"at {self._now:.6f} s nothing can happen any more; tasks: {names}")
        if timeout > 0:
            self._now = max(self._now, self._later[0][0])
            self._standing_steps = 0

    def _run_once(self) -> None:
        later = self._later
        while later and later[0][2].handle.cancelled():
            heapq.heappop(later)
        if self._soon or self._stopping:
            self.select(0)
        else:
            self.select(max(later[0][0] - self._now, 0) if later else None)
        while later and later[0][0] <= self._now:
            self._soon.append(heapq.heappop(later)[2])
        round_, self._soon = self._soon, []
        if self._random is not None and len(round_) > 1:
            self._random.shuffle(round_)
        for one in round_:
            if one.handle.cancelled():
                continue
            if self._admits(one.context):
                self._count()
                self._call(one)
            else:
                self.refused += 1

    def _call(self, one: _Callback) -> None:
        try:
            one.context.run(one.callback, *one.args)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - as asyncio does: the handler hears of all others
            self.call_exception_handler({"message": f"in {one.callback!r}", "exception": error})

    def _count(self) -> None:
        self.steps += 1
        self._standing_steps += 1
        if self.steps > self._steps_max:
            raise LivelockError(f"{self._steps_max} callbacks have run, at {self._now:.6f} s of virtual time")
        if self._standing_steps > self._standing_steps_max:
            raise LivelockError(
                f"{self._standing_steps_max} callbacks have run while the time stood at {self._now:.6f} s"
            )

    # What ends

    def unwind(self, of: Callable[[Context], bool], error: Callable[[], BaseException]) -> None:
        """Raise `error()` at once in each task whose context is one `of` these, except in the one that runs.

        Cancelling would not do: it lets a task act until its next await. What a task does while it unwinds is
        refused by its ports, and the loop never resumes it.
        """
        running = asyncio.current_task(self)
        for task in self._pending():
            if task is not running and of(task.context):
                self._tasks.discard(task)
                _unwind(task, error)

    def _pending(self) -> list[NumberedTask]:
        """The tasks that are not done, in order of creation."""
        return sorted((task for task in self._tasks if not task.done()), key=hash)

    def close(self) -> None:
        """Unwind what is left and close."""
        if not self.is_closed():
            self.unwind(lambda context: True, _Closed)
            self._soon.clear()
            self._later.clear()
        super().close()

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        """An abandoned generator is closed by its process while that lives; a dead one closes nothing."""
        if not self.is_closed() and self._admits(contextvars.copy_context()):
            self.create_task(agen.aclose())


def _unwind(task: NumberedTask, error: Callable[[], BaseException]) -> None:
    cast(Any, task)._log_destroy_pending = False  # noqa: SLF001 - it ends here, although its loop never says so to it
    coroutine = cast(Coroutine[Any, Any, Any] | Generator[Any, Any, Any], task.get_coro())
    for _ in range(UNWIND_STEPS_MAX):
        try:
            task.context.copy().run(coroutine.throw, error())
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: BLE001 - the last words of the dead are heard by no one
            return
    raise LivelockError(
        f"{task.get_name()} still waits for something after it was killed {UNWIND_STEPS_MAX} times"
    )
