"""A breach of a rule: what the checkers end a run with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


class ViolationError(AssertionError):
    """Something that must always hold did not. rule: which, in a few words; detail: how, one sentence."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule, self.detail = rule, detail


Breach = Callable[[str, str], NoReturn]
"""Ends the run: given the rule and what happened."""
