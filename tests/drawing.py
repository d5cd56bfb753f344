"""What a test draws anew for each commit: a few of many places to strike at, all of them in time.

It stands beside the record's path. The whole of it is run under the marker `long`.
Guarantees: a commit draws the same each time. A failed run says what was drawn; `GEARTRAIN_DRAW` takes the
place of the commit's hash.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

SEED = "GEARTRAIN_DRAW"


def drawn(what: str, among: Sequence[T], count: int) -> list[T]:
    """`count` of `among` for this commit, in their order; `what` tells one draw from another."""
    chance = random.Random(f"{what} {commit()}")
    places = sorted(chance.sample(range(len(among)), count))
    return [among[place] for place in places]


def few_and_all(what: str, among: Sequence[T], count: int) -> list[Any]:
    """A test's parameter that is a list: `count` that are drawn; all of them under the marker `long`."""
    return [
        pytest.param(drawn(what, among, count), id="drawn"),
        pytest.param(list(among), id="each", marks=pytest.mark.long),
    ]


def each_or_long(
    what: str,
    among: Iterable[tuple[object, ...]],
    count: int,
    name: Callable[[Any], str] = lambda one: str(one[0]),
) -> list[Any]:
    """A test's parameters, each a test of its own: `count` are drawn, and all others are `long`."""
    each = list(among)
    places = set(drawn(what, range(len(each)), count))
    return [
        pytest.param(*one, id=name(one), marks=[] if place in places else [pytest.mark.long])
        for place, one in enumerate(each)
    ]


@cache
def commit() -> str:
    """What the draw is made of: the hash of the commit, or what the environment names; empty for neither."""
    if named := os.environ.get(SEED):
        return named
    command = ["git", "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()
