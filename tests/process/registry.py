"""The names of the scenarios, and what one of them comes to.

Between the scenarios, which enter themselves here, and what runs them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.process.oracle import Account
from tests.process.world import World

HELD = "held"

Play = Callable[[World], Awaitable[Account]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One fault: `play` brings it about and returns the account, or raises what it found wrong."""

    name: str
    play: Play
    small: bool


SCENARIOS: dict[str, Scenario] = {}


def scenario(name: str, *, small: bool = False) -> Callable[[Play], Play]:
    """Enter a function as the scenario `name`; small: `make proofs` runs its small form."""

    def enter(play: Play) -> Play:
        assert name not in SCENARIOS, name
        SCENARIOS[name] = Scenario(name, play, small)
        return play

    return enter


@dataclass(frozen=True, slots=True)
class Outcome:
    """One line of the table. recovery_s: of each time that a fault ended, until rows came again; verdict:
    `held`, or what was wrong.
    """

    scenario: str
    account: Account
    recovery_s: list[float]
    verdict: str
    seconds: float
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """Whether all that is promised was so."""
        return self.verdict == HELD
