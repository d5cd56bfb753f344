"""What the fuzzers share: memory from when it is warm, what became of inputs, and a loop without threads.

Under `tests.security.fuzz`. Guarantees: an exception that nobody awaited is a failure, too.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import psutil

T = TypeVar("T")
Args = TypeVarTuple("Args")

WARM_SHARE = 0.2
"""How much of a run fills caches, before memory is compared."""
WARM_INPUTS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the inputs of a reader: taken, or refused; and how much memory grew."""

    reader: str
    taken: int
    refused: int
    growth_bytes: int


class Memory:
    """This process's memory, from when it is warm; the most of a hundred looks counts."""

    def __init__(self, numbers: range) -> None:
        self._process, self._warm_bytes, self._most_bytes = psutil.Process(), 0, 0
        self._warm_at = numbers.start + min(int(len(numbers) * WARM_SHARE), WARM_INPUTS_MAX)
        self._every = max(1, len(numbers) // 100)

    def look(self, number: int) -> None:
        """Take the measure, where it is time to."""
        if number < self._warm_at or (number != self._warm_at and number % self._every):
            return
        now_bytes = int(self._process.memory_info().rss)
        self._warm_bytes = self._warm_bytes or now_bytes
        self._most_bytes = max(self._most_bytes, now_bytes)

    def growth_bytes(self) -> int:
        """How much it had grown since, at the most."""
        return max(self._most_bytes, int(self._process.memory_info().rss)) - self._warm_bytes


class Inline(asyncio.SelectorEventLoop):
    """A loop that runs what belongs into a thread at once: the same code, without the way there and back.

    A thread's hop costs more than what most inputs do. What a task or callback raised and nobody took is kept
    in `unheard`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unheard: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.unheard.append(context))

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Args], T], *args: *Args
    ) -> asyncio.Future[T]:
        """Run it here and now."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def run_inline(work: Coroutine[Any, Any, T]) -> T:
    """Run it on an `Inline` loop; fails for whatever was raised unheard."""
    loop = Inline()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        found = runner.run(work)
    assert not loop.unheard, f"raised and heard by nobody: {loop.unheard[0]}"
    return found


def fast_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder in memory where the machine has one: files are spoiled before they are read, not by a disk."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)
