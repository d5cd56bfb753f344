"""What a proof draws anew for each commit: a few of many places to strike at, all of them in time.

It stands beside the record's path, with the proofs. The whole of it is run under the marker `long`.
Guarantees: a commit draws the same each time. A failed run says what was drawn; `GEARTRAIN_DRAW` takes the
place of the commit's hash.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

SEED = "GEARTRAIN_DRAW"


def drawn(what: str, among: Sequence[T], count: int) -> list[T]:
    """`count` of `among` for this commit, in their order; `what` tells one draw from another."""
    chance = random.Random(f"{what} {commit()}")
    places = sorted(chance.sample(range(len(among)), count))
    return [among[place] for place in places]


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
