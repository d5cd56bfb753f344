"""A breach of a rule: what the checkers end a run with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


class ViolationError(AssertionError):
    """Something that must always hold did not. `rule` says which, in a few words."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule


Breach = Callable[[str, str], NoReturn]
"""Ends the run: given the rule and what happened."""
