"""How a fault is planted: parts of production classes are replaced by broken ones, for the length of a run.

Guarantees: what was replaced is put back afterwards, whatever happened. A patch of something that is no
longer there is an error at once, so that a change in the code cannot disable a mutant unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from geartrain_simulation.campaign.runs import quiet
from geartrain_simulation.fleet.fleet import Fleet
from geartrain_simulation.machine.loop import DeadlockError, LivelockError
from geartrain_simulation.machine.violation import ViolationError, as_violation
from geartrain_simulation.machine.world import OutOfTimeError

SEEDS_MAX = 300
"""Every mutant is to die within so many seeds."""
FOUND = (ViolationError, OutOfTimeError, DeadlockError, LivelockError, AssertionError)
"""What a fault may show itself by."""

Run = Callable[[int], object]
"""One simulated run, given its seed."""


class Patches:
    """The replacements of one mutant, until they are taken back."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def replace(self, owner: object, name: str, make: Callable[[Any], Any]) -> None:
        """Put `make(right)` in the place of `owner.name`, `right` being what stands there now."""
        right = vars(owner)[name]
        self._stack.callback(setattr, owner, name, right)
        setattr(owner, name, make(right))


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted fault. plant: makes the replacements; run: the kind of run that is to find it."""

    name: str
    plant: Callable[[Patches], None]
    run: Run = lambda seed: Fleet(seed).run()


@dataclass(frozen=True, slots=True)
class Kill:
    """A seed that shows a fault, and the sentence that it shows it by."""

    seed: int
    how: str


class BrokenRunError(Exception):
    """A run under a planted fault has ended in an error that no checker reported: the fault may be planted in
    a place that has changed since.
    """

    def __init__(self, name: str, seed: int, error: Exception) -> None:
        super().__init__(f"{name}, seed {seed}: {type(error).__name__}: {error}")


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Run the block with the fault in its place."""
    with ExitStack() as stack:
        mutant.plant(Patches(stack))
        yield


def first_kill(mutant: Mutant, seeds: Iterable[int] = range(SEEDS_MAX)) -> Kill | None:
    """The first of the seeds that shows the fault, None where none does; raises `BrokenRunError`."""
    with planted(mutant), quiet():
        for seed in seeds:
            try:
                mutant.run(seed)
            except Exception as raised:
                error = as_violation(raised)
                if not isinstance(error, FOUND):
                    raise BrokenRunError(mutant.name, seed, error) from raised
                return Kill(seed, f"{type(error).__name__}: {error}")
    return None
